//! Asks the proxy for the host itself, in every spelling.
//!
//! To canaries. The name `localhost` is permitted, its address is not.

use crate::corpus::prelude::*;
use crate::corpus::request;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-address",
    Family::TalkingOut,
    Guard::EgressAddressCheck,
    attempt,
)
.gains("reaches the host and the cloud's metadata through the proxy")
.on_its_word()
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let port = stage.tcp;
    let names = [
        "localhost",
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
    ];
    let hello = request::client_hello(Some("localhost"), &stage.nonce);
    Outcome::best(
        names
            .into_iter()
            .map(|name| request::tunnel_and_say(&format!("{name}:{port}"), &hello)),
    )
}
