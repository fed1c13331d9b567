//! What an instance needs next: pure.
//!
//! One function from what is wanted, what was observed and the time to one
//! step. A step may be repeated, and doing it changes what is observed, so the
//! way on never depends on what a process remembers. Next: `instance`, which
//! does the steps.

use fluffy_planner::reason::{FailureClass, FailureReason};
use serde::{Deserialize, Serialize};

/// How long something without a health check has to stay up to be ready.
const ALIVE_MS: u64 = 1_000;

/// What a guest may take beyond its grace to end.
const END_MS: u64 = 5_000;

/// The longest pause before a start, and that of a crash loop.
const LONGEST_MS: u64 = 300_000;

/// The longest pause while it waits for something that is nobody's fault here.
const WAIT_MS: u64 = 30_000;

/// Five failures in this time are a crash loop.
const LOOP: (usize, u64) = (5, 600_000);

/// After so long without a failure, nothing is held against it.
const STEADY_MS: u64 = 600_000;

/// What the plan says of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What it shall be.
    pub desired: Desired,
    /// Whether it is asked if it is well.
    pub has_health: bool,
    /// How long from its start to its workload's, in milliseconds.
    pub boot_ms: u64,
    /// How long from its workload's start to health.
    pub start_ms: u64,
    /// How long it may be unwell before it is ended, if it is asked at all.
    pub recovery_ms: u64,
    /// How long connections may stay once it may stop.
    pub drain_ms: u64,
    /// How long it has to end by itself.
    pub grace_ms: u64,
    /// Whether and when it starts again.
    pub restart: Restart,
}

/// What an instance shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Desired {
    /// Up.
    Running,
    /// On its way out; it may stop once nobody sends it connections.
    Draining {
        /// Whether that is so.
        stop_allowed: bool,
    },
    /// Gone.
    Stopped,
}

/// Whether and when an instance starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// After which endings.
    pub policy: Policy,
    /// The first pause, in milliseconds.
    pub backoff_ms: u64,
    /// Makes pauses of different instances differ.
    pub salt: u64,
}

/// After which endings an instance starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// After all.
    Always,
    /// After failures, so many times.
    OnFailure(u32),
    /// After none.
    Never,
}

/// What was said of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its image is being made ready.
    Preparing,
    /// It starts.
    Booting,
    /// It is up and well.
    Ready,
    /// It is up and not well.
    Unhealthy,
    /// It ended, or never started.
    Failed,
    /// It is on its way out.
    Draining,
    /// It does not run any more.
    Stopped,
    /// Nothing of it is left.
    Collected,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The code.
    pub reason: FailureReason,
    /// What exactly, for people.
    pub detail: String,
    /// What the workload ended with, if it did.
    pub exit_code: Option<i32>,
    /// When it was, if nobody saw it then.
    #[serde(default)]
    pub at_ms: Option<u64>,
}

/// What is known of an instance; kept on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// What was said of it last.
    pub said: Option<Status>,
    /// The reason that was said with it.
    pub reason: Option<Failure>,
    /// Where its image stands.
    pub image: Image,
    /// What runs.
    pub run: Run,
    /// Whether the host may still have something of it: processes, mounts,
    /// interfaces, folders.
    pub dirty: bool,
    /// Since when it may stop.
    pub stop_allowed_ms: Option<u64>,
    /// When it was told to end.
    pub stop_ms: Option<u64>,
    /// Connections that it still has, where somebody counts them.
    pub connections: Option<u64>,
    /// What is held against it.
    pub past: Past,
}

/// Where an instance's image stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Image {
    /// Nobody asked for it yet.
    #[default]
    Unknown,
    /// Somebody fetches it.
    Working,
    /// It is here and stays.
    Here,
    /// It did not come.
    Failed(Failure),
}

/// What runs of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Run {
    /// Nothing.
    #[default]
    Nothing,
    /// It is being started.
    Working,
    /// It is there.
    Up(Up),
    /// It ended.
    Ended(Failure),
}

/// An instance that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Up {
    /// Since when.
    pub since_ms: u64,
    /// Since when its workload runs, if it does.
    pub workload_ms: Option<u64>,
    /// Whether it is well, as far as anybody knows.
    pub well: Option<bool>,
    /// Since when it is said to be unwell, if it is.
    #[serde(default)]
    pub unwell_ms: Option<u64>,
    /// Whether it does not answer any more.
    pub silent: bool,
    /// Why nobody gets through to a port of it that is open, if that is so.
    #[serde(default)]
    pub unreached: Option<String>,
}

