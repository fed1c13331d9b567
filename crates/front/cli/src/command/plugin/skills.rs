//! What a person sees of a plugin that is only text before it is installed.

use std::fmt::Write as _;
use std::path::Path;

use fluffy_contract::tool::ForeignTool;
use fluffy_plugin_core::manifest::Kind;
use fluffy_plugin_host::Connection as _;
use fluffy_plugin_host::shelf::{Examined, Placed};
use fluffy_plugin_host::skill::{ReadSkillsError, SkillText, Skills};
use fluffy_report::{ExitCode, Report};
use fluffy_workflow::project::instructions;

use crate::failure::Failure;
use crate::session::Session;

/// How many lines of a skill are shown.
const LINES: usize = 12;

/// The skills in a folder; none for a plugin of another type.
pub(super) fn of(folder: &Path, found: &Examined) -> Result<Vec<SkillText>, Failure> {
    if found.manifest.kind != Kind::Skill {
        return Ok(Vec::new());
    }
    if found.manifest.execution.is_some() {
        return Err(Report::new(ExitCode::Usage, "a skill runs nothing")
            .why("its manifest has `execution`")
            .fix("remove it, or write `type: tool`")
            .into());
    }
    let skills = Skills::in_folder(folder.to_owned(), found).map_err(|error| refused(&error))?;
    let texts = skills.texts(&found.manifest.name);
    for SkillText { name, text, .. } in &texts {
        if instructions::skill(name, text).is_none() {
            let what = format!("the skill `{name}` does not say what it is for");
            return Err(Report::new(ExitCode::Usage, what)
                .why("nobody could tell when to read it")
                .fix("begin its SKILL.md with lines `---`, `name: …`, `description: …`, `---`")
                .into());
        }
    }
    Ok(texts)
}

/// Shows how each begins, and whose words these are.
pub(super) fn show(session: &Session, skills: &[SkillText]) -> Result<(), Failure> {
    if session.json() || skills.is_empty() {
        return Ok(());
    }
    let mut text =
        "\nThe model will read this, and somebody else wrote it. It grants nothing.\n".to_owned();
    for SkillText {
        name, text: whole, ..
    } in skills
    {
        let _ = writeln!(text, "  {name}, {} bytes:", whole.len());
        let lines = whole.lines().filter(|line| !line.trim().is_empty());
        for line in lines.take(LINES) {
            let line: String = line.chars().take(200).collect();
            let _ = writeln!(text, "  | {line}");
        }
    }
    session.printer.data(text.trim_end())?;
    Ok(())
}

/// The tool by which an installed one is read.
pub(super) fn tools(placed: &Placed) -> Result<Vec<ForeignTool>, Failure> {
    let skills = Skills::of(placed).map_err(|error| refused(&error))?;
    Ok(skills.tools())
}

fn refused(error: &ReadSkillsError) -> Failure {
    let fix = "a skill is a SKILL.md of up to 64 KiB, in the folder or in skills/NAME/";
    Failure::of(ExitCode::Usage, error, fix)
}
