//! Builds requests, engines and extension doubles for the tests.
//!
//! Never holds expectations: those belong into the tests themselves.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_policy::builtin::Builtins;
use fluffy_policy::decision::Decision;
use fluffy_policy::document::PolicyFile;
use fluffy_policy::extension::{Answer, Extensions, NoExtensions, Opinion};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::rule::Origin;
use fluffy_policy::token::TokenVault;
use fluffy_policy::{Context, Engine, Principal, PrincipalKind, ProcessIdentity, Request, Verdict};

pub(crate) fn now() -> Timestamp {
    Timestamp::from_micros(1_763_193_600_000_000)
}

pub(crate) fn everything() -> Arc<Grant> {
    let all = || vec!["*".to_owned()];
    let lists = GrantLists {
        capabilities: all(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    };
    Arc::new(Grant::build(&lists).unwrap())
}

/// An agent in a sandbox that may ask for anything.
pub(crate) fn request(action: &str, resource: Option<&str>) -> Request {
    Request {
        principal: Principal {
            sandbox: Some(SandboxId::from_bits(1)),
            process: Some(ProcessIdentity {
                pid: 100,
                started: 5,
            }),
            ..Principal::new(PrincipalKind::Agent, "agent", everything())
        },
        action: action.to_owned(),
        resource: resource.map(str::to_owned),
        context: Context::default(),
    }
}

pub(crate) fn write_to(path: &str) -> Request {
    request("fs.write", Some(path))
}

/// Rules without the header that every file has.
pub(crate) fn file(rules: &str) -> PolicyFile {
    file_of(rules, Origin::Project)
}

pub(crate) fn file_of(rules: &str, origin: Origin) -> PolicyFile {
    let text = format!("version: 1\ncapabilities:\n{rules}");
    match PolicyFile::parse(&text, origin) {
        Ok(file) => file,
        Err(refused) => panic!("{refused}\n{:#?}\n{text}", refused.findings),
    }
}

pub(crate) fn engine(rules: &str) -> Engine {
    Engine::build(vec![file(rules)], 1)
}

/// An engine whose built-in rules are these instead of the product's.
pub(crate) fn engine_with_builtins(builtins: &str, rules: &str) -> Engine {
    let builtins = Builtins::from_file(&file_of(builtins, Origin::Builtin));
    Engine::build_with_builtins(vec![file(rules)], 1, builtins)
}

pub(crate) fn decide(engine: &Engine, request: &Request) -> Decision {
    engine.evaluate(request, now(), &NoExtensions)
}

pub(crate) fn verdict(rules: &str, request: &Request) -> Verdict {
    decide(&engine(rules), request).verdict()
}

pub(crate) fn spoke(decision: &Decision) -> Vec<&str> {
    let names = decision.spoke().iter();
    names.map(|voice| voice.label.name.as_str()).collect()
}

pub(crate) fn vault() -> TokenVault {
    TokenVault::new([7u8; 32].into())
}

/// Extensions that give fixed answers and count how often they are asked.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    answers: Vec<Answer>,
    asked: AtomicUsize,
}

impl Scripted {
    pub(crate) fn new(opinions: &[(&str, Opinion)]) -> Self {
        let answers = opinions.iter().map(|(name, opinion)| Answer {
            extension: (*name).to_owned(),
            opinion: opinion.clone(),
            reason: format!("{name} says so"),
        });
        Self {
            answers: answers.collect(),
            asked: AtomicUsize::new(0),
        }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Extensions for Scripted {
    fn ask(&self, _request: &Request, _now: Timestamp) -> Vec<Answer> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answers.clone()
    }
}
