//! The test-first workflow of an agent session, without any effects.
//!
//! It decides when source may be written, what a run of the tests proves and
//! what may be said of a commit. It never runs anything, reads no file and no
//! clock, and takes no word of a model for anything: the kernel hands in what
//! it saw, as values.
//!
//! # How the kernel uses it
//!
//! 1. [`project::detect`] says which files are tests and how they run.
//! 2. The kernel runs the tests and [`results::parse`] reads what they said;
//!    the first run is the [`evidence::Baseline`].
//! 3. [`gate::check`] is asked before every write, and [`gate::refusals`]
//!    about what a shell command left behind. [`affected`] tells the model
//!    which tests touch what it is about to change.
//! 4. [`machine::Changes`] looks at the whole layer; [`evidence::red()`] and
//!    [`evidence::green()`] judge runs.
//! 5. [`machine::Workflow::step`] takes all that as an [`machine::Input`] and
//!    gives [`machine::Event`]s, or names the guard that failed. The events go
//!    to the ledger; folding them gives the workflow back.
//! 6. After a commit [`debt::Debt`] keeps the budget, from [`coverage`].
//!
//! ```
//! use fluffy_policy::word::State;
//! use fluffy_workflow::debt::Budget;
//! use fluffy_workflow::evidence::{Baseline, NotRed};
//! use fluffy_workflow::machine::{Changes, Guard, Input, PlanKind, Workflow};
//!
//! let mut workflow = Workflow::default();
//! let mut recorded = workflow.step(Input::SendTask)?;
//! recorded.extend(workflow.step(Input::CompletePlan {
//!     kind: PlanKind::Change,
//!     baseline: Baseline::default(),
//!     budget: Budget::Open,
//! })?);
//! assert_eq!(workflow.state(), State::TestWriting);
//!
//! // Without a test that fails there is no way on.
//! let refused = workflow.step(Input::StartCoding {
//!     judged: Err(NotRed::NoTests),
//!     changes: Changes::default(),
//! });
//! assert_eq!(refused.unwrap_err().guard(), Guard::RedTest);
//! assert_eq!(Workflow::replay(&recorded)?, workflow);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod affected;
pub mod coverage;
pub mod debt;
pub mod evidence;
pub mod exemption;
pub mod gate;
pub mod machine;
pub mod project;
pub mod results;
