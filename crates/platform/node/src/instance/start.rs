//! Starts an instance: secrets, driver, link, config; and gives up starting it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::join::nodes;
use fluffy_api::node::{code_of, v1};
use fluffy_guest::host::{self, ConfigureError, Connection, Events};
use fluffy_planner::reason::FailureReason;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use zeroize::Zeroizing;

use super::{Context, Inner, Instance, Secrets, up_now};
use crate::decide::{Failure, Run};
use crate::driver::{InstanceDriver, StartOrder};
use crate::home::private;
use crate::images::ImageConfig;
use crate::workload;

/// How long a driver may take.
const DRIVER: Duration = Duration::from_secs(70);

/// How long a guest may take until its link is open.
pub(super) const LINK: Duration = Duration::from_secs(10);

/// How long until a server is asked again for secrets, at first.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a server may be unable to give secrets until that is said.
const SECRETS: Duration = Duration::from_secs(10);

/// Secrets that are not what was sealed: asking again at once changes nothing.
const DAMAGED: [&str; 2] = ["integrity_failed", "decrypt_failed"];

/// The ids that one instance has on the host.
const IDS: u32 = 65_536;

/// The processes that one instance may have.
pub(super) const PIDS: u32 = 4_096;

/// What a start needs.
struct Starting {
    context: Arc<Context>,
    driver: Arc<dyn InstanceDriver>,
    assignment: v1::Assignment,
    boot: String,
    order: StartOrder,
    image: ImageConfig,
    secrets: Option<Secrets>,
    sender: mpsc::Sender<Inner>,
    cancel: watch::Receiver<bool>,
}

impl Instance {
    /// Begins a start; what comes of it is heard later.
    pub(super) async fn start(&mut self) {
        self.kept.seen.dirty = true;
        self.kept.seen.stop_ms = None;
        self.kept.seen.run = Run::Working;
        self.kept.handle = None;
        if !self.keep().await {
            // Nobody would know that it was begun.
            self.kept.seen.run = Run::Nothing;
            return;
        }
        self.cancel = watch::Sender::new(false);
        self.started = Instant::now();
        let starting = match self.starting() {
            Ok(starting) => starting,
            Err(failure) => return self.over(failure),
        };
        let (boot, sender) = (starting.boot.clone(), self.sender.clone());
        tokio::spawn(async move {
            // As a task, so that a driver that fails is an answer as well.
            let linked = tokio::spawn(starting.run()).await.unwrap_or_else(|_| {
                let why = "the driver failed";
                Err(Failure::new(FailureReason::ContainerStartFailed, why))
            });
            let _ = sender.send(Inner::Linked(boot, linked)).await;
        });
    }

    fn starting(&mut self) -> Result<Starting, Failure> {
        let assignment = self.kept.assignment.clone();
        let spec = workload::admit(&assignment)?;
        let allowed = &spec.allowed_drivers;
        let mut drivers = self.context.drivers.iter();
        let driver = drivers.find(|it| allowed.iter().any(|name| name == it.name()));
        let driver = driver.cloned().ok_or_else(|| {
            let why = format!("this node has none of the drivers {}", allowed.join(", "));
            Failure::new(FailureReason::SpecUnsupported, why)
        })?;
        let (root, image) = self.kept.image.clone().ok_or_else(|| {
            let why = "its image is not here";
            Failure::new(FailureReason::RootfsBuildFailed, why)
        })?;
        let resources = spec.resources.unwrap_or_default();
        let ids = self.kept.slot.saturating_mul(IDS);
        let order = StartOrder {
            instance_id: self.id.clone(),
            generation: assignment.generation,
            boot_id: self.kept.boot_id.clone(),
            dir: self.dir(),
            run_dir: self.run_dir(),
            root,
            uid_base: self.context.uid_base.saturating_add(ids),
            memory_bytes: resources.memory_limit_bytes,
            cpu_millis: resources.cpu_millis,
            pids: PIDS,
            disk_bytes: resources.ephemeral_disk_bytes,
            network: workload::network(&assignment)?,
        };
        Ok(Starting {
            context: Arc::clone(&self.context),
            driver,
            boot: self.kept.boot_id.clone(),
            assignment,
            order,
            image,
            secrets: self.secrets.take(),
            sender: self.sender.clone(),
            cancel: self.cancel.subscribe(),
        })
    }

