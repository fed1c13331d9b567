//! What a repository tells the agent: `AGENTS.md` files and skills.
//!
//! Text for a prompt and nothing else: it can ask for anything and is granted
//! nothing. Read as the session sees the project, bounded, never through links.

use std::fmt::Write;

/// The most that all instructions together may hold.
pub const MAX_BYTES: usize = 32 * 1024;

/// The most skills that are listed.
pub const MAX_SKILLS: usize = 64;

/// One file of instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instructions {
    /// Where it is, from the project's root.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// A skill as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name.
    pub name: String,
    /// What it is for, in a line.
    pub description: String,
    /// How it is read before it is used: `read …` or `call …`.
    pub how: String,
}

/// Where instructions can be, from the root to the directory of the task; the
/// nearest comes last and wins.
#[must_use]
pub fn places(directory: &str) -> Vec<String> {
    let mut found = vec!["AGENTS.md".to_owned()];
    let mut path = String::new();
    for name in directory.split('/').filter(|name| !name.is_empty()) {
        path.push_str(name);
        path.push('/');
        found.push(format!("{path}AGENTS.md"));
    }
    found
}

/// The instructions as one text, the nearest last; what is too much is cut
/// from the farthest.
#[must_use]
pub fn render(all: &[Instructions]) -> String {
    let mut left = MAX_BYTES;
    let mut parts = Vec::new();
    for one in all.iter().rev() {
        let text = cut(one.text.trim(), left);
        left -= text.len();
        if !text.is_empty() {
            parts.push(format!("From `{}`:\n{text}\n", one.path));
        }
    }
    parts.reverse();
    parts.join("\n")
}

/// Reads the head of a `SKILL.md`: its name and description.
#[must_use]
pub fn skill(path: &str, text: &str) -> Option<Skill> {
    const MOST: usize = 300;
    let head = text
        .strip_prefix("---\n")
        .or_else(|| text.strip_prefix("---\r\n"))?;
    let mut name = None;
    let mut description = None;
    for line in head
        .lines()
        .take_while(|line| line.trim_end() != "---")
        .take(64)
    {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim().trim_matches(['"', '\'']);
        match key {
            "name" => name = Some(cut(value, 64)),
            "description" => description = Some(cut(value, MOST)),
            _ => {}
        }
    }
    Some(Skill {
        name: name.filter(|name| !name.is_empty())?.to_owned(),
        description: description?.to_owned(),
        how: format!("read `{path}`"),
    })
}

/// The list of skills as the model sees it.
#[must_use]
pub fn list(skills: &[Skill]) -> String {
    let mut text = String::new();
    for skill in skills.iter().take(MAX_SKILLS) {
        let Skill {
            name,
            description,
            how,
        } = skill;
        let _ = writeln!(text, "- {name}: {description} ({how} before using it)");
    }
    text
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = text.floor_char_boundary(most.min(text.len()));
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_comes_last() {
        assert_eq!(places("/"), ["AGENTS.md"]);
        assert_eq!(
            places("crates/a"),
            ["AGENTS.md", "crates/AGENTS.md", "crates/a/AGENTS.md"]
        );
    }

    #[test]
    fn what_is_too_much_is_cut_from_the_farthest() {
        let far = Instructions {
            path: "AGENTS.md".to_owned(),
            text: "x".repeat(MAX_BYTES),
        };
        let near = Instructions {
            path: "a/AGENTS.md".to_owned(),
            text: "near words".to_owned(),
        };
        let text = render(&[far, near]);
        assert!(text.contains("near words"));
        assert!(text.len() < MAX_BYTES + 200);
        assert!(text.find("From `AGENTS.md`").unwrap() < text.find("near words").unwrap());
    }

    #[test]
    fn a_skill_is_its_head() {
        let text = "---\nname: release\ndescription: \"How to release: step by step\"\n---\n# Body";
        let skill = skill(".fluffy/skills/release/SKILL.md", text).unwrap();
        assert_eq!(skill.name, "release");
        assert_eq!(skill.description, "How to release: step by step");
        for text in [
            "",
            "# Body",
            "---\nname:\ndescription: x\n---",
            "---\nname: a\n---",
        ] {
            assert_eq!(super::skill("p", text), None, "{text:?}");
        }
    }
}
