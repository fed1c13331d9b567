//! An assignment as the parts that act on it need it: pure.
//!
//! A plan comes from the server, which checked it; an image comes from anybody.
//! What cannot be honoured is refused here, before anything is done.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use fluffy_api::node::v1;
use fluffy_base::Digest;
use fluffy_guest::config::{self, GuestConfig};
use fluffy_planner::reason::FailureReason;

use crate::decide::{Desired, Failure, Policy, Restart, Wanted};
use crate::driver::Network;
use crate::health::recovery;
use crate::images::ImageConfig;

/// What of a spec this agent knows beyond version 1.
const KNOWN: &[&str] = &[];

/// The version of specs that this agent knows.
const VERSION: &str = "v1";

/// What a boot may take without what comes before the workload: link, config,
/// root, network.
const BOOT_MS: u64 = 60_000;

/// Where a command is looked for if the image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the plan wants of an instance; one that the plan does not have is on
/// its way out.
pub(crate) fn wanted(assignment: &v1::Assignment, planned: bool) -> Wanted {
    let desired = match assignment.desired_state() {
        _ if !planned => Desired::Draining { stop_allowed: true },
        v1::DesiredState::Stopped => Desired::Stopped,
        v1::DesiredState::Draining => Desired::Draining {
            stop_allowed: assignment.stop_allowed,
        },
        v1::DesiredState::Running | v1::DesiredState::Unspecified => Desired::Running,
    };
    let workload = assignment.workload.as_ref();
    let run = workload.and_then(|workload| workload.run.as_ref());
    let health = workload.and_then(|workload| workload.health.as_ref());
    let restart = run.and_then(|run| run.restart.as_ref());
    let policy = match restart.map(|restart| (restart.policy.as_str(), restart.max_retries)) {
        Some(("never", _)) => Policy::Never,
        Some(("on-failure", most)) => Policy::OnFailure(most),
        _ => Policy::Always,
    };
    let prestart = run.map_or(0, |run| {
        let seconds = run
            .prestart
            .iter()
            .map(|one| u64::from(one.timeout_seconds));
        seconds.sum()
    });
    let salt = Digest::of(assignment.instance_id.as_bytes());
    let salt = salt.as_bytes().first_chunk().copied().unwrap_or_default();
    Wanted {
        desired,
        has_health: health.is_some(),
        boot_ms: BOOT_MS.saturating_add(prestart.saturating_mul(1000)),
        start_ms: health.map_or(0, |health| u64::from(health.start_timeout_seconds) * 1000),
        recovery_ms: health.map_or(0, |health| {
            u64::try_from(recovery(health).as_millis()).unwrap_or(u64::MAX)
        }),
        drain_ms: u64::from(assignment.drain_grace_seconds) * 1000,
        grace_ms: u64::from(grace_seconds(assignment)) * 1000,
        restart: Restart {
            policy,
            backoff_ms: restart.map_or(1, |restart| u64::from(restart.backoff_seconds)) * 1000,
            salt: u64::from_le_bytes(salt),
        },
    }
}

/// How long a workload has to end by itself.
pub(crate) fn grace_seconds(assignment: &v1::Assignment) -> u32 {
    let run = assignment.workload.as_ref().and_then(|it| it.run.as_ref());
    let stop = run.and_then(|run| run.stop.as_ref());
    let most = u32::try_from(config::MAX_GRACE).unwrap_or(u32::MAX);
    stop.map_or(10, |stop| stop.grace_seconds).min(most)
}

/// The ports by which others reach an instance.
pub(crate) fn ports(assignment: &v1::Assignment) -> Vec<u16> {
    let workload = assignment.workload.as_ref();
    let health = workload.and_then(|workload| workload.health.as_ref());
    let network = workload.and_then(|workload| workload.network.as_ref());
    let declared = network.into_iter().flat_map(|network| &network.ports);
    let declared = declared.map(|port| port.internal);
    let all = declared.chain(health.map(|health| health.port));
    all.filter_map(|port| u16::try_from(port).ok()).collect()
}

/// Whether this agent can honour a spec at all.
pub(crate) fn admit(assignment: &v1::Assignment) -> Result<&v1::WorkloadSpec, Failure> {
    let unsupported = |detail: String| Failure::new(FailureReason::SpecUnsupported, detail);
    let Some(spec) = &assignment.workload else {
        return Err(unsupported("the plan has no workload for it".to_owned()));
    };
    if spec.spec_version != VERSION {
        return Err(unsupported(format!("version {}", spec.spec_version)));
    }
    let unknown = spec
        .requires
        .iter()
        .find(|it| !KNOWN.contains(&it.as_str()));
    if let Some(unknown) = unknown {
        return Err(unsupported(format!("requires {unknown}")));
    }
    if let Some(mount) = spec.mounts.first() {
        let detail = format!("volume_not_present_on_node: {}", mount.volume_id);
        return Err(Failure::new(FailureReason::VolumeAttachFailed, detail));
    }
    network(assignment)?;
    Ok(spec)
}

