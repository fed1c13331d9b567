//! Sessions that wait for the next reader.
//!
//! A session that met an error is closed with it, and the reader gets another
//! one while the server is worth waiting for. Never used for appending.

use std::sync::{Mutex, PoisonError};

use super::failure::Failure;
use super::session::{Link, PATIENCE, Patience, Session, Use};
use crate::error::StoreError;

/// How many idle sessions are kept.
const MAX_IDLE: usize = 8;

/// Idle sessions of one use.
#[derive(Debug)]
pub(super) struct Pool {
    link: Link,
    usage: Use,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(link: &Link, usage: Use) -> Self {
        Self {
            link: link.clone(),
            usage,
            idle: Mutex::default(),
        }
    }

    /// Runs `read` on an idle session or a new one, and again on another one
    /// if that breaks.
    pub(super) fn run<T>(
        &self,
        mut read: impl FnMut(&mut Session) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut patience = Patience::new(PATIENCE);
        loop {
            let mut session = match self.take() {
                Some(session) => session,
                None => self.link.connect_patiently(self.usage, &mut patience)?,
            };
            match read(&mut session) {
                Ok(value) => {
                    self.keep(session);
                    return Ok(value);
                }
                Err(failure) if failure.ends_session() && patience.pause() => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    fn take(&self) -> Option<Session> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|session| !session.is_closed());
        idle.pop()
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }
}
