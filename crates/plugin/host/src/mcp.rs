//! Servers of the Model Context Protocol over their standard streams.
//!
//! Both eras: a server that answers `server/discover` is spoken to without a
//! session, any other one with the handshake of 2025-11-25 and before. Its
//! texts are data; what it wants of its host is refused, but for the folders it
//! was granted. Next: `link` for the streams, `wire` for the messages.

mod link;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fluffy_base::Span;
use fluffy_base::id::SandboxId;
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{Effect, ForeignTool, ToolOutcome, ToolOutput};
use serde_json::{Map, Value, json};

use self::link::{Era, Link, Unanswered};
use crate::connection::{CallPluginError, Connection, Gone, StartPluginError};
use crate::log::{Level, Log, Source};
use crate::room::{Entry, Room};

const PROTOCOL: &str = "mcp";

/// The version without sessions.
const STATELESS: &str = "2026-07-28";

/// The newest version with sessions, and the older ones that differ in nothing
/// we use.
const SESSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The most pages of a list, and the most tools.
const MAX_PAGES: usize = 16;
const MAX_TOOLS: usize = 256;

/// The longest description, in characters.
const MAX_TEXT: usize = 1_024;

/// Between two looks at a list that keeps changing.
const CALM: Duration = Duration::from_secs(1);

const TERMINATE: i32 = 15;

/// What a server is given, and what it may take.
#[derive(Debug, Clone)]
pub struct McpSettings {
    /// How long it may take until its tools are known.
    pub start_timeout: Duration,
    /// How long a call may take.
    pub call_timeout: Duration,
    /// The folders it was granted, for a server that asks.
    pub roots: Vec<PathBuf>,
}

/// A running server.
#[derive(Debug)]
pub struct McpPlugin {
    room: Room,
    link: Arc<Link>,
    era: Era,
    settings: McpSettings,
    tools: Arc<Mutex<Vec<ForeignTool>>>,
}

/// Starts a server, finds its era and lists its tools.
///
/// # Errors
/// Its sandbox cannot be made, it ends or stays silent, or it is no server.
pub async fn start(
    entry: Entry,
    log: Log,
    settings: McpSettings,
) -> Result<McpPlugin, StartPluginError> {
    let (room, child) = Room::open(entry).await?;
    let opened = Link::open(child, log.clone(), settings.roots.clone());
    let link = Arc::new(opened.map_err(|error| StartPluginError::Sandbox {
        source: Box::new(error),
    })?);
    let after = settings.start_timeout;
    let greeted = tokio::time::timeout(after, greet(&link, &settings)).await;
    let greeted = greeted.unwrap_or(Err(StartPluginError::Late { after }));
    match greeted {
        Ok((era, tools)) => {
            let tools = Arc::new(Mutex::new(tools));
            let listing = Listing {
                link: Arc::downgrade(&link),
                tools: Arc::downgrade(&tools),
                era,
                settings: settings.clone(),
                log,
            };
            tokio::spawn(listing.follow());
            Ok(McpPlugin {
                room,
                link,
                era,
                settings,
                tools,
            })
        }
        Err(error) => {
            room.close().await;
            Err(error)
        }
    }
}

impl McpPlugin {
    /// The version of the protocol that is spoken with it.
    #[must_use]
    pub fn version(&self) -> &'static str {
        match self.era {
            Era::Stateless => STATELESS,
            Era::Sessions => SESSIONS[0],
        }
    }

    async fn call_tool(
        &self,
        tool: &str,
        arguments: &Value,
    ) -> Result<ToolOutput, CallPluginError> {
        let arguments = match arguments {
            Value::Null => json!({}),
            other => other.clone(),
        };
        let params = with_meta(self.era, json!({"name": tool, "arguments": arguments}));
        let after = self.settings.call_timeout;
        let asked = self.link.ask("tools/call", params);
        match tokio::time::timeout(after, asked).await {
            Ok(answer) => output(answer.map_err(unanswered)?),
            Err(_) => Err(CallPluginError::Late { after }),
        }
    }

    async fn is_well(&self) -> Result<(), CallPluginError> {
        let (method, params) = match self.era {
            Era::Sessions => ("ping", json!({})),
            Era::Stateless => ("server/discover", with_meta(self.era, json!({}))),
        };
        let after = self.settings.call_timeout;
        match tokio::time::timeout(after, self.link.ask(method, params)).await {
            Ok(answer) => answer.map(drop).map_err(unanswered),
            Err(_) => Err(CallPluginError::Late { after }),
        }
    }

    /// Ends its input, then asks it, then ends it.
    async fn end(&self, grace: Duration) {
        self.link.end_input();
        let half = grace / 2;
        if tokio::time::timeout(half, self.link.gone()).await.is_err() {
            self.link.signal(TERMINATE).await;
            let _ = tokio::time::timeout(half, self.link.gone()).await;
        }
        self.room.close().await;
    }
}