/// The place of an instance in the network.
pub(crate) fn network(assignment: &v1::Assignment) -> Result<Network, Failure> {
    let spec = assignment.workload.as_ref();
    let network = spec
        .and_then(|spec| spec.network.clone())
        .unwrap_or_default();
    let address = |text: &str| {
        text.parse::<Ipv6Addr>().map_err(|_| {
            let detail = format!("`{text}` is no IPv6 address");
            Failure::new(FailureReason::SpecUnsupported, detail)
        })
    };
    let id = &assignment.instance_id;
    let digest = Digest::of(id.as_bytes());
    let mut mac = [2, 0, 0, 0, 0, 0];
    for (byte, from) in mac.iter_mut().skip(1).zip(digest.as_bytes()) {
        *byte = *from;
    }
    let process = spec.and_then(|spec| spec.identity.as_ref());
    let process = process.map_or("instance", |identity| identity.process.as_str());
    let ulid = id.rsplit('_').next().unwrap_or(id).to_ascii_lowercase();
    Ok(Network {
        address: address(&network.overlay_ipv6)?,
        gateway: address(&network.gateway_ipv6)?,
        mac,
        mtu: network.mtu.clamp(1280, 9000),
        hostname: format!("{process}-{ulid}").chars().take(63).collect(),
    })
}

