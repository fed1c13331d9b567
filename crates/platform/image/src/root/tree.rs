//! The tree that layers are applied to, in memory.
//!
//! Pure, and the only place where names of an archive mean anything. Links
//! within it lead nowhere but within it. A later layer replaces what a lower
//! one had; a hard link keeps what it was made for.

use std::collections::BTreeMap;
use std::mem;

use fluffy_tar::{Entry, Time};

/// The longest name of a path, and of one of its parts.
const LONGEST: usize = 4_096;
const LONGEST_PART: usize = 255;

/// The deepest folder.
const DEEPEST: usize = 128;

/// The most links on the way to one place, and the most parts of them all.
const MOST_HOPS: usize = 40;
const MOST_PARTS: usize = 1_024;

/// The most bytes of attributes that one thing may have; a value has to be
/// below what sixteen bits can say.
const MOST_ATTRIBUTES: usize = 64 << 10;

/// The most bytes of names, links and attributes in all.
const MOST_HELD: usize = 256 << 20;

/// How layers say that something of a lower one is gone.
const GONE: &[u8] = b".wh.";
const EMPTIED: &[u8] = b".wh..wh..opq";

/// A place in the tree, for as long as the tree is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(usize);

impl NodeId {
    pub(super) const ROOT: Self = Self(0);

    pub(super) const fn index(self) -> usize {
        self.0
    }
}

/// What is said about something, whatever it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Meta {
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) modified: Time,
    pub(super) attributes: Vec<Attribute>,
}

/// An extended attribute, by the number of its kind in the format.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attribute {
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Meta {
    /// What an archive says, as far as a guest may have it.
    pub(super) fn of(entry: &Entry) -> Result<Self, &'static str> {
        let mut by_name = BTreeMap::new();
        let mut size = 0;
        for (name, value) in &entry.attributes {
            let Some((kind, name)) = known_attribute(name) else {
                continue;
            };
            size += name.len() + value.len();
            if size >= MOST_ATTRIBUTES || name.len() > LONGEST_PART {
                return Err("its attributes are too large");
            }
            by_name.insert((kind, name.to_vec()), value.clone());
        }
        let attributes =
            by_name
                .into_iter()
                .map(|((kind, name), value)| Attribute { kind, name, value });
        Ok(Self {
            // Only permissions, which are twelve bits.
            mode: u16::try_from(entry.mode & 0o7777).unwrap_or_default(),
            owner: entry.owner,
            modified: entry.modified,
            attributes: attributes.collect(),
        })
    }

    fn size(&self) -> usize {
        let sizes = self.attributes.iter();
        sizes.map(|one| one.name.len() + one.value.len()).sum()
    }

    /// What a folder has that no layer speaks about.
    fn unspoken() -> Self {
        Self {
            mode: 0o755,
            ..Self::default()
        }
    }
}

/// The attributes that matter within a guest; others are left out.
fn known_attribute(name: &[u8]) -> Option<(u8, &[u8])> {
    match name {
        b"system.posix_acl_access" => Some((2, b"")),
        b"system.posix_acl_default" => Some((3, b"")),
        b"security.capability" => Some((6, b"capability")),
        name => Some((1, name.strip_prefix(b"user.")?)),
    }
}

/// Where the store keeps what a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) start: u64,
    pub(super) size: u64,
}

/// What something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    Folder(BTreeMap<Vec<u8>, NodeId>),
    File(Content),
    Link(Vec<u8>),
    Pipe,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) meta: Meta,
    pub(super) body: Body,
    /// The names that it has.
    pub(super) names: u32,
    /// The last layer that spoke about it or about something in it.
    layer: usize,
    /// The last layer that took away what lower ones have in it; they are
    /// counted from one.
    emptied: usize,
}

#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    most_nodes: usize,
    /// The bytes of all that it was ever given.
    held: usize,
    layer: usize,
    freed: Vec<Content>,
}

impl Tree {
    pub(super) fn new(most_nodes: usize) -> Self {
        let root = Node {
            meta: Meta::unspoken(),
            body: Body::Folder(BTreeMap::new()),
            names: 1,
            layer: 0,
            emptied: 0,
        };
        Self {
            nodes: vec![root],
            most_nodes,
            held: 0,
            layer: 0,
            freed: Vec::new(),
        }
    }

