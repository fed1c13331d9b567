//! A plugin that answers for models.
//!
//! Says what the contract says, in its words, and bounds an answer; what a
//! plugin wants to see again goes back to that plugin alone.

use std::collections::VecDeque;
use std::time::Duration;

use fluffy_contract::BoxFuture;
use fluffy_contract::model::{
    Effort, FaultKind, Message, ModelEvent, ModelFault, ModelProvider, ModelStream, Opaque, Part,
    Retry, Role, StartTurnError, StopReason, ToolCall, Turn, Usage,
};
use fluffy_contract::tool::ToolOutcome;
use fluffy_policy::Permit;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status, Streaming};

use super::{Channel, cut, origin};
use crate::connection::MAX_MESSAGE;
use crate::wire::v1;
use v1::provider_client::ProviderClient;

/// How long nothing may come.
const SILENCE: Duration = Duration::from_secs(120);

/// How long a whole answer may take, however steadily it comes.
const LONGEST: Duration = Duration::from_secs(1800);

/// The most models that are listed, and the longest name of one.
const MAX_MODELS: usize = 64;
const MAX_NAME: usize = 128;

/// No token of any vocabulary is longer than this, in bytes, on average: so
/// many were used at least, whatever a provider says.
const TOKEN: usize = 32;

/// The most tokens of one turn that are believed.
const MAX_TOKENS: u64 = 1 << 32;

/// What a turn is permitted as.
pub const ACTION: &str = "model.generate";

/// What rules call a model of a plugin, and people too.
#[must_use]
pub fn resource(plugin: &str, model: &str) -> String {
    format!("plugin:{plugin}/{model}")
}

/// Models of a started plugin.
#[derive(Debug)]
pub struct PluginProvider {
    name: String,
    channel: Channel,
}

impl PluginProvider {
    /// The models of the plugin at the other end.
    #[must_use]
    pub fn new(name: impl Into<String>, channel: Channel) -> Self {
        let name = name.into();
        Self { name, channel }
    }

    /// The names of its models, as many as can be asked for.
    ///
    /// # Errors
    /// In its own words, cut.
    pub async fn models(&self) -> Result<Vec<String>, String> {
        let answer = self.client().list_models(v1::ListModelsRequest {}).await;
        let answer = answer.map_err(|status| cut(status.message()).to_owned())?;
        let models = answer.into_inner().models.into_iter();
        let usable = |name: &String| {
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let names = models.map(|model| model.name).filter(usable);
        Ok(names.take(MAX_MODELS).collect())
    }

    fn client(&self) -> ProviderClient<Channel> {
        ProviderClient::with_origin(self.channel.clone(), origin())
            .max_decoding_message_size(MAX_MESSAGE)
    }

    /// How what it wants to see again is told from that of others.
    fn wire(&self) -> String {
        format!("plugin/{}", self.name)
    }

    fn request(&self, turn: Turn) -> v1::ChatRequest {
        use v1::chat_request::Effort as Theirs;
        let effort = match turn.effort {
            None => Theirs::Unspecified,
            Some(Effort::Low) => Theirs::Low,
            Some(Effort::Medium) => Theirs::Medium,
            Some(Effort::High) => Theirs::High,
        };
        let tools = turn.tools.into_iter().map(|tool| v1::ToolDescription {
            name: tool.name,
            summary: tool.summary,
            parameters: tool.parameters.to_string(),
        });
        let messages = turn.messages.into_iter();
        v1::ChatRequest {
            model: turn.model,
            messages: messages.map(|message| self.message(message)).collect(),
            tools: tools.collect(),
            answer_tokens: turn.max_output_tokens,
            effort: effort.into(),
            conversation: turn.conversation.unwrap_or_default(),
        }
    }

    fn message(&self, message: Message) -> v1::ChatMessage {
        use v1::chat_message::Role as Theirs;
        let role = match message.role {
            Role::System => Theirs::System,
            Role::User => Theirs::Person,
            Role::Assistant => Theirs::Model,
            Role::Tool => Theirs::Tool,
        };
        let parts = message.parts.into_iter().map(|part| self.part(part));
        v1::ChatMessage {
            role: role.into(),
            parts: parts.collect(),
        }
    }

    fn part(&self, part: Part) -> v1::ChatPart {
        use v1::chat_part::Part as Theirs;
        let (part, opaque) = match part {
            Part::Text { text, opaque } => (Theirs::Text(text), opaque),
            Part::Reasoning { text, opaque } => (Theirs::Reasoning(text), opaque),
            Part::ToolCall(ToolCall {
                id,
                name,
                arguments,
                opaque,
            }) => {
                let arguments = arguments.to_string();
                let tool = name;
                (
                    Theirs::Call(v1::ToolCall {
                        id,
                        tool,
                        arguments,
                    }),
                    opaque,
                )
            }
            Part::ToolResult {
                call,
                content,
                outcome,
            } => {
                let failed = outcome == ToolOutcome::Failed;
                let id = call;
                (
                    Theirs::Result(v1::ToolResult {
                        id,
                        content,
                        failed,
                    }),
                    None,
                )
            }
        };
        let own = opaque.filter(|opaque| opaque.wire == self.wire());
        let opaque = own.and_then(|opaque| opaque.value.as_str().map(str::to_owned));
        v1::ChatPart {
            part: Some(part),
            opaque: opaque.unwrap_or_default(),
        }
    }
}

impl ModelProvider for PluginProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(
        &self,
        permit: Permit,
        turn: Turn,
    ) -> BoxFuture<'_, Result<Box<dyn ModelStream>, StartTurnError>> {
        Box::pin(async move {
            let needed = resource(&self.name, &turn.model);
            if permit.action() != ACTION || permit.resource() != Some(&*needed) {
                return Err(StartTurnError::WrongPermit {
                    provider: self.name.clone(),
                    permitted: permit.capability().to_string(),
                });
            }
            let model = turn.model.clone();
            let request = self.request(turn);
            let asked = prost::Message::encoded_len(&request);
            let mut client = self.client();
            let answer =
                Box::pin(
                    async move { client.chat(request).await.map(tonic::Response::into_inner) },
                );
            Ok(Box::new(Answer {
                state: State::Asked(answer),
                ready: VecDeque::new(),
                asked,
                size: 0,
                until: Instant::now() + LONGEST,
                wire: self.wire(),
                model,
            }) as Box<dyn ModelStream>)
        })
    }
}

