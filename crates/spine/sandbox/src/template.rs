//! Templates: the named sets of limits that sandboxes are made from.
//!
//! The launcher knows these and those a reviewed policy adds, and starts
//! nothing else. A template is data; it never says which paths are seen.
//! Next: `plan` turns a template and a request into what is mounted.

use fluffy_base::{ByteSize, Span};
use fluffy_contract::isolation::Tier;
use fluffy_policy::templates::AddedTemplate;
use fluffy_policy::word;
use serde::{Deserialize, Serialize};

/// Which system calls a sandbox may make. Paths are not its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Computing, memory, unix sockets; no new processes.
    Strict,
    /// The same, and files.
    StrictFiles,
    /// Strict, and sockets, where the only way out is the egress proxy.
    StrictNet,
    /// Processes, files and sockets of its own loopback.
    Standard,
    /// The same, where the only way out is the egress proxy.
    StandardNet,
}

/// What a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Nothing, not even its own loopback.
    None,
    /// Its own loopback.
    Loopback,
    /// Its own loopback, on which the egress proxy listens.
    Restricted,
}

/// When a sandbox's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// As long as its owner wants.
    Owner,
    /// After this long.
    Total(Span),
    /// After this long without a byte of output.
    Silent(Span),
}

/// A named set of limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// What it is called.
    pub name: String,
    /// The weakest tier it accepts.
    pub least_tier: Tier,
    /// What it can reach.
    pub network: Network,
    /// Memory of all its processes together.
    pub memory: ByteSize,
    /// Thousandths of a processor; nothing means all of them.
    #[serde(default)]
    pub cpu_milli: Option<u32>,
    /// Processes and threads at once.
    pub pids: u32,
    /// When its time is over.
    pub time: Lifetime,
    /// Which system calls it may make.
    pub seccomp: Profile,
    /// What it may write to its layer.
    pub disk: ByteSize,
    /// The largest file it may write.
    pub file_size: ByteSize,
    /// What its private `/tmp` holds.
    pub scratch: ByteSize,
}

impl Template {
    /// The templates that always exist, for a machine with this much memory.
    #[must_use]
    pub fn builtin(machine_memory: ByteSize) -> Vec<Self> {
        let working = ByteSize((4 * GIB).min(machine_memory.0 / 2));
        vec![
            Self {
                network: Network::None,
                memory: ByteSize(512 * MIB),
                cpu_milli: Some(1_000),
                pids: 64,
                time: Lifetime::Owner,
                seccomp: Profile::StrictFiles,
                ..Self::small("kernel")
            },
            Self {
                network: Network::Restricted,
                memory: ByteSize(256 * MIB),
                cpu_milli: Some(500),
                pids: 10,
                time: Lifetime::Silent(Span { millis: 120_000 }),
                seccomp: Profile::StrictNet,
                ..Self::small("ai-provider")
            },
            Self::working("code-executor", working, Network::Loopback),
            Self {
                memory: ByteSize(128 * MIB),
                cpu_milli: Some(250),
                pids: 5,
                time: Lifetime::Total(Span { millis: 100 }),
                ..Self::small("policy-sandbox")
            },
            Self::working("integration-test", working, Network::Restricted),
            Self::plugin("plugin", Network::Loopback),
            Self::plugin("plugin-net", Network::Restricted),
        ]
    }

    /// The built-in templates and those that a policy adds to them.
    #[must_use]
    pub fn all(machine_memory: ByteSize, added: &[AddedTemplate]) -> Vec<Self> {
        let mut templates = Self::builtin(machine_memory);
        let added: Vec<Self> = added
            .iter()
            .filter_map(|added| {
                let base = templates.iter().find(|base| base.name == added.based_on)?;
                Some(base.clone().changed(added))
            })
            .collect();
        templates.extend(added);
        templates
    }

