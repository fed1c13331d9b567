//! One running command, and why it ended.
//!
//! Pure. Next: the module above starts and ends commands.

use fluffy_contract::isolation::{Exit, Limit};
use tokio::time::Instant;

use crate::counters::Hits;

/// A command that runs.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) deadline: Option<Instant>,
    /// Why it is being ended.
    pub(super) ending: Option<Limit>,
    /// What the limits had counted when it started.
    pub(super) before: Hits,
}

/// A command that a limit ended says the limit.
pub(super) fn explain(exec: &Exec, exit: Exit, now: Hits) -> Exit {
    /// The number of the signal for a file that is too large.
    const TOO_LARGE: i32 = 25;
    if matches!(exit, Exit::Code { code: 0 } | Exit::NotStarted { .. }) {
        return exit;
    }
    let counted = if now.memory > exec.before.memory {
        Some(Limit::Memory)
    } else if now.pids > exec.before.pids {
        Some(Limit::Pids)
    } else if exit == (Exit::Signal { signal: TOO_LARGE }) {
        Some(Limit::Disk)
    } else {
        None
    };
    let limit = exec.ending.or(counted);
    limit.map_or(exit, |limit| Exit::Limit { limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(ending: Option<Limit>) -> Exec {
        Exec {
            deadline: None,
            ending,
            before: Hits { memory: 1, pids: 1 },
        }
    }

    #[test]
    fn an_exit_says_which_limit_caused_it() {
        let killed = Exit::Signal { signal: 9 };
        let same = Hits { memory: 1, pids: 1 };
        let memory = Hits { memory: 2, pids: 1 };
        let pids = Hits { memory: 1, pids: 9 };
        let by = |limit| Exit::Limit { limit };
        assert_eq!(explain(&exec(None), killed, same), killed);
        assert_eq!(explain(&exec(None), killed, memory), by(Limit::Memory));
        assert_eq!(
            explain(&exec(None), Exit::Code { code: 2 }, pids),
            by(Limit::Pids)
        );
        assert_eq!(
            explain(&exec(Some(Limit::Time)), killed, memory),
            by(Limit::Time)
        );
        let large = Exit::Signal { signal: 25 };
        assert_eq!(explain(&exec(None), large, same), by(Limit::Disk));
        // A command that succeeded hit nothing that mattered.
        let fine = Exit::Code { code: 0 };
        assert_eq!(explain(&exec(Some(Limit::Time)), fine, pids), fine);
    }
}
