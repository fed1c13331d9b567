//! Adds a program to what the user's session starts.
//!
//! An empty file, in a home made for this.

use std::fs;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "session-startup",
    Family::Persistence,
    Guard::MountTable,
    attempt,
)
.gains("runs code on the host when the user next logs in")
.also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let folders = [".config/autostart", ".config/systemd/user"];
    Outcome::best(folders.map(|folder| {
        let folder = stage.home.join(folder);
        let planted = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("planted.service"), ""));
        look::outcome("plant a service", planted)
    }))
}
