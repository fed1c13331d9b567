//! Which changes are refused before any rule is asked.
//!
//! Goes through all changes once: links, kinds, modes and names here, git in
//! [`crate::git`]. What a layer may hold is decided by what it would mean in
//! the project afterwards, so links are followed in the merged view, by hand.

use std::collections::{BTreeMap, BTreeSet};

use fluffy_policy::capability::Capability;

use crate::changes::{Change, ChangeKind};
use crate::copy::Limits;
use crate::error::{Explain, FileError};
use crate::git;
use crate::names::{folded, is_git_lookalike};
use crate::path::{TreePath, escape};
use crate::perform::RESERVED;
use crate::refusal::{Reason, Refusal};
use crate::settle::Settled;
use crate::tree::{NodeKind, is_absent};
use crate::view::Sides;

/// How many links one link may lead through.
const MAX_HOPS: usize = 40;

/// Everything in the changes that is not merged, sorted by path.
pub(crate) fn refusals(
    settled: &Settled,
    view: &Sides<'_>,
    changes: &[Change],
    limits: &Limits,
) -> Result<Vec<Refusal>, FileError> {
    let mut refusals = settled.scan.problems.clone();
    for change in changes {
        refusals.extend(by_itself(change, limits));
        if kind_after(change) == Some(NodeKind::Symlink) {
            refusals.extend(link_refusal(settled, view, change)?);
        }
    }
    refusals.extend(hard_links(settled));
    refusals.extend(collisions(settled, changes)?);
    refusals.extend(git::refusals(settled, view, changes)?);
    refusals.sort_by(|a, b| (&a.path, a.reason, &a.detail).cmp(&(&b.path, b.reason, &b.detail)));
    refusals.dedup();
    Ok(refusals)
}

/// What a change is refused for without looking at anything else.
fn by_itself(change: &Change, limits: &Limits) -> Vec<Refusal> {
    let mut found = Vec::new();
    let mut refuse = |reason| found.push(Refusal::new(change.path.clone(), reason));
    match change.path.resource() {
        None => refuse(Reason::UnspeakableName),
        Some(resource) => {
            // The longest of the actions a merge asks for.
            if Capability::parse(format!("fs.remove.{resource}")).is_err() {
                refuse(Reason::TooLong);
            }
        }
    }
    if let Some(after) = change.after {
        let old_mode = change.before.map_or(0, |before| before.mode);
        let new_bits = after.mode & !old_mode;
        match after.kind {
            NodeKind::Fifo | NodeKind::Socket | NodeKind::Device => refuse(Reason::SpecialFile),
            NodeKind::File if new_bits & 0o7000 != 0 => refuse(Reason::SpecialMode),
            // Setgid is what new directories inherit; it is not carried over.
            NodeKind::Directory if new_bits & 0o5000 != 0 => refuse(Reason::SpecialMode),
            NodeKind::File if after.size > limits.file => refuse(Reason::TooLarge),
            _ => {}
        }
        if change.path.names().any(is_git_lookalike) {
            refuse(Reason::GitLookalike);
        }
        let is_reserved = |name: &[u8]| name.starts_with(RESERVED.as_bytes());
        if change.path.names().any(is_reserved) {
            refuse(Reason::ReservedName);
        }
    }
    found
}

fn link_refusal(
    settled: &Settled,
    view: &Sides<'_>,
    change: &Change,
) -> Result<Option<Refusal>, FileError> {
    let path = &change.path;
    let target = settled
        .content
        .link_target(path)
        .within("read", &settled.content, path)?;
    let mut failure = None;
    let leaves = leaves_tree(path, &target, |step| match view.link(step) {
        Ok(target) => target,
        Err(error) => {
            failure.get_or_insert((step.clone(), error));
            None
        }
    });
    if let Some((step, error)) = failure {
        return Err(error).within("read", &settled.project, &step);
    }
    let shown = escape(&target);
    Ok(leaves.then(|| Refusal::about(path.clone(), Reason::LinkLeavesTree, shown)))
}

/// Whether a link leads out of the tree, through whatever other links.
///
/// `lookup` says where a path points if it is itself a link. A link that leads
/// in circles or through too many others counts as leaving.
pub(crate) fn leaves_tree(
    link: &TreePath,
    target: &[u8],
    mut lookup: impl FnMut(&TreePath) -> Option<Vec<u8>>,
) -> bool {
    if target.starts_with(b"/") || target.is_empty() {
        return true;
    }
    let names = |target: &[u8]| -> Vec<Vec<u8>> {
        let names = target.split(|byte| *byte == b'/').rev();
        names.map(<[u8]>::to_vec).collect()
    };
    let mut here = link.parent();
    let mut open = names(target);
    let mut hops = 0;
    while let Some(name) = open.pop() {
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => match here {
                None => return true,
                Some(directory) => {
                    here = directory.parent();
                    continue;
                }
            },
            _ => {}
        }
        let Ok(step) = TreePath::below(here.as_ref(), &name) else {
            return true;
        };
        match lookup(&step) {
            None => here = Some(step),
            Some(next) => {
                hops += 1;
                if hops > MAX_HOPS || next.starts_with(b"/") || next.is_empty() {
                    return true;
                }
                open.extend(names(&next));
            }
        }
    }
    false
}

