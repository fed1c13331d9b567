//! A whole server on this machine, and a client that trusts no answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fluffy_api::client::{Answer, Ask, CallError, Client, Target};
use fluffy_api::{Operation, openapi};
use fluffy_base::Digest;
use fluffy_control::call::ResolvedImage;
use fluffy_control::event::ResolvedDigest;
use fluffy_ledger::{LedgerOptions, Signing};
use fluffy_server::backend::Control;
use fluffy_server::dns::Dns;
use fluffy_server::exec::Execs;
use fluffy_server::hashes::Hashes;
use fluffy_server::hostnames::Hostnames;
use fluffy_server::http::{self, HttpService, Listener, RateLimits};
use fluffy_server::loops::lease::Timing;
use fluffy_server::material::{FindImage, Workshop};
use fluffy_server::node::NodeDoor;
use fluffy_server::platform::{Founder, Storage};
use fluffy_server::safe::Safe;
use fluffy_server::server::{Options, Server};
use jsonschema::Validator;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::crew::Crew;
use crate::nameserver::NameServer;

/// A whole server, as `fluffy up` runs it.
pub(crate) struct House {
    pub(crate) server: Server,
    pub(crate) crew: Crew,
    /// What answers, for what is asked of it directly.
    pub(crate) service: HttpService<Control>,
    pub(crate) folder: TempDir,
    /// Where its server looks hostnames up.
    pub(crate) names: NameServer,
    /// Where it answers by TLS.
    pub(crate) url: String,
    /// The certificate to trust there.
    pub(crate) ca: String,
}

impl House {
    pub(crate) async fn start() -> Self {
        Self::start_with(LedgerOptions::default()).await
    }

    /// The same with another clock, or whatever else a ledger has.
    pub(crate) async fn start_with(ledger: LedgerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let signing = Some(Signing::in_directory(&folder.path().join("notary")));
        let options = Options {
            storage: Storage::Directory(folder.path().to_owned()),
            ledger: LedgerOptions { signing, ..ledger },
            founder: Founder::Local,
            timing: Timing::default(),
        };
        let mut server = Server::start(options).await.unwrap();
        let platform = server.platform().clone();
        let (safe, error) = Safe::open(platform.aside().clone(), &folder.path().join("keys"));
        assert!(error.is_none(), "{error:?}");
        let localhost = ["localhost".to_owned()];
        let door = NodeDoor::open(&platform, &safe, &localhost).await.unwrap();
        let execs = Execs::new(platform.clone(), safe.clone(), door.server().clone());
        let hashes = Hashes::new(platform.aside().clone());
        let names = NameServer::start().await;
        let hostnames = Hostnames {
            dns: Dns::new(vec![names.address]),
            suffix: Some("apps.example.org".to_owned()),
        };
        server.verify_routes(hostnames.clone());
        let workshop = Workshop::new(hashes, safe, images()).with_hostnames(hostnames);
        let behind = (execs, door.server().logs());
        let owner = Some(rustix::process::geteuid().as_raw());
        let control = Control::new(platform.clone(), workshop, behind, owner);
        let options = http::Options {
            rates: RateLimits {
                reads: 1_000_000,
                writes: 1_000_000,
                logins: 1_000_000,
                execs: 1_000_000,
                watches: 1_000,
                ..RateLimits::default()
            },
            ..http::Options::default()
        };
        let service = HttpService::new(control, options);
        let socket = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
        let acceptor = http::Tls::new(vec![key.cert.der().clone()], private).unwrap();
        let public = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", public.local_addr().unwrap().port());
        for listener in [Listener::Local(socket), Listener::Public(public, acceptor)] {
            let stop = server.stopping();
            server.open_door(service.clone().serve(listener, stop));
        }
        Self {
            crew: Crew { platform },
            service,
            names,
            server,
            folder,
            url,
            ca: key.cert.pem(),
        }
    }

    /// The owner, on the local socket.
    pub(crate) async fn owner(&self) -> Client {
        let socket = self.folder.path().join("api.sock");
        Client::connect(Target::Socket(socket)).await.unwrap()
    }

