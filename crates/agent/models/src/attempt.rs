//! What happens after a failed attempt: wait, take another model, or give up.
//!
//! A pure function of what has happened, the time and one random number; the
//! table in the tests is the specification. Never sleeps and never sends: that
//! is `driver`.

use std::time::Duration;

use fluffy_base::Timestamp;
use fluffy_contract::model::{FaultKind, ModelFault, Retry};

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Which model of the chain, from 0.
    pub model: usize,
    /// When it failed.
    pub ended: Timestamp,
    /// Why.
    pub fault: ModelFault,
    /// How long the provider wants us to wait.
    pub retry_after: Option<Duration>,
    /// Whether anybody has seen a part of the answer.
    pub shown: Shown,
}

/// Whether anybody has seen a part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Nobody.
    Nothing,
    /// Somebody: it must be taken back before another attempt.
    Output,
}

/// How patient to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRules {
    /// How many models there are.
    pub models: usize,
    /// How often one of them is tried.
    pub attempts: usize,
    /// How often output that was shown is taken back, in all.
    pub restarts: usize,
    /// The first pause; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause of our own.
    pub longest_pause: Duration,
    /// The longest wish of a provider that is followed while there is another
    /// model.
    pub patience: Duration,
    /// The longest wish that is followed at all.
    pub longest_wait: Duration,
}

impl RetryRules {
    /// The rules for a chain of this many models.
    #[must_use]
    pub const fn for_models(models: usize) -> Self {
        Self {
            models,
            attempts: 5,
            restarts: 2,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            patience: Duration::from_secs(20),
            longest_wait: Duration::from_secs(120),
        }
    }
}

/// A random number between 0 and 1, in parts of 65,535.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter(pub u16);

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The same model again, at this moment.
    Wait {
        /// When.
        until: Timestamp,
    },
    /// Another model, now.
    Failover {
        /// Which, from 0.
        model: usize,
    },
    /// Nothing: the last fault is the answer.
    GiveUp,
}

/// What to do after these attempts, the last of which has just failed.
#[must_use]
pub fn next_attempt(
    history: &[Attempt],
    now: Timestamp,
    rules: &RetryRules,
    jitter: Jitter,
) -> Next {
    let Some(last) = history.last() else {
        return Next::Failover { model: 0 };
    };
    let taken_back = history
        .iter()
        .filter(|attempt| attempt.shown == Shown::Output)
        .count();
    if taken_back > rules.restarts {
        return Next::GiveUp;
    }
    let other = other_model(last, rules);
    if last.fault.retryable == Retry::Never {
        return match helps_elsewhere(last.fault.kind) {
            true => other,
            false => Next::GiveUp,
        };
    }
    let tries = history
        .iter()
        .filter(|attempt| attempt.model == last.model)
        .count();
    if tries >= rules.attempts {
        return other;
    }
    let wish = last.retry_after.unwrap_or_default();
    let is_too_long = match other {
        Next::Failover { .. } => wish > rules.patience,
        Next::Wait { .. } | Next::GiveUp => wish > rules.longest_wait,
    };
    if is_too_long {
        return other;
    }
    let pause = pause(tries, rules, jitter).max(wish);
    // The wish counts from when it was made.
    let until = last.ended.after(pause).max(now);
    Next::Wait { until }
}

fn other_model(last: &Attempt, rules: &RetryRules) -> Next {
    let model = last.model + 1;
    match model < rules.models {
        true => Next::Failover { model },
        false => Next::GiveUp,
    }
}

/// Whether another provider may do what this one never will.
const fn helps_elsewhere(kind: FaultKind) -> bool {
    match kind {
        FaultKind::Authentication
        | FaultKind::Billing
        | FaultKind::Malformed
        | FaultKind::Network
        | FaultKind::NotFound
        | FaultKind::Overloaded
        | FaultKind::RateLimited
        | FaultKind::TimedOut => true,
        // The conversation itself is wrong: its owner has to mend it.
        FaultKind::ContextTooLong
        | FaultKind::Diverged
        | FaultKind::Ended
        | FaultKind::InvalidRequest => false,
    }
}

