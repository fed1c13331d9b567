//! `search.grep`: ripgrep's matcher and searcher over what the session sees.
//!
//! Files are handed out in order to a few threads; once enough matches are
//! found no further file is begun, and the first ones in order are kept, so the
//! same search always gives the same answer. A file that may not be read is
//! passed over before anything of it is shown, and it is never said that there
//! was something in it.

use std::io;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fluffy_contract::tool::{CallToolError, ToolOutput};
use fluffy_layer::{NodeKind, ReadViewError, View};
use fluffy_policy::Permit;
use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch,
};
use ignore::overrides::{Override, OverrideBuilder};

use super::ignores::Hidden;
use super::matches::{FileMatches, MatchLine, TextMatches, cut_line, keep_matches};
use super::walk::{Found, Walk, Walked};
use super::{Scope, check, done, failed};
use crate::arguments::{SearchText, Show};
use crate::paths::tree_path;

/// The longest pattern, and the memory it may compile to.
const MAX_PATTERN: usize = 4 << 10;
const MAX_COMPILED: usize = 4 << 20;

/// The most matches, and how many without a word about it.
const MAX_MATCHES: u16 = 1_000;
const USUAL_MATCHES: u16 = 200;

/// The most lines around a match.
const MAX_CONTEXT: u8 = 10;

/// The longest line that is searched, in bytes.
const MAX_SEARCHED_LINE: usize = 4 << 20;

/// With fewer files threads cost more than they save.
const FILES_PER_THREAD: usize = 64;
const MAX_THREADS: usize = 8;

/// Why nothing was searched.
#[derive(Debug, thiserror::Error)]
pub enum SearchTextError {
    /// The permit is for something else.
    #[error(transparent)]
    Permit(#[from] CallToolError),
    /// The pattern is no regular expression, or too costly.
    #[error("the pattern cannot be searched for: {problem}")]
    Pattern {
        /// What is wrong with it.
        problem: String,
    },
    /// A glob is none.
    #[error("`{glob}` is not a glob")]
    Glob {
        /// The glob.
        glob: String,
    },
    /// The path is not in the project.
    #[error(transparent)]
    Path(#[from] crate::paths::NotInProject),
    /// There is nothing that could be searched.
    #[error(transparent)]
    Read(#[from] ReadViewError),
}

/// Searches text; the permit is for `search.grep` on the directory.
///
/// # Errors
/// The permit, the pattern, a glob or the directory is wrong.
pub fn search_text(
    permit: Permit,
    view: &View,
    arguments: &SearchText,
    scope: Scope<'_>,
) -> Result<TextMatches, SearchTextError> {
    check(&permit, "search.grep", &arguments.path)?;
    drop(permit);
    let matcher = matcher(arguments)?;
    let hidden = match arguments.hidden {
        true => Hidden::Show,
        false => Hidden::Skip,
    };
    let walk = Walk {
        view,
        scope,
        hidden,
        globs: globs(&arguments.globs)?,
    };
    let walked = files(&walk, &arguments.path)?;
    let search = Search {
        view,
        scope,
        matcher,
        files: &walked.files,
        limit: usize::from(
            arguments
                .limit
                .unwrap_or(USUAL_MATCHES)
                .clamp(1, MAX_MATCHES),
        ),
        context: usize::from(arguments.context.unwrap_or(0).min(MAX_CONTEXT)),
        show: arguments.show,
        next: AtomicUsize::new(0),
        found: AtomicUsize::new(0),
        unreadable: AtomicUsize::new(0),
        results: Mutex::new(Vec::new()),
    };
    search.run();
    Ok(search.into_matches(&walked))
}

/// The files to be searched: one, or those below a directory.
fn files(walk: &Walk<'_>, resource: &str) -> Result<Walked, SearchTextError> {
    let path = tree_path(resource)?;
    if let Some(path) = &path
        && let Some(seen) = walk.view.look(path).map_err(ReadViewError::from)?
        && seen.kind == NodeKind::File
    {
        let file = Found {
            path: path.clone(),
            side: seen.side,
        };
        return Ok(Walked {
            files: vec![file],
            ..Walked::default()
        });
    }
    Ok(walk.files(path.as_ref())?)
}

fn matcher(arguments: &SearchText) -> Result<RegexMatcher, SearchTextError> {
    let wrong = |problem: String| SearchTextError::Pattern { problem };
    let pattern = &arguments.pattern;
    if pattern.is_empty() || pattern.len() > MAX_PATTERN {
        return Err(wrong(format!("it needs 1 to {MAX_PATTERN} bytes")));
    }
    RegexMatcherBuilder::new()
        .case_insensitive(arguments.ignore_case)
        .fixed_strings(arguments.literal)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .line_terminator(Some(b'\n'))
        .build(pattern)
        .map_err(|error| wrong(format!("{error}; `literal: true` takes it as plain text")))
}

pub(super) fn globs(globs: &[String]) -> Result<Override, SearchTextError> {
    let wrong = |glob: &str| SearchTextError::Glob {
        glob: glob.chars().take(128).collect(),
    };
    let mut builder = OverrideBuilder::new("");
    for glob in globs {
        if glob.len() > MAX_PATTERN {
            return Err(wrong(glob));
        }
        builder.add(glob).map_err(|_| wrong(glob))?;
    }
    builder.build().map_err(|_| wrong("all of them together"))
}

/// One running search.
struct Search<'a> {
    view: &'a View,
    scope: Scope<'a>,
    matcher: RegexMatcher,
    files: &'a [Found],
    limit: usize,
    context: usize,
    show: Show,
    next: AtomicUsize,
    found: AtomicUsize,
    unreadable: AtomicUsize,
    results: Mutex<Vec<(usize, FileMatches)>>,
}

impl Search<'_> {
    fn run(&self) {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let useful = self.files.len() / FILES_PER_THREAD;
        let threads = cores.min(useful).min(MAX_THREADS);
        std::thread::scope(|threads_scope| {
            for _ in 1..threads {
                threads_scope.spawn(|| self.work());
            }
            self.work();
        });
    }

    /// Searches files, in their order, until there is no more to do.
    fn work(&self) {
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(MAX_SEARCHED_LINE))
            .before_context(self.context)
            .after_context(self.context)
            .build();
        let mut own = Vec::new();
        while self.found.load(Ordering::Relaxed) < self.limit && !self.scope.is_stopped() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.files.get(index) else {
                break;
            };
            if let Some(matches) = self.search(&mut searcher, file) {
                let weight = match self.show {
                    Show::Lines => matches.count,
                    Show::Files | Show::Counts => 1,
                };
                self.found.fetch_add(weight, Ordering::Relaxed);
                own.push((index, matches));
            }
        }
        if let Ok(mut results) = self.results.lock() {
            results.append(&mut own);
        }
    }

    fn search(&self, searcher: &mut Searcher, file: &Found) -> Option<FileMatches> {
        let count_unreadable = || {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
        };
        let opened = self.view.open_listed(&file.path, file.side);
        let Ok(opened) = opened else {
            count_unreadable();
            return None;
        };
        let mut collector = Collector {
            search: self,
            lines: Vec::new(),
            count: 0,
            is_binary: false,
        };
        // A line longer than anything a person wrote ends the search of its file.
        if searcher
            .search_file(&self.matcher, &opened, &mut collector)
            .is_err()
        {
            count_unreadable();
        }
        if collector.count == 0 || collector.is_binary {
            return None;
        }
        // A name that no rule could name is one that no rule allows.
        let resource = file.path.resource()?;
        (self.scope.may_read)(&resource).then(|| FileMatches {
            path: file.path.clone(),
            count: collector.count,
            lines: collector.lines,
        })
    }

    fn into_matches(self, walked: &Walked) -> TextMatches {
        let mut results = self.results.into_inner().unwrap_or_default();
        results.sort_by_key(|(index, _)| *index);
        let begun = self.next.into_inner().min(self.files.len());
        let mut matches = TextMatches {
            files: Vec::new(),
            searched: begun,
            unreadable: walked.unreadable + self.unreadable.into_inner(),
            is_cut: walked.is_cut || begun < self.files.len(),
        };
        let mut left = self.limit;
        for (_, mut file) in results {
            if left == 0 {
                matches.is_cut = true;
                break;
            }
            match self.show {
                Show::Files | Show::Counts => left -= 1,
                Show::Lines => {
                    matches.is_cut |= keep_matches(&mut file, left);
                    left = left.saturating_sub(file.count);
                }
            }
            matches.files.push(file);
        }
        matches
    }
}

