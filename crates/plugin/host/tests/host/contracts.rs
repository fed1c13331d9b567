//! The generated code is what the published contracts say.

use std::fs;
use std::path::{Path, PathBuf};

/// Set to write the generated code in place of comparing it.
const REGENERATE: &str = "FLUFFY_REGENERATE";

/// The code for each package, generated from the contracts.
#[test]
fn generated_code_is_that_of_the_contracts() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = home.join("proto");
    let mut files: Vec<PathBuf> = fs::read_dir(proto.join("fluffy/plugin/v1"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files.extend(["go_plugin.proto", "health.proto"].map(|name| proto.join(name)));
    let made = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .out_dir(made.path())
        .compile_protos(&files, &[proto])
        .expect("`cargo xtask test --only setup` installs protoc");
    for package in ["fluffy.plugin.v1", "grpc.health.v1", "plugin"] {
        let code = fs::read_to_string(made.path().join(format!("{package}.rs"))).unwrap();
        let code = format!(
            "//! Generated from `proto/`; `{REGENERATE}=1` and this crate's test of the\n\
             //! contracts make it anew. Never edited by hand.\n\n{code}"
        );
        let place = home.join(format!("src/wire/{}.rs", package.replace('.', "_")));
        if std::env::var_os(REGENERATE).is_some() {
            fs::write(&place, &code).unwrap();
        }
        let kept = fs::read_to_string(&place).unwrap();
        assert!(
            kept == code,
            "`{}` is not what the contracts say; {REGENERATE}=1 makes it anew",
            place.display()
        );
    }
}
