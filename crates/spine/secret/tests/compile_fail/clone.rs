//! A secret cannot be copied.

fn main() {
    let secret = fluffy_secret::SecretString::from(String::from("x"));
    let _copy: fluffy_secret::SecretString = secret.clone();
}
