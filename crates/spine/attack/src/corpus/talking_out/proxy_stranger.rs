//! Asks the proxy for hosts and ports that nobody permitted.
//!
//! Names that cannot exist, and a canary.

use crate::corpus::prelude::*;
use crate::corpus::request;
use crate::stage::PERMITTED_HOST;

pub(crate) const ATTACK: Attack = Attack::new(
    "proxy-stranger",
    Family::TalkingOut,
    Guard::EgressDecision,
    attempt,
)
.gains("reaches hosts that nobody permitted, through the proxy itself")
.on_its_word()
.behind_the_proxy();

fn attempt(stage: &Stage) -> Outcome {
    let hosts = [
        "stranger.test:443".to_owned(),
        format!("{PERMITTED_HOST}:{}", stage.tcp),
        format!("{PERMITTED_HOST}:22"),
        format!("{PERMITTED_HOST}.stranger.test:{}", stage.permitted),
        format!("not-{PERMITTED_HOST}:{}", stage.permitted),
        format!("sub.{PERMITTED_HOST}:{}", stage.permitted),
    ];
    let hello = request::client_hello(Some("stranger.test"), "hello");
    Outcome::best(
        hosts
            .into_iter()
            .map(|host| request::tunnel_and_say(&host, &hello)),
    )
}
