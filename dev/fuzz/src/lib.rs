//! Fuzz targets, one per parser of bytes from outside.
//!
//! A target takes any bytes and panics when a promise is broken; it never
//! prints and touches nothing but memory. Add a function in the module of its
//! crate, a line in [`TARGETS`] and a few seeds in `corpus/<name>/`; ordinary
//! tests replay them, `cargo xtask fuzz` looks for more.

mod agent;
mod base;
mod egress;
mod ipc;
mod layer;
mod ledger;
mod platform;
mod plugin;
mod policy;
mod text;

/// One parser under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, which is also its folder in `corpus/`.
    pub name: &'static str,
    /// Gives it one input.
    pub run: fn(&[u8]),
}

/// All targets, by name.
pub const TARGETS: &[Target] = &[
    Target {
        name: "address",
        run: policy::address,
    },
    Target {
        name: "agent_patch",
        run: agent::agent_patch,
    },
    Target {
        name: "base_url",
        run: agent::base_url,
    },
    Target {
        name: "canonical",
        run: base::canonical,
    },
    Target {
        name: "capability",
        run: policy::capability,
    },
    Target {
        name: "checkpoint",
        run: ledger::checkpoint,
    },
    Target {
        name: "client_hello",
        run: egress::client_hello,
    },
    Target {
        name: "config_toml",
        run: text::config_toml,
    },
    Target {
        name: "coverage_report",
        run: agent::coverage_report,
    },
    Target {
        name: "export_line",
        run: ledger::export_line,
    },
    Target {
        name: "frames",
        run: ipc::frames,
    },
    Target {
        name: "guest_link",
        run: platform::guest_link,
    },
    Target {
        name: "ids",
        run: base::ids,
    },
    Target {
        name: "image_document",
        run: platform::image_document,
    },
    Target {
        name: "image_layers",
        run: platform::image_layers,
    },
    Target {
        name: "image_reference",
        run: platform::image_reference,
    },
    Target {
        name: "manifest",
        run: platform::manifest,
    },
    Target {
        name: "model_stream",
        run: agent::model_stream,
    },
    Target {
        name: "path",
        run: policy::path,
    },
    Target {
        name: "plugin_manifest",
        run: plugin::plugin_manifest,
    },
    Target {
        name: "plugin_profile",
        run: plugin::plugin_profile,
    },
    Target {
        name: "policy_yaml",
        run: policy::policy_yaml,
    },
    Target {
        name: "proof",
        run: ledger::proof,
    },
    Target {
        name: "recording",
        run: agent::recording,
    },
    Target {
        name: "redaction",
        run: text::redaction,
    },
    Target {
        name: "request_head",
        run: egress::request_head,
    },
    Target {
        name: "share",
        run: platform::share,
    },
    Target {
        name: "skill",
        run: agent::skill,
    },
    Target {
        name: "source_parts",
        run: agent::source_parts,
    },
    Target {
        name: "tar",
        run: platform::tar,
    },
    Target {
        name: "terminal",
        run: text::terminal,
    },
    Target {
        name: "test_output",
        run: agent::test_output,
    },
    Target {
        name: "test_table",
        run: policy::test_table,
    },
    Target {
        name: "token",
        run: policy::token,
    },
    Target {
        name: "tree_path",
        run: layer::tree_path,
    },
    Target {
        name: "unified_diff",
        run: layer::unified_diff,
    },
    Target {
        name: "units",
        run: base::units,
    },
];

/// The target that must crash: it proves that the fuzzer finds anything.
pub const PLANTED: Target = Target {
    name: "planted",
    run: planted,
};

/// The bytes as text; none where a parser only ever sees text.
fn as_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The target with this name, the planted one included.
#[must_use]
pub fn find(name: &str) -> Option<Target> {
    let mut all = TARGETS.iter().chain([&PLANTED]);
    all.find(|target| target.name == name).copied()
}

/// Breaks on one word, letter by letter, which only coverage finds in time.
fn planted(bytes: &[u8]) {
    let at = |index: usize| bytes.get(index).copied().unwrap_or_default();
    let found = at(0) == b'w'
        && at(1) == b'a'
        && at(2) == b'f'
        && at(3) == b'f'
        && at(4) == b'l'
        && at(5) == b'e';
    assert!(!found, "the planted fault was found");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn corpus() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
    }

    #[test]
    fn every_seed_keeps_the_promises() {
        for target in TARGETS {
            let folder = corpus().join(target.name);
            let seeds: Vec<_> = fs::read_dir(&folder).unwrap().map(Result::unwrap).collect();
            assert!(!seeds.is_empty(), "{} has no seeds", folder.display());
            for seed in seeds {
                (target.run)(&fs::read(seed.path()).unwrap());
            }
        }
    }

    #[test]
    fn every_corpus_has_its_target_and_names_are_sorted() {
        let folders = fs::read_dir(corpus()).unwrap();
        let folders: BTreeSet<String> = folders
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(folders.iter().collect::<Vec<_>>(), names);
        assert!(find("planted").is_some() && find("nonsense").is_none());
    }

    #[test]
    #[should_panic(expected = "the planted fault was found")]
    fn the_planted_fault_is_a_fault() {
        for near in ["", "waffl", "wafers", "affle"] {
            planted(near.as_bytes());
        }
        planted(b"waffles");
    }
}
