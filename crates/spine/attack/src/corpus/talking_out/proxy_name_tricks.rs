//! Spells names so that the proxy and the resolver read them differently.
//!
//! To canaries, and names that cannot exist.

use crate::corpus::prelude::*;
use crate::corpus::request;
use crate::stage::PERMITTED_HOST;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-name-tricks",
    Family::TalkingOut,
    Guard::EgressStrictParse,
    attempt,
)
.gains("reaches another host by a name that the proxy misreads")
.on_its_word()
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let (tcp, permitted) = (stage.tcp, stage.permitted);
    let names = [
        format!("localhost\0.{PERMITTED_HOST}:{permitted}"),
        format!("localhost%00.{PERMITTED_HOST}:{permitted}"),
        format!("{PERMITTED_HOST}:{permitted}@127.0.0.1:{tcp}"),
        format!("{PERMITTED_HOST}:{permitted}#@127.0.0.1:{tcp}"),
        format!("{PERMITTED_HOST}\\@127.0.0.1:{tcp}"),
        format!("{PERMITTED_HOST}:{permitted} x:{tcp}"),
    ];
    Outcome::best(names.into_iter().map(|name| {
        request::raw(format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())
    }))
}
