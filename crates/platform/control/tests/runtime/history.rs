//! A history of a platform that nobody planned: commands, crashes, silence.
//!
//! Everything goes through the real doors; equal seeds give equal histories.
//! Used by the simulation here and by whoever needs many real events.

#[path = "people.rs"]
mod people;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fluffy_api::Operation;
use fluffy_base::id::{InstanceId, NodeId, RouteId};
use fluffy_control::runtime::Notice;
use fluffy_control::runtime::notice::{JobReport, Vital, VolumeReport};
use fluffy_control::{Material, Outcome, Request};
use fluffy_planner::lifecycle::{InstanceStatus, VolumeState};
use fluffy_test_kit::Random;
use serde_json::{Value, json};

use crate::world::{DATA, World, image, next, report};

const GIB: u64 = 1 << 30;
const ENVS: [&str; 3] = ["dev", "live", "test"];

/// A platform that things happen to.
pub(crate) struct History {
    pub(crate) world: World,
    /// What it can be told again by.
    pub(crate) seed: u64,
    random: Random,
    /// Nodes that are not heard, each since when.
    silent: BTreeMap<NodeId, u64>,
    nodes: u128,
    names: u64,
    second: u64,
    /// How each command ended, by its operation and code.
    pub(crate) outcomes: BTreeMap<(&'static str, String), u64>,
}

impl History {
    pub(crate) fn new(seed: u64, prefix: &str) -> Self {
        let mut history = Self {
            world: World::new(prefix, seed as u8),
            seed,
            random: Random::new(seed),
            silent: BTreeMap::new(),
            nodes: 0,
            names: 0,
            second: 0,
            outcomes: BTreeMap::new(),
        };
        // An org with limits, which the local one does not have.
        history.ask(Operation::CreateOrg, &[], json!({"slug": "acme"}));
        history
            .world
            .say(Notice::Ipv4Pool(vec!["203.0.113.0/26".to_owned()]));
        for _ in 0..3 {
            history.join();
        }
        for org in ["local", "acme"] {
            history.ask(Operation::CreateApp, &[org], json!({"name": "shop"}));
            for env in ENVS {
                history.ask(Operation::CreateEnv, &[org, "shop"], json!({"name": env}));
            }
        }
        history
    }

    fn join(&mut self) {
        self.nodes += 1;
        let memory = 2 * GIB + self.random.below(4) * GIB;
        self.world.node(self.nodes, memory);
    }

    /// One thing happens.
    pub(crate) fn step(&mut self) {
        match self.random.below(10) {
            0..=1 => self.command(),
            2 => self.watch(),
            3..=4 => self.plan(),
            _ => self.work(),
        }
        let seconds = self.random.below(4);
        self.second += seconds;
        self.world.pass(seconds);
    }

    /// One thing happens to routes and addresses, of which little else is made.
    pub(crate) fn step_outside(&mut self) {
        let org = self.random.pick(&["local", "acme"]).unwrap();
        let env = self.random.pick(&ENVS).unwrap();
        let at = [org, "shop", env];
        match self.random.below(8) {
            0 => self.deploy(at),
            1 => self.edges(),
            _ => self.network(at),
        }
        let seconds = self.random.below(4);
        self.second += seconds;
        self.world.pass(seconds);
    }

    /// A pass of the planner; now and then its leader dies in the middle, or
    /// somebody who thought that it led comes too late.
    fn plan(&mut self) {
        let input = self.world.state.runtime.planner_input(None);
        let steps = fluffy_planner::plan(&input, self.world.now);
        let dies = self.random.one_in(8);
        let mut late = Vec::new();
        for step in steps {
            if dies && self.random.one_in(2) {
                late.push(step);
                continue;
            }
            let outcome = self.world.say(Notice::Step(step.clone()));
            if matches!(outcome, Outcome::Done { .. }) && self.random.one_in(5) {
                let before = self.world.state.runtime.plan.instances.len();
                let again = self.world.say(Notice::Step(step.clone()));
                let after = self.world.state.runtime.plan.instances.len();
                assert_eq!(before, after, "a step was done twice: {step:?} {again:?}");
            }
        }
        if !late.is_empty() {
            let input = self.world.state.runtime.planner_input(None);
            for step in fluffy_planner::plan(&input, self.world.now) {
                self.world.say(Notice::Step(step));
            }
            for step in late {
                self.world.say(Notice::Step(step));
            }
        }
    }