struct Collector<'a, 'b> {
    search: &'a Search<'b>,
    lines: Vec<MatchLine>,
    count: usize,
    is_binary: bool,
}

impl Collector<'_, '_> {
    fn push(&mut self, number: Option<u64>, bytes: &[u8], is_match: bool) {
        if self.search.show != Show::Lines {
            return;
        }
        let at = match is_match {
            true => self
                .search
                .matcher
                .find(bytes)
                .ok()
                .flatten()
                .map_or(0, |found| found.start()),
            false => 0,
        };
        self.lines.push(MatchLine {
            number: number.unwrap_or(0),
            text: cut_line(bytes, at),
            is_match,
        });
    }
}

impl Sink for Collector<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        self.count += 1;
        self.push(found.line_number(), found.bytes(), true);
        Ok(match self.search.show {
            Show::Files => false,
            Show::Counts => true,
            // One more than wanted says that there are more.
            Show::Lines => self.count <= self.search.limit,
        })
    }

    fn context(&mut self, _: &Searcher, beside: &SinkContext<'_>) -> Result<bool, io::Error> {
        self.push(beside.line_number(), beside.bytes(), false);
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, finish: &SinkFinish) -> Result<(), io::Error> {
        self.is_binary = finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// The whole tool: searches and writes down what was found.
///
/// # Errors
/// The permit is for something else, or the system failed.
pub fn search_text_output(
    permit: Permit,
    view: &View,
    arguments: &SearchText,
    scope: Scope<'_>,
) -> Result<ToolOutput, CallToolError> {
    match search_text(permit, view, arguments, scope) {
        Ok(matches) => Ok(done(matches.render(arguments.show))),
        Err(SearchTextError::Permit(error)) => Err(error),
        Err(SearchTextError::Read(error)) => super::refused("search.grep", error),
        Err(other) => Ok(failed(other.to_string())),
    }
}
