//! Connecting: the one effect of this crate, which uses up a permit.
//!
//! Only addresses that were checked before come in here, and no name is ever
//! looked up again. If the first address does not answer soon, the next is
//! tried beside it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fluffy_policy::Permit;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::guard::Guard;
use crate::network::Network;
use crate::proxy::Shared;
use crate::reason::Reason;
use crate::target::Target;

/// How long one address has before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to one of the addresses, and says to which.
pub(crate) async fn dial(
    permit: Permit,
    shared: &Shared,
    target: &Target,
    addresses: &[IpAddr],
) -> Result<(TcpStream, IpAddr), Reason> {
    let resource = target.to_string();
    let fits = permit.action() == "net.connect" && permit.resource() == Some(&resource);
    // Without one spelling for each host there would be nothing to compare.
    if !fits && shared.guards.stand(Guard::Names) {
        return Err(Reason::Undecided);
    }
    let race = race(addresses, target.port(), &shared.settings.network);
    let (stream, address) = match timeout(shared.settings.limits.connect_time, race).await {
        Ok(Some(connected)) => connected,
        Ok(None) => return Err(Reason::Unreachable),
        Err(_) => return Err(Reason::ConnectTime),
    };
    // Small writes are whole messages here; a failure only costs time.
    let _ = stream.set_nodelay(true);
    drop(permit);
    Ok((stream, address))
}

/// The first connection that comes about; the other attempts end with the set.
async fn race(
    addresses: &[IpAddr],
    port: u16,
    network: &Arc<dyn Network>,
) -> Option<(TcpStream, IpAddr)> {
    let mut waiting = addresses.iter().copied();
    let mut attempts = JoinSet::new();
    loop {
        if let Some(address) = waiting.next() {
            let (network, to) = (Arc::clone(network), SocketAddr::new(address, port));
            attempts.spawn(async move { (network.connect(to).await, address) });
        }
        let more = waiting.len() > 0;
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok((Ok(stream), address))) => return Some((stream, address)),
                Some(_) => {}
                None if more => {}
                None => return None,
            },
            () = sleep(HEAD_START), if more => {}
        }
    }
}
