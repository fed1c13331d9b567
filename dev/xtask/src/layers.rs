//! Dependencies point one way: spine ← {agent, plugin, platform} ← front.
//!
//! The folder is the layer. Also checks that every crate is named in
//! ARCHITECTURE.md, inherits the workspace's lints and takes its dependencies
//! from the workspace. Works on plain values, so a wrong edge can be planted.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::step::Outcome;
use crate::workspace::{Dependency, Package, Workspace};

/// Checks the workspace.
pub(crate) fn check(workspace: &Workspace) -> Result<Outcome> {
    let mut problems = wrong_edges(workspace);
    let architecture = std::fs::read_to_string(workspace.root.join("ARCHITECTURE.md"));
    if let Err(error) = &architecture {
        problems.push(format!("cannot read ARCHITECTURE.md: {error}"));
    }
    // Without it nothing is named, and each of that is a problem of its own.
    let architecture = architecture.unwrap_or_default();
    problems.extend(unnamed_crates(workspace, &architecture));
    let mut used = BTreeSet::new();
    for package in &workspace.packages {
        let manifest = read_manifest(&package.manifest_path)?;
        problems.extend(manifest_problems(&package.name, &manifest));
        used.extend(dependency_tables(&manifest).flat_map(|(_, table)| table.keys().cloned()));
    }
    let manifest = read_manifest(&workspace.root.join("Cargo.toml"))?;
    problems.extend(unexplained(&manifest, &used, &architecture));
    let note = format!("{} crates point the right way", workspace.packages.len());
    Ok(Outcome::from_problems(&problems, note))
}

/// A layer of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Spine,
    Agent,
    Plugin,
    Platform,
    Front,
    Dev,
}

impl Layer {
    /// The layer of a folder below the workspace's root.
    fn of(root: &Path, folder: &Path) -> Option<Self> {
        let mut parts = folder.strip_prefix(root).ok()?.iter();
        let first = parts.next()?.to_str()?;
        match first {
            "dev" => Some(Self::Dev),
            "crates" => match parts.next()?.to_str()? {
                "spine" => Some(Self::Spine),
                "agent" => Some(Self::Agent),
                "plugin" => Some(Self::Plugin),
                "platform" => Some(Self::Platform),
                "front" => Some(Self::Front),
                _ => None,
            },
            _ => None,
        }
    }

    fn may_depend_on(self, other: Self, kind: Option<&str>) -> bool {
        match (self, other) {
            (Self::Dev, _) => true,
            // Tests may use what tests share; the product may not.
            (_, Self::Dev) => kind == Some("dev"),
            (Self::Front, _) | (_, Self::Spine) => true,
            (one, another) => one == another,
        }
    }
}

fn wrong_edges(workspace: &Workspace) -> Vec<String> {
    let mut problems = Vec::new();
    for package in &workspace.packages {
        let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
        let Some(layer) = Layer::of(&workspace.root, folder) else {
            problems.push(format!(
                "{}: {} is in no layer; put it below crates/spine, agent, plugin, platform, \
                 front, or dev",
                package.name,
                folder.display()
            ));
            continue;
        };
        let wrong = package
            .dependencies
            .iter()
            .filter_map(|dependency| wrong_edge(workspace, package, layer, dependency));
        problems.extend(wrong);
    }
    problems
}

fn wrong_edge(
    workspace: &Workspace,
    package: &Package,
    layer: Layer,
    dependency: &Dependency,
) -> Option<String> {
    let path = dependency.path.as_ref()?;
    let allowed = Layer::of(&workspace.root, path)
        .is_some_and(|other| layer.may_depend_on(other, dependency.kind.as_deref()));
    (!allowed).then(|| {
        format!(
            "{} must not depend on {} ({}): spine ← {{agent, plugin, platform}} ← front, and \
             dev only in tests",
            package.name,
            dependency.name,
            workspace.shown(path)
        )
    })
}

fn unnamed_crates(workspace: &Workspace, architecture: &str) -> Vec<String> {
    let folder_of = |package: &Package| {
        let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
        workspace.shown(folder)
    };
    workspace
        .packages
        .iter()
        .map(|package| (package, folder_of(package)))
        .filter(|(_, folder)| !names(architecture, folder))
        .map(|(package, folder)| {
            format!(
                "{} is not named in ARCHITECTURE.md; add `{folder}` there",
                package.name
            )
        })
        .collect()
}

/// Whether the text has the word in backticks.
fn names(text: &str, word: &str) -> bool {
    text.contains(&format!("`{word}`"))
}

fn read_manifest(path: &Path) -> Result<Table> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse()
        .with_context(|| format!("{} is not TOML", path.display()))
}

fn manifest_problems(name: &str, manifest: &Table) -> Vec<String> {
    let mut problems = Vec::new();
    if !is_inherited(manifest.get("lints")) {
        problems.push(format!(
            "{name} does not inherit the lints; add `[lints] workspace = true`"
        ));
    }
    for (kind, table) in dependency_tables(manifest) {
        for (dependency, value) in table {
            if !is_inherited(Some(value)) {
                problems.push(format!(
                    "{name}: {dependency} in [{kind}] has a version of its own; declare it in the \
                     workspace and write `{dependency}.workspace = true`"
                ));
            }
        }
    }
    problems
}

