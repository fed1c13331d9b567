//! What the other cases try compiles when it is done as intended.

use fluffy_policy::{Decision, Permit, Refusal};

fn effect(_permit: Permit) {}

fn once(decision: Decision) -> Result<(), Refusal> {
    decision.into_permit().map(effect)
}

fn main() {
    let _once: fn(Decision) -> Result<(), Refusal> = once;
}
