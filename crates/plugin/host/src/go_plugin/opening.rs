//! From a plugin's first line to its first call.
//!
//! Connects, asks whether it is well, serves what it may ask back, introduces
//! the host and learns its tools. Whatever is wrong ends the start.

use std::sync::Arc;

use fluffy_base::Span;
use fluffy_contract::tool::{Effect, ForeignTool};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::task::JoinSet;
use tonic::Code;

use super::handshake::{self, Handshake, HandshakeError, parse};
use super::keeper::FirstLine;
use super::meeting::Meeting;
use super::output::Lines;
use super::tls::{self, Identity};
use super::{
    Channel, GoPluginSettings, broker, cut, failed, lifecycle, protocol, served, stdio, tool, well,
};
use crate::connection::{CallPluginError, StartPluginError};
use crate::log::Source;
use crate::services::Services;
use crate::wire::{go_plugin, v1};

/// The most tools of one plugin.
const MAX_TOOLS: usize = 128;

/// The longest summary of a tool, in bytes.
const MAX_SUMMARY: usize = 1 << 10;

/// Where the host's services are announced at the plugin's broker.
const HOST_ID: u32 = 1;

/// A plugin on its way from its first line to its first call.
pub(super) struct Opening<'a> {
    pub(super) meeting: &'a Meeting,
    pub(super) identity: Option<&'a Identity>,
    pub(super) services: Arc<Services>,
    pub(super) proxy: Option<String>,
    pub(super) tasks: JoinSet<()>,
}

pub(super) struct Opened {
    pub(super) channel: Channel,
    pub(super) tools: Vec<ForeignTool>,
    pub(super) tasks: JoinSet<()>,
}

impl Opening<'_> {
    /// Goes all the way.
    pub(super) async fn open(
        mut self,
        first: FirstLine,
        settings: &GoPluginSettings,
    ) -> Result<Opened, StartPluginError> {
        // One that prints nothing and ends is told apart by its end.
        let Ok(line) = first.await else {
            return std::future::pending().await;
        };
        let line = line.ok_or_else(|| protocol(HandshakeError::TooLong))?;
        let handshake = parse(&line).map_err(protocol)?;
        let channel = self.connect(&handshake).await?;
        match well(channel.clone()).await {
            Ok(()) => {}
            Err(CallPluginError::Refused { text }) => return Err(protocol(text)),
            Err(error) => return Err(protocol(error)),
        }
        let host = self.serve(&channel, handshake.certificate.as_deref())?;
        self.listen(&channel);
        introduce(&channel, host).await?;
        let tools = describe(&channel, settings).await?;
        let tasks = self.tasks;
        Ok(Opened {
            channel,
            tools,
            tasks,
        })
    }

    async fn connect(&self, handshake: &Handshake) -> Result<Channel, StartPluginError> {
        let stream = self.meeting.connect(&handshake.socket).await;
        let stream = stream.map_err(protocol)?;
        let Some(certificate) = &handshake.certificate else {
            return Channel::over(stream).await.map_err(no_http);
        };
        let not_offered = || protocol("it wants mTLS, which was not offered");
        let identity = self.identity.ok_or_else(not_offered)?;
        let connector = identity.connector(certificate).map_err(failed)?;
        let name = tls::NAME.try_into().map_err(failed)?;
        let stream = connector.connect(name, stream).await;
        let refused = |error| protocol(format!("its TLS is refused: {error}"));
        let stream = stream.map_err(refused)?;
        Channel::over(stream).await.map_err(no_http)
    }

    /// Serves the host's services, and announces them at the plugin's broker.
    fn serve(
        &mut self,
        channel: &Channel,
        certificate: Option<&[u8]>,
    ) -> Result<v1::InitRequest, StartPluginError> {
        let (listener, plain) = self.meeting.listen("host").map_err(failed)?;
        self.serve_on(listener, None);
        let brokered = match (certificate, self.identity) {
            (Some(certificate), Some(identity)) => {
                let acceptor = identity.acceptor(certificate).map_err(failed)?;
                let (listener, path) = self.meeting.listen("host-tls").map_err(failed)?;
                self.serve_on(listener, Some(acceptor));
                path
            }
            _ => plain.clone(),
        };
        let announced = go_plugin::ConnInfo {
            service_id: HOST_ID,
            network: "unix".to_owned(),
            address: brokered.to_string_lossy().into_owned(),
        };
        let mut broker = broker(channel);
        self.tasks.spawn(async move {
            // The plugin announces nothing that is of use here. One without a
            // broker is told the socket by its path.
            let announced = stream::iter([announced]).chain(stream::pending());
            if let Ok(answer) = broker.start_stream(announced).await {
                let mut theirs = answer.into_inner();
                while let Ok(Some(_)) = theirs.message().await {}
            }
        });
        Ok(v1::InitRequest {
            api: handshake::VERSION,
            host_broker_id: HOST_ID,
            host_socket: plain.to_string_lossy().into_owned(),
        })
    }

    fn serve_on(
        &mut self,
        listener: tokio::net::UnixListener,
        tls: Option<tokio_rustls::TlsAcceptor>,
    ) {
        let (services, proxy) = (Arc::clone(&self.services), self.proxy.clone());
        self.tasks
            .spawn(served::serve(listener, tls, services, proxy));
    }

    /// Listens to what it prints once it serves; not every plugin offers that.
    fn listen(&mut self, channel: &Channel) {
        use go_plugin::stdio_data::Channel as From;
        let log = self.services.log_file().clone();
        let mut stdio = stdio(channel);
        self.tasks.spawn(async move {
            let Ok(answer) = stdio.stream_stdio(()).await else {
                return;
            };
            let mut said = answer.into_inner();
            let mut stdout = Lines::new(log.clone(), Source::Stdout);
            let mut stderr = Lines::new(log, Source::Stderr);
            while let Ok(Some(piece)) = said.message().await {
                match piece.channel() {
                    From::Stdout => stdout.feed(&piece.data),
                    From::Stderr => stderr.feed(&piece.data),
                    From::Invalid => {}
                }
            }
            stdout.finish();
            stderr.finish();
        });
    }
}

