//! `fluffy worker bootstrap`: who keeps the kernel of a project running.
//!
//! Says what is started and which engines there are; everything else is the
//! crate `fluffy_bootstrap`, which is small enough to be read whole.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fluffy_bootstrap::heartbeat::Rhythm;
use fluffy_bootstrap::restart::Allowance;
use fluffy_config::ProcessEngine;

use super::{FAILED, ended};

/// How long a kernel may take to end when it was told to.
const GRACE: Duration = Duration::from_secs(5);

/// The variable of `sandbox.engine`.
pub(crate) const ENGINE: &str = "FLUFFY_SANDBOX_ENGINE";

/// Keeps a launcher and the kernel of a project running.
pub(crate) fn run(configuration: &str, project: &str, socket: &str) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own.into_os_string(),
        Err(error) => return ended(&format!("cannot find this program: {error}"), FAILED),
    };
    let words = |words: &[&str]| {
        let words = words.iter().map(OsString::from);
        std::iter::once(own.clone()).chain(words).collect()
    };
    // A variable is over the file, which it therefore does not look at.
    let key = std::env::var(ENGINE).unwrap_or_default();
    let names = ProcessEngine::ALL.map(|(name, _)| name);
    let engines = names
        .iter()
        .filter(|name| !names.contains(&key.as_str()) || **name == key);
    let engines = engines.map(|name| fluffy_bootstrap::Engine {
        name: (*name).to_owned(),
        launcher: words(&["worker", "launcher"]),
    });
    fluffy_bootstrap::run(&fluffy_bootstrap::Bootstrap {
        configuration: PathBuf::from(configuration),
        engines: engines.collect(),
        kernel: words(&["worker", "kernel", project, socket]),
        environment: std::env::vars_os().collect(),
        rhythm: Rhythm::default(),
        allowance: Allowance::default(),
        grace: GRACE,
    })
}
