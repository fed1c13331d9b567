//! From the wish for a hundred instances to the last of them in the ledger.
//!
//! Fifty nodes with a thousand instances, one replica with its loops; nothing
//! boots, because only the placing is measured.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::NodeId;
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::{NodeDriver, ResolvedDigest};
use fluffy_control::runtime::Notice as RuntimeNotice;
use fluffy_control::runtime::notice::Enrolment;
use fluffy_control::{Material, Notice, Outcome};
use fluffy_ledger::LedgerOptions;
use fluffy_server::loops::lease::Timing;
use fluffy_server::machine::Reply;
use fluffy_server::platform::{Founder, Platform, Storage};
use fluffy_server::server::{Options, Server};
use fluffy_server::vitals::{Beat, Vitals};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{LIMIT, ask, request};
use crate::figure::{Bar, Figure, Samples, Show};

const NODES: u128 = 50;
const GROUPS: usize = 10;
const PER_GROUP: usize = 100;

/// How long it takes to place a hundred instances.
pub(super) async fn run(storage: Storage) -> Result<Figure> {
    let server = Server::start(Options {
        storage,
        ledger: LedgerOptions::default(),
        founder: Founder::Local,
        timing: Timing::default(),
    })
    .await?;
    let platform = server.platform().clone();
    let nodes = join(&platform).await?;
    let beating = tokio::spawn(beat(platform.clone(), nodes));
    for group in 0..GROUPS {
        deploy(&platform, &format!("app{group}"), PER_GROUP).await?;
    }
    reach(&platform, GROUPS * PER_GROUP).await?;
    let mut samples = Vec::new();
    for round in 1..=3 {
        let app = format!("more{round}");
        deploy(&platform, &app, 0).await?;
        let scale = json!({"processes": {"web": PER_GROUP}});
        let path = ["local", app.as_str(), "dev"];
        // The one that was made last.
        let version = platform.sequencer().read(|state| {
            let env = state.runtime.envs.keys().max()?;
            Some(state.meta("env", &env.to_string())?.version)
        });
        let started = Instant::now();
        ask(
            &platform,
            request(Operation::SetScale, &path, scale),
            version,
        )
        .await?;
        reach(&platform, (GROUPS + round) * PER_GROUP).await?;
        samples.push(started.elapsed().as_secs_f64());
    }
    beating.abort();
    server.stop().await;
    Ok(Figure {
        what: "100 instances placed, 50 nodes that have 1,000".to_owned(),
        ours: Samples::new(samples, Show::Time),
        reference: None,
        bar: Bar::Under(1.0),
    })
}

async fn join(platform: &Platform) -> Result<Vec<NodeId>> {
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        let token = request(Operation::CreateEnrollmentToken, &[], json!({}));
        ask(platform, token, None).await?;
        let token = platform.sequencer().read(|state| {
            let tokens = state.runtime.enrollment_tokens.keys();
            tokens.max().copied()
        });
        let Some(token) = token else {
            bail!("there is no token");
        };
        let node = NodeId::from_bits(number);
        let enrolment = Enrolment {
            machine: None,
            former: None,
            node,
            token,
            wireguard_public_key: format!("key{number}"),
            request_key: format!("key{number}"),
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
        };
        let capacity = RuntimeNotice::Capacity {
            node,
            cpu_cores: 64,
            memory_bytes: 256 << 30,
            disk_bytes: 4 << 40,
        };
        let enrol = RuntimeNotice::Enroll(Box::new(enrolment));
        for notice in [enrol, RuntimeNotice::Confirm { node }, capacity] {
            let said = platform
                .notice("bench", None, Notice::Runtime(notice))
                .await?;
            let done = matches!(said.reply, Reply::Wrote(Outcome::Done { .. }));
            ensure!(done, "a node did not join: {:?}", said.reply);
        }
        nodes.push(node);
    }
    Ok(nodes)
}

async fn beat(platform: Platform, nodes: Vec<NodeId>) {
    let vitals = Vitals::new(platform.aside().clone());
    let beat = Beat {
        acknowledged: true,
        ..Beat::default()
    };
    loop {
        for node in &nodes {
            // The next one comes soon.
            let _ = vitals.beat(*node, beat.clone()).await;
        }
        sleep(Duration::from_secs(3)).await;
    }
}

/// An app of one process type, deployed to its only env.
async fn deploy(platform: &Platform, app: &str, replicas: usize) -> Result<()> {
    let create = request(Operation::CreateApp, &["local"], json!({"name": app}));
    ask(platform, create, None).await?;
    let env = request(
        Operation::CreateEnv,
        &["local", app],
        json!({"name": "dev"}),
    );
    ask(platform, env, None).await?;
    let manifest = format!(
        "schema_version = \"v1\"\n[processes.web]\ncommand = [\"serve\"]\n\
         replicas = {replicas}\n[processes.web.resources]\nmemory = \"64MiB\"\n"
    );
    let body = json!({"image": "registry.example/app:1", "manifest": manifest});
    let mut release = request(Operation::CreateRelease, &["local", app], body);
    let digest = format!("sha256:{}", Digest::of(app.as_bytes()));
    release.material = Material::Image(ResolvedImage {
        image_ref: "registry.example/app:1".to_owned(),
        index_or_manifest_digest: digest.clone(),
        resolved_digests: vec![ResolvedDigest {
            os: "linux".to_owned(),
            arch: "amd64".to_owned(),
            digest,
        }],
        compressed_bytes: 1 << 20,
    });
    ask(platform, release, None).await?;
    let newest = platform
        .sequencer()
        .read(|state| state.runtime.releases.keys().max().copied());
    let body = json!({"release_id": newest});
    let deploy = request(Operation::CreateDeploy, &["local", app, "dev"], body);
    ask(platform, deploy, None).await?;
    Ok(())
}

/// Waits until so many instances are in the ledger.
async fn reach(platform: &Platform, instances: usize) -> Result<()> {
    let mut positions = platform.sequencer().positions();
    let reached = async {
        loop {
            let found = platform
                .sequencer()
                .read(|state| state.runtime.plan.instances.len());
            if found >= instances {
                return anyhow::Ok(());
            }
            positions.changed().await?;
        }
    };
    timeout(2 * LIMIT, reached).await?
}
