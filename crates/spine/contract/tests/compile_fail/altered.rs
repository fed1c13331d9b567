//! A decision's verdict cannot be changed from outside.

use fluffy_policy::{Decision, Verdict};

fn overrule(mut decision: Decision) -> Decision {
    decision.verdict = Verdict::Allow;
    decision
}

fn main() {}
