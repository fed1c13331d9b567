//! Looks texts up in the DNS.
//!
//! Asks the servers that it was given, or those of this machine, over UDP, and
//! over TCP where an answer was cut. An answer counts only if it comes from who
//! was asked and is about what was asked; whatever else arrives is dropped.
//! Never remembers an answer: who has just made a record wants it to be found.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Where this machine says whom it asks.
const MACHINE: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// How many servers are asked, and how often each.
const SERVERS: usize = 3;
const ROUNDS: usize = 2;
/// How long one answer may take, and all together.
const ANSWER: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(10);
/// The largest answer over UDP that arrives in one piece everywhere.
const PAYLOAD: u16 = 1232;
/// How many names may stand for one another.
const ALIASES: usize = 8;

/// Looks texts up; to be cloned freely.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    servers: Vec<SocketAddr>,
}

/// Why a text could not be looked up.
#[derive(Debug, thiserror::Error)]
pub enum LookUpError {
    /// It is not a name.
    #[error("`{name}` is not a name of the DNS")]
    Name {
        /// What it is.
        name: String,
    },
    /// There is nobody to ask.
    #[error("this server knows no DNS server: there is none in `{MACHINE}`, and none was given")]
    NoServer,
    /// A server can't be reached.
    #[error("the DNS server {server} can't be reached")]
    Unreachable {
        /// Which.
        server: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A server did not answer in time.
    #[error("the DNS server {server} did not answer in time")]
    Silent {
        /// Which.
        server: SocketAddr,
    },
    /// A server could not or would not look it up.
    #[error("the DNS server {server} answered `{code}`")]
    Refused {
        /// Which.
        server: SocketAddr,
        /// What it said.
        code: ResponseCode,
    },
}

impl Dns {
    /// Asks these servers; those of this machine if there are none.
    #[must_use]
    pub const fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers }
    }

    /// The texts of a name; none if there is no such name.
    ///
    /// # Errors
    /// See [`LookUpError`]: of the server that was asked last.
    pub async fn texts(&self, name: &str) -> Result<Vec<String>, LookUpError> {
        let parsed = Name::from_ascii(name).map(|mut name| {
            name.set_fqdn(true);
            name
        });
        let parsed = parsed.map_err(|_| LookUpError::Name {
            name: name.to_owned(),
        })?;
        let servers = match self.servers.is_empty() {
            true => machine_servers(Path::new(MACHINE)),
            false => self.servers.clone(),
        };
        let mut last = LookUpError::NoServer;
        let asking = async {
            for _ in 0..ROUNDS {
                for server in servers.iter().take(SERVERS) {
                    match ask(*server, &parsed).await {
                        Ok(texts) => return Some(texts),
                        Err(error) => last = error,
                    }
                }
            }
            None
        };
        match timeout(DEADLINE, asking).await {
            Ok(Some(texts)) => Ok(texts),
            Ok(None) | Err(_) => Err(last),
        }
    }
}

/// The servers that this machine asks.
fn machine_servers(path: &Path) -> Vec<SocketAddr> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let server = words.next().filter(|word| *word == "nameserver");
        server.and_then(|_| words.next()?.parse::<IpAddr>().ok())
    });
    named.map(|address| (address, PORT).into()).collect()
}

/// Asks one server, which has its time for each way.
async fn ask(server: SocketAddr, name: &Name) -> Result<Vec<String>, LookUpError> {
    let unreachable = |source| LookUpError::Unreachable { server, source };
    let silent = |_| LookUpError::Silent { server };
    let question = question(name).map_err(unreachable)?;
    let asked = timeout(ANSWER, ask_by_datagram(server, &question)).await;
    let mut answer = asked.map_err(silent)?.map_err(unreachable)?;
    if answer.metadata.truncation {
        let asked = timeout(ANSWER, ask_by_stream(server, &question)).await;
        answer = asked.map_err(silent)?.map_err(unreachable)?;
    }
    match answer.metadata.response_code {
        ResponseCode::NoError => Ok(texts_of(&answer, name)),
        ResponseCode::NXDomain => Ok(Vec::new()),
        code => Err(LookUpError::Refused { server, code }),
    }
}

fn question(name: &Name) -> io::Result<Message> {
    // Nobody who does not see the question can guess it, nor the port that it
    // came from.
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = u16::from_be_bytes(id);
    let mut question = Message::new(id, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name.clone(), RecordType::TXT));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    question.set_edns(edns);
    Ok(question)
}

async fn ask_by_datagram(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let here: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((here, 0)).await?;
    // From here on only what this server sends arrives.
    socket.connect(server).await?;
    let sent = question.to_vec().map_err(io::Error::other)?;
    socket.send(&sent).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let received = buffer.get(..length).unwrap_or_default();
        if let Some(answer) = answer_to(question, received) {
            return Ok(answer);
        }
    }
}