/// What the guest is told; `secrets` is the length of its file of secrets.
pub(crate) fn config(
    assignment: &v1::Assignment,
    image: &ImageConfig,
    region: &str,
    secrets: Option<usize>,
) -> Result<GuestConfig, Failure> {
    let spec = admit(assignment)?;
    let network = network(assignment)?;
    let run = spec.run.clone().unwrap_or_default();
    let identity = spec.identity.clone().unwrap_or_default();
    let command = match run.command.is_empty() {
        false => run.command,
        true => [image.entrypoint.clone(), image.cmd.clone()].concat(),
    };
    if command.is_empty() {
        let detail = "neither the manifest nor the image says what to run";
        return Err(Failure::new(FailureReason::WorkloadStartFailed, detail));
    }
    let mut env_vars: BTreeMap<String, String> = image
        .env
        .iter()
        .filter_map(|one| one.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    env_vars.entry("PATH".to_owned()).or_insert(PATH.to_owned());
    env_vars.extend(run.env_vars);
    for (name, value) in [
        ("FLUFFY_INSTANCE_ID", assignment.instance_id.as_str()),
        ("FLUFFY_PROCESS", identity.process.as_str()),
        ("FLUFFY_REGION", region),
    ] {
        env_vars.insert(name.to_owned(), value.to_owned());
    }
    let stop = run.stop.unwrap_or_default();
    let user = run.user.filter(|user| !user.is_empty());
    let (user, requires) = user_of(&user.unwrap_or_else(|| image.user.clone()));
    let wanted = spec.secrets.clone().unwrap_or_default();
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let workdir = run.workdir.filter(|dir| !dir.is_empty());
    let workdir = workdir.unwrap_or_else(|| image.workdir.clone());
    let config = GuestConfig {
        config_version: config::CONFIG_VERSION.to_owned(),
        protocol: fluffy_guest::PROTOCOL.max,
        requires,
        instance_id: assignment.instance_id.clone(),
        generation: assignment.generation,
        time_unix_ns: crate::now_ms().saturating_mul(1_000_000),
        entropy_b64: String::new(),
        root: config::Root {
            lower: config::DiskReference {
                serial: "fw-root".to_owned(),
                fs: "erofs".to_owned(),
            },
            scratch: None,
        },
        command,
        workdir: match workdir.is_empty() {
            true => "/".to_owned(),
            false => workdir,
        },
        env_vars,
        user,
        prestart: run
            .prestart
            .into_iter()
            .map(|one| config::Prestart {
                command: one.command,
                timeout_seconds: one.timeout_seconds.into(),
            })
            .collect(),
        stop: config::Stop {
            signal: match stop.signal.is_empty() {
                true => "TERM".to_owned(),
                false => stop.signal,
            },
            grace_seconds: grace_seconds(assignment).into(),
        },
        rlimits: config::Rlimits::default(),
        network: config::Network {
            overlay_ipv6: network.address,
            prefix_len: 128,
            gateway_ipv6: network.gateway,
            gateway_mac: String::new(),
            mac: mac(network.mac),
            mtu: network.mtu,
            dns: spec
                .network
                .iter()
                .flat_map(|network| &network.dns)
                .filter_map(|dns| dns.parse().ok())
                .collect(),
            search: Vec::new(),
            hostname: network.hostname,
            hosts: BTreeMap::new(),
            ipv4_egress: None,
        },
        mounts: Vec::new(),
        secrets: config::Secrets {
            required: wanted.required,
            present: secrets.is_some(),
            secret_version_id: Some(wanted.secret_version_id).filter(|id| !id.is_empty()),
            bytes: secrets.map_or(0, |bytes| u64::try_from(bytes).unwrap_or(0)),
            ..config::Secrets::none()
        },
        exec: config::Exec {
            enabled: true,
            max_sessions: 10,
        },
        logs: config::Logs::default(),
    };
    match config.check() {
        Ok(()) => Ok(config),
        Err(error) => Err(Failure::new(
            FailureReason::SpecUnsupported,
            error.to_string(),
        )),
    }
}

/// Numbers as they are; a name is looked up inside, where its file is.
fn user_of(text: &str) -> (config::User, Vec<String>) {
    if text.is_empty() {
        return (config::User::default(), Vec::new());
    }
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str| text.parse::<u32>().ok();
    match (number(user), number(group), group.is_empty()) {
        (Some(uid), Some(gid), _) => {
            let user = config::User {
                uid,
                gid,
                ..config::User::default()
            };
            (user, Vec::new())
        }
        _ => {
            let user = config::User {
                name: Some(text.to_owned()),
                ..config::User::default()
            };
            (user, vec!["named_user".to_owned()])
        }
    }
}

/// The code of a report for what a guest says went wrong.
pub(crate) fn guest_failure(code: &str, detail: &str) -> Failure {
    use FailureReason as R;
    let reason = match code {
        "disk_missing" | "root_mount_failed" | "overlay_failed" => R::RootfsBuildFailed,
        "net_config_failed" => R::NetworkSetupFailed,
        "secrets_missing" => R::SecretsMissing,
        "secrets_write_failed" => R::SecretsInjectionFailed,
        "mount_path_invalid" | "filesystem_mismatch" | "mount_failed" => R::VolumeAttachFailed,
        "exec_not_found" | "exec_permission" | "bad_user" | "workdir_missing"
        | "prestart_failed" | "prestart_timeout" => R::WorkloadStartFailed,
        _ => R::GuestProtocolMismatch,
    };
    // What a guest says is anybody's text.
    let clean = |text: &str| -> String {
        let plain = text.chars().filter(|one| !one.is_control());
        plain.take(500).collect()
    };
    Failure::new(reason, clean(&format!("{code}: {detail}")))
}

/// How the end of a workload is reported.
pub(crate) fn exited(exit_code: Option<i32>, signal: Option<i32>) -> Failure {
    let detail = match (exit_code, signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => String::new(),
    };
    Failure {
        reason: FailureReason::WorkloadExited,
        detail,
        // As a shell counts.
        exit_code: exit_code.or(signal.map(|signal| 128_i32.saturating_add(signal))),
        at_ms: None,
    }
}

/// Who saw that there was not enough memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Witness {
    /// The kernel inside of a machine of its own.
    Guest,
    /// The host: the control group had no more.
    Host {
        /// What it may use, in bytes.
        limit: u64,
        /// The most that it ever used, if that is known.
        peak: u64,
        /// Whether it happened just now.
        now: bool,
    },
}

