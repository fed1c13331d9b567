//! TypeScript to JavaScript by removing types, and nothing else.
//!
//! Syntax that makes code of its own (enum, namespace, parameter properties) is
//! refused with its place, never compiled: what runs is what was reviewed. The
//! parser may exhaust its stack on hostile text, so this runs in the worker.
//! Next: `engine` runs the result.

use std::path::Path;

use oxc::allocator::Allocator;
use oxc::ast::ast::{
    Decorator, ExportAllDeclaration, ExportFromDeclaration, ExportSpecifier, Expression,
    FormalParameter, ImportDeclaration, ImportDeclarationSpecifier, ImportExpression,
    ImportOrExportKind, NewExpression, TSEnumDeclaration, TSExportAssignment,
    TSImportEqualsDeclaration, TSNamespaceDeclaration,
};
use oxc::ast_visit::{Visit, walk};
use oxc::codegen::Codegen;
use oxc::diagnostics::OxcDiagnostic;
use oxc::parser::Parser;
use oxc::semantic::SemanticBuilder;
use oxc::span::{SourceType, Span};
use oxc::transformer::{TransformOptions, Transformer};

use crate::problem::{Position, Problem};

/// The longest source of one extension, in bytes.
pub const MAX_SOURCE: usize = 256 * 1024;

/// The JavaScript module that is left when the types are removed; a
/// [`Problem`] for text that is too long, is not TypeScript, or uses syntax
/// that is more than types.
pub(crate) fn strip(source: &str) -> Result<String, Problem> {
    check_length(source)?;
    strip_as(
        source,
        Use::Extension,
        SourceType::ts(),
        &TransformOptions::default(),
    )
}

/// What the text is for, which decides what it may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It runs here, alone.
    Extension,
    /// It is compared with another version of itself.
    Comparing,
}

pub(crate) fn strip_as(
    source: &str,
    purpose: Use,
    kind: SourceType,
    options: &TransformOptions,
) -> Result<String, Problem> {
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, source, kind).parse();
    refuse_first(source, &parsed.diagnostics)?;
    let mut program = parsed.program;

    let mut erasable = Erasable {
        purpose,
        refused: Vec::new(),
    };
    erasable.visit_program(&program);
    if let Some(refusal) = erasable.refused.iter().min_by_key(|it| it.span.start) {
        return Err(refusal.problem(source));
    }

    let analysed = SemanticBuilder::new()
        .with_check_syntax_error(true)
        .build(&program);
    refuse_first(source, &analysed.diagnostics)?;
    let scoping = analysed.semantic.into_scoping();
    let transformed = Transformer::new(&allocator, Path::new("extension.ts"), options)
        .build_with_scoping(scoping, &mut program);
    refuse_first(source, &transformed.diagnostics)?;
    Ok(Codegen::new().build(&program).code)
}

/// Refuses a source that is longer than [`MAX_SOURCE`].
pub(crate) fn check_length(source: &str) -> Result<(), Problem> {
    if source.len() <= MAX_SOURCE {
        return Ok(());
    }
    Err(Problem {
        at: None,
        what: format!("the source has {} bytes", source.len()),
        why: format!("an extension has at most {MAX_SOURCE}"),
        fix: "split it into several extensions".to_owned(),
    })
}

fn refuse_first<'d>(
    source: &str,
    diagnostics: impl IntoIterator<Item = &'d OxcDiagnostic>,
) -> Result<(), Problem> {
    let Some(first) = diagnostics.into_iter().next() else {
        return Ok(());
    };
    let offset = first.labels.first().map(|label| label.offset());
    let fix = match &first.help {
        Some(help) => help.to_string(),
        None => "correct the syntax at this place".to_owned(),
    };
    Err(Problem {
        at: offset.map(|offset| Position::of(source, offset)),
        what: first.message.to_string(),
        why: "it is not valid TypeScript".to_owned(),
        fix,
    })
}

/// One use of syntax that cannot be removed without changing what runs.
struct Refusal {
    span: Span,
    syntax: Syntax,
}

/// The kinds of syntax that are more than types.
#[derive(Clone, Copy)]
enum Syntax {
    Enum,
    Namespace,
    ParameterProperty,
    Decorator,
    ImportEquals,
    ExportEquals,
    Import,
    ImportOfTypes,
    NestedNew,
}

