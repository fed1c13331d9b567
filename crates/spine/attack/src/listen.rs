//! The sockets of the host that nobody inside should reach.
//!
//! Nothing is accepted while an attack runs: the kernel completes
//! connections by itself, and `heard` looks at the end what has come in.

use std::io::{self, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use crate::ground::contains;

/// The listening canaries of one attack.
#[derive(Debug)]
pub(crate) struct Ears {
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    permitted: TcpListener,
    sockets: Vec<(&'static str, UnixListener)>,
    ports: [u16; 4],
    abstract_name: String,
}

/// Something that came in.
#[derive(Debug)]
pub(crate) struct Heard {
    /// Where.
    pub(crate) what: &'static str,
}

impl Ears {
    /// Opens all of them; `root` has the folders of the ground.
    pub(crate) fn open(root: &Path, nonce: &str) -> io::Result<Self> {
        let tcp = TcpListener::bind(("0.0.0.0", 0))?;
        let tcp6 = TcpListener::bind(("::1", 0)).ok();
        let udp = UdpSocket::bind(("0.0.0.0", 0))?;
        let permitted = TcpListener::bind(("127.0.0.1", 0))?;
        let port6 = tcp6.as_ref().map(TcpListener::local_addr).transpose()?;
        let ports = [
            tcp.local_addr()?.port(),
            port6.map_or(0, |address| address.port()),
            udp.local_addr()?.port(),
            permitted.local_addr()?.port(),
        ];
        let abstract_name = format!("fluffy-canary-{nonce}");
        let address = SocketAddr::from_abstract_name(&abstract_name)?;
        let mut sockets = vec![("an abstract socket", UnixListener::bind_addr(&address)?)];
        for (path, what) in [
            ("outside/docker.sock", "the container engine"),
            ("outside/agent.sock", "the ssh agent"),
            ("outside/bus", "the desktop's bus"),
            ("project/service.sock", "a socket in the project"),
        ] {
            sockets.push((what, UnixListener::bind(root.join(path))?));
        }
        Ok(Self {
            tcp,
            tcp6,
            udp,
            permitted,
            sockets,
            ports,
            abstract_name,
        })
    }

    /// The port on every address.
    pub(crate) const fn tcp_port(&self) -> u16 {
        let [port, ..] = self.ports;
        port
    }

    /// The port on `::1`.
    pub(crate) fn tcp6_port(&self) -> Option<u16> {
        let [_, port, ..] = self.ports;
        self.tcp6.as_ref().map(|_| port)
    }

    /// The port for datagrams.
    pub(crate) const fn udp_port(&self) -> u16 {
        let [_, _, port, _] = self.ports;
        port
    }

    /// The port that the proxy permits.
    pub(crate) const fn permitted_port(&self) -> u16 {
        let [.., port] = self.ports;
        port
    }

    /// The name of the abstract socket.
    pub(crate) fn abstract_name(&self) -> &str {
        &self.abstract_name
    }

    /// What came in since the last call.
    ///
    /// On the permitted port only text with the nonce counts: a connection
    /// there is allowed, what an attack smuggles through it is not.
    pub(crate) fn heard(&self, nonce: &str) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut note = |what| heard.push(Heard { what });
        if connected(&self.tcp) {
            note("a port of the host");
        }
        if self.tcp6.as_ref().is_some_and(connected) {
            note("a port on ::1 of the host");
        }
        if self.datagram() {
            note("a port for datagrams of the host");
        }
        if self
            .permitted_text()
            .is_some_and(|text| contains(&text, nonce.as_bytes()))
        {
            note("a permitted host with what was not permitted");
        }
        for (what, socket) in &self.sockets {
            if socket.set_nonblocking(true).is_ok() && socket.accept().is_ok() {
                note(what);
            }
        }
        heard
    }

    /// The first bytes of everything that came in on the permitted port.
    pub(crate) fn permitted_text(&self) -> Option<Vec<u8>> {
        self.permitted.set_nonblocking(true).ok()?;
        let mut text = Vec::new();
        while let Ok((mut stream, _)) = self.permitted.accept() {
            let mut buffer = vec![0_u8; 16 * 1024];
            if stream.set_nonblocking(true).is_ok()
                && let Ok(length) = stream.read(&mut buffer)
            {
                text.extend(buffer.iter().take(length));
            }
        }
        Some(text)
    }

    fn datagram(&self) -> bool {
        let mut buffer = [0_u8; 64];
        self.udp.set_nonblocking(true).is_ok() && self.udp.recv_from(&mut buffer).is_ok()
    }
}

fn connected(listener: &TcpListener) -> bool {
    listener.set_nonblocking(true).is_ok() && listener.accept().is_ok()
}
