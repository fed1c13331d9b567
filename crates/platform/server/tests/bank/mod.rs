//! A toy machine for the sequencer: accounts with names and money.
//!
//! Two rules that only hold on exact state: no name is taken twice, and no
//! account is ever below zero. `check` folds a ledger and says whether they
//! held.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use fluffy_ledger::{
    Actor, Aggregate, Domain, Draft, Event, Ledger, LedgerOptions, PostgresAddress,
};
use fluffy_server::fold::{Decided, Fold, Machine};
use fluffy_server::loops::lease::Term;
use fluffy_server::sequencer::{Sequencer, SequencerOptions};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What everyone starts with.
pub(crate) const STAKE: i64 = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bank {
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    /// The balance by name.
    pub(crate) accounts: BTreeMap<String, i64>,
    versions: BTreeMap<String, u64>,
    /// The last term of each lease.
    pub(crate) terms: BTreeMap<String, u64>,
    /// What broke a rule.
    pub(crate) broken: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) enum Job {
    Open {
        name: String,
        mark: u64,
    },
    Pay {
        from: String,
        to: String,
        mark: u64,
    },
    /// Never changes anything.
    Look {
        name: String,
    },
    /// Asks for what no ledger takes.
    Nonsense,
    /// Begins the next term of a lease.
    Begin {
        lease: String,
        mark: u64,
    },
    /// Opens an account, if the term is still the last.
    Fenced {
        fence: Term,
        name: String,
        mark: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Done,
    Refused,
    Balance(Option<i64>),
    Term(u64),
}

#[derive(Debug, thiserror::Error)]
#[error("unknown")]
pub(crate) struct Unknown;

impl Machine for Bank {
    type Job = Job;
    type Reply = Said;
    type Unknown = Unknown;

    fn decide(&self, job: &mut Job) -> Decided<Said> {
        let done = |drafts| Decided {
            drafts,
            reply: Said::Done,
        };
        let refused = Decided {
            drafts: Vec::new(),
            reply: Said::Refused,
        };
        match job {
            Job::Open { name, .. } if self.accounts.contains_key(name) => refused,
            Job::Open { name, mark } => done(vec![draft(name, "account.opened", *mark)]),
            Job::Pay { from, to, mark } => {
                let known = self.accounts.contains_key(to) && from != to;
                match self.accounts.get(from) {
                    Some(balance) if *balance > 0 && known => done(vec![
                        draft(from, "account.paid", *mark),
                        draft(to, "account.received", *mark),
                    ]),
                    _ => refused,
                }
            }
            Job::Look { name } => Decided {
                drafts: Vec::new(),
                reply: Said::Balance(self.accounts.get(name).copied()),
            },
            Job::Begin { lease, mark } => {
                let term = self.terms.get(lease).copied().unwrap_or(0) + 1;
                Decided {
                    drafts: vec![draft(lease, "lease.taken", *mark)],
                    reply: Said::Term(term),
                }
            }
            Job::Fenced { fence, name, mark } => {
                if self.terms.get(&fence.lease) != Some(&fence.epoch) {
                    return refused;
                }
                done(vec![draft(name, "account.opened", *mark)])
            }
            Job::Nonsense => done(vec![draft("", "account.opened", 0)]),
        }
    }

    fn apply(&mut self, event: &Event) -> Result<(), Unknown> {
        assert_eq!(event.seq, self.seq + 1);
        if event.domain == Domain::Platform {
            let name = event.aggregate.id.clone();
            if event.event_type == "lease.taken" {
                *self.terms.entry(name.clone()).or_default() += 1;
                self.versions.insert(name, event.aggregate_version);
                self.seq = event.seq;
                return Ok(());
            }
            let change = match event.event_type.as_str() {
                "account.opened" => STAKE,
                "account.paid" => -1,
                "account.received" => 1,
                _ => return Err(Unknown),
            };
            if change == STAKE && self.accounts.contains_key(&name) {
                self.broken.push(format!("{name} is there twice"));
            }
            let balance = self.accounts.entry(name.clone()).or_default();
            *balance += change;
            if *balance < 0 {
                self.broken.push(format!("{name} is below zero"));
            }
            self.versions.insert(name, event.aggregate_version);
        }
        self.seq = event.seq;
        Ok(())
    }

    fn version(&self, aggregate: &Aggregate) -> u64 {
        self.versions.get(&aggregate.id).copied().unwrap_or(0)
    }

    fn enter(&mut self, epoch: u64) {
        self.epoch = epoch;
    }
}

fn draft(name: &str, event_type: &str, mark: u64) -> Draft {
    Draft::new(
        Domain::Platform,
        Aggregate::new("account", name),
        event_type,
        Actor::system("test"),
    )
    .payload(json!({"mark": mark}))
}

/// The mark that the job of an event had.
pub(crate) fn mark(event: &Event) -> u64 {
    let payload = event.payload.value().unwrap();
    payload.get("mark").and_then(Value::as_u64).unwrap()
}

/// Opens a ledger by its directory or the URL of its database.
pub(crate) fn open(address: &str) -> Ledger {
    if address.starts_with("postgres") {
        let address: PostgresAddress = address.parse().unwrap();
        return Ledger::open_postgres(&address, LedgerOptions::default()).unwrap();
    }
    Ledger::open(Path::new(address), LedgerOptions::default()).unwrap()
}

pub(crate) fn start(ledger: &Ledger) -> Sequencer<Bank> {
    Sequencer::start(ledger.clone(), SequencerOptions::default()).unwrap()
}

/// The ledger, folded from its first event.
pub(crate) fn fold(ledger: &Ledger) -> Bank {
    let mut fold = Fold::<Bank>::empty(ledger);
    assert!(fold.finish(ledger).unwrap());
    fold.machine
}
