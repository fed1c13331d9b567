//! `fs.list` and `fs.exists`: what is where.

use fluffy_contract::tool::{CallToolError, ToolOutput};
use fluffy_layer::{Entry, NodeKind, ReadViewError, SeenDirectory, TreePath, View};
use fluffy_policy::Permit;

use super::ignores::{Hidden, Ignores};
use super::{check, done, failed, refused};
use crate::arguments::{AskPath, ListDirectory};
use crate::paths::{shown, tree_path};

/// The most names that are shown.
const MAX_NAMES: usize = 1_000;

/// The most levels that are shown.
const MAX_DEPTH: u8 = 5;

/// The names in a directory; the permit is for `fs.list` on it.
///
/// # Errors
/// The permit is for something else, or the system failed.
pub fn list_directory(
    permit: Permit,
    view: &View,
    arguments: &ListDirectory,
) -> Result<ToolOutput, CallToolError> {
    check(&permit, "fs.list", &arguments.path)?;
    drop(permit);
    let path = match tree_path(&arguments.path) {
        Ok(path) => path,
        Err(error) => return Ok(failed(error.to_string())),
    };
    let directory = match view.directory(path.as_ref()) {
        Ok(directory) => directory,
        Err(error) => return refused("fs.list", error),
    };
    let mut listing = Listing {
        view,
        depth: arguments.depth.unwrap_or(1).clamp(1, MAX_DEPTH),
        text: String::new(),
        names: 0,
        left_out: 0,
    };
    let ignores = Ignores::above(view, path.as_ref());
    if let Err(error) = ignores.and_then(|ignores| listing.directory(&directory, &ignores, 0)) {
        return refused("fs.list", error);
    }
    let mut text = listing.text;
    match (listing.names, listing.left_out) {
        (0, 0) => text = format!("`{}` is empty", shown(&arguments.path)),
        (_, 0) => {}
        (_, more) => text.push_str(&format!("({more} more names are not shown)\n")),
    }
    Ok(done(text))
}

/// What is at a path; the permit is for `fs.exists` on it.
///
/// # Errors
/// The permit is for something else, or the system failed.
pub fn ask_path(
    permit: Permit,
    view: &View,
    arguments: &AskPath,
) -> Result<ToolOutput, CallToolError> {
    check(&permit, "fs.exists", &arguments.path)?;
    drop(permit);
    let name = shown(&arguments.path);
    let path = match tree_path(&arguments.path) {
        Ok(Some(path)) => path,
        Ok(None) => return Ok(done("yes: the project's directory")),
        Err(error) => return Ok(failed(error.to_string())),
    };
    let seen = match view.look(&path) {
        Ok(seen) => seen,
        Err(error) => return refused("fs.exists", error.into()),
    };
    Ok(done(match seen {
        None => format!("no: there is no `{name}`"),
        Some(seen) if seen.kind == NodeKind::File => {
            format!("yes: `{name}` is a file of {} bytes", seen.size)
        }
        Some(seen) => format!("yes: `{name}` is a {}", seen.kind.describe()),
    }))
}

struct Listing<'a> {
    view: &'a View,
    depth: u8,
    text: String,
    names: usize,
    left_out: usize,
}

impl Listing<'_> {
    fn directory(
        &mut self,
        directory: &SeenDirectory,
        ignores: &Ignores,
        level: u8,
    ) -> Result<(), ReadViewError> {
        let entries = self.view.list(directory)?;
        let ignores = ignores.within(self.view, directory.path(), &entries);
        for entry in &entries {
            let Ok(path) = TreePath::below(directory.path(), &entry.name) else {
                self.left_out += 1;
                continue;
            };
            // One level is shown whole; more of them without what only fills.
            let is_whole = self.depth == 1;
            if !is_whole && ignores.leaves_out(&path, entry.kind, Hidden::Show) {
                continue;
            }
            if self.names >= MAX_NAMES {
                self.left_out += 1;
                continue;
            }
            self.names += 1;
            self.line(entry, &path, level);
            if entry.kind == NodeKind::Directory
                && level + 1 < self.depth
                && let Ok(Some(inner)) = self.view.enter(directory, entry)
            {
                // One that cannot be read is shown by its name alone.
                let _ = self.directory(&inner, &ignores, level + 1);
            }
        }
        Ok(())
    }

    fn line(&mut self, entry: &Entry, path: &TreePath, level: u8) {
        let name = fluffy_layer::path::escape(&entry.name);
        let shown = match entry.kind {
            NodeKind::File => name,
            NodeKind::Directory => format!("{name}/"),
            NodeKind::Symlink => {
                let target = self.view.link_target(path).unwrap_or_default();
                format!("{name} -> {}", fluffy_layer::path::escape(&target))
            }
            special => format!("{name} ({})", special.describe()),
        };
        self.text.push_str(&"  ".repeat(usize::from(level)));
        self.text.push_str(&shown);
        self.text.push('\n');
    }
}