    /// Gives up a start; what it did already is undone.
    pub(super) async fn abort(&mut self) {
        self.cancel.send_replace(true);
        let deadline = Instant::now() + DRIVER + LINK + LINK;
        while self.kept.seen.run == Run::Working {
            match tokio::time::timeout_at(deadline, self.inner.recv()).await {
                Ok(Some(inner)) => self.hear(inner).await,
                Ok(None) | Err(_) => break,
            }
        }
        if let Some((handle, driver)) = self.driven() {
            // What is left is removed by the step after.
            let _ = driver.kill(&handle).await;
        }
        self.connection = None;
        self.watching = None;
        self.health = None;
        self.kept.seen.run = Run::Nothing;
        self.kept.seen.dirty = true;
    }

    /// A start ended: with a link, or not.
    pub(super) async fn linked(&mut self, linked: Result<(Connection, Events), Failure>) {
        if self.kept.seen.run != Run::Working {
            return;
        }
        let result = match linked {
            Ok((connection, events)) => {
                up_now(&mut self.kept.seen);
                self.connect(connection, events);
                "started"
            }
            Err(failure) => {
                let failure = self.last_words.take().unwrap_or(failure);
                self.time_boot("failed");
                if let Some((handle, driver)) = self.driven() {
                    let _ = driver.kill(&handle).await;
                }
                self.over(failure);
                "failed"
            }
        };
        self.context.metrics.count("agent_boots_total", result);
    }
}

impl Starting {
    async fn run(mut self) -> Result<(Connection, Events), Failure> {
        let began = Instant::now();
        let secrets = self.secrets().await?;
        if secrets.is_some() {
            let metrics = &self.context.metrics;
            metrics.time("secrets_delivery_seconds", [""; 2], began.elapsed());
        }
        let bytes = secrets.as_ref().map(|secrets| secrets.len());
        let region = self.context.region.clone();
        let config = workload::config(&self.assignment, &self.image, &region, bytes)?;
        for dir in [&self.order.dir, &self.order.run_dir] {
            private(dir).map_err(|error| {
                let why = format!("`{}` cannot be made: {error}", dir.display());
                Failure::new(FailureReason::ContainerStartFailed, why)
            })?;
        }
        let began = Instant::now();
        let started = timeout(DRIVER, self.driver.start(&self.order)).await;
        self.step("driver", began);
        let handle = match started {
            Err(_) => {
                let why = "the driver took too long";
                return Err(Failure::new(FailureReason::ContainerStartFailed, why));
            }
            Ok(Err(failed)) => {
                let reason = FailureReason::parse(failed.code);
                let reason = reason.unwrap_or(FailureReason::ContainerStartFailed);
                return Err(Failure::new(reason, failed.detail));
            }
            Ok(Ok(handle)) => handle,
        };
        let socket = handle.link.clone();
        let (done, is_done) = oneshot::channel();
        let known = Inner::Handle(self.boot.clone(), Box::new(handle), done);
        let _ = self.sender.send(known).await;
        if is_done.await.is_err() {
            return Err(given_up());
        }
        let began = Instant::now();
        let (hello, connection, events) = self.link(&socket).await?;
        self.step("link", began);
        if hello.instance_id != self.order.instance_id || hello.boot_id != self.boot {
            let _ = connection.reject("instance_mismatch").await;
            let why = "instance_mismatch: another guest answered";
            return Err(Failure::new(FailureReason::GuestProtocolMismatch, why));
        }
        if hello.protocol.common(fluffy_guest::PROTOCOL).is_none() {
            let _ = connection.reject("protocol_mismatch").await;
            let why = "protocol_mismatch: no common version";
            return Err(Failure::new(FailureReason::GuestProtocolMismatch, why));
        }
        // The link wipes its copy; ours goes with this function.
        let secrets = secrets.map(|secrets| secrets.to_vec());
        let linked = Instant::now();
        let configured = connection.configure(config, secrets).await;
        self.step("config", linked);
        match configured {
            Ok(()) => {
                let metrics = &self.context.metrics;
                metrics.time("agent_handshake_seconds", [""; 2], began.elapsed());
                Ok((connection, events))
            }
            Err(ConfigureError::Refused { code, detail }) => {
                Err(workload::guest_failure(&code, &detail))
            }
            Err(ConfigureError::Timeout | ConfigureError::Gone) => {
                let why = "handshake: the guest did not take its config";
                Err(Failure::new(FailureReason::BootTimeout, why))
            }
            Err(error) => {
                let why = error.to_string();
                Err(Failure::new(FailureReason::GuestProtocolMismatch, why))
            }
        }
    }

