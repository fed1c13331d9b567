//! Kill -9 at random moments of a merge: before, after, or told step by step.
//!
//! The test starts itself again as a child that merges, kills it, and looks at
//! what is left, path by path.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fluffy_layer::{HeldLayer, LayerKind, LayerState, LayerStore, Trouble};
use fluffy_test_kit::{Seed, campaign};

use crate::support::{Stage, clear_plan, kinds, merge_permit};

const CHILD_ENV: &str = "FLUFFY_LAYER_CHILD";

const PROJECT: &str = "for d in 1 2 3 4; do mkdir -p d$d/e; for f in 1 2 3 4 5 6 7 8; do \
                       echo \"old $d $f\" >d$d/f$f; echo \"old $d $f\" >d$d/e/g$f; done; done; \
                       ln -s d1 link; printf '1\\n2\\n3\\n4\\n5\\n' >both";

/// Every kind of step, each many times.
const WORK: &str = "for f in d1/*; do test -d $f || echo new >>$f; done; rm d2/f*; rm -r d3; \
                    echo file >d3; rm d4/f1; mkdir d4/f1; echo in >d4/f1/in; \
                    for n in 1 2 3 4 5 6 7 8; do mkdir -p n$n/m; echo n >n$n/m/x; done; \
                    ln -sfn d2 link; chmod 755 d4/f2 d4/f3; sed -i s/1/eins/ both";

const PERSON: &str = "sed -i s/5/five/ both";

/// What the child does: merges, or resumes what another child began.
fn merge_as_child(home: &Path) {
    let store = LayerStore::open(&home.join("state")).unwrap();
    let layer = store.list().unwrap().layers.pop().unwrap();
    let mut held = layer.hold().unwrap();
    let report = match held.layer().state() {
        LayerState::Merging => {
            say("ready");
            held.resume(merge_permit())
        }
        _ => {
            let plan = clear_plan(&held);
            say("ready");
            held.apply(merge_permit(), &plan)
        }
    };
    assert!(report.unwrap().retired);
    say("merged");
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{word}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Starts a child, lets it get as far as the moment, and kills it. Says how
/// long it took if it was done by then.
fn kill_at(test: &str, home: &Path, moment: Duration) -> Option<Duration> {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_ENV, home)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("ready")));
    assert!(ready.is_some(), "the child never got to work");
    let started = Instant::now();
    let waiting = thread::spawn(move || {
        // To the end, or the child would meet a closed pipe.
        lines.fold(None, |merged, line| {
            let is_merged = line.is_ok_and(|line| line == "merged");
            merged.or(is_merged.then(|| started.elapsed()))
        })
    });
    while started.elapsed() < moment && !waiting.is_finished() {
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    waiting.join().unwrap()
}

/// A stage on which the layer is done and the person has worked as well.
fn stage(kind: LayerKind) -> Stage {
    let stage = Stage::new(PROJECT);
    let held = stage.create(kind);
    stage.in_layer(&held, WORK);
    stage.in_project(PERSON);
    stage
}

fn hold(stage: &Stage) -> HeldLayer {
    let mut layers = stage.store.list().unwrap().layers;
    layers.pop().unwrap().hold().unwrap()
}

fn is_temporary(path: &str) -> bool {
    path.contains(".fluffy-lay_")
}

/// Every path is as it was before or as it should be after.
fn check_before_or_after(
    now: &BTreeMap<String, String>,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) {
    for path in before.keys().chain(after.keys()).chain(now.keys()) {
        let found = now.get(path);
        let is_either = found == before.get(path) || found == after.get(path);
        // Between the two steps of what changes its kind there is nothing; it
        // is still in the layer.
        let is_between = found.is_none() && ["d3", "d4/f1"].contains(&path.as_str());
        assert!(
            is_either || is_between || is_temporary(path),
            "{path}: {found:?}"
        );
    }
}

