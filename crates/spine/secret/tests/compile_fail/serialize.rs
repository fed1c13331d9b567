//! A secret cannot be serialised.

fn main() {
    let secret = fluffy_secret::SecretString::from(String::from("x"));
    let _ = serde_json::to_string(&secret);
}