async fn introduce(channel: &Channel, host: v1::InitRequest) -> Result<(), StartPluginError> {
    match lifecycle(channel).init(host).await {
        Ok(_) => Ok(()),
        // It needs nothing of its host.
        Err(status) if status.code() == Code::Unimplemented => Ok(()),
        Err(status) => Err(protocol(format!(
            "its Init failed: {}",
            cut(status.message())
        ))),
    }
}

async fn describe(
    channel: &Channel,
    settings: &GoPluginSettings,
) -> Result<Vec<ForeignTool>, StartPluginError> {
    let described = match tool(channel).describe(v1::DescribeRequest {}).await {
        Ok(answer) => answer.into_inner().tools,
        // A plugin of another type.
        Err(status) if status.code() == Code::Unimplemented => Vec::new(),
        Err(status) => {
            let what = format!("its Describe failed: {}", cut(status.message()));
            return Err(protocol(what));
        }
    };
    if described.len() > MAX_TOOLS {
        return Err(protocol(format!("it has more than {MAX_TOOLS} tools")));
    }
    let mut tools: Vec<ForeignTool> = Vec::with_capacity(described.len());
    for one in described {
        let tool = foreign(one, settings)?;
        if tools.iter().any(|known| known.name == tool.name) {
            return Err(protocol(format!("it has two tools `{}`", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn foreign(
    described: v1::ToolDescription,
    settings: &GoPluginSettings,
) -> Result<ForeignTool, StartPluginError> {
    let v1::ToolDescription {
        name,
        summary,
        parameters,
    } = described;
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(usable) {
        return Err(protocol("one of its tools has no usable name"));
    }
    let parameters = match parameters.trim() {
        "" => serde_json::json!({ "type": "object" }),
        text => serde_json::from_str(text).unwrap_or(Value::Null),
    };
    if !parameters.is_object() {
        let what = format!("the parameters of its tool `{name}` are no JSON schema");
        return Err(protocol(what));
    }
    let end = summary.floor_char_boundary(MAX_SUMMARY.min(summary.len()));
    Ok(ForeignTool {
        // Until somebody who knows says otherwise.
        effect: Effect::Acts,
        name,
        summary: summary.get(..end).unwrap_or_default().to_owned(),
        parameters,
        timeout: Span {
            millis: u64::try_from(settings.call.as_millis()).unwrap_or(u64::MAX),
        },
    })
}

fn no_http(error: hyper::Error) -> StartPluginError {
    protocol(format!("it does not speak HTTP/2: {error}"))
}
