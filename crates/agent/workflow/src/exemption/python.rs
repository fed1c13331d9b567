//! Python without those annotations that do nothing when it runs.
//!
//! Two programs that are equal here behave the same; what is not certain stays
//! in, so that a change of it is a difference, or refuses the whole program.
//!
//! Taken out are annotations
//! - of variables in functions, which are never evaluated;
//! - of parameters and results, in programs that say `from __future__ import
//!   annotations`; in others only single names that are bound already, `None`
//!   and texts, because anything else is evaluated and can fail.
//!
//! Kept are all of classes and modules (dataclasses and the like read them),
//! everything inside what is decorated, the methods of classes with bases, and
//! every import. A program that mentions what reads annotations at run time is
//! refused. The text of a stub never runs at all.

mod annotation;
mod tokens;

use std::collections::BTreeSet;

use annotation::{is_inert, is_keyword};
use tokens::{Kind, Line, Program, Token};

/// The program without its inert annotations; `None` if that is not certain.
///
/// The result is for comparing, not for running.
#[must_use]
pub fn without_types(text: &str) -> Option<String> {
    let text = text.replace("\r\n", "\n");
    let program = tokens::read(&text)?;
    if mentions_readers(&program) {
        return None;
    }
    let mut stripper = Stripper::new(&program);
    let mut out = String::new();
    for line in &program.lines {
        let kept = stripper.line(line)?;
        out.push_str(&format!("{}\u{1f}", line.indent));
        for token in kept {
            out.push_str(token.text);
            out.push('\u{1f}');
        }
        out.push('\u{1e}');
    }
    for comment in &program.comments {
        out.push_str(comment);
        out.push('\u{1e}');
    }
    Some(out)
}

/// Names by which a program, or a library it uses, reads annotations.
const READERS: [&str; 31] = [
    "__annotate_func__",
    "attr",
    "attrs",
    "beartype",
    "cattr",
    "cattrs",
    "dishka",
    "fastapi",
    "get_annotations",
    "get_type_hints",
    "getfullargspec",
    "getsource",
    "injector",
    "inspect",
    "lagom",
    "litestar",
    "msgspec",
    "multipledispatch",
    "plum",
    "punq",
    "pydantic",
    "runtime_checkable",
    "signature",
    "singledispatch",
    "singledispatchmethod",
    "sqlmodel",
    "strawberry",
    "typeguard",
    "typer",
    "validate_call",
    "wireup",
];

fn mentions_readers(program: &Program<'_>) -> bool {
    let mut tokens = program.lines.iter().flat_map(|line| &line.tokens);
    tokens.any(|token| {
        let named = token.kind == Kind::Name && READERS.contains(&token.text);
        named || token.text.contains("__annotations__") || token.text.contains("__annotate__")
    })
}

/// An open block, by the indentation of its lines.
#[derive(Debug, Clone, Copy)]
struct Block {
    indent: usize,
    scope: Scope,
    /// Whether it or something around it is decorated.
    decorated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Function,
    /// Without bases, so that nobody else looks at its methods.
    PlainClass,
    OtherClass,
    /// `if`, `for`, `with` and the like: no scope of its own.
    Statement,
}

struct Stripper<'a> {
    blocks: Vec<Block>,
    /// What the next line opens.
    opening: Option<(Scope, bool)>,
    /// Whether decorators stand before the next line.
    decorators: bool,
    /// No annotation of a function is evaluated.
    deferred: bool,
    /// Names that the module has bound by now.
    bound: BTreeSet<&'a str>,
    /// Those of its last line, which a class has not bound before its end.
    binding: Vec<&'a str>,
    /// Names that a statement removes somewhere.
    removed: BTreeSet<&'a str>,
    /// Names that may not be annotated because they are not local.
    not_local: BTreeSet<&'a str>,
}

/// Types that every program can name.
const BUILT_IN: [&str; 16] = [
    "BaseException",
    "Exception",
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "object",
    "set",
    "str",
    "tuple",
    "type",
];

impl<'a> Stripper<'a> {
    fn new(program: &Program<'a>) -> Self {
        let mut stripper = Self {
            blocks: Vec::new(),
            opening: None,
            decorators: false,
            deferred: program.lines.iter().any(defers),
            bound: BUILT_IN.into(),
            binding: Vec::new(),
            removed: BTreeSet::new(),
            not_local: BTreeSet::new(),
        };
        for line in &program.lines {
            let after = |word: &str| {
                let tokens = line.tokens.iter().skip_while(|token| !token.is(word));
                let names = tokens.filter(|token| token.kind == Kind::Name);
                names.map(|token| token.text).collect::<Vec<_>>()
            };
            stripper.removed.extend(after("del"));
            // What an exception is caught as is gone after its block.
            stripper.removed.extend(after("except"));
            stripper.not_local.extend(after("global"));
            stripper.not_local.extend(after("nonlocal"));
        }
        stripper
    }

