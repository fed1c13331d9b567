//! TypeScript of a project without its types, so that two versions compare.
//!
//! Equal texts are the same program whatever compiles them: every import of a
//! value stays, used or not, and syntax whose meaning hangs on a compiler's
//! settings (enums, decorators, parameter properties, imports of types that do
//! not say so) is refused. Hostile text may exhaust the parser, so this runs
//! in a process of its own: [`compare_main`].

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use oxc::span::SourceType;
use oxc::transformer::{JsxOptions, TransformOptions, TypeScriptOptions};

use crate::problem::Problem;
use crate::strip::{Use, strip_as};

/// The longest source that is compared, in bytes.
pub const MAX_COMPARED: usize = 1 << 20;

/// What is left of a file when its types are removed, printed anew.
///
/// # Errors
/// It is too long, no TypeScript, or its types are not all there is to remove.
pub fn without_types(name: &str, source: &str) -> Result<String, Problem> {
    if source.len() > MAX_COMPARED {
        return Err(Problem {
            at: None,
            what: format!("the source has {} bytes", source.len()),
            why: format!("at most {MAX_COMPARED} are compared"),
            fix: "split the file".to_owned(),
        });
    }
    // Nothing of a declaration file ever runs.
    if [".d.ts", ".d.mts", ".d.cts"]
        .iter()
        .any(|end| name.ends_with(end))
    {
        return Ok(String::new());
    }
    let kind = match name.ends_with(".tsx") {
        true => SourceType::tsx(),
        false => SourceType::ts(),
    };
    let options = TransformOptions {
        typescript: TypeScriptOptions {
            only_remove_type_imports: true,
            ..TypeScriptOptions::default()
        },
        jsx: JsxOptions::disable(),
        ..TransformOptions::default()
    };
    strip_as(source, Use::Comparing, kind, &options)
}

/// Reads a file of this name from its input and prints it without its types.
#[must_use]
pub fn compare_main(name: &str) -> ExitCode {
    let mut source = String::new();
    let limit = MAX_COMPARED as u64 + 1;
    let done = match io::stdin().take(limit).read_to_string(&mut source) {
        Ok(_) => without_types(name, &source).map_err(|problem| problem.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let written = match &done {
        Ok(text) => io::stdout().write_all(text.as_bytes()),
        Err(why) => writeln!(io::stderr(), "{why}"),
    };
    match (done, written) {
        (Ok(_), Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same(before: &str, after: &str) -> bool {
        match (
            without_types("/a.ts", before),
            without_types("/a.ts", after),
        ) {
            (Ok(before), Ok(after)) => before == after,
            _ => false,
        }
    }

    #[test]
    fn types_make_no_difference() {
        for (before, after) in [
            (
                "function f(x) { return x }",
                "function f<T>(this: A, x?: T): T | void { return x }",
            ),
            ("const a = b;", "const a: number = b as unknown as number;"),
            ("const a = b;", "const a = b!;"),
            (
                "const a = [1];",
                "const a = [1] as const satisfies number[];",
            ),
            ("f(1);", "f<number>(1);"),
            (
                "let a = 1;",
                "interface A { b: string }\ntype C = A;\nlet a = 1;",
            ),
            (
                "import a from 'a'; a();",
                "import type { B } from 'b'; import a from 'a'; a();",
            ),
            (
                "export const a = 1;",
                "export const a: A = 1; export type { A } from './a';",
            ),
            (
                "class A { f() {} }",
                "abstract class A<T> implements B { private f(): void {} abstract g(): T }",
            ),
            (
                "class A { x = 1 }",
                "class A { declare y: string; readonly x: number = 1 }",
            ),
            (
                "function f(x) {}",
                "function f(x: string): void;\nfunction f(x: any) {}",
            ),
            (
                "const f = async (x) => x;",
                "const f = async <T,>(x: T): Promise<T> => x;",
            ),
        ] {
            assert!(is_same(before, after), "{before}\n{after}");
            assert!(is_same(after, before), "{after}\n{before}");
        }
        let (before, after) = (
            "const a = <p>{x}</p>;",
            "const a: Node = <p>{x as any}</p>;",
        );
        assert_eq!(
            without_types("/a.tsx", before).unwrap(),
            without_types("/a.tsx", after).unwrap()
        );
        let declared = |text| without_types("/a.d.ts", text).unwrap();
        assert_eq!(declared("declare const a: 1;"), declared("export {};"));
    }

    #[test]
    fn whatever_can_behave_differently_is_different() {
        for (before, after) in [
            ("let a = 1;", "let a = 2;"),
            ("function f(x) {}", "function f(x: A, y: B) {}"),
            ("f(x)", "f(y as typeof x)"),
            ("function f(x = 1) {}", "function f(x: number = 2) {}"),
            ("a\n.b", "a\n.c"),
            ("`a\n\nb`", "`a\nb`"),
            ("'a '", "'a'"),
            // A field exists by being declared, in some compilers.
            ("class A { }", "class A { x: string }"),
            ("class A { x: string }", "class A { declare x: string }"),
            // What is imported runs, used or not.
            ("let a;", "import 'a'; let a;"),
            (
                "import { A } from 'a'; let a: A;",
                "import type { A } from 'a'; let a: A;",
            ),
            ("import { A } from 'a'; let a: A;", "let a: string;"),
            ("let a;", "export * from 'a'; let a;"),
            ("import a from 'a'; a;", "import a from 'b'; a;"),
            ("import('a')", "import('b')"),
            ("new (a.b)()", "new (a.b())()"),
        ] {
            assert!(!is_same(before, after), "{before}\n{after}");
        }
    }

    #[test]
    fn what_hangs_on_a_compiler_is_refused() {
        for source in [
            "enum A { B }",
            "const enum A { B }",
            "namespace A { export const b = 1 }",
            "class A { constructor(private b: string) {} }",
            "@a class B {}",
            "class A { @a b: string }",
            "import a = require('a');",
            "export = 1;",
            "import { type A } from 'a';",
            "export { type A } from 'a';",
            "export { a, type A } from 'a';",
            "let x = ;",
            "let a; let a;",
        ] {
            assert!(without_types("/a.ts", source).is_err(), "{source}");
        }
        let long = " ".repeat(MAX_COMPARED + 1);
        assert!(without_types("/a.ts", &long).is_err());
    }
}
