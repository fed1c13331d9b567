//! Git's configuration files, read as git reads them, and judged by keys.
//!
//! Pure. Only settings known to be harmless may change; everything else, known
//! to run programs or not known at all, is refused. Git learns new settings
//! with every version, and a list of the dangerous ones would always be late.

use std::collections::BTreeMap;

/// The most bytes of a configuration that is judged.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// What git takes for space, and nothing else.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// A setting's name: section and key in lower case, the subsection as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    section: String,
    subsection: Option<String>,
    name: String,
}

/// All settings of a file, each with its values in order.
pub(crate) type Settings = BTreeMap<Key, Vec<String>>;

/// The file cannot be read as git reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.section)?;
        if let Some(subsection) = &self.subsection {
            write!(f, ".{}", crate::path::escape(subsection.as_bytes()))?;
        }
        write!(f, ".{}", self.name)
    }
}

/// The settings that differ in a way that is not allowed.
pub(crate) fn refused_keys(before: &Settings, after: &Settings) -> Vec<Key> {
    let mut keys: Vec<&Key> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let refused = |key: &&Key| {
        let (old, new) = (before.get(key), after.get(key));
        old != new && !may_change(key, old, new)
    };
    keys.into_iter().filter(refused).cloned().collect()
}

/// What in a `.gitmodules` lets git run or reach something odd.
pub(crate) fn refused_modules(settings: &Settings) -> Vec<Key> {
    let refused = |(key, values): &(&Key, &Vec<String>)| {
        let name_climbs = key
            .subsection
            .as_ref()
            .is_some_and(|name| name.split('/').any(|part| part == ".."));
        let odd = |value: &String| match key.name.as_str() {
            "update" => !is_plain_update(value),
            "url" => !is_plain_url(value) && !value.starts_with("./") && !value.starts_with("../"),
            "path" => value.starts_with('-') || value.split('/').any(|part| part == ".."),
            _ => false,
        };
        key.section != "submodule" || name_climbs || values.iter().any(odd)
    };
    let found = settings.iter().filter(refused);
    found.map(|(key, _)| key.clone()).collect()
}

/// Reads a configuration.
pub(crate) fn parse(bytes: &[u8]) -> Result<Settings, Malformed> {
    let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\0') {
        return Err(Malformed);
    }
    let mut settings = Settings::new();
    let mut section: Option<(String, Option<String>)> = None;
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(SPACE);
        let Some(first) = rest.chars().next() else {
            return Ok(settings);
        };
        if first == '#' || first == ';' {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if first == '[' {
            let (found, after) = parse_section(rest.get(1..).unwrap_or_default())?;
            section = Some(found);
            rest = after;
        } else {
            let (name, value, after) = parse_setting(rest)?;
            let (section, subsection) = section.clone().ok_or(Malformed)?;
            let key = Key {
                section,
                subsection,
                name,
            };
            settings.entry(key).or_default().push(value);
            rest = after;
        }
    }
}