/// What is held against an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// When its workload failed lately.
    pub failures: Vec<u64>,
    /// How often in a row.
    pub streak: u32,
    /// How often in a row something failed that is not the workload's: a
    /// pause grows with it, and nothing else does.
    #[serde(default)]
    pub waits: u32,
    /// Whether that is a crash loop; it is until it was well for long enough.
    pub looping: bool,
    /// How it failed last, before the next start.
    pub last: Option<(u64, Failure)>,
    /// Since when it is up and well.
    pub ready_ms: Option<u64>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Say where it stands.
    Say(Status, Option<Failure>),
    /// Make its image ready.
    Prepare,
    /// Start it.
    Start,
    /// Give up starting it.
    Abort,
    /// Tell it to end.
    Stop,
    /// End it, because of this.
    Kill(Failure),
    /// Remove what is left of it.
    Clean,
    /// Nothing is left to do, ever.
    Forget,
    /// Nothing to do until something happens or it is so late.
    Wait(Option<u64>),
}

impl Failure {
    /// A failure of the platform's own making.
    #[must_use]
    pub fn new(reason: FailureReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            exit_code: None,
            at_ms: None,
        }
    }
}

impl Observed {
    /// Whether it is on its way out, from which there is no way back.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        matches!(
            self.said,
            Some(Status::Draining | Status::Stopped | Status::Collected)
        )
    }

    /// Whether commands can be run in it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.said, Some(Status::Ready | Status::Unhealthy))
            && matches!(self.run, Run::Up(_))
    }

    /// What is true of it after something was said.
    pub fn told(&mut self, status: Status, reason: Option<Failure>, now: u64) {
        match status {
            Status::Ready if self.said != Some(Status::Unhealthy) => {
                self.past.ready_ms = Some(now);
            }
            Status::Failed | Status::Preparing => {
                if let Some(failure) = &reason {
                    self.count(failure.clone(), now);
                }
            }
            Status::Booting => {
                self.past.last = None;
                if self.said == Some(Status::Preparing) {
                    // What it waited for is here.
                    self.past.waits = 0;
                }
            }
            _ => {}
        }
        self.said = Some(status);
        self.reason = reason;
        self.unwell_since(now);
    }

    /// Begins to count how long it is unwell, or stops.
    fn unwell_since(&mut self, now: u64) {
        let unwell = self.said == Some(Status::Unhealthy);
        if let Run::Up(up) = &mut self.run {
            up.unwell_ms = unwell.then_some(now);
        }
    }

    /// Holds a failure against it; what caused it is over.
    fn count(&mut self, failure: Failure, now: u64) {
        let steady = self.past.ready_ms.take();
        if steady.is_some_and(|since| now.saturating_sub(since) >= STEADY_MS) {
            self.past = Past::default();
        }
        self.past.looping |= failure.reason == FailureReason::CrashLoopBackoff;
        self.past
            .failures
            .retain(|then| now.saturating_sub(*then) < LOOP.1);
        // Only a workload that fails is a loop, or has no tries left.
        if failure.reason.class() == FailureClass::App {
            self.past.failures.push(now);
            self.past.streak = self.past.streak.saturating_add(1);
            self.past.waits = 0;
        } else {
            self.past.waits = self.past.waits.saturating_add(1);
        }
        // A root that cannot be used may be gone, and is looked for again.
        let no_root = failure.reason == FailureReason::RootfsBuildFailed;
        self.past.last = Some((now, failure));
        if no_root || matches!(self.image, Image::Failed(_)) {
            self.image = Image::Unknown;
        }
        if matches!(self.run, Run::Ended(_)) {
            self.run = Run::Nothing;
        }
    }

    /// What was true before the agent ended and is not now: nobody works at
    /// anything, what was half started is cleaned, and nothing was later than
    /// now, whatever was done to the clock.
    pub fn awake(&mut self, now: u64) {
        self.for_each_time(|at| *at = now.min(*at));
        if self.image == Image::Working {
            self.image = Image::Unknown;
        }
        if self.run == Run::Working {
            self.run = Run::Nothing;
            self.dirty = true;
        }
        // Nobody asked it meanwhile.
        self.unwell_since(now);
    }

    /// All that is known to have been at some time.
    fn for_each_time(&mut self, change: impl FnMut(&mut u64)) {
        let up = match &mut self.run {
            Run::Up(up) => Some(up),
            Run::Nothing | Run::Working | Run::Ended(_) => None,
        };
        let up = up.map(|up| [Some(&mut up.since_ms), up.workload_ms.as_mut()]);
        let past = &mut self.past;
        let others = [
            self.stop_allowed_ms.as_mut(),
            self.stop_ms.as_mut(),
            past.last.as_mut().map(|(at, _)| at),
            past.ready_ms.as_mut(),
        ];
        let all = up.into_iter().flatten().chain(others).flatten();
        all.chain(&mut past.failures).for_each(change);
    }

    /// A new revision of the plan: what waited for it tries again.
    pub fn revised(&mut self) {
        self.past = Past::default();
    }
}