impl Connection for McpPlugin {
    fn sandbox(&self) -> SandboxId {
        self.room.sandbox()
    }

    fn tools(&self) -> Vec<ForeignTool> {
        let tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools.clone()
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>> {
        Box::pin(self.call_tool(tool, arguments))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>> {
        Box::pin(self.is_well())
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.end(grace))
    }

    fn gone(&self) -> BoxFuture<'_, Gone> {
        Box::pin(self.link.gone())
    }
}

/// Finds the server's era, and lists its tools.
async fn greet(
    link: &Link,
    settings: &McpSettings,
) -> Result<(Era, Vec<ForeignTool>), StartPluginError> {
    // A server that does not know the question may say nothing at all.
    let era = era(link, settings.start_timeout / 3).await?;
    link.speaks(era);
    if era == Era::Sessions {
        let told = link.tell("notifications/initialized", json!({})).await;
        told.map_err(|error| not_started(link, error))?;
    }
    let tools = list(link, era, settings).await?;
    if era == Era::Stateless {
        let params = json!({"notifications": {"toolsListChanged": true}});
        let params = with_meta(era, params);
        // Answered when it ends, or at once by a server whose tools never
        // change; nobody waits for either.
        let _ = link.tell_later("subscriptions/listen", params).await;
    }
    Ok((era, tools))
}

/// Any other answer than one of the new era means the old one.
async fn era(link: &Link, patience: Duration) -> Result<Era, StartPluginError> {
    let discover = link.ask("server/discover", with_meta(Era::Stateless, json!({})));
    match tokio::time::timeout(patience, discover).await {
        Ok(Ok(found)) => {
            let versions = found.get("supportedVersions").and_then(Value::as_array);
            let is_ours = |version: &Value| version == STATELESS;
            return match versions {
                Some(versions) if versions.iter().any(is_ours) => Ok(Era::Stateless),
                Some(versions) => Err(speaks_others(versions)),
                None => initialize(link).await,
            };
        }
        Ok(Err(Unanswered::Fault(fault))) if fault.code == wire::UNSUPPORTED_VERSION => {
            return Err(protocol(format!(
                "it speaks other versions: {}",
                fault.text
            )));
        }
        Ok(Err(error @ (Unanswered::Gone(_) | Unanswered::Busy))) => {
            return Err(not_started(link, error));
        }
        Ok(Err(Unanswered::Fault(_))) | Err(_) => {}
    }
    initialize(link).await
}

async fn initialize(link: &Link) -> Result<Era, StartPluginError> {
    let params = json!({
        "protocolVersion": SESSIONS[0],
        "capabilities": {"roots": {"listChanged": false}},
        "clientInfo": client(),
    });
    match link.ask("initialize", params).await {
        Ok(answer) => match answer.get("protocolVersion").and_then(Value::as_str) {
            Some(version) if SESSIONS.contains(&version) => Ok(Era::Sessions),
            version => Err(protocol(format!(
                "it wants version `{}`",
                cut(version.unwrap_or("none"), 32)
            ))),
        },
        // It was slow to say so, and is of the new era after all.
        Err(Unanswered::Fault(fault)) if fault.code == wire::UNSUPPORTED_VERSION => {
            Ok(Era::Stateless)
        }
        Err(error) => Err(not_started(link, error)),
    }
}

/// All tools of a server.
async fn list(
    link: &Link,
    era: Era,
    settings: &McpSettings,
) -> Result<Vec<ForeignTool>, StartPluginError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let params = match &cursor {
            Some(cursor) => json!({"cursor": cursor}),
            None => json!({}),
        };
        let page = link.ask("tools/list", with_meta(era, params)).await;
        let mut page = page.map_err(|error| not_started(link, error))?;
        let Some(Value::Array(listed)) = page.get_mut("tools").map(Value::take) else {
            return Err(protocol("its list of tools is none".to_owned()));
        };
        tools.extend(
            listed
                .into_iter()
                .filter_map(|tool| described(tool, settings)),
        );
        if tools.len() > MAX_TOOLS {
            return Err(protocol(format!("it has more than {MAX_TOOLS} tools")));
        }
        cursor = match page.get_mut("nextCursor").map(Value::take) {
            Some(Value::String(next)) => Some(next),
            _ => return Ok(tools),
        };
    }
    Err(protocol(format!(
        "its list of tools has more than {MAX_PAGES} pages"
    )))
}

fn described(mut tool: Value, settings: &McpSettings) -> Option<ForeignTool> {
    let name = tool.get("name")?.as_str()?.to_owned();
    let summary = tool.get("description").or_else(|| tool.get("title"));
    let summary = cut(
        summary.and_then(Value::as_str).unwrap_or_default(),
        MAX_TEXT,
    );
    let parameters = tool.get_mut("inputSchema").map(Value::take);
    let timeout = u64::try_from(settings.call_timeout.as_millis()).unwrap_or(u64::MAX);
    Some(ForeignTool {
        // Until somebody who knows says otherwise.
        effect: Effect::Acts,
        name,
        summary,
        parameters: parameters.unwrap_or_else(|| json!({"type": "object"})),
        timeout: Span { millis: timeout },
    })
}

