//! Plugins that speak go-plugin: gRPC on a socket, announced by one line.
//!
//! Wire-compatible with HashiCorp's library, so plugins made with it run
//! unchanged. The program starts in its sandbox; the meeting folder is all it
//! shares with the host. Only gRPC over a unix socket is spoken, TLS 1.3 where
//! the plugin's library answers the offered mTLS. Next: `handshake` for the
//! line, `opening` for the way to the first call, `served` for what the plugin
//! may ask back.

mod carrier;
mod channel;
mod handshake;
mod keeper;
mod meeting;
mod opening;
mod output;
mod provider;
mod served;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{ForeignTool, ToolOutcome, ToolOutput};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::codegen::http::Uri;
use tonic::{Code, Request, Status};

use crate::connection::{CallPluginError, Connection, Gone, MAX_MESSAGE, StartPluginError};
use crate::room::{Entry, Room};
use crate::services::Services;
use crate::wire::{go_plugin, health, v1};
use keeper::{Ended, Kept, Order, keep};
use meeting::Meeting;
use opening::{Opened, Opening};
use tls::Identity;

pub use carrier::PluginChannel;
pub use channel::Channel;
pub use provider::{ACTION, PluginProvider, resource};

/// The variable that tells a plugin that it is one. No secret: it only keeps
/// people from starting a plugin by hand.
pub const COOKIE: (&str, &str) = ("FLUFFY_PLUGIN", "fluffy-plugin-v1");

/// The longest text of an error that is passed on, in bytes.
const MAX_WORDS: usize = 1 << 10;

/// Between SIGTERM and the end.
const LAST_CHANCE: Duration = Duration::from_millis(500);

/// How long a plugin whose connection broke may take to be known as ended.
const FUNERAL: Duration = Duration::from_secs(5);

const SIGTERM: i32 = 15;

/// How a plugin is started and called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoPluginSettings {
    /// How long it may take until it serves.
    pub ready: Duration,
    /// How long one call may take.
    pub call: Duration,
    /// Whether mTLS is offered.
    pub tls: Tls,
}

impl Default for GoPluginSettings {
    fn default() -> Self {
        Self {
            ready: Duration::from_secs(30),
            call: Duration::from_secs(30),
            tls: Tls::Offered,
        }
    }
}

/// Whether mTLS is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// A plugin whose library knows it uses it; another one does without, on
    /// a socket that nobody else can reach either way.
    Offered,
    /// It is not.
    Never,
}

/// A started plugin that speaks go-plugin. Dropping it ends the plugin.
#[derive(Debug)]
pub struct GoPlugin {
    sandbox: SandboxId,
    channel: Channel,
    tools: Vec<ForeignTool>,
    settings: GoPluginSettings,
    kept: Kept,
    stopping: AtomicBool,
    /// What is served to it, and what it streams.
    _tasks: JoinSet<()>,
}

/// Starts a plugin in its sandbox and waits until it serves.
///
/// # Errors
/// The sandbox is refused, or the plugin ends, is late, or does not speak the
/// protocol. Then nothing of it is left.
pub async fn start(
    mut entry: Entry,
    services: Arc<Services>,
    settings: GoPluginSettings,
) -> Result<GoPlugin, StartPluginError> {
    let meeting = open_meeting(&entry)?;
    let identity = match settings.tls {
        Tls::Offered => Some(Identity::fresh().map_err(failed)?),
        Tls::Never => None,
    };
    entry
        .command
        .environment
        .extend(environment(&meeting, identity.as_ref()));
    let proxy = entry.way.is_some().then(served::proxy_address);
    let (room, child) = Room::open(entry).await?;
    let sandbox = room.sandbox();
    let ours = Meeting::open(meeting.path()).map_err(failed)?;
    let (kept, first) = keep(room, child, ours, services.log_file().clone());
    let opening = Opening {
        meeting: &meeting,
        identity: identity.as_ref(),
        services,
        proxy,
        tasks: JoinSet::new(),
    };
    let opened = tokio::select! {
        opened = timeout(settings.ready, opening.open(first, &settings)) => match opened {
            Ok(opened) => opened,
            Err(_) => Err(StartPluginError::Late { after: settings.ready }),
        },
        ended = kept.ended() => Err(before_ready(ended)),
    };
    match opened {
        Ok(Opened {
            channel,
            tools,
            tasks,
        }) => Ok(GoPlugin {
            sandbox,
            channel,
            tools,
            settings,
            kept,
            stopping: AtomicBool::new(false),
            _tasks: tasks,
        }),
        Err(error) => {
            kept.order(Order::End);
            kept.ended().await;
            Err(error)
        }
    }
}

