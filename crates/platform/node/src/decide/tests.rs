//! Every order of plans, failures, restarts of the agent and time.

use fluffy_planner::lifecycle::{Cause, InstanceStatus};
use proptest::prelude::*;

use super::*;

fn wanted(desired: Desired) -> Wanted {
    Wanted {
        desired,
        has_health: true,
        boot_ms: 60_000,
        start_ms: 120_000,
        recovery_ms: 30_000,
        drain_ms: 30_000,
        grace_ms: 10_000,
        restart: Restart {
            policy: Policy::Always,
            backoff_ms: 1_000,
            salt: 7,
        },
    }
}

fn exited(code: i32) -> Failure {
    Failure {
        reason: FailureReason::WorkloadExited,
        detail: String::new(),
        exit_code: Some(code),
        at_ms: None,
    }
}

/// What may happen to an instance from outside.
#[derive(Debug, Clone)]
enum Fate {
    /// The work that goes on ends well.
    Works,
    /// The work that goes on ends like this.
    Fails(FailureReason),
    WorkloadStarts,
    Well(bool),
    /// Whether a port of it that is open can be reached.
    Opens(bool),
    Exits(i32),
    FallsSilent,
    Later(u64),
    Desired(Desired),
    Connections(Option<u64>),
    /// The agent is killed and started again; what ran is there or not.
    AgentDies {
        alive: bool,
    },
}

fn fates() -> impl Strategy<Value = Fate> {
    let desired = prop_oneof![
        3 => Just(Desired::Running),
        1 => any::<bool>().prop_map(|stop_allowed| Desired::Draining { stop_allowed }),
        1 => Just(Desired::Stopped),
    ];
    let reasons = proptest::sample::select(FailureReason::ALL);
    prop_oneof![
        4 => Just(Fate::Works),
        2 => reasons.prop_map(Fate::Fails),
        3 => Just(Fate::WorkloadStarts),
        3 => any::<bool>().prop_map(Fate::Well),
        1 => any::<bool>().prop_map(Fate::Opens),
        2 => (0..3_i32).prop_map(Fate::Exits),
        1 => Just(Fate::FallsSilent),
        5 => (1..400_000_u64).prop_map(Fate::Later),
        1 => desired.prop_map(Fate::Desired),
        1 => proptest::option::of(0..3_u64).prop_map(Fate::Connections),
        1 => any::<bool>().prop_map(|alive| Fate::AgentDies { alive }),
    ]
}

/// A world with one instance in it.
#[derive(Debug)]
struct World {
    wanted: Wanted,
    seen: Observed,
    now: u64,
    /// What really runs, and what is really left on the host.
    runs: bool,
    left: bool,
    forgotten: bool,
    said: Vec<Status>,
    starts: Vec<u64>,
}

impl World {
    fn new(policy: Policy) -> Self {
        let mut wanted = wanted(Desired::Running);
        wanted.restart.policy = policy;
        Self {
            wanted,
            seen: Observed::default(),
            now: 1_000_000,
            runs: false,
            left: false,
            forgotten: false,
            said: Vec::new(),
            starts: Vec::new(),
        }
    }

    fn meet(&mut self, fate: &Fate) {
        let now = self.now;
        match fate {
            Fate::Works => match (&self.seen.image, &self.seen.run) {
                (Image::Working, _) => self.seen.image = Image::Here,
                (_, Run::Working) => {
                    (self.runs, self.left) = (true, true);
                    self.seen.run = Run::Up(Up {
                        since_ms: now,
                        workload_ms: None,
                        well: None,
                        unwell_ms: None,
                        silent: false,
                        unreached: None,
                    });
                }
                _ => {}
            },
            Fate::Fails(reason) => match (&self.seen.image, &self.seen.run) {
                (Image::Working, _) => {
                    self.seen.image = Image::Failed(Failure::new(*reason, "no"));
                }
                (_, Run::Working) => {
                    self.left = true;
                    self.seen.run = Run::Ended(Failure::new(*reason, "no"));
                }
                _ => {}
            },
            Fate::WorkloadStarts => {
                if let Run::Up(up) = &mut self.seen.run {
                    up.workload_ms.get_or_insert(now);
                }
            }
            Fate::Well(well) => {
                if let Run::Up(up) = &mut self.seen.run {
                    up.well = Some(*well).filter(|_| up.workload_ms.is_some());
                }
            }
            Fate::Opens(reached) => {
                if let Run::Up(up) = &mut self.seen.run {
                    up.unreached = (!reached).then(|| "nobody gets through".to_owned());
                }
            }
            Fate::Exits(code) => {
                if matches!(self.seen.run, Run::Up(_)) {
                    self.runs = false;
                    self.seen.run = Run::Ended(exited(*code));
                }
            }
            Fate::FallsSilent => {
                if let Run::Up(up) = &mut self.seen.run {
                    up.silent = true;
                }
            }
            Fate::Later(ms) => self.now += ms,
            Fate::Desired(desired) => {
                self.wanted.desired = *desired;
                let may = !matches!(
                    desired,
                    Desired::Running
                        | Desired::Draining {
                            stop_allowed: false
                        }
                );
                self.seen.stop_allowed_ms = may.then_some(now);
            }
            Fate::Connections(count) => self.seen.connections = *count,
            Fate::AgentDies { alive } => {
                let kept = serde_json::to_string(&self.seen).unwrap();
                self.seen = serde_json::from_str(&kept).unwrap();
                self.seen.awake(self.now);
                if matches!(self.seen.run, Run::Up(_)) && !alive {
                    self.runs = false;
                    let lost = Failure::new(FailureReason::VmmLost, "");
                    self.seen.run = Run::Ended(lost);
                }
            }
        }
    }

