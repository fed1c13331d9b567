//! Reads what capabilities it has, could have or could hand on.
//!
//! Only reads. `bwrap` started by root leaves all of them.

use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "capabilities",
    Family::Privilege,
    Guard::NoCapabilities,
    attempt,
)
.gains("holds capabilities, from which most other ways out start")
.on_its_word();

fn attempt(_: &Stage) -> Outcome {
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(error) => return Outcome::stopped("read /proc/self/status", error),
    };
    let held = |line: &&str| {
        let set = line.split(':').nth(1).unwrap_or_default();
        set.trim().chars().any(|digit| digit != '0')
    };
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let lines = status
        .lines()
        .filter(|line| sets.iter().any(|set| line.starts_with(set)));
    let found: Vec<&str> = lines.filter(held).collect();
    if found.is_empty() {
        Outcome::blocked("all five sets are empty")
    } else {
        Outcome::succeeded(found.join(", ").replace('\t', " "))
    }
}