impl Refusal {
    fn problem(&self, source: &str) -> Problem {
        let (what, why, fix) = self.syntax.explained();
        Problem {
            at: Some(Position::of(source, self.span.start)),
            what: format!("{what} is not supported"),
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

impl Syntax {
    /// What it is, why it is refused, what to write instead.
    fn explained(self) -> (&'static str, &'static str, &'static str) {
        const MAKES_CODE: &str = "types are only removed, and this would need generated code";
        match self {
            Self::Enum => (
                "`enum`",
                MAKES_CODE,
                "use a union of string literals or a `const` object",
            ),
            Self::Namespace => (
                "`namespace`",
                MAKES_CODE,
                "use top-level functions and constants",
            ),
            Self::ParameterProperty => (
                "a parameter property",
                MAKES_CODE,
                "declare the field and assign it in the constructor",
            ),
            Self::Decorator => ("a decorator", MAKES_CODE, "call the function directly"),
            Self::ImportEquals => ("`import =`", MAKES_CODE, "use `import type`"),
            Self::ExportEquals => (
                "`export =`",
                MAKES_CODE,
                "use `export function evaluate(request)`",
            ),
            Self::Import => (
                "an import of values",
                "an extension is one file without access to others",
                "copy what you need into the file, or use `import type`",
            ),
            Self::ImportOfTypes => (
                "an import or export of types alone that does not say so",
                "some compilers leave the import of the module, others do not",
                "use `import type` or `export type`",
            ),
            // QuickJS takes the first arguments in `new new A().b()` for those
            // of the outer `new`; parentheses would not survive the printing.
            Self::NestedNew => (
                "`new` of a member of something just made with `new`",
                "the script engine reads it wrongly",
                "put the inner object into a `const` first",
            ),
        }
    }
}

/// Walks a program and notes what is more than types.
struct Erasable {
    purpose: Use,
    refused: Vec<Refusal>,
}

impl Erasable {
    fn refuse(&mut self, span: Span, syntax: Syntax) {
        self.refused.push(Refusal { span, syntax });
    }
}

impl<'a> Visit<'a> for Erasable {
    fn visit_ts_enum_declaration(&mut self, it: &TSEnumDeclaration<'a>) {
        if !it.declare {
            self.refuse(it.span, Syntax::Enum);
        }
    }

    fn visit_ts_namespace_declaration(&mut self, it: &TSNamespaceDeclaration<'a>) {
        if !it.declare {
            self.refuse(it.span, Syntax::Namespace);
        }
    }

    fn visit_formal_parameter(&mut self, it: &FormalParameter<'a>) {
        if it.accessibility.is_some() || it.readonly || it.r#override {
            self.refuse(it.span, Syntax::ParameterProperty);
        }
        walk::walk_formal_parameter(self, it);
    }

    fn visit_decorator(&mut self, it: &Decorator<'a>) {
        self.refuse(it.span, Syntax::Decorator);
    }

    fn visit_ts_import_equals_declaration(&mut self, it: &TSImportEqualsDeclaration<'a>) {
        self.refuse(it.span, Syntax::ImportEquals);
    }

    fn visit_ts_export_assignment(&mut self, it: &TSExportAssignment<'a>) {
        self.refuse(it.span, Syntax::ExportEquals);
    }

    fn visit_import_declaration(&mut self, it: &ImportDeclaration<'a>) {
        let only_types = it.import_kind == ImportOrExportKind::Type
            || it.specifiers.as_ref().is_some_and(|specifiers| {
                !specifiers.is_empty() && specifiers.iter().all(names_type)
            });
        match self.purpose {
            Use::Extension if !only_types => self.refuse(it.span, Syntax::Import),
            Use::Comparing if only_types && it.import_kind != ImportOrExportKind::Type => {
                self.refuse(it.span, Syntax::ImportOfTypes);
            }
            Use::Extension | Use::Comparing => {}
        }
    }

    fn visit_import_expression(&mut self, it: &ImportExpression<'a>) {
        if self.purpose == Use::Extension {
            self.refuse(it.span, Syntax::Import);
        }
        walk::walk_import_expression(self, it);
    }

    fn visit_new_expression(&mut self, it: &NewExpression<'a>) {
        let mut callee = it.callee.get_inner_expression();
        while let Some(member) = callee.as_member_expression() {
            callee = member.object().get_inner_expression();
        }
        let nested = matches!(callee, Expression::NewExpression(_));
        if nested && self.purpose == Use::Extension {
            self.refuse(it.span, Syntax::NestedNew);
        }
        walk::walk_new_expression(self, it);
    }

    fn visit_export_from_declaration(&mut self, it: &ExportFromDeclaration<'a>) {
        if it.export_kind == ImportOrExportKind::Type {
            return;
        }
        let is_type = |named: &ExportSpecifier<'_>| named.export_kind == ImportOrExportKind::Type;
        match self.purpose {
            Use::Extension => self.refuse(it.span, Syntax::Import),
            Use::Comparing if it.specifiers.iter().any(is_type) => {
                self.refuse(it.span, Syntax::ImportOfTypes);
            }
            Use::Comparing => {}
        }
    }

    fn visit_export_all_declaration(&mut self, it: &ExportAllDeclaration<'a>) {
        let is_value = it.export_kind != ImportOrExportKind::Type;
        if is_value && self.purpose == Use::Extension {
            self.refuse(it.span, Syntax::Import);
        }
    }
}

fn names_type(specifier: &ImportDeclarationSpecifier<'_>) -> bool {
    match specifier {
        ImportDeclarationSpecifier::ImportSpecifier(named) => {
            named.import_kind == ImportOrExportKind::Type
        }
        ImportDeclarationSpecifier::ImportDefaultSpecifier(_)
        | ImportDeclarationSpecifier::ImportNamespaceSpecifier(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_and_code_stays() {
        let source = "
            import type { Request } from './types';
            import { type Answer } from './types';
            interface Local { readonly a: string }
            declare const ambient: number;
            declare enum Ambient { A }
            declare namespace Outside { const x: number }
            type Verdict = 'allow' | 'deny';
            export const actions = ['fs.write'] as const satisfies readonly string[];
            abstract class Base<T> { protected value?: T; constructor(value: T) { this.value = value } }
            export function evaluate<R extends Request>(request: R): Verdict {
                const path = (request.resource as string)!;
                return <Verdict>(path === 'x' ? 'deny' : 'allow');
            }";
        let stripped = strip(source).unwrap();
        for gone in [
            "interface",
            "type ",
            "import",
            "declare",
            " as ",
            "satisfies",
            "abstract",
            "Verdict",
            "protected",
            "Ambient",
            "Outside",
        ] {
            assert!(!stripped.contains(gone), "{gone} is left in:\n{stripped}");
        }
        for kept in [
            "export const actions",
            "export function evaluate(request)",
            "class Base",
        ] {
            assert!(stripped.contains(kept), "{kept} is missing in:\n{stripped}");
        }
    }

    #[test]
    fn syntax_that_makes_code_is_refused_at_its_place() {
        let cases = [
            ("enum E { A }", 1, 1, "`enum`"),
            ("const a = 1;\n  const enum E { A }", 2, 3, "`enum`"),
            ("export enum E { A }", 1, 8, "`enum`"),
            ("namespace N { export const a = 1 }", 1, 1, "`namespace`"),
            ("module N { export const a = 1 }", 1, 1, "`namespace`"),
            (
                "class A {\n constructor(private a: string) {} }",
                2,
                14,
                "a parameter property",
            ),
            (
                "class A { constructor(readonly a: string) {} }",
                1,
                23,
                "a parameter property",
            ),
            ("@f class A {}", 1, 1, "a decorator"),
            ("import a = require('a');", 1, 1, "`import =`"),
            ("export = 1;", 1, 1, "`export =`"),
            ("import { a } from 'a'; a;", 1, 1, "an import of values"),
            ("import 'a';", 1, 1, "an import of values"),
            ("export { a } from 'a';", 1, 1, "an import of values"),
            ("export * from 'a';", 1, 1, "an import of values"),
            ("const a = () => import('a');", 1, 17, "an import of values"),
            ("new (new A().b)()", 1, 1, "`new` of a member"),
            ("x = new new A(0).b.c['d']()", 1, 5, "`new` of a member"),
        ];
        for (source, line, column, what) in cases {
            let problem = strip(source).expect_err(source);
            assert_eq!(
                problem.at,
                Some(Position { line, column }),
                "{source}: {problem}"
            );
            assert!(problem.what.starts_with(what), "{source}: {problem}");
            assert!(
                !problem.why.is_empty() && !problem.fix.is_empty(),
                "{source}: {problem}"
            );
        }
    }

    #[test]
    fn bad_syntax_is_refused_at_its_place() {
        let cases = [
            ("export function evaluate( { return 'allow' }", 1),
            ("const a = 1;\nconst a = 2;", 1),
            ("let x = ;", 1),
            ("\n\nreturn 1", 3),
            ("'unclosed", 1),
        ];
        for (source, line) in cases {
            let problem = strip(source).expect_err(source);
            assert_eq!(
                problem.at.map(|at| at.line),
                Some(line),
                "{source}: {problem}"
            );
        }
    }

    #[test]
    fn length_is_checked_before_anything_is_parsed() {
        let longest = " ".repeat(MAX_SOURCE);
        assert!(strip(&longest).is_ok());
        let problem = strip(&format!("{longest}enum")).unwrap_err();
        assert!(problem.what.contains("262148 bytes"), "{problem}");
    }
}
