//! Connects to the socket of a container engine.
//!
//! Sends nothing. Whoever can talk to it is root on the host.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "engine-socket",
    Family::TalkingOut,
    Guard::MountTable,
    attempt,
)
.gains("commands the container engine, and with it the host")
.on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let known = [
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/podman/podman.sock",
        "/run/containerd/containerd.sock",
        "/run/systemd/private",
    ];
    let paths = std::iter::once(stage.engine_socket()).chain(known.map(PathBuf::from));
    Outcome::best(paths.map(|path| {
        look::outcome(
            &format!("connect to {}", path.display()),
            UnixStream::connect(&path),
        )
    }))
}