/// Lists the tools again when the server says so.
struct Listing {
    link: Weak<Link>,
    tools: Weak<Mutex<Vec<ForeignTool>>>,
    era: Era,
    settings: McpSettings,
    log: Log,
}

impl Listing {
    async fn follow(self) {
        while let Some(link) = self.link.upgrade() {
            tokio::select! {
                () = link.changed() => {}
                _ = link.gone() => return,
            }
            let listed = list(&link, self.era, &self.settings);
            let listed = tokio::time::timeout(self.settings.call_timeout, listed).await;
            let Some(tools) = self.tools.upgrade() else {
                return;
            };
            match listed {
                Ok(Ok(listed)) => {
                    *tools.lock().unwrap_or_else(PoisonError::into_inner) = listed;
                }
                _ => self.log.write(
                    Level::Warn,
                    Source::Host,
                    "it said that its tools changed, and did not list them",
                ),
            }
            drop((link, tools));
            tokio::time::sleep(CALM).await;
        }
    }
}

/// What a call answered, as text.
fn output(mut answer: Value) -> Result<ToolOutput, CallPluginError> {
    if answer.get("resultType").and_then(Value::as_str) == Some("input_required") {
        return Err(CallPluginError::Refused {
            text: "it asks for input, which was not granted".to_owned(),
        });
    }
    let is_error = answer.get("isError").and_then(Value::as_bool);
    let structured = answer.get_mut("structuredContent").map(Value::take);
    let content = match answer.get_mut("content").map(Value::take) {
        Some(Value::Array(parts)) => {
            let texts: Vec<String> = parts.into_iter().map(text_of).collect();
            match (texts.is_empty(), structured) {
                (true, Some(structured)) => structured.to_string(),
                _ => texts.join("\n"),
            }
        }
        _ => match structured {
            Some(structured) => structured.to_string(),
            None => {
                return Err(CallPluginError::Nonsense {
                    what: "a result without content".to_owned(),
                });
            }
        },
    };
    let outcome = match is_error {
        Some(true) => ToolOutcome::Failed,
        _ => ToolOutcome::Done,
    };
    Ok(ToolOutput { content, outcome })
}

/// One part of a result; what is no text is only named.
fn text_of(mut part: Value) -> String {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let word = |value: Option<&Value>| cut(value.and_then(Value::as_str).unwrap_or("?"), 256);
    match kind {
        "text" => match part.get_mut("text").map(Value::take) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        },
        "resource" => match part.pointer("/resource/text").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => format!("[resource {}]", word(part.pointer("/resource/uri"))),
        },
        "resource_link" => format!("[link {}]", word(part.get("uri"))),
        "image" | "audio" => format!("[{kind} {}]", word(part.get("mimeType"))),
        _ => "[a part of an unknown kind]".to_owned(),
    }
}

/// Parameters with what every request of the new era carries.
fn with_meta(era: Era, params: Value) -> Value {
    let Value::Object(mut params) = params else {
        return params;
    };
    if era == Era::Stateless {
        let mut meta = Map::new();
        let key = |name: &str| format!("io.modelcontextprotocol/{name}");
        meta.insert(key("protocolVersion"), json!(STATELESS));
        meta.insert(key("clientCapabilities"), json!({}));
        meta.insert(key("clientInfo"), client());
        params.insert("_meta".to_owned(), Value::Object(meta));
    }
    Value::Object(params)
}

fn client() -> Value {
    json!({"name": "fluffy", "version": env!("CARGO_PKG_VERSION")})
}

fn unanswered(error: Unanswered) -> CallPluginError {
    match error {
        Unanswered::Fault(fault) => CallPluginError::Refused { text: fault.text },
        Unanswered::Busy => CallPluginError::Refused {
            text: "too many of its calls are open".to_owned(),
        },
        Unanswered::Gone(how) => CallPluginError::Gone { how },
    }
}

fn not_started(link: &Link, error: Unanswered) -> StartPluginError {
    match error {
        Unanswered::Gone(how) => StartPluginError::Ended {
            how: match link.last_words().as_str() {
                "" => how,
                last => format!("{how}; it said last: {last}"),
            },
        },
        Unanswered::Busy => protocol("it does not answer".to_owned()),
        Unanswered::Fault(fault) => protocol(format!("it answers {}: {}", fault.code, fault.text)),
    }
}

fn speaks_others(versions: &[Value]) -> StartPluginError {
    let versions: Vec<String> = versions
        .iter()
        .filter_map(Value::as_str)
        .take(8)
        .map(|version| cut(version, 32))
        .collect();
    protocol(format!("it speaks only {}", versions.join(", ")))
}

fn protocol(what: String) -> StartPluginError {
    StartPluginError::Protocol {
        protocol: PROTOCOL,
        what,
    }
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}