    /// What is left of a line; `None` if its place in the program is unclear.
    fn line(&mut self, line: &Line<'a>) -> Option<Vec<Token<'a>>> {
        self.enter(line.indent)?;
        if self.blocks.is_empty() {
            self.bound.extend(std::mem::take(&mut self.binding));
        }
        let tokens = line.tokens.as_slice();
        let first = tokens.first()?;
        if first.is("@") {
            self.decorators = true;
            return Some(tokens.to_vec());
        }
        let decorated = std::mem::take(&mut self.decorators);
        let inside = self.blocks.last().is_some_and(|block| block.decorated);
        let definition = match first.is("async") {
            true => tokens.get(1).is_some_and(|token| token.is("def")),
            false => first.is("def"),
        };
        let kept = match (definition, decorated || inside) {
            (true, false) => self.header(tokens),
            (false, false) => self.assignment(tokens),
            (_, true) => None,
        };
        let scope = match first.text {
            _ if definition => Scope::Function,
            "class" if first.kind == Kind::Name => class(tokens),
            _ => Scope::Statement,
        };
        if tokens.last().is_some_and(|token| token.is(":")) {
            self.opening = Some((scope, decorated || inside));
        }
        if self.blocks.is_empty() {
            self.bind(tokens);
        }
        Some(kept.unwrap_or_else(|| tokens.to_vec()))
    }

    /// Follows the indentation.
    fn enter(&mut self, indent: usize) -> Option<()> {
        let current = self.blocks.last().map_or(0, |block| block.indent);
        if let Some((scope, decorated)) = self.opening.take() {
            self.blocks.push(Block {
                indent,
                scope,
                decorated,
            });
            return (indent > current).then_some(());
        }
        while self
            .blocks
            .last()
            .is_some_and(|block| block.indent > indent)
        {
            self.blocks.pop();
        }
        let current = self.blocks.last().map_or(0, |block| block.indent);
        (indent == current).then_some(())
    }

    /// Takes down what a line of the module binds.
    fn bind(&mut self, tokens: &[Token<'a>]) {
        let names: Vec<&'a str> = match tokens {
            [from, .., last] if from.is("from") && !last.is("*") => {
                let after = tokens.iter().skip_while(|token| !token.is("import"));
                imported(after)
            }
            [import, ..] if import.is("import") => imported(tokens.iter()),
            [def, name, ..] if def.is("class") || def.is("def") => vec![name.text],
            [first, def, name, ..] if first.is("async") && def.is("def") => vec![name.text],
            _ => Vec::new(),
        };
        if !tokens.iter().any(|token| token.is(";")) {
            self.binding = names;
        }
    }

    /// A function's header without inert annotations.
    fn header(&self, tokens: &[Token<'a>]) -> Option<Vec<Token<'a>>> {
        let around = self.blocks.iter().rev();
        let mut around = around.take_while(|block| block.scope != Scope::Function);
        if around.any(|block| block.scope == Scope::OtherClass) {
            return None;
        }
        let in_function = self
            .blocks
            .iter()
            .any(|block| block.scope == Scope::Function);
        let inert = |annotation: &[Token<'_>]| match (self.deferred, annotation) {
            (true, _) => is_inert(annotation),
            (false, [only]) if only.kind == Kind::Name && only.text != "None" => {
                // In a function it could be a variable that is not set yet.
                let known = self.bound.contains(only.text) && !self.removed.contains(only.text);
                known && !in_function && is_inert(annotation)
            }
            (false, [only]) => only.kind != Kind::Number && is_inert(annotation),
            (false, _) => false,
        };
        annotation::header(tokens, &inert)
    }

    /// An annotated variable of a function, without its type.
    fn assignment(&self, tokens: &[Token<'a>]) -> Option<Vec<Token<'a>>> {
        let scopes = self.blocks.iter().rev().map(|block| block.scope);
        let nearest = { scopes }.find(|scope| *scope != Scope::Statement);
        if nearest != Some(Scope::Function) {
            return None;
        }
        let single = matches!(tokens, [_, colon, ..] if colon.is(":"));
        let first = tokens.first()?;
        if single && self.not_local.contains(first.text) {
            return None;
        }
        annotation::assignment(tokens)
    }
}

/// `from __future__ import annotations`.
fn defers(line: &Line<'_>) -> bool {
    let [from, future, import, names @ ..] = line.tokens.as_slice() else {
        return false;
    };
    let is_import = from.is("from") && future.is("__future__") && import.is("import");
    is_import && line.indent == 0 && names.iter().any(|name| name.is("annotations"))
}

/// The names that `import` binds; it is the first of the tokens.
fn imported<'t, 'a: 't>(tokens: impl Iterator<Item = &'t Token<'a>>) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut at_name = true;
    for token in tokens.skip(1) {
        match token.kind {
            Kind::Name if token.text == "as" => {
                names.pop();
                at_name = true;
            }
            Kind::Name if at_name => {
                names.push(token.text);
                at_name = false;
            }
            Kind::Operator if token.text == "," => at_name = true,
            _ => {}
        }
    }
    names
}

fn class(tokens: &[Token<'_>]) -> Scope {
    let words: Vec<&str> = tokens.iter().skip(2).map(|token| token.text).collect();
    let named = tokens.get(1).is_some_and(|token| !is_keyword(token.text));
    match words.as_slice() {
        [":"] | ["(", ")", ":"] | ["(", "object", ")", ":"] if named => Scope::PlainClass,
        _ => Scope::OtherClass,
    }
}

#[cfg(test)]
mod tests;
