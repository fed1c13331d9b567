//! Hard budgets: what a session may use before it stops and asks.
//!
//! Pure accounting: the kernel tells what is about to happen or has happened,
//! and hears whether to go on. What a repository brings can only lower a limit.

use fluffy_base::Span;
use serde::{Deserialize, Serialize};

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Tool calls in one turn of the model.
    CallsPerTurn,
    /// Turns of the model.
    Turns,
    /// Tokens read and written.
    Tokens,
    /// Money, in millionths of a US dollar.
    Money,
    /// Time spent working, in milliseconds.
    Time,
    /// How deep subagents start subagents.
    Depth,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::CallsPerTurn,
        Self::Turns,
        Self::Tokens,
        Self::Money,
        Self::Time,
        Self::Depth,
    ];

    /// Its name in the configuration and on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::CallsPerTurn => "tool_calls",
            Self::Turns => "turns",
            Self::Tokens => "tokens",
            Self::Money => "cost_cents",
            Self::Time => "wall_time",
            Self::Depth => "subagent_depth",
        }
    }

    /// What has this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }

    /// How much one of what people count in is: cents, seconds, or just one.
    #[must_use]
    pub const fn unit(self) -> u64 {
        match self {
            Self::Money => 10_000,
            Self::Time => 1_000,
            Self::CallsPerTurn | Self::Turns | Self::Tokens | Self::Depth => 1,
        }
    }
}

/// The limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Tool calls in one turn.
    pub calls_per_turn: u64,
    /// Turns.
    pub turns: u64,
    /// Tokens read and written.
    pub tokens: u64,
    /// Millionths of a US dollar.
    pub money: u64,
    /// Time spent working.
    pub time: Span,
    /// Subagents below subagents.
    pub depth: u64,
}

impl Limits {
    /// What holds unless somebody chose otherwise.
    pub const STANDARD: Self = Self {
        calls_per_turn: 64,
        turns: 200,
        tokens: 5_000_000,
        money: 10_000_000,
        time: Span {
            millis: 2 * 3_600_000,
        },
        depth: 2,
    };

    /// One of the limits.
    #[must_use]
    pub const fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::CallsPerTurn => self.calls_per_turn,
            Resource::Turns => self.turns,
            Resource::Tokens => self.tokens,
            Resource::Money => self.money,
            Resource::Time => self.time.millis,
            Resource::Depth => self.depth,
        }
    }

    fn of_mut(&mut self, resource: Resource) -> &mut u64 {
        match resource {
            Resource::CallsPerTurn => &mut self.calls_per_turn,
            Resource::Turns => &mut self.turns,
            Resource::Tokens => &mut self.tokens,
            Resource::Money => &mut self.money,
            Resource::Time => &mut self.time.millis,
            Resource::Depth => &mut self.depth,
        }
    }

    /// With what a repository or a person asks for; what asks for more is
    /// named, not taken.
    #[must_use]
    pub fn lowered(mut self, wishes: &[(Resource, u64)]) -> Lowered {
        let mut refused = Vec::new();
        for (resource, wish) in wishes {
            let limit = self.of_mut(*resource);
            if *wish > *limit {
                refused.push(*resource);
            } else {
                *limit = *wish;
            }
        }
        Lowered {
            limits: self,
            refused,
        }
    }
}

/// Limits after a repository's wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lowered {
    /// What holds.
    pub limits: Limits,
    /// What the repository wanted to raise, and could not.
    pub refused: Vec<Resource>,
}

/// Something that is about to be used, or just was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charge {
    /// A turn is about to begin.
    Turn,
    /// A tool is about to be called.
    Call,
    /// A subagent is about to be started at this depth.
    Subagent {
        /// One for the first below the session itself.
        depth: u64,
    },
    /// Tokens were used.
    Tokens(u64),
    /// Millionths of a US dollar were spent.
    Money(u64),
    /// Time has passed while working.
    Time(Span),
}

/// A limit was reached: nothing more happens until somebody raises it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the budget of {} is used up: {} of {}", name(*which), shown(*which, *used), shown(*which, *limit))]
pub struct BudgetExhausted {
    /// Which.
    pub which: Resource,
    /// How much was used, with what was asked for now.
    pub used: u64,
    /// How much there is.
    pub limit: u64,
}

