//! What an exported ledger says about calls that got nowhere. Pure.

use fluffy_report::{Text, Tone};
use serde_json::Value;

/// Lines are at most this wide.
const WIDTH: usize = 80;

/// The calls that were refused or failed, each with its place in the ledger.
pub(super) fn shown(export: &str) -> Text {
    let mut text = Text::new();
    let events = export.lines().map(serde_json::from_str::<Value>);
    for event in events.filter_map(Result::ok) {
        let payload = event.get("payload");
        let of = |name: &str| payload.and_then(|payload| payload.get(name)?.as_str());
        let is_call = event.get("event_type").and_then(Value::as_str) == Some("tool.finished");
        let (Some(outcome), Some(content), true) = (of("outcome"), of("content"), is_call) else {
            continue;
        };
        let seq = event.get("seq").and_then(Value::as_u64).unwrap_or_default();
        let tool = of("tool").unwrap_or_default();
        let (tone, what, why) = match outcome {
            "refused" => (
                Tone::Caution,
                named(content, "REFUSED: "),
                named(content, "by: "),
            ),
            "failed" => (Tone::Bad, tool, content.lines().nth(1).unwrap_or_default()),
            _ => continue,
        };
        text.add(Tone::Dim, &format!("  event {seq:<4} "));
        text.add(tone, &format!("{outcome:<8}"));
        text.plain(&format!("{what}\n"));
        text.paragraph(Tone::Dim, why, (13, WIDTH));
    }
    text.plain("\n");
    text
}

/// The rest of the line that begins like this.
fn named<'a>(content: &'a str, start: &str) -> &'a str {
    let mut lines = content.lines();
    let found = lines.find_map(|line| line.strip_prefix(start));
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fluffy_report::Styling;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_got_nowhere_is_named() {
        let event = |seq: u64, outcome: &str, content: &str| {
            let payload = json!({"tool": "fs.read", "outcome": outcome, "content": content});
            json!({"seq": seq, "event_type": "tool.finished", "payload": payload}).to_string()
        };
        let export = [
            "no line of JSON".to_owned(),
            event(1, "done", "fine"),
            event(
                22,
                "refused",
                "REFUSED: fs.read on `.env`\nby: policy: a rule",
            ),
            event(3, "failed", "[begin]\nno network\n[end]"),
            json!({"seq": 4, "event_type": "policy.decision"}).to_string(),
        ];
        insta::assert_snapshot!(shown(&export.join("\n")).render(Styling::Plain), @r"
          event 22   refused fs.read on `.env`
                     policy: a rule
          event 3    failed  fs.read
                     no network

        ");
    }
}
