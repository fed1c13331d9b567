//! The bootstrap as a process that tests can kill; never part of the product.
//!
//! `stand-in CONFIGURATION WITHIN PAUSE LAUNCHER KERNEL`: how long an answer to
//! a ping may take, the pause before the first restart (both in milliseconds),
//! and two scripts for `/bin/sh`; one that is empty is a program that is not
//! there.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use fluffy_bootstrap::heartbeat::Rhythm;
use fluffy_bootstrap::restart::Allowance;
use fluffy_bootstrap::{Bootstrap, Engine, run};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [configuration, within, pause, launcher, kernel] = arguments.as_slice() else {
        return ExitCode::from(99);
    };
    let millis = |text: &OsString| {
        let millis = text.to_str().and_then(|text| text.parse().ok());
        Duration::from_millis(millis.unwrap_or_default())
    };
    let within = millis(within);
    let script = |script: &OsString| -> Vec<OsString> {
        if script.is_empty() {
            return vec!["/nowhere/to/be \"found\"".into()];
        }
        vec!["/bin/sh".into(), "-c".into(), script.clone(), "sh".into()]
    };
    let engine = |name: &str| Engine {
        name: name.to_owned(),
        launcher: script(launcher).into_iter().chain([name.into()]).collect(),
    };
    let bootstrap = Bootstrap {
        configuration: configuration.into(),
        engines: vec![engine("native"), engine("bwrap")],
        kernel: script(kernel),
        environment: vec![("GIVEN".into(), "yes".into())],
        rhythm: Rhythm {
            every: Duration::from_millis(20),
            within,
            first_within: within,
        },
        allowance: Allowance {
            pause: millis(pause),
            ..Allowance::default()
        },
        grace: Duration::from_millis(1_500),
    };
    run(&bootstrap)
}
