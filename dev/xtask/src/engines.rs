//! Container engines beside the tests: started for them, stopped after them.
//!
//! Never uses an engine that others started. An engine that this machine cannot
//! have is told to the tests with its reason, and they count as skipped.

use std::process::Command;

use anyhow::Result;
use fluffy_test_kit::{EngineKind, PrivateEngine, TestEngine};

use crate::output;
use crate::process::run;
use crate::step::Outcome;

/// The engines of one run; dropping it stops them.
#[derive(Debug)]
pub(crate) struct Engines {
    told: Vec<(EngineKind, TestEngine)>,
    _running: Vec<PrivateEngine>,
}

impl Engines {
    /// Starts all that this machine can have.
    pub(crate) fn start() -> Result<Self> {
        let (mut told, mut running) = (Vec::new(), Vec::new());
        for kind in EngineKind::ALL {
            match PrivateEngine::start(kind)? {
                Ok(engine) => {
                    output::line(&format!("{} at {}", kind.name(), engine.socket().display()));
                    told.push((kind, engine.for_tests()));
                    running.push(engine);
                }
                Err(reason) => {
                    output::line(&format!("no {}: {reason}", kind.name()));
                    told.push((kind, TestEngine::Impossible(reason)));
                }
            }
        }
        Ok(Self {
            told,
            _running: running,
        })
    }

    /// Tells a command about them.
    pub(crate) fn tell(&self, command: &mut Command) {
        for (kind, engine) in &self.told {
            command.env(kind.variable(), engine.to_text());
        }
    }
}

/// Runs any command while private engines are there for it.
pub(crate) fn run_other(program: &str, arguments: &[String]) -> Result<Outcome> {
    let engines = Engines::start()?;
    let mut command = Command::new(program);
    command.args(arguments);
    engines.tell(&mut command);
    run(&mut command, "")
}
