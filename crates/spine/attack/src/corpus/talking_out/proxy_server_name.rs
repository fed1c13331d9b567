//! Asks for a permitted host and then talks TLS to another behind it.
//!
//! To a canary. Hosts that share an address are told apart by this name.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-server-name",
    Family::TalkingOut,
    Guard::EgressServerName,
    attempt,
)
.gains("reaches another host behind the address of a permitted one")
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    request::connect_and_greet(stage, "stranger.test", &stage.nonce)
}