/// What may change: nothing that runs, reads elsewhere or leads elsewhere.
fn may_change(key: &Key, before: Option<&Vec<String>>, after: Option<&Vec<String>>) -> bool {
    let is_new = before.is_none();
    let all_new = |good: fn(&String) -> bool| is_new && after.into_iter().flatten().all(good);
    let name = key.name.as_str();
    match (key.section.as_str(), key.subsection.is_some()) {
        ("core", false) => matches!(
            name,
            "repositoryformatversion"
                | "filemode"
                | "bare"
                | "logallrefupdates"
                | "ignorecase"
                | "precomposeunicode"
                | "autocrlf"
                | "eol"
                | "safecrlf"
                | "quotepath"
                | "abbrev"
                | "compression"
                | "whitespace"
        ),
        ("user" | "author" | "committer", false) => matches!(name, "name" | "email"),
        ("color" | "column" | "advice" | "status" | "gc" | "pack" | "rerere", _) => true,
        ("init", false) => name == "defaultbranch",
        ("pull", false) => matches!(name, "rebase" | "ff"),
        ("push", false) => matches!(name, "default" | "autosetupremote" | "followtags"),
        ("fetch", false) => matches!(name, "prune" | "prunetags" | "parallel"),
        ("merge", false) => matches!(name, "conflictstyle" | "ff" | "renames" | "stat"),
        ("diff", false) => matches!(name, "algorithm" | "renames" | "colormoved" | "context"),
        ("branch", true) => match name {
            "remote" | "merge" => is_new,
            "rebase" | "description" => true,
            _ => false,
        },
        ("remote", true) => match name {
            "url" => all_new(|value| is_plain_url(value)),
            "fetch" => is_new,
            "tagopt" | "prune" => true,
            _ => false,
        },
        ("submodule", true) => match name {
            "active" => true,
            "url" => all_new(|value| is_plain_url(value)),
            "update" => {
                after.is_some_and(|values| values.iter().all(|value| is_plain_update(value)))
            }
            _ => false,
        },
        _ => false,
    }
}

/// An address over the network that names no program and no helper.
fn is_plain_url(url: &str) -> bool {
    let is_host = |host: &str| {
        !host.is_empty()
            && !host.starts_with('-')
            && host
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._:@[]".contains(c))
    };
    for scheme in ["https://", "ssh://"] {
        if let Some(rest) = url.strip_prefix(scheme) {
            return is_host(rest.split('/').next().unwrap_or_default());
        }
    }
    match url.split_once(':') {
        Some((host, path)) => is_host(host) && host.contains('@') && !path.starts_with([':', '-']),
        None => false,
    }
}

fn is_plain_update(value: &str) -> bool {
    matches!(
        value.to_ascii_lowercase().as_str(),
        "none" | "checkout" | "rebase" | "merge"
    )
}

type Section = (String, Option<String>);

/// A section's header after its `[`, and what follows it.
fn parse_section(text: &str) -> Result<(Section, &str), Malformed> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'))
        .ok_or(Malformed)?;
    let (name, rest) = text.split_at(end);
    if let Some(rest) = rest.strip_prefix(']') {
        // The old form `[section.subsection]` ignores case throughout.
        let name = name.to_ascii_lowercase();
        let (section, subsection) = match name.split_once('.') {
            Some((section, subsection)) => (section.to_owned(), Some(subsection.to_owned())),
            None => (name, None),
        };
        return if section.is_empty() {
            Err(Malformed)
        } else {
            Ok(((section, subsection), rest))
        };
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    let mut chars = rest.strip_prefix('"').ok_or(Malformed)?.char_indices();
    let body = rest.get(1..).unwrap_or_default();
    let mut subsection = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let after = body.get(at..).and_then(|rest| rest.strip_prefix("\"]"));
                let after = after.ok_or(Malformed)?;
                let section = name.to_ascii_lowercase();
                return if section.is_empty() {
                    Err(Malformed)
                } else {
                    Ok(((section, Some(subsection)), after))
                };
            }
            '\\' => subsection.push(chars.next().ok_or(Malformed)?.1),
            '\n' => return Err(Malformed),
            c => subsection.push(c),
        }
    }
    Err(Malformed)
}

/// One `name = value`, and what follows its line.
fn parse_setting(text: &str) -> Result<(String, String, &str), Malformed> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(Malformed);
    }
    let name = name.to_ascii_lowercase();
    let rest = rest.trim_start_matches([' ', '\t']);
    match rest.strip_prefix('=') {
        Some(rest) => {
            let (value, after) = parse_value(rest)?;
            Ok((name, value, after))
        }
        // Without a value it is true; a comment may follow.
        None => match rest.trim_start_matches('\r').chars().next() {
            None => Ok((name, "true".to_owned(), "")),
            Some('\n' | '#' | ';') => {
                let after = rest.split_once('\n').map_or("", |(_, after)| after);
                Ok((name, "true".to_owned(), after))
            }
            Some(_) => Err(Malformed),
        },
    }
}

