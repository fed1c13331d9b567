//! What counts as the same program, and above all what does not.

use super::without_types;

fn is_same(before: &str, after: &str) -> bool {
    match (without_types(before), without_types(after)) {
        (Some(before), Some(after)) => before == after,
        _ => false,
    }
}

const FUTURE: &str = "from __future__ import annotations\n";

#[test]
fn annotations_that_do_nothing_make_no_difference() {
    for (before, after) in [
        ("def f(x): return x\n", "def f(x: int) -> int: return x\n"),
        ("def f(x=1): return x\n", "def f(x: 'int' = 1): return x\n"),
        ("def f(x): return x\n", "def f(x) -> None: return x\n"),
        (
            "def f(a, /, b, *, c): pass\n",
            "def f(a: int, /, b: str, *, c: bool): pass\n",
        ),
        (
            "async def f(*a, **k): pass\n",
            "async def f(*a: int, **k: str): pass\n",
        ),
        (
            "def f():\n    x = 1\n    return x\n",
            "def f():\n    x: list[T] = 1\n    return x\n",
        ),
        (
            "def f(s):\n    s.x.y = 1\n",
            "def f(s):\n    s.x.y: A | None = 1\n",
        ),
        (
            "def f():\n    x: int\n    x = 1\n",
            "def f():\n    x: str\n    x = 1\n",
        ),
        (
            "def f():\n    if a:\n        x = 1\n",
            "def f():\n    if a:\n        x: int = 1\n",
        ),
        (
            "import a\nfrom b import C as D\nclass E: pass\ndef f(x, y, z): pass\n",
            "import a\nfrom b import C as D\nclass E: pass\ndef f(x: D, y: E, z: a): pass\n",
        ),
        (
            "class A:\n    def f(self, x):\n        self.x = x\n",
            "class A:\n    def f(self, x: int) -> 'A':\n        self.x: int = x\n",
        ),
        (
            "class A(object):\n    def f(self):\n        pass\n",
            "class A(object):\n    def f(self) -> None:\n        pass\n",
        ),
        ("def f(x): pass\n", "def f(x): pass  # type: ignore\n"),
        ("def f(\n    x,\n): pass\n", "def f(x: int,): pass\r\n"),
        (
            "def f(x):\n    return f'{x} {{}} {x!r:>3}'\n",
            "def f(x: int):\n    return f'{x} {{}} {x!r:>3}'\n",
        ),
    ] {
        assert!(is_same(before, after), "{before}\n{after}");
        assert!(is_same(after, before), "{after}\n{before}");
    }
    let before = "def f(x, *y, z=(lambda a, b: a), **k): pass\n";
    let after = "def f(x: list[int] | None, *y: a.B, z: Callable[[], int] = (lambda a, b: a), \
                 **k: dict[str, Literal[1, 'a']]) -> tuple[int, ...]: pass\n";
    assert!(is_same(
        &format!("{FUTURE}{before}"),
        &format!("{FUTURE}{after}")
    ));
}