/// Between half and the whole of a pause that doubles.
fn pause(tries: usize, rules: &RetryRules, jitter: Jitter) -> Duration {
    let doublings = u32::try_from(tries.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(20);
    let whole = rules
        .first_pause
        .saturating_mul(1 << doublings)
        .min(rules.longest_pause);
    let half = whole / 2;
    half + half.saturating_mul(u32::from(jitter.0)) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_000_000_000;

    fn fault(kind: FaultKind, retryable: Retry) -> ModelFault {
        ModelFault {
            kind,
            message: String::new(),
            retryable,
        }
    }

    fn attempt(model: usize, kind: FaultKind, retryable: Retry) -> Attempt {
        Attempt {
            model,
            ended: Timestamp::from_micros(NOW),
            fault: fault(kind, retryable),
            retry_after: None,
            shown: Shown::Nothing,
        }
    }

    fn busy(model: usize) -> Attempt {
        attempt(model, FaultKind::Overloaded, Retry::Later)
    }

    fn wish(model: usize, seconds: u64) -> Attempt {
        let retry_after = Some(Duration::from_secs(seconds));
        Attempt {
            retry_after,
            ..busy(model)
        }
    }

    fn shown(model: usize) -> Attempt {
        Attempt {
            shown: Shown::Output,
            ..busy(model)
        }
    }

    fn decide(history: &[Attempt], models: usize) -> Next {
        let now = Timestamp::from_micros(NOW);
        next_attempt(
            history,
            now,
            &RetryRules::for_models(models),
            Jitter(u16::MAX),
        )
    }

    fn wait(millis: u64) -> Next {
        let until = Timestamp::from_micros(NOW).after(Duration::from_millis(millis));
        Next::Wait { until }
    }

    #[test]
    fn the_table_of_decisions() {
        use FaultKind::*;
        let never = |kind| attempt(0, kind, Retry::Never);
        let other = Next::Failover { model: 1 };
        let table: Vec<(&str, Vec<Attempt>, usize, Next)> = vec![
            ("nothing yet", vec![], 2, Next::Failover { model: 0 }),
            ("busy once", vec![busy(0)], 1, wait(500)),
            ("busy twice", vec![busy(0), busy(0)], 1, wait(1000)),
            ("busy four times", vec![busy(0); 4], 1, wait(4000)),
            ("busy too often", vec![busy(0); 5], 1, Next::GiveUp),
            ("busy too often, another", vec![busy(0); 5], 2, other),
            (
                "the other begins anew",
                [vec![busy(0); 5], vec![busy(1)]].concat(),
                2,
                wait(500),
            ),
            (
                "all too often",
                [vec![busy(0); 5], vec![busy(1); 5]].concat(),
                2,
                Next::GiveUp,
            ),
            ("a short wish", vec![wish(0, 0)], 1, wait(500)),
            ("a wish", vec![wish(0, 7)], 2, wait(7000)),
            ("a long wish", vec![wish(0, 60)], 1, wait(60_000)),
            ("a long wish, another", vec![wish(0, 60)], 2, other),
            ("too long a wish", vec![wish(0, 600)], 1, Next::GiveUp),
            ("wrong key", vec![never(Authentication)], 1, Next::GiveUp),
            ("wrong key, another", vec![never(Authentication)], 2, other),
            ("no money, another", vec![never(Billing)], 2, other),
            ("no such model, another", vec![never(NotFound)], 2, other),
            ("no way out, another", vec![never(Network)], 2, other),
            ("too long", vec![never(ContextTooLong)], 2, Next::GiveUp),
            (
                "wrong request",
                vec![never(InvalidRequest)],
                2,
                Next::GiveUp,
            ),
            ("shown once", vec![shown(0)], 1, wait(500)),
            ("shown twice", vec![shown(0); 2], 1, wait(1000)),
            ("shown too often", vec![shown(0); 3], 2, Next::GiveUp),
        ];
        for (name, history, models, wanted) in table {
            assert_eq!(decide(&history, models), wanted, "{name}");
        }
    }

    #[test]
    fn a_wish_counts_from_when_it_was_made() {
        let rules = RetryRules::for_models(1);
        let later = Timestamp::from_micros(NOW).after(Duration::from_secs(5));
        let next = |seconds| next_attempt(&[wish(0, seconds)], later, &rules, Jitter(0));
        assert_eq!(next(7), wait(7000));
        assert_eq!(next(3), Next::Wait { until: later });
    }

    proptest! {
        #[test]
        fn pauses_stay_between_half_and_whole(tries in 1_usize..100, jitter: u16) {
            let rules = RetryRules::for_models(1);
            let whole = pause(tries, &rules, Jitter(u16::MAX));
            let found = pause(tries, &rules, Jitter(jitter));
            prop_assert!(found >= whole / 2 && found <= whole && whole <= rules.longest_pause);
        }

        #[test]
        fn every_chain_comes_to_an_end(models in 1_usize..4, seed: u64) {
            let rules = RetryRules::for_models(models);
            let (mut history, mut model, mut seed) = (Vec::new(), 0, seed);
            for _ in 0..100 {
                let kind = if seed & 1 == 0 { busy(model) } else { shown(model) };
                seed = seed.rotate_right(1);
                history.push(kind);
                match next_attempt(&history, Timestamp::from_micros(NOW), &rules, Jitter(0)) {
                    Next::Wait { .. } => {}
                    Next::Failover { model: next } => {
                        prop_assert_eq!(next, model + 1);
                        model = next;
                    }
                    Next::GiveUp => return Ok(()),
                }
            }
            prop_assert!(false, "never gave up");
        }
    }
}
