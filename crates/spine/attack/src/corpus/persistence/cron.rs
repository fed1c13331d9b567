//! Adds a file to what cron runs.
//!
//! A comment, removed at once where that works.

use std::fs;
use std::path::Path;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("cron", Family::Persistence, Guard::MountTable, attempt)
        .gains("runs code on the host every minute")
        .also_stopped_by(&[Guard::Landlock])
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let folders = [
        "/etc/cron.d",
        "/var/spool/cron/crontabs",
        "/var/spool/cron",
        "/etc/systemd/system",
    ];
    Outcome::best(folders.map(|folder| {
        let path = Path::new(folder).join(stage.unique());
        let outcome = look::create(&path, "# planted\n");
        // Only there if it was created just now.
        let _removed = fs::remove_file(&path);
        outcome
    }))
}
