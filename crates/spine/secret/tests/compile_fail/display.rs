//! A secret cannot be formatted as text.

fn main() {
    let secret = fluffy_secret::SecretString::from(String::from("x"));
    let _ = format!("{secret}");
}
