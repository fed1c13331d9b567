//! What came of an attack: canaries first, then the attempt's own lines.
//!
//! Pure: outputs and alarms in, verdict out. A run without its marker proves
//! nothing and is never counted as stopped. Next: `run`, which collects both.

use serde::Serialize;

use crate::alarm::Alarm;
use crate::attack::{Attack, Family, Proof};
use crate::guard::Guard;
use crate::outcome::{LONGEST_LINE, Marker, Outcome};
use crate::subject::{Ended, Ran};

/// What came of one attack on one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It was tried, and it failed.
    Stopped {
        /// What stopped it, as far as it could see.
        how: String,
        /// The error number it got, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        errno: Option<i32>,
    },
    /// It was tried, and it worked.
    Escaped {
        /// How that shows.
        how: String,
    },
    /// It cannot be tried here, or nobody claims to stop it.
    NotApplicable {
        /// Why.
        why: String,
    },
    /// The trial itself failed, so it shows nothing.
    Broken {
        /// Why.
        why: String,
    },
}

impl Verdict {
    /// Stopped by something other than an error number.
    fn stopped(how: impl Into<String>) -> Self {
        Self::Stopped {
            how: how.into(),
            errno: None,
        }
    }

    /// Its one-word name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stopped { .. } => "stopped",
            Self::Escaped { .. } => "escaped",
            Self::NotApplicable { .. } => "not-applicable",
            Self::Broken { .. } => "broken",
        }
    }

    /// The sentence that explains it.
    #[must_use]
    pub fn because(&self) -> &str {
        match self {
            Self::Stopped { how, .. } | Self::Escaped { how } => how,
            Self::NotApplicable { why } | Self::Broken { why } => why,
        }
    }
}

/// What one visit said, read from its standard output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// Whether the marker of this attack was there.
    pub(crate) marked: bool,
    /// The last outcome after it.
    pub(crate) outcome: Option<Outcome>,
}

impl Said {
    /// Reads the lines of `attack` among whatever else was printed.
    pub(crate) fn read(attack: &str, output: &[u8]) -> Self {
        let mut said = Self {
            marked: false,
            outcome: None,
        };
        for line in output.split(|&byte| byte == b'\n') {
            let line = line.trim_ascii();
            if line.len() > LONGEST_LINE || line.first() != Some(&b'{') {
                continue;
            }
            if let Ok(Marker { marker }) = serde_json::from_slice(line) {
                said.marked |= marker == attack;
            } else if said.marked
                && let Ok(outcome) = serde_json::from_slice(line)
            {
                said.outcome = Some(outcome);
            }
        }
        said
    }
}

/// Judges the first visit.
pub(crate) fn judge(attack: &Attack, ran: &Ran, said: &Said, alarms: &[Alarm]) -> Verdict {
    if let Some(alarm) = alarms.first() {
        return Verdict::Escaped {
            how: alarm.to_string(),
        };
    }
    if !said.marked {
        return Verdict::Broken {
            why: format!("no marker: {}", ran.describe()),
        };
    }
    match &said.outcome {
        Some(Outcome::Unavailable { detail }) => Verdict::NotApplicable {
            why: detail.clone(),
        },
        Some(Outcome::Blocked { detail, errno }) => Verdict::Stopped {
            how: detail.clone(),
            errno: *errno,
        },
        Some(Outcome::Succeeded { detail, .. }) => match attack.proof {
            Proof::Word => Verdict::Escaped {
                how: detail.clone(),
            },
            Proof::Canary => Verdict::stopped(format!("the canary is untouched ({detail})")),
        },
        None => silent(attack, ran),
    }
}

/// Judges the look from a second sandbox.
pub(crate) fn judge_second(ran: &Ran, said: &Said) -> Option<Verdict> {
    if !said.marked {
        return Some(Verdict::Broken {
            why: format!("no marker at the second visit: {}", ran.describe()),
        });
    }
    match &said.outcome {
        Some(Outcome::Succeeded { detail, .. }) => Some(Verdict::Escaped {
            how: format!("seen from a second sandbox: {detail}"),
        }),
        Some(_) => None,
        None => Some(Verdict::Broken {
            why: format!("the second visit said nothing: {}", ran.describe()),
        }),
    }
}

