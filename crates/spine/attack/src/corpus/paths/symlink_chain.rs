//! Reaches outside by a chain of links, each of which looks harmless.
//!
//! Reads only.

use std::fs;
use std::os::unix::fs::symlink;

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack =
    Attack::new("symlink-chain", Family::Paths, Guard::MountTable, attempt)
        .gains("reads a file outside through links to links and to folders")
        .also_stopped_by(&[Guard::Landlock]);

fn attempt(_: &Stage) -> Outcome {
    let made = fs::create_dir("chain")
        .and_then(|()| symlink("../chain/second", "source/first"))
        .and_then(|()| symlink("third", "chain/second"))
        .and_then(|()| symlink("../../outside", "chain/third"));
    match made {
        Ok(()) => look::read("source/first/canary"),
        Err(error) => Outcome::stopped("make a chain of links", error),
    }
}