async fn ask_by_stream(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let sent = question.to_vec().map_err(io::Error::other)?;
    let length = u16::try_from(sent.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(&sent).await?;
    let length = stream.read_u16().await?;
    let mut received = vec![0; usize::from(length)];
    stream.read_exact(&mut received).await?;
    let none = || io::Error::new(io::ErrorKind::InvalidData, "it answered something else");
    answer_to(question, &received).ok_or_else(none)
}

/// What was received, if it answers the question.
fn answer_to(question: &Message, received: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(received).ok()?;
    let (asked, said) = (question.queries.first()?, answer.queries.first()?);
    let fits = answer.metadata.id == question.metadata.id
        && answer.metadata.message_type == MessageType::Response
        && answer.queries.len() == 1
        && said.query_type == asked.query_type
        && said.query_class == asked.query_class
        && said.name.eq_ignore_root(&asked.name);
    fits.then_some(answer)
}

/// The texts of a name, or of what it stands for, in an answer.
fn texts_of(answer: &Message, name: &Name) -> Vec<String> {
    let mut name = name;
    for _ in 0..ALIASES {
        let own = || {
            answer
                .answers
                .iter()
                .filter(|it| it.name.eq_ignore_root(name))
        };
        let texts = own().filter_map(|record| match &record.data {
            RData::TXT(text) => String::from_utf8(text.txt_data.concat()).ok(),
            _ => None,
        });
        let texts: Vec<String> = texts.collect();
        let alias = own().find_map(|record| match &record.data {
            RData::CNAME(alias) => Some(&alias.0),
            _ => None,
        });
        match alias {
            Some(alias) if texts.is_empty() => name = alias,
            _ => return texts,
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::{CNAME, TXT};

    use super::*;

    fn name(text: &str) -> Name {
        let mut name = Name::from_ascii(text).unwrap();
        name.set_fqdn(true);
        name
    }

    fn text(of: &str, parts: &[&str]) -> Record {
        let parts = parts.iter().map(|part| (*part).to_owned()).collect();
        Record::from_rdata(name(of), 60, RData::TXT(TXT::new(parts)))
    }

    fn alias(of: &str, to: &str) -> Record {
        Record::from_rdata(name(of), 60, RData::CNAME(CNAME(name(to))))
    }

    fn answer(records: Vec<Record>) -> Message {
        let mut answer = Message::response(7, OpCode::Query);
        answer.add_query(Query::query(name("a.example.com"), RecordType::TXT));
        answer.add_answers(records);
        answer
    }

    #[test]
    fn texts_are_those_of_the_name_and_of_what_it_stands_for() {
        let records = vec![
            alias("A.example.com", "b.example.net"),
            text("b.example.net", &["one ", "text"]),
            text("c.example.net", &["of another"]),
        ];
        let texts = texts_of(&answer(records), &name("a.example.com"));
        assert_eq!(texts, ["one text"]);
        let circle = vec![
            alias("a.example.com", "b.example.net"),
            alias("b.example.net", "a.example.com"),
        ];
        assert!(texts_of(&answer(circle), &name("a.example.com")).is_empty());
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let mut question = question(&name("a.example.com")).unwrap();
        question.metadata.id = 7;
        let sound = answer(Vec::new());
        assert!(answer_to(&question, &sound.to_vec().unwrap()).is_some());
        let mut other_id = sound.clone();
        other_id.metadata.id = 8;
        let mut other_name = sound.clone();
        other_name.queries[0].name = name("b.example.com");
        let mut other_type = sound.clone();
        other_type.queries[0].query_type = RecordType::A;
        let mut no_answer = sound.clone();
        no_answer.metadata.message_type = MessageType::Query;
        let mut no_question = sound.clone();
        no_question.queries.clear();
        for wrong in [other_id, other_name, other_type, no_answer, no_question] {
            assert!(answer_to(&question, &wrong.to_vec().unwrap()).is_none());
        }
        let sound = sound.to_vec().unwrap();
        for length in 0..sound.len() {
            assert!(answer_to(&question, &sound[..length]).is_none());
        }
    }

    #[test]
    fn the_machine_says_whom_it_asks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("resolv.conf");
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 192.0.2.1\n\
                    nameserver fe80::1%eth0\nnameserver\nnameserver 2001:db8::1 # ours\n";
        std::fs::write(&path, text).unwrap();
        let servers = machine_servers(&path);
        let expected = ["192.0.2.1:53", "[2001:db8::1]:53"];
        assert_eq!(servers, expected.map(|text| text.parse().unwrap()));
        assert!(machine_servers(Path::new("/nonexistent")).is_empty());
    }
}