/// Files that have more names than the layer shows.
fn hard_links(settled: &Settled) -> Vec<Refusal> {
    let mut inodes: BTreeMap<(u64, u64), (u64, Vec<&TreePath>)> = BTreeMap::new();
    for touched in &settled.scan.touched {
        if let Some(node) = touched.node
            && node.kind == NodeKind::File
            && node.links > 1
        {
            let key = (node.identity.device, node.identity.inode);
            let entry = inodes.entry(key).or_insert((node.links, Vec::new()));
            entry.1.push(&touched.path);
        }
    }
    let outside = inodes
        .into_values()
        .filter(|(links, paths)| u64::try_from(paths.len()).is_ok_and(|seen| seen < *links));
    outside
        .flat_map(|(_, paths)| paths)
        .map(|path| Refusal::new(path.clone(), Reason::HardLinkOutside))
        .collect()
}

/// New names that equal another name where case and accents do not count.
fn collisions(settled: &Settled, changes: &[Change]) -> Result<Vec<Refusal>, FileError> {
    let mut fresh: BTreeMap<Option<TreePath>, Vec<&TreePath>> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    for change in changes {
        match change.kind {
            ChangeKind::Added => fresh
                .entry(change.path.parent())
                .or_default()
                .push(&change.path),
            ChangeKind::Deleted => {
                gone.insert(&change.path);
            }
            _ => {}
        }
    }
    let mut refusals = Vec::new();
    for (directory, added) in fresh {
        let mut taken: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for name in names_in_project(settled, directory.as_ref())? {
            let is_gone =
                TreePath::below(directory.as_ref(), &name).is_ok_and(|path| gone.contains(&path));
            if !is_gone {
                taken.entry(folded(&name)).or_default().insert(name.into());
            }
        }
        for path in &added {
            let name = path.name();
            taken.entry(folded(name)).or_default().insert(name.into());
        }
        for path in added {
            let name = path.name();
            let others = taken.get(&folded(name)).into_iter().flatten();
            if let Some(other) = others.into_iter().find(|other| *other != name) {
                let shown = escape(other);
                refusals.push(Refusal::about(path.clone(), Reason::NameCollision, shown));
            }
        }
    }
    Ok(refusals)
}

fn names_in_project(
    settled: &Settled,
    directory: Option<&TreePath>,
) -> Result<Vec<Box<[u8]>>, FileError> {
    match settled.project.names(directory) {
        Ok(names) => Ok(names),
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        Err(error) => Err(error).at("read", &settled.project.shown(directory)),
    }
}

/// What kind of thing a change leaves behind.
pub(crate) fn kind_after(change: &Change) -> Option<NodeKind> {
    change.after.map(|after| after.kind)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::parse(text.as_bytes()).unwrap()
    }

    fn leaves(link: &str, target: &str, links: &[(&str, &str)]) -> bool {
        leaves_tree(&path(link), target.as_bytes(), |step| {
            let found = links.iter().find(|(name, _)| path(name) == *step);
            found.map(|(_, target)| target.as_bytes().to_vec())
        })
    }

    #[test]
    fn links_within_the_tree_stay() {
        for (link, target) in [
            ("a", "b"),
            ("d/a", "../b"),
            ("d/e/a", "../../x/y"),
            ("a", "./d/../b"),
            ("a", "d/"),
            ("a", "nothing/there"),
        ] {
            assert!(!leaves(link, target, &[]), "{link} -> {target}");
        }
        assert!(!leaves("a", "d/x", &[("d", "e")]));
    }

    #[test]
    fn links_out_of_the_tree_leave() {
        for (link, target) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("a", "../x"),
            ("d/a", "../../x"),
            ("a", "d/../../x"),
            ("a", ""),
            ("d/a", "./.././../x"),
        ] {
            assert!(leaves(link, target, &[]), "{link} -> {target}");
        }
    }

    #[test]
    fn links_through_links_are_followed() {
        assert!(leaves("a", "d/x", &[("d", "/etc")]));
        assert!(leaves("a", "d/../x", &[("d", "e/f"), ("e", "..")]));
        // Lexically inside, really outside: `d` leads one level up.
        assert!(leaves("x/a", "d/../../y", &[("x/d", "..")]));
        assert!(leaves("a", "b", &[("a", "b"), ("b", "a")]));
    }

    proptest! {
        #[test]
        fn a_target_without_dots_or_links_never_leaves(
            link in "[a-c](/[a-c]){0,3}",
            target in "[a-c](/[a-c]){0,3}",
        ) {
            prop_assert!(!leaves(&link, &target, &[]));
        }

        #[test]
        fn any_target_is_judged(
            target in proptest::collection::vec(any::<u8>(), 0..64),
            second in proptest::collection::vec(any::<u8>(), 0..16),
        ) {
            let _ = leaves_tree(&path("a/b"), &target, |_| Some(second.clone()));
        }
    }
}
