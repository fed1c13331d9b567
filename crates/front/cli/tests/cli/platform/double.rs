//! A server that answers as a test says, over a socket in the test's home.
//!
//! Requests are held against the published schemas, so what the command line
//! sends is what a real server takes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use fluffy_api::operation::{Method, Operation};
use fluffy_api::problem::Problem;
use fluffy_api::request::Requests;
use serde_json::Value;

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    pub(crate) path: Vec<String>,
    pub(crate) query: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

/// What is answered.
pub(crate) enum Reply {
    Json(u16, Value),
    /// Events of a stream, which ends.
    Stream(String),
}

/// A refusal of this code.
pub(crate) fn refused(code: &str) -> Reply {
    let mut problem = Problem::new(code, "because of the test", "change the test");
    problem.request_id = "req_1".to_owned();
    Reply::Json(problem.status, serde_json::to_value(problem).unwrap())
}

/// The server.
pub(crate) struct Double {
    pub(crate) path: PathBuf,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Double {
    /// Answers at this socket as `answer` says.
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let mut folder = std::fs::DirBuilder::new();
        let folder = folder.recursive(true).mode(0o700);
        folder.create(path.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(path).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let kept = Arc::clone(&log);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (log, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || serve(stream.unwrap(), &log, answer.as_ref()));
            }
        });
        Self {
            path: path.to_owned(),
            log,
        }
    }

    /// Everything that was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

fn serve(stream: UnixStream, log: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Reply) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read(&mut reader) {
        let spec = asked.operation.spec();
        let wrong = Requests::new().check_body(asked.operation, &asked.body);
        let reply = match wrong {
            Err(problem) if spec.request.is_some() => {
                let text = format!("{problem:?}");
                Reply::Json(problem.status, serde_json::json!({"title": text}))
            }
            _ => answer(&asked),
        };
        let reads = asked.headers.get("accept").cloned();
        log.lock().unwrap().push(asked);
        let sent = match reply {
            Reply::Json(status, value) => {
                let seq = if spec.is_write() {
                    "fluffy-seq: 41\r\n"
                } else {
                    ""
                };
                let body = value.to_string();
                let head = format!(
                    "HTTP/1.1 {status} x\r\nfluffy-epoch: 1\r\nfluffy-request-id: req_1\r\n{seq}\
                     content-length: {}\r\n\r\n",
                    body.len()
                );
                writer.write_all(format!("{head}{body}").as_bytes())
            }
            Reply::Stream(events) => {
                assert_eq!(reads.as_deref(), Some("text/event-stream"));
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                            connection: close\r\n\r\n";
                let _ = writer.write_all(format!("{head}{events}").as_bytes());
                let _ = writer.shutdown(std::net::Shutdown::Both);
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<UnixStream>) -> Option<Asked> {
    let mut first = String::new();
    reader
        .read_line(&mut first)
        .ok()
        .filter(|count| *count > 0)?;
    let mut words = first.split_whitespace();
    let method = Method::parse(words.next()?)?;
    let target = words.next()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (operation, path) = Operation::find(method, path)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .map_or(0, |it| it.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked {
        operation,
        path,
        query: query.to_owned(),
        headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    })
}
