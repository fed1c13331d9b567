//! The one form of a manifest: nothing lost, nothing moved, nothing to do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "tests"
)]

use fluffy_manifest::{Code, format};

const WRITTEN: &str = "\n\n# The shop.\r\nschema_version='v1'   # always  \n\n\n\
    [ processes . web ]\ncommand=[ \"serve\",'--port' ,\n\"8080\" , # the port\n\n\n]\n\
    resources={memory=\"512MiB\",cpu=0.25,disk=\"2GiB\"}\n  ports = [{internal=8080},{ internal = 9090 }]\n\
    vars = {}\nnote = \"\"\"\n  kept\n    as it is\"\"\"\n# About volumes.\n[[ volumes ]]\n  name = \"a\"\nwhen = 1979-05-27 07:32:00\n\n";

const FORMED: &str = "# The shop.\nschema_version = 'v1' # always\n\n\
    [processes.web]\ncommand = [\"serve\", '--port',\n    \"8080\", # the port\n\n]\n\
    resources = { memory = \"512MiB\", cpu = 0.25, disk = \"2GiB\" }\nports = [{ internal = 8080 }, { internal = 9090 }]\n\
    vars = {}\nnote = \"\"\"\n  kept\n    as it is\"\"\"\n# About volumes.\n[[volumes]]\nname = \"a\"\nwhen = 1979-05-27 07:32:00\n";

fn meaning(text: &str) -> String {
    // As text: one that is not a number is not equal to itself.
    std::format!("{:?}", toml::from_str::<toml::Table>(text).unwrap())
}

#[test]
fn white_space_changes_and_nothing_else() {
    let formed = format(WRITTEN).unwrap();
    assert_eq!(formed, FORMED);
    assert_eq!(
        format(&formed).unwrap(),
        formed,
        "and then there is nothing to do"
    );
    assert_eq!(meaning(&formed), meaning(WRITTEN));
}

#[test]
fn what_is_not_toml_is_refused_at_its_place() {
    let problems = format("a = 1\nb = [\n").unwrap_err();
    assert_eq!(problems[0].code, Code::TomlSyntax);
    assert_eq!(problems[0].line, 2);
}

proptest::proptest! {
    #[test]
    fn every_text_keeps_its_meaning(
        text in "([a-c]( ?\\. ?[a-c])? ?= ?([0-9.-]{1,4}|\"[a #=]*\"|\\[[0-9, \n#]*\\]|\\{a=1\\})[ #x]*\n|\\[[a-c]\\]\n|\n|#.*\n){0,8}"
    ) {
        if let Ok(formed) = format(&text) {
            proptest::prop_assert_eq!(meaning(&formed), meaning(&text));
            proptest::prop_assert_eq!(format(&formed).unwrap(), formed);
        }
    }
}
