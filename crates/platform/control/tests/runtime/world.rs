//! A platform in memory: its state, what was appended, and a person who may all.

use std::collections::BTreeMap;
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{EnrollmentTokenId, LedgerId, NodeId, SecretVersionId};
use fluffy_base::{Digest, Timestamp};
use fluffy_control::access::{Bootstrap, Notice as AccessNotice};
use fluffy_control::call::{Basis, ResolvedImage, SealedSecret};
use fluffy_control::event::{NodeDriver, ResolvedDigest};
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::{Enrolment, Report};
use fluffy_control::{
    Call, Caller, CallerKind, Fact, Idempotency, Material, Mint, Outcome, Refusal, Request, State,
    Written, answer, notice, read, write,
};
use fluffy_ledger::{Actor, ActorKind, Event};
use fluffy_planner::lifecycle::InstanceStatus;
use serde_json::{Value, json};

/// A platform in memory.
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) events: Vec<Event>,
    pub(crate) now: Timestamp,
    pub(crate) mint: Mint,
    keys: u64,
}

pub(crate) const WEB: &str = "schema_version = \"v1\"\n\
    [deploy]\nmin_ready_seconds = 0\n\
    [processes.web]\ncommand = [\"serve\"]\nports = [{ internal = 8080 }]\n\
    resources = { memory = \"128MiB\", cpu = 0.5, disk = \"1GiB\" }\n";

pub(crate) const DATA: &str = "schema_version = \"v1\"\n\
    [deploy]\nmin_ready_seconds = 0\n\
    [processes.db]\nports = [{ internal = 5432 }]\n\
    resources = { memory = \"256MiB\", disk = \"1GiB\" }\n\
    mounts = [{ volume = \"data\", path = \"/data\" }]\n\
    [[volumes]]\nname = \"data\"\nsize = \"2GiB\"\n";

