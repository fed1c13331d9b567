//! An effect consumes its permit.

use fluffy_policy::Permit;

fn effect(_permit: Permit) {}

fn main() {}

fn twice(permit: Permit) {
    effect(permit);
    effect(permit);
}