/// The same end, if memory was its cause. A helper that was ended long before
/// is none, and a workload that ends well was not ended by anybody.
pub(crate) fn out_of_memory(ended: Failure, witness: Witness) -> Failure {
    // As a shell counts a KILL; without a word it was taken whole.
    let killed = matches!(ended.exit_code, None | Some(137));
    let detail = match witness {
        Witness::Guest => format!("guest: {}", ended.detail),
        Witness::Host { now, .. } if !killed && (!now || ended.exit_code == Some(0)) => {
            return ended;
        }
        Witness::Host { limit, peak, .. } => {
            let peak = match peak {
                0 => String::new(),
                peak => format!(", peak {}", mebibytes(peak)),
            };
            format!("host: {}; limit {}{peak}", ended.detail, mebibytes(limit))
        }
    };
    Failure {
        reason: FailureReason::OomKilled,
        detail,
        ..ended
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment() -> v1::Assignment {
        v1::Assignment {
            instance_id: "inst_01JABCDEFG".to_owned(),
            generation: 2,
            desired_state: v1::DesiredState::Running.into(),
            workload: Some(v1::WorkloadSpec {
                spec_version: "v1".to_owned(),
                identity: Some(v1::Identity {
                    process: "web".to_owned(),
                    ..Default::default()
                }),
                run: Some(v1::Run {
                    env_vars: [("PORT".to_owned(), "80".to_owned())].into(),
                    ..Default::default()
                }),
                network: Some(v1::Network {
                    overlay_ipv6: "fd00::1".to_owned(),
                    gateway_ipv6: "fe80::1".to_owned(),
                    mtu: 1420,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn image() -> ImageConfig {
        ImageConfig {
            env: vec!["PORT=1".to_owned(), "LANG=C=1".to_owned()],
            entrypoint: vec!["/serve".to_owned()],
            cmd: vec!["--all".to_owned()],
            user: "app".to_owned(),
            ..ImageConfig::default()
        }
    }

    #[test]
    fn the_manifest_wins_over_the_image() {
        let mut wanted = assignment();
        let made = config(&wanted, &image(), "eu", None).unwrap();
        assert_eq!(made.command, ["/serve", "--all"]);
        let env = |name: &str| made.env_vars[name].clone();
        assert_eq!(
            (env("PORT"), env("LANG")),
            ("80".to_owned(), "C=1".to_owned())
        );
        assert_eq!(
            (env("FLUFFY_PROCESS"), env("FLUFFY_REGION")),
            ("web".to_owned(), "eu".to_owned())
        );
        assert!(env("PATH").contains("/usr/bin"));
        assert_eq!(made.user.name.as_deref(), Some("app"));
        assert_eq!(made.requires, ["named_user"]);
        assert!(made.network.mac.starts_with("02:") && made.network.mac.len() == 17);
        let run = wanted.workload.as_mut().unwrap().run.as_mut().unwrap();
        run.command = vec!["/other".to_owned()];
        run.user = Some("7:8".to_owned());
        let made = config(&wanted, &image(), "", Some(9)).unwrap();
        assert_eq!(made.command, ["/other"]);
        assert_eq!((made.user.uid, made.user.gid), (7, 8));
        assert!(made.requires.is_empty());
        assert_eq!((made.secrets.present, made.secrets.bytes), (true, 9));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let reason = |change: fn(&mut v1::WorkloadSpec)| {
            let mut assignment = assignment();
            change(assignment.workload.as_mut().unwrap());
            admit(&assignment).unwrap_err().reason
        };
        assert_eq!(
            reason(|it| it.spec_version = "v2".to_owned()),
            FailureReason::SpecUnsupported
        );
        assert_eq!(
            reason(|it| it.requires.push("gpu".to_owned())),
            FailureReason::SpecUnsupported
        );
        assert_eq!(
            reason(|it| it.network = None),
            FailureReason::SpecUnsupported
        );
        assert_eq!(
            reason(|it| it.mounts.push(v1::Mount::default())),
            FailureReason::VolumeAttachFailed
        );
        let nothing = ImageConfig::default();
        let failure = config(&assignment(), &nothing, "", None).unwrap_err();
        assert_eq!(failure.reason, FailureReason::WorkloadStartFailed);
    }

    #[test]
    fn what_the_plan_leaves_out_goes() {
        let out = wanted(&assignment(), false);
        assert_eq!(out.desired, Desired::Draining { stop_allowed: true });
        assert_eq!(wanted(&assignment(), true).desired, Desired::Running);
    }

    #[test]
    fn only_what_ended_it_is_its_end() {
        use FailureReason::{OomKilled, WorkloadExited};
        let of = |code, signal, now| {
            let (limit, peak) = (64 << 20, 64 << 20);
            let witness = Witness::Host { limit, peak, now };
            out_of_memory(exited(code, signal), witness)
        };
        let killed = of(None, Some(9), false);
        assert_eq!(killed.reason, OomKilled);
        assert_eq!(killed.detail, "host: signal 9; limit 64 MiB, peak 64 MiB");
        assert_eq!(of(Some(137), None, false).reason, OomKilled);
        assert_eq!(of(None, None, false).reason, OomKilled);
        // A helper was ended hours before.
        assert_eq!(of(Some(1), None, false).reason, WorkloadExited);
        assert_eq!(of(Some(0), None, false).reason, WorkloadExited);
        // A helper was ended, and the workload gave up for it; or did not.
        assert_eq!(of(Some(1), None, true).reason, OomKilled);
        assert_eq!(of(Some(0), None, true).reason, WorkloadExited);
        let guest = out_of_memory(exited(None, Some(9)), Witness::Guest);
        assert_eq!(
            (guest.reason, guest.detail.as_str()),
            (OomKilled, "guest: signal 9")
        );
    }

    #[test]
    fn a_guests_text_is_cleaned_and_bounded() {
        let failure = guest_failure("bad_user", &format!("\u{1b}[31m{}", "x".repeat(2000)));
        assert_eq!(failure.reason, FailureReason::WorkloadStartFailed);
        assert!(failure.detail.len() <= 500 && !failure.detail.contains('\u{1b}'));
    }
}
