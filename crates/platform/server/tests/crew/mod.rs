//! Who uses a platform in tests: its owner, and nodes that do as they are told.
//!
//! Everything goes through the same jobs as in the product; only the wire to
//! nodes is missing. A node here walks its instances to ready at once.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::{BootId, InstanceId, NodeId, RequestId, VolumeId, VolumeSnapshotId};
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::{NodeDriver, ResolvedDigest};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::{Enrolment, JobReport, Report, VolumeReport};
use fluffy_control::{Caller, CallerKind, Material, Notice, Outcome, Request, State, Subject};
use fluffy_ledger::{Actor, ActorKind};
use fluffy_planner::lifecycle::InstanceStatus;
use fluffy_planner::model::Desired;
use fluffy_server::machine::{Ask, Job, Reply};
use fluffy_server::platform::Platform;
use fluffy_server::sequencer::SubmitError;
use fluffy_server::vitals::{Beat, Vitals};
use serde_json::{Value, json};

/// Somebody who owns the platform, and its nodes.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) platform: Platform,
}

/// A request as people write it.
pub(crate) fn request(operation: Operation, path: &[&str], body: Value) -> Request {
    Request {
        operation,
        path: path.iter().map(|part| (*part).to_owned()).collect(),
        query: BTreeMap::new(),
        body: Some(body),
        material: Material::None,
    }
}

/// An image of which nothing but its name matters.
pub(crate) fn image(name: &str) -> Material {
    let digest = format!("sha256:{}", Digest::of(name.as_bytes()));
    Material::Image(ResolvedImage {
        image_ref: format!("registry.example/{name}:1"),
        index_or_manifest_digest: digest.clone(),
        resolved_digests: vec![ResolvedDigest {
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            digest,
        }],
        compressed_bytes: 1 << 20,
    })
}

