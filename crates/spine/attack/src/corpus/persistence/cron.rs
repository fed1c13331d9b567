//! Adds a file to what cron runs.
//!
//! A comment, which the host removes where it finds it.

use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("cron", Family::Persistence, Guard::MountTable, attempt)
        .gains("runs code on the host every minute")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(stage: &Stage) -> Outcome {
    let folders = [
        "/etc/cron.d",
        "/var/spool/cron/crontabs",
        "/var/spool/cron",
        "/etc/systemd/system",
    ];
    look::plant(stage, &folders.map(Path::new), "# planted\n")
}
