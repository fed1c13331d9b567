//! `fs.read`: a text file with line numbers, bounded in every direction.

use fluffy_contract::tool::{CallToolError, ToolOutput};
use fluffy_layer::{ReadViewError, View};
use fluffy_policy::Permit;

use super::{check, done, failed, refused};
use crate::arguments::ReadFile;
use crate::paths::{shown, tree_path};

/// The largest file that is read; a search can look into larger ones.
const MAX_BYTES: u64 = 16 << 20;

/// The most lines that are shown at once.
const MAX_LINES: u64 = 2_000;

/// The most characters of a line that are shown.
const MAX_LINE: usize = 2_000;

/// How much of a file is looked at to tell text from the rest.
const SNIFF: usize = 8 << 10;

/// The lines of a file, with numbers; the permit is for `fs.read` on it.
///
/// # Errors
/// The permit is for something else, or the system failed.
pub fn read_file(
    permit: Permit,
    view: &View,
    arguments: &ReadFile,
) -> Result<ToolOutput, CallToolError> {
    check(&permit, "fs.read", &arguments.path)?;
    drop(permit);
    let path = match tree_path(&arguments.path) {
        Ok(Some(path)) => path,
        Ok(None) => return Ok(failed("the project is a directory: list it with `fs.list`")),
        Err(error) => return Ok(failed(error.to_string())),
    };
    let bytes = match view.read(&path, MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return explain(view, error),
    };
    let name = shown(&arguments.path);
    if is_binary(&bytes) {
        let size = bytes.len();
        return Ok(done(format!(
            "`{name}` is binary ({size} bytes) and is not shown"
        )));
    }
    Ok(numbered(name, &String::from_utf8_lossy(&bytes), arguments))
}

/// Adds what helps: where a link points, what a directory needs.
fn explain(view: &View, error: ReadViewError) -> Result<ToolOutput, CallToolError> {
    use fluffy_layer::NodeKind::{Directory, Symlink};

    let advice = match &error {
        ReadViewError::Kind {
            path,
            kind: Symlink,
        } => {
            let target = view.link_target(path).unwrap_or_default();
            let target = fluffy_layer::path::escape(&target);
            format!(" to `{target}`; links are not followed: read what it points to")
        }
        ReadViewError::Kind {
            kind: Directory, ..
        } => ": list it with `fs.list`".to_owned(),
        ReadViewError::TooLarge { .. } => {
            ": look into it with `search.grep` or `shell.exec`".to_owned()
        }
        _ => return refused("fs.read", error),
    };
    Ok(failed(format!("{error}{advice}")))
}

fn numbered(name: &str, text: &str, arguments: &ReadFile) -> ToolOutput {
    let total = text.lines().count();
    let start = arguments.start_line.unwrap_or(1).max(1);
    let count = arguments
        .line_count
        .unwrap_or(MAX_LINES)
        .clamp(1, MAX_LINES);
    let skip = usize::try_from(start - 1).unwrap_or(usize::MAX);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if total == 0 {
        return done(format!("`{name}` is empty"));
    }
    if skip >= total {
        return failed(format!(
            "`{name}` has {total} lines, so there is no line {start}"
        ));
    }
    let last = skip.saturating_add(count).min(total);
    let mut out = match skip == 0 && last == total {
        true => format!("{name}: {total} lines\n"),
        false => format!("{name}: lines {start} to {last} of {total}\n"),
    };
    for (index, line) in text.lines().enumerate().skip(skip).take(count) {
        out.push_str(&format!("{}\t", index + 1));
        push_cut(&mut out, line);
        out.push('\n');
    }
    if !text.ends_with('\n') && last == total {
        out.push_str("(no newline at the end)\n");
    }
    done(out)
}

fn push_cut(out: &mut String, line: &str) {
    match line.char_indices().nth(MAX_LINE) {
        Some((cut, _)) => {
            let rest = line.get(cut..).unwrap_or_default().chars().count();
            out.push_str(line.get(..cut).unwrap_or_default());
            out.push_str(&format!("… ({rest} more characters)"));
        }
        None => out.push_str(line),
    }
}

/// Whether the beginning of a file holds what no text does.
fn is_binary(bytes: &[u8]) -> bool {
    bytes.get(..SNIFF).unwrap_or(bytes).contains(&0)
}
