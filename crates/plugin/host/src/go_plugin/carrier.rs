//! A plugin that carries a conversation with people.
//!
//! What people say is data; who may ask for what is decided elsewhere.

use fluffy_contract::BoxFuture;
use fluffy_contract::channel::{Channel as Carries, Incoming, Outgoing, SendMessageError};
use fluffy_policy::Permit;
use tokio::sync::Mutex;
use tonic::{Code, Status, Streaming};

use super::{Channel, origin};
use crate::wire::v1;
use v1::channel_client::ChannelClient;

/// What saying something is permitted as, on the channel's name.
const SEND: &str = "messages.send";

/// The largest message of a person, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// The channel of a started plugin.
#[derive(Debug)]
pub struct PluginChannel {
    name: String,
    channel: Channel,
    heard: Mutex<Heard>,
}

#[derive(Debug)]
enum Heard {
    NotYet,
    Open(Box<Streaming<v1::Inbound>>),
    Closed,
}

impl PluginChannel {
    /// The channel of the plugin at the other end.
    #[must_use]
    pub fn new(name: impl Into<String>, channel: Channel) -> Self {
        Self {
            name: name.into(),
            channel,
            heard: Mutex::new(Heard::NotYet),
        }
    }

    /// Who the agent is there, as `(id, name)`.
    ///
    /// # Errors
    /// The plugin does not say.
    pub async fn identity(&self) -> Result<(String, String), SendMessageError> {
        let answer = self.client().get_identity(v1::GetIdentityRequest {}).await;
        let said = answer.map_err(|status| self.disconnected(status))?;
        let v1::GetIdentityResponse { id, name } = said.into_inner();
        Ok((id, name))
    }

    fn client(&self) -> ChannelClient<Channel> {
        ChannelClient::with_origin(self.channel.clone(), origin())
            .max_decoding_message_size(MAX_TEXT)
    }

    fn disconnected(&self, status: Status) -> SendMessageError {
        SendMessageError::Disconnected {
            channel: self.name.clone(),
            source: Box::new(status),
        }
    }
}

impl Carries for PluginChannel {
    fn name(&self) -> &str {
        &self.name
    }

    fn receive(&self) -> BoxFuture<'_, Option<Incoming>> {
        Box::pin(async move {
            let mut heard = self.heard.lock().await;
            loop {
                match &mut *heard {
                    Heard::NotYet => {
                        *heard = match self.client().start(v1::StartRequest {}).await {
                            Ok(answer) => Heard::Open(Box::new(answer.into_inner())),
                            Err(_) => Heard::Closed,
                        };
                    }
                    Heard::Open(stream) => match stream.message().await {
                        Ok(Some(said)) => {
                            return Some(Incoming {
                                from: said.sender,
                                conversation: said.conversation,
                                text: said.text,
                                id: said.id,
                            });
                        }
                        Ok(None) | Err(_) => *heard = Heard::Closed,
                    },
                    Heard::Closed => return None,
                }
            }
        })
    }

    fn send(
        &self,
        permit: Permit,
        message: Outgoing,
    ) -> BoxFuture<'_, Result<(), SendMessageError>> {
        Box::pin(async move {
            let needed = format!("{SEND}.{}", self.name);
            if permit.capability().as_str() != needed {
                return Err(SendMessageError::WrongPermit {
                    permitted: permit.capability().to_string(),
                    needed,
                });
            }
            let Outgoing { conversation, text } = message;
            let request = v1::SendRequest {
                conversation: conversation.clone(),
                text,
                in_reply_to: String::new(),
            };
            match self.client().send(request).await {
                Ok(_) => Ok(()),
                Err(status) if status.code() == Code::NotFound => {
                    Err(SendMessageError::UnknownConversation {
                        channel: self.name.clone(),
                        conversation,
                    })
                }
                Err(status) => Err(self.disconnected(status)),
            }
        })
    }
}
