//! The events of one session, numbered, for however many clients listen.
//!
//! Publishing never waits: a client that is slow or gone costs the session
//! nothing. Who attaches late or again hears what is still kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::event::AgentEvent;

/// How many events are kept for those who come late.
const KEPT: usize = 20_000;

/// Where a session's events go.
#[derive(Debug)]
pub struct Hub {
    kept: Mutex<Kept>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of the event before the first one kept.
    before: u64,
    events: VecDeque<AgentEvent>,
}

/// One listener's place in the stream.
#[derive(Debug)]
pub struct Listening<'a> {
    hub: &'a Hub,
    newest: watch::Receiver<u64>,
    after: u64,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            newest: watch::Sender::new(0),
        }
    }
}

impl Hub {
    /// Tells everybody.
    pub fn publish(&self, event: AgentEvent) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.events.push_back(event);
        if kept.events.len() > KEPT {
            kept.events.pop_front();
            kept.before += 1;
        }
        let number = kept.before + kept.events.len() as u64;
        self.newest.send_replace(number);
    }

    /// The number of the newest event.
    pub fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    /// The number before the newest beginning: all there is of the work now.
    pub fn before_beginning(&self) -> u64 {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = |event: &AgentEvent| matches!(event, AgentEvent::SessionStarted(_));
        let place = kept.events.iter().rposition(begins).unwrap_or(0);
        kept.before + place as u64
    }

    /// Listens from after this number on.
    pub fn listen(&self, after: u64) -> Listening<'_> {
        Listening {
            hub: self,
            newest: self.newest.subscribe(),
            after,
        }
    }
}

impl Listening<'_> {
    /// The next event and its number; waits for it.
    pub async fn next(&mut self) -> (u64, AgentEvent) {
        loop {
            self.newest.mark_unchanged();
            if let Some(found) = self.kept() {
                self.after = found.0;
                return found;
            }
            if self.newest.changed().await.is_err() {
                // The hub outlives its listeners by its type.
                std::future::pending::<()>().await;
            }
        }
    }

    fn kept(&self) -> Option<(u64, AgentEvent)> {
        let kept = self.hub.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let after = self.after.max(kept.before);
        let place = usize::try_from(after - kept.before).ok()?;
        let event = kept.events.get(place)?;
        Some((after + 1, event.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: impl ToString) -> AgentEvent {
        AgentEvent::Note {
            text: text.to_string(),
        }
    }

    #[tokio::test]
    async fn who_comes_late_or_again_misses_nothing() {
        let hub = Hub::default();
        hub.publish(note("a"));
        hub.publish(note("b"));
        let mut late = hub.listen(0);
        assert_eq!(late.next().await, (1, note("a")));
        assert_eq!(late.next().await, (2, note("b")));
        let mut again = hub.listen(1);
        assert_eq!(again.next().await, (2, note("b")));
        let ((), heard) = tokio::join!(
            async {
                tokio::task::yield_now().await;
                hub.publish(note("c"));
            },
            late.next()
        );
        assert_eq!(heard, (3, note("c")));
    }

    #[tokio::test]
    async fn only_so_many_are_kept_and_numbers_go_on() {
        let hub = Hub::default();
        for number in 1..=KEPT + 5 {
            hub.publish(note(number));
        }
        let mut listening = hub.listen(0);
        assert_eq!(listening.next().await, (6, note(6)));
        assert_eq!(listening.next().await, (7, note(7)));
    }
}
