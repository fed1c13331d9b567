//! Reasons: why an instance failed, and why a group has not what it wants.
//!
//! The words are those of events and status pages. A quota and the capacity of
//! the cluster are never the same word. Decides nothing but the class of a
//! failure. Next: `model`, where facts carry these reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enum whose variants have one spelling each.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every word.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// What this word means.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.as_str() == text)
            }

            /// The word as it is written in events.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Why a node says that an instance failed.
    FailureReason {
        /// The image did not arrive.
        ImagePullFailed = "image_pull_failed",
        /// The image did not arrive in time.
        ImagePullTimeout = "image_pull_timeout",
        /// A layer is not what its digest says.
        ImageLayerInvalid = "image_layer_invalid",
        /// The image is above the limits.
        ImageTooLarge = "image_too_large",
        /// The root file system could not be made.
        RootfsBuildFailed = "rootfs_build_failed",
        /// The node's disk is full.
        DiskFull = "disk_full",
        /// The instance's network could not be made.
        NetworkSetupFailed = "network_setup_failed",
        /// Firecracker did not start.
        FirecrackerStartFailed = "firecracker_start_failed",
        /// QEMU did not start.
        QemuStartFailed = "qemu_start_failed",
        /// The container did not start.
        ContainerStartFailed = "container_start_failed",
        /// The guest did not answer in time.
        BootTimeout = "boot_timeout",
        /// The guest speaks another version.
        GuestProtocolMismatch = "guest_protocol_mismatch",
        /// The node cannot honour the spec.
        SpecUnsupported = "spec_unsupported",
        /// A volume could not be attached.
        VolumeAttachFailed = "volume_attach_failed",
        /// There is no version of the secrets.
        SecretsMissing = "secrets_missing",
        /// Secrets did not reach the guest.
        SecretsInjectionFailed = "secrets_injection_failed",
        /// Secrets cannot be opened or fetched now.
        SecretsKeyUnavailable = "secrets_key_unavailable",
        /// The health check failed.
        HealthcheckFailed = "healthcheck_failed",
        /// It took more memory than it has.
        OomKilled = "oom_killed",
        /// The command could not be started.
        WorkloadStartFailed = "workload_start_failed",
        /// The command ended.
        WorkloadExited = "workload_exited",
        /// It failed five times in ten minutes.
        CrashLoopBackoff = "crash_loop_backoff",
        /// The image tries to do harm.
        ImageHostile = "image_hostile",
        /// The image is not one.
        ImageInvalid = "image_invalid",
        /// The registry wants another credential.
        ImageAuthFailed = "image_auth_failed",
        /// The registry does not answer.
        RegistryUnavailable = "registry_unavailable",
        /// The guest says nothing any more.
        GuestUnresponsive = "guest_unresponsive",
        /// What ran the instance is gone, and nobody saw how.
        VmmLost = "vmm_lost",
        /// The guest's kernel gave up.
        GuestPanic = "guest_panic",
        /// The node's agent cannot look after it; what runs goes on.
        Degraded = "degraded",
        /// A newer instance has the volume.
        VolumeEpochStale = "volume_epoch_stale",
    }
}

/// Whose fault a failure is, and so what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// The node's: another node may do better.
    Host,
    /// The spec's: trying again changes nothing.
    Config,
    /// Ours: an operator has to look.
    Platform,
    /// The app's own: it stays where it is.
    App,
}

impl FailureReason {
    /// Whose fault it is.
    #[must_use]
    pub const fn class(self) -> FailureClass {
        match self {
            Self::ImagePullFailed
            | Self::ImagePullTimeout
            | Self::ImageLayerInvalid
            | Self::RootfsBuildFailed
            | Self::DiskFull
            | Self::NetworkSetupFailed
            | Self::FirecrackerStartFailed
            | Self::QemuStartFailed
            | Self::ContainerStartFailed
            | Self::BootTimeout
            | Self::RegistryUnavailable
            | Self::SecretsKeyUnavailable
            | Self::GuestUnresponsive
            | Self::VmmLost
            | Self::Degraded
            | Self::VolumeAttachFailed => FailureClass::Host,
            Self::ImageTooLarge
            | Self::ImageHostile
            | Self::ImageInvalid
            | Self::ImageAuthFailed
            | Self::SecretsMissing => FailureClass::Config,
            Self::GuestProtocolMismatch
            | Self::SpecUnsupported
            | Self::SecretsInjectionFailed
            | Self::VolumeEpochStale => FailureClass::Platform,
            Self::HealthcheckFailed
            | Self::OomKilled
            | Self::WorkloadStartFailed
            | Self::WorkloadExited
            | Self::GuestPanic
            | Self::CrashLoopBackoff => FailureClass::App,
        }
    }

    /// Whether a deploy that meets it fails at once.
    #[must_use]
    pub const fn is_hopeless(self) -> bool {
        matches!(
            self,
            Self::ImageTooLarge
                | Self::ImageHostile
                | Self::ImageInvalid
                | Self::ImageAuthFailed
                | Self::GuestProtocolMismatch
                | Self::SpecUnsupported
        )
    }

    /// How many of these in a row move an instance to another node, if any.
    #[must_use]
    pub const fn moves_after(self) -> Option<u32> {
        match self {
            Self::ImagePullFailed
            | Self::ImagePullTimeout
            | Self::ImageLayerInvalid
            | Self::RegistryUnavailable => Some(2),
            // The data is here and nowhere else, or it starts again in place.
            Self::VolumeAttachFailed
            | Self::GuestUnresponsive
            | Self::VmmLost
            | Self::Degraded
            // No other node would get them.
            | Self::SecretsKeyUnavailable => None,
            _ => match self.class() {
                FailureClass::Host => Some(1),
                FailureClass::Config | FailureClass::Platform | FailureClass::App => None,
            },
        }
    }
}

