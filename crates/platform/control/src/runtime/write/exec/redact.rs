//! A command as it is recorded: without what looks like a secret.
//!
//! Every word is looked at, and every piece of a word that has several, as a
//! script has. In doubt more is left out than is secret, never less.

/// What stands for what is left out.
const HIDDEN: &str = "[redacted]";
/// What the names of secrets have in them.
const SECRETS: [&str; 5] = ["password", "passwd", "token", "secret", "key"];
const QUOTES: [char; 2] = ['\'', '"'];

/// What the piece before makes of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Next {
    /// Nothing.
    #[default]
    Shown,
    /// A secret.
    Secret,
    /// A variable with its value.
    Variable,
}

/// The command without what looks like a secret.
pub(super) fn redact(command: &[String]) -> Vec<String> {
    let mut next = Next::Shown;
    let words = command.iter();
    words.map(|word| shown(word, &mut next)).collect()
}

/// A word as it is recorded.
fn shown(word: &str, next: &mut Next) -> String {
    // What a word before it calls a secret is one as a whole.
    if let Some(hidden) = std::mem::take(next).hides(word) {
        *next = Next::after(word);
        return hidden;
    }
    let word: String = pieces(word).map(without_user).collect();
    if let Some(name) = secret_name(&word).filter(|name| !name.contains(char::is_whitespace)) {
        return format!("{name}={HIDDEN}");
    }
    let mut whole = String::with_capacity(word.len());
    for piece in pieces(&word) {
        let (text, space) = piece.split_at(piece.trim_end().len());
        if !text.is_empty() {
            let hidden = std::mem::take(next).hides(text);
            let hidden = hidden.or_else(|| Some(format!("{}={HIDDEN}", secret_name(text)?)));
            whole.push_str(hidden.as_deref().unwrap_or(text));
            if hidden.is_some() && is_open(text) {
                return whole;
            }
            *next = Next::after(text);
        }
        whole.push_str(space);
    }
    whole
}

/// The pieces of a word, each with the space that ends it.
fn pieces(word: &str) -> impl Iterator<Item = &str> {
    word.split_inclusive(char::is_whitespace)
}

impl Next {
    /// What a text makes of the next one.
    fn after(text: &str) -> Self {
        let flag = text.trim_matches(QUOTES);
        if !flag.starts_with('-') || flag.contains('=') {
            return Self::Shown;
        }
        match flag {
            "-e" | "--env" => Self::Variable,
            _ if secret_end(flag).is_some() => Self::Secret,
            _ => Self::Shown,
        }
    }

    /// The next text as it is recorded, if it is to be hidden.
    fn hides(self, text: &str) -> Option<String> {
        let name = text.split_once('=').map(|(name, _)| name);
        match self {
            Self::Shown => None,
            Self::Secret => Some(HIDDEN.to_owned()),
            // Flags are no variables, but a secret may look like a flag.
            Self::Variable if text.starts_with('-') => None,
            Self::Variable => Some(match name {
                Some(name) if !name.contains(char::is_whitespace) => format!("{name}={HIDDEN}"),
                _ => HIDDEN.to_owned(),
            }),
        }
    }
}

/// Where the name of a secret is at its end, if one is in a text.
fn secret_end(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let ends = SECRETS.into_iter().filter_map(|word| {
        let begins = text.find(word)?;
        Some(begins + word.len())
    });
    ends.min()
}

/// What stands before the first `=` behind which there is a secret, or
/// anything that is given to a command as a variable.
fn secret_name(text: &str) -> Option<&str> {
    let (name, _) = text.split_once('=')?;
    let flag = name.trim_start_matches(QUOTES);
    if flag.starts_with("-e") || flag == "--env" {
        return Some(name);
    }
    let end = secret_end(text)?;
    let more = text.get(end..)?.find('=')?;
    text.get(..end + more)
}

/// Whether a text goes on behind the space that ends it: in quotes, or escaped.
fn is_open(text: &str) -> bool {
    let opens = |quote: char| text.matches(quote).count() % 2 == 1;
    QUOTES.into_iter().any(opens) || text.ends_with('\\')
}

/// A text without the user and the password of any URL in it.
fn without_user(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // A password may hold an `@`, and where nobody minds a `/` too.
        let user = host.rfind('@').or_else(|| rest.rfind('@'));
        shown.push_str("://");
        match user {
            Some(user) => {
                shown.push_str(HIDDEN);
                shown.push_str(rest.split_at(user).1);
            }
            None => shown.push_str(rest),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        redact(&command).join(" ")
    }

    #[test]
    fn what_looks_like_a_secret_is_not_recorded() {
        let shown = recorded(&[
            "run",
            "--env",
            "A=hidden1",
            "--password",
            "hidden2",
            "--api-token=hidden3",
            "-e=X=hidden4",
            "-eX=hidden7",
            "https://me:hidden5@example.com/x",
            "plain",
            "DB_PASSWORD=hidden6",
        ]);
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(shown.contains("plain") && shown.contains("example.com/x") && shown.contains("A="));
    }

    #[test]
    fn what_looks_like_a_secret_is_found_within_words() {
        let hidden = "[redacted]";
        let cases: [(&[&str], String); 10] = [
            (
                &["sh", "-c", "A=1 DB_PASSWORD=hunter2 ./x"],
                format!("sh -c A=1 DB_PASSWORD={hidden} ./x"),
            ),
            (
                &["sh", "-c", "mysql --password hunter2\n  --host db"],
                format!("sh -c mysql --password {hidden}\n  --host db"),
            ),
            (
                &["sh", "-c", "mysql --password='hun ter2' x"],
                format!("sh -c mysql --password={hidden}"),
            ),
            (
                &["sh", "-c", "run --token 'a b' x"],
                format!("sh -c run --token {hidden}"),
            ),
            (
                &["sh", "-c", "run -e 'A=hunter2' x"],
                format!("sh -c run -e 'A={hidden} x"),
            ),
            (
                &["env", "DB_PASSWORD=a b c", "x"],
                format!("env DB_PASSWORD={hidden} x"),
            ),
            (
                &["x", "--opts=a,password=hunter2"],
                format!("x --opts=a,password={hidden}"),
            ),
            (
                &["x", "--password", "-abc", "y"],
                format!("x --password {hidden} y"),
            ),
            (
                &["x", "--password", "--token", "abc", "y"],
                format!("x --password {hidden} {hidden} y"),
            ),
            (
                &["x", "--password", "a b", "y"],
                format!("x --password {hidden} y"),
            ),
        ];
        for (command, expected) in cases {
            assert_eq!(recorded(command), expected);
        }
    }

    #[test]
    fn no_url_shows_its_user() {
        let hidden = "[redacted]";
        for (text, expected) in [
            ("pg://u:p@ss@host/db@1", format!("pg://{hidden}@host/db@1")),
            (
                "http://a:b@h,http://c:d@i/",
                format!("http://{hidden}@h,http://{hidden}@i/"),
            ),
            ("A=pg://u:p/w@host", format!("A=pg://{hidden}@host")),
            (
                "pg://u:secret=@host?token=abc",
                format!("pg://{hidden}@host?token={hidden}"),
            ),
            ("http://host:80/x", "http://host:80/x".to_owned()),
        ] {
            assert_eq!(recorded(&["x", text]), format!("x {expected}"));
        }
    }
}