fn open_meeting(entry: &Entry) -> Result<Meeting, StartPluginError> {
    let mount = entry.spec.plugin.as_ref();
    let folder = mount.and_then(|mount| mount.meeting.as_deref());
    let folder = folder.ok_or_else(|| protocol("it has no folder for its socket"))?;
    Meeting::open(folder).map_err(failed)
}

/// What go-plugin finds in its environment.
fn environment(meeting: &Meeting, identity: Option<&Identity>) -> Vec<(String, String)> {
    let folder = meeting.path().to_string_lossy().into_owned();
    let mut variables = vec![
        (COOKIE.0, COOKIE.1.to_owned()),
        ("PLUGIN_PROTOCOL_VERSIONS", handshake::VERSION.to_string()),
        ("PLUGIN_MIN_PORT", "10000".to_owned()),
        ("PLUGIN_MAX_PORT", "25000".to_owned()),
        // Older versions know only where temporary files go.
        ("TMPDIR", folder.clone()),
        ("PLUGIN_UNIX_SOCKET_DIR", folder),
    ];
    if let Some(identity) = identity {
        variables.push(("PLUGIN_CLIENT_CERT", identity.pem().to_owned()));
    }
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    variables.into_iter().map(owned).collect()
}

impl GoPlugin {
    async fn execute(&self, name: &str, arguments: &Value) -> Result<ToolOutput, CallPluginError> {
        if !self.tools.iter().any(|tool| tool.name == name) {
            let tool = name.to_owned();
            return Err(CallPluginError::NoSuchTool { tool });
        }
        let after = self.settings.call;
        let arguments = arguments.to_string();
        if arguments.len() > MAX_MESSAGE {
            return Err(CallPluginError::Limit {
                limit: "size of a message",
            });
        }
        let mut request = Request::new(v1::ExecuteRequest {
            tool: name.to_owned(),
            arguments,
        });
        request.set_timeout(after);
        match timeout(after, collect(&self.channel, request)).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(Fault::Call(error))) => Err(error),
            Ok(Err(Fault::Status(status))) => Err(self.fault(&status).await),
            Err(_) => Err(CallPluginError::Late { after }),
        }
    }

    /// What an RPC that failed means.
    async fn fault(&self, status: &Status) -> CallPluginError {
        // A status with a cause is ours: the connection broke.
        let broke = std::error::Error::source(status).is_some() || self.channel.is_closed();
        if !broke {
            return said(status, self.settings.call);
        }
        match timeout(FUNERAL, self.kept.ended()).await {
            Ok(ended) => CallPluginError::Gone { how: ended.how },
            Err(_) => said(status, self.settings.call),
        }
    }

    async fn end(&self, grace: Duration) {
        self.stopping.store(true, Ordering::Release);
        let asked = async {
            let half = grace / 2;
            let request = v1::ShutdownRequest {};
            let _ = timeout(half, lifecycle(&self.channel).shutdown(request)).await;
            self.kept.order(Order::CloseInput);
            // The answer is mostly that the connection broke.
            let request = go_plugin::Empty {};
            let _ = timeout(half, controller(&self.channel).shutdown(request)).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = self.kept.ended() => return,
            () = asked => {},
            () = tokio::time::sleep(grace) => {},
        }
        self.kept.order(Order::Signal(SIGTERM));
        if timeout(LAST_CHANCE, self.kept.ended()).await.is_err() {
            self.kept.order(Order::End);
            self.kept.ended().await;
        }
    }
}

impl Connection for GoPlugin {
    fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    fn tools(&self) -> Vec<ForeignTool> {
        self.tools.clone()
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>> {
        Box::pin(self.execute(tool, arguments))
    }

    fn channel(&self) -> Option<Channel> {
        Some(self.channel.clone())
    }

    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>> {
        Box::pin(async move {
            let after = self.settings.call;
            match timeout(after, well(self.channel.clone())).await {
                Ok(answer) => answer,
                Err(_) => Err(CallPluginError::Late { after }),
            }
        })
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.end(grace))
    }

    fn gone(&self) -> BoxFuture<'_, Gone> {
        Box::pin(async move {
            let Ended { how, .. } = self.kept.ended().await;
            match self.stopping.load(Ordering::Acquire) {
                true => Gone::Stopped,
                false => Gone::Crashed { how },
            }
        })
    }
}

enum Fault {
    Call(CallPluginError),
    Status(Status),
}

