//! What all tests here need: a host with real workers and a clock to move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_base::{ManualClock, Timestamp};
use fluffy_policy::extension::{Answer, Extensions as _, Opinion};
use fluffy_policy::{Context, Principal, PrincipalKind, Request};
use fluffy_script::{
    ExtensionSource, Health, Limits, LoadExtensionsError, ScriptHost, WorkerCommand,
};

/// 2026-11-15T08:00:00.123456Z.
pub(crate) const NOW: i64 = 1_794_729_600_123_456;

/// Limits under which a friendly script is never late, however busy the machine.
pub(crate) const PATIENT: Limits = Limits {
    evaluation: Duration::from_secs(60),
    load: Duration::from_secs(60),
    ..Limits::SPECIFIED
};

/// The specified limits, with time to start on a busy machine.
pub(crate) const SPECIFIED: Limits = Limits {
    load: Duration::from_secs(60),
    ..Limits::SPECIFIED
};

pub(crate) fn worker() -> WorkerCommand {
    WorkerCommand {
        program: env!("CARGO_BIN_EXE_fluffy-script-worker").into(),
        args: Vec::new(),
    }
}

/// A program that pretends to be a worker.
pub(crate) fn impostor(shell: &str) -> WorkerCommand {
    WorkerCommand {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), shell.into()],
    }
}

pub(crate) fn sources(extensions: &[(&str, &str)]) -> Vec<ExtensionSource> {
    extensions
        .iter()
        .map(|(name, source)| ExtensionSource {
            name: (*name).to_owned(),
            source: (*source).to_owned(),
        })
        .collect()
}

pub(crate) fn request(action: &str, resource: &str) -> Request {
    Request {
        principal: Principal {
            kind: PrincipalKind::Agent,
            name: "agent".to_owned(),
            tags: ["new_employee".to_owned()].into(),
            sandbox: None,
            process: None,
            on_behalf_of: None,
            grant: None,
        },
        action: action.to_owned(),
        resource: Some(resource.to_owned()),
        context: Context::default(),
    }
}

/// A host and the clock it goes by.
pub(crate) struct Stage {
    pub(crate) host: ScriptHost,
    pub(crate) clock: Arc<ManualClock>,
}

impl Stage {
    pub(crate) fn new(extensions: &[(&str, &str)], limits: Limits) -> Self {
        Self::with(worker(), extensions, limits).unwrap()
    }

    pub(crate) fn with(
        command: WorkerCommand,
        extensions: &[(&str, &str)],
        limits: Limits,
    ) -> Result<Self, LoadExtensionsError> {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(NOW)));
        let host = ScriptHost::start(command, sources(extensions), limits, clock.clone())?;
        Ok(Self { host, clock })
    }

    pub(crate) fn ask(&self, action: &str, resource: &str) -> Vec<Answer> {
        self.host
            .ask(&request(action, resource), Timestamp::from_micros(NOW))
    }

    /// Asks the only extension about `fs.write`.
    pub(crate) fn answer(&self) -> Answer {
        let mut answers = self.ask("fs.write", "/src/lib.rs");
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    pub(crate) fn health(&self, name: &str) -> Health {
        let report = self.host.report();
        let found = report.into_iter().find(|report| report.name == name);
        found.unwrap().health
    }

    pub(crate) fn pid(&self, name: &str) -> u32 {
        match self.health(name) {
            Health::Running { worker, .. } => worker,
            disabled @ Health::Disabled { .. } => panic!("{disabled:?}"),
        }
    }
}

/// The answer of one script, asked once.
pub(crate) fn answer_of(source: &str, limits: Limits) -> Answer {
    Stage::new(&[("guard", source)], limits).answer()
}

/// Asserts that the script fails under these limits, for this reason.
#[track_caller]
pub(crate) fn assert_fails(source: &str, limits: Limits, reason: &str) {
    let answer = answer_of(source, limits);
    assert_eq!(answer.opinion, Opinion::Failed, "{source}: {answer:?}");
    assert!(answer.reason.contains(reason), "{source}: {answer:?}");
}

/// The body of `evaluate` as a script.
pub(crate) fn evaluate(body: &str) -> String {
    format!("export function evaluate(request) {{ {body} }}")
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "still not: {what}");
        std::thread::yield_now();
    }
}

/// Whether a process with this id exists, zombies included.
pub(crate) fn exists(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
