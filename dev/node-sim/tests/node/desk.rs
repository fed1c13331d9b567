//! A desk for tests: keeps everything in memory and remembers what it heard.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use fluffy_api::node::{EnrolmentToken, PENDING, v1};
use fluffy_base::Digest;
use fluffy_base::id::{EnrollmentTokenId, EnvId, NodeId, OrgId};
use fluffy_contract::BoxFuture;
use fluffy_server::logs::{Printer, Source};
use fluffy_server::node::{
    Approval, Desk, DeskError, Enrolment, Machine, Opened, Orders, Place, RefusedEnrolment, Role,
    Standing, Token,
};
use tokio::sync::watch;
use zeroize::Zeroizing;

/// The control side as tests see it.
#[derive(Debug)]
pub(crate) struct TestDesk {
    inner: Mutex<Inner>,
    table: watch::Sender<Arc<v1::RoutingTable>>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    tokens: HashMap<Digest, (Token, bool)>,
    pub(crate) nodes: BTreeMap<NodeId, Known>,
    pub(crate) refused: Vec<RefusedEnrolment>,
    /// The keys of machines that asked to be approved.
    pub(crate) asked: Vec<Digest>,
    /// What the next of them are told instead.
    pub(crate) hiccups: Vec<&'static str>,
    overlay_keys: HashSet<[u8; 32]>,
    pub(crate) secrets: HashMap<String, Vec<u8>>,
    pub(crate) fetched: Vec<(NodeId, String)>,
    pub(crate) edge_acks: Vec<(NodeId, v1::EdgeAck)>,
    /// Whether reports find nobody.
    pub(crate) unavailable: bool,
}

/// What is known of one node.
#[derive(Debug)]
pub(crate) struct Known {
    fingerprints: Vec<Digest>,
    pub(crate) revoked: bool,
    pub(crate) confirmed: u32,
    pub(crate) hellos: Vec<v1::Hello>,
    pub(crate) heartbeats: u64,
    pub(crate) acks: Vec<v1::PlanAck>,
    pub(crate) reports: Vec<v1::Report>,
    boots: HashMap<String, u64>,
    pub(crate) capacity: Option<v1::Capacity>,
    pub(crate) runs: HashSet<String>,
    pub(crate) orders: watch::Sender<Arc<Orders>>,
}

impl Default for TestDesk {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            table: watch::Sender::new(Arc::default()),
        }
    }
}

impl TestDesk {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(crate) fn new_token(&self, seed: u8, role: Role, place: Place) -> EnrolmentToken {
        let token = EnrolmentToken::of(&[seed; 32]);
        let id = EnrollmentTokenId::from_bits(seed.into());
        let known = Token {
            id,
            role,
            place,
            approval: Approval::Settled,
        };
        self.lock().tokens.insert(token.hash(), (known, false));
        token
    }

    /// Has a token take an approval, or have it.
    pub(crate) fn approve(&self, token: &EnrolmentToken, approval: Approval) {
        let mut inner = self.lock();
        inner.tokens.get_mut(&token.hash()).unwrap().0.approval = approval;
    }

    /// Whether a token is used up.
    pub(crate) fn is_used(&self, token: &EnrolmentToken) -> bool {
        self.lock().tokens[&token.hash()].1
    }

    pub(crate) fn add(&self, node: NodeId, fingerprint: Digest) {
        let known = Known {
            fingerprints: vec![fingerprint],
            revoked: false,
            confirmed: 0,
            hellos: Vec::new(),
            heartbeats: 0,
            acks: Vec::new(),
            reports: Vec::new(),
            boots: HashMap::new(),
            capacity: None,
            runs: HashSet::new(),
            orders: watch::Sender::new(Arc::default()),
        };
        self.lock().nodes.insert(node, known);
    }

    pub(crate) fn revoke(&self, node: NodeId) {
        self.lock().nodes.get_mut(&node).unwrap().revoked = true;
    }

    /// Gives a node a plan with these instances, all running.
    pub(crate) fn plan(&self, node: NodeId, (epoch, seq): (u64, u64), instances: &[&str]) {
        let plan = v1::NodePlan {
            spec_version: "v1".to_owned(),
            node_id: node.to_string(),
            plan_id: format!("plan {epoch} {seq}"),
            epoch,
            cursor_seq: seq,
            instances: instances.iter().map(|id| assignment(id)).collect(),
            ..Default::default()
        };
        self.order(node, plan);
    }

