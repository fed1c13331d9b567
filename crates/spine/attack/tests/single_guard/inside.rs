//! The half inside the throwaway: every attack twice.
//!
//! Must never count a control that did not run: a broken trial is wrong too.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use fluffy_attack::{
    Attack, CommandSubject, Egress, Ended, Guard, Isolated, Limits, Ran, Reason, Verdict, Word,
    run_all,
};
use fluffy_policy::word::Tier;

use crate::starter::STARTERS;

/// Where this program lives inside: a folder that sandboxes may see.
const PROGRAM: &str = "/opt/fluffy/single-guard";
/// Where the canaries are laid.
pub(crate) const GROUND: &str = "/home/ground";
/// In how many throwaways the attacks are played at a time: most of them
/// wait. Never two in one, where they would find each other's canaries.
pub(crate) const SHARES: usize = 3;
const EXCUSED: &str = include_str!("controls.txt");

/// Copies this program to where sandboxes can be shown it, and goes on there.
pub(crate) fn move_in(words: &[&str]) -> ExitCode {
    std::fs::create_dir(GROUND).unwrap();
    std::fs::create_dir(STARTERS).unwrap();
    std::fs::create_dir(Path::new(PROGRAM).parent().unwrap()).unwrap();
    std::fs::copy("/proc/self/exe", PROGRAM).unwrap();
    let status = Command::new(PROGRAM)
        .arg("controls")
        .args(words)
        .status()
        .unwrap();
    ExitCode::from(u8::from(!status.success()))
}

/// Plays a share of the named attacks, or of all.
pub(crate) fn controls(share: &str, names: &[&str]) -> ExitCode {
    let share: usize = share.parse().unwrap();
    let excused: BTreeMap<&str, &str> = EXCUSED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(": ").unwrap())
        .collect();
    let wanted = |attack: &&'static Attack| names.is_empty() || names.contains(&attack.name);
    let wrong: Vec<String> = fluffy_attack::all()
        .filter(wanted)
        .filter(|attack| !excused.contains_key(guard_key(attack.guard).as_str()))
        .skip(share)
        .step_by(SHARES)
        .filter_map(|attack| judge(attack, &excused))
        .collect();
    for line in &wrong {
        eprintln!("wrong: {line}");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// How an excused guard is spelled in the list.
fn guard_key(guard: Guard) -> String {
    format!("guard {guard}")
}

/// Plays one attack both ways; says what is wrong with that.
fn judge(attack: &'static Attack, excused: &BTreeMap<&str, &str>) -> Option<String> {
    let lacking: Vec<Guard> = std::iter::once(attack.guard)
        .chain(attack.also.iter().copied())
        .filter(|guard| !excused.contains_key(guard_key(*guard).as_str()))
        .collect();
    let began = Instant::now();
    let [whole, weakened] = [&[], lacking.as_slice()].map(|lacking| play(attack, lacking));
    let line = format!(
        "{}: whole {} ({}), without {}: {} ({}), in {:.1?}",
        attack.name,
        whole.name(),
        whole.because(),
        names(&lacking).replace(',', ", "),
        weakened.name(),
        weakened.because(),
        began.elapsed(),
    );
    println!("{line}");
    // What cannot be tried at all needs an excuse as well.
    let excuse = excused.contains_key(format!("attack {}", attack.name).as_str());
    let works = matches!(weakened, Verdict::Escaped { .. });
    let stands = match whole {
        Verdict::Stopped { .. } => true,
        Verdict::NotApplicable { .. } => excuse,
        Verdict::Escaped { .. } | Verdict::Broken { .. } => false,
    };
    let ran = !matches!(weakened, Verdict::Broken { .. });
    (!stands || !ran || works == excuse).then_some(line)
}

/// Plays it once; what rests on honest merges counts only if those arrive.
fn play(attack: &'static Attack, lacking: &[Guard]) -> Verdict {
    let subject = subject(attack, lacking);
    let report = run_all(&[attack], &[&subject], Path::new(GROUND), |_, _, _| {});
    // What a control could not remove is not to be found by the next one.
    let cleared = Command::new("sh")
        .args(["-c", "chmod -R u+rwx \"$0\" && rm -rf \"$0\"/*", STARTERS])
        .status();
    assert!(cleared.unwrap().success());
    report.rows[0].cells[0].verdict.clone()
}

fn names(guards: &[Guard]) -> String {
    let names: Vec<&str> = guards.iter().map(|guard| guard.name()).collect();
    names.join(",")
}

/// A sandbox that lacks these guards.
fn subject(attack: &Attack, lacking: &[Guard]) -> CommandSubject {
    // On a busy machine the clock must not stop what another guard should.
    let limits = Limits {
        time_ms: match attack.guard {
            Guard::TimeLimit => Limits::TRIAL.time_ms,
            _ => 30_000,
        },
        ..Limits::TRIAL
    };
    let time = limits.time_ms.to_string();
    let text = |word: &str| Word::Text(word.to_owned());
    let mut words = [PROGRAM, "start", &time, &names(lacking)]
        .map(text)
        .to_vec();
    let [merge, discard] = ["merge", "discard"].map(|word| vec![word.to_owned()]);
    words.push(Word::Aftermath(merge, discard));
    words.extend(["{project}", "--", PROGRAM, "attack"].map(text));
    words.push(Word::Arguments);
    CommandSubject {
        name: "native".to_owned(),
        version: String::new(),
        tier: Tier::Process,
        limits,
        words,
        egress: Egress::None,
        ending,
        isolation: Isolated::Yes,
        emptied: vec![STARTERS.into()],
    }
}

/// Reads a limit out of the starter's last words.
fn ending(ran: &Ran) -> Ended {
    let errors = String::from_utf8_lossy(&ran.errors);
    let said = |reason: &Reason| errors.contains(&format!("limit: {reason}\n"));
    let reasons = [
        Reason::Time,
        Reason::Memory,
        Reason::Pids,
        Reason::Output,
        Reason::Disk,
    ];
    let limit = reasons.into_iter().find(said);
    limit.map_or(ran.ended, |reason| Ended::Limit { reason })
}
