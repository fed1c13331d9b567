//! Decides every action: pure rules and requests in, decisions out.
//!
//! The agent's tool calls, the plugins' calls and the platform's API calls all
//! ask one [`Engine`]. It reads no clock and no file and starts nothing, so a
//! decision follows from its inputs alone and can be made again from a
//! recording. It never guesses: what is unknown, malformed or broken is denied.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fluffy_base::Timestamp;
//! use fluffy_policy::extension::NoExtensions;
//! use fluffy_policy::grant::{Grant, GrantLists};
//! use fluffy_policy::{Context, Engine, Principal, PrincipalKind, Request, Sources};
//!
//! let rules = r#"
//! version: 1
//! capabilities:
//!   - { name: write-source, match: { action: fs.write, path_glob: ["src/**"] }, do: allow }
//! "#;
//! let engine = Engine::load(&Sources { project: Some(rules), ..Sources::default() }, 1)?;
//! let all = || vec!["*".to_owned()];
//! let grant = Grant::build(&GrantLists {
//!     capabilities: all(),
//!     deny_capabilities: vec![],
//!     workspace: all(),
//!     user: all(),
//! })?;
//! let request = Request {
//!     principal: Principal::new(PrincipalKind::Agent, "agent", Arc::new(grant)),
//!     action: "fs.write".into(),
//!     resource: Some("/src/lib.rs".into()),
//!     context: Context::default(),
//! };
//! let permit = engine
//!     .evaluate(&request, Timestamp::from_micros(0), &NoExtensions)
//!     .into_permit()?;
//! assert_eq!(permit.capability().as_str(), "fs.write./src/lib.rs");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way of a request
//!
//! 1. It is recognised and normalised ([`action`], [`path`], [`host`]); what
//!    has no normal form is denied.
//! 2. The ceiling: its capability must be inside the principal's [`grant`].
//! 3. The [`builtin`] rules always run.
//! 4. A valid [`token`] ends here.
//! 5. The rules of the policy files ([`document`]) are found by index and each
//!    is judged ([`rule`]).
//! 6. The extensions are asked ([`extension`]), unless something denied.
//!
//! Any deny is final, a review beats an allow, and without an allow the answer
//! is deny: [`engine`] puts it together, in any order of rules to the same
//! result. An allowed [`Decision`] yields a [`Permit`], which is what functions
//! with effects take by value.
//!
//! For people there are [`explain`] (every rule and why), [`table`] (requests
//! and expected decisions), [`trial`] (what a new policy would change),
//! [`schema`] (for editors) and [`starter`] (a policy to begin with).

#![forbid(unsafe_code)]

pub mod action;
pub mod builtin;
pub mod capability;
pub mod claims;
pub mod decision;
pub mod diagnostic;
pub mod document;
pub mod engine;
pub mod explain;
pub mod extension;
pub mod glob;
pub mod grant;
pub mod host;
mod index;
mod lint;
pub mod path;
pub mod reader;
pub mod record;
pub mod request;
pub mod role;
pub mod rule;
pub mod schema;
pub mod starter;
pub mod subject;
pub mod table;
pub mod templates;
pub mod token;
pub mod trial;
mod window;
pub mod wire;
pub mod word;
pub mod yaml;

pub use decision::{Decision, Permit, Refusal, Verdict};
pub use engine::{Engine, Sources};
pub use request::{Context, Field, Principal, PrincipalKind, ProcessIdentity, Request};
