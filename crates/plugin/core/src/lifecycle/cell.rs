//! The state of one plugin, shared by everybody who acts on it.
//!
//! One number holds state and count of transitions, and changes by compare
//! and exchange: of two callers that want the same step one gets it, and the
//! other sees the state that followed. Every transition has its own number,
//! without gaps, so that a ledger can put them in order. Never blocks.

#[cfg(not(test))]
use std::sync::atomic::{AtomicU64, Ordering};

// The tests explore every interleaving, so they bring atomics of their own.
#[cfg(test)]
use loom::sync::atomic::{AtomicU64, Ordering};

use super::{Event, Illegal, State, next};

/// One step that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Which step of this plugin's life it is, from 1.
    pub number: u64,
    /// What happened.
    pub event: Event,
    /// Where the plugin stood.
    pub from: State,
    /// Where it stands since.
    pub to: State,
}

/// The state of one plugin.
#[derive(Debug)]
pub struct Cell {
    /// The number of transitions above the lowest byte, the state in it.
    packed: AtomicU64,
}

impl Default for Cell {
    fn default() -> Self {
        Self::new()
    }
}

impl Cell {
    /// A plugin that was just discovered.
    #[must_use]
    pub fn new() -> Self {
        Self {
            packed: AtomicU64::new(pack(0, State::Discovered)),
        }
    }

    /// Where it stands now.
    pub fn state(&self) -> State {
        unpack(self.packed.load(Ordering::Acquire)).1
    }

    /// Makes one step, or none.
    ///
    /// # Errors
    /// When the event means nothing in the state that the plugin is in.
    pub fn apply(&self, event: Event) -> Result<Transition, Illegal> {
        let mut seen = self.packed.load(Ordering::Acquire);
        loop {
            let (count, from) = unpack(seen);
            let to = next(from, event)?;
            let number = count + 1;
            let changed = self.packed.compare_exchange(
                seen,
                pack(number, to),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match changed {
                Ok(_) => {
                    return Ok(Transition {
                        number,
                        event,
                        from,
                        to,
                    });
                }
                Err(now) => seen = now,
            }
        }
    }
}

fn pack(count: u64, state: State) -> u64 {
    count << 8 | u64::from(state as u8)
}

fn unpack(packed: u64) -> (u64, State) {
    let [code, ..] = packed.to_le_bytes();
    let state = State::ALL.into_iter().find(|state| *state as u8 == code);
    // INVARIANT: only `pack` makes these; a plugin in no state must not run.
    (packed >> 8, state.unwrap_or(State::Rejected))
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What is model-checked: the cell, and one that is wrong on purpose.
    trait Steps: Send + Sync + 'static {
        fn begin() -> Self;
        fn step(&self, event: Event) -> Result<Transition, Illegal>;
        fn now(&self) -> State;
    }

    impl Steps for Cell {
        fn begin() -> Self {
            Self::new()
        }

        fn step(&self, event: Event) -> Result<Transition, Illegal> {
            self.apply(event)
        }

        fn now(&self) -> State {
            self.state()
        }
    }

    /// Looks, then sets: what everybody writes first.
    struct LooksThenSets(Cell);

    impl Steps for LooksThenSets {
        fn begin() -> Self {
            Self(Cell::new())
        }

        fn step(&self, event: Event) -> Result<Transition, Illegal> {
            let (count, from) = unpack(self.0.packed.load(Ordering::Acquire));
            let (number, to) = (count + 1, next(from, event)?);
            self.0.packed.store(pack(number, to), Ordering::Release);
            Ok(Transition {
                number,
                event,
                from,
                to,
            })
        }

        fn now(&self) -> State {
            self.0.state()
        }
    }

    const TO_RUNNING: &[Event] = &[Event::Validate, Event::Load, Event::Run];

    /// Two callers on a plugin that has come this far, in every interleaving.
    fn race<S: Steps>(before: &'static [Event], one: &'static [Event], other: &'static [Event]) {
        loom::model(move || {
            let cell = Arc::new(S::begin());
            let mut made: Vec<Transition> = before
                .iter()
                .map(|event| cell.step(*event).unwrap())
                .collect();
            let theirs = Arc::clone(&cell);
            let thread = thread::spawn(move || walk(&*theirs, other));
            made.extend(walk(&*cell, one));
            made.extend(thread.join().unwrap());
            invariant_transitions_are_one_legal_path(made, cell.now());
        });
    }

    fn walk(cell: &impl Steps, events: &[Event]) -> Vec<Transition> {
        events
            .iter()
            .filter_map(|event| cell.step(*event).ok())
            .collect()
    }

    fn invariant_transitions_are_one_legal_path(mut made: Vec<Transition>, end: State) {
        made.sort_by_key(|transition| transition.number);
        let mut state = State::Discovered;
        for (number, step) in (1..).zip(&made) {
            let follows = step.number == number && step.from == state;
            assert!(follows, "not one legal path: {made:?}");
            assert_eq!(next(step.from, step.event), Ok(step.to));
            state = step.to;
        }
        assert_eq!(state, end, "not one legal path: {made:?}");
    }

    fn two_reloads<S: Steps>() {
        const STOPPED: &[Event] = &[
            Event::Validate,
            Event::Load,
            Event::Run,
            Event::Drain,
            Event::Stop,
            Event::End,
        ];
        let reload = &[Event::Reload, Event::Validate];
        race::<S>(STOPPED, reload, reload);
    }

    fn a_crash_during_a_drain<S: Steps>() {
        race::<S>(
            TO_RUNNING,
            &[Event::Drain, Event::Stop, Event::End],
            &[Event::Fail],
        );
    }

    fn a_stop_during_a_load<S: Steps>() {
        let before = &[Event::Validate, Event::Load];
        race::<S>(
            before,
            &[Event::Run, Event::Fail],
            &[Event::Drain, Event::Stop],
        );
    }

    #[test]
    fn of_two_reloads_one_wins() {
        two_reloads::<Cell>();
        loom::model(|| {
            let cell = Arc::new(Cell::new());
            let theirs = Arc::clone(&cell);
            let thread = thread::spawn(move || theirs.apply(Event::Validate).is_ok());
            let ours = cell.apply(Event::Validate).is_ok();
            assert!(ours ^ thread.join().unwrap());
        });
    }

    #[test]
    fn a_crash_during_a_drain_leaves_one_legal_path() {
        a_crash_during_a_drain::<Cell>();
    }

    #[test]
    fn a_stop_during_a_load_leaves_one_legal_path() {
        a_stop_during_a_load::<Cell>();
    }

    #[test]
    fn whoever_looks_and_then_sets_is_found_out() {
        for scene in [
            two_reloads::<LooksThenSets>,
            a_crash_during_a_drain::<LooksThenSets>,
            a_stop_during_a_load::<LooksThenSets>,
        ] {
            assert!(std::panic::catch_unwind(scene).is_err());
        }
    }

    #[test]
    fn every_state_packs_and_unpacks() {
        for state in State::ALL {
            assert_eq!(unpack(pack(7, state)), (7, state));
        }
    }
}