impl World {
    /// A cluster of this prefix, with org `local` and an app `shop` in env `dev`.
    pub(crate) fn new(prefix: &str, seed: u8) -> Self {
        let mut world = Self {
            state: State::default(),
            events: Vec::new(),
            now: "2026-11-16T08:00:00Z".parse().unwrap(),
            mint: Mint::new([seed; 32]),
            keys: 0,
        };
        let begin = Bootstrap {
            ledger_id: LedgerId::from_bits(1),
            ipv6_prefix: prefix.to_owned(),
            invite: None,
        };
        let begin = fluffy_control::Notice::Access(AccessNotice::Bootstrap(begin));
        let written = world.call(|state, call| notice(state, call, &begin));
        world.append(&written);
        world.done(Operation::CreateApp, &["local"], json!({"name": "shop"}));
        let env = json!({"name": "dev", "allow_shared_kernel": false});
        world.done(Operation::CreateEnv, &["local", "shop"], env);
        world
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    fn call(&self, decide: impl FnOnce(&State, &Call<'_>) -> Written) -> Written {
        let caller = local();
        decide(&self.state, &self.plain(&caller))
    }

    fn plain<'a>(&'a self, caller: &'a Caller) -> Call<'a> {
        Call {
            caller,
            request_id: "req_1",
            now: self.now,
            idempotency: None,
            if_match: None,
            mint: &self.mint,
        }
    }

    /// Appends what was decided and folds it in.
    pub(crate) fn append(&mut self, written: &Written) {
        let caller = local();
        self.append_by(&caller, &written.facts);
    }

    fn append_by(&mut self, caller: &Caller, facts: &[Fact]) {
        let first = self.state.seq + 1;
        let mut versions: BTreeMap<(String, String), u64> = BTreeMap::new();
        let events: Vec<Event> = facts
            .iter()
            .zip(first..)
            .map(|(fact, seq)| {
                let kind = fact.body.aggregate_kind();
                let stored = self.state.meta(kind, &fact.aggregate_id);
                let version = versions
                    .entry((kind.to_owned(), fact.aggregate_id.clone()))
                    .or_insert(stored.map_or(0, |meta| meta.version));
                *version += 1;
                let mut draft = fact.draft(&self.plain(caller), first);
                draft.foresee(seq, *version, self.now).unwrap()
            })
            .collect();
        for event in events {
            self.state.apply(&event).unwrap();
            self.events.push(event);
        }
    }

    /// What a request leads to; nothing of it is appended.
    pub(crate) fn decided(&self, request: &Request) -> Written {
        self.call(|state, call| write(state, call, request))
    }

    /// Asks for something, appends what follows, and says how it ended.
    pub(crate) fn ask(&mut self, request: &Request) -> Outcome {
        let caller = local();
        self.keys += 1;
        let key = format!("key-{:08}", self.keys);
        let written = {
            let call = Call {
                idempotency: Some(Idempotency {
                    key: &key,
                    body_hash: Digest::of(b""),
                }),
                ..self.plain(&caller)
            };
            write(&self.state, &call, request)
        };
        self.append_by(&caller, &written.facts);
        written.outcome
    }

    pub(crate) fn request(&self, operation: Operation, path: &[&str], body: Value) -> Request {
        let mut body = body;
        // What must name a version names the current one.
        let version = match operation {
            Operation::SetScale => self.env_version(path),
            Operation::UpdateRoute => path.get(3).and_then(|id| self.version("route", id)),
            _ => None,
        };
        if let Some(version) = version {
            body["expected_version"] = json!(version);
        }
        Request {
            body: Some(body),
            ..Request::new(operation, path)
        }
    }

    fn version(&self, kind: &str, id: &str) -> Option<u64> {
        Some(self.state.meta(kind, id)?.version)
    }

    fn env_version(&self, path: &[&str]) -> Option<u64> {
        let names = &self.state.access.names;
        let org = names.org(path.first()?)?;
        let env = names.env(names.app(org, path.get(1)?)?, path.get(2)?)?;
        self.version("env", &env.to_string())
    }

    /// Does something that works, and gives the answer.
    pub(crate) fn done(&mut self, operation: Operation, path: &[&str], body: Value) -> Value {
        let request = self.request(operation, path, body);
        self.done_with(&request)
    }

    pub(crate) fn done_with(&mut self, request: &Request) -> Value {
        match self.ask(request) {
            Outcome::Done { subject, .. } => answer(&self.state, &subject),
            other => panic!("{}: {other:?}", request.operation.spec().id),
        }
    }

    /// Tries something that does not work, and gives the refusal.
    pub(crate) fn refused(&mut self, operation: Operation, path: &[&str], body: Value) -> Refusal {
        let request = self.request(operation, path, body);
        match self.ask(&request) {
            Outcome::Refused(refusal) => refusal,
            other => panic!("{}: {other:?}", operation.spec().id),
        }
    }

    pub(crate) fn get(&self, operation: Operation, path: &[&str]) -> Value {
        self.look(operation, path).unwrap()
    }

    /// Looks at what may not be there.
    pub(crate) fn look(&self, operation: Operation, path: &[&str]) -> Result<Value, Refusal> {
        let caller = local();
        let request = Request::new(operation, path);
        read(&self.state, &self.plain(&caller), &request).result
    }

    /// The names or ids of what a list has under a filter.
    pub(crate) fn listed(
        &self,
        (operation, path): (Operation, &[&str]),
        (filter, value): (&str, &str),
    ) -> Vec<String> {
        let caller = local();
        let mut request = Request::new(operation, path);
        request.query.insert(filter.to_owned(), value.to_owned());
        let shown = read(&self.state, &self.plain(&caller), &request).result;
        let shown = shown.unwrap();
        let items = shown["items"].as_array().unwrap().iter();
        let name = |item: &Value| item.get("name").unwrap_or(&item["id"]).clone();
        items
            .map(|item| name(item).as_str().unwrap().to_owned())
            .collect()
    }

    /// Says something that nobody asked for.
    pub(crate) fn say(&mut self, said: Notice) -> Outcome {
        self.say_any(&fluffy_control::Notice::Runtime(said))
    }

    /// The same, of any part of the platform.
    pub(crate) fn say_any(&mut self, said: &fluffy_control::Notice) -> Outcome {
        let caller = system();
        let written = notice(&self.state, &self.plain(&caller), said);
        self.append_by(&caller, &written.facts);
        written.outcome
    }

    /// A release of `shop` with this manifest.
    pub(crate) fn release(&mut self, manifest: &str) -> String {
        let body = json!({"image": "registry.example.com/shop:1", "manifest": manifest});
        let mut request = self.request(Operation::CreateRelease, &["local", "shop"], body);
        request.material = Material::Image(image());
        self.done_with(&request)["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn deploy(&mut self, release: &str) -> String {
        let body = json!({"release_id": release});
        let made = self.done(Operation::CreateDeploy, &DEV, body);
        made["id"].as_str().unwrap().to_owned()
    }

    /// A node with this much memory, ready to take instances.
    pub(crate) fn node(&mut self, number: u128, memory: u64) -> NodeId {
        let made = self.done(Operation::CreateEnrollmentToken, &[], json!({}));
        let token: EnrollmentTokenId = made["id"].as_str().unwrap().parse().unwrap();
        let node = NodeId::from_bits(number);
        let done = self.say(Notice::Enroll(Box::new(enrolment(node, token))));
        assert!(matches!(done, Outcome::Done { .. }), "{done:?}");
        self.say(Notice::Confirm { node });
        self.say(Notice::Capacity {
            node,
            cpu_cores: 8,
            memory_bytes: memory,
            disk_bytes: 100 << 30,
        });
        node
    }

    /// Sets the secrets of `dev`; other bytes are other values.
    pub(crate) fn secrets(&mut self, bytes: &[u8]) -> Value {
        let mut request = self.request(Operation::ReplaceSecrets, &DEV, json!({"values": {}}));
        request.material = self.sealed(bytes);
        self.done_with(&request)
    }

    /// A version of secrets that was put aside.
    pub(crate) fn sealed(&self, bytes: &[u8]) -> Material {
        Material::Secret(SealedSecret {
            version_id: SecretVersionId::from_bits(self.mint.bits(self.now)),
            data_hash: Digest::of(bytes),
            keys: vec!["DATABASE_URL".to_owned()],
            size_bytes: 20,
            master_key_id: "mk_00000001".parse().unwrap(),
            basis: Basis::Nothing,
        })
    }

    /// Plans once and carries out every step.
    pub(crate) fn plan(&mut self) -> usize {
        let input = self.state.runtime.planner_input(None);
        let steps = fluffy_planner::plan(&input, self.now);
        let many = steps.len();
        for step in steps {
            match self.say(Notice::Step(step)) {
                Outcome::Done { .. } => {}
                // An earlier step of the same pass was about the same group.
                Outcome::Refused(refusal) if refusal.code == "conflict" => {}
                other => panic!("{other:?}"),
            }
        }
        many
    }

    /// Lets nodes do at once what is wanted, until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..200 {
            let planned = self.plan();
            let reported = self.work();
            if planned + reported == 0 {
                return;
            }
            self.pass(2);
        }
        panic!("it never settles");
    }

    /// Every node takes every instance one step on; says how many moved.
    pub(crate) fn work(&mut self) -> usize {
        let volumes: Vec<_> = self.state.runtime.plan.volumes.iter().collect();
        let creating = volumes
            .into_iter()
            .filter(|(_, it)| it.state == fluffy_planner::lifecycle::VolumeState::Creating)
            .map(|(id, it)| (*id, it.home))
            .collect::<Vec<_>>();
        for (volume, node) in &creating {
            self.say(Notice::Volume {
                node: *node,
                volume: *volume,
                report: fluffy_control::runtime::notice::VolumeReport::Provisioned,
            });
        }
        let moves: Vec<_> = self
            .state
            .runtime
            .plan
            .instances
            .iter()
            .filter(|(_, it)| !self.state.runtime.plan.is_lost(it.node))
            .filter_map(|(id, it)| Some((*id, it.node, next(it)?)))
            .collect();
        let many = moves.len() + creating.len();
        for (instance, node, status) in moves {
            let reports = vec![report(instance, status, self.now)];
            self.say(Notice::Reports { node, reports });
        }
        many
    }

    /// Whether folding all events anew, or keeping the state, changes anything.
    pub(crate) fn check_fold(&self) {
        let mut again = State::default();
        for event in &self.events {
            again.apply(event).unwrap();
        }
        assert!(again == self.state, "another fold gives another state");
        assert_eq!(again.digests(), self.state.digests());
        let bytes = postcard::to_allocvec(&self.state).unwrap();
        let kept: State = postcard::from_bytes(&bytes).unwrap();
        assert!(kept == self.state, "a snapshot gives another state");
        assert_eq!(kept.digests(), self.state.digests());
    }
}

/// Where a good node brings an instance next.
pub(crate) fn next(instance: &fluffy_planner::model::Instance) -> Option<InstanceStatus> {
    use fluffy_planner::model::Desired;
    let status = instance.observed.status;
    let ends = match instance.desired {
        Desired::Running => false,
        Desired::Draining { stop_allowed, .. } => stop_allowed.is_some(),
        Desired::Stopped { .. } => true,
    };
    let gone = matches!(instance.desired, Desired::Stopped { .. });
    match status {
        InstanceStatus::Draining => Some(InstanceStatus::Stopped),
        InstanceStatus::Stopped if gone => Some(InstanceStatus::Collected),
        InstanceStatus::Stopped => None,
        _ if ends => Some(InstanceStatus::Draining),
        InstanceStatus::Allocated => Some(InstanceStatus::Preparing),
        InstanceStatus::Preparing | InstanceStatus::Failed => Some(InstanceStatus::Booting),
        InstanceStatus::Booting | InstanceStatus::Unhealthy => Some(InstanceStatus::Ready),
        _ => None,
    }
}

pub(crate) const DEV: [&str; 3] = ["local", "shop", "dev"];

pub(crate) fn report(
    instance: fluffy_base::id::InstanceId,
    status: InstanceStatus,
    reported_at: Timestamp,
) -> Report {
    Report {
        instance,
        status,
        boot: None,
        reason_code: None,
        reason_detail: None,
        exit_code: None,
        boot_ms: None,
        flap_count: None,
        reported_at,
    }
}

/// What edges say that go by this routing and have no problem.
pub(crate) fn routed(applied: Option<u64>) -> Notice {
    Notice::Routes {
        applied,
        problems: BTreeMap::new(),
        loopback: false,
    }
}

pub(crate) fn image() -> ResolvedImage {
    let digest = format!("sha256:{}", Digest::of(b"image"));
    ResolvedImage {
        image_ref: "registry.example.com/shop:1".to_owned(),
        index_or_manifest_digest: digest.clone(),
        resolved_digests: vec![ResolvedDigest {
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            digest,
        }],
        compressed_bytes: 1 << 20,
    }
}

pub(crate) fn enrolment(node: NodeId, token: EnrollmentTokenId) -> Enrolment {
    Enrolment {
        machine: None,
        former: None,
        node,
        request_key: format!("certificate of {node}"),
        token,
        wireguard_public_key: format!("key of {node}"),
        endpoint: "[2001:db8::1]:51820".to_owned(),
        cert_fingerprint: "00".to_owned(),
        arch: "amd64".to_owned(),
        drivers: vec![NodeDriver {
            driver: "microvm-firecracker".to_owned(),
            max_vcpus: 32,
            max_memory_bytes: 64 << 30,
        }],
        labels: BTreeMap::new(),
        agent_version: "0.1.0".to_owned(),
    }
}

pub(crate) fn local() -> Caller {
    Caller {
        kind: CallerKind::Local,
        actor: Actor::new(ActorKind::User, "local"),
    }
}

pub(crate) fn system() -> Caller {
    Caller {
        kind: CallerKind::System(None),
        actor: Actor::system("scheduler"),
    }
}