/// Makes one call and puts its parts together.
async fn collect(
    channel: &Channel,
    request: Request<v1::ExecuteRequest>,
) -> Result<ToolOutput, Fault> {
    use v1::execute_response::{Outcome, Part};
    let nonsense = |what: &str| {
        let what = what.to_owned();
        Fault::Call(CallPluginError::Nonsense { what })
    };
    let answer = tool(channel)
        .execute(request)
        .await
        .map_err(Fault::Status)?;
    let mut parts = answer.into_inner();
    let mut content = String::new();
    while let Some(part) = parts.message().await.map_err(Fault::Status)? {
        match part.part {
            Some(Part::Output(more)) => {
                if content.len().saturating_add(more.len()) > MAX_MESSAGE {
                    let limit = "size of an answer";
                    return Err(Fault::Call(CallPluginError::Limit { limit }));
                }
                content.push_str(&more);
            }
            Some(Part::Progress(_)) => {}
            Some(Part::Finished(finished)) => {
                let outcome = match finished.outcome() {
                    Outcome::Done => ToolOutcome::Done,
                    Outcome::Failed => ToolOutcome::Failed,
                    Outcome::Unspecified => return Err(nonsense("an outcome that is none")),
                };
                return Ok(ToolOutput { content, outcome });
            }
            None => return Err(nonsense("a part that is none")),
        }
    }
    Err(nonsense("its answer ended without an outcome"))
}

/// Asks whether a plugin is well: gRPC's way, or else by our own contract.
async fn well(channel: Channel) -> Result<(), CallPluginError> {
    use health::health_check_response::ServingStatus;
    let refused = |text: &str| {
        let text = text.to_owned();
        Err(CallPluginError::Refused { text })
    };
    let request = health::HealthCheckRequest {
        service: "plugin".to_owned(),
    };
    let mut client = health::health_client::HealthClient::with_origin(channel.clone(), origin());
    match client.check(request).await {
        Ok(answer) => match answer.into_inner().status() {
            ServingStatus::Serving => Ok(()),
            _ => refused("it says that it is not serving"),
        },
        Err(status) if matches!(status.code(), Code::Unimplemented | Code::NotFound) => {
            match lifecycle(&channel).health(v1::HealthRequest {}).await {
                Ok(answer) if answer.get_ref().well => Ok(()),
                Ok(answer) => refused(cut(&answer.get_ref().words)),
                Err(_) => refused("it has no health service for `plugin`"),
            }
        }
        Err(status) => Err(CallPluginError::Nonsense {
            what: format!("its health service failed: {}", cut(status.message())),
        }),
    }
}

/// What a plugin meant by a status.
fn said(status: &Status, after: Duration) -> CallPluginError {
    let text = cut(status.message()).to_owned();
    match status.code() {
        Code::DeadlineExceeded => CallPluginError::Late { after },
        Code::OutOfRange if text.contains("message length too large") => CallPluginError::Limit {
            limit: "size of a message",
        },
        Code::Unimplemented => CallPluginError::Nonsense { what: text },
        Code::Internal if text.starts_with("failed to decode") => {
            CallPluginError::Nonsense { what: text }
        }
        _ => CallPluginError::Refused { text },
    }
}

fn before_ready(ended: Ended) -> StartPluginError {
    let Ended { how, said } = ended;
    StartPluginError::Ended {
        how: match said.is_empty() {
            true => how,
            false => format!("{how}; it said: {said}"),
        },
    }
}

fn protocol(what: impl std::fmt::Display) -> StartPluginError {
    StartPluginError::Protocol {
        protocol: "go-plugin",
        what: what.to_string(),
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> StartPluginError {
    StartPluginError::Sandbox {
        source: Box::new(error),
    }
}

fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(MAX_WORDS.min(text.len()));
    text.get(..end).unwrap_or_default()
}

fn origin() -> Uri {
    Uri::from_static("https://localhost")
}

fn tool(channel: &Channel) -> v1::tool_client::ToolClient<Channel> {
    v1::tool_client::ToolClient::with_origin(channel.clone(), origin())
        .max_decoding_message_size(MAX_MESSAGE)
}

fn lifecycle(channel: &Channel) -> v1::plugin_lifecycle_client::PluginLifecycleClient<Channel> {
    v1::plugin_lifecycle_client::PluginLifecycleClient::with_origin(channel.clone(), origin())
}

fn controller(
    channel: &Channel,
) -> go_plugin::grpc_controller_client::GrpcControllerClient<Channel> {
    go_plugin::grpc_controller_client::GrpcControllerClient::with_origin(channel.clone(), origin())
}

fn broker(channel: &Channel) -> go_plugin::grpc_broker_client::GrpcBrokerClient<Channel> {
    go_plugin::grpc_broker_client::GrpcBrokerClient::with_origin(channel.clone(), origin())
}

fn stdio(channel: &Channel) -> go_plugin::grpc_stdio_client::GrpcStdioClient<Channel> {
    go_plugin::grpc_stdio_client::GrpcStdioClient::with_origin(channel.clone(), origin())
}