impl BudgetExhausted {
    /// How a person lets it go on.
    #[must_use]
    pub fn how_to_go_on(&self) -> String {
        match self.which {
            Resource::CallsPerTurn => {
                "the calls that were left out can be made in the next turn".to_owned()
            }
            Resource::Depth => "do the work here instead of starting another subagent".to_owned(),
            which => format!(
                "go on with `fluffy session resume`, or set a higher `{}` in the configuration",
                which.word()
            ),
        }
    }
}

/// What a session has used of its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    limits: Limits,
    calls_in_turn: u64,
    turns: u64,
    tokens: u64,
    money: u64,
    time: Span,
}

impl Budget {
    /// Nothing used yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            calls_in_turn: 0,
            turns: 0,
            tokens: 0,
            money: 0,
            time: Span { millis: 0 },
        }
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How much of something was used.
    #[must_use]
    pub const fn used(&self, resource: Resource) -> u64 {
        match resource {
            Resource::CallsPerTurn => self.calls_in_turn,
            Resource::Turns => self.turns,
            Resource::Tokens => self.tokens,
            Resource::Money => self.money,
            Resource::Time => self.time.millis,
            Resource::Depth => 0,
        }
    }

    /// Raises one limit: a person decided so.
    pub fn raise(&mut self, resource: Resource, by: u64) {
        let limit = self.limits.of_mut(resource);
        *limit = limit.saturating_add(by);
    }

    /// Counts something in.
    ///
    /// What has not happened yet is refused and not counted. What has happened
    /// is counted in any case, and says if it was too much.
    ///
    /// # Errors
    /// A limit was reached.
    pub fn charge(&mut self, charge: Charge) -> Result<(), BudgetExhausted> {
        match charge {
            Charge::Turn => {
                for spent in [Resource::Tokens, Resource::Money, Resource::Time] {
                    // Nothing left is enough to stop before the next turn.
                    if self.used(spent) >= self.limits.of(spent) {
                        return Err(self.exhausted(spent, self.used(spent)));
                    }
                }
                self.turns = self.one_more(Resource::Turns)?;
                self.calls_in_turn = 0;
                Ok(())
            }
            Charge::Call => {
                self.calls_in_turn = self.one_more(Resource::CallsPerTurn)?;
                Ok(())
            }
            Charge::Subagent { depth } if depth > self.limits.depth => {
                Err(self.exhausted(Resource::Depth, depth))
            }
            Charge::Subagent { .. } => Ok(()),
            Charge::Tokens(count) => {
                self.tokens = self.tokens.saturating_add(count);
                self.within(Resource::Tokens)
            }
            Charge::Money(amount) => {
                self.money = self.money.saturating_add(amount);
                self.within(Resource::Money)
            }
            Charge::Time(span) => {
                self.time.millis = self.time.millis.saturating_add(span.millis);
                self.within(Resource::Time)
            }
        }
    }

    fn one_more(&self, resource: Resource) -> Result<u64, BudgetExhausted> {
        let used = self.used(resource).saturating_add(1);
        match used > self.limits.of(resource) {
            true => Err(self.exhausted(resource, used)),
            false => Ok(used),
        }
    }

    fn within(&self, resource: Resource) -> Result<(), BudgetExhausted> {
        let used = self.used(resource);
        match used > self.limits.of(resource) {
            true => Err(self.exhausted(resource, used)),
            false => Ok(()),
        }
    }

    const fn exhausted(&self, which: Resource, used: u64) -> BudgetExhausted {
        BudgetExhausted {
            which,
            used,
            limit: self.limits.of(which),
        }
    }
}

const fn name(resource: Resource) -> &'static str {
    match resource {
        Resource::CallsPerTurn => "tool calls in one turn",
        Resource::Turns => "turns",
        Resource::Tokens => "tokens",
        Resource::Money => "money",
        Resource::Time => "time",
        Resource::Depth => "subagents below subagents",
    }
}