    /// Says how long a step took, until now.
    fn step(&self, step: &'static str, began: Instant) {
        let metrics = &self.context.metrics;
        metrics.time("agent_boot_step_seconds", [step, ""], began.elapsed());
    }

    /// Tries until the guest answers or its time is over.
    async fn link(
        &mut self,
        socket: &Path,
    ) -> Result<(fluffy_guest::message::Hello, Connection, Events), Failure> {
        let late = |detail: &str| Failure::new(FailureReason::BootTimeout, detail);
        let opened = super::link::open(socket, LINK, host::Options::default());
        tokio::select! {
            opened = opened => opened.map_err(|error| late(&error)),
            () = cancelled(&mut self.cancel) => Err(given_up()),
        }
    }

    /// The file of secrets, if the instance has one.
    async fn secrets(&mut self) -> Result<Secrets, Failure> {
        if let Some(secrets) = self.secrets.take() {
            return Ok(secrets);
        }
        let wanted = Wanted::of(&self.context, &self.order.instance_id, &self.assignment)?;
        let context = Arc::clone(&self.context);
        tokio::select! {
            fetched = wanted.fetch(&context) => fetched,
            () = cancelled(&mut self.cancel) => Err(given_up()),
        }
    }
}

/// The secrets that an instance is to have, if any.
pub(super) struct Wanted(Option<v1::SecretMaterialRequest>);

impl Wanted {
    pub(super) fn of(
        context: &Context,
        id: &str,
        assignment: &v1::Assignment,
    ) -> Result<Self, Failure> {
        let spec = assignment.workload.as_ref();
        let wanted = spec.and_then(|spec| spec.secrets.clone());
        let wanted = wanted.unwrap_or_default();
        if wanted.secret_version_id.is_empty() {
            return match wanted.required {
                false => Ok(Self(None)),
                true => Err(Failure::new(
                    FailureReason::SecretsMissing,
                    "no version is set",
                )),
            };
        }
        Ok(Self(Some(v1::SecretMaterialRequest {
            node_id: context.node_id.clone(),
            instance_id: id.to_owned(),
            generation: assignment.generation,
            secret_version_id: wanted.secret_version_id,
        })))
    }

    /// Fetches them; waits for a server, and gives up for now if one is there
    /// and cannot give them.
    pub(super) async fn fetch(self, context: &Context) -> Result<Secrets, Failure> {
        let Some(request) = self.0 else {
            return Ok(None);
        };
        let mut channel = context.channel.clone();
        let (mut since, mut pause) = (Instant::now(), AGAIN);
        loop {
            let current = channel.borrow_and_update().clone();
            let Some(current) = current else {
                // There is nobody whom it could be said.
                if channel.changed().await.is_err() {
                    return Err(given_up());
                }
                (since, pause) = (Instant::now(), AGAIN);
                continue;
            };
            let status = match nodes(&current).get_secret_material(request.clone()).await {
                Ok(answer) => {
                    context.metrics.count("secrets_delivery_total", "ok");
                    return Ok(Some(Zeroizing::new(answer.into_inner().file)));
                }
                Err(status) => status,
            };
            let message: String = status.message().chars().take(200).collect();
            if status.code() == Code::PermissionDenied {
                context.metrics.count("secrets_delivery_total", "refused");
                return Err(Failure::new(FailureReason::SecretsMissing, message));
            }
            context.metrics.count("secrets_delivery_total", "retry");
            let code = code_of(&status).unwrap_or("transfer_failed");
            let waited = since.elapsed();
            if waited >= SECRETS || DAMAGED.contains(&code) {
                let why = format!("{code}: {message}");
                return Err(Failure::new(FailureReason::SecretsKeyUnavailable, why));
            }
            sleep(pause.min(SECRETS - waited)).await;
            pause = pause.saturating_mul(2);
        }
    }
}

fn given_up() -> Failure {
    let why = "the start was given up";
    Failure::new(FailureReason::ContainerStartFailed, why)
}

async fn cancelled(cancel: &mut watch::Receiver<bool>) {
    if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
        // Its instance is gone, and with it whoever would hear of it.
        std::future::pending::<()>().await;
    }
}
