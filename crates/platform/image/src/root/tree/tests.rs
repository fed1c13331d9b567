//! What layers could make slow is done once, or refused.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Body, Content, EMPTIED, Meta, NodeId, Tree};

fn tree(most_nodes: usize) -> Tree {
    let mut tree = Tree::new(most_nodes);
    tree.begin_layer();
    tree
}

fn file(tree: &mut Tree, name: &[u8]) -> Result<(), &'static str> {
    let empty = Content { start: 0, size: 0 };
    tree.put(name, Meta::default(), Body::File(empty))
}

fn link(tree: &mut Tree, name: &[u8], target: String) {
    let link = Body::Link(target.into_bytes());
    tree.put(name, Meta::default(), link).unwrap();
}

fn empty(tree: &mut Tree, folder: &[u8]) {
    file(tree, &[folder, b"/", EMPTIED].concat()).unwrap();
}

/// What is in a folder.
fn names(tree: &Tree, folder: &str) -> Vec<String> {
    let mut parts = folder.split('/');
    let folder = parts.try_fold(NodeId::ROOT, |at, part| tree.child(at, part.as_bytes()));
    let Body::Folder(children) = &tree.node(folder.unwrap()).body else {
        panic!("it is no folder");
    };
    let names = children.keys().cloned();
    names.map(|name| String::from_utf8(name).unwrap()).collect()
}

#[test]
fn each_layer_empties_a_folder_anew_and_keeps_its_own() {
    let mut tree = tree(100);
    for layer in ["one", "two", "three"] {
        file(&mut tree, format!("d/{layer}").as_bytes()).unwrap();
        file(&mut tree, format!("d/within/{layer}").as_bytes()).unwrap();
        empty(&mut tree, b"d");
        file(&mut tree, format!("d/{layer}-late").as_bytes()).unwrap();
        empty(&mut tree, b"d");
        let late = format!("{layer}-late");
        assert_eq!(names(&tree, "d"), [layer, &late, "within"]);
        assert_eq!(names(&tree, "d/within"), [layer]);
        tree.begin_layer();
    }
}

#[test]
fn a_large_folder_is_emptied_as_often_as_somebody_likes() {
    let many = 100_000;
    let mut tree = tree(many + 10);
    for number in 0..many {
        file(&mut tree, format!("d/{number}").as_bytes()).unwrap();
    }
    // Looking at all of them each time would take many times as long.
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..many {
        empty(&mut tree, b"d");
        assert!(Instant::now() < deadline, "it looks at all of them again");
    }
    assert_eq!(names(&tree, "d").len(), many);
}

#[test]
fn links_of_endless_parts_are_not_followed() {
    let mut tree = tree(100);
    let folder = Body::Folder(BTreeMap::new());
    tree.put(b"d", Meta::default(), folder).unwrap();
    let parts = "./".repeat(600);
    // The control: one of them is.
    link(&mut tree, b"hop", format!("{parts}d"));
    file(&mut tree, b"hop/a").unwrap();
    // Neither with the next at the end, nor at the beginning.
    link(&mut tree, b"last", format!("{parts}hop"));
    link(&mut tree, b"first", format!("hop/{parts}"));
    for name in [&b"last/b"[..], b"first/b"] {
        let refused = file(&mut tree, name);
        assert_eq!(refused, Err("the links on the way to it are too long"));
    }
    assert_eq!(names(&tree, "d"), ["a"]);
}