    pub(crate) fn order(&self, node: NodeId, plan: v1::NodePlan) {
        let mut inner = self.lock();
        let known = inner.nodes.get_mut(&node).unwrap();
        let ids = plan.instances.iter().map(|of| of.instance_id.clone());
        known.runs.extend(ids);
        known.orders.send_modify(|orders| {
            *orders = Arc::new(Orders {
                plan: Some(plan),
                jobs: orders.jobs.clone(),
            });
        });
    }

    pub(crate) fn route(&self, table: v1::RoutingTable) {
        self.table.send_replace(Arc::new(table));
    }

    fn with<T>(&self, node: NodeId, use_it: impl FnOnce(&mut Known) -> T) -> T {
        use_it(self.lock().nodes.get_mut(&node).expect("a known node"))
    }

    /// The statuses of one instance, in the order of their reports.
    pub(crate) fn walked(&self, node: NodeId, instance: &str) -> Vec<String> {
        let of = |report: &v1::Report| match &report.of {
            Some(v1::report::Of::Instance(of)) if of.instance_id == instance => {
                let name = of.status().as_str_name();
                let name = name.trim_start_matches("INSTANCE_STATUS_").to_lowercase();
                Some(format!("{name} {}", of.reason_code).trim().to_owned())
            }
            _ => None,
        };
        self.with(node, |known| known.reports.iter().filter_map(of).collect())
    }
}

