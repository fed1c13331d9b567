//! What a model sees of a long conversation: the last turns whole, the rest as
//! a summary.
//!
//! The summary is made from what is recorded, never by asking a model: it is
//! the same every time, costs nothing and cannot invent. Pure. The whole
//! transcript stays in the ledger.

use std::collections::BTreeMap;
use std::fmt::Write;

use fluffy_contract::model::{Message, Part, Role, ToolCall};
use fluffy_contract::tool::ToolOutcome;

/// Counts the tokens of a text.
pub type Count<'a> = &'a dyn Fn(&str) -> u64;

/// The most tokens of a summary.
pub const SUMMARY_TOKENS: u64 = 2_000;

/// Room that stays reserved for the answer.
pub const ANSWER_TOKENS: u64 = 4_000;

/// Above this share of its budget, in percent, history is shortened; what is
/// kept then is half of that.
const FULL_PERCENT: u64 = 70;

/// Where history was cut, and what stands for the part before.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Shortened {
    /// How many messages the summary stands for.
    pub messages: usize,
    /// The summary.
    pub text: String,
}

/// The tokens of each message of a conversation that only grows.
///
/// Counting is the dearest thing about a turn, so each is counted once.
#[derive(Debug, Clone, Default)]
pub struct Sizes(Vec<u64>);

impl Sizes {
    /// Counts what came since the last time.
    pub fn grow(&mut self, messages: &[Message], count: Count<'_>) {
        let new = messages.iter().skip(self.0.len());
        self.0.extend(new.map(|message| tokens(message, count)));
    }
}

/// Whether history has to be shortened now, and to what.
#[must_use]
pub fn shorten(
    messages: &[Message],
    sizes: &Sizes,
    before: &Shortened,
    budget: u64,
    count: Count<'_>,
) -> Option<Shortened> {
    let recent = messages.get(before.messages..)?;
    let sizes = sizes.0.get(before.messages..messages.len())?;
    let total: u64 = sizes.iter().sum();
    if total <= budget.saturating_mul(FULL_PERCENT) / 100 {
        return None;
    }
    let keep = budget.saturating_mul(FULL_PERCENT) / 200;
    let mut kept = 0;
    let mut cut = recent.len();
    for (at, size) in sizes.iter().enumerate().rev() {
        if kept + size > keep {
            break;
        }
        kept += size;
        // A result without its call is refused by every provider.
        if recent
            .get(at)
            .is_some_and(|message| message.role != Role::Tool)
        {
            cut = at;
        }
    }
    // The newest exchange stays, however large it is.
    let newest = recent
        .iter()
        .rposition(|message| message.role != Role::Tool)?;
    let cut = cut.min(newest);
    if cut == 0 {
        return None;
    }
    let gone = messages.get(..before.messages + cut)?;
    Some(Shortened {
        messages: before.messages + cut,
        text: summarise(gone, count),
    })
}

/// What the model is sent of a conversation.
#[must_use]
pub fn visible(messages: &[Message], shortened: &Shortened) -> Vec<Message> {
    let mut seen = Vec::new();
    if shortened.messages > 0 {
        let text = format!(
            "Summary of the conversation so far, made from the record:\n{}",
            shortened.text
        );
        seen.push(Message {
            role: Role::User,
            parts: vec![Part::Text { text, opaque: None }],
        });
    }
    seen.extend(messages.iter().skip(shortened.messages).cloned());
    seen
}

/// Leaves of messages that are never sent again no more than a summary says of
/// them, so that a long session stays small; the ledger has them whole.
pub fn forget(messages: &mut [Message]) {
    /// More than a summary takes of any text.
    const MOST: usize = 1_000;
    let shrink = |text: &mut String| {
        if text.len() > MOST {
            *text = one_line(text, MOST / 2);
        }
    };
    let parts = messages.iter_mut().flat_map(|message| &mut message.parts);
    for part in parts {
        match part {
            Part::Text { text, opaque } | Part::Reasoning { text, opaque } => {
                shrink(text);
                *opaque = None;
            }
            Part::ToolResult { content, .. } => shrink(content),
            Part::ToolCall(call) => {
                call.opaque = None;
                if let Some(arguments) = call.arguments.as_object_mut() {
                    arguments.retain(|name, _| SUBJECTS.contains(&name.as_str()));
                }
            }
        }
    }
}

