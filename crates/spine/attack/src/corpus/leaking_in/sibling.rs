//! Looks for the secret of another sandbox that runs beside it.
//!
//! Reads only. The sibling keeps its secret in its arguments, in `/tmp` and
//! in `/dev/shm`, and sleeps for two seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("sibling", Family::LeakingIn, Guard::PidNamespace, attempt)
        .gains("reads what another sandbox keeps to itself")
        .also_stopped_by(&[Guard::MountTable])
        .beside(keep_secret);

fn attempt(stage: &Stage) -> Outcome {
    let deadline = Instant::now() + Duration::from_millis(1500);
    loop {
        let outcome = Outcome::best(shared(stage).into_iter().chain(arguments()).map(look::read));
        if matches!(outcome, Outcome::Succeeded { .. }) || Instant::now() >= deadline {
            return outcome;
        }
        sleep(Duration::from_millis(50));
    }
}

fn keep_secret(stage: &Stage) -> Outcome {
    let secret = stage.secret.clone().unwrap_or_default();
    for path in shared(stage) {
        // Where it cannot keep it there, it keeps it elsewhere.
        let _kept = fs::write(path, &secret);
    }
    sleep(Duration::from_secs(2));
    for path in shared(stage) {
        let _removed = fs::remove_file(path);
    }
    Outcome::succeeded("kept a secret")
}

fn shared(stage: &Stage) -> Vec<PathBuf> {
    let name = format!("{}-sibling", stage.unique());
    ["/tmp", "/dev/shm"]
        .map(|folder| Path::new(folder).join(&name))
        .into()
}

fn arguments() -> impl Iterator<Item = PathBuf> {
    look::processes().map(|process| process.join("cmdline"))
}
