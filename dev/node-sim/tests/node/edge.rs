//! A real edge at a server: it takes tables over mutual TLS, and says so.

use std::net::{IpAddr, Ipv4Addr};

use fluffy_api::node::v1;
use fluffy_base::{Clock as _, SystemClock};
use fluffy_edge::{Edge, Options, Prefix, follow};
use fluffy_server::node::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::{Cluster, hello, until};

/// An address of this machine that no other test uses.
fn own_address() -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let second = if low == 0 { 211 } else { 210 };
    Ipv4Addr::new(127, second, high, low.max(1)).into()
}

fn table(seq: u64, port: u32, backend: u16) -> v1::RoutingTable {
    v1::RoutingTable {
        config: Some(v1::Position { epoch: 1, seq }),
        routes: vec![v1::Route {
            route_id: "route_1".to_owned(),
            env_id: "env_1".to_owned(),
            listen_port: port,
            protocol_hint: "tcp_raw".to_owned(),
            proxy_protocol: "off".to_owned(),
            backends: vec![v1::Backend {
                instance_id: "inst_1".to_owned(),
                address: "127.0.0.1".to_owned(),
                port: backend.into(),
                draining: false,
            }],
            ..Default::default()
        }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_goes_by_the_servers_tables_and_says_which() {
    let mut cluster = Cluster::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"hello").await;
        }
    });
    let prefix = Prefix {
        address: Ipv4Addr::LOCALHOST.into(),
        length: 8,
    };
    let address = own_address();
    let options = Options {
        listen: vec![address],
        ..Options::loopback(vec![prefix])
    };
    let edge = Edge::start(options).await;
    let member = cluster.member_since(Role::Edge, SystemClock.now());
    let channel = cluster.dial(Some(&member.identity)).await.unwrap();
    let (own, greeting) = (edge.clone(), hello(&member));
    let following = tokio::spawn(async move { follow(&own, channel, greeting).await });
    cluster.desk.route(table(5, 8080, backend));
    let acked = |seq: u64, refused: bool| {
        let desk = cluster.desk.lock();
        let mut acks = desk.edge_acks.iter();
        acks.any(|(_, ack)| ack.config.unwrap().seq == seq && ack.refused.is_empty() != refused)
    };
    until("the first is in force", || acked(5, false)).await;
    let answered = async || {
        let mut stream = TcpStream::connect((address, 8080)).await?;
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.map(|_| said)
    };
    assert_eq!(&answered().await.unwrap(), b"hello");
    // One that names what is no instance's is refused, and the other stays.
    let mut bad = table(6, 8080, backend);
    bad.routes[0].backends[0].address = "8.8.8.8".to_owned();
    cluster.desk.route(bad);
    until("the bad one is refused", || acked(6, true)).await;
    assert_eq!(&answered().await.unwrap(), b"hello");
    // Without a server everything goes on.
    cluster.stop().await;
    // How it ended is the connection's business.
    let _ = following.await.unwrap();
    assert_eq!(&answered().await.unwrap(), b"hello");
    assert_eq!(edge.config().await.unwrap().seq, 5);
}