/// The tokens of a message.
#[must_use]
pub fn tokens(message: &Message, count: Count<'_>) -> u64 {
    /// What a provider adds around every message.
    const FRAME: u64 = 4;
    let part = |part: &Part| match part {
        Part::Text { text, .. } | Part::Reasoning { text, .. } => count(text),
        Part::ToolCall(call) => count(&call.name) + count(&call.arguments.to_string()),
        Part::ToolResult { content, .. } => count(content),
    };
    FRAME + message.parts.iter().map(part).sum::<u64>()
}

/// What was asked, what was done to which file, and how tests and refusals
/// went; the newest first when there is not room for all.
fn summarise(messages: &[Message], count: Count<'_>) -> String {
    let mut calls: BTreeMap<&str, &ToolCall> = BTreeMap::new();
    let mut lines: Vec<String> = Vec::new();
    let mut reads = 0_usize;
    for message in messages {
        for part in &message.parts {
            match (message.role, part) {
                (Role::User, Part::Text { text, .. }) => {
                    lines.push(format!("The person said: {}", one_line(text, 400)));
                }
                (Role::Assistant, Part::Text { text, .. }) if !text.trim().is_empty() => {
                    lines.push(format!("You said: {}", one_line(text, 160)));
                }
                (_, Part::ToolCall(call)) => {
                    calls.insert(&call.id, call);
                }
                (
                    _,
                    Part::ToolResult {
                        call,
                        content,
                        outcome,
                    },
                ) => match calls.get(call.as_str()).copied() {
                    Some(call) if only_reads(&call.name) && *outcome == ToolOutcome::Done => {
                        reads += 1;
                    }
                    Some(call) => lines.push(line_of(call, content, *outcome)),
                    None => {}
                },
                _ => {}
            }
        }
    }
    let mut text = fit(lines, count);
    if reads > 0 {
        let _ = writeln!(text, "{reads} reads and searches are left out.");
    }
    text
}

/// Whether calls of a tool change nothing.
pub(crate) fn only_reads(tool: &str) -> bool {
    matches!(
        tool,
        "fs.read"
            | "fs.list"
            | "fs.exists"
            | "search.grep"
            | "search.glob"
            | "git.status"
            | "git.diff"
            | "git.log"
    )
}

/// The arguments that say what a call was about, the first one there.
const SUBJECTS: [&str; 2] = ["path", "command"];

fn line_of(call: &ToolCall, content: &str, outcome: ToolOutcome) -> String {
    let subject = SUBJECTS.iter().find_map(|name| call.arguments.get(name));
    let subject = subject.map(|value| one_line(&value.to_string(), 120));
    let outcome = match outcome {
        ToolOutcome::Done => "done",
        ToolOutcome::Failed => "did not succeed",
    };
    let first = one_line(content, 160);
    format!(
        "{} {}: {outcome}. {first}",
        call.name,
        subject.unwrap_or_default()
    )
}

