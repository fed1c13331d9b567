//! Rules made ready for use, kept beside the text that they come from.
//!
//! Not part of the state: it follows from the text, is made at first use, and
//! plays no part in equality or snapshots.

use std::sync::{Arc, OnceLock};

use fluffy_policy::diagnostic::RefusedText;
use fluffy_policy::document::PolicyFile;
use fluffy_policy::rule::Origin;
use fluffy_policy::{Engine, starter};

/// Rules made ready for use at first use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Compiled(OnceLock<Arc<Engine>>);

impl Compiled {
    /// The engine of the platform's rule and those of an org.
    pub(crate) fn engine(&self, rules: Option<&str>, version: u64) -> &Engine {
        self.0.get_or_init(|| {
            // Rules are checked before they get into an event. Were they not,
            // an engine without any rule would deny everything.
            let engine = compile(rules, version);
            Arc::new(engine.unwrap_or_else(|_| Engine::build(Vec::new(), version)))
        })
    }
}

/// What follows from the text is equal where the text is.
impl PartialEq for Compiled {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The platform's rule and those of an org, which can only narrow.
pub(crate) fn compile(rules: Option<&str>, version: u64) -> Result<Engine, RefusedText> {
    let mut files = vec![PolicyFile::parse(starter::PLATFORM, Origin::Shipped)?];
    if let Some(rules) = rules {
        files.push(PolicyFile::parse(rules, Origin::Organisation)?);
    }
    Ok(Engine::build(files, version))
}