pub(crate) fn assignment(id: &str) -> v1::Assignment {
    v1::Assignment {
        assignment_id: format!("asg of {id}"),
        instance_id: id.to_owned(),
        generation: 1,
        desired_state: v1::DesiredState::Running.into(),
        drain_grace_seconds: 30,
        workload: Some(v1::WorkloadSpec {
            identity: Some(v1::Identity {
                process: "web".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(async move { value })
}

fn no(code: &'static str) -> DeskError {
    let why = code.to_owned();
    DeskError::Refused { code, why }
}

impl Desk for TestDesk {
    fn standing(&self, node: NodeId, fingerprint: &Digest) -> Standing {
        match self.lock().nodes.get(&node) {
            Some(known) if !known.revoked && known.fingerprints.contains(fingerprint) => {
                Standing::Member
            }
            _ => Standing::Stranger,
        }
    }

    fn token(&self, hash: Digest) -> BoxFuture<'_, Result<Option<Token>, DeskError>> {
        let found = match self.lock().tokens.get(&hash) {
            Some((token, false)) => Some(token.clone()),
            _ => None,
        };
        ready(Ok(found))
    }

    fn ask(&self, machine: Machine) -> BoxFuture<'_, Result<(), DeskError>> {
        let mut inner = self.lock();
        inner.asked.push(machine.key);
        if let Some(code) = inner.hiccups.pop() {
            return ready(Err(no(code)));
        }
        let mut tokens = inner.tokens.values_mut();
        let token = tokens.find(|(token, used)| token.id == machine.token && !used);
        let said = match token {
            None => Err(no("enroll_denied")),
            Some((token, _)) if token.approval == Approval::Settled => Ok(()),
            Some((token, _)) => {
                token.approval = Approval::Awaited;
                Err(no(PENDING))
            }
        };
        ready(said)
    }

    fn enrol(&self, enrolment: Enrolment) -> BoxFuture<'_, Result<v1::Overlay, DeskError>> {
        let mut inner = self.lock();
        let mut tokens = inner.tokens.values_mut();
        let token = tokens.find(|(token, _)| token.id == enrolment.machine.token);
        let token = token.filter(|(_, used)| !used);
        let Some((_, used)) = token else {
            return ready(Err(no("enroll_denied")));
        };
        *used = true;
        if !inner.overlay_keys.insert(enrolment.machine.overlay_key) {
            return ready(Err(no("enroll_duplicate")));
        }
        drop(inner);
        self.add(enrolment.node, enrolment.fingerprint);
        ready(Ok(v1::Overlay {
            address: "fd00::1".to_owned(),
            instance_prefix: "fd00:0:0:100::/64".to_owned(),
            mtu: 1420,
        }))
    }

    fn refused(&self, refused: RefusedEnrolment) -> BoxFuture<'_, ()> {
        let mut inner = self.lock();
        if ["enroll_proof_failed", "enroll_policy"].contains(&refused.code) {
            for (token, used) in inner.tokens.values_mut() {
                *used |= Some(token.id) == refused.token;
            }
        }
        inner.refused.push(refused);
        ready(())
    }

    fn confirm(&self, node: NodeId) -> BoxFuture<'_, Result<String, DeskError>> {
        self.with(node, |known| known.confirmed += 1);
        ready(Ok("active".to_owned()))
    }

    fn open(&self, node: NodeId, hello: v1::Hello) -> BoxFuture<'_, Result<Opened, DeskError>> {
        let opened = self.with(node, |known| {
            let boot = hello.boot_id.clone();
            known.hellos.push(hello);
            Opened {
                reports_through: *known.boots.entry(boot).or_default(),
                orders: known.orders.subscribe(),
            }
        });
        ready(Ok(opened))
    }

    fn heartbeat(&self, node: NodeId, _heartbeat: v1::Heartbeat) {
        self.with(node, |known| known.heartbeats += 1);
    }

    fn capacity(
        &self,
        node: NodeId,
        capacity: v1::Capacity,
    ) -> BoxFuture<'_, Result<(), DeskError>> {
        self.with(node, |known| known.capacity = Some(capacity));
        ready(Ok(()))
    }

    fn report(
        &self,
        node: NodeId,
        batch: v1::StatusBatch,
    ) -> BoxFuture<'_, Result<u64, DeskError>> {
        if self.lock().unavailable {
            return ready(Err(DeskError::Unavailable));
        }
        let through = self.with(node, |known| {
            let through = known.boots.entry(batch.boot_id).or_default();
            for report in batch.reports {
                assert_eq!(report.number, *through + 1, "in order, each once");
                *through = report.number;
                known.reports.push(report);
            }
            *through
        });
        ready(Ok(through))
    }

    fn plan_ack(&self, node: NodeId, ack: v1::PlanAck) {
        self.with(node, |known| known.acks.push(ack));
    }

    fn rotate(&self, node: NodeId, fingerprint: Digest) -> BoxFuture<'_, Result<(), DeskError>> {
        self.with(node, |known| known.fingerprints.push(fingerprint));
        ready(Ok(()))
    }

    fn secret(
        &self,
        node: NodeId,
        request: v1::SecretMaterialRequest,
    ) -> BoxFuture<'_, Result<Zeroizing<Vec<u8>>, DeskError>> {
        let mut inner = self.lock();
        let id = request.secret_version_id;
        inner.fetched.push((node, id.clone()));
        let bound = inner.nodes[&node].runs.contains(&request.instance_id);
        let file = inner.secrets.get(&id).filter(|_| bound).cloned();
        ready(file.map(Zeroizing::new).ok_or(no("secrets_missing")))
    }

    fn image_of(&self, node: NodeId, request: &v1::RegistryAccessRequest) -> Option<String> {
        let has = self.with(node, |known| known.runs.contains(&request.instance_id));
        has.then(|| "registry.test/app:v1".to_owned())
    }

    fn registry(
        &self,
        node: NodeId,
        request: v1::RegistryAccessRequest,
        registry: String,
    ) -> BoxFuture<'_, Result<(), DeskError>> {
        let has = self.with(node, |known| known.runs.contains(&request.instance_id));
        self.lock().fetched.push((node, registry));
        ready(has.then_some(()).ok_or(no("forbidden")))
    }

    fn printer(&self, node: NodeId, instance: &str) -> Option<Printer> {
        let runs = self.with(node, |known| known.runs.contains(instance));
        runs.then(|| Printer {
            source: Arc::new(Source {
                org: OrgId::from_bits(1),
                env: EnvId::from_bits(1),
                process: "web".to_owned(),
            }),
            daily: u64::MAX,
        })
    }

    fn table(&self) -> watch::Receiver<Arc<v1::RoutingTable>> {
        self.table.subscribe()
    }

    fn edge_ack(&self, edge: NodeId, ack: v1::EdgeAck) {
        self.lock().edge_acks.push((edge, ack));
    }

    fn edge_beat(&self, _edge: NodeId, _config: Option<v1::Position>) {}
}
