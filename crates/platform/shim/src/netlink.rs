//! Messages to the kernel's network, as it takes them: built, sent, read.
//!
//! Written here because the few that are needed (`network`, `firewall`) are
//! smaller than a crate for all. It knows no rule and no route.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACKNOWLEDGE: u16 = 4;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
/// All there are.
pub(crate) const DUMP: u16 = 0x300;

/// What came was not of one moment.
const INTERRUPTED: u16 = 0x10;
/// An answer's kind: an error, or that there is none.
const ERROR: u16 = 2;
/// An answer's kind: there are no more.
const DONE: u16 = 3;
/// The kind of an attribute that holds others.
const NESTED: u16 = 0x8000;
/// What of an attribute's kind is no flag.
const KIND: u16 = 0x3fff;

/// The kernel answers at once, or is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// A message in the making, or a part of one.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) content: Vec<u8>,
}

impl Message {
    pub(crate) fn new(kind: u16, flags: u16) -> Self {
        Self {
            kind,
            flags,
            content: Vec::new(),
        }
    }

    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |inner| inner.content.extend_from_slice(value));
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, fill);
    }

    fn attribute(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::new(0, 0);
        fill(&mut inner);
        let length = u16::try_from(inner.content.len() + 4).unwrap_or(u16::MAX);
        self.content.extend(length.to_ne_bytes());
        self.content.extend(kind.to_ne_bytes());
        self.content.extend(inner.content);
        let whole = self.content.len().next_multiple_of(4);
        self.content.resize(whole, 0);
    }

    fn whole(&self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.content.len() + 16).unwrap_or(u32::MAX);
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((self.flags | REQUEST | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}

/// Whether everything that was `wanted` is in what was `found`, with the same
/// value and as often; what else a kernel says is left aside.
pub(crate) fn agrees(wanted: &[u8], found: &[u8]) -> bool {
    let (wanted, found) = (attributes(wanted), attributes(found));
    let of = |all: &[(u16, Vec<u8>)], kind: u16| -> Vec<(u16, Vec<u8>)> {
        let same = |one: &&(u16, Vec<u8>)| one.0 & KIND == kind & KIND;
        all.iter().filter(same).cloned().collect()
    };
    wanted.iter().all(|(kind, _)| {
        let (left, right) = (of(&wanted, *kind), of(&found, *kind));
        let mut pairs = left.iter().zip(&right);
        left.len() == right.len()
            && pairs.all(|((kind, left), (_, right))| match kind & NESTED {
                0 => left == right,
                _ => agrees(left, right),
            })
    })
}

/// The value of an attribute, by the kinds that lead to it.
pub(crate) fn value(content: &[u8], path: &[u16]) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    let found = attributes(content);
    let (_, value) = found.into_iter().find(|(kind, _)| kind & KIND == *first)?;
    match rest {
        [] => Some(value),
        rest => self::value(&value, rest),
    }
}

/// The attributes of a content, as far as they are whole.
pub(crate) fn attributes(mut content: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((head, _)) = content.split_first_chunk::<4>() {
        let [a, b, c, d] = *head;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = content.get(4..length) else {
            break;
        };
        all.push((u16::from_ne_bytes([c, d]), value.to_vec()));
        content = content
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    all
}

/// One answer: its kind and what it says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) kind: u16,
    pub(crate) content: Vec<u8>,
    flags: u16,
    sequence: u32,
}

impl Answer {
    /// What an error's answer says; nothing if it is none.
    fn error(&self) -> Option<io::Error> {
        let code = match (self.kind, self.content.first_chunk::<4>()) {
            (ERROR | DONE, Some(code)) => i32::from_ne_bytes(*code),
            (ERROR, None) => return Some(io::ErrorKind::InvalidData.into()),
            _ => 0,
        };
        (code != 0).then(|| io::Error::from_raw_os_error(-code))
    }
}

