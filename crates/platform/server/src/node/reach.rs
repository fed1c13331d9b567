//! Whether a machine is where it says that others reach it.
//!
//! A few bytes that only the one at that address sees, sent back by it.

use std::net::SocketAddr;
use std::time::Duration;

use fluffy_api::node::REACH;
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

/// How often it is tried.
const TRIES: usize = 3;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether somebody answers there.
pub(super) async fn reaches(endpoint: SocketAddr) -> bool {
    for _ in 0..TRIES {
        if let Ok(true) = answers(endpoint).await {
            return true;
        }
    }
    false
}

async fn answers(endpoint: SocketAddr) -> std::io::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    let own: SocketAddr = match endpoint {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(own).await?;
    // From here on only that address is heard.
    socket.connect(endpoint).await?;
    let mut question = REACH.to_vec();
    question.resize(REACH.len() + 32, 0);
    if let Some(random) = question.get_mut(REACH.len()..) {
        getrandom::fill(random).map_err(std::io::Error::other)?;
    }
    socket.send(&question).await?;
    let mut answer = [0; 64];
    loop {
        let Ok(heard) = timeout_at(deadline, socket.recv(&mut answer)).await else {
            return Ok(false);
        };
        // A port that is closed says so at once; the next try waits for it.
        let Ok(length) = heard else {
            tokio::time::sleep_until(deadline).await;
            return Ok(false);
        };
        if answer.get(..length) == Some(&question) {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_who_sends_the_same_bytes_back_is_there() {
        let there = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = there.local_addr().unwrap();
        let (honest, _) = tokio::join!(reaches(endpoint), async {
            let mut bytes = [0; 64];
            let (length, from) = there.recv_from(&mut bytes).await.unwrap();
            there.send_to(b"fluffy-reach", from).await.unwrap();
            there.send_to(&bytes[..length], from).await.unwrap();
        });
        assert!(honest);
        // It hears the questions, and sends back what it makes up.
        let (made_up, _) = tokio::join!(reaches(endpoint), async {
            for _ in 0..TRIES {
                let mut bytes = [0; 64];
                let (length, from) = there.recv_from(&mut bytes).await.unwrap();
                bytes[length - 1] ^= 1;
                there.send_to(&bytes[..length], from).await.unwrap();
            }
        });
        assert!(!made_up);
    }
}