fn parse_value(text: &str) -> Result<(String, &str), Malformed> {
    let text = text.trim_start_matches([' ', '\t']);
    let (mut value, mut quoted, mut solid) = (String::new(), false, 0);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\n' if quoted => return Err(Malformed),
            '\n' => {
                value.truncate(solid);
                return Ok((value, text.get(at..).unwrap_or_default()));
            }
            '\r' if matches!(chars.peek(), Some((_, '\n'))) => continue,
            '"' => quoted = !quoted,
            '#' | ';' if !quoted => {
                value.truncate(solid);
                let rest = text.get(at..).unwrap_or_default();
                let after = rest.find('\n').and_then(|end| rest.get(end..));
                return Ok((value, after.unwrap_or("")));
            }
            '\\' => {
                let mut next = chars.next().map(|(_, c)| c);
                if next == Some('\r') && matches!(chars.peek(), Some((_, '\n'))) {
                    next = chars.next().map(|(_, c)| c);
                }
                match next.ok_or(Malformed)? {
                    '\n' => continue,
                    'n' => value.push('\n'),
                    't' => value.push('\t'),
                    'b' => value.push('\u{8}'),
                    c @ ('"' | '\\') => value.push(c),
                    _ => return Err(Malformed),
                }
                solid = value.len();
                continue;
            }
            c => value.push(c),
        }
        if quoted || !(c == ' ' || c == '\t' || c == '"') {
            solid = value.len();
        }
    }
    if quoted {
        return Err(Malformed);
    }
    value.truncate(solid);
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(before: &str, after: &str) -> Vec<String> {
        let read = |text: &str| parse(text.as_bytes()).unwrap();
        let refused = refused_keys(&read(before), &read(after));
        refused.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn settings_are_read_as_git_reads_them() {
        let text = "\u{feff}# comment\r\n[CORE]\r\n\tBare = true ; end\r\n\
                    [Remote \"o\\\"r\"]url=\"a # b\"  c \n[x.Y]k\n[a]b=1\\\n2\nb = \n";
        let settings = parse(text.as_bytes()).unwrap();
        let shown: Vec<String> = settings
            .iter()
            .map(|(key, values)| format!("{key}={values:?}"))
            .collect();
        assert_eq!(
            shown,
            [
                "a.b=[\"12\", \"\"]",
                "core.bare=[\"true\"]",
                "remote.o\"r.url=[\"a # b  c\"]",
                "x.y.k=[\"true\"]",
            ]
        );
    }

    #[test]
    fn what_git_refuses_is_refused() {
        for text in [
            "key = 1",
            "[a",
            "[a]b=\"",
            "[a]b=\\x",
            "[a \"b]c=1",
            "[a]1=2",
            "[a]b c",
            "[]x=1",
            "[a \"b\" ]c=1",
            "[a]b=\"\n\"",
            "[a]\0",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(Malformed), "{text:?}");
        }
        assert_eq!(parse(b"[a]b=\xff"), Err(Malformed));
    }

    #[test]
    fn what_runs_or_leads_away_is_refused_however_it_is_spelled() {
        for (text, key) in [
            ("[core]fsmonitor=x", "core.fsmonitor"),
            ("[CORE]HooksPath=x", "core.hookspath"),
            ("[core]sshCommand=x", "core.sshcommand"),
            ("[core]pager=x", "core.pager"),
            ("[core]editor=x", "core.editor"),
            ("[core]askPass=x", "core.askpass"),
            ("[core]attributesFile=x", "core.attributesfile"),
            ("[core]worktree=/", "core.worktree"),
            ("[core]gitProxy=x", "core.gitproxy"),
            ("[diff]external=x", "diff.external"),
            ("[diff \"p\"]textconv=x", "diff.p.textconv"),
            ("[diff.p]command=x", "diff.p.command"),
            ("[filter \"lfs\"]smudge=x", "filter.lfs.smudge"),
            ("[merge \"m\"]driver=x", "merge.m.driver"),
            ("[credential]helper=x", "credential.helper"),
            (
                "[credential \"https://h\"]helper=!x",
                "credential.https://h.helper",
            ),
            ("[include]path=/tmp/x", "include.path"),
            ("[includeIf \"gitdir:/\"]path=x", "includeif.gitdir:/.path"),
            ("[alias]st=!x", "alias.st"),
            ("[alias]st=-c core.pager=x log", "alias.st"),
            ("[gpg]program=x", "gpg.program"),
            (
                "[gpg \"ssh\"]defaultKeyCommand=x",
                "gpg.ssh.defaultkeycommand",
            ),
            ("[protocol \"ext\"]allow=always", "protocol.ext.allow"),
            ("[submodule \"s\"]update=!x", "submodule.s.update"),
            (
                "[uploadpack]packObjectsHook=x",
                "uploadpack.packobjectshook",
            ),
            ("[remote \"o\"]uploadpack=x", "remote.o.uploadpack"),
            ("[remote \"o\"]url=ext::sh -c x", "remote.o.url"),
            ("[remote \"o\"]url=--upload-pack=x", "remote.o.url"),
            ("[remote \"o\"]url=/tmp/evil", "remote.o.url"),
            (
                "[url \"https://evil/\"]insteadOf=https://good/",
                "url.https://evil/.insteadof",
            ),
            ("[sequence]editor=x", "sequence.editor"),
            ("[interactive]diffFilter=x", "interactive.difffilter"),
            ("[hook \"x\"]command=x", "hook.x.command"),
            (
                "[extensions]worktreeConfig=true",
                "extensions.worktreeconfig",
            ),
            ("[http]sslVerify=false", "http.sslverify"),
            ("[never]heardOf=it", "never.heardof"),
        ] {
            assert_eq!(keys("", text), [key], "{text}");
            assert_eq!(keys(text, text), [""; 0], "{text} was there before");
            assert_eq!(keys(text, ""), [key], "{text} is gone");
        }
    }

    #[test]
    fn ordinary_work_is_allowed() {
        let fresh = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
                     \tlogallrefupdates = true\n[remote \"origin\"]\n\
                     \turl = https://example.org/x.git\n\
                     \tfetch = +refs/heads/*:refs/remotes/origin/*\n\
                     [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\
                     [user]\n\tname = A\n\temail = a@b\n";
        assert_eq!(keys("", fresh), [""; 0]);
        assert_eq!(keys("", "[remote \"o\"]url=git@host:a/b.git"), [""; 0]);
        let moved = fresh.replace("example.org", "evil.example");
        assert_eq!(keys(fresh, &moved), ["remote.origin.url"]);
    }

    #[test]
    fn modules_may_only_name_plain_things() {
        let refused = |text: &str| refused_modules(&parse(text.as_bytes()).unwrap()).len();
        assert_eq!(
            refused("[submodule \"a\"]path=a\nurl=https://h/a\nupdate=rebase"),
            0
        );
        assert_eq!(refused("[submodule \"a\"]url=../a.git"), 0);
        for text in [
            "[submodule \"a\"]update=!x",
            "[submodule \"a\"]url=-u./x",
            "[submodule \"a\"]url=ext::x",
            "[submodule \"a\"]path=../x",
            "[submodule \"../../x\"]path=a",
            "[core]fsmonitor=x",
        ] {
            assert_eq!(refused(text), 1, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn anything_that_looks_like_settings_is_read_or_refused(
            text in "(\\[[a-c.]{0,3}( \"[a\\\\\"]{0,2}\")?\\]|[ab]=|[\"\\\\ \n#;]|x){0,20}",
        ) {
            let _ = parse(text.as_bytes());
        }
    }
}
