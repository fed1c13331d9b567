//! A machine as it really is, whatever the control plane believes.
//!
//! It runs guests, loses power, loses its connection, is slow, and says what
//! happened in numbered reports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fluffy_base::id::{InstanceId, VolumeId};
use fluffy_planner::lifecycle::InstanceStatus;
use fluffy_planner::model::{Desired, Instance};
use fluffy_planner::reason::FailureReason;
use fluffy_test_kit::Random;

/// What instances of a release are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They start and run.
    Good,
    /// They boot for ever.
    NeverReady,
    /// They end at once, again and again.
    Crashes,
    /// Their image is too large.
    TooLarge,
    /// They start, and hang after a while.
    Hangs,
    /// Their secrets never reach them.
    LacksSecrets,
}

/// What a machine says of an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) instance: InstanceId,
    pub(crate) number: u64,
    pub(crate) status: InstanceStatus,
    pub(crate) reason: Option<FailureReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Connected,
    /// It runs, but nobody hears it.
    Cut,
    /// It has no power.
    Off,
}

#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub(crate) status: InstanceStatus,
    pub(crate) volumes: BTreeSet<VolumeId>,
    fate: Fate,
    since: i64,
    wait: i64,
    reports: u64,
    crashes: u32,
    /// What the machine was last told.
    wanted: Desired,
}

pub(crate) struct Machine {
    pub(crate) link: Link,
    pub(crate) link_until: i64,
    pub(crate) heard: i64,
    pub(crate) guests: BTreeMap<InstanceId, Guest>,
    /// What it has cleared away and does not make again.
    gone: BTreeSet<InstanceId>,
    pub(crate) outbox: VecDeque<Report>,
    /// A slow machine takes this many times as long.
    pub(crate) slowness: i64,
}

impl Machine {
    pub(crate) fn new(slowness: i64) -> Self {
        Self {
            link: Link::Connected,
            link_until: 0,
            heard: 0,
            guests: BTreeMap::new(),
            gone: BTreeSet::new(),
            outbox: VecDeque::new(),
            slowness,
        }
    }

    /// Hears what is wanted of the instances that it has.
    pub(crate) fn listen<'a>(
        &mut self,
        wanted: impl Iterator<Item = (InstanceId, &'a Instance, Fate)>,
        now: i64,
    ) {
        for (id, instance, fate) in wanted {
            if self.gone.contains(&id) {
                continue;
            }
            let guest = self.guests.entry(id).or_insert_with(|| Guest {
                status: InstanceStatus::Allocated,
                volumes: instance.volumes.clone(),
                fate,
                since: now,
                wait: 1,
                reports: 0,
                crashes: 0,
                wanted: instance.desired,
            });
            guest.wanted = instance.desired;
        }
    }

    /// Everything that was running has died with the power.
    pub(crate) fn lose_power(&mut self, now: i64) {
        let ids: Vec<InstanceId> = self.guests.keys().copied().collect();
        for id in ids {
            match self.guests[&id].status {
                InstanceStatus::Preparing
                | InstanceStatus::Booting
                | InstanceStatus::Ready
                | InstanceStatus::Unhealthy => {
                    let reason = Some(FailureReason::WorkloadExited);
                    self.change(id, InstanceStatus::Failed, reason, (now, 3));
                }
                InstanceStatus::Draining => {
                    self.change(id, InstanceStatus::Stopped, None, (now, 0));
                }
                _ => {}
            }
        }
    }

    /// Says once more where everything stands: the server has lost track.
    pub(crate) fn say_again(&mut self) {
        let ids: Vec<InstanceId> = self.guests.keys().copied().collect();
        for id in ids {
            let guest = self.guests.get_mut(&id).unwrap();
            if guest.status != InstanceStatus::Allocated {
                guest.reports += 1;
                self.outbox.push_back(Report {
                    instance: id,
                    number: guest.reports,
                    status: guest.status,
                    reason: (guest.status == InstanceStatus::Failed)
                        .then_some(FailureReason::WorkloadExited),
                });
            }
        }
    }