    pub(super) fn begin_layer(&mut self) {
        self.layer += 1;
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ids are made by `add`, and no node leaves"
    )]
    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "ids are made by `add`, and no node leaves"
    )]
    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// What nothing leads to any more since this was asked last.
    pub(super) fn take_freed(&mut self) -> Vec<Content> {
        mem::take(&mut self.freed)
    }

    /// Puts something at a name, in the place of what was there.
    pub(super) fn put(&mut self, name: &[u8], meta: Meta, body: Body) -> Result<(), &'static str> {
        let Some((folder, last)) = self.place(name)? else {
            if !matches!(body, Body::Folder(_)) {
                return Err("it takes the place of the root");
            }
            return self.tell(NodeId::ROOT, meta);
        };
        if let Some(gone) = last.strip_prefix(GONE) {
            if !matches!(&body, Body::File(content) if content.size == 0) {
                return Err("a name that takes something away is of an empty file");
            }
            return match last == EMPTIED {
                true => {
                    self.clear_lower(folder);
                    Ok(())
                }
                false => {
                    let gone = gone.to_vec();
                    self.remove_below(folder, &gone)
                }
            };
        }
        if let Body::Link(target) = &body
            && (target.is_empty() || target.len() > LONGEST || target.contains(&0))
        {
            return Err("it is a link that leads nowhere");
        }
        // A folder stays, with what is in it.
        if let (Body::Folder(_), Some(there)) = (&body, self.child(folder, &last))
            && matches!(self.node(there).body, Body::Folder(_))
        {
            return self.tell(there, meta);
        }
        let id = self.add(meta, body)?;
        self.node_mut(id).names += 1;
        self.bind(folder, last, id)
    }

    /// Gives something that is there another name.
    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), &'static str> {
        let nothing = "it is another name of what is not there";
        let (folder, last) = self.place(target)?.ok_or(nothing)?;
        let there = self.child(folder, &last).ok_or(nothing)?;
        if matches!(self.node(there).body, Body::Folder(_)) {
            return Err("it is another name of a folder");
        }
        let Some((folder, last)) = self.place(name)? else {
            return Err("it takes the place of the root");
        };
        if last.starts_with(GONE) {
            return Err("it is no name for a file");
        }
        if self.child(folder, &last) == Some(there) {
            return Ok(());
        }
        let (layer, node) = (self.layer, self.node_mut(there));
        node.layer = layer;
        node.names += 1;
        self.bind(folder, last, there)
    }

    /// Takes away what a lower layer has at this name.
    pub(super) fn remove_lower(&mut self, name: &[u8]) -> Result<(), &'static str> {
        match self.place(name)? {
            Some((folder, last)) => self.remove_below(folder, &last),
            None => Err("it takes the place of the root"),
        }
    }

    fn remove_below(&mut self, folder: NodeId, name: &[u8]) -> Result<(), &'static str> {
        if matches!(name, b"" | b"." | b"..") {
            return Err("it takes away what has no name");
        }
        let Some(there) = self.child(folder, name) else {
            return Ok(());
        };
        if self.node(there).layer == self.layer {
            // What this layer brought itself stays, whatever comes first.
            self.clear_lower(there);
        } else {
            self.unbind(folder, name);
        }
        Ok(())
    }

    /// Takes away what lower layers have within a folder.
    fn clear_lower(&mut self, folder: NodeId) {
        let (layer, mut waiting) = (self.layer, vec![folder]);
        while let Some(folder) = waiting.pop() {
            // Once is enough: all that comes in after that is of this layer.
            if mem::replace(&mut self.node_mut(folder).emptied, layer) == layer {
                continue;
            }
            let Body::Folder(children) = &self.node(folder).body else {
                continue;
            };
            let (kept, lower): (Vec<_>, Vec<_>) = children
                .iter()
                .map(|(name, id)| (name.clone(), *id))
                .partition(|(_, id)| self.node(*id).layer == layer);
            waiting.extend(kept.into_iter().map(|(_, id)| id));
            for (name, _) in lower {
                self.unbind(folder, &name);
            }
        }
    }

    fn add(&mut self, meta: Meta, body: Body) -> Result<NodeId, &'static str> {
        if self.nodes.len() > self.most_nodes {
            return Err("there are too many folders and files");
        }
        self.hold(meta.size())?;
        if let Body::Link(target) = &body {
            self.hold(target.len())?;
        }
        self.nodes.push(Node {
            meta,
            body,
            names: 0,
            layer: self.layer,
            emptied: 0,
        });
        Ok(NodeId(self.nodes.len() - 1))
    }

    /// Says something new about a folder that is there.
    fn tell(&mut self, folder: NodeId, meta: Meta) -> Result<(), &'static str> {
        self.hold(meta.size())?;
        let layer = self.layer;
        let folder = self.node_mut(folder);
        (folder.meta, folder.layer) = (meta, layer);
        Ok(())
    }

    fn hold(&mut self, bytes: usize) -> Result<(), &'static str> {
        self.held += bytes;
        match self.held > MOST_HELD {
            true => Err("names, links and attributes are too large in all"),
            false => Ok(()),
        }
    }

    /// Binds a name to what already counts it.
    fn bind(&mut self, folder: NodeId, name: Vec<u8>, id: NodeId) -> Result<(), &'static str> {
        self.hold(name.len())?;
        self.unbind(folder, &name);
        if let Body::Folder(children) = &mut self.node_mut(folder).body {
            children.insert(name, id);
        }
        Ok(())
    }

    fn unbind(&mut self, folder: NodeId, name: &[u8]) {
        let Body::Folder(children) = &mut self.node_mut(folder).body else {
            return;
        };
        let Some(first) = children.remove(name) else {
            return;
        };
        let mut waiting = vec![first];
        while let Some(id) = waiting.pop() {
            let node = self.node_mut(id);
            node.names -= 1;
            if node.names > 0 {
                continue;
            }
            match &mut node.body {
                Body::Folder(children) => waiting.extend(mem::take(children).into_values()),
                Body::File(content) => {
                    let content = *content;
                    self.freed.push(content);
                }
                Body::Link(_) | Body::Pipe => {}
            }
        }
    }

    fn child(&self, folder: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.node(folder).body {
            Body::Folder(children) => children.get(name).copied(),
            _ => None,
        }
    }

    /// The folder that a name is in, made if need be, and the last part of the
    /// name; nothing for the root.
    fn place(&mut self, name: &[u8]) -> Result<Option<(NodeId, Vec<u8>)>, &'static str> {
        if name.len() > LONGEST {
            return Err("its name is too long");
        }
        let mut parts = Vec::new();
        for part in name.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err("its name leads out of the image"),
                part if part.len() > LONGEST_PART => return Err("a part of its name is too long"),
                part if part.contains(&0) => return Err("its name holds a zero"),
                part => parts.push(part.to_vec()),
            }
        }
        if parts.len() > DEEPEST {
            return Err("it is too deep");
        }
        let Some(last) = parts.pop() else {
            return Ok(None);
        };
        Ok(Some((self.folder(parts)?, last)))
    }

    /// The folder at the end of these parts; links on the way are followed
    /// within the tree, and what is missing is made.
    fn folder(&mut self, parts: Vec<Vec<u8>>) -> Result<NodeId, &'static str> {
        let mut ahead: Vec<Vec<u8>> = parts.into_iter().rev().collect();
        let mut way = vec![NodeId::ROOT];
        let (mut hops, mut linked) = (0, 0);
        while let Some(part) = ahead.pop() {
            match &*part {
                b"" | b"." => continue,
                b".." => {
                    // The root is its own parent.
                    if way.len() > 1 {
                        way.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let here = way.last().copied().unwrap_or(NodeId::ROOT);
            if part.starts_with(GONE) {
                return Err("it is in a folder whose name takes something away");
            }
            let there = match self.child(here, &part) {
                Some(there) => there,
                None if way.len() > DEEPEST || part.len() > LONGEST_PART => {
                    return Err("it is too deep");
                }
                None => {
                    let made = self.add(Meta::unspoken(), Body::Folder(BTreeMap::new()))?;
                    self.node_mut(made).names += 1;
                    self.bind(here, part, made)?;
                    made
                }
            };
            match &self.node(there).body {
                Body::Folder(_) => way.push(there),
                Body::Link(target) => {
                    hops += 1;
                    if hops > MOST_HOPS {
                        return Err("too many links are on the way to it");
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    let before = ahead.len();
                    let target = target.split(|byte| *byte == b'/').rev();
                    ahead.extend(target.map(<[u8]>::to_vec));
                    linked += ahead.len() - before;
                    if linked > MOST_PARTS {
                        return Err("the links on the way to it are too long");
                    }
                }
                Body::File(_) | Body::Pipe => return Err("a file is on the way to it"),
            }
        }
        let layer = self.layer;
        for id in &way {
            self.node_mut(*id).layer = layer;
        }
        Ok(way.last().copied().unwrap_or(NodeId::ROOT))
    }
}

#[cfg(test)]
mod tests;
