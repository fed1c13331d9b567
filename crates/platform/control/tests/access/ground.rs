//! A platform in memory: state, what was appended, and people in it.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{
    AppId, EnvId, GrantId, LedgerId, MemberId, NodeId, OrgId, PrincipalId, TokenId, UserId,
};
use fluffy_base::{Digest, Timestamp};
use fluffy_control::call::{NewCredential, Shown};
use fluffy_control::event::{
    AppCreated, EnvCreated, GrantAdded, OrgCreated, OrgMemberAdded, TokenIssued,
};
use fluffy_control::{
    Call, Caller, CallerKind, Fact, Idempotency, Material, Mint, Outcome, Owner, Read, Refusal,
    Request, State, Written, answer, read, write,
};
use fluffy_ledger::{Actor, ActorKind, Event};
use serde_json::Value;

/// A platform in memory.
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) events: Vec<Event>,
    pub(crate) mint: Mint,
    pub(crate) now: Timestamp,
}

/// What may come with a request.
#[derive(Default, Clone, Copy)]
pub(crate) struct With<'a> {
    pub(crate) key: Option<&'a str>,
    pub(crate) if_match: Option<u64>,
}

impl World {
    /// An empty ledger.
    pub(crate) fn empty() -> Self {
        Self {
            state: State::default(),
            events: Vec::new(),
            mint: Mint::new([9; 32]),
            now: "2026-11-16T08:00:00Z".parse().unwrap(),
        }
    }

    /// Two orgs, `acme` with an app, an open and a protected env, and `umbra`.
    pub(crate) fn new() -> Self {
        let mut world = Self::empty();
        let acme = world.org("acme");
        let shop = world.app(acme, "shop");
        world.env(shop, "dev", false);
        world.env(shop, "prod", true);
        world.org("umbra");
        world
    }

    pub(crate) fn id(&self) -> u128 {
        self.mint.bits(self.now)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// Appends facts as if they had been decided.
    pub(crate) fn record(&mut self, facts: Vec<Fact>) {
        let system = system();
        self.append(&system, With::default(), None, &facts);
    }

    pub(crate) fn org(&mut self, slug: &str) -> Owner {
        let id = OrgId::from_bits(self.id());
        let owner = Owner {
            org: Some(id),
            ..Owner::default()
        };
        let created = OrgCreated {
            slug: slug.to_owned(),
            display_name: slug.to_owned(),
        };
        self.record(vec![Fact::new(id, created.into()).of(&owner.scope())]);
        owner
    }

    pub(crate) fn app(&mut self, org: Owner, name: &str) -> Owner {
        let id = AppId::from_bits(self.id());
        let owner = Owner {
            app: Some(id),
            ..org
        };
        let created = AppCreated {
            name: name.to_owned(),
            project_id: None,
            description: None,
            display_name: None,
        };
        self.record(vec![Fact::new(id, created.into()).of(&owner.scope())]);
        owner
    }

    pub(crate) fn env(&mut self, app: Owner, name: &str, protected: bool) -> Owner {
        let id = EnvId::from_bits(self.id());
        let owner = Owner {
            env: Some(id),
            ..app
        };
        let created = EnvCreated {
            name: name.to_owned(),
            protected,
            allow_shared_kernel: false,
        };
        self.record(vec![Fact::new(id, created.into()).of(&owner.scope())]);
        owner
    }

    pub(crate) fn named(&self, slug: &str) -> Owner {
        Owner {
            org: self.state.access.names.org(slug),
            ..Owner::default()
        }
    }

    /// A person who has logged in and has no role anywhere.
    pub(crate) fn person(&mut self) -> Caller {
        let principal = UserId::from_bits(self.id()).to_string();
        self.login(&principal)
    }

    /// An access token of a principal.
    pub(crate) fn login(&mut self, principal: &str) -> Caller {
        let issued = issued("access", principal, self.now.after(HOUR));
        let token = TokenId::from_bits(self.id());
        self.record(vec![Fact::new(token, issued.into())]);
        fluffy_control::access::caller_of_token(&self.state, token).unwrap()
    }

    /// A person with a role in an org, or one who runs the platform.
    pub(crate) fn member(&mut self, org: Option<&str>, role: &str) -> Caller {
        let person = self.person();
        let owner = org.map(|slug| self.named(slug)).unwrap_or_default();
        self.join(&person, owner, role);
        person
    }

    /// Gives a person a role, with which they come in.
    pub(crate) fn join(&mut self, person: &Caller, owner: Owner, role: &str) -> MemberId {
        let id = self.invite(&person.actor.id, owner, role);
        self.login(&person.actor.id);
        id
    }

    /// Gives a role to a principal, who need not have come in.
    pub(crate) fn invite(&mut self, principal: &str, owner: Owner, role: &str) -> MemberId {
        let id = MemberId::from_bits(self.id());
        let added = OrgMemberAdded {
            principal_id: principal.to_owned(),
            role: role.to_owned(),
            email_hash: String::new(),
        };
        self.record(vec![Fact::new(id, added.into()).of(&owner.scope())]);
        id
    }

    /// Somebody who was asked to run the platform, or into an org, and never
    /// came.
    pub(crate) fn invited(&mut self, org: Option<&str>, role: &str) -> MemberId {
        let principal = UserId::from_bits(self.id()).to_string();
        let owner = org.map(|slug| self.named(slug)).unwrap_or_default();
        self.invite(&principal, owner, role)
    }

    /// Gives something without asking.
    pub(crate) fn give(&mut self, to: &Caller, pattern: &str, ids: &[String], life: Duration) {
        let added = GrantAdded {
            principal_id: to.actor.id.clone(),
            pattern: pattern.to_owned(),
            resolved_ids: ids.to_vec(),
            expires_at: Some(self.now.after(life)),
            reason: None,
        };
        let id = GrantId::from_bits(self.id());
        let owner = self.named("acme");
        self.record(vec![Fact::new(id, added.into()).of(&owner.scope())]);
    }

    pub(crate) fn write(&mut self, caller: &Caller, request: &Request) -> Outcome {
        self.write_with(caller, request, With::default())
    }

    pub(crate) fn write_with(
        &mut self,
        caller: &Caller,
        request: &Request,
        with: With<'_>,
    ) -> Outcome {
        let Written { facts, outcome } = self.decide(caller, request, with);
        self.append(caller, with, request.body.as_ref(), &facts);
        outcome
    }

    /// Decides without appending.
    pub(crate) fn decide(&self, caller: &Caller, request: &Request, with: With<'_>) -> Written {
        self.call(caller, with, request.body.as_ref(), |call| {
            write(&self.state, call, request)
        })
    }

    /// Writes and gives the object that is answered with.
    pub(crate) fn done(&mut self, caller: &Caller, request: &Request) -> Value {
        match self.write(caller, request) {
            Outcome::Done { subject, .. } => answer(&self.state, &subject),
            other => panic!("{other:?}"),
        }
    }

    /// Writes and gives the code of the refusal.
    pub(crate) fn refused(&mut self, caller: &Caller, request: &Request) -> &'static str {
        refusal(self.write(caller, request)).code
    }

