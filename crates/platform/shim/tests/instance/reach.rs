//! Whom an instance reaches: nobody; and who reaches it through the machine.
//! Tried in a network of the test's own, with and without the rules.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fluffy_shim::firewall::{self, Found};
use fluffy_shim::{Order, Word};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::kit::{Instance, PATIENCE, Watched, wait_for};

/// An address of the host that is not the gateway's.
const HOST: &str = "fd7e:59::1";

/// How long nobody answers until that is believed.
const SILENCE: Duration = Duration::from_secs(4);

/// A network with a host's services, through which packets are forwarded.
struct Router {
    keeper: Child,
    network: OwnedFd,
}

impl Router {
    async fn new() -> Self {
        let router = Self::empty().await;
        router.within(|| {
            ip("link set lo up");
            ip("-6 addr add fd7e:59::1/128 dev lo");
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        });
        router
    }

    /// Somebody beside it, whose packets come in here by such an interface.
    async fn neighbour(&self, interface: &str, number: u8) -> Self {
        let neighbour = Self::empty().await;
        let keeper = neighbour.keeper.id();
        self.within(|| {
            ip(&format!(
                "link add {interface} type veth peer name up0 netns {keeper}"
            ));
            ip(&format!("link set {interface} up"));
            ip(&format!(
                "-6 addr add fd7e:60:{number}::1/64 dev {interface} nodad"
            ));
        });
        neighbour.within(|| {
            ip("link set up0 up");
            ip(&format!("-6 addr add fd7e:60:{number}::2/64 dev up0 nodad"));
            ip(&format!("-6 route add default via fd7e:60:{number}::1"));
        });
        neighbour
    }

    /// With nothing in it.
    async fn empty() -> Self {
        let mut keeper = Command::new("unshare");
        keeper.args(["--net", "sleep", "1000"]);
        let keeper = keeper.spawn().unwrap();
        let path = format!("/proc/{}/ns/net", keeper.id());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let is_there = || std::fs::read_link(&path).is_ok_and(|it| it != own);
        wait_for("network of its own", is_there).await;
        let network = std::fs::File::open(&path).unwrap().into();
        Self { keeper, network }
    }

    /// Does something in it.
    fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        in_network(&self.network, what)
    }

    fn start(&self) -> Instance {
        self.within(Instance::start)
    }

    /// Says hello to whoever comes, until the process of the test ends.
    fn service(&self) -> u16 {
        let listener = self.within(|| TcpListener::bind("[::]:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let _ = client.write_all(b"hello\n");
            }
        });
        port
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "{words}");
}

fn in_network<T: Send>(network: &OwnedFd, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let kind = LinkNameSpaceType::Network;
            move_into_link_name_space(network.as_fd(), Some(kind)).unwrap();
            what()
        });
        done.join().unwrap()
    })
}

