//! The attack corpus: what a sandbox claims to stop, tried for real.
//!
//! One file per attempt in `corpus`, played inside a sandbox by [`work`] and
//! judged from outside by canaries. [`run()`] plays one attack on one
//! [`Subject`]; [`run_all`] makes the table. Must never run an attempt on a
//! machine without something around it. Linux only.
#![cfg(target_os = "linux")]

mod alarm;
mod attack;
mod command;
mod corpus;
mod docker;
mod excerpt;
mod ground;
mod guard;
mod listen;
mod outcome;
mod pty;
mod report;
mod run;
mod stage;
mod subject;
mod survivor;
mod sys;
mod tree;
mod verdict;
mod witness;
mod worker;

pub use alarm::Alarm;
pub use attack::{Aftermath, Attack, Family, Network, Proof, Streams};
pub use command::{CommandSubject, Egress, Isolated, THROWAWAY, Word};
pub use corpus::{all, find};
pub use docker::DockerRun;
pub use ground::{Ground, LayGroundError};
pub use guard::Guard;
pub use outcome::Outcome;
pub use report::{Cell, Report, Row, SubjectLine, Tally};
pub use run::{run, run_all};
pub use stage::{Limits, PERMITTED_HOST, SECRET_PREFIX, Stage, Visit};
pub use subject::{Allow, Ended, Ran, Reason, RunTrialError, Subject, Trial};
pub use verdict::Verdict;
pub use worker::{WorkError, work};
