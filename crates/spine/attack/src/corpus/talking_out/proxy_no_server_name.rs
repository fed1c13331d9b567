//! Asks for a permitted host and then talks TLS without saying to whom.
//!
//! To a canary.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-no-server-name",
    Family::TalkingOut,
    Guard::EgressServerName,
    attempt,
)
.gains("reaches the default host behind the address of a permitted one")
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let hello = request::client_hello(None, &stage.nonce);
    request::tunnel_and_say(&request::permitted(stage), &hello)
}
