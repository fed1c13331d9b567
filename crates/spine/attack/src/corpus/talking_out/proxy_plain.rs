//! Asks for a tunnel and speaks something that is not TLS in it.
//!
//! To a canary.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-plain",
    Family::TalkingOut,
    Guard::EgressServerName,
    attempt,
)
.gains("speaks any protocol, such as ssh or mail, through a tunnel for TLS")
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let text = format!("SSH-2.0-{}\r\n", stage.nonce);
    request::tunnel_and_say(&request::permitted(stage), text.as_bytes())
}