words! {
    /// What a quota limits of what the planner hands out.
    Dimension {
        /// The number of instances.
        Instances = "instances",
        /// Memory, with what drivers need beside the guest's.
        Memory = "memory",
        /// Processor time.
        Cpu = "cpu",
    }
}

/// Why a group has not what it wants, or what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Condition {
    /// No node takes instances.
    NoNodesActive,
    /// No node has a driver that the env accepts and that is large enough.
    IsolationUnavailable,
    /// The image is for other processors.
    ArchUnavailable,
    /// No node is home to all its volumes and takes instances.
    VolumeLocalityNoNode,
    /// The volumes' home node is offline.
    VolumeHomeNodeOffline,
    /// Another instance has a volume, or has not given it back yet.
    VolumeInUse,
    /// A volume is missing, or more than one instance is wanted.
    VolumeConstraintsInvalid,
    /// No node has memory left.
    NoCapacityMemory,
    /// No node has scratch disk left.
    NoCapacityDisk,
    /// Every node has as many instances as a node may have.
    NoCapacityInstances,
    /// The org has used up what it may have of this.
    OrgQuotaExceeded(Dimension),
    /// A version of the secrets is required and there is none.
    SecretsMissing,
    /// There is no room for one more, and one fewer would be none.
    SurgeBlocked,
    /// There is no room for one more, so old ones go before new ones come.
    DrainFirst,
    /// It fails over and over.
    CrashLooping,
}

impl Condition {
    /// Those without a dimension.
    const PLAIN: [Self; 14] = [
        Self::NoNodesActive,
        Self::IsolationUnavailable,
        Self::ArchUnavailable,
        Self::VolumeLocalityNoNode,
        Self::VolumeHomeNodeOffline,
        Self::VolumeInUse,
        Self::VolumeConstraintsInvalid,
        Self::NoCapacityMemory,
        Self::NoCapacityDisk,
        Self::NoCapacityInstances,
        Self::SecretsMissing,
        Self::SurgeBlocked,
        Self::DrainFirst,
        Self::CrashLooping,
    ];

    /// The condition that is written like this.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(dimension) = text.strip_prefix("org_quota_exceeded:") {
            return Dimension::parse(dimension).map(Self::OrgQuotaExceeded);
        }
        let mut plain = Self::PLAIN.into_iter();
        plain.find(|condition| condition.as_str() == text)
    }

    /// The word as it is written in events; a quota adds its dimension.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoNodesActive => "no_nodes_active",
            Self::IsolationUnavailable => "isolation_unavailable",
            Self::ArchUnavailable => "arch_unavailable",
            Self::VolumeLocalityNoNode => "volume_locality_no_node",
            Self::VolumeHomeNodeOffline => "volume_home_node_offline",
            Self::VolumeInUse => "volume_in_use",
            Self::VolumeConstraintsInvalid => "volume_constraints_invalid",
            Self::NoCapacityMemory => "no_capacity_memory",
            Self::NoCapacityDisk => "no_capacity_disk",
            Self::NoCapacityInstances => "no_capacity_instances",
            Self::OrgQuotaExceeded(_) => "org_quota_exceeded",
            Self::SecretsMissing => "secrets_missing",
            Self::SurgeBlocked => "surge_blocked",
            Self::DrainFirst => "drain_first",
            Self::CrashLooping => "crash_looping",
        }
    }

    /// Whether it is the org's quota, and not the cluster, that has no room.
    #[must_use]
    pub const fn is_quota(self) -> bool {
        matches!(self, Self::OrgQuotaExceeded(_))
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        match self {
            Self::OrgQuotaExceeded(dimension) => write!(f, ":{dimension}"),
            _ => Ok(()),
        }
    }
}

words! {
    /// Why an instance is drained.
    DrainReason {
        /// Fewer are wanted.
        ScaleDown = "scale_down",
        /// A newer one takes its place.
        RolloutReplace = "rollout_replace",
        /// Its node is being emptied.
        NodeDraining = "node_draining",
        /// Somebody asked for a new one.
        OperatorRestart = "operator_restart",
        /// Its env is gone.
        EnvDeleted = "env_deleted",
        /// It did not become ready in time; the deploy's retries pay for it.
        StartFailed = "start_failed",
        /// Its node failed it; another one may do better.
        HostFailed = "host_failed",
    }
}

words! {
    /// Why an instance counts as stopped.
    StopReason {
        /// Its node says so.
        Reported = "reported",
        /// It had its time to end.
        GracePassed = "grace_passed",
        /// Its node is offline or counts no more.
        NodeLost = "node_lost",
    }
}

words! {
    /// Why a deploy failed or was paused.
    DeployFailure {
        /// It took longer than it may.
        Timeout = "rollout_timeout",
        /// Instances had to be replaced too often.
        RetriesSpent = "retries_spent",
        /// An instance failed in a way that trying again cannot help.
        Hopeless = "hopeless",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_reads_back() {
        let quotas = Dimension::ALL.iter().copied();
        let all = quotas
            .map(Condition::OrgQuotaExceeded)
            .chain(Condition::PLAIN);
        for condition in all {
            assert_eq!(Condition::parse(&condition.to_string()), Some(condition));
        }
        assert_eq!(Condition::parse("org_quota_exceeded"), None);
    }
}