    fn changed(mut self, added: &AddedTemplate) -> Self {
        self.name.clone_from(&added.name);
        // A weaker tier than the base's is never what is meant.
        self.least_tier = added
            .tier
            .map_or(self.least_tier, |tier| tier.max(self.least_tier));
        if let Some(network) = added.network {
            self.network = match network {
                word::Network::None => Network::None,
                word::Network::Loopback => Network::Loopback,
                word::Network::Restricted => Network::Restricted,
            };
            self.seccomp = match (self.seccomp, self.network) {
                (Profile::Standard | Profile::StandardNet, Network::Restricted) => {
                    Profile::StandardNet
                }
                (Profile::Standard | Profile::StandardNet, _) => Profile::Standard,
                (Profile::Strict | Profile::StrictNet, Network::Restricted) => Profile::StrictNet,
                (Profile::Strict | Profile::StrictNet, _) => Profile::Strict,
                (Profile::StrictFiles, _) => Profile::StrictFiles,
            };
        }
        self.memory = added.memory.unwrap_or(self.memory);
        self.cpu_milli = added.cpu_milli.or(self.cpu_milli);
        self.pids = added.pids.unwrap_or(self.pids);
        self.time = added.time.map_or(self.time, Lifetime::Total);
        self.disk = added.disk.unwrap_or(self.disk);
        self.file_size = self.file_size.min(self.disk);
        self.scratch = self.scratch.min(self.memory);
        self
    }

    fn small(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            least_tier: Tier::Process,
            network: Network::None,
            memory: ByteSize(128 * MIB),
            cpu_milli: None,
            pids: 5,
            time: Lifetime::Owner,
            seccomp: Profile::Strict,
            disk: ByteSize(64 * MIB),
            file_size: ByteSize(64 * MIB),
            scratch: ByteSize(16 * MIB),
        }
    }

    /// The most that a plugin can be given; its manifest says how much less.
    fn plugin(name: &str, network: Network) -> Self {
        Self {
            time: Lifetime::Owner,
            pids: 256,
            disk: ByteSize(GIB),
            file_size: ByteSize(GIB),
            ..Self::working(name, ByteSize(2 * GIB), network)
        }
    }

    /// Real test suites count threads, build large files and fill `/tmp`.
    fn working(name: &str, memory: ByteSize, network: Network) -> Self {
        Self {
            network,
            memory,
            pids: 512,
            time: Lifetime::Total(Span { millis: 300_000 }),
            seccomp: match network {
                Network::Restricted => Profile::StandardNet,
                Network::None | Network::Loopback => Profile::Standard,
            },
            disk: ByteSize(8 * GIB),
            file_size: ByteSize(4 * GIB),
            scratch: ByteSize((memory.0 / 2).max(64 * MIB)),
            ..Self::small(name)
        }
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_the_published_table() {
        let templates = Template::builtin(ByteSize(24 * GIB));
        let rows: Vec<String> = templates
            .iter()
            .map(|t| {
                format!(
                    "{} {} {:?} {} {:?} {} {:?}",
                    t.name, t.least_tier, t.network, t.memory, t.cpu_milli, t.pids, t.seccomp
                )
            })
            .collect();
        assert_eq!(
            rows,
            [
                "kernel process None 512MiB Some(1000) 64 StrictFiles",
                "ai-provider process Restricted 256MiB Some(500) 10 StrictNet",
                "code-executor process Loopback 4GiB None 512 Standard",
                "policy-sandbox process None 128MiB Some(250) 5 Strict",
                "integration-test process Restricted 4GiB None 512 StandardNet",
                "plugin process Loopback 2GiB None 256 Standard",
                "plugin-net process Restricted 2GiB None 256 StandardNet",
            ]
        );
    }

    #[test]
    fn a_policy_adds_templates_and_changes_no_other() {
        let text = "version: 1\ntemplates:\n  big: { based_on: code-executor, memory: 1GiB, network: restricted, time: 1h, disk: 1GiB }\n";
        let file =
            fluffy_policy::document::PolicyFile::parse(text, fluffy_policy::rule::Origin::Project)
                .unwrap();
        let machine = ByteSize(24 * GIB);
        let all = Template::all(machine, file.templates());
        assert_eq!(all[..7], Template::builtin(machine)[..]);
        let big = &all[7];
        assert_eq!(
            (big.name.as_str(), big.network, big.seccomp),
            ("big", Network::Restricted, Profile::StandardNet)
        );
        assert_eq!(big.time, Lifetime::Total(Span { millis: 3_600_000 }));
        assert_eq!((big.file_size, big.scratch), (ByteSize(GIB), ByteSize(GIB)));
        assert_eq!(big.pids, 512);
    }

    #[test]
    fn a_small_machine_gives_half_of_its_memory() {
        let templates = Template::builtin(ByteSize(2 * GIB));
        let executor = templates.iter().find(|t| t.name == "code-executor");
        assert_eq!(executor.map(|t| t.memory), Some(ByteSize(GIB)));
    }
}
