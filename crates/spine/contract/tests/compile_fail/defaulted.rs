//! A permit is not made from nothing.

fn main() {
    let _permit = fluffy_policy::Permit::default();
}