impl Past {
    /// Whether one more failure now makes it a crash loop.
    fn loops_with(&self, now: u64) -> bool {
        let steady = self.ready_ms.map(|since| now.saturating_sub(since));
        if steady.is_some_and(|ms| ms >= STEADY_MS) {
            return false;
        }
        let recent = self
            .failures
            .iter()
            .filter(|then| now.saturating_sub(**then) < LOOP.1);
        self.looping || recent.count() + 1 >= LOOP.0
    }

    /// When it may start again; `None` if never.
    fn again(&self, restart: &Restart) -> Option<u64> {
        let Some((at, failure)) = &self.last else {
            return Some(0);
        };
        match failure.reason.class() {
            FailureClass::Config | FailureClass::Platform => return None,
            FailureClass::Host => {}
            FailureClass::App => match restart.policy {
                Policy::Always => {}
                Policy::Never => return None,
                Policy::OnFailure(_) if failure.exit_code == Some(0) => return None,
                Policy::OnFailure(most) if self.streak > most => return None,
                Policy::OnFailure(_) => {}
            },
        }
        if failure.reason == FailureReason::CrashLoopBackoff {
            return Some(at.saturating_add(LONGEST_MS));
        }
        Some(at.saturating_add(self.pause(restart, failure.reason)))
    }

