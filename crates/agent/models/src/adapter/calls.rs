//! The tool calls of one answer, whatever order and shape they come in.
//!
//! Makes sure that every call starts once, has arguments, ends once and has an
//! id that is unique in the conversation: imitators of the vendors leave ids
//! out, use one for all, or send arguments whole. Never parses the arguments.

use std::collections::BTreeSet;

use fluffy_contract::model::{ModelEvent, Opaque, Part, Turn};

/// More calls than this in one answer are not taken.
const MAX_CALLS: usize = 128;

/// The calls of one answer.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    used: BTreeSet<String>,
    open: Vec<OpenCall>,
    started: usize,
}

#[derive(Debug)]
struct OpenCall {
    key: u64,
    id: String,
    said: Option<String>,
    has_arguments: bool,
}

impl Calls {
    /// Knows the ids that the conversation has used already.
    pub(crate) fn after(turn: &Turn) -> Self {
        let parts = turn.messages.iter().flat_map(|message| &message.parts);
        let used = parts.filter_map(|part| match part {
            Part::ToolCall(call) => Some(call.id.clone()),
            Part::Text { .. } | Part::Reasoning { .. } | Part::ToolResult { .. } => None,
        });
        Self {
            used: used.collect(),
            ..Self::default()
        }
    }

    /// Whether any call has started.
    pub(crate) const fn any(&self) -> bool {
        self.started > 0
    }

    /// How many calls have started.
    pub(crate) const fn count(&self) -> usize {
        self.started
    }

    /// Whether a call with this key is open.
    pub(crate) fn is_open(&self, key: u64) -> bool {
        self.open.iter().any(|call| call.key == key)
    }

    /// Whether a piece with a name, and perhaps an id, begins another call
    /// than the open one with this key.
    pub(crate) fn is_another(&self, key: u64, id: Option<&str>) -> bool {
        let open = self.open.iter().find(|call| call.key == key);
        open.is_some_and(|call| match (&call.said, id) {
            (Some(said), Some(id)) => said != id,
            // Without ids only complete calls follow each other.
            (None, None) => call.has_arguments,
            (None, Some(_)) | (Some(_), None) => false,
        })
    }

    /// The key of the call that started last and is still open.
    pub(crate) fn last_open(&self) -> Option<u64> {
        self.open.last().map(|call| call.key)
    }

    /// A call begins; an open one with the same key ends first.
    pub(crate) fn start(
        &mut self,
        key: u64,
        id: Option<&str>,
        name: &str,
        out: &mut Vec<ModelEvent>,
    ) {
        self.end(key, None, out);
        if self.started >= MAX_CALLS {
            return;
        }
        self.started += 1;
        let said = id.map(str::to_owned);
        let id = self.unique(id);
        out.push(ModelEvent::ToolCallStart {
            id: id.clone(),
            name: name.to_owned(),
        });
        self.open.push(OpenCall {
            key,
            id,
            said,
            has_arguments: false,
        });
    }

    /// A piece of arguments.
    pub(crate) fn delta(&mut self, key: u64, arguments: &str, out: &mut Vec<ModelEvent>) {
        let call = self.open.iter_mut().find(|call| call.key == key);
        let Some(call) = call.filter(|_| !arguments.is_empty()) else {
            return;
        };
        call.has_arguments = true;
        out.push(ModelEvent::ToolCallDelta {
            id: call.id.clone(),
            arguments: arguments.to_owned(),
        });
    }

    /// All arguments at once, where there were no pieces before.
    pub(crate) fn whole(&mut self, key: u64, arguments: &str, out: &mut Vec<ModelEvent>) {
        let has_none = |call: &OpenCall| call.key == key && !call.has_arguments;
        if self.open.iter().any(has_none) {
            self.delta(key, arguments, out);
        }
    }

    /// A call is complete; without arguments it gets `{}`.
    pub(crate) fn end(&mut self, key: u64, opaque: Option<Opaque>, out: &mut Vec<ModelEvent>) {
        let Some(at) = self.open.iter().position(|call| call.key == key) else {
            return;
        };
        let call = self.open.remove(at);
        if !call.has_arguments {
            out.push(ModelEvent::ToolCallDelta {
                id: call.id.clone(),
                arguments: "{}".to_owned(),
            });
        }
        out.push(ModelEvent::ToolCallEnd {
            id: call.id,
            opaque,
        });
    }

    /// All open calls are complete.
    pub(crate) fn end_all(&mut self, out: &mut Vec<ModelEvent>) {
        while let Some(key) = self.open.first().map(|call| call.key) {
            self.end(key, None, out);
        }
    }

    fn unique(&mut self, wanted: Option<&str>) -> String {
        if let Some(id) = wanted.filter(|id| !id.is_empty())
            && self.used.insert(id.to_owned())
        {
            return id.to_owned();
        }
        // Counting from what is used ends at a free one.
        let mut number = self.used.len() + 1;
        loop {
            let id = format!("call_{number}");
            if self.used.insert(id.clone()) {
                return id;
            }
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_repeated_ids_are_made_unique() {
        let mut calls = Calls {
            used: BTreeSet::from(["call_1".to_owned()]),
            ..Calls::default()
        };
        let mut out = Vec::new();
        for (key, id) in [
            (0, None),
            (1, Some("same")),
            (2, Some("same")),
            (3, Some("")),
        ] {
            calls.start(key, id, "t", &mut out);
        }
        calls.end_all(&mut out);
        let started = out.iter().filter_map(|event| match event {
            ModelEvent::ToolCallStart { id, .. } => Some(id.as_str()),
            _ => None,
        });
        assert_eq!(
            started.collect::<Vec<_>>(),
            ["call_2", "same", "call_4", "call_5"]
        );
        let ended = |event: &&ModelEvent| matches!(event, ModelEvent::ToolCallEnd { .. });
        assert_eq!(out.iter().filter(ended).count(), 4);
    }

    #[test]
    fn the_number_of_calls_is_bounded() {
        let (mut calls, mut out) = (Calls::default(), Vec::new());
        for key in 0..500 {
            calls.start(key, None, "t", &mut out);
            calls.delta(key, "{}", &mut out);
            calls.end(key, None, &mut out);
        }
        assert_eq!(out.len(), 3 * MAX_CALLS);
    }
}
