//! Which images are there, and the fetching of those that are not.
//!
//! Nobody waits for a fetch: a request meanwhile hears how far it is. The image
//! made from the host is made at once, it is small. Next: `creation` uses them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fluffy_sandbox::protocol::{Failure, FailureKind};

use crate::engine::{Engine, EngineError};
use crate::host_image::HostImage;

/// The images of one engine.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    engine: Engine,
    host: Arc<HostImage>,
    known: Arc<Mutex<HashMap<String, State>>>,
}

/// How far an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// It is being fetched; the last thing the engine said.
    Fetching(String),
    /// It is there.
    Ready,
    /// It could not be fetched; told once, then tried again.
    Failed(Box<Failure>),
}

/// Whether an image can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Now.
    Ready,
    /// Later; how far it is.
    Pending(String),
}

impl Images {
    /// Knows nothing yet.
    pub(crate) fn new(engine: Engine, host: HostImage) -> Self {
        Self {
            engine,
            host: Arc::new(host),
            known: Arc::default(),
        }
    }

    /// The name of the image made from the host, made now if it is missing.
    pub(crate) async fn host_image(&self) -> Result<String, EngineError> {
        let name = self.host.name.clone();
        if self.state(&name) != Some(State::Ready) {
            if !self.engine.has_image(&name).await? {
                let archive = self.host.archive.clone();
                self.engine.import_image(&name, archive).await?;
            }
            self.set(&name, State::Ready);
        }
        Ok(name)
    }

    /// Whether a named image can be used; starts to fetch one that is missing.
    ///
    /// # Errors
    /// The name is none, or the last attempt failed.
    pub(crate) async fn named_image(&self, name: &str) -> Result<Readiness, Failure> {
        check_name(name)?;
        match self.state(name) {
            Some(State::Ready) => return Ok(Readiness::Ready),
            Some(State::Fetching(progress)) => return Ok(Readiness::Pending(progress)),
            Some(State::Failed(failure)) => {
                self.forget(name);
                return Err(*failure);
            }
            None => {}
        }
        let there = self.engine.has_image(name).await;
        if there.map_err(|error| error.failure())? {
            self.set(name, State::Ready);
            return Ok(Readiness::Ready);
        }
        let progress = format!("fetching `{name}`");
        self.set(name, State::Fetching(progress.clone()));
        tokio::spawn(self.clone().fetch(name.to_owned()));
        Ok(Readiness::Pending(progress))
    }

    async fn fetch(self, name: String) {
        let told = |step: String| {
            let progress = format!("fetching `{name}`: {step}");
            self.set(&name, State::Fetching(progress));
        };
        let state = match self.engine.pull_image(&name, told).await {
            Ok(()) => State::Ready,
            Err(error) => State::Failed(Box::new(Failure {
                kind: FailureKind::Unavailable,
                what: format!("the image `{name}` cannot be fetched"),
                fix: Some(format!(
                    "check the name and that `pull {name}` works by hand"
                )),
                ..error.failure()
            })),
        };
        self.set(&name, state);
    }

    fn state(&self, name: &str) -> Option<State> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).cloned()
    }

    fn set(&self, name: &str, state: State) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), state);
    }

    /// Looks for it again before it is used.
    pub(crate) fn forget(&self, name: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(name);
    }
}

/// Refuses what the engine would read as something other than a name.
fn check_name(name: &str) -> Result<(), Failure> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "./-_:@".contains(character);
    let starts = name.starts_with(|character: char| character.is_ascii_alphanumeric());
    if starts && name.len() <= 512 && name.chars().all(plain) {
        return Ok(());
    }
    Err(Failure {
        kind: FailureKind::Refused,
        what: "the sandbox is refused".to_owned(),
        why: format!("`{}` is not the name of an image", name.escape_debug()),
        fix: Some("name it like `docker.io/library/alpine:3.20`".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_taken_for_names() {
        for name in ["alpine", "localhost:5000/a/b:1.2", "a@sha256:0123"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "-it", "a b", "a?b", "a\nb", "../x", "a%2e"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