#[test]
fn whatever_can_behave_differently_is_different() {
    for (before, after) in [
        // Defaults, bodies, names.
        ("def f(x=1): pass\n", "def f(x: int = 2): pass\n"),
        ("def f(x): pass\n", "def f(y: int): pass\n"),
        (
            "def f(x=lambda a, b: c): pass\n",
            "def f(x=lambda a, b: d): pass\n",
        ),
        // Evaluated, and able to fail or to do something.
        ("def f(x): pass\n", "def f(x: Foo): pass\n"),
        ("def f(x): pass\n", "def f(x: print('hi')): pass\n"),
        ("def f(x): pass\n", "def f(x: (y := int)): pass\n"),
        ("def f(x): pass\n", "def f(x: int[3]): pass\n"),
        ("def f(x): pass\n", "def f(x: str | 'A'): pass\n"),
        (
            "def f(x): pass\nimport a\n",
            "def f(x: a): pass\nimport a\n",
        ),
        (
            "import a\ndel a\ndef f(x): pass\n",
            "import a\ndel a\ndef f(x: a): pass\n",
        ),
        (
            "class A:\n    def f(self): pass\n",
            "class A:\n    def f(self) -> A: pass\n",
        ),
        (
            "class A: pass\ndef g():\n    def f(x): pass\n    A = 1\n",
            "class A: pass\ndef g():\n    def f(x: A): pass\n    A = 1\n",
        ),
        // Read by others.
        ("@d\ndef f(x): pass\n", "@d\ndef f(x: int): pass\n"),
        (
            "@d\ndef f(x):\n    y = 1\n",
            "@d\ndef f(x):\n    y: int = 1\n",
        ),
        (
            "@d\nclass A:\n    x: int = 1\n",
            "@d\nclass A:\n    x: str = 1\n",
        ),
        ("class A:\n    x: int\n", "class A:\n    x: str\n"),
        ("class A:\n    x = 1\n", "class A:\n    x: int = 1\n"),
        (
            "class A(B):\n    def f(self, x): pass\n",
            "class A(B):\n    def f(self, x: int): pass\n",
        ),
        (
            "class A(metaclass=M):\n    def f(self, x): pass\n",
            "class A(metaclass=M):\n    def f(self, x: int): pass\n",
        ),
        ("x = 1\n", "x: int = 1\n"),
        ("if a:\n    x = 1\n", "if a:\n    x: int = 1\n"),
        (
            "import inspect\ndef f(x): pass\n",
            "import inspect\ndef f(x: int): pass\n",
        ),
        (
            "from pydantic import v\ndef f(x): pass\n",
            "from pydantic import v\ndef f(x: int): pass\n",
        ),
        (
            "def f(x): pass\nf.__annotations__\n",
            "def f(x: int): pass\nf.__annotations__\n",
        ),
        (
            "def f(x): pass\ng(f, '__annotations__')\n",
            "def f(x: int): pass\ng(f, '__annotations__')\n",
        ),
        // Local by being annotated, or not allowed to be.
        (
            "def f():\n    return x\n",
            "def f():\n    x: int\n    return x\n",
        ),
        (
            "def f():\n    global x\n    x = 1\n",
            "def f():\n    global x\n    x: int = 1\n",
        ),
        (
            "def f():\n    x = y = 3\n",
            "def f():\n    x: int = y = 3\n",
        ),
        ("def f():\n    x = 1\n", "def f():\n    x: int int = 1\n"),
        (
            "def f():\n    if a: pass\n    else: x = 1\n",
            "def f():\n    if a: pass\n    else: y = 1\n",
        ),
        // Code that only looks like a type, and types that only look like text.
        ("def f():\n    x = {1: 2}\n", "def f():\n    x = {1: 3}\n"),
        (
            "def f():\n    '''\n    x: int = 1\n    '''\n",
            "def f():\n    '''\n    x: str = 1\n    '''\n",
        ),
        ("x = '''a\n\nb'''\n", "x = '''a\nb'''\n"),
        ("x = 4 // 2\n", "x = 4 / / 2\n"),
        ("import a\n", "import a\nimport b\n"),
        (
            "def f(x): pass\n",
            "from __future__ import annotations\ndef f(x): pass\n",
        ),
        ("if a:\n    b()\n", "if a:\n    pass\nb()\n"),
        ("a = 1 # b\n", "a = 1 # c\n"),
    ] {
        assert!(!is_same(before, after), "{before}\n{after}");
    }
}

#[test]
fn what_versions_of_the_language_read_differently_is_refused() {
    for text in [
        "x = f'{a['b']}'\n",
        "x = f\"\"\"{a[\"\"\"\ndef g(y: int): pass\n\"\"\"]}\"\"\"\n",
        "x = f\"{x:'}{'}\"\n",
        "x = f'{f\"{a}\"}'\n",
        "x = f'\\N{DASH}'\n",
        "x = f'{a # b}'\n",
        "\tx = 1\n",
        "if a:\n\tx = 1\n",
        "# coding: utf-7\nx = 1\n",
        "\u{feff}x = 1\n",
        "ｘ = 1\n",
        "x = 1\r",
        "x = (1\n",
        "x = (1]\n",
        "x = 'a\n",
        "  x = 1\n",
        "if a:\nb()\n",
        "if a:\n    b()\n  c()\n",
        "x = 1 ? 2\n",
        "x = 1 \\ 2\n",
        "x = 1 \\\n",
    ] {
        assert_eq!(without_types(text), None, "{text}");
    }
    let long = format!("x = '{}'\n", "a".repeat(1 << 20));
    assert_eq!(without_types(&long), None);
    let deep = "(".repeat(200) + &")".repeat(200);
    assert_eq!(without_types(&deep), None);
}
