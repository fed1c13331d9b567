//! A permit is used once.

fn twice(permit: fluffy_policy::Permit) -> (fluffy_policy::Permit, fluffy_policy::Permit) {
    (permit.clone(), permit)
}

fn main() {}