    /// Goes on by a second.
    pub(crate) fn tick(&mut self, now: i64, random: &mut Random, trouble: bool) {
        let ids: Vec<InstanceId> = self.guests.keys().copied().collect();
        for id in ids {
            let guest = &self.guests[&id];
            let (status, wanted, fate) = (guest.status, guest.wanted, guest.fate);
            if now - guest.since < guest.wait * self.slowness {
                continue;
            }
            let ends = match wanted {
                Desired::Running => false,
                Desired::Draining { stop_allowed, .. } => stop_allowed.is_some(),
                Desired::Stopped { .. } => true,
            };
            let soon = (now, 1 + random.below(3) as i64);
            match status {
                InstanceStatus::Draining => self.change(id, InstanceStatus::Stopped, None, soon),
                InstanceStatus::Stopped => {
                    if matches!(wanted, Desired::Stopped { .. }) {
                        self.change(id, InstanceStatus::Collected, None, soon);
                        self.guests.remove(&id);
                        self.gone.insert(id);
                    }
                }
                _ if ends => self.change(id, InstanceStatus::Draining, None, soon),
                InstanceStatus::Allocated => {
                    self.change(id, InstanceStatus::Preparing, None, soon);
                }
                InstanceStatus::Preparing if fate == Fate::TooLarge => {
                    self.fail(id, FailureReason::ImageTooLarge, now);
                }
                InstanceStatus::Preparing if trouble && random.one_in(12) => {
                    self.fail(id, FailureReason::ImagePullFailed, now);
                }
                InstanceStatus::Preparing => self.change(id, InstanceStatus::Booting, None, soon),
                InstanceStatus::Booting if fate == Fate::Crashes => {
                    self.fail(id, FailureReason::WorkloadExited, now);
                }
                InstanceStatus::Booting if fate == Fate::LacksSecrets => {
                    self.fail(id, FailureReason::SecretsInjectionFailed, now);
                }
                InstanceStatus::Booting if matches!(fate, Fate::Good | Fate::Hangs) => {
                    let failed = trouble && random.one_in(25);
                    if failed {
                        self.fail(id, FailureReason::BootTimeout, now);
                    } else {
                        self.change(id, InstanceStatus::Ready, None, (now, 5));
                    }
                }
                InstanceStatus::Ready if trouble && random.one_in(400) => {
                    self.fail(id, FailureReason::OomKilled, now);
                }
                InstanceStatus::Ready if trouble && random.one_in(300) => {
                    self.change(id, InstanceStatus::Unhealthy, None, soon);
                }
                InstanceStatus::Ready if fate == Fate::Hangs => {
                    self.change(id, InstanceStatus::Unhealthy, None, (now, 10));
                }
                InstanceStatus::Unhealthy if fate == Fate::Hangs => {
                    self.fail(id, FailureReason::HealthcheckFailed, now);
                }
                InstanceStatus::Unhealthy => self.change(id, InstanceStatus::Ready, None, (now, 5)),
                InstanceStatus::Failed if !matches!(fate, Fate::TooLarge | Fate::LacksSecrets) => {
                    self.change(id, InstanceStatus::Booting, None, soon);
                }
                _ => {}
            }
        }
    }

    fn fail(&mut self, id: InstanceId, reason: FailureReason, now: i64) {
        let guest = self.guests.get_mut(&id).unwrap();
        guest.crashes += 1;
        let backoff = 2_i64 << guest.crashes.min(7);
        let of_app = matches!(
            reason,
            FailureReason::WorkloadExited | FailureReason::HealthcheckFailed
        );
        let looping = of_app && guest.crashes >= 5;
        let reason = if looping {
            FailureReason::CrashLoopBackoff
        } else {
            reason
        };
        self.change(id, InstanceStatus::Failed, Some(reason), (now, backoff));
    }

    fn change(
        &mut self,
        id: InstanceId,
        status: InstanceStatus,
        reason: Option<FailureReason>,
        (since, wait): (i64, i64),
    ) {
        let guest = self.guests.get_mut(&id).unwrap();
        (guest.status, guest.since, guest.wait) = (status, since, wait);
        // What hangs is never well for long enough to be forgiven.
        if status == InstanceStatus::Ready && guest.fate != Fate::Hangs {
            guest.crashes = 0;
        }
        guest.reports += 1;
        self.outbox.push_back(Report {
            instance: id,
            number: guest.reports,
            status,
            reason,
        });
    }

    /// The volumes that a guest of this machine could write to now.
    pub(crate) fn writers(&self) -> impl Iterator<Item = (InstanceId, VolumeId)> {
        let powered = self.link != Link::Off;
        let guests = self.guests.iter().filter(move |_| powered);
        let running = guests.filter(|(_, guest)| {
            matches!(
                guest.status,
                InstanceStatus::Preparing
                    | InstanceStatus::Booting
                    | InstanceStatus::Ready
                    | InstanceStatus::Unhealthy
                    | InstanceStatus::Failed
                    | InstanceStatus::Draining
            )
        });
        running.flat_map(|(id, guest)| guest.volumes.iter().map(|volume| (*id, *volume)))
    }
}