    pub(crate) fn read(&self, caller: &Caller, request: &Request) -> Read {
        self.call(caller, With::default(), None, |call| {
            read(&self.state, call, request)
        })
    }

    pub(crate) fn get(&self, caller: &Caller, operation: Operation, path: &[&str]) -> Value {
        self.read(caller, &Request::new(operation, path))
            .result
            .unwrap()
    }

    pub(crate) fn call<T>(
        &self,
        caller: &Caller,
        with: With<'_>,
        body: Option<&Value>,
        act: impl FnOnce(&Call<'_>) -> T,
    ) -> T {
        let text = body.map(Value::to_string).unwrap_or_default();
        act(&Call {
            caller,
            request_id: "req_01J00000000000000000000001",
            now: self.now,
            idempotency: with.key.map(|key| Idempotency {
                key,
                body_hash: Digest::of(text.as_bytes()),
            }),
            if_match: with.if_match,
            mint: &self.mint,
        })
    }

    pub(crate) fn append(
        &mut self,
        caller: &Caller,
        with: With<'_>,
        body: Option<&Value>,
        facts: &[Fact],
    ) {
        let first = self.state.seq + 1;
        let mut versions: BTreeMap<(String, String), u64> = BTreeMap::new();
        let events: Vec<Event> = self.call(caller, with, body, |call| {
            let events = facts.iter().zip(first..).map(|(fact, seq)| {
                let kind = fact.body.aggregate_kind();
                let key = (kind.to_owned(), fact.aggregate_id.clone());
                let stored = self.state.meta(kind, &fact.aggregate_id);
                let version = versions
                    .entry(key)
                    .or_insert(stored.map_or(0, |meta| meta.version));
                *version += 1;
                let mut draft = fact.draft(call, first);
                draft.foresee(seq, *version, call.now).unwrap()
            });
            events.collect()
        });
        for event in events {
            self.state.apply(&event).unwrap();
            self.events.push(event);
        }
    }
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn request(operation: Operation, path: &[&str], body: Value) -> Request {
    Request {
        body: Some(body),
        ..Request::new(operation, path)
    }
}

/// The same with credentials that were prepared.
pub(crate) fn issuing(request: Request, ids: &[String]) -> Request {
    credential(request, ids, None)
}

pub(crate) fn credential(request: Request, ids: &[String], shown: Option<Shown>) -> Request {
    Request {
        material: Material::Credential(NewCredential {
            issued: ids.to_vec(),
            shown,
            email_hash: None,
        }),
        ..request
    }
}

pub(crate) fn issued(kind: &str, principal: &str, expires_at: Timestamp) -> TokenIssued {
    TokenIssued {
        kind: kind.to_owned(),
        principal_id: principal.to_owned(),
        expires_at,
        ceiling: None,
        family: None,
        on_behalf_of: None,
        reads_per_minute: None,
        writes_per_minute: None,
    }
}

pub(crate) fn refusal(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

pub(crate) fn system() -> Caller {
    Caller {
        kind: CallerKind::System(None),
        actor: Actor::system("test"),
    }
}

pub(crate) fn anonymous() -> Caller {
    Caller {
        kind: CallerKind::Anonymous,
        actor: Actor::new(ActorKind::User, "anonymous"),
    }
}

pub(crate) fn local() -> Caller {
    Caller {
        kind: CallerKind::Local,
        actor: Actor::new(ActorKind::User, "local"),
    }
}

pub(crate) fn node() -> Caller {
    let id = NodeId::from_bits(7);
    Caller {
        kind: CallerKind::Node(id),
        actor: Actor::new(ActorKind::Node, id.to_string()),
    }
}

pub(crate) fn token_id(number: u128) -> String {
    TokenId::from_bits(number).to_string()
}

pub(crate) fn service_id(number: u128) -> String {
    PrincipalId::from_bits(number).to_string()
}

pub(crate) fn ledger() -> LedgerId {
    LedgerId::from_bits(1)
}
