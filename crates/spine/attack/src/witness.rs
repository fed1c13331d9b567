//! Harmless twins of attacks: what must work, so that stopping means something.
//!
//! A subject whose merges never arrive would stop every attack on merging.
//! So an honest change is merged first, and an honest request sent through
//! the proxy; where that fails, the verdicts that rest on it are broken.

use std::fs;
use std::path::Path;

use crate::attack::{Attack, Family};
use crate::corpus::request;
use crate::ground::Ground;
use crate::guard::Guard;
use crate::outcome::Outcome;
use crate::run::{Need, explain, visit};
use crate::stage::{Stage, Visit};
use crate::subject::Subject;
use crate::verdict::Verdict;

/// An honest change that must arrive in the project.
pub(crate) const MERGE: Attack = Attack::new(
    "witness-merge",
    Family::Persistence,
    Guard::MergeRefusal,
    change,
)
.gains("an honest change")
.merged(&[]);

/// An honest request that must arrive at the permitted host.
pub(crate) const EGRESS: Attack = Attack::new(
    "witness-egress",
    Family::TalkingOut,
    Guard::EgressDecision,
    ask,
)
.gains("an honest request")
.behind_the_proxy();

const CHANGED: &str = "source/witness.txt";

fn change(_: &Stage) -> Outcome {
    match fs::write(CHANGED, "an honest change\n") {
        Ok(()) => Outcome::succeeded("wrote"),
        Err(error) => Outcome::stopped("write", error),
    }
}

fn ask(stage: &Stage) -> Outcome {
    request::connect_and_greet(stage, &request::permitted(stage), &stage.nonce)
}

/// What keeps the verdicts on a subject from counting.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    merge: Option<String>,
    egress: Option<String>,
}

impl Doubts {
    /// The verdict, unless what it rests on does not work.
    pub(crate) fn weigh(&self, attack: &Attack, verdict: Verdict) -> Verdict {
        let doubt = match Need::of(attack) {
            Some(Need::Merge) => &self.merge,
            Some(Need::Egress) => &self.egress,
            None => &None,
        };
        match (doubt, verdict) {
            (Some(why), Verdict::Stopped { .. }) => Verdict::Broken { why: why.clone() },
            (_, verdict) => verdict,
        }
    }
}

/// Tries what the attacks rest on.
pub(crate) fn doubts(attacks: &[&'static Attack], subject: &dyn Subject, base: &Path) -> Doubts {
    let needed = |need| {
        attacks.iter().any(|attack| {
            Need::of(attack) == Some(need)
                && attack.tiers.contains(&subject.tier())
                && subject.lacks(attack).is_none()
        })
    };
    let mut doubts = Doubts::default();
    if needed(Need::Merge) {
        let arrived = |ground: &mut Ground| ground.project().join(CHANGED).is_file();
        doubts.merge = doubt(&MERGE, subject, base, arrived)
            .map(|why| format!("an honest change was not merged either: {why}"));
    }
    if needed(Need::Egress) {
        let arrived = |ground: &mut Ground| ground.hears_on_permitted_port();
        doubts.egress = doubt(&EGRESS, subject, base, arrived)
            .map(|why| format!("an honest request did not arrive either: {why}"));
    }
    doubts
}

fn doubt(
    twin: &Attack,
    subject: &dyn Subject,
    base: &Path,
    arrived: impl FnOnce(&mut Ground) -> bool,
) -> Option<String> {
    let mut ground = match Ground::lay(base, twin, subject.limits()) {
        Ok(ground) => ground,
        Err(error) => return Some(explain(&error)),
    };
    match visit(twin, subject, &ground, Visit::First) {
        Ok(_) if arrived(&mut ground) => None,
        Ok(visited) => Some(match visited.said.outcome {
            Some(Outcome::Blocked { detail, .. } | Outcome::Unavailable { detail }) => detail,
            Some(Outcome::Succeeded { .. }) | None => visited.ran.describe(),
        }),
        Err(error) => Some(explain(&error)),
    }
}
