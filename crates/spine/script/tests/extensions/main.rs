//! Extensions in real worker processes, friendly and hostile.
//!
//! `loading` is about what is refused at load, `verdicts` about what may be
//! said, `hostile` about attacks (each with a control that shows the attack
//! works where the guard is lifted), `faults` about restarting and disabling,
//! `confinement` about the process itself, `normative` about whole decisions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

mod confinement;
mod faults;
mod hostile;
mod loading;
mod normative;
mod support;
mod verdicts;
