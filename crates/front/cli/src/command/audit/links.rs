//! Events that rest on another ledger's, followed where that ledger is.
//!
//! A link is as good as what it leads to: the other ledger has to verify as
//! well, and to have the very event. One that is not at hand is said to be so.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fluffy_base::id::LedgerId;
use fluffy_ledger::Source;
use fluffy_ledger::verify::{Extent, Finding, MetSource, Start, VerifyOptions, verify_path};
use fluffy_report::{ExitCode, Report};
use serde_json::{Value, json};

use crate::failure::{self, Failure};

/// A ledger that others may rest on, and what to hold it against.
#[derive(Debug)]
pub(super) struct AtHand {
    pub(super) path: PathBuf,
    pub(super) options: VerifyOptions,
}

impl AtHand {
    /// One that a person named: nobody vouches for its signatures.
    pub(super) fn named(path: PathBuf) -> Self {
        let options = VerifyOptions::default();
        Self { path, options }
    }
}

/// What became of the links of a ledger.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// Those that hold.
    pub(super) followed: Vec<MetSource>,
    /// How many lead to a ledger that is not at hand.
    pub(super) elsewhere: u64,
    /// The first ledger in which they do not hold, and what is wrong there.
    pub(super) broken: Option<Broken>,
}

/// Links that do not hold.
#[derive(Debug)]
pub(super) struct Broken {
    /// The first event that rests on the other ledger.
    pub(super) seq: u64,
    /// The other ledger.
    pub(super) ledger: LedgerId,
    /// Where it is.
    pub(super) path: PathBuf,
    /// What is wrong with it.
    pub(super) finding: Finding,
}

impl Broken {
    /// For people.
    pub(super) fn report(&self) -> Report {
        let what = format!(
            "the ledger is sound, but event {} rests on another that is broken",
            self.seq
        );
        let Finding { seq, kind, detail } = &self.finding;
        let path = self.path.display();
        Report::new(ExitCode::Internal, what)
            .code("broken_link")
            .why(format!("event {seq} of {}: {detail} ({kind})", self.ledger))
            .fix(format!(
                "keep `{path}` as it is, and compare it with a witness"
            ))
    }
}

impl Links {
    /// For people; nothing where there are none.
    pub(super) fn words(&self) -> Option<String> {
        let count = self.followed.len();
        let mut parts = Vec::new();
        match self.followed.as_slice() {
            [] => {}
            [only] => parts.push(format!(
                "event {} rests on event {} of {}, which is sound",
                only.seq, only.source.seq, only.source.ledger_id
            )),
            _ => parts.push(format!(
                "{count} events rest on other ledgers, which are sound"
            )),
        }
        if self.elsewhere > 0 {
            let many = self.elsewhere;
            parts.push(format!(
                "{many} lead to what is not at hand (name it with --follow)"
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let followed = self.followed.iter().map(|it| {
            json!({"seq": it.seq, "ledger": it.source.ledger_id, "source_seq": it.source.seq,
                   "hash": it.source.hash})
        });
        let broken = self.broken.as_ref().map(|it| {
            json!({"seq": it.seq, "ledger": it.ledger, "path": it.path, "finding": it.finding})
        });
        json!({
            "followed": followed.collect::<Vec<_>>(), "elsewhere": self.elsewhere,
            "broken": broken,
        })
    }
}

/// Follows sources into the ledgers that are at hand.
pub(super) fn follow(sources: &[MetSource], at_hand: &[AtHand]) -> Result<Links, Failure> {
    let mut by_ledger: BTreeMap<LedgerId, Vec<&MetSource>> = BTreeMap::new();
    for met in sources {
        by_ledger.entry(met.source.ledger_id).or_default().push(met);
    }
    let mut links = Links::default();
    if by_ledger.is_empty() {
        return Ok(links);
    }
    let mut known = BTreeMap::new();
    for ledger in at_hand {
        if let Some(id) = id_of(ledger)? {
            known.entry(id).or_insert(ledger);
        }
    }
    for (id, met) in by_ledger {
        match known.get(&id) {
            Some(ledger) => links.take(id, &met, ledger)?,
            None => links.elsewhere += met.len() as u64,
        }
    }
    Ok(links)
}

impl Links {
    fn take(&mut self, id: LedgerId, met: &[&MetSource], ledger: &AtHand) -> Result<(), Failure> {
        let sources = met.iter().map(|it| &it.source);
        let seen = Source::follow_all(sources, &ledger.path, &ledger.options);
        let seen = seen.map_err(|error| failure::verify(&error))?;
        if let Err(finding) = seen.verdict {
            let seq = met.iter().map(|it| it.seq).min().unwrap_or_default();
            let path = ledger.path.clone();
            let broken = Broken {
                seq,
                ledger: id,
                path,
                finding,
            };
            self.broken.get_or_insert(broken);
            return Ok(());
        }
        let from = match seen.start {
            Start::Archived { seq, .. } => seq,
            Start::Genesis | Start::Checkpoint { .. } => 0,
        };
        for met in met {
            match met.source.seq > from {
                true => self.followed.push((*met).clone()),
                // Archived away, and the archive is not at hand.
                false => self.elsewhere += 1,
            }
        }
        Ok(())
    }
}

/// Which ledger it is; none if it is so broken that it cannot say.
fn id_of(ledger: &AtHand) -> Result<Option<LedgerId>, Failure> {
    let options = VerifyOptions {
        extent: Extent::SinceCheckpoint,
        ..ledger.options.clone()
    };
    let seen = verify_path(&ledger.path, &options).map_err(|error| failure::verify(&error))?;
    Ok(seen.ledger_id)
}
