//! What happens to a layer once its sandbox is gone: merged, then removed.
//!
//! As the product does both, and as somebody would who trusts what is in it.
//! Must never trust it unless the guard against that is the one left out.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fluffy_base::Timestamp;
use fluffy_base::id::SandboxId;
use fluffy_layer::{
    HeldLayer, LayerDirectories, LayerState, LayerStore, MergePlan, permit as permits,
};
use fluffy_policy::extension::NoExtensions;
use fluffy_policy::grant::{Grant, GrantLists};
use fluffy_policy::{Context, Engine, Permit, Principal, PrincipalKind, Request, Sources};

/// Merges what nobody has to be asked about, under the policy that everybody
/// starts with; everything stays in the layer if anything is refused.
pub(crate) fn merge(held: &mut HeldLayer) {
    held.settle().unwrap();
    let plan = held.plan_merge().unwrap();
    if plan.is_clear()
        && let Some(permit) = permitted(&plan)
    {
        held.apply(permit, &plan).unwrap();
    }
}

/// The permit for the whole, if every path is allowed as well.
fn permitted(plan: &MergePlan) -> Option<Permit> {
    let engine = Engine::load(&Sources::default(), 1).unwrap();
    let all = || vec!["*".to_owned()];
    let grant = Grant::build(&GrantLists {
        capabilities: all(),
        deny_capabilities: vec![],
        workspace: all(),
        user: all(),
    });
    let grant = Arc::new(grant.unwrap());
    let ask = |action: &str, resource: Option<String>, lines| {
        let mut principal = Principal::new(PrincipalKind::User, "user", Arc::clone(&grant));
        principal.sandbox = Some(SandboxId::from_bits(1));
        principal.tags.insert("person".to_owned());
        let request = Request {
            principal,
            action: action.into(),
            resource,
            context: Context {
                lines: Some(lines),
                // Nothing in the corpus is large.
                size: Some(1),
                ..Context::default()
            },
        };
        let decision = engine.evaluate(&request, Timestamp::from_micros(0), &NoExtensions);
        decision.into_permit().ok()
    };
    for need in plan.needs() {
        // Looked at for each, used up for none: the last one is for all.
        drop(ask(need.action, Some(need.resource), 1)?);
    }
    ask(permits::MERGE, None, plan.summary().weight)
}

/// Copies everything as it is, and believes the names by which image layers
/// delete files: a merge without refusals.
pub(crate) fn merge_blindly(held: &HeldLayer) {
    let LayerDirectories::Overlay { upper, .. } = held.layer().directories() else {
        panic!("another kind of layer");
    };
    let project = held.layer().project();
    let copied = Command::new("cp")
        .args(["--archive", "--no-target-directory", "--"])
        .args([&upper, project])
        .status();
    assert!(copied.unwrap().success());
    believe(&upper, project).unwrap();
}

fn believe(upper: &Path, project: &Path) -> io::Result<()> {
    for entry in fs::read_dir(upper)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap();
        if let Some(deleted) = name.strip_prefix(".wh.") {
            // There may be nothing of that name.
            let _removed = fs::remove_file(project.join(deleted));
        } else if entry.file_type()?.is_dir() {
            believe(&entry.path(), &project.join(name))?;
        }
    }
    Ok(())
}

/// Removes a layer, whatever is in it; one that was merged is gone already.
pub(crate) fn remove(store: &LayerStore, held: HeldLayer) {
    if matches!(held.layer().state(), LayerState::Retired { .. }) {
        return fs::remove_dir_all(held.layer().folder()).unwrap();
    }
    let id = held.layer().id().to_string();
    let permit = fluffy_test_kit::permit(permits::DROP, Some(&id));
    store.drop_layer(permit, held).unwrap();
}

/// Removes a layer as most programs remove a folder: by the paths in it, with
/// the rights that are there.
pub(crate) fn remove_blindly(held: &HeldLayer) {
    // That it may fail is what is shown.
    let _removed = remove_by_path(held.layer().folder());
}

fn remove_by_path(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_by_path(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir(folder)
}
