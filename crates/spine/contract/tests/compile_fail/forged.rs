//! A permit has no public fields to fill in.

use fluffy_policy::Permit;
use fluffy_policy::capability::Capability;

fn forge(capability: Capability) -> Permit {
    Permit {
        capability,
        action: String::from("fs.write"),
        resource: None,
        decision: fluffy_base::id::DecisionId::from_bits(1),
    }
}

fn main() {}
