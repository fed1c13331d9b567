//! The Merkle tree over event hashes (RFC 6962): roots and proofs.
//!
//! Pure. Appending needs only the [`Frontier`], proofs need the hashes of
//! complete subtrees, which engines keep at every eighth level ([`STRIDE`])
//! so that one row in 256 events is enough.

use fluffy_base::Digest;

/// Engines store complete subtrees at levels that are multiples of this.
pub(crate) const STRIDE: u8 = 8;

/// The hash of a leaf that stands for an event's hash.
#[must_use]
pub fn leaf(hash: &Digest) -> Digest {
    Digest::of_parts(&[&[0], hash.as_bytes()])
}

fn parent(left: &Digest, right: &Digest) -> Digest {
    let mut bytes = [1u8; 65];
    let (_, body) = bytes.split_at_mut(1);
    let (first, second) = body.split_at_mut(32);
    first.copy_from_slice(left.as_bytes());
    second.copy_from_slice(right.as_bytes());
    Digest::of(&bytes)
}

/// A complete subtree: its height, its place among its equals, its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) level: u8,
    pub(crate) position: u64,
    pub(crate) hash: Digest,
}

/// The roots of the complete subtrees that cover the first `size` leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frontier {
    size: u64,
    /// One hash per set bit of `size`, the largest subtree first.
    roots: Vec<Digest>,
}

impl Frontier {
    /// How many leaves are covered.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Adds the event hash at the end; calls `done` for each subtree at a
    /// stored level that it completes.
    pub(crate) fn push(&mut self, hash: &Digest, mut done: impl FnMut(Node)) {
        let mut node = leaf(hash);
        let mut level = 0u8;
        let mut position = self.size;
        // Each trailing one bit of the size is a subtree of equal height that
        // waits for its right half.
        while position & 1 == 1 {
            let Some(left) = self.roots.pop() else { break };
            node = parent(&left, &node);
            level += 1;
            position >>= 1;
            if level.is_multiple_of(STRIDE) {
                done(Node {
                    level,
                    position,
                    hash: node,
                });
            }
        }
        self.roots.push(node);
        self.size += 1;
    }

    /// The root of the tree; of an empty one, the hash of nothing.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut roots = self.roots.iter().rev();
        let Some(last) = roots.next() else {
            return Digest::of(b"");
        };
        roots.fold(*last, |right, left| parent(left, &right))
    }

    /// The hashes one after the other, for the head row.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.roots.iter().flat_map(|root| root.0).collect()
    }

    /// The frontier of `size` leaves from its stored bytes, if they fit.
    pub(crate) fn from_bytes(size: u64, bytes: &[u8]) -> Option<Self> {
        let (roots, rest) = bytes.as_chunks::<32>();
        let wanted = usize::try_from(size.count_ones()).ok()?;
        (rest.is_empty() && roots.len() == wanted).then(|| Self {
            size,
            roots: roots.iter().copied().map(Digest).collect(),
        })
    }
}

/// Where proofs get the hashes of complete subtrees from.
///
/// Two sources exist: a ledger's stored rows, and plain lists in tests.
pub(crate) trait Subtrees {
    /// Why a hash could not be had.
    type Error;