/// Judges an attempt that was ended before it could say what came of it.
fn silent(attack: &Attack, ran: &Ran) -> Verdict {
    let signal = match ran.ended {
        Ended::Limit { reason } => {
            return Verdict::stopped(format!("ended by the limit of {reason}"));
        }
        Ended::Signal { signal } => Some(signal),
        // How shells and most sandboxes hand on a signal.
        Ended::Code { code } if code > 128 => Some(code - 128),
        Ended::Code { .. } | Ended::Overdue => None,
    };
    match signal {
        Some(libc::SIGSYS) => Verdict::stopped("the filter of system calls ended it"),
        Some(signal @ (libc::SIGKILL | libc::SIGXFSZ | libc::SIGXCPU | libc::SIGPIPE))
            if attack.family == Family::Exhaustion =>
        {
            Verdict::stopped(format!("ended by signal {signal}"))
        }
        // Held back rather than ended: what it said last is lost with the rest.
        None if attack.guard == Guard::OutputLimit && ran.ended != Ended::Overdue => {
            Verdict::stopped("its output was cut off")
        }
        _ => Verdict::Broken {
            why: format!("said nothing after its marker: {}", ran.describe()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;
    use crate::subject::Reason;

    fn ran(ended: Ended) -> Ran {
        Ran {
            output: Vec::new(),
            errors: Vec::new(),
            typed: Vec::new(),
            ended,
        }
    }

    fn said(lines: &str) -> Said {
        Said::read("dot-dot", lines.as_bytes())
    }

    const MARKER: &str = "{\"marker\":\"dot-dot\"}\n";

    #[test]
    fn no_marker_is_never_a_pass() {
        let attack = corpus::find("dot-dot").unwrap();
        let blocked = r#"{"outcome":"blocked","detail":"x","errno":1}"#;
        for lines in ["", "{\"marker\":\"other\"}\n", blocked] {
            let verdict = judge(attack, &ran(Ended::Code { code: 0 }), &said(lines), &[]);
            assert_eq!(verdict.name(), "broken", "{lines}");
        }
        let lines = format!("noise\n{MARKER}{blocked}\n");
        let verdict = judge(attack, &ran(Ended::Code { code: 0 }), &said(&lines), &[]);
        let how = "x".to_owned();
        assert_eq!(
            verdict,
            Verdict::Stopped {
                how,
                errno: Some(1)
            }
        );
    }

    #[test]
    fn a_canary_outweighs_every_word() {
        let attack = corpus::find("dot-dot").unwrap();
        let lines = format!(
            "{MARKER}{}",
            r#"{"outcome":"blocked","detail":"x","errno":1}"#
        );
        let alarms = [Alarm::Reached { what: "x" }];
        let verdict = judge(
            attack,
            &ran(Ended::Code { code: 0 }),
            &said(&lines),
            &alarms,
        );
        assert_eq!(verdict.name(), "escaped");
        let lines = format!(
            "{MARKER}{}",
            r#"{"outcome":"succeeded","detail":"x","loot":[]}"#
        );
        let verdict = judge(attack, &ran(Ended::Code { code: 0 }), &said(&lines), &[]);
        assert_eq!(verdict.name(), "stopped");
        let attack = corpus::find("user-namespace").unwrap();
        let verdict = judge(attack, &ran(Ended::Code { code: 0 }), &said(&lines), &[]);
        assert_eq!(verdict.name(), "escaped");
    }

    #[test]
    fn a_silent_end_counts_only_when_a_guard_ended_it() {
        let attack = corpus::find("memory-heap").unwrap();
        let said = Said {
            marked: true,
            outcome: None,
        };
        let of = |ended| judge(attack, &ran(ended), &said, &[]).name();
        assert_eq!(
            of(Ended::Limit {
                reason: Reason::Memory
            }),
            "stopped"
        );
        assert_eq!(
            of(Ended::Signal {
                signal: libc::SIGKILL
            }),
            "stopped"
        );
        assert_eq!(of(Ended::Code { code: 159 }), "stopped");
        assert_eq!(
            of(Ended::Signal {
                signal: libc::SIGSEGV
            }),
            "broken"
        );
        assert_eq!(of(Ended::Code { code: 0 }), "broken");
        assert_eq!(of(Ended::Overdue), "broken");
    }
}
