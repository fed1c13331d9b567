//! What the watch notices, and how rarely it looks.

use super::*;
use crate::plan::{Engine, sample};
use fluffy_base::ByteSize;
use std::fs;
use std::process::{Child, Command, Stdio};

fn plan(layer: Option<&Path>) -> Plan {
    let mut plan = sample::plan(Engine::Native);
    plan.limits.memory = ByteSize(64 << 20);
    plan.limits.disk = ByteSize(8 << 20);
    plan.watched = layer.map(Path::to_owned);
    plan
}

fn own() -> Pid {
    rustix::process::getpid()
}

/// Looks until the tree was counted once more, whatever its size.
fn look(watch: &mut Watch) -> Option<Limit> {
    for tree in &mut watch.trees {
        tree.used = None;
    }
    loop {
        let limit = watch.check(Instant::now());
        if limit.is_some() || watch.trees.iter().all(|tree| tree.used.is_some()) {
            return limit;
        }
    }
}

/// A watch that looks at a layer only.
fn layer_watch(plan: &Plan) -> Watch {
    let mut watch = Watch::new(plan, None, own());
    watch.memory = None;
    watch
}

#[test]
fn a_layer_that_grows_too_large_is_noticed() {
    let layer = tempfile::tempdir().unwrap();
    let mut watch = layer_watch(&plan(Some(layer.path())));
    assert_eq!(look(&mut watch), None);
    fs::write(layer.path().join("some"), vec![1; 4 << 20]).unwrap();
    assert_eq!(look(&mut watch), None);
    fs::write(layer.path().join("more"), vec![1; 6 << 20]).unwrap();
    assert_eq!(look(&mut watch), Some(Limit::Disk));
}

#[test]
fn many_empty_files_are_noticed_too() {
    let layer = tempfile::tempdir().unwrap();
    for number in 0..100 {
        fs::write(layer.path().join(number.to_string()), "").unwrap();
    }
    let mut plan = plan(Some(layer.path()));
    plan.limits.disk = ByteSize(99 * 4_096);
    let mut watch = layer_watch(&plan);
    assert_eq!(look(&mut watch), Some(Limit::Disk));
}

#[test]
fn a_copy_is_measured_from_what_it_began_with() {
    let layer = tempfile::tempdir().unwrap();
    fs::write(layer.path().join("project"), vec![1; 20 << 20]).unwrap();
    let mut plan = plan(Some(layer.path()));
    plan.late = vec![Mount::Writable {
        host: layer.path().to_owned(),
        inside: "/project".into(),
    }];
    let mut watch = layer_watch(&plan);
    assert_eq!(look(&mut watch), None);
    fs::write(layer.path().join("more"), vec![1; 9 << 20]).unwrap();
    assert_eq!(look(&mut watch), Some(Limit::Disk));
}

#[test]
fn it_rests_much_longer_than_it_looks() {
    let layer = tempfile::tempdir().unwrap();
    let mut watch = layer_watch(&plan(Some(layer.path())));
    let now = Instant::now();
    watch.begin(now);
    assert!(watch.next_check().unwrap() <= now + INTERVAL);
    watch.check(now);
    assert!(watch.next_check().unwrap() >= now + INTERVAL);
}

#[test]
fn a_copy_is_counted_as_soon_as_a_command_starts() {
    let layer = tempfile::tempdir().unwrap();
    let mut plan = plan(Some(layer.path()));
    let now = Instant::now() + INTERVAL;
    let mut empty = layer_watch(&plan);
    empty.begin(now);
    assert_eq!(empty.next_check(), Some(now + INTERVAL));
    plan.late = vec![Mount::Writable {
        host: layer.path().to_owned(),
        inside: "/project".into(),
    }];
    let mut copy = layer_watch(&plan);
    copy.begin(now);
    assert!(copy.next_check().unwrap() <= now);
}

#[test]
fn many_short_commands_do_not_put_a_look_off() {
    let layer = tempfile::tempdir().unwrap();
    let mut watch = layer_watch(&plan(Some(layer.path())));
    let now = Instant::now() + INTERVAL;
    watch.begin(now);
    let due = watch.next_check();
    watch.begin(now + INTERVAL / 2);
    assert_eq!(watch.next_check(), due);
}

#[test]
fn the_less_memory_is_left_the_sooner_it_looks_again() {
    let mut watch = Watch::new(&plan(None), None, own());
    watch.memory = Some(4 << 30);
    let look = Duration::from_millis(2);
    assert_eq!(watch.pause(Duration::ZERO), INTERVAL);
    assert_eq!(watch.pause(look * 2), look * 2 * REST);
    watch.used = (4 << 30) - (80 << 20);
    assert_eq!(watch.pause(look), Duration::from_millis(20));
    assert_eq!(watch.pause(look * 50), look * 50 * REST_WHEN_SHORT);
    watch.used = 4 << 30;
    assert_eq!(watch.pause(Duration::ZERO), SHORTEST);
}

#[test]
fn with_nothing_to_watch_it_never_looks() {
    let mut watch = Watch::new(&plan(None), None, own());
    assert!(watch.next_check().is_some());
    watch.memory = None;
    assert_eq!(watch.next_check(), None);
}

fn eater() -> Child {
    Command::new("sh")
        .args([
            "-c",
            "sh -c 'x=$(head -c 24000000 /dev/zero | tr \"\\0\" x); echo ready; read end'; true",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn memory_of_the_whole_tree_is_counted_without_a_group() {
    let mut child = eater();
    let mut plan = plan(None);
    plan.limits.memory = ByteSize(16 << 20);
    let mut watch = Watch::new(&plan, None, Pid::from_child(&child));
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    let limit = watch.check(Instant::now());
    let stats = watch.stats();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(limit, Some(Limit::Memory));
    assert!(stats.memory > 20_000_000 && stats.pids == 2, "{stats:?}");
    assert_eq!(watch.check(Instant::now()), None);
}