    /// The hashes of `count` complete subtrees at a stored level (or leaves at
    /// level 0), from `position` on.
    fn stored(&mut self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, Self::Error>;
}

/// The path that shows leaf `index` (from 0) in the tree of `size` leaves.
pub(crate) fn inclusion<S: Subtrees>(
    source: &mut S,
    index: u64,
    size: u64,
) -> Result<Vec<Digest>, S::Error> {
    let mut path = Vec::new();
    let (mut start, mut length) = (0u64, size);
    while length > 1 {
        let split = split_point(length);
        if index - start < split {
            path.push(range_root(source, start + split, length - split)?);
            length = split;
        } else {
            path.push(range_root(source, start, split)?);
            start += split;
            length -= split;
        }
    }
    path.reverse();
    Ok(path)
}

/// The proof that the tree of `old` leaves is a prefix of that of `new`.
pub(crate) fn consistency<S: Subtrees>(
    source: &mut S,
    old: u64,
    new: u64,
) -> Result<Vec<Digest>, S::Error> {
    let mut path = Vec::new();
    if old == 0 || old >= new {
        return Ok(path);
    }
    let (mut start, mut length, mut wanted) = (0u64, new, old);
    let mut whole = true;
    while wanted < length {
        let split = split_point(length);
        if wanted <= split {
            path.push(range_root(source, start + split, length - split)?);
            length = split;
        } else {
            path.push(range_root(source, start, split)?);
            start += split;
            length -= split;
            wanted -= split;
            whole = false;
        }
    }
    if !whole {
        path.push(range_root(source, start, length)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether the path leads from the event hash to the root.
#[must_use]
pub fn check_inclusion(hash: &Digest, index: u64, tree: (u64, Digest), path: &[Digest]) -> bool {
    let (size, root) = tree;
    if index >= size {
        return false;
    }
    let (mut node, mut last) = (index, size - 1);
    let mut result = leaf(hash);
    for sibling in path {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            result = parent(sibling, &result);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            result = parent(&result, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && result == root
}

/// Whether the path shows that the old tree is a prefix of the new one.
#[must_use]
pub fn check_consistency(old: (u64, Digest), new: (u64, Digest), path: &[Digest]) -> bool {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size == 0 {
        return path.is_empty();
    }
    if old_size >= new_size {
        return old_size == new_size && path.is_empty() && old_root == new_root;
    }
    // A complete old tree is its own first step.
    let implied = old_size.is_power_of_two().then_some(old_root);
    let mut steps = implied.iter().chain(path);
    let Some(first) = steps.next() else {
        return false;
    };
    let shift = (old_size - 1).trailing_ones();
    let (mut node, mut last) = ((old_size - 1) >> shift, (new_size - 1) >> shift);
    let (mut old_seen, mut new_seen) = (*first, *first);
    for step in steps {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            old_seen = parent(step, &old_seen);
            new_seen = parent(step, &new_seen);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            new_seen = parent(&new_seen, step);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && old_seen == old_root && new_seen == new_root
}

/// The largest power of two below `length`, which is at least 2.
fn split_point(length: u64) -> u64 {
    1 << (63 - (length - 1).leading_zeros())
}

/// The root of `length` leaves from `start`, which is a multiple of the
/// largest power of two that fits in.
pub(crate) fn range_root<S: Subtrees>(
    source: &mut S,
    start: u64,
    length: u64,
) -> Result<Digest, S::Error> {
    let mut roots = Vec::new();
    let (mut at, mut rest) = (start, length);
    while rest > 0 {
        let level = u8::try_from(63 - rest.leading_zeros()).unwrap_or(0);
        roots.push(subtree(source, level, at >> level)?);
        at += 1 << level;
        rest -= 1 << level;
    }
    let mut roots = roots.iter().rev();
    let last = roots.next().copied().unwrap_or_else(|| Digest::of(b""));
    Ok(roots.fold(last, |right, left| parent(left, &right)))
}

/// The hash of one complete subtree, from at most 128 stored ones.
fn subtree<S: Subtrees>(source: &mut S, level: u8, position: u64) -> Result<Digest, S::Error> {
    let above = level % STRIDE;
    let count = 1u64 << above;
    let mut row = source.stored(level - above, position << above, count)?;
    while row.len() > 1 {
        let (pairs, _) = row.as_chunks::<2>();
        row = pairs
            .iter()
            .map(|[left, right]| parent(left, right))
            .collect();
    }
    Ok(row.first().copied().unwrap_or_else(|| Digest::of(b"")))
}

#[cfg(test)]
mod tests {
    use ct_merkle::mem_backed_tree::MemoryBackedTree;
    use proptest::prelude::*;
    use sha2::Sha256;

    use super::*;

    /// Leaves and stored nodes as an engine keeps them.
    #[derive(Default)]
    pub(crate) struct Rows {
        leaves: Vec<Digest>,
        nodes: Vec<Node>,
        frontier: Frontier,
    }

    impl Rows {
        fn of(count: u64) -> Self {
            let mut rows = Self::default();
            for number in 0..count {
                let hash = Digest::of(&number.to_be_bytes());
                rows.leaves.push(leaf(&hash));
                let nodes = &mut rows.nodes;
                rows.frontier.push(&hash, |node| nodes.push(node));
            }
            rows
        }
    }

    impl Subtrees for Rows {
        type Error = String;

        fn stored(&mut self, level: u8, position: u64, count: u64) -> Result<Vec<Digest>, String> {
            (position..position + count)
                .map(|at| {
                    if level == 0 {
                        return self.leaves.get(usize::try_from(at).unwrap()).copied();
                    }
                    let wanted = |node: &&Node| node.level == level && node.position == at;
                    self.nodes.iter().find(wanted).map(|node| node.hash)
                })
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| format!("level {level} position {position} count {count}"))
        }
    }

    fn peer(count: u64) -> MemoryBackedTree<Sha256, Vec<u8>> {
        let mut tree = MemoryBackedTree::new();
        for number in 0..count {
            tree.push(Digest::of(&number.to_be_bytes()).0.to_vec());
        }
        tree
    }

    fn joined(path: &[Digest]) -> Vec<u8> {
        path.iter().flat_map(|hash| hash.0).collect()
    }

    #[test]
    fn roots_equal_those_of_a_second_implementation() {
        for size in [0, 1, 2, 3, 7, 8, 255, 256, 257, 511, 700] {
            let ours = Rows::of(size).frontier.root();
            assert_eq!(&ours.0[..], &peer(size).root().as_bytes()[..], "{size}");
        }
    }

    #[test]
    fn proofs_equal_those_of_a_second_implementation() {
        for size in [1u64, 2, 5, 256, 300, 513, 1025] {
            let mut rows = Rows::of(size);
            let tree = peer(size);
            for index in [0, size / 3, size / 2, size - 1] {
                let path = inclusion(&mut rows, index, size).unwrap();
                let theirs = tree.prove_inclusion(usize::try_from(index).unwrap());
                assert_eq!(joined(&path), theirs.as_bytes(), "{index} of {size}");
            }
            for old in [1, size / 2, size / 3 + 1, size]
                .into_iter()
                .filter(|old| *old > 0)
            {
                let path = consistency(&mut rows, old, size).unwrap();
                let theirs = tree.prove_consistency(usize::try_from(size - old).unwrap());
                let old_root = Rows::of(old).frontier.root();
                let new_root = rows.frontier.root();
                assert!(check_consistency((old, old_root), (size, new_root), &path));
                let peer_old = peer(old).root();
                let checked = tree.root().verify_consistency(&peer_old, &theirs);
                assert!(checked.is_ok());
                if !old.is_power_of_two() || old == size {
                    assert_eq!(joined(&path), theirs.as_bytes(), "{old} of {size}");
                }
            }
        }
    }

    #[test]
    fn a_frontier_survives_its_bytes() {
        for size in [0, 1, 6, 255, 256] {
            let frontier = Rows::of(size).frontier;
            let bytes = frontier.to_bytes();
            assert_eq!(Frontier::from_bytes(size, &bytes), Some(frontier));
            assert_eq!(
                Frontier::from_bytes(size + 1, &bytes).is_some(),
                (size + 1).count_ones() == size.count_ones()
            );
        }
        assert_eq!(Frontier::from_bytes(1, &[0; 31]), None);
    }

    proptest! {
        #[test]
        fn proofs_hold_and_no_change_goes_unseen(
            size in 1u64..600, pick in any::<prop::sample::Index>(), flip in 0usize..32
        ) {
            let mut rows = Rows::of(size);
            let index = pick.index(usize::try_from(size).unwrap()) as u64;
            let root = rows.frontier.root();
            let hash = Digest::of(&index.to_be_bytes());
            let path = inclusion(&mut rows, index, size).unwrap();
            prop_assert!(check_inclusion(&hash, index, (size, root), &path));
            let mut other = hash;
            other.0[flip] ^= 1;
            prop_assert!(!check_inclusion(&other, index, (size, root), &path));
            for at in 0..path.len() {
                let mut forged = path.clone();
                forged[at].0[flip] ^= 1;
                prop_assert!(!check_inclusion(&hash, index, (size, root), &forged));
            }
            let old = index + 1;
            let old_root = Rows::of(old).frontier.root();
            let path = consistency(&mut rows, old, size).unwrap();
            prop_assert!(check_consistency((old, old_root), (size, root), &path));
            let mut forged = old_root;
            forged.0[flip] ^= 1;
            prop_assert!(!check_consistency((old, forged), (size, root), &path));
        }

        #[test]
        fn checking_arbitrary_paths_never_panics(
            index in any::<u64>(), size in any::<u64>(), old in any::<u64>(),
            path in prop::collection::vec(any::<[u8; 32]>().prop_map(Digest), 0..70)
        ) {
            let root = Digest::of(b"root");
            prop_assert!(!check_inclusion(&root, index, (size, root), &path));
            let accepted = check_consistency((old, root), (size, root), &path);
            prop_assert!(old == 0 || old >= size || !accepted);
        }
    }
}
