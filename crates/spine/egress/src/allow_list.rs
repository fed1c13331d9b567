//! A list of hosts that a person wrote down, as rules of a policy.
//!
//! Entries are `HOST:PORT`, `*.DOMAIN:PORT` or `ADDRESS:PORT`; `=ADDRESS` after
//! one says where the host is, `tcp://` before one that a tunnel may carry
//! other things than TLS. The list becomes a policy of its own, so that a
//! permit comes from an engine here too; it never overrules a deny of the gate.

use std::net::IpAddr;
use std::sync::Arc;

use fluffy_base::{Clock, SystemClock};
use fluffy_contract::BoxFuture;
use fluffy_gate::Gate;
use fluffy_policy::diagnostic::RefusedText;
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{BuildGrantError, Grant, GrantLists};
use fluffy_policy::host::{HostPattern, HostPatternError};
use fluffy_policy::rule::Effect;
use fluffy_policy::{
    Context, Decision, Engine, Permit, Principal, PrincipalKind, Request, Sources, Verdict,
};

use crate::decide::{Allowed, Content, Decide, Denied, Place, Question, Terms};
use crate::target::Target;

/// The most entries a list may have.
pub const MAX_ENTRIES: usize = 1_000;

/// Hosts that a person allows a sandbox to reach.
#[derive(Debug, Clone)]
pub struct AllowList {
    list: Arc<List>,
    /// Whose denies hold above this list.
    gate: Option<Arc<Gate>>,
}

#[derive(Debug)]
struct List {
    entries: Vec<Entry>,
    engine: Engine,
    grant: Arc<Grant>,
}

/// Why a text is not an entry of a list.
#[derive(Debug, thiserror::Error)]
pub enum AllowListError {
    /// The host or port is not one.
    #[error("`{entry}` cannot be allowed")]
    Pattern {
        /// The entry as written.
        entry: String,
        /// What is wrong.
        #[source]
        source: HostPatternError,
    },
    /// What follows `=` is no address.
    #[error("`{entry}` must have an address after `=`")]
    Address {
        /// The entry as written.
        entry: String,
    },
    /// One address cannot stand for many hosts.
    #[error("`{entry}` is a pattern for many hosts and cannot have one address")]
    ManyHosts {
        /// The entry as written.
        entry: String,
    },
    /// The list is too long.
    #[error("more than {MAX_ENTRIES} hosts are allowed")]
    TooMany,
    /// The entries make no policy.
    #[error("the allowed hosts make no policy")]
    Policy(#[from] RefusedText),
    /// The ceiling of the list makes no grant.
    #[error("the allowed hosts make no grant")]
    Grant(#[from] BuildGrantError),
}

#[derive(Debug)]
struct Entry {
    text: String,
    pattern: HostPattern,
    address: Option<IpAddr>,
    content: Content,
}

impl AllowList {
    /// Reads the entries; an empty list allows nothing.
    ///
    /// # Errors
    /// The first entry that is not one.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, AllowListError> {
        if texts.len() > MAX_ENTRIES {
            return Err(AllowListError::TooMany);
        }
        let entries = texts.iter().map(|text| Entry::parse(text.as_ref()));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let policy = policy_of(&entries);
        let sources = Sources {
            project: Some(&policy),
            ..Sources::default()
        };
        let connect = || vec!["net.connect.*".to_owned()];
        let grant = Grant::build(&GrantLists {
            capabilities: connect(),
            deny_capabilities: Vec::new(),
            workspace: connect(),
            user: connect(),
        })?;
        let list = List {
            entries,
            engine: Engine::load(&sources, 1)?,
            grant: Arc::new(grant),
        };
        Ok(Self {
            list: Arc::new(list),
            gate: None,
        })
    }

    /// The same list below a gate: what its policy denies stays denied.
    #[must_use]
    pub fn below(self, gate: Arc<Gate>) -> Self {
        let gate = Some(gate);
        Self { gate, ..self }
    }

    /// What the entries for this target say beyond the ordinary.
    #[must_use]
    pub fn terms(&self, target: &Target) -> Terms {
        self.list.terms(target)
    }

    fn judge(&self, question: &Question) -> Result<Allowed, Denied> {
        let request = self.list.request(question);
        match self.gate.as_ref().and_then(|gate| denial(gate, &request)) {
            Some(denied) => Err(denied),
            None => self.list.judge(&question.target, &request),
        }
    }
}

impl Decide for AllowList {
    fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>> {
        let (list, question) = (self.clone(), question.clone());
        Box::pin(async move {
            // Extensions of the gate's policy are other processes: they may block.
            let judged = tokio::task::spawn_blocking(move || list.judge(&question));
            judged.await.unwrap_or(Err(Denied::Undecided))
        })
    }
}

impl List {
    fn terms(&self, target: &Target) -> Terms {
        let entries = || self.entries.iter().filter(|entry| entry.fits(target));
        let written = entries().filter_map(|entry| entry.address);
        let addresses: Vec<IpAddr> = written.chain(self.names(target)).collect();
        let any = entries().any(|entry| entry.content == Content::Any);
        Terms {
            place: match addresses.is_empty() {
                true => Place::Public,
                false => Place::Exactly(addresses),
            },
            content: match any {
                true => Content::Any,
                false => Content::Tls,
            },
        }
    }

