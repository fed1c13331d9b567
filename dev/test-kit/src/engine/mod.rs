//! Container engines for tests: a Docker and two Podmans of our own.
//!
//! Never touches an engine that others started. Go to `server` for starting
//! and stopping them, `scripts` for what runs with them and cleans up.

mod scripts;
mod server;

use std::path::PathBuf;

use anyhow::{Result, bail};

pub use server::PrivateEngine;

/// Which container engine, and whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// Docker, run by root.
    Docker,
    /// Podman, run by whoever runs the tests.
    Podman,
    /// Podman, run by an ordinary user while root runs the tests.
    RootlessPodman,
}

/// An engine that a test may use, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestEngine {
    /// It listens on this socket.
    At(PathBuf),
    /// This machine cannot have one; the test skips itself with this reason.
    Impossible(String),
}

impl EngineKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Docker, Self::Podman, Self::RootlessPodman];

    /// The variable that tells the tests: a socket's path, or a reason.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Docker => "FLUFFY_TEST_DOCKER_SOCKET",
            Self::Podman => "FLUFFY_TEST_PODMAN_SOCKET",
            Self::RootlessPodman => "FLUFFY_TEST_ROOTLESS_PODMAN_SOCKET",
        }
    }

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::RootlessPodman => "rootless podman",
        }
    }

    /// The engine that `cargo xtask` started for the tests.
    ///
    /// # Errors
    /// Nothing was said about it; the text says how to start one.
    pub fn for_tests(self) -> Result<TestEngine> {
        match std::env::var(self.variable()) {
            Ok(text) => Ok(TestEngine::parse(&text)),
            Err(_) => bail!(
                "this test needs {} and {} is not set; run `cargo xtask test --only tests`, \
                 or for some tests only `cargo xtask with-engines cargo test --package …`",
                self.name(),
                self.variable()
            ),
        }
    }
}

impl TestEngine {
    /// The text for the variable that [`EngineKind::for_tests`] reads.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::At(path) => path.display().to_string(),
            Self::Impossible(reason) => reason.replace('\n', " "),
        }
    }

    fn parse(text: &str) -> Self {
        if text.starts_with('/') {
            Self::At(PathBuf::from(text))
        } else {
            Self::Impossible(text.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_to_tests_comes_back() {
        for engine in [
            TestEngine::At(PathBuf::from("/tmp/x/engine.sock")),
            TestEngine::Impossible("no root and no sudo".to_owned()),
        ] {
            assert_eq!(TestEngine::parse(&engine.to_text()), engine);
        }
    }
}
