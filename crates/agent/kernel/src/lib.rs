//! Drives agent sessions: model, router, sandboxes, merge, commit.
//!
//! Every effect goes one way: schema, workflow, policy, sandbox, sanitise,
//! ledger. Decides nothing itself and believes nothing that a model says about
//! its own work.
//!
//! - [`agent`]: one session at work
//! - [`server`], [`host`]: sessions as clients reach them, working or at rest
//! - [`session`], [`store`]: a session is its facts in the ledger
//! - [`course`]: the workflow, tied to the project's files; `touching`: which
//!   tests a change concerns
//! - [`workshop`], [`git`], [`commit`], [`merge`]: effects
//! - [`debts`]: what a project owes for commits that no test proves
//! - [`hidden`]: what no command of a session may open
//! - [`slots`], [`freezer`]: whose turn it is, among all sessions
//! - [`history`], [`prompt`]: what the model sees; [`provider`], [`plugged`]: who
//!   answers
//! - [`api`], [`event`], [`hub`], [`person`]: what clients see

pub mod agent;
pub mod api;
mod ask;
pub mod commit;
pub mod course;
pub mod debts;
pub mod event;
pub mod freezer;
pub mod git;
pub mod hidden;
pub mod history;
pub mod host;
pub mod hub;
pub mod merge;
pub mod person;
pub mod plugged;
pub mod prompt;
pub mod provider;
pub mod recording;
mod router;
pub mod server;
pub mod session;
pub mod slots;
pub mod stop;
pub mod store;
mod touching;
pub mod workshop;
