//! Decisions by the gate: policy decides, the ledger remembers, then we connect.
//!
//! A yes of the policy is for TLS to public addresses. An address instead of a
//! name is only allowed where a rule names exactly that address, and what else
//! goes beyond the ordinary must be in a list that a person wrote.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use fluffy_base::{Clock, SystemClock};
use fluffy_contract::BoxFuture;
use fluffy_gate::{AuthorizeError, Gate, LoadedPolicy};
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::rule::{Effect, Label};
use fluffy_policy::{Context, Principal, Request};

use crate::allow_list::{AllowList, refused};
use crate::decide::{Allowed, Decide, Denied, Place, Question, Terms};
use crate::target::Target;

/// Asks the gate for `net.connect` in the name of one principal.
#[derive(Debug, Clone)]
pub struct ByGate {
    gate: Arc<Gate>,
    principal: Principal,
    context: Context,
    beyond: Option<AllowList>,
}

impl ByGate {
    /// Decides for this principal in these circumstances; the sandbox and its
    /// template come from the proxy.
    #[must_use]
    pub const fn new(gate: Arc<Gate>, principal: Principal, context: Context) -> Self {
        Self {
            gate,
            principal,
            context,
            beyond: None,
        }
    }

    /// With a person's list of what goes beyond TLS to public addresses. It
    /// only adds to what the gate allows: a host must pass both.
    #[must_use]
    pub fn beyond(self, list: AllowList) -> Self {
        let beyond = Some(list);
        Self { beyond, ..self }
    }

    fn judge(&self, question: &Question) -> Result<Allowed, Denied> {
        let request = self.request(question);
        let voices = Voices::of(&self.gate.policy(), &request, &question.target);
        match self.gate.authorize(&request) {
            Ok(granted) => Ok(Allowed {
                permit: granted.permit,
                terms: self.terms(&question.target, &voices),
                rule: voices.rule(),
                decision: Some(granted.decision),
            }),
            Err(AuthorizeError::Refused { refusal, decision }) => {
                Err(with_decision(refused(refusal.decision()), decision))
            }
            Err(AuthorizeError::NotRecorded(_)) => Err(Denied::Undecided),
        }
    }

    fn terms(&self, target: &Target, voices: &Voices) -> Terms {
        let mut terms = match &self.beyond {
            Some(list) => list.terms(target),
            None => Terms::default(),
        };
        let named = target.literal().filter(|_| voices.naming.is_some());
        if let (Some(address), Place::Public) = (named, &terms.place) {
            terms.place = Place::Exactly(vec![address]);
        }
        terms
    }

    fn request(&self, question: &Question) -> Request {
        Request {
            principal: Principal {
                sandbox: Some(question.sandbox),
                ..self.principal.clone()
            },
            action: "net.connect".to_owned(),
            resource: Some(question.target.to_string()),
            context: Context {
                template: Some(question.template.clone()),
                ..self.context.clone()
            },
        }
    }
}

impl Decide for ByGate {
    fn decide<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, Denied>> {
        let (this, question) = (self.clone(), question.clone());
        Box::pin(async move {
            // A refusal is on disk before we hear of it, and extensions are
            // other processes: both may block.
            let judged = tokio::task::spawn_blocking(move || this.judge(&question));
            judged.await.unwrap_or(Err(Denied::Undecided))
        })
    }
}

fn with_decision(denied: Denied, recorded: fluffy_ledger::SeqRef) -> Denied {
    match denied {
        Denied::Rule { why, rule, .. } => Denied::Rule {
            why,
            rule,
            decision: Some(recorded),
        },
        Denied::Undecided => Denied::Undecided,
    }
}

/// The rules that allow a host.
struct Voices {
    /// One that speaks for this host and would not for another of the same
    /// sort; rules about all hosts name none.
    naming: Option<Arc<Label>>,
    any: Option<Arc<Label>>,
}

impl Voices {
    /// Asked of the rules alone: extensions do not name hosts, and this is no
    /// decision, only a look at what one rests on.
    fn of(policy: &LoadedPolicy, request: &Request, target: &Target) -> Self {
        let allowing = |host: &str| {
            let request = Request {
                resource: Some(format!("{host}:{}", target.port())),
                ..request.clone()
            };
            let now = SystemClock.now();
            let decision = policy.engine.evaluate(&request, now, &NoExtensions);
            let voices = decision.spoke().iter();
            let voices = voices.filter(|voice| voice.effect == Effect::Allow);
            let labels = voices.map(|voice| Arc::clone(&voice.label));
            labels.collect::<Vec<_>>()
        };
        let others = allowing(&stranger(target));
        let labels = allowing(target.host());
        let naming = labels.iter().find(|label| !others.contains(label));
        Self {
            naming: naming.cloned(),
            any: labels.first().cloned(),
        }
    }

    fn rule(&self) -> Option<String> {
        let label = self.naming.as_ref().or(self.any.as_ref())?;
        Some(label.name.clone())
    }
}

/// A host that nobody means: an address kept for later, a name that cannot be.
fn stranger(target: &Target) -> String {
    match target.literal() {
        Some(IpAddr::V4(address)) if address == Ipv4Addr::new(240, 0, 0, 1) => {
            Ipv4Addr::new(240, 0, 0, 2).to_string()
        }
        Some(IpAddr::V4(_)) => Ipv4Addr::new(240, 0, 0, 1).to_string(),
        Some(IpAddr::V6(address)) if address.segments() == [0x100, 0, 0, 0, 0, 0, 0, 1] => {
            "[100::2]".to_owned()
        }
        Some(IpAddr::V6(_)) => format!("[{}]", Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)),
        None => "nobody.invalid".to_owned(),
    }
}