/// The newest lines that fit, in their order.
fn fit(lines: Vec<String>, count: Count<'_>) -> String {
    let mut room = SUMMARY_TOKENS.saturating_sub(50);
    let mut kept = Vec::new();
    let all = lines.len();
    for line in lines.into_iter().rev() {
        let size = count(&line) + 1;
        let Some(left) = room.checked_sub(size) else {
            break;
        };
        room = left;
        kept.push(line);
    }
    let left_out = all - kept.len();
    let mut text = String::new();
    if left_out > 0 {
        let _ = writeln!(text, "({left_out} older lines are left out.)");
    }
    for line in kept.into_iter().rev() {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn one_line(text: &str, most: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let joined = words.join(" ");
    match joined.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", joined.get(..end).unwrap_or_default()),
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(text: &str) -> u64 {
        text.split_whitespace().count() as u64
    }

    fn said(role: Role, text: &str) -> Message {
        let text = text.to_owned();
        Message {
            role,
            parts: vec![Part::Text { text, opaque: None }],
        }
    }

    fn call(id: usize, name: &str, path: &str) -> Message {
        Message {
            role: Role::Assistant,
            parts: vec![Part::ToolCall(ToolCall {
                id: id.to_string(),
                name: name.to_owned(),
                arguments: json!({ "path": path }),
                opaque: None,
            })],
        }
    }

    fn result(id: usize, content: &str) -> Message {
        Message {
            role: Role::Tool,
            parts: vec![Part::ToolResult {
                call: id.to_string(),
                content: content.to_owned(),
                outcome: ToolOutcome::Done,
            }],
        }
    }

    fn long(turns: usize) -> Vec<Message> {
        let mut messages = vec![said(Role::User, "make parse_config strict")];
        for turn in 0..turns {
            let name = if turn % 2 == 0 { "fs.read" } else { "fs.write" };
            messages.push(call(turn, name, &format!("src/f{turn}.rs")));
            messages.push(result(turn, &"word ".repeat(50)));
        }
        messages
    }

    /// With everything counted anew.
    fn cut(messages: &[Message], before: &Shortened, budget: u64) -> Option<Shortened> {
        let mut sizes = Sizes::default();
        sizes.grow(messages, &words);
        shorten(messages, &sizes, before, budget, &words)
    }

    #[test]
    fn a_short_history_stays_whole() {
        let messages = long(3);
        assert_eq!(cut(&messages, &Shortened::default(), 10_000), None);
        assert_eq!(visible(&messages, &Shortened::default()), messages);
    }

    #[test]
    fn what_is_seen_stays_within_the_budget_however_long_it_gets() {
        let budget = 2_000;
        let messages = long(500);
        let mut shortened = Shortened::default();
        let mut sizes = Sizes::default();
        let mut cuts = 0;
        for end in 1..=messages.len() {
            let so_far = &messages[..end];
            sizes.grow(so_far, &words);
            if let Some(next) = shorten(so_far, &sizes, &shortened, budget, &words) {
                assert_eq!(Some(&next), cut(so_far, &shortened, budget).as_ref());
                assert!(next.messages > shortened.messages);
                shortened = next;
                cuts += 1;
            }
            let seen = visible(so_far, &shortened);
            let recent: u64 = seen.iter().skip(1).map(|m| tokens(m, &words)).sum();
            assert!(recent <= budget, "{recent} at {end}");
            let first = &seen[usize::from(shortened.messages > 0)];
            assert_ne!(
                first.role,
                Role::Tool,
                "a result without its call, at {end}"
            );
        }
        assert!(
            words(&shortened.text) <= SUMMARY_TOKENS,
            "{}",
            shortened.text
        );
        assert!(cuts > 10, "{cuts}");
        assert!(
            shortened.text.contains("fs.write \"src/f"),
            "{}",
            shortened.text
        );
        assert!(!shortened.text.contains("fs.read"), "{}", shortened.text);
    }

    #[test]
    fn a_summary_says_the_same_of_what_was_forgotten() {
        let mut messages = long(40);
        messages.push(said(Role::User, &"say  this\n".repeat(1_000)));
        messages.push(call(40, "fs.write", "src/large.rs"));
        if let Some(Part::ToolCall(call)) = messages.last_mut().and_then(|m| m.parts.first_mut()) {
            call.arguments["content"] = json!("x".repeat(100_000));
        }
        messages.push(result(40, &"line of  output\n".repeat(10_000)));
        let mut forgotten = messages.clone();
        forget(&mut forgotten);
        assert_eq!(summarise(&forgotten, &words), summarise(&messages, &words));
        let size = serde_json::to_string(&forgotten).unwrap().len();
        assert!(size < 30_000, "{size}");
    }

    #[test]
    fn the_task_survives_where_there_is_room() {
        let messages = long(20);
        let cut = cut(&messages, &Shortened::default(), 1_000).unwrap();
        assert!(
            cut.text
                .contains("The person said: make parse_config strict")
        );
        assert!(cut.text.contains("reads and searches are left out"));
    }
}
