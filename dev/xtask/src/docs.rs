//! The documentation is true: links lead somewhere, commands do what they say.
//!
//! Runs `console` and `sh` blocks of README.md and docs/ (see `session`), and
//! checks the links of every Markdown file. Never changes a document.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::markdown::Document;
use crate::output;
use crate::process::{find_program, run};
use crate::session::run_blocks;
use crate::step::Outcome;
use crate::workspace::Workspace;

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A Markdown file and what is in it.
struct Page {
    path: PathBuf,
    document: Document,
}

/// Checks links and the book's table of contents.
pub(crate) fn check_structure(workspace: &Workspace) -> Result<Outcome> {
    let (pages, mut problems) = read_pages(workspace)?;
    for page in &pages {
        for (line, target) in &page.document.links {
            let broken = broken_link(page, target, &pages);
            problems
                .extend(broken.map(|why| {
                    format!("{}:{line}: `{target}` {why}", workspace.shown(&page.path))
                }));
        }
    }
    problems.extend(unlisted(workspace, &pages));
    let links: usize = pages.iter().map(|page| page.document.links.len()).sum();
    let note = format!("{links} links in {} files hold", pages.len());
    Ok(Outcome::from_problems(&problems, note))
}

/// Runs the commands of README.md and docs/ with the built `fluffy`.
pub(crate) fn check_commands(workspace: &Workspace) -> Result<Outcome> {
    let built = run(&mut workspace.build_as_tests_do(), "")?;
    if let Outcome::Failed(_) = built {
        return Ok(built);
    }
    // Only the product, not everything that happens to be in the folder.
    let programs = TempDir::new().context("cannot make a folder")?;
    let program = workspace.target.join("debug/fluffy");
    std::os::unix::fs::symlink(&program, programs.path().join("fluffy"))
        .with_context(|| format!("cannot link {}", program.display()))?;
    let (pages, mut problems) = read_pages(workspace)?;
    let (mut commands, mut skipped) = (0, 0);
    for page in pages.iter().filter(|page| is_for_readers(workspace, page)) {
        let name = workspace.shown(&page.path);
        let tally = run_blocks(&page.document.blocks, programs.path())?;
        commands += tally.commands;
        skipped += tally.skipped.len();
        for (line, reason) in tally.skipped {
            output::line(&format!("{name}:{line}: not run: {reason}"));
        }
        let told = tally.problems.into_iter();
        problems.extend(told.map(|(line, problem)| format!("{name}:{line}: {problem}")));
    }
    let note = format!("{commands} commands do what they say, {skipped} blocks are not run");
    Ok(Outcome::from_problems(&problems, note))
}

/// Checks the book, and builds it where `mdbook` is installed.
pub(crate) fn build(workspace: &Workspace) -> Result<Outcome> {
    let structure = check_structure(workspace)?;
    let Outcome::Passed(note) = &structure else {
        return Ok(structure);
    };
    let Some(mdbook) = find_program("mdbook") else {
        return Ok(Outcome::Passed(format!(
            "{note}; not built as a book: mdbook is not installed (cargo install mdbook)"
        )));
    };
    let folder = workspace.target.join("book");
    let mut command = Command::new(mdbook);
    command
        .args(["build", "docs", "--dest-dir"])
        .arg(&folder)
        .current_dir(&workspace.root);
    run(
        &mut command,
        &format!("{note}; the book is in {}", folder.display()),
    )
}

fn read_pages(workspace: &Workspace) -> Result<(Vec<Page>, Vec<String>)> {
    let (mut pages, mut problems) = (Vec::new(), Vec::new());
    for path in workspace.files("", ".md")? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        match Document::parse(&text) {
            Ok(document) => pages.push(Page { path, document }),
            Err(problem) => problems.push(format!("{}:{problem}", workspace.shown(&path))),
        }
    }
    Ok((pages, problems))
}

fn is_for_readers(workspace: &Workspace, page: &Page) -> bool {
    page.path == workspace.root.join("README.md")
        || page.path.starts_with(workspace.root.join("docs"))
}

/// Why a link leads nowhere; addresses of other machines are not followed.
fn broken_link(page: &Page, target: &str, pages: &[Page]) -> Option<String> {
    let elsewhere = ["http://", "https://", "mailto:"];
    if elsewhere.iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() {
        page.path.clone()
    } else {
        normalize(&page.path.parent()?.join(file))
    };
    if !path.exists() {
        return Some("does not exist".to_owned());
    }
    let there = pages.iter().find(|other| other.path == path);
    let known = |page: &Page| page.document.anchors.iter().any(|known| known == anchor);
    (!anchor.is_empty() && there.is_some_and(|page| !known(page)))
        .then(|| format!("has no heading `{anchor}`"))
}

/// The path without `.` and `..`, so that it can be compared.
fn normalize(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                clean.pop();
            }
            std::path::Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// Pages of the book that its table of contents does not lead to.
fn unlisted(workspace: &Workspace, pages: &[Page]) -> Vec<String> {
    let summary_path = workspace.root.join(SUMMARY);
    let Some(summary) = pages.iter().find(|page| page.path == summary_path) else {
        return vec![format!("{SUMMARY} is missing: the book has no contents")];
    };
    let folder = workspace.root.join("docs");
    let links = &summary.document.links;
    let listed: Vec<PathBuf> = links
        .iter()
        .map(|(_, target)| normalize(&folder.join(target)))
        .collect();
    pages
        .iter()
        .filter(|page| page.path.starts_with(&folder) && page.path != summary_path)
        .filter(|page| !listed.contains(&page.path))
        .map(|page| {
            let name = workspace.shown(&page.path);
            format!("{name}: {SUMMARY} does not lead to it")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)]) -> Outcome {
        let root = TempDir::new().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let workspace = Workspace {
            root: root.path().to_owned(),
            target: root.path().join("target"),
            packages: Vec::new(),
        };
        check_structure(&workspace).unwrap()
    }

    #[test]
    fn links_that_hold_pass() {
        let files = [
            (
                "README.md",
                "[guide](docs/guide.md#two-words) [here](#top) [web](https://x.y)\n# Top\n",
            ),
            ("docs/SUMMARY.md", "- [Guide](guide.md)\n"),
            ("docs/guide.md", "## Two words\n[back](../README.md#top)\n"),
        ];
        assert_eq!(
            check(&files),
            Outcome::Passed("5 links in 3 files hold".to_owned())
        );
    }

    #[test]
    fn what_leads_nowhere_is_named_with_its_line() {
        let files = [
            ("README.md", "\n[a](docs/lost.md)\n[b](#lost)\n"),
            ("docs/SUMMARY.md", "- [Guide](guide.md)\n"),
            ("docs/guide.md", "text\n"),
            ("docs/forgotten.md", "```sh\n"),
            ("docs/alone.md", "text\n"),
        ];
        let Outcome::Failed(problems) = check(&files) else {
            panic!("wrong links passed");
        };
        let found: Vec<&str> = problems.lines().collect();
        assert_eq!(found.len(), 4, "{problems}");
        for wanted in [
            "README.md:2: `docs/lost.md` does not exist",
            "README.md:3: `#lost` has no heading `lost`",
            "docs/forgotten.md:1: the block is never closed",
            "docs/alone.md: docs/SUMMARY.md does not lead to it",
        ] {
            assert!(found.contains(&wanted), "{wanted}: {problems}");
        }
    }

    #[test]
    fn a_book_without_contents_is_not_a_book() {
        assert!(matches!(check(&[("README.md", "")]), Outcome::Failed(_)));
    }
}