fn is_inherited(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")) == Some(&Value::Boolean(true))
}

/// All dependency tables of a manifest, also those for one platform only.
fn dependency_tables(manifest: &Table) -> impl Iterator<Item = (&'static str, &Table)> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms
        .into_iter()
        .flat_map(|table| table.values().filter_map(Value::as_table));
    std::iter::once(manifest)
        .chain(platforms)
        .flat_map(|table| {
            KINDS
                .iter()
                .filter_map(move |kind| Some((*kind, table.get(*kind)?.as_table()?)))
        })
}

/// Dependencies that nobody uses or that ARCHITECTURE.md gives no reason for.
fn unexplained(manifest: &Table, used: &BTreeSet<String>, architecture: &str) -> Vec<String> {
    let declared = manifest
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"))
        .and_then(Value::as_table);
    let mut problems = Vec::new();
    let foreign = declared.into_iter().flatten();
    for (name, _) in foreign.filter(|(_, value)| value.get("path").is_none()) {
        if !used.contains(name) {
            problems.push(format!(
                "no crate uses {name}; remove it from [workspace.dependencies]"
            ));
        } else if !names(architecture, name) {
            problems.push(format!(
                "ARCHITECTURE.md gives no reason for `{name}`; name it there"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, dependencies: &[(&str, &str)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(folder, kind)| Dependency {
                name: format!("fluffy-{}", folder.rsplit('/').next().unwrap()),
                kind: (!kind.is_empty()).then(|| (*kind).to_owned()),
                path: Some(format!("/w/{folder}").into()),
            })
            .collect();
        Package {
            name: format!("fluffy-{}", folder.rsplit('/').next().unwrap()),
            manifest_path: format!("/w/{folder}/Cargo.toml").into(),
            dependencies,
        }
    }

    fn workspace(packages: Vec<Package>) -> Workspace {
        Workspace {
            root: "/w".into(),
            target: "/w/target".into(),
            packages,
        }
    }

    #[test]
    fn edges_in_the_right_direction_pass() {
        let good = workspace(vec![
            package("crates/spine/base", &[("dev/test-kit", "dev")]),
            package("crates/spine/ledger", &[("crates/spine/base", "")]),
            package("crates/agent/kernel", &[("crates/spine/ledger", "")]),
            package(
                "crates/front/cli",
                &[("crates/agent/kernel", ""), ("crates/plugin/host", "")],
            ),
            package("dev/bench", &[("crates/front/cli", "")]),
        ]);
        assert_eq!(wrong_edges(&good), Vec::<String>::new());
    }

    #[test]
    fn each_planted_wrong_edge_is_found() {
        for (from, to, kind) in [
            ("crates/spine/base", "crates/agent/kernel", ""),
            ("crates/spine/base", "crates/front/cli", ""),
            ("crates/agent/kernel", "crates/plugin/host", ""),
            ("crates/plugin/host", "crates/platform/node", "dev"),
            ("crates/platform/node", "crates/front/cli", "build"),
            ("crates/spine/base", "dev/test-kit", ""),
            ("crates/front/cli", "dev/test-kit", "build"),
            ("crates/front/cli", "elsewhere/thing", ""),
        ] {
            let planted = workspace(vec![package(from, &[(to, kind)])]);
            let problems = wrong_edges(&planted);
            assert_eq!(problems.len(), 1, "{from} → {to}");
            assert!(problems[0].contains(to), "{problems:?}");
        }
        let homeless = workspace(vec![package("crates/middle/base", &[])]);
        assert!(wrong_edges(&homeless)[0].contains("in no layer"));
    }

    #[test]
    fn a_crate_missing_from_the_architecture_is_found() {
        let workspace = workspace(vec![package("crates/spine/base", &[])]);
        assert_eq!(
            unnamed_crates(&workspace, "`crates/spine/base-two`").len(),
            1
        );
        assert!(unnamed_crates(&workspace, "- `crates/spine/base`: ids").is_empty());
    }

    #[test]
    fn own_versions_and_own_lints_are_found() {
        let good = "[lints]\nworkspace = true\n[dependencies]\na.workspace = true\n\
                    b = { workspace = true, features = [\"x\"] }\n";
        assert!(manifest_problems("good", &good.parse().unwrap()).is_empty());
        let bad = "[dependencies]\na = \"1\"\n[dev-dependencies]\nb = { version = \"1\" }\n\
                   [target.'cfg(unix)'.dependencies]\nc = { path = \"../c\" }\n";
        let problems = manifest_problems("bad", &bad.parse().unwrap());
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn a_dependency_needs_a_user_and_a_reason() {
        let manifest = "[workspace.dependencies]\nmine = { path = \"x\" }\nserde = \"1\"\n\
                        toml = \"1\"\nidle = \"1\"\n";
        let used = ["serde", "toml"].map(str::to_owned).into();
        let problems = unexplained(&manifest.parse().unwrap(), &used, "- `serde`: wire types");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems.iter().any(|problem| problem.contains("`toml`")));
        assert!(problems.iter().any(|problem| problem.contains("idle")));
    }
}
