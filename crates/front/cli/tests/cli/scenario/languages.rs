//! The same small repository in three languages, and the same task in each.
//!
//! `parse_config` breaks on a line without `=`; one existing test passes.

/// A repository with a task, and how a model could solve it.
pub(crate) struct Repository {
    pub(crate) files: &'static [(&'static str, &'static str)],
    pub(crate) source: &'static str,
    /// The source with the task solved.
    pub(crate) solved: &'static str,
    /// The source changed without solving it.
    pub(crate) unsolved: &'static str,
    pub(crate) test: &'static str,
    pub(crate) test_text: &'static str,
    /// The name of the new test.
    pub(crate) named: &'static str,
}

pub(crate) const RUST: Repository = Repository {
    files: &[
        (
            "Cargo.toml",
            "[package]\nname = \"sample\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n",
        ),
        (
            "Cargo.lock",
            "version = 4\n\n[[package]]\nname = \"sample\"\nversion = \"0.1.0\"\n",
        ),
        (".gitignore", "/target\n"),
        (
            "src/lib.rs",
            "//! Reads configurations.\n\n\
             /// Reads `key = value`.\n\
             pub fn parse_config(text: &str) -> Vec<(String, String)> {\n    \
             text.lines()\n        \
             .map(|line| {\n            \
             let (key, value) = line.split_once('=').unwrap();\n            \
             (key.trim().to_owned(), value.trim().to_owned())\n        \
             })\n        .collect()\n}\n",
        ),
        (
            "tests/pairs.rs",
            "#[test]\nfn a_pair_is_read() {\n    \
             assert_eq!(sample::parse_config(\"a = 1\").len(), 1);\n}\n",
        ),
    ],
    source: "src/lib.rs",
    solved: "//! Reads configurations.\n\n\
             /// Reads `key = value`; other lines are left out.\n\
             pub fn parse_config(text: &str) -> Vec<(String, String)> {\n    \
             text.lines()\n        \
             .filter_map(|line| {\n            \
             let (key, value) = line.split_once('=')?;\n            \
             Some((key.trim().to_owned(), value.trim().to_owned()))\n        \
             })\n        .collect()\n}\n",
    unsolved: "//! Reads configurations.\n\n\
               /// Reads `key = value`.\n\
               pub fn parse_config(text: &str) -> Vec<(String, String)> {\n    \
               text.lines()\n        \
               .map(|line| {\n            \
               let (key, value) = line.split_once('=').expect(\"a line has a value\");\n            \
               (key.trim().to_owned(), value.trim().to_owned())\n        \
               })\n        .collect()\n}\n",
    test: "tests/lines.rs",
    test_text: "#[test]\nfn a_line_without_a_value_is_left_out() {\n    \
                assert!(sample::parse_config(\"nothing here\").is_empty());\n}\n",
    named: "a_line_without_a_value_is_left_out",
};

pub(crate) const PYTHON: Repository = Repository {
    files: &[
        (
            "pyproject.toml",
            "[project]\nname = \"sample\"\nversion = \"0.1.0\"\n\n\
             [tool.pytest.ini_options]\npythonpath = [\".\"]\n",
        ),
        (".gitignore", "__pycache__/\n.pytest_cache/\n"),
        (
            "sample.py",
            "def parse_config(text):\n    \
             pairs = [line.split(\"=\") for line in text.splitlines()]\n    \
             return {pair[0].strip(): pair[1].strip() for pair in pairs}\n",
        ),
        (
            "tests/test_pairs.py",
            "from sample import parse_config\n\n\n\
             def test_a_pair_is_read():\n    assert parse_config(\"a = 1\") == {\"a\": \"1\"}\n",
        ),
    ],
    source: "sample.py",
    solved: "def parse_config(text):\n    \
             pairs = [line.split(\"=\") for line in text.splitlines() if \"=\" in line]\n    \
             return {pair[0].strip(): pair[1].strip() for pair in pairs}\n",
    unsolved: "def parse_config(text):\n    \
               found = [line.split(\"=\") for line in text.splitlines()]\n    \
               return {pair[0].strip(): pair[1].strip() for pair in found}\n",
    test: "tests/test_lines.py",
    test_text: "from sample import parse_config\n\n\n\
                def test_a_line_without_a_value_is_left_out():\n    \
                assert parse_config(\"nothing here\") == {}\n",
    named: "test_a_line_without_a_value_is_left_out",
};

pub(crate) const JAVASCRIPT: Repository = Repository {
    files: &[
        (
            "package.json",
            "{\n  \"name\": \"sample\",\n  \"version\": \"0.1.0\",\n  \"type\": \"module\",\n  \
             \"scripts\": { \"test\": \"node --test\" }\n}\n",
        ),
        (".gitignore", "node_modules/\n"),
        (
            "src/config.js",
            "export function parseConfig(text) {\n  \
             return text.split(\"\\n\").map((line) => {\n    \
             const [key, value] = line.split(\"=\");\n    \
             return [key.trim(), value.trim()];\n  });\n}\n",
        ),
        (
            "test/pairs.test.js",
            "import assert from \"node:assert\";\nimport test from \"node:test\";\n\
             import { parseConfig } from \"../src/config.js\";\n\n\
             test(\"a pair is read\", () => {\n  \
             assert.deepEqual(parseConfig(\"a = 1\"), [[\"a\", \"1\"]]);\n});\n",
        ),
    ],
    source: "src/config.js",
    solved: "export function parseConfig(text) {\n  \
             const lines = text.split(\"\\n\").filter((line) => line.includes(\"=\"));\n  \
             return lines.map((line) => {\n    \
             const [key, value] = line.split(\"=\");\n    \
             return [key.trim(), value.trim()];\n  });\n}\n",
    unsolved: "export function parseConfig(text) {\n  \
               return text.split(\"\\n\").map((one) => {\n    \
               const [key, value] = one.split(\"=\");\n    \
               return [key.trim(), value.trim()];\n  });\n}\n",
    test: "test/lines.test.js",
    test_text: "import assert from \"node:assert\";\nimport test from \"node:test\";\n\
                import { parseConfig } from \"../src/config.js\";\n\n\
                test(\"a line without a value is left out\", () => {\n  \
                assert.deepEqual(parseConfig(\"nothing here\"), []);\n});\n",
    named: "a line without a value is left out",
};
