//! Python's own compiler and interpreter judge what we call the same program.
//!
//! Programs are changed at random, as a model might that wants to slip
//! something through. Wherever the stripped texts are equal, Python must read
//! the same tree but for annotations, and both must run to the same end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use fluffy_workflow::exemption::python::without_types;

/// Reads pairs of programs and prints those that are not the same.
const JUDGE: &str = r#"
import ast, contextlib, io, json, sys, warnings
warnings.simplefilter("ignore")

class Strip(ast.NodeTransformer):
    def __init__(self):
        self.inside = [None]
    def visit_FunctionDef(self, node):
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.returns = None
        self.inside.append("function")
        self.generic_visit(node)
        self.inside.pop()
        return node
    visit_AsyncFunctionDef = visit_FunctionDef
    def visit_ClassDef(self, node):
        self.inside.append("class")
        self.generic_visit(node)
        self.inside.pop()
        return node
    def visit_AnnAssign(self, node):
        self.generic_visit(node)
        if self.inside[-1] != "function":
            return node
        if node.value is None:
            node.annotation = ast.Constant(0)
            return node
        return ast.Assign(targets=[node.target], value=node.value, type_comment=None)

def look(text):
    try:
        code = compile(text, "program", "exec", dont_inherit=True)
        tree = ast.dump(Strip().visit(ast.parse(text)))
    except (SyntaxError, ValueError) as error:
        return "no program", "", ""
    names, printed = {"__name__": "program"}, io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        end = ""
    except Exception as error:
        end = type(error).__name__
    return tree, end, printed.getvalue()

for line in sys.stdin:
    before, after = json.loads(line)
    if look(before) != look(after):
        print(json.dumps([before, after, look(before)[1:], look(after)[1:]]))
"#;

const PROGRAMS: [&str; 6] = [
    "import os\nfrom os import path as p\n\nclass A:\n    x = 1\n    def f(self, a, b=2):\n        \
     self.a = a\n        c = b\n        return c\n\ndef g(a, *r, k=(1, 2), **o):\n    z = a\n    \
     if a:\n        z = 3\n    else: z = 4\n    return z\n\nprint(A().f(1), g(2, k=3))\n",
    "from __future__ import annotations\n\ndef f(a, b='x'):\n    def h(c):\n        return c\n    \
     y = h(a)\n    for i in range(2):\n        y = i\n    return f'{y} {b!r:>4}'\n\nprint(f(1))\n",
    "x = 1\ndef f():\n    global x\n    x = 2\n    y = x\n    return y\nprint(f(), x)\n",
    "def d(f):\n    return f\n\n@d\ndef f(a):\n    b = a\n    return b\n\nclass B(Exception):\n    \
     def m(self, a):\n        b = a\n        return b\n\nprint(f(1), B().m(2))\n",
    "def f(a=lambda x, y: x, b={1: 2}):\n    c = a(1, 2)\n    d = b[1]\n    return c, d\nprint(f())\n",
    "class A:\n    pass\ntry:\n    raise ValueError\nexcept ValueError as A:\n    pass\n\
     def f(a):\n    b = '''\n    c: int = 1\n    '''\n    return b\nprint(f(1))\n",
];

const PIECES: [&str; 30] = [
    ": int",
    ": str",
    " -> int",
    " -> None",
    ": 'A'",
    ": A",
    ": p",
    ": list[int]",
    ": int | None",
    ": B",
    ": (q := int)",
    ": print('!')",
    ": os.path",
    " = 5",
    ", e: int = 1",
    "x: int\n",
    ";",
    "@d\n",
    "# type: ignore\n",
    "\n",
    "    ",
    "del A\n",
    "global y\n",
    "lambda a, b: ",
    ":",
    "(",
    ")",
    "'",
    "\\",
    ",",
];

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }
}

fn changed(program: &str, numbers: &mut Numbers) -> String {
    let mut text = program.to_owned();
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(text.len() + 1);
        match numbers.below(5) {
            // After a name, a bracket or a line, where types could be.
            0..=2 => {
                let rest = &text[at..];
                let next = rest.find([',', ')', '=', ':', '\n']).unwrap_or(rest.len());
                let space = rest[..next].len() - rest[..next].trim_end().len();
                text.insert_str(at + next - space, PIECES[numbers.below(PIECES.len())]);
            }
            3 => text.insert_str(at, PIECES[numbers.below(PIECES.len())]),
            _ => {
                let end = (at + numbers.below(6)).min(text.len());
                text.replace_range(at..end, "");
            }
        }
    }
    text
}

#[test]
fn what_we_call_the_same_is_the_same_to_python() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut pairs = Vec::new();
    for program in PROGRAMS {
        let own = without_types(program).unwrap();
        for _ in 0..8_000 {
            let other = changed(program, &mut numbers);
            if other != program && without_types(&other).as_ref() == Some(&own) {
                pairs.push((program, other));
            }
        }
    }
    pairs.sort();
    pairs.dedup();
    assert!(
        pairs.len() > 300,
        "only {} pairs were the same",
        pairs.len()
    );
    let mut judge = Command::new("python3")
        .args(["-c", JUDGE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = judge.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for pair in &pairs {
            writeln!(input, "{}", serde_json::to_string(pair).unwrap()).unwrap();
        }
    });
    let output = judge.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let different = String::from_utf8(output.stdout).unwrap();
    assert_eq!(different, "");
}
