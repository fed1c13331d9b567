//! A plugin that is only text: skills that a model can read up.
//!
//! `SKILL.md` in its folder, or `skills/<name>/SKILL.md`, each with whatever
//! lies beside it. Nothing runs. What is read is what was reviewed, by its
//! digest, and nothing that the pin does not name can be asked for.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use fluffy_base::id::SandboxId;
use fluffy_base::{Digest, Span};
use fluffy_contract::BoxFuture;
use fluffy_contract::tool::{Effect, ForeignTool, ToolOutcome, ToolOutput};
use fluffy_plugin_core::identity::Files;
use serde_json::{Value, json};

use crate::connection::{CallPluginError, Connection, Gone};
use crate::shelf::{Examined, Placed};

/// The tool that reads a skill.
pub const TOOL: &str = "skill";

/// The most skills of one plugin.
pub const MAX_SKILLS: usize = 32;

/// The largest text of a skill, in bytes.
pub const MAX_TEXT: u64 = 64 << 10;

/// The file that a skill begins with.
const FILE: &str = "SKILL.md";

/// The skills of one plugin.
#[derive(Debug)]
pub struct Skills {
    /// It runs in none; a call needs the name of one.
    sandbox: SandboxId,
    place: PathBuf,
    files: Files,
    skills: Vec<Named>,
}

/// One skill and where it is.
#[derive(Debug)]
struct Named {
    name: String,
    /// What its files begin with.
    folder: String,
}

/// One skill as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillText {
    /// The plugin that brought it.
    pub plugin: String,
    /// Its name there.
    pub name: String,
    /// All of it; text of somebody nobody trusts.
    pub text: String,
}

/// Why a plugin has no skills.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadSkillsError {
    /// There is none.
    #[error("it has neither `{FILE}` nor `skills/NAME/{FILE}`")]
    None,
    /// There are too many.
    #[error("it has more than {MAX_SKILLS} skills")]
    TooMany,
    /// A folder's name is no skill's.
    #[error("`{name}` is no name of a skill: a-z, 0-9 and - name one, up to 64 of them")]
    Name {
        /// The name.
        name: String,
    },
    /// A text cannot be read as it was reviewed.
    #[error("`{path}` cannot be read: {why}")]
    Text {
        /// Which.
        path: String,
        /// Why.
        why: &'static str,
    },
}

impl Skills {
    /// The skills of an installed plugin.
    ///
    /// # Errors
    /// It has none, or they cannot be read.
    pub fn of(placed: &Placed) -> Result<Self, ReadSkillsError> {
        let Placed { record, files, .. } = placed;
        Self::at(files.clone(), &record.pin.name, &record.pin.files)
    }

    /// The skills in a folder that was just looked at.
    ///
    /// # Errors
    /// It has none, or they cannot be read.
    pub fn in_folder(folder: PathBuf, examined: &Examined) -> Result<Self, ReadSkillsError> {
        Self::at(folder, &examined.pin.name, &examined.pin.files)
    }

    fn at(place: PathBuf, plugin: &str, files: &Files) -> Result<Self, ReadSkillsError> {
        let mut skills = Vec::new();
        for path in files.keys() {
            let Some(folder) = path.strip_suffix(FILE) else {
                continue;
            };
            let name = match folder {
                "" => plugin,
                _ => match skill_folder(folder) {
                    Some(name) if is_name(name) => name,
                    Some(name) => {
                        let name = name.chars().take(64).collect();
                        return Err(ReadSkillsError::Name { name });
                    }
                    // Deeper, it belongs to another one.
                    None => continue,
                },
            };
            skills.push(Named {
                name: name.to_owned(),
                folder: folder.to_owned(),
            });
        }
        match skills.len() {
            0 => return Err(ReadSkillsError::None),
            1..=MAX_SKILLS => {}
            _ => return Err(ReadSkillsError::TooMany),
        }
        let read = Self {
            sandbox: SandboxId::generate(),
            place,
            files: files.clone(),
            skills,
        };
        for skill in &read.skills {
            read.text(skill, FILE)?;
        }
        Ok(read)
    }

    /// Each of them as it is now, if that is what was reviewed.
    #[must_use]
    pub fn texts(&self, plugin: &str) -> Vec<SkillText> {
        let texts = self.skills.iter().filter_map(|skill| {
            Some(SkillText {
                plugin: plugin.to_owned(),
                name: skill.name.clone(),
                text: self.text(skill, FILE).ok()?,
            })
        });
        texts.collect()
    }

    fn text(&self, skill: &Named, file: &str) -> Result<String, ReadSkillsError> {
        let path = format!("{}{file}", skill.folder);
        let wrong = |why| ReadSkillsError::Text {
            path: path.chars().take(128).collect(),
            why,
        };
        // By its whole path: whatever else a path could mean is not there.
        let fact = self.files.get(&path);
        let fact = fact.ok_or_else(|| wrong("there is no such file"))?;
        let file = std::fs::File::open(self.place.join(&path));
        let file = file.map_err(|_| wrong("it cannot be opened"))?;
        let mut bytes = Vec::new();
        let read = file.take(MAX_TEXT + 1).read_to_end(&mut bytes);
        read.map_err(|_| wrong("it cannot be opened"))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_TEXT) {
            return Err(wrong("it is longer than a skill may be"));
        }
        if Digest::of(&bytes) != fact.digest {
            return Err(wrong("it is not what was reviewed"));
        }
        String::from_utf8(bytes).map_err(|_| wrong("it is no text"))
    }

    fn read(&self, arguments: &Value) -> Result<ToolOutput, CallPluginError> {
        let word = |name: &str| arguments.get(name).and_then(Value::as_str);
        let wanted = word("name").unwrap_or_default();
        let refused = |text: String| CallPluginError::Refused { text };
        let skill = self.skills.iter().find(|skill| skill.name == wanted);
        let skill = skill.ok_or_else(|| refused("there is no such skill".to_owned()))?;
        let text = self.text(skill, word("file").unwrap_or(FILE));
        Ok(ToolOutput {
            content: text.map_err(|error| refused(error.to_string()))?,
            outcome: ToolOutcome::Done,
        })
    }
}

