//! The half that runs inside: `fluffy worker attack NAME STAGE`.
//!
//! Prints the marker, tries, prints what came of it. Must never print an
//! outcome before its marker, nor touch anything but by the named attempt.

use std::io::{self, Write};

use crate::corpus;
use crate::outcome::Marker;
use crate::stage::{LONGEST_STAGE, Stage, Visit};

/// Plays one attempt inside a sandbox.
///
/// # Errors
/// When the arguments are no attack and its stage, or nobody listens.
pub fn work(name: &str, stage: &str) -> Result<(), WorkError> {
    let attack = corpus::find_or_witness(name).ok_or_else(|| WorkError::Unknown {
        name: name.to_owned(),
    })?;
    if stage.len() > LONGEST_STAGE {
        return Err(WorkError::TooLong);
    }
    let stage: Stage = serde_json::from_str(stage).map_err(WorkError::Stage)?;
    let attempt = match stage.visit {
        Visit::First => attack.attempt,
        Visit::Second => attack.revisit.unwrap_or(attack.attempt),
        Visit::Sibling => attack.sibling.unwrap_or(attack.attempt),
    };
    say(&Marker {
        marker: name.to_owned(),
    })?;
    let outcome = attempt(&stage);
    say(&outcome)
}

/// Prints one line, in one write, so that a crash cannot tear it.
fn say(line: &impl serde::Serialize) -> Result<(), WorkError> {
    let mut text = serde_json::to_vec(line).map_err(WorkError::Stage)?;
    text.insert(0, b'\n');
    text.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&text).map_err(WorkError::Say)?;
    output.flush().map_err(WorkError::Say)
}

/// Why a worker could not play its attempt.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// There is no such attack.
    #[error("no attack is called `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The stage is longer than any real one.
    #[error("the stage is too long")]
    TooLong,
    /// The stage is not one.
    #[error("the stage cannot be read or said")]
    Stage(#[source] serde_json::Error),
    /// Standard output is gone.
    #[error("could not print")]
    Say(#[source] io::Error),
}