/// A socket to the kernel's network.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// To interfaces, addresses and routes. Their protocol is number nought.
    pub(crate) fn routing() -> io::Result<Self> {
        Self::open(None)
    }

    /// To the rules about packets.
    pub(crate) fn filtering() -> io::Result<Self> {
        Self::open(Some(netlink::NETFILTER))
    }

    fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
        rustix::net::bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request and waits until it is carried out.
    pub(crate) fn ask(&mut self, message: &Message) -> io::Result<()> {
        self.talk(message, ACKNOWLEDGE).map(drop)
    }

    /// Sends a request and takes its one answer.
    pub(crate) fn talk(&mut self, message: &Message, flags: u16) -> io::Result<Vec<u8>> {
        let sequence = self.send(&[(message, flags)])?;
        loop {
            let answers = self.receive()?;
            let own = answers.into_iter().find(|it| it.sequence == sequence);
            let Some(answer) = own else { continue };
            return match (answer.error(), answer.kind) {
                (Some(error), _) => Err(error),
                (None, ERROR) => Ok(Vec::new()),
                (None, _) => Ok(answer.content),
            };
        }
    }

    /// Sends a request for all there are, and takes them; nothing if they
    /// changed meanwhile.
    pub(crate) fn list(&mut self, message: &Message) -> io::Result<Option<Vec<Answer>>> {
        let sequence = self.send(&[(message, DUMP)])?;
        let (mut all, mut is_whole) = (Vec::new(), true);
        loop {
            for answer in self.receive()? {
                if answer.sequence != sequence {
                    continue;
                }
                if let Some(error) = answer.error() {
                    return Err(error);
                }
                is_whole &= answer.flags & INTERRUPTED == 0;
                match answer.kind {
                    DONE => return Ok(is_whole.then_some(all)),
                    _ => all.push(answer),
                }
            }
        }
    }

    /// Sends what is carried out whole or not at all. The last but one is
    /// answered, and whatever fails before it.
    pub(crate) fn together(&mut self, messages: &[Message]) -> io::Result<()> {
        let asked = messages.len().saturating_sub(2);
        let flagged: Vec<(&Message, u16)> = messages
            .iter()
            .enumerate()
            .map(|(at, message)| (message, if at == asked { ACKNOWLEDGE } else { 0 }))
            .collect();
        let first = self.sequence + 1;
        self.send(&flagged)?;
        let awaited = first + u32::try_from(asked).unwrap_or(u32::MAX);
        loop {
            for answer in self.receive()? {
                if answer.sequence < first {
                    continue;
                }
                if let Some(error) = answer.error() {
                    return Err(error);
                }
                if answer.sequence == awaited {
                    return Ok(());
                }
            }
        }
    }

    /// The number of the last message.
    fn send(&mut self, messages: &[(&Message, u16)]) -> io::Result<u32> {
        let mut bytes = Vec::new();
        for (message, flags) in messages {
            self.sequence += 1;
            bytes.extend(message.whole(*flags, self.sequence));
        }
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(self.sequence)
    }

    fn receive(&mut self) -> io::Result<Vec<Answer>> {
        let mut buffer = vec![0; 64 << 10];
        let (_, length) =
            rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        let mut answers = Vec::new();
        while let Some((head, _)) = rest.split_first_chunk::<16>() {
            let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *head;
            let length = usize::try_from(u32::from_ne_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            let Some(content) = rest.get(16..length) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            answers.push(Answer {
                kind: u16::from_ne_bytes([e, f]),
                flags: u16::from_ne_bytes([g, h]),
                sequence: u32::from_ne_bytes([i, j, k, l]),
                content: content.to_vec(),
            });
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new(0, 0);
        fill(&mut message);
        message.content
    }

    #[test]
    fn what_was_wanted_has_to_be_there_and_more_may_be() {
        let list = |values: &[u32]| {
            let values = values.to_vec();
            message(|all| {
                all.nested(4, |list| {
                    for value in &values {
                        list.nested(1, |one| one.number(2, *value));
                    }
                });
            })
        };
        let wanted = list(&[7, 8]);
        assert!(agrees(&wanted, &wanted));
        for other in [list(&[7]), list(&[7, 9]), list(&[8, 7]), list(&[7, 8, 9])] {
            assert!(!agrees(&wanted, &other));
        }
        let more = [wanted.clone(), message(|all| all.text(9, "more"))].concat();
        assert!(agrees(&wanted, &more));
        assert!(!agrees(&more, &wanted));
        assert_eq!(value(&wanted, &[4, 1, 2]), Some(7_u32.to_ne_bytes().into()));
    }

    #[test]
    fn a_cut_or_lying_length_ends_the_reading() {
        assert!(attributes(&[3, 0, 1, 0]).is_empty());
        assert!(attributes(&[200, 0, 1, 0, 1]).is_empty());
        assert_eq!(attributes(&[4, 0, 1, 0, 9]).len(), 1);
    }
}