    /// The target's address, if it is one; patterns cannot cover addresses, so
    /// an entry that fits names exactly this one.
    fn names(&self, target: &Target) -> Option<IpAddr> {
        let named = self.entries.iter().any(|entry| entry.fits(target));
        target.literal().filter(|_| named)
    }

    fn judge(&self, target: &Target, request: &Request) -> Result<Allowed, Denied> {
        let now = SystemClock.now();
        let permit: Permit = self
            .engine
            .evaluate(request, now, &NoExtensions)
            .into_permit()
            .map_err(|refusal| refused(refusal.decision()))?;
        let entry = self.entries.iter().find(|entry| entry.fits(target));
        Ok(Allowed {
            permit,
            terms: self.terms(target),
            rule: entry.map(|entry| format!("allow {}", entry.text)),
            decision: None,
        })
    }

    fn request(&self, question: &Question) -> Request {
        let grant = Arc::clone(&self.grant);
        Request {
            principal: Principal {
                sandbox: Some(question.sandbox),
                ..Principal::new(PrincipalKind::Agent, "sandbox", grant)
            },
            action: "net.connect".to_owned(),
            resource: Some(question.target.to_string()),
            context: Context {
                template: Some(question.template.clone()),
                ..Context::default()
            },
        }
    }
}

impl Entry {
    fn parse(text: &str) -> Result<Self, AllowListError> {
        let entry = || text.chars().take(200).collect::<String>();
        let (content, rest) = match text.strip_prefix("tcp://") {
            Some(rest) => (Content::Any, rest),
            None => (Content::Tls, text),
        };
        let (host, address) = match rest.split_once('=') {
            Some((host, address)) => (host, Some(address)),
            None => (rest, None),
        };
        let pattern =
            HostPattern::parse_with_port(host).map_err(|source| AllowListError::Pattern {
                entry: entry(),
                source,
            })?;
        if address.is_some() && host.starts_with("*.") {
            return Err(AllowListError::ManyHosts { entry: entry() });
        }
        let address = match address {
            Some(address) => {
                let read = address.parse().ok();
                Some(read.ok_or_else(|| AllowListError::Address { entry: entry() })?)
            }
            None => None,
        };
        Ok(Self {
            text: entry(),
            pattern,
            address,
            content,
        })
    }

    fn fits(&self, target: &Target) -> bool {
        self.pattern.matches_host(target.host()) && self.pattern.port() == Some(target.port())
    }
}

/// The rules that allow exactly what the entries name.
fn policy_of(entries: &[Entry]) -> String {
    let mut text = String::from("version: 1\nnetwork_allow:\n  listed: [");
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        // Letters, digits, `-_.:*[]` only: nothing to escape.
        text.push_str(&format!("\"{}\"", entry.pattern));
    }
    text.push_str("]\n");
    text
}

/// What the gate's policy denies, as opposed to merely not allowing it.
fn denial(gate: &Gate, request: &Request) -> Option<Denied> {
    let policy = gate.policy();
    let decision = policy.engine.evaluate(request, SystemClock.now(), &*policy);
    let denies = decision
        .spoke()
        .iter()
        .any(|voice| voice.effect == Effect::Deny);
    denies.then(|| refused(&decision))
}