    /// An instance of the app `shop`, on a node that nobody reaches.
    pub(crate) async fn instance(&self) -> String {
        self.crew.join(1).await;
        self.crew.app("shop").await;
        let release = self.crew.release("shop", "1", 1).await;
        self.crew.deploy("shop", &release).await;
        let ready = self.crew.tend_until("an instance runs", |state| {
            let mut instances = state.runtime.plan.instances.iter();
            let ready = instances.find(|(_, instance)| instance.observed.was_ready);
            ready.map(|(id, _)| id.to_string())
        });
        ready.await
    }

    /// What the server counts, as operators read it.
    pub(crate) async fn metrics(&self) -> String {
        metrics(self.folder.path()).await
    }

    /// Somebody with a token, by TLS.
    pub(crate) async fn bearer(&self, token: &str) -> Client {
        let target = Target::Https {
            url: self.url.clone(),
            ca: Some(self.ca.clone()),
        };
        let client = Client::connect(target).await.unwrap();
        client.with_token(token.to_owned().into())
    }
}

/// What the server of this folder counts, as operators read it.
pub(crate) async fn metrics(folder: &Path) -> String {
    ask(folder, "/metrics").await
}

/// What the server of this folder answers at a path, head and all.
pub(crate) async fn ask(folder: &Path, path: &str) -> String {
    let socket = folder.join("api.sock");
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let ask = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Every reference stands for an image of that name.
fn images() -> FindImage {
    Arc::new(|wanted| {
        let image = wanted.name;
        let digest = format!("sha256:{}", Digest::of(image.as_bytes()));
        Box::pin(std::future::ready(Ok(ResolvedImage {
            image_ref: image,
            index_or_manifest_digest: digest.clone(),
            resolved_digests: vec![ResolvedDigest {
                os: "linux".to_owned(),
                arch: "amd64".to_owned(),
                digest,
            }],
            compressed_bytes: 1 << 20,
        })))
    })
}

/// Holds every answer against the document.
#[derive(Clone)]
pub(crate) struct Judge {
    validators: Arc<BTreeMap<(&'static str, u16), Validator>>,
    pub(crate) notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
pub(crate) struct Notes {
    /// Operations that answered with success.
    pub(crate) reached: BTreeSet<&'static str>,
    pub(crate) problems: Vec<String>,
}

impl Judge {
    pub(crate) fn new() -> Self {
        let document = openapi::document();
        let mut validators = BTreeMap::new();
        for operation in Operation::ALL {
            let spec = operation.spec();
            let path = &document["paths"][spec.path][spec.method.as_str().to_lowercase()];
            for status in [spec.success, 202] {
                let response = &path["responses"][status.to_string()];
                let mut schema = response["content"]["application/json"]["schema"].clone();
                if schema.is_null() {
                    continue;
                }
                schema["components"] = document["components"].clone();
                let validator = jsonschema::draft202012::new(&schema).unwrap();
                validators.insert((spec.id, status), validator);
            }
        }
        Self {
            validators: Arc::new(validators),
            notes: Arc::default(),
        }
    }

    /// Calls an operation and notes what is wrong with its answer.
    pub(crate) async fn call(&self, client: &Client, ask: Ask<'_>, operation: Operation) -> Value {
        let id = operation.spec().id;
        match client.call(ask).await {
            Ok(Answer { status, value, .. }) => {
                self.notes.lock().unwrap().reached.insert(id);
                match self.validators.get(&(id, status)) {
                    None => self.note(format!("{id}: status {status} is not documented")),
                    Some(validator) => {
                        for error in validator.iter_errors(&value) {
                            self.note(format!(
                                "{id}: {error} at `{}`: {value}",
                                error.instance_path()
                            ));
                        }
                    }
                }
                value
            }
            Err(CallError::Refused(problem)) => {
                self.note(format!(
                    "{id}: {} {}: {}",
                    problem.status, problem.code, problem.detail
                ));
                json!({ "id": "none", "version": 0 })
            }
            Err(error) => {
                self.note(format!("{id}: {error:?}"));
                json!({ "id": "none", "version": 0 })
            }
        }
    }

    fn note(&self, problem: String) {
        self.notes.lock().unwrap().problems.push(problem);
    }
}

/// How long something may take that goes on in the background.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
