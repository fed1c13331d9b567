//! Who may speak through a channel, and how much: decided for each message.
//!
//! A plugin vouches for an identity, and its word makes nobody a principal: an
//! identity has a grant only if the person's own configuration names it, so a
//! stranger is denied by policy like anybody without one. What is said is data:
//! cut, and without anything that could hide or move text.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fluffy_base::id::SessionId;
use fluffy_config::Channels;
use fluffy_gate::{Answer, Gate};
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Principal, PrincipalKind};
use fluffy_tools::sanitise::harmless;
use tokio::time::Instant;

use crate::command::gate::Desk;
use crate::command::person;

/// Labels of those whom the configuration names, for rules.
const SENDER: &str = "channel_sender";
const APPROVER: &str = "channel_approver";

/// The longest message that is read, in bytes.
const MAX_TEXT: usize = 16 << 10;

/// The longest name of a conversation.
const MAX_CONVERSATION: usize = 256;

/// Who is not known is not named at greater length.
const MAX_NAME: usize = 128;

/// How many messages of one identity are looked at in a while, and how many
/// identities are counted.
const MOST: usize = 20;
const WHILE: Duration = Duration::from_secs(60);
const COUNTED: usize = 256;

/// A message that is not looked at costs at least this.
const PAUSE: Duration = Duration::from_millis(1);

/// The door of one channel.
#[derive(Debug)]
pub(super) struct Door {
    gate: Arc<Gate>,
    channel: String,
    senders: Vec<String>,
    approvers: Vec<String>,
    /// When each of them spoke last.
    spoke: BTreeMap<String, VecDeque<Instant>>,
}

/// A message that may be read.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) speaker: Speaker,
    pub(super) text: String,
}

/// Somebody who may speak.
#[derive(Debug, Clone)]
pub(super) struct Speaker {
    desk: fluffy_gate::Desk,
}

/// Why a message is not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Nobody that may speak.
    Stranger {
        /// Who, harmless.
        who: String,
    },
    /// Too much, and nobody is told.
    Flood,
}

impl Door {
    pub(super) fn new(desk: &Desk, channel: &str, named: &Channels) -> Self {
        Self {
            gate: Arc::clone(&desk.gate),
            channel: channel.to_owned(),
            senders: named.senders.clone(),
            approvers: named.approvers.clone(),
            spoke: BTreeMap::new(),
        }
    }

    /// Lets a message in, or says why not. Every one that is looked at is
    /// decided about and recorded.
    pub(super) async fn enter(
        &mut self,
        from: &str,
        conversation: &str,
        text: &str,
    ) -> Result<Entered, Refused> {
        let who = self.name(from);
        if conversation.len() > MAX_CONVERSATION || !self.has_room(&who) {
            tokio::time::sleep(PAUSE).await;
            return Err(Refused::Flood);
        }
        // What was applied meanwhile holds at once; what cannot be read leaves
        // what was there.
        let _ = self.gate.refresh();
        let Some(speaker) = self.speaker(&who) else {
            return Err(Refused::Stranger { who });
        };
        match speaker.may("messages.receive", &self.channel) {
            true => Ok(Entered {
                speaker,
                text: readable(text, MAX_TEXT),
            }),
            false => Err(Refused::Stranger { who }),
        }
    }

    /// An identity as it is configured and recorded.
    fn name(&self, from: &str) -> String {
        let from = readable(from, MAX_NAME).replace(char::is_whitespace, "_");
        format!("{}:{from}", self.channel)
    }

    fn has_room(&mut self, who: &str) -> bool {
        // Whoever is not named shares one count with all others.
        let who = match self.senders.iter().any(|one| one == who) {
            true => who,
            false => "",
        };
        if !self.spoke.contains_key(who) && self.spoke.len() >= COUNTED {
            return false;
        }
        let now = Instant::now();
        let times = self.spoke.entry(who.to_owned()).or_default();
        while times
            .front()
            .is_some_and(|time| now.duration_since(*time) > WHILE)
        {
            times.pop_front();
        }
        let has = times.len() < MOST;
        if has {
            times.push_back(now);
        }
        has
    }

    /// The principal behind a name: its grant is what the person's own
    /// configuration says, and nothing for anybody else.
    fn speaker(&self, who: &str) -> Option<Speaker> {
        let is = |list: &[String]| list.iter().any(|one| one == who);
        let (sends, approves) = (is(&self.senders), is(&self.approvers));
        let mut capabilities = Vec::new();
        if sends {
            capabilities.push(format!("messages.receive.{}", self.channel));
        }
        if sends && approves {
            capabilities.push("approval.decide.*".to_owned());
        }
        let grant = Grant::build(&GrantLists {
            capabilities,
            deny_capabilities: Vec::new(),
            workspace: vec!["*".to_owned()],
            user: vec!["*".to_owned()],
        });
        let mut principal = Principal::new(PrincipalKind::User, who, Arc::new(grant.ok()?));
        principal.on_behalf_of = Some(person::name());
        let tags = [(sends, SENDER), (sends && approves, APPROVER)];
        let tags = tags.into_iter().filter(|(has, _)| *has);
        principal.tags.extend(tags.map(|(_, tag)| tag.to_owned()));
        let gate = Arc::clone(&self.gate);
        Some(Speaker {
            desk: fluffy_gate::Desk { gate, principal },
        })
    }
}

impl Speaker {
    /// Whether they may answer what this session asks.
    pub(super) fn may_answer(&self, session: SessionId) -> bool {
        self.may("approval.decide", &session.to_string())
    }

    fn may(&self, action: &str, resource: &str) -> bool {
        let request = self
            .desk
            .request(action, Some(resource), &Context::default());
        matches!(self.desk.ask(&request), Ok(Answer::Granted(_)))
    }
}

/// A text of somebody else, harmless and cut.
pub(super) fn readable(text: &str, most: usize) -> String {
    let cut = |text: &str| {
        let end = text.floor_char_boundary(most.min(text.len()));
        text.get(..end).unwrap_or_default().to_owned()
    };
    // Writing out what was hidden makes it longer.
    cut(&harmless(&cut(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_cut_and_hides_nothing() {
        assert_eq!(readable("a\u{1b}[2Jb\u{202e}c\0", 64), "ab\\u{202e}c\\x00");
        assert_eq!(readable(&"ä".repeat(100), 5), "ää");
        assert!(readable(&"\0".repeat(1 << 20), MAX_TEXT).len() <= MAX_TEXT);
    }
}