/// A running answer.
struct Answer {
    state: State,
    ready: VecDeque<ModelEvent>,
    /// Bytes of the question, and of the answer so far.
    asked: usize,
    size: usize,
    until: Instant,
    wire: String,
    model: String,
}

enum State {
    Asked(BoxFuture<'static, Result<Streaming<v1::ChatResponse>, Status>>),
    Answering(Box<Streaming<v1::ChatResponse>>),
    Over,
}

impl ModelStream for Answer {
    fn next(&mut self) -> BoxFuture<'_, Option<ModelEvent>> {
        Box::pin(async move {
            loop {
                if let Some(event) = self.ready.pop_front() {
                    return Some(event);
                }
                let silence = Instant::now() + SILENCE;
                match timeout_at(silence.min(self.until), self.advance()).await {
                    Ok(Some(Ok(()))) => {}
                    Ok(None) => return None,
                    Ok(Some(Err(fault))) => return Some(self.end(fault)),
                    Err(_) => {
                        let (again, what) = match Instant::now() < self.until {
                            true => (Retry::Later, "it went silent"),
                            false => (Retry::Never, "its answer took longer than any may"),
                        };
                        return Some(self.end(fault(FaultKind::TimedOut, again, what)));
                    }
                }
            }
        })
    }
}

impl Answer {
    /// Takes the next part in; nothing when the answer is over.
    async fn advance(&mut self) -> Option<Result<(), ModelFault>> {
        match &mut self.state {
            State::Over => None,
            State::Asked(answer) => match answer.await {
                Ok(parts) => {
                    self.state = State::Answering(Box::new(parts));
                    Some(Ok(()))
                }
                Err(status) => Some(Err(meaning(&status))),
            },
            State::Answering(parts) => match parts.message().await {
                Ok(Some(part)) => Some(self.take(part)),
                Ok(None) => Some(Err(malformed("its answer ended without a reason"))),
                Err(status) => Some(Err(meaning(&status))),
            },
        }
    }

