//! The generated code is what the contract of nodes says, and the contract
//! never takes back what it once said.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

/// Set to write the generated code in place of comparing it.
const REGENERATE: &str = "FLUFFY_REGENERATE";

fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The contract as protoc reads it.
fn contract(descriptors: &Path) -> FileDescriptorSet {
    let proto = home().join("proto");
    let files = ["plan", "node"].map(|name| proto.join(format!("fluffy/node/v1/{name}.proto")));
    let mut config = tonic_prost_build::Config::new();
    config.file_descriptor_set_path(descriptors);
    config
        .load_fds(&files, &[proto])
        .expect("`cargo xtask test --only setup` installs protoc")
}

#[test]
fn generated_code_is_that_of_the_contract() {
    let made = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        // Their values must not end up in a log.
        .skip_debug(
            [
                "EnrollBegin",
                "SecretMaterial",
                "ExecOpen",
                "RegistryCredential",
            ]
            .map(|name| format!(".fluffy.node.v1.{name}")),
        )
        .out_dir(made.path())
        .compile_fds(contract(&made.path().join("descriptors")))
        .unwrap();
    let code = fs::read_to_string(made.path().join("fluffy.node.v1.rs")).unwrap();
    let code = format!(
        "//! Generated from `proto/`; `{REGENERATE}=1` and this crate's test of the\n\
         //! contract make it anew. Never edited by hand.\n\n{code}"
    );
    let place = home().join("src/node/fluffy_node_v1.rs");
    if std::env::var_os(REGENERATE).is_some() {
        fs::write(&place, &code).unwrap();
    }
    assert!(
        fs::read_to_string(&place).unwrap() == code,
        "`{}` is not what the contract says; {REGENERATE}=1 makes it anew",
        place.display()
    );
}

/// Every line of the kept list is still true, or its number is reserved: a
/// number that once had a meaning never gets another.
#[test]
fn nothing_that_was_said_is_taken_back() {
    let made = tempfile::tempdir().unwrap();
    let now = said(&contract(&made.path().join("descriptors")));
    let place = home().join("tests/node_contract.txt");
    let kept = fs::read_to_string(&place).unwrap_or_default();
    let gone = taken_back(kept.lines(), &now);
    assert!(gone.is_empty(), "taken back, and not reserved: {gone:#?}");
    let lines: String = now.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os(REGENERATE).is_some() {
        fs::write(&place, &lines).unwrap();
    }
    assert!(
        fs::read_to_string(&place).unwrap() == lines,
        "`{}` lacks what is new; {REGENERATE}=1 adds it",
        place.display()
    );
}

#[test]
fn taking_back_is_noticed() {
    let now: BTreeSet<String> = ["A.1 = name string", "A.2 reserved", "S.Do = A -> B"]
        .map(str::to_owned)
        .into();
    let gone = |line: &'static str| !taken_back([line], &now).is_empty();
    assert!(!gone("A.1 = name string"));
    assert!(!gone("A.2 = old int32"), "it is reserved");
    assert!(gone("A.1 = other string"), "renamed");
    assert!(gone("A.1 = name bytes"), "of another type");
    assert!(gone("A.3 = third string"), "removed");
    assert!(gone("A.2 reserved ") && gone("B.2 reserved"));
    assert!(gone("S.Do = A -> C"));
}

/// The lines that are true no more.
fn taken_back<'a>(kept: impl IntoIterator<Item = &'a str>, now: &BTreeSet<String>) -> Vec<&'a str> {
    let still = |line: &str| {
        let reserved = line
            .split_once(" = ")
            .is_some_and(|(number, _)| now.contains(&format!("{number} reserved")));
        now.contains(line) || reserved
    };
    kept.into_iter().filter(|line| !still(line)).collect()
}

/// All that the contract says of numbers, names and types, a line each.
fn said(contract: &FileDescriptorSet) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in &contract.file {
        let package = file.package();
        for message in &file.message_type {
            of_message(package, message, &mut lines);
        }
        for values in &file.enum_type {
            of_enum(package, values, &mut lines);
        }
        for service in &file.service {
            for call in &service.method {
                let stream = |streams: bool| if streams { "stream " } else { "" };
                lines.insert(format!(
                    "{package}.{}.{} = {}{} -> {}{}",
                    service.name(),
                    call.name(),
                    stream(call.client_streaming()),
                    call.input_type(),
                    stream(call.server_streaming()),
                    call.output_type(),
                ));
            }
        }
    }
    lines
}

fn of_message(parent: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{parent}.{}", message.name());
    for field in &message.field {
        let choice = field
            .oneof_index
            .filter(|_| !field.proto3_optional())
            .and_then(|index| message.oneof_decl.get(usize::try_from(index).unwrap()))
            .map_or(String::new(), |choice| format!("in {}", choice.name()));
        let (label, kind) = (
            format!("{:?}", field.label()),
            format!("{:?}", field.r#type()),
        );
        let words = [field.name(), &label, &kind, field.type_name(), &choice];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        lines.insert(format!("{name}.{} = {}", field.number(), words.join(" ")));
    }
    for range in &message.reserved_range {
        for number in range.start()..range.end() {
            lines.insert(format!("{name}.{number} reserved"));
        }
    }
    for nested in &message.nested_type {
        of_message(&name, nested, lines);
    }
    for values in &message.enum_type {
        of_enum(&name, values, lines);
    }
}

fn of_enum(parent: &str, values: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{parent}.{}", values.name());
    for value in &values.value {
        lines.insert(format!("{name}.{} = {}", value.number(), value.name()));
    }
    for range in &values.reserved_range {
        // Unlike a message's, an enum's range includes its end.
        for number in range.start()..=range.end() {
            lines.insert(format!("{name}.{number} reserved"));
        }
    }
}
