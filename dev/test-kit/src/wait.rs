//! Waiting for a condition with a deadline, the only kind of waiting in tests.
//!
//! Never a fixed pause: a slow machine only waits longer, a fast one does not
//! wait at all.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long between two looks at the condition: at first, and at most. A look
/// may be a call, and calls are counted.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Waits until the condition gives a value, at most for `limit`.
///
/// The condition is looked at once more after the limit, so a process that was
/// not scheduled in between does not fail for that reason.
///
/// # Errors
/// The limit passed; the text says what was awaited and for how long.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let started = Instant::now();
    let deadline = started + limit;
    loop {
        let late = Instant::now() >= deadline;
        if let Some(value) = condition() {
            return Ok(value);
        }
        if late {
            bail!("waited {limit:?} in vain until {what}");
        }
        let (first, most) = PAUSES;
        thread::sleep((started.elapsed() / 50).clamp(first, most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_gives_its_value() {
        let mut looks = 0;
        let value = wait_for("three looks", Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn a_condition_that_never_comes_is_named() {
        let mut looks = 0;
        let error = wait_for("pigs fly", Duration::ZERO, || {
            looks += 1;
            None::<()>
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "waited 0ns in vain until pigs fly");
        assert_eq!(looks, 1);
    }
}
