//! A DNS server on this machine, which also answers what nobody asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// A DNS server on this machine; ends when the test's runtime does.
#[derive(Clone)]
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    asked: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Zone {
    texts: BTreeMap<String, Vec<String>>,
    aliases: BTreeMap<String, String>,
    manner: Manner,
}

/// How it answers over UDP.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    #[default]
    Well,
    /// With lies about other questions, and garbage, before the truth.
    AfterLies,
    /// With nothing but the word that the answer is too long.
    Cut,
    /// Not at all.
    Never,
    /// That it can't.
    Failing,
    /// With garbage alone.
    Garbage,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        let (datagrams, streams) = loop {
            let datagrams = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = datagrams.local_addr().unwrap();
            // Both ways have one port; another process may have that of TCP.
            if let Ok(streams) = TcpListener::bind(address).await {
                break (datagrams, streams);
            }
        };
        let server = Self {
            address: datagrams.local_addr().unwrap(),
            zone: Arc::default(),
            asked: Arc::default(),
        };
        tokio::spawn(server.clone().serve_datagrams(datagrams));
        tokio::spawn(server.clone().serve_streams(streams));
        server
    }

    /// Sets the texts of a name.
    pub(crate) fn set(&self, name: &str, texts: &[&str]) {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        let mut zone = self.zone.lock().unwrap();
        zone.texts.insert(name.to_lowercase(), texts);
    }

    pub(crate) fn set_alias(&self, name: &str, to: &str) {
        let mut zone = self.zone.lock().unwrap();
        zone.aliases.insert(name.to_lowercase(), to.to_owned());
    }

    pub(crate) fn behave(&self, manner: Manner) {
        self.zone.lock().unwrap().manner = manner;
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    async fn serve_datagrams(self, socket: UdpSocket) {
        let mut buffer = [0; 1500];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
                continue;
            };
            self.asked.fetch_add(1, Ordering::Relaxed);
            let Ok(question) = Message::from_vec(&buffer[..length]) else {
                continue;
            };
            for answer in self.answers(&question) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    }

    async fn serve_streams(self, listener: TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = self.clone();
            tokio::spawn(async move { server.speak(stream).await });
        }
    }

    async fn speak(self, mut stream: TcpStream) -> Option<()> {
        let length = stream.read_u16().await.ok()?;
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question).await.ok()?;
        let answer = self.truth(&Message::from_vec(&question).ok()?);
        let answer = answer.to_vec().ok()?;
        let length = u16::try_from(answer.len()).ok()?;
        stream.write_all(&length.to_be_bytes()).await.ok()?;
        stream.write_all(&answer).await.ok()
    }

    /// The datagrams that answer a question, in their order.
    fn answers(&self, question: &Message) -> Vec<Vec<u8>> {
        let manner = self.zone.lock().unwrap().manner;
        let truth = self.truth(question);
        match manner {
            Manner::Never => Vec::new(),
            Manner::Garbage => vec![vec![0xff; 40], vec![], vec![0xc0; 512]],
            Manner::Well => vec![truth.to_vec().unwrap()],
            Manner::Cut => {
                let mut cut = truth;
                cut.answers.clear();
                cut.metadata.truncation = true;
                vec![cut.to_vec().unwrap()]
            }
            Manner::Failing => {
                let mut failing = truth;
                failing.answers.clear();
                failing.metadata.response_code = ResponseCode::ServFail;
                vec![failing.to_vec().unwrap()]
            }
            Manner::AfterLies => {
                let lie = RData::TXT(TXT::new(vec!["a lie".to_owned()]));
                let name = question.queries[0].name.clone();
                let mut lying = truth.clone();
                lying.answers = vec![Record::from_rdata(name, 60, lie)];
                let mut other_id = lying.clone();
                other_id.metadata.id = question.metadata.id.wrapping_add(1);
                let mut other_name = lying;
                other_name.queries[0].name = Name::from_ascii("other.example.").unwrap();
                let lies = [other_id, other_name].map(|lie| lie.to_vec().unwrap());
                let mut all = vec![vec![0xff; 40], Vec::new()];
                all.extend(lies);
                all.push(truth.to_vec().unwrap());
                all
            }
        }
    }

    fn truth(&self, question: &Message) -> Message {
        let zone = self.zone.lock().unwrap();
        let id = question.metadata.id;
        let mut answer = Message::new(id, MessageType::Response, OpCode::Query);
        answer.add_queries(question.queries.iter().cloned());
        let asked = &question.queries[0];
        assert_eq!(asked.query_type, RecordType::TXT);
        let mut name = asked.name.clone();
        let key = |name: &Name| name.to_ascii().trim_end_matches('.').to_lowercase();
        if let Some(alias) = zone.aliases.get(&key(&name)) {
            let mut to = Name::from_ascii(alias).unwrap();
            to.set_fqdn(true);
            let data = RData::CNAME(CNAME(to.clone()));
            answer.add_answer(Record::from_rdata(name, 60, data));
            name = to;
        }
        match zone.texts.get(&key(&name)) {
            None => answer.metadata.response_code = ResponseCode::NXDomain,
            Some(texts) => {
                for text in texts {
                    let data = RData::TXT(TXT::new(vec![text.clone()]));
                    answer.add_answer(Record::from_rdata(name.clone(), 60, data));
                }
            }
        }
        answer
    }
}
