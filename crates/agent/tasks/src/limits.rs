//! How much may run at once, how long waiting counts, how full memory may be.
//!
//! Configuration only: checked once, when a scheduler is made. Never grows
//! beyond [`MOST_SLOTS`] and [`MOST_TEMPLATES`], which keeps every step short.

use std::collections::BTreeMap;

use fluffy_base::Span;
use serde::{Deserialize, Serialize};

use crate::task::Word;

/// No limit may allow more tasks at once than this.
pub const MOST_SLOTS: u16 = 64;
/// At most so many templates have tasks that are not finished.
pub const MOST_TEMPLATES: usize = 32;
/// No queue may be longer than this.
pub const LONGEST_QUEUE: u32 = 100_000;

/// What a scheduler keeps to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Tasks at once, whatever they need.
    pub total: u16,
    /// Tasks at once by template; one that is not named has only the total.
    pub templates: BTreeMap<Word, u16>,
    /// Tasks that are not finished; more are refused.
    pub queue: u32,
    /// How long a task waits until it rises by one level.
    pub age: Span,
    /// How long before its pause a task is told.
    pub warning: Span,
}

/// Why limits make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// Nothing, or too much, could run.
    #[error("the limit of `{what}` is {value}, but must be 1 to {most}")]
    OutOfRange {
        /// Which limit.
        what: String,
        /// What it is.
        value: u64,
        /// What it may be.
        most: u64,
    },
    /// More templates have limits than there may be.
    #[error("{count} templates have limits, but there may be no more than {MOST_TEMPLATES}")]
    TooManyTemplates {
        /// How many.
        count: usize,
    },
}

impl Default for Limits {
    fn default() -> Self {
        let templates = [
            ("ai-provider", 2),
            ("code-executor", 2),
            ("policy-sandbox", 1),
        ];
        Self {
            total: 4,
            templates: templates
                .into_iter()
                .filter_map(|(name, most)| Some((name.parse().ok()?, most)))
                .collect(),
            queue: 10_000,
            age: Span { millis: 30_000 },
            warning: Span { millis: 1_000 },
        }
    }
}

impl Limits {
    /// Refuses limits under which nothing could ever run, or too much.
    ///
    /// # Errors
    /// Names the limit and what it may be.
    pub fn check(&self) -> Result<(), LimitsError> {
        let slots = u64::from(MOST_SLOTS);
        within("total", u64::from(self.total), slots)?;
        for (template, most) in &self.templates {
            within(template.as_str(), u64::from(*most), slots)?;
        }
        within("queue", u64::from(self.queue), u64::from(LONGEST_QUEUE))?;
        within("age", self.age.millis, u64::MAX)?;
        if self.templates.len() > MOST_TEMPLATES {
            return Err(LimitsError::TooManyTemplates {
                count: self.templates.len(),
            });
        }
        Ok(())
    }

    /// How many tasks of a template may run at once.
    pub(crate) fn of(&self, template: Option<&Word>) -> u16 {
        template
            .and_then(|template| self.templates.get(template))
            .map_or(self.total, |most| (*most).min(self.total))
    }
}

fn within(what: &str, value: u64, most: u64) -> Result<(), LimitsError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(LimitsError::OutOfRange {
        what: what.to_owned(),
        value,
        most,
    })
}

/// How full memory is, each in percent of its limit.
///
/// Two figures, because two things follow: a full kernel starts nothing more;
/// full sandboxes make a frozen task too dear, so that it is ended instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// The kernel's own.
    pub kernel: u8,
    /// That of all sandboxes together.
    pub sandboxes: u8,
}

impl Memory {
    /// From here on the kernel starts no further task.
    pub const KERNEL_STOP: u8 = 80;
    /// Beyond this a task that gives way is ended instead of paused.
    pub const SANDBOXES_FULL: u8 = 80;

    pub(crate) fn admits(self) -> bool {
        self.kernel < Self::KERNEL_STOP
    }

    pub(crate) fn affords_pause(self) -> bool {
        self.sandboxes <= Self::SANDBOXES_FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let limits = Limits::default();
        assert_eq!(limits.check(), Ok(()));
        assert_eq!(limits.total, 4);
        let of = |name: &str| limits.of(Some(&name.parse().unwrap()));
        assert_eq!((of("ai-provider"), of("code-executor")), (2, 2));
        assert_eq!(of("policy-sandbox"), 1);
        assert_eq!((of("integration-test"), limits.of(None)), (4, 4));
        assert_eq!(limits.warning, Span { millis: 1_000 });
    }

    #[test]
    fn limits_that_stop_everything_are_refused_by_name() {
        let wrong = |change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            limits.check().unwrap_err().to_string()
        };
        assert_eq!(
            wrong(|limits| limits.total = 0),
            "the limit of `total` is 0, but must be 1 to 64"
        );
        assert!(wrong(|limits| limits.total = 65).contains("`total` is 65"));
        assert!(wrong(|limits| limits.queue = 0).contains("`queue`"));
        assert!(wrong(|limits| limits.age.millis = 0).contains("`age`"));
        assert!(
            wrong(|limits| {
                limits.templates.insert("x".parse().unwrap(), 0);
            })
            .contains("`x`")
        );
        assert!(
            wrong(|limits| {
                for number in 0..40 {
                    let name = format!("t{number}");
                    limits.templates.insert(name.parse().unwrap(), 1);
                }
            })
            .contains("43 templates")
        );
    }

    #[test]
    fn eighty_percent_stops_the_kernel_and_more_ends_what_gives_way() {
        let at = |kernel, sandboxes| Memory { kernel, sandboxes };
        assert!(at(79, 0).admits() && !at(80, 0).admits());
        assert!(at(0, 80).affords_pause() && !at(0, 81).affords_pause());
    }
}