    fn take(&mut self, part: v1::ChatResponse) -> Result<(), ModelFault> {
        use v1::chat_response::Part as Theirs;
        self.size = self.size.saturating_add(prost::Message::encoded_len(&part));
        if self.size > MAX_MESSAGE {
            return Err(malformed("its answer is larger than any may be"));
        }
        match part.part {
            Some(Theirs::Text(text)) => self.ready.push_back(ModelEvent::TextDelta { text }),
            Some(Theirs::TextEnd(opaque)) => {
                if let Some(opaque) = self.opaque(opaque) {
                    self.ready.push_back(ModelEvent::TextEnd { opaque });
                }
            }
            Some(Theirs::Reasoning(text)) => {
                self.ready.push_back(ModelEvent::ReasoningDelta { text });
            }
            Some(Theirs::ReasoningEnd(opaque)) => {
                let opaque = self.opaque(opaque);
                self.ready.push_back(ModelEvent::ReasoningEnd { opaque });
            }
            Some(Theirs::Call(made)) => self.call(made)?,
            Some(Theirs::Finished(finished)) => self.finish(finished)?,
            None => return Err(malformed("a part that is none")),
        }
        Ok(())
    }

    fn call(&mut self, made: v1::ChatCall) -> Result<(), ModelFault> {
        let Some(v1::ToolCall {
            id,
            tool,
            arguments,
        }) = made.call
        else {
            return Err(malformed("a call that is none"));
        };
        let opaque = self.opaque(made.opaque);
        self.ready.extend([
            ModelEvent::ToolCallStart {
                id: id.clone(),
                name: tool,
            },
            ModelEvent::ToolCallDelta {
                id: id.clone(),
                arguments,
            },
            ModelEvent::ToolCallEnd { id, opaque },
        ]);
        Ok(())
    }

    fn finish(&mut self, finished: v1::ChatFinished) -> Result<(), ModelFault> {
        use v1::chat_finished::Reason;
        let reason = match finished.reason() {
            Reason::Complete => StopReason::EndTurn,
            Reason::Calls => StopReason::ToolCalls,
            Reason::Length => StopReason::Length,
            Reason::Refused => StopReason::Refused,
            Reason::Unspecified => return Err(malformed("a reason that is none")),
        };
        let least = |bytes: usize| u64::try_from(bytes / TOKEN).unwrap_or(MAX_TOKENS);
        let input_tokens = finished.input_tokens.clamp(least(self.asked), MAX_TOKENS);
        let usage = Usage {
            input_tokens,
            cached_tokens: finished.cached_tokens.min(input_tokens),
            output_tokens: finished.output_tokens.clamp(least(self.size), MAX_TOKENS),
            ..Usage::default()
        };
        self.ready.push_back(ModelEvent::Usage(usage));
        self.ready.push_back(ModelEvent::Done { reason });
        self.state = State::Over;
        Ok(())
    }

    fn opaque(&self, text: String) -> Option<Opaque> {
        (!text.is_empty()).then(|| Opaque {
            wire: self.wire.clone(),
            model: self.model.clone(),
            value: Value::String(text),
        })
    }

    fn end(&mut self, fault: ModelFault) -> ModelEvent {
        self.state = State::Over;
        ModelEvent::Error(fault)
    }
}

/// What a status of a provider means.
fn meaning(status: &Status) -> ModelFault {
    // One with a cause is ours: the connection broke, and with it the plugin.
    if std::error::Error::source(status).is_some() {
        let what = "the plugin ended in the middle of an answer";
        return fault(FaultKind::Network, Retry::Later, what);
    }
    let (kind, again) = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => (FaultKind::Authentication, Retry::Never),
        Code::ResourceExhausted => (FaultKind::RateLimited, Retry::Later),
        Code::InvalidArgument | Code::FailedPrecondition => {
            (FaultKind::InvalidRequest, Retry::Never)
        }
        Code::OutOfRange => (FaultKind::ContextTooLong, Retry::Never),
        Code::NotFound | Code::Unimplemented => (FaultKind::NotFound, Retry::Never),
        Code::DeadlineExceeded => (FaultKind::TimedOut, Retry::Later),
        Code::Unavailable => (FaultKind::Overloaded, Retry::Later),
        _ => (FaultKind::Network, Retry::Later),
    };
    fault(kind, again, status.message())
}

fn malformed(what: &str) -> ModelFault {
    fault(FaultKind::Malformed, Retry::Never, what)
}

fn fault(kind: FaultKind, retryable: Retry, message: &str) -> ModelFault {
    ModelFault {
        kind,
        message: cut(message).to_owned(),
        retryable,
    }
}
