//! `search.glob`: files by name, ignore files respected.

use fluffy_contract::tool::{CallToolError, ToolOutput};
use fluffy_layer::View;
use fluffy_policy::Permit;
use globset::{GlobBuilder, GlobMatcher};
use ignore::overrides::Override;

use super::ignores::{Hidden, as_path};
use super::walk::Walk;
use super::{Scope, check, done, failed, refused};
use crate::arguments::FindFiles;
use crate::paths::tree_path;

const MAX_PATTERN: usize = 4 << 10;
const MAX_FILES: u16 = 1_000;
const USUAL_FILES: u16 = 200;

/// The files that match a glob; the permit is for `search.glob` on the directory.
///
/// # Errors
/// The permit is for something else, or the system failed.
pub fn find_files(
    permit: Permit,
    view: &View,
    arguments: &FindFiles,
    scope: Scope<'_>,
) -> Result<ToolOutput, CallToolError> {
    check(&permit, "search.glob", &arguments.path)?;
    drop(permit);
    let start = match tree_path(&arguments.path) {
        Ok(start) => start,
        Err(error) => return Ok(failed(error.to_string())),
    };
    let Some(glob) = glob(&arguments.pattern) else {
        return Ok(failed("the pattern is not a glob such as `src/**/*.rs`"));
    };
    let walk = Walk {
        view,
        scope,
        hidden: match arguments.hidden {
            true => Hidden::Show,
            false => Hidden::Skip,
        },
        globs: Override::empty(),
    };
    let walked = match walk.files(start.as_ref()) {
        Ok(walked) => walked,
        Err(error) => return refused("search.glob", error),
    };
    let limit = usize::from(arguments.limit.unwrap_or(USUAL_FILES).clamp(1, MAX_FILES));
    // A glob is about what is below the directory that was named.
    let skip = start.as_ref().map_or(0, |start| start.as_bytes().len() + 1);
    let matches = walked.files.iter().filter(|file| {
        let below = as_path(&file.path).as_os_str().as_encoded_bytes();
        let below = String::from_utf8_lossy(below.get(skip..).unwrap_or_default());
        glob.is_match(&*below)
    });
    let mut text = String::new();
    let mut count = 0usize;
    for file in matches {
        count += 1;
        if count <= limit {
            text.push_str(&format!("{}\n", file.path));
        }
    }
    if count == 0 {
        text = format!("no file of {} matches\n", walked.files.len());
    }
    if count > limit {
        text.push_str(&format!("({} more files match)\n", count - limit));
    }
    if walked.is_cut || walked.unreadable > 0 {
        text.push_str("(not every directory was looked at)\n");
    }
    Ok(done(text))
}

/// As in ignore files: without a slash a name at any depth is meant.
fn glob(pattern: &str) -> Option<GlobMatcher> {
    if pattern.is_empty() || pattern.len() > MAX_PATTERN {
        return None;
    }
    let pattern = pattern.trim_start_matches("./");
    let anywhere = match pattern.contains('/') {
        true => pattern.to_owned(),
        false => format!("**/{pattern}"),
    };
    let glob = GlobBuilder::new(&anywhere).literal_separator(true).build();
    glob.ok().map(|glob| glob.compile_matcher())
}