    /// Nodes do what is wanted of them, more or less.
    fn work(&mut self) {
        let plan = &self.world.state.runtime.plan;
        let mut moves: Vec<(NodeId, InstanceId, InstanceStatus)> = Vec::new();
        for (id, it) in &plan.instances {
            if self.silent.contains_key(&it.node) || self.random.one_in(3) {
                continue;
            }
            let live = !it.has_ended() && it.observed.status != InstanceStatus::Allocated;
            let status = if live && it.is_wanted() && self.random.one_in(40) {
                InstanceStatus::Failed
            } else if it.observed.status == InstanceStatus::Lost && it.is_wanted() {
                InstanceStatus::Ready
            } else {
                match next(it) {
                    Some(status) => status,
                    None if self.random.one_in(60) => InstanceStatus::Unhealthy,
                    None => continue,
                }
            };
            moves.push((it.node, *id, status));
        }
        let now = self.world.now;
        for (node, id, status) in moves {
            let mut said = report(id, status, now);
            if status == InstanceStatus::Failed {
                let reasons = [
                    "workload_exited",
                    "boot_timeout",
                    "image_pull_failed",
                    "oom_killed",
                ];
                said.reason_code = self.random.pick(&reasons).map(str::to_owned);
            }
            let mut reports = vec![said.clone()];
            if self.random.one_in(10) {
                reports.push(said);
            }
            self.world.say(Notice::Reports { node, reports });
        }
        self.jobs();
    }

    /// Volumes, snapshots and restores get done.
    fn jobs(&mut self) {
        let runtime = &self.world.state.runtime;
        let mut said = Vec::new();
        for (volume, it) in &runtime.plan.volumes {
            let report = match it.state {
                VolumeState::Creating if runtime.volumes[volume].snapshot.is_none() => {
                    VolumeReport::Provisioned
                }
                VolumeState::Deleting => VolumeReport::Removed,
                _ => continue,
            };
            said.push(Notice::Volume {
                node: it.home,
                volume: *volume,
                report,
            });
        }
        let done = JobReport::Succeeded {
            size_bytes: Some(1),
            consistency: None,
        };
        for (snapshot, it) in runtime
            .snapshots
            .iter()
            .filter(|(_, it)| !it.state.is_final())
        {
            said.push(Notice::Snapshot {
                node: it.node,
                snapshot: *snapshot,
                report: done.clone(),
            });
        }
        for (restore, it) in runtime
            .restores
            .iter()
            .filter(|(_, it)| !it.state.is_final())
        {
            said.push(Notice::Restore {
                node: it.node,
                restore: *restore,
                report: done.clone(),
            });
        }
        for notice in said {
            self.world.say(notice);
        }
    }

    /// Nodes fall silent and come back; time does its part.
    fn watch(&mut self) {
        let nodes: Vec<NodeId> = self
            .world
            .state
            .runtime
            .plan
            .nodes
            .keys()
            .copied()
            .collect();
        if let Some(node) = self.random.pick(&nodes)
            && self.random.one_in(6)
        {
            match self.silent.remove(&node) {
                Some(_) => {}
                None => {
                    self.silent.insert(node, self.second);
                }
            }
        }
        let vitals = nodes.iter().map(|node| {
            let since = self.silent.get(node).map_or(0, |since| self.second - since);
            let vital = Vital {
                silent: Duration::from_secs(since),
                disk_percent: 10,
                unreachable: false,
                acknowledged: true,
                clock_off: std::time::Duration::ZERO,
                unfit: None,
            };
            (*node, vital)
        });
        let vitals = vitals.collect();
        self.world.say(Notice::Liveness(vitals));
        // Far less often than a pass, as a server does it.
        if self.second.is_multiple_of(10) {
            self.world.say(Notice::Upkeep);
        }
        self.edges();
    }

