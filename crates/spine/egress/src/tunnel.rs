//! A tunnel: first its TLS name is checked, then bytes go both ways untouched.
//!
//! Nothing reaches the server before the check, and nothing of the server
//! reaches the client, so a protocol in which the server speaks first finds no
//! way through either. TLS is never opened.

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::body::{broken, copy_body};
use crate::connection::Client;
use crate::decide::Content;
use crate::guard::Guard;
use crate::head::Framing;
use crate::hello::{self, Progress};
use crate::limits::{Meter, Way};
use crate::proxy::Shared;
use crate::reason::Reason;
use crate::target::Target;

/// What is sent once the tunnel stands.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A fatal alert, `unrecognized_name`: clients show it, where a connection
/// that merely ends leaves people guessing.
pub(crate) const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 112];

/// Tells the client that it may begin, and returns its first bytes once they
/// are known to be for the target.
pub(crate) async fn open(
    shared: &Shared,
    client: &mut Client,
    target: &Target,
    content: Content,
) -> Result<Vec<u8>, Reason> {
    let greeting = async {
        client.writer.write_all(ESTABLISHED).await?;
        client.writer.flush().await
    };
    greeting.await.map_err(broken)?;
    if content == Content::Any || !shared.guards.stand(Guard::ServerName) {
        return Ok(Vec::new());
    }
    let time = shared.settings.limits.hello_time;
    match timeout(time, read_hello(&mut client.reader)).await {
        Ok(read) => {
            let (bytes, name) = read?;
            check_name(target, name.as_deref()).map(|()| bytes)
        }
        Err(_) => Err(Reason::HelloTime),
    }
}

/// Sends the first bytes on and then whatever comes, both ways, until both
/// sides have ended or a limit is reached.
pub(crate) async fn carry(
    client: &mut Client,
    server: TcpStream,
    first: &[u8],
    meter: &Meter<'_>,
) -> Result<(), Reason> {
    tokio::select! {
        ended = relay(client, server, first, meter) => match ended {
            // Sides that just go away are how most tunnels end; whether that
            // was too early is known only inside.
            Err(Reason::Broken) => Ok(()),
            ended => ended,
        },
        reason = meter.out_of_time() => Err(reason),
    }
}

async fn relay(
    client: &mut Client,
    server: TcpStream,
    first: &[u8],
    meter: &Meter<'_>,
) -> Result<(), Reason> {
    let (from_server, mut to_server) = server.into_split();
    let mut from_server = BufReader::with_capacity(16 * 1024, from_server);
    meter.count(Way::Up, first.len())?;
    to_server.write_all(first).await.map_err(broken)?;
    let up = async {
        copy_body(
            &mut client.reader,
            &mut to_server,
            Framing::UntilClose,
            meter.tally(Way::Up),
        )
        .await?;
        to_server.shutdown().await.map_err(broken)
    };
    let down = async {
        copy_body(
            &mut from_server,
            &mut client.writer,
            Framing::UntilClose,
            meter.tally(Way::Down),
        )
        .await?;
        client.writer.shutdown().await.map_err(broken)
    };
    tokio::try_join!(up, down).map(drop)
}

async fn read_hello<R>(from: &mut R) -> Result<(Vec<u8>, Option<String>), Reason>
where
    R: AsyncBufRead + Unpin,
{
    let mut bytes = Vec::new();
    loop {
        let there = from.fill_buf().await.map_err(broken)?;
        if there.is_empty() {
            return Err(Reason::Broken);
        }
        bytes.extend_from_slice(there);
        let count = there.len();
        from.consume(count);
        if let Progress::Complete(hello) = hello::inspect(&bytes).map_err(Reason::Hello)? {
            return Ok((bytes, hello.server_name));
        }
    }
}

fn check_name(target: &Target, name: Option<&str>) -> Result<(), Reason> {
    match (name, target.literal()) {
        // TLS has no names for addresses; one that is there hides another.
        (None, Some(_)) => Ok(()),
        (Some(_), Some(_)) => Err(Reason::OtherServerName),
        (None, None) => Err(Reason::NoServerName),
        (Some(name), None) => {
            let named = Target::parse(name.as_bytes(), Some(target.port()));
            match named.is_ok_and(|named| named == *target) {
                true => Ok(()),
                false => Err(Reason::OtherServerName),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_tls_is_the_name_that_was_allowed() {
        let check =
            |target: &str, name| check_name(&Target::parse(target.as_bytes(), None).unwrap(), name);
        assert_eq!(check("a.com:443", Some("A.com")), Ok(()));
        assert_eq!(
            check("a.com:443", Some("b.com")),
            Err(Reason::OtherServerName)
        );
        assert_eq!(
            check("a.com:443", Some("a.com.b.com")),
            Err(Reason::OtherServerName)
        );
        assert_eq!(
            check("a.com:443", Some("a.com:444")),
            Err(Reason::OtherServerName)
        );
        assert_eq!(check("a.com:443", None), Err(Reason::NoServerName));
        assert_eq!(check("1.2.3.4:443", None), Ok(()));
        assert_eq!(
            check("1.2.3.4:443", Some("a.com")),
            Err(Reason::OtherServerName)
        );
    }
}
