//! The public exit codes: one list for every command.
//!
//! Numbers are a promise to scripts and never change meaning. Commands that
//! run somebody else's program (`sandbox run`, `exec`) return that program's
//! own code instead; nothing else invents a number.

use serde::Serialize;

/// How a command ended, as scripts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum ExitCode {
    /// Success; for an agent task: done and verified.
    Success = 0,
    /// Any other failure, or a check that did not hold.
    Failure = 1,
    /// Wrong usage or an invalid input file.
    Usage = 2,
    /// Not authenticated, not permitted, or denied by policy.
    Denied = 3,
    /// What was asked for does not exist.
    NotFound = 4,
    /// A conflict, or a precondition that does not hold.
    Conflict = 5,
    /// Transient: network, timeout, rate limit, wait expired.
    Transient = 6,
    /// An internal fault or an integrity failure.
    Internal = 7,
    /// Waiting for a person's approval.
    AwaitingApproval = 8,
    /// An agent task that is done but unverified.
    Unverified = 9,
    /// A budget ran out.
    BudgetExhausted = 10,
}

impl ExitCode {
    /// Every code, in order of its number.
    pub const ALL: [Self; 11] = [
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::Denied,
        Self::NotFound,
        Self::Conflict,
        Self::Transient,
        Self::Internal,
        Self::AwaitingApproval,
        Self::Unverified,
        Self::BudgetExhausted,
    ];

    /// The number the process ends with.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The stable word for JSON, such as `not_found`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Usage => "usage",
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Transient => "transient",
            Self::Internal => "internal",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Unverified => "unverified",
            Self::BudgetExhausted => "budget_exhausted",
        }
    }

    /// One line for help texts and the generated reference.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Success => "success; for an agent task: done and verified",
            Self::Failure => "another failure, or a check that did not hold",
            Self::Usage => "wrong usage or an invalid input file",
            Self::Denied => "authentication, permission, or denied by policy",
            Self::NotFound => "not found",
            Self::Conflict => "conflict or precondition",
            Self::Transient => "transient: network, timeout, rate limit, wait expired",
            Self::Internal => "internal or integrity failure",
            Self::AwaitingApproval => "waiting for a person's approval",
            Self::Unverified => "agent task done but unverified",
            Self::BudgetExhausted => "a budget ran out",
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_list_is_complete_and_in_order() {
        let numbers: Vec<u8> = ExitCode::ALL.iter().map(|code| code.number()).collect();
        assert_eq!(numbers, (0..=10).collect::<Vec<u8>>());
    }

    #[test]
    fn the_word_is_what_serde_writes() {
        for code in ExitCode::ALL {
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.name());
            assert!(!code.describe().is_empty());
        }
    }
}