    /// Edges go by the newest routing, but for what they have trouble with.
    fn edges(&mut self) {
        let routes = self.world.state.runtime.routes.keys();
        let routes: Vec<RouteId> = routes.copied().collect();
        let hard = self.random.pick(&routes).filter(|_| self.random.one_in(3));
        let problems = hard.map(|route| (route, "bind_failed".to_owned()));
        self.world.say(Notice::Routes {
            applied: Some(self.world.state.seq),
            problems: problems.into_iter().collect(),
            loopback: false,
        });
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn ask(&mut self, operation: Operation, path: &[&str], body: Value) -> Option<Value> {
        let request = self.world.request(operation, path, body);
        self.ask_with(&request)
    }

    fn ask_with(&mut self, request: &Request) -> Option<Value> {
        let outcome = self.world.ask(request);
        let id = request.operation.spec().id;
        let (code, answer) = match outcome {
            Outcome::Done { subject, .. } => {
                let answer = fluffy_control::answer(&self.world.state, &subject);
                ("done".to_owned(), Some(answer))
            }
            Outcome::Refused(refusal) => {
                let known = fluffy_api::problem::Code::find(refusal.code);
                assert!(known.is_some(), "{id}: {}", refusal.code);
                (refusal.code.to_owned(), None)
            }
            Outcome::Parked { .. } => ("parked".to_owned(), None),
            other => panic!("{id}: {other:?}"),
        };
        *self.outcomes.entry((id, code)).or_default() += 1;
        answer
    }

    /// Somebody asks for something.
    fn command(&mut self) {
        let org = self.random.pick(&["local", "acme", "acme"]).unwrap();
        let env = self.random.pick(&ENVS).unwrap();
        let at = [org, "shop", env];
        match self.random.below(31) {
            0..=3 => self.deploy(at),
            4..=5 => {
                let count = self.random.below(6);
                let process = self.random.pick(&["web", "web", "db"]).unwrap();
                let body = json!({"processes": {process: count}});
                self.ask(Operation::SetScale, &at, body);
            }
            6 => {
                self.ask(Operation::CreateRollback, &at, json!({}));
            }
            7 => self.touch_deploy(at),
            8..=9 => self.restart(at),
            10 => self.network(at),
            11 => self.secrets(at),
            12..=13 => self.volume(at),
            14 => self.exec(at),
            15..=17 => self.node(),
            18 => self.limit(),
            19 => {
                let name = self.name();
                self.ask(Operation::CreateApp, &[org], json!({"name": name}));
                if self.random.one_in(2) {
                    self.ask(Operation::DeleteApp, &[org, &name], json!({}));
                }
            }
            24..=27 => self.people(org),
            28..=30 => self.network(at),
            20 if self.random.one_in(12) => {
                self.ask(Operation::DeleteEnv, &at, json!({}));
            }
            21 if self.random.one_in(20) => {
                // Long after, names and addresses can be taken again.
                self.world.pass(31 * 24 * 3600);
                self.ask(Operation::CreateEnv, &at[..2], json!({"name": env}));
            }
            _ => {
                let body = json!({"allow_shared_kernel": self.random.one_in(2)});
                self.ask(Operation::UpdateEnv, &at, body);
            }
        }
    }

    fn deploy(&mut self, at: [&str; 3]) {
        let words = self.random.below(3);
        let mut manifest = DATA
            .replace("2GiB", if words == 0 { "3GiB" } else { "2GiB" })
            .replace(
                "[[volumes]]",
                &format!(
                    "[processes.web]\ncommand = [\"v{}\"]\nreplicas = {}\n\
                     ports = [{{ internal = 8080 }}]\n\
                     resources = {{ memory = \"{}MiB\", cpu = 0.5, disk = \"1GiB\" }}\n\
                     {}[[volumes]]",
                    self.random.below(5),
                    1 + self.random.below(3),
                    64 + self.random.below(4) * 64,
                    if self.random.one_in(4) {
                        "secrets = { required = true }\n"
                    } else {
                        ""
                    },
                ),
            );
        if self.random.one_in(4) {
            manifest = manifest.replace(
                "min_ready_seconds = 0",
                "min_ready_seconds = 5\ntimeout_seconds = 60",
            );
        }
        let body = json!({"manifest": manifest, "image": "x"});
        let mut request = self.world.request(Operation::CreateRelease, &at[..2], body);
        request.material = Material::Image(image());
        let Some(release) = self.ask_with(&request) else {
            return;
        };
        let mut body = json!({"release_id": release["id"]});
        if self.random.one_in(3) {
            body["process_types"] = json!(["web"]);
        }
        if self.random.one_in(3) {
            body["options"] = json!({"max_surge": 0, "max_unavailable": 1});
        }
        self.ask(Operation::CreateDeploy, &at, body);
        if self.random.one_in(10) {
            let path = [at[0], at[1], release["id"].as_str().unwrap()];
            self.ask(Operation::BlockRelease, &path, json!({"reason": "no"}));
        }
    }

    fn touch_deploy(&mut self, at: [&str; 3]) {
        let deploys = self.world.state.runtime.plan.deploys.keys().copied();
        let deploys: Vec<String> = deploys.map(|id| id.to_string()).collect();
        let operations = [
            Operation::CancelDeploy,
            Operation::PauseDeploy,
            Operation::ResumeDeploy,
        ];
        if let (Some(id), Some(operation)) =
            (self.random.pick(&deploys), self.random.pick(&operations))
        {
            self.ask(operation, &[at[0], at[1], at[2], &id], json!({}));
        }
    }

    fn instance(&mut self) -> Option<String> {
        let instances = self.world.state.runtime.plan.instances.keys();
        let instances: Vec<String> = instances.map(ToString::to_string).collect();
        self.random.pick(&instances)
    }

    fn restart(&mut self, at: [&str; 3]) {
        if let Some(id) = self.instance() {
            self.ask(
                Operation::RestartInstance,
                &[at[0], at[1], at[2], &id],
                json!({}),
            );
        }
    }

    fn network(&mut self, at: [&str; 3]) {
        let port = self.random.pick(&[443, 9000, 9001, 9002]).unwrap();
        let host = format!("h{}.example.com", self.random.below(4));
        match self.random.below(10) {
            0 => {
                self.ask(Operation::EnableIpv4, &at, json!({}));
            }
            1 => {
                let mut request = self.world.request(Operation::DisableIpv4, &at, json!({}));
                if self.random.one_in(2) {
                    let force = ("force".to_owned(), "true".to_owned());
                    request.query.extend([force]);
                }
                self.ask_with(&request);
            }
            2 => {
                if let Some(id) = self.route_of(at) {
                    let path = [at[0], at[1], at[2], &id];
                    self.ask(Operation::DeleteRoute, &path, json!({}));
                }
            }
            3..=4 => {
                if let Some(id) = self.route_of(at) {
                    let path = [at[0], at[1], at[2], &id];
                    let body = json!({"ipv4_required": self.random.one_in(2)});
                    self.ask(Operation::UpdateRoute, &path, body);
                }
            }
            5..=6 => {
                let body = json!({"listen_port": port, "protocol_hint": "tcp_raw",
                    "backend_process": "web", "backend_port": 8080,
                    "ipv4_required": self.random.one_in(2)});
                self.ask(Operation::CreateRoute, &at, body);
            }
            7 => self.prove(at),
            _ => {
                let body = json!({"hostname": host, "listen_port": port,
                    "protocol_hint": "tls_passthrough", "backend_process": "web",
                    "backend_port": 8080, "ipv4_required": self.random.one_in(4)});
                self.ask(Operation::CreateRoute, &at, body);
                if self.random.one_in(2) {
                    self.prove(at);
                }
            }
        }
    }

    /// One of an env's routes.
    fn route_of(&mut self, at: [&str; 3]) -> Option<String> {
        let state = &self.world.state;
        let names = &state.access.names;
        let env = names.env(names.app(names.org(at[0])?, at[1])?, at[2])?;
        let own = state.runtime.routes.iter().filter(|(_, it)| it.env == env);
        let own: Vec<String> = own.map(|(id, _)| id.to_string()).collect();
        self.random.pick(&own)
    }

    /// The DNS says that some name is some route's: whoever asks hears it, or
    /// it is found by itself.
    fn prove(&mut self, at: [&str; 3]) {
        let method = "dns_txt".to_owned();
        if self.random.one_in(2) {
            let routes = self.world.state.runtime.routes.keys();
            let routes: Vec<RouteId> = routes.copied().collect();
            if let Some(route) = self.random.pick(&routes) {
                self.world.say(Notice::RouteProven { route, method });
            }
        } else if let Some(id) = self.route_of(at) {
            let path = [at[0], at[1], at[2], &id];
            let mut verify = self.world.request(Operation::VerifyRoute, &path, json!({}));
            verify.material = Material::Proof(method);
            self.ask_with(&verify);
        }
    }

    fn secrets(&mut self, at: [&str; 3]) {
        if self.random.one_in(5) {
            self.ask(Operation::DeleteSecrets, &at, json!({}));
            return;
        }
        let bytes = [self.random.below(3) as u8];
        let body = json!({"values": {}});
        let mut request = self.world.request(Operation::ReplaceSecrets, &at, body);
        request.material = self.world.sealed(&bytes);
        self.ask_with(&request);
    }

    fn volume(&mut self, at: [&str; 3]) {
        let volumes = self.world.state.runtime.volumes.keys();
        let volumes: Vec<String> = volumes.map(ToString::to_string).collect();
        let snapshots = self.world.state.runtime.snapshots.keys();
        let snapshots: Vec<String> = snapshots.map(ToString::to_string).collect();
        let attachments = self.world.state.runtime.attachments.keys();
        let attachments: Vec<String> = attachments.map(ToString::to_string).collect();
        let name = self.name();
        let (org, volume) = (at[0], self.random.pick(&volumes));
        match (self.random.below(6), volume) {
            (0, _) => {
                let body = json!({"name": name, "size_bytes": GIB});
                self.ask(Operation::CreateVolume, &[org], body);
            }
            (1, Some(volume)) => {
                self.ask(Operation::DeleteVolume, &[org, &volume], json!({}));
            }
            (2, Some(volume)) => {
                self.ask(Operation::CreateSnapshot, &[org, &volume], json!({}));
            }
            (3, Some(volume)) => {
                let process = self.random.pick(&["web", "db"]).unwrap();
                let body = json!({"volume_id": volume, "process": process,
                    "mount_path": format!("/{name}")});
                self.ask(Operation::CreateAttachment, &at, body);
            }
            (4, _) => {
                if let Some(snapshot) = self.random.pick(&snapshots) {
                    let body = json!({"name": name});
                    self.ask(Operation::RestoreSnapshot, &[org, &snapshot], body);
                }
            }
            _ => {
                if let Some(id) = self.random.pick(&attachments) {
                    let path = [at[0], at[1], at[2], id.as_str()];
                    self.ask(Operation::DeleteAttachment, &path, json!({}));
                }
            }
        }
    }

    fn exec(&mut self, at: [&str; 3]) {
        let Some(id) = self.instance() else { return };
        let path = [at[0], at[1], at[2], id.as_str()];
        let body = json!({"command": ["true"]});
        let Some(session) = self.ask(Operation::CreateExec, &path, body) else {
            return;
        };
        let session: fluffy_base::id::ExecSessionId =
            session["id"].as_str().unwrap().parse().unwrap();
        if self.random.one_in(2) {
            self.world.say(Notice::ExecConnected {
                session,
                pii_ref: None,
            });
            self.world.say(Notice::ExecEnded {
                session,
                end_reason: "exited".to_owned(),
                exit_code: Some(0),
                bytes_in: 1,
                bytes_out: 2,
            });
        }
    }

    fn node(&mut self) {
        let nodes = self.world.state.runtime.plan.nodes.iter();
        let live: BTreeSet<NodeId> = nodes
            .filter(|(id, _)| !self.world.state.runtime.plan.is_fenced(**id))
            .map(|(id, _)| *id)
            .collect();
        if live.len() < 3 {
            self.join();
            return;
        }
        let live: Vec<NodeId> = live.into_iter().collect();
        let id = self.random.pick(&live).unwrap().to_string();
        let (operation, body) = match self.random.below(12) {
            0..=2 => (
                Operation::DrainNode,
                json!({"leave_stateful": self.random.one_in(2)}),
            ),
            3..=8 => (Operation::UncordonNode, json!({})),
            9 => (Operation::DisableNode, json!({})),
            10 => (Operation::RemoveNode, json!({})),
            _ => (Operation::RevokeNode, json!({})),
        };
        self.ask(operation, &[&id], body);
    }

    fn limit(&mut self) {
        let dimensions = [
            "instances",
            "memory",
            "cpu",
            "volumes",
            "routes",
            "public_ports",
        ];
        let dimension = self.random.pick(&dimensions).unwrap();
        let limit = match dimension {
            "memory" => GIB + self.random.below(8) * GIB,
            "cpu" => 1000 + self.random.below(20) * 500,
            _ => 1 + self.random.below(12),
        };
        let org = self.world.state.access.names.org("acme").unwrap();
        let version = self
            .world
            .state
            .meta("org", &org.to_string())
            .unwrap()
            .version;
        let body = json!({"limits": {dimension: limit}, "expected_version": version});
        self.ask(Operation::SetQuotas, &["acme"], body);
    }
}

/// A history of at least so many events, in order; equal seeds give equal ones.
pub(crate) fn history(seed: u64, events: usize) -> History {
    let mut history = History::new(seed, "fd00::/48");
    while history.world.events.len() < events {
        history.step();
    }
    history
}