/// Takes the table away, as `nft flush ruleset` does.
fn flush() {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    )
    .unwrap();
    let message = |kind: u16, content: &[u8]| {
        let mut bytes = (content.len() as u32 + 16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(1_u16.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(content);
        bytes
    };
    let name = b"\x01\0\0\0\x0b\0\x01\0fluffy\0\0";
    let all = [
        message(16, &[0, 0, 0, 10]),
        message(10 << 8 | 2, name),
        message(17, &[0, 0, 0, 10]),
    ];
    rustix::net::send(&socket, &all.concat(), SendFlags::empty()).unwrap();
}

/// A web server of one word, and a loop that tries whoever it is told to.
async fn runs(instance: &Instance) -> (fluffy_guest::host::Connection, Watched) {
    let (connection, mut watched) = instance.connect().await;
    let script = "nc -ll -p 8080 -e echo hello & \
        while ! grep -q :1F90 /proc/net/tcp6 /proc/net/tcp; do sleep 0.05; done; \
        echo listening; sleep 1000";
    let config = instance.config(script);
    connection.configure(config, None).await.unwrap();
    watched.until_line("listening").await;
    (connection, watched)
}

/// Which of these an instance reaches, found out inside, as its user 0.
fn reached(instance: &Instance, targets: &[(String, u16)]) -> Vec<String> {
    let tries: String = targets
        .iter()
        .map(|(address, port)| {
            format!(
                "(nc -w 4 {address} {port} </dev/null 2>&1 | grep -q hello && echo {address}) &\n"
            )
        })
        .collect();
    // As a process of the instance, in all that it is in.
    let init = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", instance.shim.id()))
        .unwrap();
    let done = Command::new("nsenter")
        .args([
            "--target",
            init.trim(),
            "--all",
            "--setuid",
            "0",
            "--setgid",
            "0",
        ])
        .args(["/bin/sh", "-c", &format!("{tries} wait")])
        .env("PATH", "/bin:/usr/bin")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let mut all: Vec<String> = text.lines().map(str::to_owned).collect();
    all.sort();
    all
}

fn greets(address: Ipv6Addr) -> String {
    let address = SocketAddr::new(address.into(), 8080);
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(b"x");
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_reaches_neither_its_host_nor_another_instance() {
    let router = Router::new().await;
    let port = router.service();
    let (one, other) = (router.start(), router.start());
    let (_first, _second) = (runs(&one).await, runs(&other).await);
    let targets = [
        ("fe80::1%eth0".to_owned(), port),
        (HOST.to_owned(), port),
        (other.order.address.to_string(), 8080),
    ];
    let nobody: [String; 0] = [];
    let mut all: Vec<String> = targets.iter().map(|it| it.0.clone()).collect();
    all.sort();
    assert_eq!(reached(&one, &targets), nobody);
    let dropped = router.within(|| firewall::dropped().unwrap());
    assert!(dropped.host >= 2 && dropped.through >= 1, "{dropped:?}");
    // The control: without the rules it reaches all of them.
    router.within(flush);
    assert_eq!(reached(&one, &targets), all);
    // Whoever looks after the rules finds out, and a second time nothing.
    let found = router.within(|| [firewall::ensure().unwrap(), firewall::ensure().unwrap()]);
    assert_eq!(found, [Found::Wrong, Found::Right]);
    assert_eq!(reached(&one, &targets), nobody);
    // What the host begins is answered, and an instance can be asked whether
    // it is there.
    let address = one.order.address;
    assert_eq!(router.within(move || greets(address)), "hello\n");
    let ping = router.within(|| {
        let mut ping = Command::new("ping");
        ping.args(["-6", "-c", "1", "-W", "20", &address.to_string()]);
        ping.stdout(Stdio::null()).status()
    });
    // Not every machine has it.
    assert!(ping.map_or(true, |status| status.success()));
}

/// Whether somebody there says hello.
fn hears(address: SocketAddr, patience: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, patience) else {
        return false;
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text == "hello\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_forwarded_to_an_instance_but_from_the_mesh() {
    let router = Router::new().await;
    let port = router.service();
    let instance = router.start();
    let _running = runs(&instance).await;
    // Their interfaces begin nearly as those of instances do.
    let outside = router.neighbour("fwbr0", 1).await;
    let lookalike = router.neighbour("fw0ab", 2).await;
    let mesh = router.neighbour("fw0a", 3).await;
    let address = SocketAddr::new(instance.order.address.into(), 8080);
    let reaches = |from: &Router, patience| from.within(|| hears(address, patience));
    assert!(!reaches(&outside, SILENCE) && !reaches(&lookalike, SILENCE));
    let dropped = router.within(|| firewall::dropped().unwrap());
    assert!(dropped.through >= 2, "{dropped:?}");
    assert!(reaches(&mesh, PATIENCE));
    // The control: without the rules everybody reaches it.
    router.within(flush);
    assert!(reaches(&outside, PATIENCE) && reaches(&lookalike, PATIENCE));
    assert_eq!(router.within(|| firewall::ensure().unwrap()), Found::Wrong);
    assert!(!reaches(&outside, SILENCE));
    // What has to do with no instance is left alone.
    let host = SocketAddr::new(HOST.parse().unwrap(), port);
    for neighbour in [&outside, &lookalike, &mesh] {
        assert!(neighbour.within(|| hears(host, PATIENCE)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_are_put_in_force_again_end_no_connection() {
    let router = Router::new().await;
    let instance = router.start();
    let (connection, mut watched) = instance.connect().await;
    let script = "nc -l -p 8080 -e cat & \
        while ! grep -q :1F90 /proc/net/tcp6 /proc/net/tcp; do sleep 0.05; done; \
        echo listening; sleep 1000";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("listening").await;
    let address = SocketAddr::new(instance.order.address.into(), 8080);
    let mut stream = router.within(|| TcpStream::connect_timeout(&address, PATIENCE).unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for round in 0..3_u8 {
        stream.write_all(&[round]).unwrap();
        let mut back = [9];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, [round]);
        let found = router.within(|| {
            flush();
            firewall::ensure().unwrap()
        });
        assert_eq!(found, Found::Wrong);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_speaks_with_the_address_of_another() {
    let router = Router::new().await;
    let instance = router.start();
    let init = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", instance.shim.id()))
        .unwrap();
    let network = std::fs::File::open(format!("/proc/{}/ns/net", init.trim())).unwrap();
    let spoofed = || router.within(|| firewall::dropped().unwrap().spoofed);
    let speak = |from: Ipv6Addr| {
        in_network(&OwnedFd::from(network.try_clone().unwrap()), || {
            // No privilege is needed for that.
            let socket = rustix::net::socket_with(
                AddressFamily::INET6,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            sockopt::set_ipv6_freebind(&socket, true).unwrap();
            rustix::net::bind(&socket, &SocketAddr::new(from.into(), 0)).unwrap();
            let socket = UdpSocket::from(socket);
            socket.send_to(b"x", (HOST, 9)).unwrap();
        });
    };
    let before = spoofed();
    // The control: its own is no lie.
    speak(instance.order.address);
    assert_eq!(spoofed(), before);
    speak("fd7e:bad::1".parse().unwrap());
    wait_for("dropped packet", || spoofed() == before + 1).await;
}

#[test]
fn no_instance_starts_where_the_rules_would_not_be_about_it() {
    for other in ["xwt-", "fwbr"] {
        let odd = |order: &mut Order| order.interface = order.interface.replacen("fwt-", other, 1);
        let (_instance, word) = Instance::try_start(odd);
        let Word::Failed(failure) = word else {
            panic!("{word:?}");
        };
        assert_eq!(failure.code, "network_setup_failed");
        assert!(failure.detail.contains("no rule"), "{failure}");
    }
}
