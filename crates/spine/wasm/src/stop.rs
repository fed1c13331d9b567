//! Why a call was ended before it was done, each reason its own value.
//!
//! Never guesses from an engine's message: limits note themselves in the
//! meter, the rest are the engine's typed traps. See `meter` and `output` for
//! who notes what.

use fluffy_base::ByteSize;
use wasmtime::Trap;

/// Why a call was ended before it was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The program did something that has no result.
    #[error("the program trapped: {0}")]
    Trapped(TrapKind),
    /// It used all its fuel.
    #[error("the program used all its fuel")]
    Fuel,
    /// Its time was over.
    #[error("the program's time was over")]
    Deadline,
    /// It wanted more memory than it may have.
    #[error("the program wanted more than {limit} of memory")]
    Memory {
        /// What it may have.
        limit: ByteSize,
    },
    /// It wanted larger tables than it may have.
    #[error("the program wanted more than {limit} table elements")]
    Table {
        /// How many it may have.
        limit: usize,
    },
    /// It wrote more output than is kept.
    #[error("the program wrote more than {limit} of output")]
    Output {
        /// How much is kept.
        limit: ByteSize,
    },
    /// It asked its host more often than it may in one call.
    #[error("the program asked its host more than {limit} times")]
    Asks {
        /// How often it may.
        limit: u32,
    },
    /// A call to the host was not one the host can answer.
    #[error("the host refused the program's call: {reason}")]
    Host {
        /// What was wrong with it, in the engine's words.
        reason: String,
    },
}

/// What the program did that has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TrapKind {
    /// Calls nested deeper than the stack.
    #[error("its calls nested too deeply")]
    StackOverflow,
    /// An address outside its memory.
    #[error("it touched an address outside its memory")]
    MemoryOutOfBounds,
    /// An index outside a table.
    #[error("it used an index outside a table")]
    TableOutOfBounds,
    /// A call through an empty table element.
    #[error("it called an empty table element")]
    NullCall,
    /// A call through a table element of another type.
    #[error("it called a function as another type")]
    SignatureMismatch,
    /// An integer result that does not fit.
    #[error("an integer overflowed")]
    IntegerOverflow,
    /// A division by zero.
    #[error("it divided by zero")]
    DivisionByZero,
    /// A float that is no integer.
    #[error("it converted a float that is no integer")]
    BadConversion,
    /// It said itself that it cannot go on.
    #[error("it reached code it says cannot be reached")]
    Unreachable,
    /// A rule of the component model was broken.
    #[error("it broke a rule between components")]
    Component,
}

/// How much of an engine's message is kept.
const REASON_MAX: usize = 400;

impl Stop {
    /// The reason behind an engine's error, where no limit noted itself.
    pub(crate) fn of(error: &wasmtime::Error) -> Self {
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Self::Fuel,
            Some(Trap::Interrupt) => Self::Deadline,
            Some(trap) => Self::Trapped(TrapKind::of(*trap)),
            None => {
                let reason = error.root_cause().to_string();
                let reason = reason.chars().take(REASON_MAX).collect();
                Self::Host { reason }
            }
        }
    }
}

impl TrapKind {
    fn of(trap: Trap) -> Self {
        match trap {
            Trap::StackOverflow => Self::StackOverflow,
            Trap::MemoryOutOfBounds | Trap::HeapMisaligned => Self::MemoryOutOfBounds,
            Trap::TableOutOfBounds => Self::TableOutOfBounds,
            Trap::IndirectCallToNull | Trap::NullReference => Self::NullCall,
            Trap::BadSignature | Trap::CastFailure => Self::SignatureMismatch,
            Trap::IntegerOverflow => Self::IntegerOverflow,
            Trap::IntegerDivisionByZero => Self::DivisionByZero,
            Trap::BadConversionToInteger => Self::BadConversion,
            Trap::UnreachableCodeReached => Self::Unreachable,
            // The engine's list is open; what is left can only come from the
            // glue between components, since no other proposal is enabled.
            _ => Self::Component,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuel_deadline_and_traps_are_different_reasons() {
        let of = |trap: Trap| Stop::of(&wasmtime::Error::from(trap));
        assert_eq!(of(Trap::OutOfFuel), Stop::Fuel);
        assert_eq!(of(Trap::Interrupt), Stop::Deadline);
        let overflow = Stop::Trapped(TrapKind::StackOverflow);
        assert_eq!(of(Trap::StackOverflow), overflow);
    }

    #[test]
    fn what_the_engine_says_is_cut() {
        let error = wasmtime::Error::msg("x".repeat(10_000));
        let Stop::Host { reason } = Stop::of(&error) else {
            panic!("a message is no trap");
        };
        assert_eq!(reason.len(), REASON_MAX);
    }
}
