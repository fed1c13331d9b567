//! Looking a name up, and refusing what it must not stand for.
//!
//! The name has been allowed before anything is asked of the network, it is
//! asked for once, and `dial.rs` connects to the answers given here and to
//! nothing else. One answer that is not public refuses them all: a name that
//! means both is how a rebinding begins.

use std::net::IpAddr;

use tokio::time::timeout;

use crate::address::Reserved;
use crate::decide::Place;
use crate::guard::Guard;
use crate::proxy::Shared;
use crate::reason::Reason;
use crate::target::Target;

/// The most answers that are looked at and tried.
const MAX_ANSWERS: usize = 16;

/// The addresses that the target may be reached at.
pub(crate) async fn find(
    shared: &Shared,
    target: &Target,
    place: &Place,
) -> Result<Vec<IpAddr>, Reason> {
    match (place, target.literal()) {
        // Written down by a person, so neither looked up nor judged.
        (Place::Exactly(addresses), None) => return Ok(addresses.clone()),
        (Place::Exactly(addresses), Some(literal)) => {
            let named = addresses.contains(&literal);
            return named.then(|| vec![literal]).ok_or(Reason::Literal);
        }
        (Place::Public, Some(_)) => return Err(Reason::Literal),
        (Place::Public, None) => {}
    }
    let settings = &shared.settings;
    let asking = settings.network.resolve(target.host());
    let mut answers = match timeout(settings.limits.lookup_time, asking).await {
        Ok(Ok(answers)) => answers,
        Ok(Err(_)) => return Err(Reason::NoAddress),
        Err(_) => return Err(Reason::LookupTime),
    };
    answers.truncate(MAX_ANSWERS);
    if shared.guards.stand(Guard::Addresses) {
        check(&answers)?;
    }
    match answers.is_empty() {
        true => Err(Reason::NoAddress),
        false => Ok(answers),
    }
}

fn check(answers: &[IpAddr]) -> Result<(), Reason> {
    for &address in answers {
        if let Some(kind) = Reserved::of(address) {
            return Err(Reason::Reserved { address, kind });
        }
    }
    Ok(())
}