    /// Does what has to be done until there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            let step = decide(&self.wanted, &self.seen, self.now);
            assert_eq!(step, decide(&self.wanted, &self.seen, self.now));
            match step {
                Step::Wait(until) => {
                    assert!(
                        until.is_none_or(|until| until > self.now),
                        "waits for the past"
                    );
                    return;
                }
                Step::Forget => {
                    assert!(!self.runs && !self.left, "something is left: {self:?}");
                    self.forgotten = true;
                    return;
                }
                Step::Say(status, reason) => {
                    self.check(status);
                    assert_eq!(
                        reason.is_some(),
                        matches!(status, Status::Failed | Status::Unhealthy)
                            || (status == Status::Preparing && reason.is_some()),
                    );
                    self.seen.told(status, reason, self.now);
                    self.said.push(status);
                }
                Step::Prepare => self.seen.image = Image::Working,
                Step::Start => {
                    assert!(!self.runs && !self.left, "started on top of another");
                    assert_eq!(self.wanted.desired, Desired::Running);
                    self.starts.push(self.now);
                    self.seen.dirty = true;
                    self.seen.stop_ms = None;
                    self.seen.run = Run::Working;
                }
                Step::Abort => {
                    self.left = true;
                    self.seen.run = Run::Nothing;
                }
                Step::Stop => {
                    assert_ne!(
                        self.wanted.desired,
                        Desired::Draining {
                            stop_allowed: false
                        }
                    );
                    assert!(
                        self.seen.connections.is_none_or(|count| count == 0)
                            || self.wanted.desired == Desired::Stopped
                            || self.seen.is_leaving() && self.wanted.desired == Desired::Running
                            || self.now
                                >= self.seen.stop_allowed_ms.unwrap() + self.wanted.drain_ms
                    );
                    self.seen.stop_ms = Some(self.now);
                }
                Step::Kill(failure) => {
                    self.runs = false;
                    self.seen.run = Run::Ended(failure);
                }
                Step::Clean => {
                    assert!(!self.runs, "cleaned under a running instance");
                    self.left = false;
                    self.seen.dirty = false;
                }
            }
        }
        panic!("it never rests: {self:?}");
    }

    /// Whether the control plane takes this after what was said before.
    fn check(&self, next: Status) {
        let Some(before) = self.said.last() else {
            return;
        };
        let of = |status| match status {
            Status::Preparing => InstanceStatus::Preparing,
            Status::Booting => InstanceStatus::Booting,
            Status::Ready => InstanceStatus::Ready,
            Status::Unhealthy => InstanceStatus::Unhealthy,
            Status::Failed => InstanceStatus::Failed,
            Status::Draining => InstanceStatus::Draining,
            Status::Stopped => InstanceStatus::Stopped,
            Status::Collected => InstanceStatus::Collected,
        };
        let same = *before == next;
        let can = InstanceStatus::can(Some(of(*before)), of(next), Cause::Node);
        assert!(
            same || can.is_ok(),
            "{before:?} to {next:?} in {:?}",
            self.said
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_step_is_sound_and_the_end_is_clean(
        policy in prop_oneof![
            Just(Policy::Always),
            (0..4_u32).prop_map(Policy::OnFailure),
            Just(Policy::Never),
        ],
        fates in proptest::collection::vec(fates(), 0..120),
    ) {
        let mut world = World::new(policy);
        world.settle();
        for fate in &fates {
            if world.forgotten {
                break;
            }
            world.meet(fate);
            world.settle();
        }
        // Starts keep their distance, however often it fails.
        for six in world.starts.windows(7) {
            prop_assert!(six[6] - six[0] >= 1_000, "{:?}", world.starts);
        }
        // Once it is not wanted, time alone takes it away.
        world.meet(&Fate::Desired(Desired::Stopped));
        world.settle();
        for _ in 0..8 {
            world.meet(&Fate::Later(60_000));
            world.settle();
        }
        prop_assert!(world.forgotten, "{world:?}");
        prop_assert_eq!(world.said.last(), Some(&Status::Collected));
    }

    #[test]
    fn what_is_wanted_and_works_becomes_ready(
        fates in proptest::collection::vec(fates(), 0..60),
    ) {
        let mut world = World::new(Policy::Always);
        world.settle();
        for fate in fates.iter().filter(|fate| !matches!(fate, Fate::Desired(_))) {
            world.meet(fate);
            world.settle();
        }
        // A new revision of the plan, after which nothing goes wrong.
        world.seen.revised();
        for _ in 0..12 {
            for fate in [Fate::Later(300_000), Fate::Works, Fate::WorkloadStarts, Fate::Well(true)] {
                world.meet(&fate);
                world.settle();
            }
        }
        prop_assert_eq!(world.seen.said, Some(Status::Ready));
    }
}

/// Starts of something that ends at once, each as soon as it may, in this time.
fn starts_within(policy: Policy, code: i32, ms: u64) -> Vec<u64> {
    let mut world = World::new(policy);
    let begin = world.now;
    while world.now < begin + ms {
        world.settle();
        match (&world.seen.image, &world.seen.run) {
            (Image::Working, _) | (_, Run::Working) => world.meet(&Fate::Works),
            (_, Run::Up(_)) => world.meet(&Fate::Exits(code)),
            _ => match decide(&world.wanted, &world.seen, world.now) {
                Step::Wait(Some(until)) => world.now = until,
                _ => break,
            },
        }
    }
    world.starts
}

#[test]
fn a_crash_loop_is_tried_once_in_five_minutes() {
    let starts = starts_within(Policy::Always, 1, 3_600_000);
    let pauses: Vec<u64> = starts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!((800..=1_200).contains(&pauses[0]), "{pauses:?}");
    assert!((1_600..=2_400).contains(&pauses[1]), "{pauses:?}");
    assert!((6_400..=9_600).contains(&pauses[3]), "{pauses:?}");
    assert!(
        pauses[4..9].iter().all(|pause| *pause >= 240_000),
        "{pauses:?}"
    );
    assert!(starts.len() < 20, "{}", starts.len());
}

#[test]
fn a_policy_says_which_endings_count() {
    let hour = 3_600_000;
    assert_eq!(starts_within(Policy::Never, 1, hour).len(), 1);
    assert_eq!(starts_within(Policy::OnFailure(5), 0, hour).len(), 1);
    assert_eq!(starts_within(Policy::OnFailure(2), 1, hour).len(), 3);
    assert!(starts_within(Policy::Always, 0, hour).len() > 5);
}

#[test]
fn the_fifth_failure_is_called_a_loop_with_its_cause() {
    let mut seen = Observed::default();
    for failure in 0..5_u64 {
        let now = failure * 1000;
        let named = looping(&seen, &exited(3), now);
        let is_loop = named.reason == FailureReason::CrashLoopBackoff;
        assert_eq!(is_loop, failure == 4, "{named:?}");
        seen.told(Status::Failed, Some(named), now);
    }
    let (_, last) = seen.past.last.clone().unwrap();
    assert_eq!(
        (last.detail.as_str(), last.exit_code),
        ("workload_exited", Some(3))
    );
}

#[test]
fn a_root_that_cannot_be_used_is_made_again() {
    let mut world = World::new(Policy::Always);
    world.settle();
    for fate in [
        Fate::Works,
        Fate::Fails(FailureReason::RootfsBuildFailed),
        Fate::Later(LONGEST_MS),
    ] {
        world.meet(&fate);
        world.settle();
    }
    assert_eq!(world.seen.image, Image::Working, "{world:?}");
    // The control: what is nobody's fault there leaves it as it is.
    let mut world = World::new(Policy::Always);
    world.settle();
    for fate in [
        Fate::Works,
        Fate::Fails(FailureReason::NetworkSetupFailed),
        Fate::Later(LONGEST_MS),
    ] {
        world.meet(&fate);
        world.settle();
    }
    assert_eq!(world.seen.image, Image::Here, "{world:?}");
}

#[test]
fn a_clock_that_was_set_back_delays_nothing() {
    const HOUR: u64 = 3_600_000;
    let now = 1_000_000;
    let up = |workload_ms| {
        Run::Up(Up {
            since_ms: now + HOUR,
            workload_ms,
            well: None,
            unwell_ms: None,
            silent: false,
            unreached: None,
        })
    };
    let running = |run| Observed {
        said: Some(Status::Booting),
        image: Image::Here,
        run,
        ..Observed::default()
    };
    let mut failed = Observed::default();
    failed.told(Status::Failed, Some(exited(1)), now + HOUR);
    let leaving = Observed {
        said: Some(Status::Draining),
        stop_allowed_ms: Some(now + HOUR),
        connections: Some(1),
        ..running(up(Some(now + HOUR)))
    };
    let ending = Observed {
        stop_ms: Some(now + HOUR),
        ..leaving.clone()
    };
    let going = Desired::Draining { stop_allowed: true };
    let all = [
        (Desired::Running, failed, 1_200),
        (Desired::Running, running(up(None)), 60_000),
        (Desired::Running, running(up(Some(now + HOUR))), 120_000),
        (going, leaving, 30_000),
        (going, ending, 15_000),
    ];
    for (desired, mut seen, most) in all {
        let pause = |seen: &Observed| match decide(&wanted(desired), seen, now) {
            Step::Wait(Some(until)) => until - now,
            step => panic!("{step:?} for {seen:?}"),
        };
        // The control: as it is, it would wait for the hour as well.
        assert!(pause(&seen) > HOUR, "{seen:?}");
        seen.awake(now);
        assert!(pause(&seen) <= most, "{seen:?}");
    }
}

#[test]
fn ten_healthy_minutes_are_forgiven() {
    let mut seen = Observed::default();
    for now in [0, 1_000, 2_000] {
        seen.told(Status::Failed, Some(exited(1)), now);
    }
    assert_eq!(seen.past.streak, 3);
    seen.told(Status::Booting, None, 3_000);
    seen.told(Status::Ready, None, 4_000);
    seen.told(Status::Failed, Some(exited(1)), 4_000 + STEADY_MS);
    assert_eq!((seen.past.streak, seen.past.failures.len()), (1, 1));
}

#[test]
fn what_nobody_gets_through_to_is_not_called_ready_and_says_why() {
    for has_health in [false, true] {
        let mut world = World::new(Policy::Always);
        world.wanted.has_health = has_health;
        let fates = [
            Fate::Works,
            Fate::Works,
            Fate::WorkloadStarts,
            Fate::Later(ALIVE_MS),
            Fate::Well(true),
        ];
        for fate in fates {
            world.settle();
            world.meet(&fate);
        }
        world.settle();
        assert_eq!(world.seen.said, Some(Status::Ready), "{world:?}");
        world.meet(&Fate::Opens(false));
        world.meet(&Fate::Well(false));
        world.settle();
        assert_eq!(world.seen.said, Some(Status::Unhealthy), "{world:?}");
        let reason = world.seen.reason.clone().unwrap();
        assert_eq!(reason.detail, "nobody gets through");
        world.meet(&Fate::Opens(true));
        world.meet(&Fate::Well(true));
        world.settle();
        assert_eq!(world.seen.said, Some(Status::Ready), "{world:?}");
    }
}

/// Something that was well and is not any more.
fn unwell(policy: Policy) -> World {
    let mut world = World::new(policy);
    for fate in [
        Fate::Works,
        Fate::Works,
        Fate::WorkloadStarts,
        Fate::Well(true),
        Fate::Well(false),
    ] {
        world.settle();
        world.meet(&fate);
    }
    world.settle();
    assert_eq!(world.seen.said, Some(Status::Unhealthy), "{world:?}");
    world
}

fn later(world: &mut World, ms: u64) {
    world.meet(&Fate::Later(ms));
    world.settle();
}

#[test]
fn what_stays_unwell_is_started_again_and_what_recovers_is_not() {
    let mut world = unwell(Policy::Always);
    later(&mut world, 29_999);
    assert!(world.runs, "it may still recover");
    later(&mut world, 1);
    assert!(!world.runs);
    assert_eq!(world.seen.said, Some(Status::Failed));
    let (_, last) = world.seen.past.last.clone().unwrap();
    assert_eq!(last.reason, FailureReason::HealthcheckFailed);
    later(&mut world, 2_000);
    assert_eq!(world.starts.len(), 2, "{world:?}");
    // The control: it was well for a moment, and has all its time again.
    let mut world = unwell(Policy::Always);
    later(&mut world, 29_999);
    world.meet(&Fate::Well(true));
    world.settle();
    world.meet(&Fate::Well(false));
    later(&mut world, 29_999);
    assert!(world.runs && world.seen.said == Some(Status::Unhealthy));
    // And the time in which nobody asked it is nobody's judgement.
    world.meet(&Fate::Later(60_000));
    world.meet(&Fate::AgentDies { alive: true });
    world.settle();
    assert!(world.runs, "{world:?}");
    later(&mut world, 30_000);
    assert!(!world.runs);
}

#[test]
fn what_hangs_again_and_again_is_a_crash_loop_and_its_policy_counts() {
    let mut world = unwell(Policy::Always);
    for _ in 0..4 {
        later(&mut world, 30_000);
        let Step::Wait(Some(until)) = decide(&world.wanted, &world.seen, world.now) else {
            panic!("it does not wait: {world:?}");
        };
        world.now = until;
        for fate in [
            Fate::Works,
            Fate::WorkloadStarts,
            Fate::Well(true),
            Fate::Well(false),
        ] {
            world.settle();
            world.meet(&fate);
        }
        world.settle();
    }
    later(&mut world, 30_000);
    let reason = world.seen.reason.clone().unwrap();
    assert_eq!(reason.reason, FailureReason::CrashLoopBackoff, "{world:?}");
    assert!(
        reason.detail.starts_with("healthcheck_failed"),
        "{reason:?}"
    );
    let mut world = unwell(Policy::Never);
    later(&mut world, 30_000);
    later(&mut world, LONGEST_MS);
    assert!(world.seen.said == Some(Status::Failed) && world.starts.len() == 1);
}

#[test]
fn only_a_check_that_fails_ends_what_is_unwell() {
    // A port that leads nowhere, where nobody asks.
    let mut world = World::new(Policy::Always);
    world.wanted.has_health = false;
    for fate in [
        Fate::Works,
        Fate::Works,
        Fate::WorkloadStarts,
        Fate::Later(ALIVE_MS),
        Fate::Opens(false),
    ] {
        world.settle();
        world.meet(&fate);
    }
    later(&mut world, LONGEST_MS);
    later(&mut world, LONGEST_MS);
    assert!(world.runs, "{world:?}");
    // Nothing is known of it.
    let mut world = unwell(Policy::Always);
    if let Run::Up(up) = &mut world.seen.run {
        up.well = None;
    }
    later(&mut world, LONGEST_MS);
    assert!(world.runs, "{world:?}");
}

#[test]
fn waiting_for_a_registry_is_no_crash() {
    let away = || Failure::new(FailureReason::RegistryUnavailable, "away");
    let mut world = World::new(Policy::OnFailure(2));
    world.settle();
    let begin = world.now;
    // A quarter of an hour in which nobody has the image.
    let mut tries = 0;
    while world.now < begin + 900_000 {
        world.meet(&Fate::Fails(FailureReason::RegistryUnavailable));
        world.settle();
        tries += 1;
        let Step::Wait(Some(until)) = decide(&world.wanted, &world.seen, world.now) else {
            panic!("it does not wait: {world:?}");
        };
        assert!(until - world.now <= 36_000, "it is tried again soon");
        world.now = until;
        world.settle();
    }
    assert!((25..60).contains(&tries), "{tries}");
    assert_eq!(world.seen.reason, Some(Failure::new(away().reason, "no")));
    assert!(world.said.iter().all(|said| *said == Status::Preparing));
    // The first exit after it is an exit like any other.
    for fate in [Fate::Works, Fate::Works, Fate::Exits(1)] {
        world.meet(&fate);
        world.settle();
    }
    let (at, last) = world.seen.past.last.clone().unwrap();
    assert_eq!(last.reason, FailureReason::WorkloadExited);
    assert_eq!(
        (world.seen.past.streak, world.seen.past.failures.len()),
        (1, 1)
    );
    let again = world.seen.past.again(&world.wanted.restart).unwrap();
    assert!((800..=1_200).contains(&(again - at)), "the first pause");
}

#[test]
fn failures_of_the_host_use_up_no_tries_of_the_workload() {
    let mut seen = Observed::default();
    for now in 0..20 {
        let lost = Failure::new(FailureReason::VmmLost, "");
        seen.told(Status::Failed, Some(lost), now * 1_000);
    }
    assert!((seen.past.streak, seen.past.failures.len()) == (0, 0));
    assert!(!seen.past.loops_with(20_000));
    // The pause grows all the same.
    let restart = wanted(Desired::Running).restart;
    let again = seen.past.again(&restart).unwrap();
    assert!(again - 19_000 >= LONGEST_MS * 8 / 10, "{again}");
}
