//! What engines say, in words we use; and the few things they say differently.
//!
//! Pure. Next: the module above asks.

use std::time::Duration;

use bollard::errors::Error as ApiError;
use bollard::models::ContainerStatsResponse;
use bollard::{API_DEFAULT_VERSION, ClientVersion};
use fluffy_contract::isolation::Stats;
use serde::Deserialize;

use super::{CALL_LIMIT, Ownership};

/// The little we need of what the engine says about a container.
#[derive(Debug, Deserialize)]
pub(super) struct PlainInspection {
    #[serde(rename = "State")]
    pub(super) state: PlainState,
}

#[derive(Debug, Deserialize)]
pub(super) struct PlainState {
    #[serde(rename = "Pid", default)]
    pub(super) pid: i64,
    #[serde(rename = "OOMKilled", default)]
    pub(super) out_of_memory: bool,
}

/// The version of the API that both sides speak.
pub(super) fn understood(theirs: Option<&str>) -> ClientVersion {
    let parse = |text: &str| {
        let (major, minor) = text.split_once('.')?;
        Some(ClientVersion {
            major_version: major.parse().ok()?,
            minor_version: minor.parse().ok()?,
        })
    };
    let ours = ClientVersion {
        major_version: API_DEFAULT_VERSION.major_version,
        minor_version: API_DEFAULT_VERSION.minor_version,
    };
    theirs
        .and_then(parse)
        .filter(|theirs| *theirs < ours)
        .unwrap_or(ours)
}

/// What Docker's list of security options says about users.
pub(super) fn ownership(options: &[String]) -> Ownership {
    let has = |word: &str| options.iter().any(|option| option.contains(word));
    if has("name=rootless") {
        Ownership::Rootless
    } else if has("name=userns") {
        Ownership::Remapped
    } else {
        Ownership::Shared
    }
}

/// What the engine said, without the words of the library.
pub(super) fn said(error: &ApiError) -> String {
    match error {
        ApiError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        ApiError::DockerStreamError { error } => error.trim().to_owned(),
        ApiError::RequestTimeoutError => {
            format!(
                "it did not answer for {:?}",
                Duration::from_secs(CALL_LIMIT)
            )
        }
        other => other.to_string(),
    }
}

pub(super) fn is_status(error: &ApiError, wanted: u16) -> bool {
    matches!(
        error,
        ApiError::DockerResponseServerError { status_code, .. } if *status_code == wanted
    )
}

/// A name without a tag would fetch all tags there are.
pub(super) fn with_tag(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

pub(super) fn figures(stats: &ContainerStatsResponse) -> Stats {
    let memory = stats.memory_stats.clone().unwrap_or_default();
    let cpu = stats.cpu_stats.clone().unwrap_or_default();
    let nanos = cpu.cpu_usage.and_then(|usage| usage.total_usage);
    let pids = stats.pids_stats.clone().and_then(|pids| pids.current);
    Stats {
        memory: memory.usage.unwrap_or_default(),
        memory_peak: memory.max_usage.filter(|peak| *peak > 0),
        cpu_micros: nanos.unwrap_or_default() / 1_000,
        pids: pids.map_or(0, |pids| u32::try_from(pids).unwrap_or(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineError, Listed};
    use fluffy_sandbox::protocol::FailureKind;

    #[test]
    fn a_name_without_a_tag_means_the_latest() {
        for (name, full) in [
            ("alpine", "alpine:latest"),
            (
                "localhost:5000/team/tool",
                "localhost:5000/team/tool:latest",
            ),
            ("alpine:3.20", "alpine:3.20"),
            ("alpine@sha256:00", "alpine@sha256:00"),
        ] {
            assert_eq!(with_tag(name), full);
        }
    }

    #[test]
    fn the_older_side_says_which_words_are_used() {
        let minor = |text| understood(text).minor_version;
        assert_eq!(minor(Some("1.41")), 41);
        let ours = API_DEFAULT_VERSION.minor_version;
        assert_eq!(minor(Some("1.9999")), ours);
        assert_eq!(minor(Some("nonsense")), ours);
        assert_eq!(minor(None), ours);
    }

    #[test]
    fn docker_says_who_its_users_are() {
        let of = |option: &str| ownership(&["name=seccomp".to_owned(), option.to_owned()]);
        assert_eq!(of("name=rootless"), Ownership::Rootless);
        assert_eq!(of("name=userns"), Ownership::Remapped);
        assert_eq!(of("name=cgroupns"), Ownership::Shared);
    }

    #[test]
    fn a_state_that_only_podman_knows_is_read() {
        let list = r#"[{"Id":"one","State":"stopped","Labels":{"a":"b"}},{"Id":"two"}]"#;
        let listed: Vec<Listed> = serde_json::from_str(list).unwrap();
        assert_eq!(listed[0].labels["a"], "b");
        assert_eq!(listed[1].id, "two");
        let one = r#"{"State":{"Status":"stopped","Pid":7,"OOMKilled":true}}"#;
        let one: PlainInspection = serde_json::from_str(one).unwrap();
        assert_eq!((one.state.pid, one.state.out_of_memory), (7, true));
    }

    #[test]
    fn what_the_engine_said_is_told_as_it_said_it() {
        let error = EngineError {
            socket: "/x.sock".into(),
            operation: "create a container",
            source: Box::new(ApiError::DockerResponseServerError {
                status_code: 500,
                message: " no space left on device\n".to_owned(),
            }),
        };
        let failure = error.failure();
        assert_eq!(
            failure.what,
            "the engine at `/x.sock` could not create a container"
        );
        assert_eq!(failure.why, "no space left on device");
        assert_eq!(failure.kind, FailureKind::System);
    }
}
