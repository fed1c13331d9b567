//! A tool call over go-plugin beside a bare tonic call over a unix socket.
//!
//! Ours goes to a program made from Go with HashiCorp's library, in its
//! sandbox; the reference to a tonic server on a thread of this process,
//! without TLS. Both speak the same contract and say the same back.

use std::pin::Pin;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fluffy_contract::isolation::{Command, PluginMount, SandboxSpec};
use fluffy_plugin_host::Connection as _;
use fluffy_plugin_host::go_plugin::{Channel, GoPlugin, GoPluginSettings, Tls, start};
use fluffy_plugin_host::room::Entry;
use fluffy_plugin_host::wire::v1;
use fluffy_test_kit::{GoPlugins, permit};
use futures_util::{Stream, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::codegen::Service as _;
use tonic::{Request, Response, Status};
use v1::execute_response::{Finished, Outcome, Part};
use v1::tool_client::ToolClient;
use v1::tool_server::{Tool, ToolServer};

use super::stage::Stage;
use crate::figure::{Bar, Figure, Samples, Show};

const ROUNDS: usize = 50;
const CALLS_PER_ROUND: usize = 50;

/// The median that plugins.md asks for, in seconds.
const BAR: f64 = 300e-6;

pub(super) fn run() -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let ground = Ground::new().await?;
        let mut figures = Vec::new();
        for (tls, how) in [(Tls::Offered, "with mTLS"), (Tls::Never, "plain")] {
            figures.push(ground.measure(tls, how).await?);
        }
        Ok(figures)
    })
}

struct Ground(Stage);

impl Ground {
    async fn new() -> Result<Self> {
        let stage = Stage::new().await?;
        let target = std::env::temp_dir().join("fluffy-bench");
        let built = GoPlugins::build(&target)?;
        std::fs::copy(built.tool(), stage.below("p/files/plugin"))?;
        Ok(Self(stage))
    }

    async fn measure(&self, tls: Tls, how: &str) -> Result<Figure> {
        let plugin = self.start(tls).await?;
        let mut bare = self.bare().await?;
        let arguments = serde_json::json!({ "a": "x".repeat(64) });
        let mut times = (Vec::new(), Vec::new());
        // The first round warms up and is not counted.
        for round in 0..=ROUNDS {
            for _ in 0..CALLS_PER_ROUND {
                let begun = Instant::now();
                plugin.call("echo", &arguments).await?;
                if round > 0 {
                    times.0.push(begun.elapsed().as_secs_f64());
                }
            }
            for _ in 0..CALLS_PER_ROUND {
                let begun = Instant::now();
                let request = v1::ExecuteRequest {
                    tool: "echo".to_owned(),
                    arguments: arguments.to_string(),
                };
                let mut parts = bare.execute(request).await?.into_inner();
                while parts.message().await?.is_some() {}
                if round > 0 {
                    times.1.push(begun.elapsed().as_secs_f64());
                }
            }
        }
        plugin.stop(std::time::Duration::from_secs(5)).await;
        Ok(Figure {
            what: format!("tool call of a sandboxed go-plugin, {how}"),
            ours: Samples::new(times.0, Show::Time),
            reference: Some((
                "bare tonic call in one process".into(),
                Samples::new(times.1, Show::Time),
            )),
            bar: Bar::Under(BAR),
        })
    }

    async fn start(&self, tls: Tls) -> Result<GoPlugin> {
        let below = |name: &str| self.0.below(name);
        let program = below("p/files/plugin");
        let entry = Entry {
            launcher: self.0.launcher.clone(),
            create: permit("sandbox.create", Some("plugin")),
            run: permit("exec.run", Some("bench")),
            spec: SandboxSpec {
                template: "plugin".to_owned(),
                plugin: Some(PluginMount {
                    files: below("p/files"),
                    data: None,
                    meeting: Some(below("p/meeting")),
                }),
                ..SandboxSpec::default()
            },
            command: Command::new([program.to_str().context("a path that is no text")?]),
            way: None,
        };
        let settings = GoPluginSettings {
            tls,
            ..GoPluginSettings::default()
        };
        Ok(start(entry, self.0.services()?, settings).await?)
    }

    /// The reference: server and client of tonic on one connection.
    async fn bare(&self) -> Result<ToolClient<Channel>> {
        let socket = self.0.below("bare");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        std::thread::spawn(move || -> Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let _entered = runtime.enter();
            let listener = UnixListener::from_std(listener.into_std()?)?;
            runtime.block_on(serve(listener))
        });
        let channel = Channel::over(UnixStream::connect(&socket).await?).await?;
        let origin = "http://localhost".parse()?;
        Ok(ToolClient::with_origin(channel, origin))
    }
}

async fn serve(listener: UnixListener) -> Result<()> {
    let (stream, _) = listener.accept().await?;
    let echo = hyper::service::service_fn(|request| async {
        let mut server = ToolServer::new(Echo);
        server.call(request).await
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), echo)
        .await?;
    Ok(())
}

struct Echo;

#[tonic::async_trait]
impl Tool for Echo {
    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        Ok(Response::new(v1::DescribeResponse { tools: Vec::new() }))
    }

    type ExecuteStream =
        Pin<Box<dyn Stream<Item = Result<v1::ExecuteResponse, Status>> + Send + 'static>>;

    async fn execute(
        &self,
        request: Request<v1::ExecuteRequest>,
    ) -> Result<Response<Self::ExecuteStream>, Status> {
        let arguments: serde_json::Value = serde_json::from_str(&request.get_ref().arguments)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let text = arguments.get("a").and_then(|text| text.as_str());
        let output = Part::Output(text.unwrap_or_default().to_owned());
        let finished = Part::Finished(Finished {
            outcome: Outcome::Done.into(),
        });
        let parts = [output, finished].map(|part| Ok(v1::ExecuteResponse { part: Some(part) }));
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }
}
