//! Any order of commands keeps what must always hold.
//!
//! Requests are decided one after another on exact state, as the sequencer
//! does it; what two of them raced for goes to the first. Seeds replay.

use std::collections::BTreeSet;

use fluffy_api::Operation;
use fluffy_control::access::Member;
use fluffy_control::{Caller, Outcome, Request, State};
use fluffy_test_kit::Random;
use serde_json::json;

use crate::ground::{World, issuing, request, service_id, token_id};

const STEPS: usize = 150;

#[test]
fn invariants_hold_in_any_order() {
    let mut done = 0;
    for seed in 0..12 {
        let mut run = Run::new(seed);
        for _ in 0..STEPS {
            run.step();
            let state = &run.world.state;
            invariant_every_org_has_an_owner(state);
            invariant_names_are_unique(state);
            invariant_members_are_indexed(state);
        }
        invariant_the_fold_is_the_state(&run.world);
        done += run.done;
    }
    assert!(done > 200, "only {done} requests were done");
}

struct Run {
    world: World,
    random: Random,
    people: Vec<Caller>,
    next: u128,
    done: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut world = World::new();
        let mut people = Vec::new();
        for slug in ["acme", "umbra"] {
            for role in ["owner", "owner", "admin"] {
                people.push(world.member(Some(slug), role));
            }
        }
        people.push(world.member(None, "platform_operator"));
        Self {
            world,
            random: Random::new(seed),
            people,
            next: 100,
            done: 0,
        }
    }

    fn step(&mut self) {
        let caller = self.random.pick(&self.people).unwrap();
        let request = self.request();
        let outcome = self.world.write(&caller, &request);
        self.done += usize::from(matches!(outcome, Outcome::Done { .. }));
    }

    fn request(&mut self) -> Request {
        self.next += 1;
        let org = self.random.pick(&["acme", "umbra"]).unwrap();
        let name = self.random.pick(&["ci", "cd", "bot"]).unwrap();
        let role = self.random.pick(&["viewer", "admin", "owner"]).unwrap();
        let ids: Vec<String> = self
            .world
            .state
            .access
            .members
            .keys()
            .map(ToString::to_string)
            .collect();
        let member = self.random.pick(&ids).unwrap();
        match self.random.below(7) {
            0 => request(Operation::CreateOrg, &[], json!({ "slug": name })),
            1 => {
                let body = json!({ "email": "a@example.com", "role": role });
                let add = request(Operation::AddMember, &[org], body);
                issuing(add, &[token_id(self.next)])
            }
            2 | 3 => Request::new(Operation::RemoveMember, &[org, &member]),
            4 => {
                let body = json!({ "role": role });
                request(Operation::UpdateMember, &[org, &member], body)
            }
            5 => {
                let body = json!({ "name": name });
                let create = request(Operation::CreatePrincipal, &[org], body);
                issuing(create, &[service_id(self.next)])
            }
            _ => Request::new(Operation::DeletePrincipal, &[org, name]),
        }
    }
}

fn invariant_every_org_has_an_owner(state: &State) {
    for id in state.access.orgs.keys() {
        let mut members = state.access.members.values();
        let owns = |one: &Member| one.owner.org == Some(*id) && one.role == "owner";
        assert!(
            members.any(|one| owns(one) && one.active),
            "{id} has no owner who could do anything"
        );
    }
}

fn invariant_names_are_unique(state: &State) {
    let slugs: BTreeSet<_> = state.access.orgs.values().map(|org| &org.slug).collect();
    assert_eq!(slugs.len(), state.access.orgs.len());
    let services = &state.access.services;
    let names: BTreeSet<_> = services.values().map(|one| (one.org, &one.name)).collect();
    assert_eq!(names.len(), services.len());
}

fn invariant_members_are_indexed(state: &State) {
    for (id, member) in &state.access.members {
        assert!(state.meta("org_member", &id.to_string()).is_some());
        assert!(member.role().is_some());
    }
}

fn invariant_the_fold_is_the_state(world: &World) {
    let mut state = State::default();
    for event in &world.events {
        state.apply(event).unwrap();
    }
    assert_eq!(state, world.state);
    assert_eq!(state.digests(), world.state.digests());
    let bytes = postcard::to_allocvec(&state).unwrap();
    assert_eq!(postcard::from_bytes::<State>(&bytes).unwrap(), state);
}
