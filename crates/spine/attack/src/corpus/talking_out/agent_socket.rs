//! Connects to the user's ssh agent.
//!
//! To a canary; sends nothing.

use std::os::unix::net::UnixStream;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new(
    "agent-socket",
    Family::TalkingOut,
    Guard::MountTable,
    attempt,
)
.gains("logs in elsewhere with the keys of the user's ssh agent");

fn attempt(stage: &Stage) -> Outcome {
    let told = std::env::var_os("SSH_AUTH_SOCK").map(Into::into);
    let paths = [Some(stage.agent_socket()), told].into_iter().flatten();
    Outcome::best(paths.map(|path| {
        look::outcome(
            &format!("connect to {}", path.display()),
            UnixStream::connect(&path),
        )
    }))
}
