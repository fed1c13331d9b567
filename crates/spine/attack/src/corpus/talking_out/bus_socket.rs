//! Connects to the desktop's bus and display.
//!
//! Sends nothing. The bus starts programs outside for whoever asks.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("bus-socket", Family::TalkingOut, Guard::MountTable, attempt)
        .gains("has the desktop's bus start programs outside, or reads the screen")
        .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let known = [
        "/run/dbus/system_bus_socket",
        "/run/user/0/bus",
        "/tmp/.X11-unix/X0",
    ];
    let paths = std::iter::once(stage.bus_socket()).chain(known.map(PathBuf::from));
    Outcome::best(paths.map(|path| {
        look::outcome(
            &format!("connect to {}", path.display()),
            UnixStream::connect(&path),
        )
    }))
}