#[test]
fn a_killed_merge_loses_nothing() {
    const NAME: &str = "killed::a_killed_merge_loses_nothing";
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        return merge_as_child(Path::new(&home));
    }
    let seed = Seed::from_environment();
    let kinds = kinds();
    let expected = stage(LayerKind::Copy);
    let before = expected.files();
    // How long a whole merge takes here and now.
    let mut whole = kill_at(NAME, expected.home(), Duration::from_secs(600)).unwrap();
    let after = expected.files();
    assert_ne!(before, after);
    let mut interrupted = 0;
    for round in 0..campaign(20, 200) {
        let kind = kinds[usize::try_from(round).unwrap() % kinds.len()];
        let stage = stage(kind);
        assert_eq!(stage.files(), before);
        let mut layer_state = LayerState::Open;
        // The merge is killed, and so is what resumes it, up to three times.
        for attempt in 0..=seed.choice(round * 8) % 3 {
            let micros = u64::try_from(whole.as_micros()).unwrap().max(1);
            let moment = Duration::from_micros(seed.choice(round * 8 + 1 + attempt) % micros);
            if let Some(took) = kill_at(NAME, stage.home(), moment) {
                whole = took.max(Duration::from_millis(1));
            }
            check_before_or_after(&stage.files(), &before, &after);
            layer_state = stage.store.list().unwrap().layers[0].state();
            if matches!(layer_state, LayerState::Retired { .. }) {
                break;
            }
        }
        match layer_state {
            LayerState::Retired { .. } => {}
            LayerState::Merging => {
                interrupted += 1;
                let report = hold(&stage).resume(merge_permit()).unwrap();
                assert!(report.retired && report.troubles.is_empty(), "{report:#?}");
            }
            LayerState::Open => {
                assert_eq!(stage.files(), before, "round {round}");
                let mut held = hold(&stage);
                let plan = clear_plan(&held);
                assert!(held.apply(merge_permit(), &plan).unwrap().retired);
            }
        }
        assert_eq!(stage.files(), after, "round {round}, {kind:?}");
    }
    assert!(interrupted > 0, "no merge was ever interrupted");
}

#[test]
fn what_a_person_changes_before_the_resume_is_told_and_kept() {
    const NAME: &str = "killed::what_a_person_changes_before_the_resume_is_told_and_kept";
    if let Some(home) = std::env::var_os(CHILD_ENV) {
        return merge_as_child(Path::new(&home));
    }
    let seed = Seed::from_environment();
    let mut whole = Duration::from_millis(200);
    let deadline = Instant::now() + Duration::from_secs(300);
    for round in 0.. {
        assert!(
            Instant::now() < deadline,
            "no merge was interrupted in the middle"
        );
        let stage = stage(LayerKind::Copy);
        let before = stage.files();
        let micros = u64::try_from(whole.as_micros()).unwrap().max(1);
        let moment = Duration::from_micros(seed.choice(round) % micros);
        if let Some(took) = kill_at(NAME, stage.home(), moment) {
            whole = took.max(Duration::from_millis(1));
        }
        let now = stage.files();
        let layer_state = stage.store.list().unwrap().layers[0].state();
        // The last of the steps is still to do.
        if layer_state != LayerState::Merging || now.get("both") != before.get("both") {
            continue;
        }
        stage.in_project("echo mine >both; chmod 700 d4/f3");
        let mut held = hold(&stage);
        let report = held.resume(merge_permit()).unwrap();
        let told: Vec<_> = report
            .troubles
            .iter()
            .map(|trouble| (trouble.path.to_string(), trouble.trouble.clone()))
            .collect();
        assert_eq!(
            told,
            [
                ("both".to_owned(), Trouble::ProjectChanged),
                ("d4/f3".to_owned(), Trouble::ProjectChanged),
            ]
        );
        assert!(!report.retired);
        let files = stage.files();
        assert_eq!(files["both"], "644 mine\\n");
        assert!(files["d4/f3"].starts_with("700 "));
        assert!(files["d1/f1"].ends_with("new\\n"), "the rest was done");
        assert!(!files.keys().any(|path| is_temporary(path)));
        // And the layer still has what was not merged, as conflicts now.
        let plan = held.plan_merge().unwrap();
        let conflicts: Vec<String> = plan
            .conflicts()
            .iter()
            .map(|conflict| conflict.path.to_string())
            .collect();
        assert_eq!(conflicts, ["both", "d4/f3"]);
        assert!(plan.steps().is_empty(), "{:#?}", plan.steps());
        return;
    }
}