impl Connection for Skills {
    fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    fn tools(&self) -> Vec<ForeignTool> {
        let names: Vec<&str> = self.skills.iter().map(|skill| &*skill.name).collect();
        let parameters = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": names},
                "file": {"type": "string", "description": "a file beside SKILL.md that it names"},
            },
            "required": ["name"],
        });
        vec![ForeignTool {
            name: TOOL.to_owned(),
            summary: "Reads a skill.".to_owned(),
            parameters,
            effect: Effect::Reads,
            timeout: Span { millis: 10_000 },
        }]
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a Value,
    ) -> BoxFuture<'a, Result<ToolOutput, CallPluginError>> {
        let answer = match tool {
            TOOL => self.read(arguments),
            _ => Err(CallPluginError::NoSuchTool {
                tool: tool.to_owned(),
            }),
        };
        Box::pin(std::future::ready(answer))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), CallPluginError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self, _grace: Duration) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn gone(&self) -> BoxFuture<'_, Gone> {
        Box::pin(std::future::pending())
    }
}

/// The name in `skills/<name>/`.
fn skill_folder(folder: &str) -> Option<&str> {
    let name = folder.strip_prefix("skills/")?.strip_suffix('/')?;
    (!name.contains('/')).then_some(name)
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shelf::examine;

    const MANIFEST: &str = "name: notes\nversion: 1.0.0\ntype: skill\nengine: \">=0.1\"\napi: 1\n";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let all = [&[("plugin.yaml", MANIFEST)], files].concat();
        for (path, text) in all {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    fn skills(files: &[(&str, &str)]) -> Result<(tempfile::TempDir, Skills), ReadSkillsError> {
        let folder = folder(files);
        let examined = examine(folder.path()).unwrap();
        let skills = Skills::in_folder(folder.path().to_owned(), &examined)?;
        Ok((folder, skills))
    }

    fn read(skills: &Skills, name: &str, file: &str) -> Option<String> {
        let read = skills.read(&json!({"name": name, "file": file}));
        read.ok().map(|output| output.content)
    }

    #[test]
    fn a_skill_is_read_with_what_lies_beside_it_and_nothing_else() {
        let files = [
            ("SKILL.md", "the whole"),
            ("skills/release/SKILL.md", "how to release"),
            ("skills/release/more/steps.md", "steps"),
            ("secret.md", "not a part of any"),
        ];
        let (_folder, skills) = skills(&files).unwrap();
        let texts = skills.texts("notes");
        let told: Vec<_> = texts.iter().map(|one| (&*one.name, &*one.text)).collect();
        assert_eq!(
            told,
            [("notes", "the whole"), ("release", "how to release")]
        );
        let steps = read(&skills, "release", "more/steps.md");
        assert_eq!(steps.as_deref(), Some("steps"));
        for file in [
            "../../secret.md",
            "/etc/passwd",
            "more/../SKILL.md",
            "",
            "x",
        ] {
            assert_eq!(read(&skills, "release", file), None, "{file}");
        }
        assert_eq!(read(&skills, "other", "SKILL.md"), None);
    }

    #[test]
    fn what_is_not_what_was_reviewed_is_not_read() {
        let (folder, skills) = skills(&[("SKILL.md", "as reviewed")]).unwrap();
        assert!(read(&skills, "notes", "SKILL.md").is_some());
        std::fs::write(folder.path().join("SKILL.md"), "something else").unwrap();
        assert_eq!(read(&skills, "notes", "SKILL.md"), None);
        assert_eq!(skills.texts("notes"), []);
    }

    #[test]
    fn what_is_no_skill_is_refused() {
        let long = "x".repeat(usize::try_from(MAX_TEXT).unwrap() + 1);
        let many: Vec<String> = (0..=MAX_SKILLS)
            .map(|number| format!("skills/s{number}/SKILL.md"))
            .collect();
        let many: Vec<(&str, &str)> = many.iter().map(|path| (&**path, "x")).collect();
        let wrong = |files: &[(&str, &str)]| skills(files).err();
        assert_eq!(wrong(&[("README.md", "x")]), Some(ReadSkillsError::None));
        assert_eq!(wrong(&many), Some(ReadSkillsError::TooMany));
        let name = wrong(&[("skills/Not One/SKILL.md", "x")]);
        assert!(matches!(name, Some(ReadSkillsError::Name { .. })));
        let too_long = wrong(&[("SKILL.md", &long)]);
        assert!(matches!(too_long, Some(ReadSkillsError::Text { .. })));
    }
}
