//! Names swapped for links while a merge runs, in the layer and the project.
//!
//! The attacker loops as fast as it can; a control shows that the same loop
//! leads a plain copy astray.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fluffy_layer::{ApplyError, LayerDirectories, LayerKind};
use fluffy_test_kit::campaign;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::support::{Stage, merge_permit};

/// Swaps two names until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    /// Starts swapping, and comes back once it does.
    fn start(one: PathBuf, other: PathBuf) -> Self {
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
        let (seen, first) = (Arc::clone(&stop), Arc::clone(&begun));
        let swap = move || renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
        let thread = thread::spawn(move || {
            swap().unwrap();
            first.wait();
            while !seen.load(Ordering::Relaxed) {
                // The merge may hold one of the two for a moment.
                let _ = swap();
            }
        });
        begun.wait();
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}

fn canary(stage: &Stage) -> PathBuf {
    let outside = stage.home().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "canary").unwrap();
    outside
}

fn is_untouched(outside: &Path) -> bool {
    let names = fs::read_dir(outside).unwrap().count();
    names == 1 && fs::read_to_string(outside.join("file")).unwrap() == "canary"
}

/// A layer of kind copy whose `file` is swapped for a link to the canary.
fn swapped_layer() -> (Stage, PathBuf, fluffy_layer::HeldLayer, [PathBuf; 2]) {
    let stage = Stage::new("echo old >file");
    let outside = canary(&stage);
    let held = stage.create(LayerKind::Copy);
    stage.in_layer(&held, "echo new >file");
    let LayerDirectories::Copy { tree } = held.layer().directories() else {
        panic!("a copy was asked for");
    };
    let link = stage.home().join("link");
    symlink(outside.join("file"), &link).unwrap();
    (stage, outside, held, [tree.join("file"), link])
}

/// The project's file is a file, with one of the two texts it may have.
fn check_file(stage: &Stage) {
    let file = stage.project().join("file");
    assert!(fs::symlink_metadata(&file).unwrap().is_file());
    let now = fs::read_to_string(file).unwrap();
    assert!(now == "old\n" || now == "new\n", "{now}");
}

#[test]
fn a_link_in_the_layer_is_never_planned() {
    let mut refused = 0;
    for _ in 0..campaign(10, 100) {
        let (stage, outside, mut held, [file, link]) = swapped_layer();
        let mut swapper = Swapper::start(file, link);
        for _ in 0..10 {
            match held.plan_merge() {
                // Looked at between two swaps: then it is the file.
                Ok(plan) if plan.is_clear() => {
                    let merged = held.apply(merge_permit(), &plan);
                    if merged.is_ok_and(|report| report.retired) {
                        break;
                    }
                }
                _ => refused += 1,
            }
        }
        swapper.stop();
        check_file(&stage);
        assert!(is_untouched(&outside));
    }
    assert!(refused > 0, "the attacker was never in time");
}

#[test]
fn a_link_in_the_layer_is_never_followed_by_a_merge() {
    for _ in 0..campaign(10, 100) {
        let (stage, outside, mut held, [file, link]) = swapped_layer();
        let plan = held.plan_merge().unwrap();
        assert!(plan.is_clear());
        let mut swapper = Swapper::start(file, link);
        let _ = held.apply(merge_permit(), &plan);
        swapper.stop();
        check_file(&stage);
        assert!(is_untouched(&outside));
    }
}

#[test]
fn a_link_in_the_project_is_never_written_through() {
    for round in 0..campaign(10, 100) {
        let stage = Stage::new("mkdir dir; echo old >dir/file; echo old >file");
        let outside = canary(&stage);
        let mut held = stage.create(LayerKind::Copy);
        stage.in_layer(
            &held,
            "echo new >dir/file; echo new >file; echo more >dir/more; rm -f dir/x",
        );
        let plan = held.plan_merge().unwrap();
        assert!(plan.is_clear());
        let link = stage.home().join("link");
        let name = if round % 2 == 0 { "dir" } else { "file" };
        let target = if round % 2 == 0 {
            outside.clone()
        } else {
            outside.join("file")
        };
        symlink(target, &link).unwrap();
        let mut swapper = Swapper::start(stage.project().join(name), link.clone());
        let mut result = held.apply(merge_permit(), &plan);
        for _ in 0..10 {
            match result {
                Ok(report) if report.retired => break,
                Err(ApplyError::Outdated { .. }) => result = held.apply(merge_permit(), &plan),
                _ => result = held.resume(merge_permit()),
            }
        }
        swapper.stop();
        assert!(is_untouched(&outside), "round {round}");
    }
}

/// The same attack on a program that opens by name.
#[test]
fn control_a_plain_copy_is_led_astray() {
    let stage = Stage::new("echo old >file");
    let outside = canary(&stage);
    let source = stage.home().join("source");
    fs::write(&source, "new").unwrap();
    let link = stage.home().join("link");
    symlink(outside.join("file"), &link).unwrap();
    let _swapper = Swapper::start(stage.project().join("file"), link);
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_untouched(&outside) {
        assert!(Instant::now() < deadline, "the attack does not work at all");
        let target = stage.project().join("file");
        // Careful, and yet too late: the name changes in between.
        if fs::symlink_metadata(&target).is_ok_and(|metadata| metadata.is_file()) {
            let _ = fs::copy(&source, &target);
        }
    }
}