/// A decision of no, in words.
pub(crate) fn refused(decision: &Decision) -> Denied {
    let decisive = match decision.verdict() {
        Verdict::Allow => Effect::Allow,
        Verdict::Deny => Effect::Deny,
        Verdict::RequireReview => Effect::RequireReview,
    };
    let mut voices = decision.spoke().iter();
    let voice = voices.find(|voice| voice.effect == decisive);
    let mut why: Vec<&str> = decision.reasons().collect();
    if decision.verdict() == Verdict::RequireReview {
        why.insert(0, "it needs a person's review");
    }
    Denied::Rule {
        why: why.join("; "),
        rule: voice.map(|voice| voice.label.name.clone()),
        decision: None,
    }
}

#[cfg(test)]
mod tests {
    use fluffy_base::id::SandboxId;

    use crate::decide::Kind;

    use super::*;

    fn ask(list: &AllowList, target: &str) -> Result<Allowed, Denied> {
        list.judge(&Question {
            sandbox: SandboxId::from_bits(7),
            template: "integration-test".to_owned(),
            target: Target::parse(target.as_bytes(), None).unwrap(),
            kind: Kind::Connect,
        })
    }

    #[test]
    fn what_is_listed_comes_with_a_permit_for_exactly_that() {
        let list = AllowList::parse(&["a.com:443", "*.b.com:8443", "127.0.0.1:80"]).unwrap();
        let allowed = ask(&list, "A.com.:443").unwrap();
        assert_eq!(allowed.permit.action(), "net.connect");
        assert_eq!(allowed.permit.resource(), Some("a.com:443"));
        assert_eq!(allowed.rule.as_deref(), Some("allow a.com:443"));
        assert!(ask(&list, "x.y.b.com:8443").is_ok());
        assert!(ask(&list, "127.0.0.1:80").is_ok());
        for other in [
            "a.com:80",
            "b.com:8443",
            "a.com.evil.com:443",
            "xa.com:443",
            "127.0.0.2:80",
            "[::1]:80",
        ] {
            assert!(
                matches!(ask(&list, other), Err(Denied::Rule { .. })),
                "{other}"
            );
        }
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        let list = AllowList::parse::<&str>(&[]).unwrap();
        assert!(ask(&list, "a.com:443").is_err());
    }

    #[test]
    fn terms_are_only_what_was_written() {
        let list = AllowList::parse(&[
            "plain.com:443",
            "there.com:443=127.0.0.1",
            "six.com:443=::1",
            "tcp://db.com:5432",
            "10.0.0.1:80",
        ])
        .unwrap();
        let terms = |text: &str| ask(&list, text).unwrap().terms;
        assert_eq!(terms("plain.com:443"), Terms::default());
        let exactly = |text: &str| Place::Exactly(vec![text.parse().unwrap()]);
        assert_eq!(terms("there.com:443").place, exactly("127.0.0.1"));
        assert_eq!(terms("six.com:443").place, exactly("::1"));
        assert_eq!(terms("10.0.0.1:80").place, exactly("10.0.0.1"));
        assert_eq!(terms("db.com:5432").content, Content::Any);
        assert_eq!(terms("10.0.0.1:80").content, Content::Tls);
    }

    #[test]
    fn what_is_no_entry_is_refused_with_its_text() {
        for (text, expected) in [
            ("a.com", "`a.com` cannot be allowed"),
            ("*:443", "`*:443` cannot be allowed"),
            ("http://a.com:80", "`http://a.com:80` cannot be allowed"),
            (
                "a.com:443=b.com",
                "`a.com:443=b.com` must have an address after `=`",
            ),
            ("a.com:443=", "`a.com:443=` must have an address after `=`"),
            (
                "*.a.com:443=1.2.3.4",
                "`*.a.com:443=1.2.3.4` is a pattern for many hosts and cannot have one address",
            ),
        ] {
            assert_eq!(AllowList::parse(&[text]).unwrap_err().to_string(), expected);
        }
        let many = vec!["a.com:443"; MAX_ENTRIES + 1];
        assert!(matches!(
            AllowList::parse(&many),
            Err(AllowListError::TooMany)
        ));
    }
}
