//! What an org may have at most, and what it has.
//!
//! Counted anew from exact state whenever somebody asks, so that two requests
//! can never both get the last one. Lowering a limit below use stops growth and
//! ends nothing.

use fluffy_base::id::OrgId;
use serde::{Deserialize, Serialize};

use super::Runtime;
use crate::refusal::Refusal;

/// The limit that is none.
pub const UNLIMITED: u64 = (1 << 53) - 1;

macro_rules! dimensions {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $default:expr;)*) => {
        /// What is limited.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Dimension { $($(#[$doc])* $name,)* }

        impl Dimension {
            /// Every dimension, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The name as it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What an org may have unless somebody says otherwise.
            #[must_use]
            pub const fn default_limit(self) -> u64 {
                match self { $(Self::$name => $default,)* }
            }

            /// The dimension of this name.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.as_str() == text)
            }
        }
    };
}

dimensions! {
    /// Apps.
    Apps = "apps", 50;
    /// Volumes that belong to a process type.
    Attachments = "attachments", 20;
    /// Restores that are not over.
    ConcurrentRestores = "concurrent_restores", 2;
    /// Thousandths of a processor.
    Cpu = "cpu", 64_000;
    /// Envs of all apps.
    Envs = "envs", 100;
    /// Exec sessions that are not over.
    ExecSessions = "exec_sessions", 20;
    /// Instances that have not stopped.
    Instances = "instances", 100;
    /// Public IPv4 addresses.
    Ipv4 = "ipv4", 2;
    /// Bytes of log lines in a day.
    LogBytesPerDay = "log_bytes_per_day", 1 << 30;
    /// Bytes of memory, with what drivers need.
    Memory = "memory", 128 << 30;
    /// Public ports other than 80 and 443.
    PublicPorts = "public_ports", 20;
    /// Releases that are not retired.
    Releases = "releases", 2_000;
    /// Routes.
    Routes = "routes", 100;
    /// Snapshots of one volume.
    SnapshotsPerVolume = "snapshots_per_volume", 14;
    /// Bytes of all volumes.
    VolumeBytes = "volume_bytes", 500 << 30;
    /// Volumes.
    Volumes = "volumes", 20;
}

impl Runtime {
    /// What an org may have at most; no org may have nothing.
    #[must_use]
    pub fn limit(&self, org: OrgId, dimension: Dimension) -> u64 {
        let own = self.orgs.get(&org);
        own.map_or(0, |org| match org.limits.get(&dimension) {
            Some(limit) if *limit >= UNLIMITED => u64::MAX,
            Some(limit) => *limit,
            None => dimension.default_limit(),
        })
    }

    /// What an org has.
    #[must_use]
    pub fn used(&self, org: OrgId, dimension: Dimension) -> u64 {
        let count = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
        match dimension {
            Dimension::Apps => count(self.apps.values().filter(|it| it.org == org).count()),
            Dimension::Attachments => {
                count(self.attachments.values().filter(|it| it.org == org).count())
            }
            Dimension::ConcurrentRestores => {
                let running = self.restores.values().filter(|it| !it.state.is_final());
                count(running.filter(|it| it.org == org).count())
            }
            Dimension::Envs => {
                let live = self.envs.values().filter(|it| it.deleted_at.is_none());
                count(live.filter(|it| it.org == org).count())
            }
            Dimension::ExecSessions => {
                let live = self.execs.values().filter(|it| !it.state.is_final());
                count(live.filter(|it| it.org == org).count())
            }
            Dimension::Ipv4 => {
                let with = self.envs.values().filter(|it| it.ipv4.is_some());
                count(with.filter(|it| it.org == org).count())
            }
            Dimension::Instances => self.booked(org, |_| 1),
            Dimension::Memory => self.booked(org, |booking| booking.memory),
            Dimension::Cpu => self.booked(org, |booking| booking.cpu_millis),
            // Counted where lines arrive; nothing of it is in the ledger.
            Dimension::LogBytesPerDay => 0,
            Dimension::PublicPorts => {
                let own = self.routes.values().filter(|it| it.org == org);
                let ports = own.map(|it| (it.env, it.listen_port));
                let extra = ports.filter(|(_, port)| !matches!(port, 80 | 443));
                count(extra.collect::<std::collections::BTreeSet<_>>().len())
            }
            Dimension::Releases => {
                let kept = self.releases.values().filter(|it| it.retired_at.is_none());
                count(kept.filter(|it| it.org == org).count())
            }
            Dimension::Routes => count(self.routes.values().filter(|it| it.org == org).count()),
            Dimension::SnapshotsPerVolume => {
                let mut most = std::collections::BTreeMap::new();
                for snapshot in self.snapshots.values().filter(|it| it.org == org) {
                    *most.entry(snapshot.volume).or_insert(0_u64) += 1;
                }
                most.into_values().max().unwrap_or(0)
            }
            Dimension::VolumeBytes => {
                let own = self.volumes.values().filter(|it| it.org == org);
                own.map(|it| it.size).fold(0, u64::saturating_add)
            }
            Dimension::Volumes => count(self.volumes.values().filter(|it| it.org == org).count()),
        }
    }

    fn booked(&self, org: OrgId, of: fn(&fluffy_planner::model::Resources) -> u64) -> u64 {
        let plan = &self.plan;
        let counted = plan.instances.values().filter(|it| {
            let env = plan.envs.get(&it.group.env);
            env.is_some_and(|env| env.org == org) && plan.counts(it)
        });
        counted
            .map(|it| of(&it.booking))
            .fold(0, u64::saturating_add)
    }

    /// Refuses what would be more than an org may have.
    pub(crate) fn within(
        &self,
        org: OrgId,
        dimension: Dimension,
        requested: u64,
    ) -> Result<(), Refusal> {
        within(
            self.limit(org, dimension),
            self.used(org, dimension),
            dimension,
            requested,
        )
    }
}

/// Refuses what would be more than a limit.
pub(crate) fn within(
    limit: u64,
    current: u64,
    dimension: Dimension,
    requested: u64,
) -> Result<(), Refusal> {
    if current.saturating_add(requested) <= limit || requested == 0 {
        return Ok(());
    }
    let name = dimension.as_str();
    let why = format!(
        "the org has {current} of at most {limit} {name}, and {requested} more were asked for"
    );
    let fix = "remove what is not needed, or ask an operator for a higher quota";
    Err(Refusal::new("quota_exceeded", why, fix)
        .with("dimension", name)
        .with("limit", limit)
        .with("current", current)
        .with("requested", requested))
}