impl Crew {
    /// Does a request as the owner, and again while the platform is busy.
    pub(crate) async fn write(&self, request: Request) -> Subject {
        match self.try_write(request).await {
            Outcome::Done { subject, .. } => subject,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn try_write(&self, request: Request) -> Outcome {
        let key = RequestId::generate().to_string();
        let job = Job {
            caller: Caller {
                kind: CallerKind::Local,
                actor: Actor::new(ActorKind::User, "local"),
            },
            request_id: RequestId::generate().to_string(),
            now: self.platform.clock().now(),
            idempotency: Some((key, Digest::of(format!("{request:?}").as_bytes()))),
            if_match: None,
            mint: Arc::clone(self.platform.mint()),
            ask: Ask::Write(request),
        };
        loop {
            match self.platform.sequencer().submit(job.clone()).await {
                Ok(answer) => match answer.reply {
                    Reply::Wrote(outcome) => return outcome,
                    other => panic!("{other:?}"),
                },
                Err(SubmitError::Busy | SubmitError::Unavailable(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    pub(crate) async fn notice(&self, notice: RuntimeNotice) -> Outcome {
        let notice = Notice::Runtime(notice);
        match self
            .platform
            .notice("test", None, notice)
            .await
            .unwrap()
            .reply
        {
            Reply::Wrote(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        self.platform.sequencer().read(look)
    }

    /// Makes a machine a node, with much of everything.
    pub(crate) async fn join(&self, number: u128) -> NodeId {
        let token = request(Operation::CreateEnrollmentToken, &[], json!({}));
        let token = self.write(token).await.id;
        let node = NodeId::from_bits(number);
        let enrolment = enrolment(number, &token);
        let capacity = RuntimeNotice::Capacity {
            node,
            cpu_cores: 64,
            memory_bytes: 256 << 30,
            disk_bytes: 4 << 40,
        };
        let steps = [
            RuntimeNotice::Enroll(Box::new(enrolment)),
            RuntimeNotice::Confirm { node },
            capacity,
        ];
        for step in steps {
            let outcome = self.notice(step.clone()).await;
            assert!(
                matches!(outcome, Outcome::Done { .. }),
                "{step:?} {outcome:?}"
            );
        }
        self.beat(node).await;
        node
    }

    pub(crate) async fn beat(&self, node: NodeId) {
        let beat = Beat {
            acknowledged: true,
            ..Beat::default()
        };
        let vitals = Vitals::new(self.platform.aside().clone());
        vitals.beat(node, beat).await.unwrap();
    }

    /// Every node does the next thing for each of its instances.
    pub(crate) async fn tend(&self) {
        let now = self.platform.clock().now();
        let next: BTreeMap<NodeId, Vec<Report>> = self.state(|state| {
            let mut all: BTreeMap<NodeId, Vec<Report>> = BTreeMap::new();
            for (id, instance) in &state.runtime.plan.instances {
                let status = instance.observed.status;
                let Some(status) = next_status(&instance.desired, status) else {
                    continue;
                };
                all.entry(instance.node).or_default().push(Report {
                    instance: *id,
                    status,
                    boot: boot(*id, status),
                    reason_code: None,
                    reason_detail: None,
                    exit_code: None,
                    boot_ms: None,
                    flap_count: None,
                    reported_at: now,
                });
            }
            all
        });
        for (node, reports) in next {
            self.notice(RuntimeNotice::Reports { node, reports }).await;
        }
    }

    /// Nodes live and do as they are told, until this is dropped.
    pub(crate) async fn tend_for_ever(&self) {
        loop {
            let nodes: Vec<NodeId> =
                self.state(|state| state.runtime.plan.nodes.keys().copied().collect());
            for node in nodes {
                self.beat(node).await;
            }
            self.tend().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets all nodes live, whatever they were told.
    pub(crate) async fn beat_for_ever(&self) {
        loop {
            let nodes: Vec<NodeId> =
                self.state(|state| state.runtime.plan.nodes.keys().copied().collect());
            for node in nodes {
                self.beat(node).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Tends the nodes until it is as wished.
    pub(crate) async fn tend_until<T>(
        &self,
        what: &str,
        mut wish: impl FnMut(&State) -> Option<T>,
    ) -> T {
        let limit = Instant::now() + Duration::from_secs(120);
        let mut beaten: Option<Instant> = None;
        loop {
            if let Some(found) = self.state(&mut wish) {
                return found;
            }
            assert!(
                Instant::now() < limit,
                "{what}: it did not come about in time"
            );
            if beaten.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
                beaten = Some(Instant::now());
                let nodes: Vec<NodeId> =
                    self.state(|state| state.runtime.plan.nodes.keys().copied().collect());
                for node in nodes {
                    self.beat(node).await;
                }
            }
            self.tend().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The home of a volume has made it.
    pub(crate) async fn provide(&self, volume: &str) {
        let volume: VolumeId = volume.parse().unwrap();
        let node = self.state(|state| state.runtime.plan.volumes[&volume].home);
        let report = VolumeReport::Provisioned;
        let notice = RuntimeNotice::Volume {
            node,
            volume,
            report,
        };
        let outcome = self.notice(notice).await;
        assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
    }

    /// The home of a volume has made a snapshot of it.
    pub(crate) async fn back_up(&self, snapshot: &str) {
        let snapshot: VolumeSnapshotId = snapshot.parse().unwrap();
        let node = self.state(|state| state.runtime.snapshots[&snapshot].node);
        let done = JobReport::Succeeded {
            consistency: Some("crash".to_owned()),
            size_bytes: Some(1 << 20),
        };
        for report in [JobReport::Running, done] {
            let notice = RuntimeNotice::Snapshot {
                node,
                snapshot,
                report,
            };
            let outcome = self.notice(notice).await;
            assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
        }
    }

    /// An app with one env, `dev`, that takes any isolation.
    pub(crate) async fn app(&self, name: &str) {
        let app = request(Operation::CreateApp, &["local"], json!({"name": name}));
        self.write(app).await;
        let body = json!({"name": "dev"});
        self.write(request(Operation::CreateEnv, &["local", name], body))
            .await;
    }

    /// A release of an app with one process type, `web`.
    pub(crate) async fn release(&self, app: &str, version: &str, replicas: u32) -> String {
        let manifest = format!(
            "schema_version = \"v1\"\n\
             [deploy]\nmin_ready_seconds = 0\n\
             [processes.web]\ncommand = [\"serve\", \"{version}\"]\nreplicas = {replicas}\n\
             [processes.web.resources]\nmemory = \"64MiB\"\n"
        );
        let mut create = request(
            Operation::CreateRelease,
            &["local", app],
            json!({"image": "registry.example/app:1", "manifest": manifest}),
        );
        create.material = image(version);
        self.write(create).await.id
    }

    pub(crate) async fn deploy(&self, app: &str, release: &str) -> String {
        let body = json!({"release_id": release});
        let deploy = request(Operation::CreateDeploy, &["local", app, "dev"], body);
        self.write(deploy).await.id
    }
}

/// What a node that does as it is told says next.
fn next_status(desired: &Desired, status: InstanceStatus) -> Option<InstanceStatus> {
    use InstanceStatus::{Allocated, Booting, Collected, Draining, Preparing, Ready, Stopped};
    match (desired, status) {
        (_, Collected) => None,
        (_, Stopped) => Some(Collected),
        (Desired::Running, Allocated) => Some(Preparing),
        (Desired::Running, Preparing) => Some(Booting),
        (Desired::Running, Booting) => Some(Ready),
        (Desired::Running, _) => None,
        (_, Draining) => Some(Stopped),
        (_, _) => Some(Draining),
    }
}

fn boot(instance: InstanceId, status: InstanceStatus) -> Option<BootId> {
    let booted = matches!(status, InstanceStatus::Booting | InstanceStatus::Ready);
    let bits = u128::from_be_bytes(
        Digest::of(instance.to_string().as_bytes()).as_bytes()[..16]
            .try_into()
            .unwrap(),
    );
    booted.then(|| BootId::from_bits(bits))
}

/// The machine of this number, as it asks with a token.
pub(crate) fn enrolment(number: u128, token: &str) -> Enrolment {
    Enrolment {
        machine: None,
        former: None,
        node: NodeId::from_bits(number),
        request_key: format!("certificate{number}"),
        token: token.parse().unwrap(),
        wireguard_public_key: format!("key{number}"),
        endpoint: format!("10.0.0.{number}:7445"),
        cert_fingerprint: Digest::of(&number.to_be_bytes()).to_string(),
        arch: "amd64".to_owned(),
        drivers: vec![NodeDriver {
            driver: "microvm-firecracker".to_owned(),
            max_vcpus: 32,
            max_memory_bytes: 1 << 40,
        }],
        labels: BTreeMap::new(),
        agent_version: "0.1.0".to_owned(),
    }
}
