//! What a person types in a session: slash commands, answers, and the rest.
//!
//! Pure: a line in, its meaning out. A line that begins with `/` is never sent
//! to the model, so that a slip is not taken for a task.

use fluffy_kernel::api::SessionOrder;
use fluffy_policy::word::Mode;

/// What a line means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nothing.
    Empty,
    /// Something for the model.
    Say(String),
    /// An order to the session.
    Order(SessionOrder),
    /// Budgets: used and allowed.
    Budget,
    /// The plan as the model completed it.
    Plan,
    /// Yes to the question that waits.
    Approve,
    /// No to the question that waits.
    Reject,
    /// What can be typed.
    Help,
    /// Leave.
    Quit,
    /// A slash command that does not exist, or lacks something.
    Wrong(String),
}

/// Every slash command: name, what follows it, what it does.
pub(crate) const COMMANDS: [(&str, &str, &str); 15] = [
    ("/strict", "", "test first, enforced"),
    (
        "/explore",
        "",
        "tests may come later; commits are unverified",
    ),
    (
        "/debug",
        "",
        "explore, and reviewed commands in a running sandbox",
    ),
    (
        "/status",
        "",
        "mode, state, model, isolation, what was used",
    ),
    ("/budget", "", "what may still be used"),
    ("/plan", "", "the plan, once there is one"),
    ("/diff", "", "what the session would change"),
    ("/approve", "", "yes to the question"),
    ("/reject", "", "no to the question"),
    (
        "/undo",
        "",
        "back to before the last turn that changed something",
    ),
    ("/pin", "TEXT", "keep this in front of the model"),
    ("/model", "PROVIDER/MODEL", "ask another model from now on"),
    (
        "/compact",
        "",
        "send older messages as a summary from now on",
    ),
    ("/help", "", "this list"),
    ("/quit", "", "leave; the session can be resumed"),
];

/// What a line means.
pub(crate) fn parse(line: &str) -> Line {
    let line = line.trim();
    if line.is_empty() {
        return Line::Empty;
    }
    if !line.starts_with('/') {
        return Line::Say(line.to_owned());
    }
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let Some((_, wants, _)) = COMMANDS.iter().find(|(known, ..)| *known == name) else {
        return Line::Wrong(unknown(name));
    };
    match (wants.is_empty(), rest.is_empty()) {
        (true, false) => return Line::Wrong(format!("{name} takes nothing after it")),
        (false, true) => return Line::Wrong(format!("{name} needs {wants} after it")),
        (true, true) | (false, false) => {}
    }
    match name {
        "/strict" => Line::Order(SessionOrder::Mode { mode: Mode::Strict }),
        "/explore" => Line::Order(SessionOrder::Mode {
            mode: Mode::Explore,
        }),
        "/debug" => Line::Order(SessionOrder::Mode { mode: Mode::Debug }),
        "/status" => Line::Order(SessionOrder::Status),
        "/budget" => Line::Budget,
        "/plan" => Line::Plan,
        "/diff" => Line::Order(SessionOrder::Diff),
        "/approve" => Line::Approve,
        "/reject" => Line::Reject,
        "/undo" => Line::Order(SessionOrder::Undo),
        "/pin" => Line::Order(SessionOrder::Pin {
            text: rest.to_owned(),
        }),
        "/model" => Line::Order(SessionOrder::Model {
            model: rest.to_owned(),
        }),
        "/compact" => Line::Order(SessionOrder::Compact),
        "/quit" => Line::Quit,
        _ => Line::Help,
    }
}

/// What a line means while a question waits: a plain yes or no counts too.
pub(crate) fn parse_answer(line: &str) -> Line {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Line::Approve,
        "n" | "no" => Line::Reject,
        _ => parse(line),
    }
}

fn unknown(name: &str) -> String {
    let near = COMMANDS.iter().map(|(known, ..)| *known);
    let near = near.filter(|known| known.starts_with(name) && name.len() > 1);
    let near: Vec<&str> = near.collect();
    match near.as_slice() {
        [] => format!("there is no {name}; /help lists what there is"),
        near => format!("there is no {name}; did you mean {}?", near.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_list_means_something_of_its_own() {
        let mut meanings = Vec::new();
        for (name, wants, _) in COMMANDS {
            let line = format!("{name} {wants}");
            let meaning = parse(&line);
            assert!(!matches!(meaning, Line::Wrong(_) | Line::Say(_)), "{line}");
            assert!(!meanings.contains(&meaning), "{line}");
            meanings.push(meaning);
        }
    }

    #[test]
    fn a_slip_is_never_sent_to_the_model() {
        for (line, says) in [
            (
                "/nonsense",
                "there is no /nonsense; /help lists what there is",
            ),
            ("/mod", "there is no /mod; did you mean /model?"),
            ("/undo everything", "/undo takes nothing after it"),
            ("/pin", "/pin needs TEXT after it"),
            ("/", "there is no /; /help lists what there is"),
        ] {
            assert_eq!(parse(line), Line::Wrong(says.to_owned()));
        }
        assert_eq!(parse("  \t"), Line::Empty);
        assert_eq!(parse(" fix it "), Line::Say("fix it".to_owned()));
    }

    #[test]
    fn yes_and_no_are_answers_only_to_a_question() {
        assert_eq!(parse("yes"), Line::Say("yes".to_owned()));
        for (line, meaning) in [
            ("y", Line::Approve),
            (" YES ", Line::Approve),
            ("no", Line::Reject),
            ("/reject", Line::Reject),
            ("maybe", Line::Say("maybe".to_owned())),
        ] {
            assert_eq!(parse_answer(line), meaning);
        }
    }
}
