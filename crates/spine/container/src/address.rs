//! Where a container engine listens, and why none answers.
//!
//! Unix sockets only: an engine over the network would run the project's code
//! on another machine. Never starts an engine. Next: `engine` talks to it.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use fluffy_sandbox::protocol::{Failure, FailureKind};

/// The variables that name an engine, the first that is set counts.
const VARIABLES: [&str; 2] = ["DOCKER_HOST", "CONTAINER_HOST"];

/// Why no engine was found.
#[derive(Debug, thiserror::Error)]
pub enum FindEngineError {
    /// The variable names an engine that is not on this machine.
    #[error("`{variable}` is `{value}`, which is not a unix socket")]
    NotLocal {
        /// The variable.
        variable: &'static str,
        /// What it says.
        value: String,
    },
    /// There is no socket at any of the usual places.
    #[error("no engine listens on {}", listed(tried))]
    Nowhere {
        /// The places, in order.
        tried: Vec<PathBuf>,
    },
    /// There is a socket, but it cannot be used.
    #[error("the engine's socket `{}` cannot be used", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The sockets to try, in order, with these variables and this user.
///
/// A socket that a variable names is the only one.
///
/// # Errors
/// The variable names something that is not a unix socket.
pub fn candidates(
    environment: &BTreeMap<String, String>,
    user: u32,
) -> Result<Vec<PathBuf>, FindEngineError> {
    for variable in VARIABLES {
        let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let path = value.strip_prefix("unix://").map(PathBuf::from);
        let path = path.filter(|path| path.is_absolute());
        return path
            .map(|path| vec![path])
            .ok_or_else(|| FindEngineError::NotLocal {
                variable,
                value: value.clone(),
            });
    }
    let runtime = environment
        .get("XDG_RUNTIME_DIR")
        .filter(|folder| Path::new(folder).is_absolute())
        .map_or_else(|| format!("/run/user/{user}"), Clone::clone);
    // One's own engine first: it gives less away when it is broken into.
    let own = [
        format!("{runtime}/docker.sock"),
        format!("{runtime}/podman/podman.sock"),
    ];
    let system = ["/var/run/docker.sock", "/run/podman/podman.sock"].map(str::to_owned);
    let order = if user == 0 {
        [system, own]
    } else {
        [own, system]
    };
    Ok(order.into_iter().flatten().map(PathBuf::from).collect())
}

/// The first socket that somebody listens on.
///
/// # Errors
/// Nobody listens; tells the nearest miss, which has the best fix.
pub fn find(environment: &BTreeMap<String, String>, user: u32) -> Result<PathBuf, FindEngineError> {
    let tried = candidates(environment, user)?;
    let mut nearest = None;
    for path in &tried {
        match UnixStream::connect(path) {
            Ok(_) => return Ok(path.clone()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let path = path.clone();
                nearest.get_or_insert(FindEngineError::Unreachable { path, source });
            }
        }
    }
    Err(nearest.unwrap_or(FindEngineError::Nowhere { tried }))
}

impl FindEngineError {
    /// The same for people, with the exact fix.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let (why, fix) = match self {
            Self::NotLocal { variable, .. } => (
                self.to_string(),
                format!("set {variable} to unix:///path/of/the.sock, or unset it"),
            ),
            Self::Nowhere { .. } => (
                self.to_string(),
                "install and start one: `sudo apt-get install podman && \
                 systemctl --user start podman.socket`, or docker.io"
                    .to_owned(),
            ),
            Self::Unreachable { path, source } => {
                (format!("{self}: {source}"), fix_of(path, source.kind()))
            }
        };
        Failure {
            kind: FailureKind::Unavailable,
            what: "there is no container engine to be had".to_owned(),
            why,
            fix: Some(fix),
        }
    }
}

fn fix_of(path: &Path, kind: io::ErrorKind) -> String {
    let podman = path
        .as_os_str()
        .as_encoded_bytes()
        .ends_with(b"podman.sock");
    let own = !path.starts_with("/var") && !path.starts_with("/run/podman");
    match (kind, podman, own) {
        (io::ErrorKind::PermissionDenied, false, _) => {
            "join its group (`sudo usermod -aG docker $USER`, then log in again), \
             or use rootless Podman, which needs no group"
                .to_owned()
        }
        (io::ErrorKind::PermissionDenied, true, _) => {
            "use your own: `systemctl --user start podman.socket`".to_owned()
        }
        (_, true, true) => "start it: `systemctl --user start podman.socket`".to_owned(),
        (_, true, false) => "start it: `sudo systemctl start podman.socket`".to_owned(),
        (_, false, true) => "start it: `systemctl --user start docker`".to_owned(),
        (_, false, false) => "start it: `sudo systemctl start docker`".to_owned(),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_named_engine_is_the_only_one() {
        let named = environment(&[("DOCKER_HOST", "unix:///x/y.sock")]);
        assert_eq!(candidates(&named, 0).unwrap(), [PathBuf::from("/x/y.sock")]);
        for elsewhere in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative"] {
            let error = candidates(&environment(&[("DOCKER_HOST", elsewhere)]), 0).unwrap_err();
            assert!(error.to_string().contains(elsewhere), "{error}");
            assert!(error.failure().fix.unwrap().contains("DOCKER_HOST"));
        }
    }

    #[test]
    fn an_ordinary_user_tries_the_own_engine_first() {
        let tried = candidates(&environment(&[("XDG_RUNTIME_DIR", "/run/user/7")]), 7).unwrap();
        assert_eq!(tried[0], PathBuf::from("/run/user/7/docker.sock"));
        let tried = candidates(&BTreeMap::new(), 7).unwrap();
        assert_eq!(tried[1], PathBuf::from("/run/user/7/podman/podman.sock"));
        let tried = candidates(&BTreeMap::new(), 0).unwrap();
        assert_eq!(tried[0], PathBuf::from("/var/run/docker.sock"));
    }

    #[test]
    fn the_nearest_miss_is_told_with_its_fix() {
        let folder = tempfile::TempDir::new().unwrap();
        let socket = folder.path().join("docker.sock");
        let host = format!("unix://{}", socket.display());
        let named = environment(&[("DOCKER_HOST", &host)]);
        assert!(matches!(
            find(&named, 0),
            Err(FindEngineError::Nowhere { .. })
        ));
        drop(UnixListener::bind(&socket).unwrap());
        let error = find(&named, 0).unwrap_err();
        assert!(matches!(error, FindEngineError::Unreachable { .. }));
        assert!(error.failure().fix.unwrap().starts_with("start it"));
        std::fs::remove_file(&socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(find(&named, 0).unwrap(), socket);
        let denied = fix_of(
            Path::new("/var/run/docker.sock"),
            io::ErrorKind::PermissionDenied,
        );
        assert!(denied.contains("usermod -aG docker"));
    }
}