fn shown(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Money => format!("${}.{:02}", amount / 1_000_000, amount % 1_000_000 / 10_000),
        Resource::Time => format!("{} s", amount / 1_000),
        _ => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: Limits = Limits {
        calls_per_turn: 2,
        turns: 2,
        tokens: 100,
        money: 1_500_000,
        time: Span { millis: 5_000 },
        depth: 1,
    };

    #[test]
    fn each_limit_ends_in_a_clear_stop() {
        let stop = |charges: &[Charge]| {
            let mut budget = Budget::new(SMALL);
            let (last, before) = charges.split_last().unwrap();
            for charge in before {
                budget.charge(*charge).unwrap();
            }
            budget.charge(*last).unwrap_err()
        };
        use Charge::{Call, Money, Subagent, Time, Tokens, Turn};
        for (charges, expected) in [
            (
                &[Turn, Turn, Turn][..],
                "the budget of turns is used up: 3 of 2",
            ),
            (
                &[Turn, Call, Call, Call],
                "the budget of tool calls in one turn is used up: 3 of 2",
            ),
            (
                &[Tokens(100), Tokens(1)],
                "the budget of tokens is used up: 101 of 100",
            ),
            (
                &[Tokens(100), Turn],
                "the budget of tokens is used up: 100 of 100",
            ),
            (
                &[Money(1_600_000)],
                "the budget of money is used up: $1.60 of $1.50",
            ),
            (
                &[Time(Span { millis: 6_000 })],
                "the budget of time is used up: 6 s of 5 s",
            ),
            (
                &[Subagent { depth: 1 }, Subagent { depth: 2 }],
                "the budget of subagents below subagents is used up: 2 of 1",
            ),
        ] {
            let stopped = stop(charges);
            assert_eq!(stopped.to_string(), expected);
            assert!(!stopped.how_to_go_on().is_empty());
        }
    }

    #[test]
    fn a_new_turn_has_new_calls_and_a_person_can_raise() {
        let mut budget = Budget::new(SMALL);
        for charge in [
            Charge::Turn,
            Charge::Call,
            Charge::Call,
            Charge::Turn,
            Charge::Call,
        ] {
            budget.charge(charge).unwrap();
        }
        assert!(budget.charge(Charge::Turn).is_err());
        budget.raise(Resource::Turns, 1);
        budget.charge(Charge::Turn).unwrap();
        assert_eq!(budget.used(Resource::Turns), 3);
    }

    #[test]
    fn a_repository_only_lowers() {
        let lowered = Limits::STANDARD.lowered(&[
            (Resource::Turns, 10),
            (Resource::Tokens, u64::MAX),
            (Resource::Money, 10_000_000),
        ]);
        assert_eq!(lowered.limits.turns, 10);
        assert_eq!(lowered.limits.tokens, Limits::STANDARD.tokens);
        assert_eq!(lowered.refused, [Resource::Tokens]);
    }

    #[test]
    fn each_has_a_name_of_its_own() {
        for one in Resource::ALL {
            assert_eq!(Resource::named(one.word()), Some(one));
            assert!(one.unit() > 0);
        }
        assert_eq!(Resource::named("patience"), None);
    }

    #[test]
    fn it_survives_being_stored() {
        let mut budget = Budget::new(SMALL);
        budget.charge(Charge::Turn).unwrap();
        budget.charge(Charge::Tokens(7)).unwrap();
        let text = serde_json::to_string(&budget).unwrap();
        assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), budget);
    }

    proptest! {
        #[test]
        fn turns_and_calls_never_pass_their_limit(calls in proptest::collection::vec(any::<bool>(), 0..40)) {
            let mut budget = Budget::new(SMALL);
            for is_turn in calls {
                let charge = if is_turn { Charge::Turn } else { Charge::Call };
                let _ = budget.charge(charge);
                prop_assert!(budget.used(Resource::Turns) <= 2);
                prop_assert!(budget.used(Resource::CallsPerTurn) <= 2);
            }
        }

        #[test]
        fn nothing_overflows(amounts in proptest::collection::vec(any::<u64>(), 0..6)) {
            let mut budget = Budget::new(Limits::STANDARD);
            for amount in amounts {
                let _ = budget.charge(Charge::Tokens(amount));
                let _ = budget.charge(Charge::Money(amount));
                let _ = budget.charge(Charge::Time(Span { millis: amount }));
                budget.raise(Resource::Tokens, amount);
            }
        }
    }
}
