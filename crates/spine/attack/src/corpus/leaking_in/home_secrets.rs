//! Reads the keys and passwords in the user's home.
//!
//! Reads only, from a home made for this.

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "home-secrets",
    Family::LeakingIn,
    Guard::MountTable,
    attempt,
)
.gains("reads ssh keys and passwords in the user's home")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    Outcome::best([".ssh/id_ed25519", ".netrc"].map(|name| look::read(stage.home.join(name))))
}