    /// Doubles with each failure in a row; a fifth more or less, so that what
    /// fell together does not rise together.
    fn pause(&self, restart: &Restart, reason: FailureReason) -> u64 {
        let (times, longest) = match reason.class() {
            FailureClass::App => (self.streak, LONGEST_MS),
            _ if is_awaited(reason) => (self.waits, WAIT_MS),
            _ => (self.waits, LONGEST_MS),
        };
        let doubled = 2_u64.saturating_pow(times.saturating_sub(1).min(32));
        let pause = restart.backoff_ms.saturating_mul(doubled);
        let pause = pause.min(longest);
        let mixed = (restart.salt ^ u64::from(times)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let permille = 800 + (mixed >> 32) % 401;
        pause * permille / 1000
    }
}

/// The next step of an instance.
#[must_use]
pub fn decide(wanted: &Wanted, seen: &Observed, now: u64) -> Step {
    match wanted.desired {
        Desired::Running if !seen.is_leaving() => rise(wanted, seen, now),
        _ => leave(wanted, seen, now),
    }
}

/// On the way to being ready, and staying so.
fn rise(wanted: &Wanted, seen: &Observed, now: u64) -> Step {
    match &seen.run {
        Run::Working => Step::Wait(None),
        Run::Up(up) => watch(wanted, seen, up, now),
        Run::Ended(failure) => Step::Say(Status::Failed, Some(looping(seen, failure, now))),
        Run::Nothing if seen.dirty => Step::Clean,
        Run::Nothing => match seen.past.again(&wanted.restart) {
            None => Step::Wait(None),
            Some(at) if now < at => Step::Wait(Some(at)),
            Some(_) => begin(seen, now),
        },
    }
}

fn begin(seen: &Observed, now: u64) -> Step {
    match &seen.image {
        _ if seen.said.is_none() => Step::Say(Status::Preparing, None),
        Image::Unknown => Step::Prepare,
        Image::Working => Step::Wait(None),
        // It is nobody's fault here, and no start was tried.
        Image::Failed(failure)
            if is_awaited(failure.reason) && seen.said == Some(Status::Preparing) =>
        {
            Step::Say(Status::Preparing, Some(failure.clone()))
        }
        Image::Failed(failure) => Step::Say(Status::Failed, Some(looping(seen, failure, now))),
        Image::Here if seen.said != Some(Status::Booting) => Step::Say(Status::Booting, None),
        Image::Here => Step::Start,
    }
}

/// Whether it is only to be waited for: somebody else is away.
const fn is_awaited(reason: FailureReason) -> bool {
    matches!(
        reason,
        FailureReason::RegistryUnavailable | FailureReason::SecretsKeyUnavailable
    )
}

/// What a failure is called: one too many of the app's own is a loop.
fn looping(seen: &Observed, failure: &Failure, now: u64) -> Failure {
    if failure.reason.class() != FailureClass::App || !seen.past.loops_with(now) {
        return failure.clone();
    }
    let detail = match failure.detail.as_str() {
        "" => failure.reason.to_string(),
        detail => format!("{}: {detail}", failure.reason),
    };
    Failure {
        reason: FailureReason::CrashLoopBackoff,
        detail,
        exit_code: failure.exit_code,
        at_ms: failure.at_ms,
    }
}

fn watch(wanted: &Wanted, seen: &Observed, up: &Up, now: u64) -> Step {
    if up.silent {
        let why = "the guest did not answer in time";
        return Step::Kill(Failure::new(FailureReason::GuestUnresponsive, why));
    }
    let Some(workload) = up.workload_ms else {
        let until = up.since_ms.saturating_add(wanted.boot_ms);
        return match now < until {
            true => Step::Wait(Some(until)),
            false => Step::Kill(Failure::new(
                FailureReason::BootTimeout,
                "the workload was not started in time",
            )),
        };
    };
    let well = match (wanted.has_health, up.well) {
        (true, well) => well,
        // Nobody asks it, but a port that leads nowhere is not routed to.
        (false, _) if matches!(seen.said, Some(Status::Ready | Status::Unhealthy)) => {
            Some(up.unreached.is_none())
        }
        (false, _) => Some(now >= workload.saturating_add(ALIVE_MS)),
    };
    match (seen.said, well) {
        (Some(Status::Ready), Some(false)) => Step::Say(
            Status::Unhealthy,
            Some(unwell(up, "the health check fails")),
        ),
        (Some(Status::Unhealthy), Some(false)) if wanted.has_health => {
            let since = up.unwell_ms.unwrap_or(now);
            let until = since.saturating_add(wanted.recovery_ms);
            match now < until {
                true => Step::Wait(Some(until)),
                false => Step::Kill(unwell(up, "the health check went on failing")),
            }
        }
        // A port that leads nowhere is no judgement of the workload, and no
        // answer yet is none either.
        (Some(Status::Ready), _) | (Some(Status::Unhealthy), Some(false) | None) => {
            Step::Wait(None)
        }
        (_, Some(true)) => Step::Say(Status::Ready, None),
        (_, Some(false)) if !wanted.has_health => {
            Step::Wait(Some(workload.saturating_add(ALIVE_MS)))
        }
        (_, Some(false) | None) => {
            let until = workload.saturating_add(wanted.start_ms);
            match now < until {
                true => Step::Wait(Some(until)),
                false => Step::Kill(unwell(up, "the health check did not pass in time")),
            }
        }
    }
}

/// What is to be put right says more than what was seen.
fn unwell(up: &Up, seen: &str) -> Failure {
    let detail = up.unreached.as_deref().unwrap_or(seen);
    Failure::new(FailureReason::HealthcheckFailed, detail)
}

/// On the way out.
fn leave(wanted: &Wanted, seen: &Observed, now: u64) -> Step {
    match seen.said {
        Some(Status::Collected) => Step::Forget,
        Some(Status::Stopped) if seen.dirty => Step::Clean,
        Some(Status::Stopped) => Step::Say(Status::Collected, None),
        Some(Status::Draining) => match &seen.run {
            Run::Nothing | Run::Ended(_) => Step::Say(Status::Stopped, None),
            Run::Working => Step::Abort,
            Run::Up(up) if up.silent => end_now(),
            Run::Up(_) => end(wanted, seen, now),
        },
        _ => Step::Say(Status::Draining, None),
    }
}

fn end(wanted: &Wanted, seen: &Observed, now: u64) -> Step {
    if wanted.desired
        == (Desired::Draining {
            stop_allowed: false,
        })
    {
        return Step::Wait(None);
    }
    if let Some(told) = seen.stop_ms {
        let until = told.saturating_add(wanted.grace_ms).saturating_add(END_MS);
        return match now < until {
            true => Step::Wait(Some(until)),
            false => end_now(),
        };
    }
    let since = seen.stop_allowed_ms.unwrap_or(now);
    let until = since.saturating_add(wanted.drain_ms);
    match seen.connections {
        Some(1..) if now < until && wanted.desired != Desired::Stopped => Step::Wait(Some(until)),
        _ => Step::Stop,
    }
}

/// What ended because it had to is no failure of its own.
fn end_now() -> Step {
    let why = "it did not end in time";
    Step::Kill(Failure::new(FailureReason::WorkloadExited, why))
}

#[cfg(test)]
mod tests;
