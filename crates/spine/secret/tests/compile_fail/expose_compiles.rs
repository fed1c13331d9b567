//! The control: the one deliberate way compiles.

fn main() {
    let secret = fluffy_secret::SecretString::from(String::from("x"));
    assert_eq!(format!("{} {secret:?}", secret.expose().len()), "1 Secret(…)");
}
