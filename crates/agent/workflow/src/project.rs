//! What a project's files are to the workflow: tests, source, configuration.
//!
//! [`detect`] looks at a listing and a few contents and says which files are
//! tests and how they are run; [`parts`] looks inside files that are more
//! than one thing; [`declared`] finds the names of tests before they run;
//! [`instructions`] are what a project says to the agent.
//! Nothing here reads a file: texts are handed in.

pub mod additions;
pub mod declared;
pub mod detect;
mod gomod;
mod ini;
pub mod instructions;
mod javascript;
mod makefile;
pub mod parts;
pub mod rust;
