//! What a guest is to be: schema `fluffy.guest-config`, version 1.
//!
//! A config comes from the node, which made it from what a tenant wrote, so
//! [`GuestConfig::check`] is asked by both. Nothing here is secret: secrets
//! come in a frame of their own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The version of configs that this understands.
pub const CONFIG_VERSION: &str = "v1";
/// What a config may require of a guest.
pub const FEATURES: &[&str] = &["named_user"];

/// The most words of a command, and their bytes.
pub const MAX_COMMAND: (usize, usize) = (256, 64 << 10);
/// The most variables, and their bytes.
pub const MAX_ENV: (usize, usize) = (1_024, 128 << 10);
/// The longest grace, in seconds.
pub const MAX_GRACE: u64 = 300;

/// What a guest is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// [`CONFIG_VERSION`].
    pub config_version: String,
    /// The version of the link's protocol that was chosen.
    #[serde(default = "first_protocol")]
    pub protocol: u32,
    /// What a guest must know to understand the rest.
    #[serde(default)]
    pub requires: Vec<String>,
    /// Which instance.
    pub instance_id: String,
    /// Which assignment of it.
    pub generation: u64,
    /// The time, for guests without a clock.
    #[serde(default)]
    pub time_unix_ns: u64,
    /// Randomness, for guests without any.
    #[serde(default)]
    pub entropy_b64: String,
    /// The root file system.
    pub root: Root,
    /// What to run.
    pub command: Vec<String>,
    /// Where.
    #[serde(default = "slash")]
    pub workdir: String,
    /// Its variables, those of the image included.
    #[serde(default)]
    pub env_vars: BTreeMap<String, String>,
    /// As whom.
    #[serde(default)]
    pub user: User,
    /// What to run before, in order; each must end with 0.
    #[serde(default)]
    pub prestart: Vec<Prestart>,
    /// How it ends.
    #[serde(default)]
    pub stop: Stop,
    /// What each process may use.
    #[serde(default)]
    pub rlimits: Rlimits,
    /// Its place in the network.
    pub network: Network,
    /// Its volumes.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Its secrets.
    pub secrets: Secrets,
    /// Commands beside the workload.
    pub exec: Exec,
    /// Its logs.
    #[serde(default)]
    pub logs: Logs,
}

/// The disks of the root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The image.
    pub lower: DiskReference,
    /// Where writes go; else memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<DiskReference>,
}

/// A disk by its serial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskReference {
    /// Its serial.
    pub serial: String,
    /// Its file system.
    pub fs: String,
}

/// Whose processes these are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct User {
    /// The user.
    #[serde(default)]
    pub uid: u32,
    /// The group.
    #[serde(default)]
    pub gid: u32,
    /// More groups.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// `user[:group]` as images name them, instead of the above: the guest
    /// looks it up in the image. Requires `named_user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A command before the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prestart {
    /// What to run.
    pub command: Vec<String>,
    /// How long it may take.
    #[serde(default = "thirty")]
    pub timeout_seconds: u64,
}

/// How a workload ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The first signal.
    #[serde(default = "term")]
    pub signal: String,
    /// How long until all processes are killed.
    #[serde(default = "ten")]
    pub grace_seconds: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            signal: term(),
            grace_seconds: ten(),
        }
    }
}

/// What each process may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimits {
    /// Open files.
    #[serde(default = "files")]
    pub nofile: u64,
    /// Processes of one user.
    #[serde(default = "processes")]
    pub nproc: u64,
    /// The size of a core dump.
    #[serde(default)]
    pub core: u64,
}

impl Default for Rlimits {
    fn default() -> Self {
        Self {
            nofile: files(),
            nproc: processes(),
            core: 0,
        }
    }
}

/// A guest's place in the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its address.
    pub overlay_ipv6: Ipv6Addr,
    /// How much of it is the network: all.
    #[serde(default = "whole")]
    pub prefix_len: u8,
    /// Where everything else is.
    pub gateway_ipv6: Ipv6Addr,
    /// The gateway's link address.
    #[serde(default)]
    pub gateway_mac: String,
    /// The guest's link address.
    #[serde(default)]
    pub mac: String,
    /// The largest packet.
    #[serde(default = "mtu")]
    pub mtu: u32,
    /// Who is asked for names.
    #[serde(default)]
    pub dns: Vec<Ipv6Addr>,
    /// Suffixes of short names.
    #[serde(default)]
    pub search: Vec<String>,
    /// Its name.
    #[serde(default)]
    pub hostname: String,
    /// More names.
    #[serde(default)]
    pub hosts: BTreeMap<String, Ipv6Addr>,
    /// How it reaches IPv4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4_egress: Option<Ipv4Egress>,
}

/// How a guest reaches IPv4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv4Egress {
    /// Its address.
    pub address: Ipv4Addr,
    /// Where everything is.
    pub gateway: Ipv4Addr,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Which.
    pub volume_id: String,
    /// Its disk.
    pub serial: String,
    /// Where it is mounted.
    pub mount_path: String,
    /// Its file system.
    pub filesystem: String,
    /// Whether nothing may be written.
    #[serde(default)]
    pub read_only: bool,
}

/// The file of secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secrets {
    /// Whether the workload must not run without.
    #[serde(default)]
    pub required: bool,
    /// Whether a frame with them follows.
    pub present: bool,
    /// Which version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_version_id: Option<String>,
    /// Where the file is: always the same.
    #[serde(default = "secrets_path")]
    pub mount_path: String,
    /// `0400`, or `0440` with an explicit group.
    #[serde(default = "secrets_mode")]
    pub mode: String,
    /// Whose it is; else the workload's user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group; else the workload's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// How many bytes the frame has.
    #[serde(default)]
    pub bytes: u64,
}

impl Secrets {
    /// No secrets at all.
    #[must_use]
    pub fn none() -> Self {
        Self {
            required: false,
            present: false,
            secret_version_id: None,
            mount_path: secrets_path(),
            mode: secrets_mode(),
            uid: None,
            gid: None,
            bytes: 0,
        }
    }
}

/// Commands beside the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Whether there may be any.
    pub enabled: bool,
    /// How many at once.
    #[serde(default = "two")]
    pub max_sessions: u32,
}

/// How logs are handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logs {
    /// Where a line is cut.
    #[serde(default = "line")]
    pub max_line_bytes: usize,
    /// Whether values of secrets are masked.
    #[serde(default = "yes")]
    pub redact: bool,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            max_line_bytes: line(),
            redact: true,
        }
    }
}

fn first_protocol() -> u32 {
    1
}
fn slash() -> String {
    "/".to_owned()
}
fn term() -> String {
    "TERM".to_owned()
}
fn ten() -> u64 {
    10
}
fn thirty() -> u64 {
    30
}
fn files() -> u64 {
    65_536
}
fn processes() -> u64 {
    8_192
}
fn whole() -> u8 {
    128
}
fn mtu() -> u32 {
    1_420
}
fn two() -> u32 {
    2
}
fn line() -> usize {
    crate::log::MAX_LINE
}
fn yes() -> bool {
    true
}
fn secrets_path() -> String {
    SECRETS_PATH.to_owned()
}
fn secrets_mode() -> String {
    "0400".to_owned()
}

/// Where a guest finds its secrets.
pub const SECRETS_PATH: &str = "/run/secrets/platform.env";

/// Why a config is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct ConfigError {
    /// One of the guest's codes.
    pub code: &'static str,
    /// What is wrong, without any value of a variable.
    pub detail: String,
}

fn invalid(detail: impl Into<String>) -> ConfigError {
    ConfigError {
        code: "config_invalid",
        detail: detail.into(),
    }
}

impl GuestConfig {
    /// Reads a config message and checks it.
    ///
    /// # Errors
    /// With the code that a guest says.
    pub fn read(bytes: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = crate::link::read_message(bytes).map_err(|error| {
            // The place, not the text: it may hold a value.
            let place = std::error::Error::source(&error)
                .and_then(|source| source.downcast_ref::<serde_json::Error>())
                .map_or_else(String::new, |error| {
                    format!(" at {}:{}", error.line(), error.column())
                });
            ConfigError {
                code: "config_parse_failed",
                detail: format!("{error}{place}"),
            }
        })?;
        config.check()?;
        Ok(config)
    }

    /// Whether a guest can be this.
    ///
    /// # Errors
    /// With the code that a guest says.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.config_version != CONFIG_VERSION {
            return Err(ConfigError {
                code: "unsupported_feature",
                detail: format!("config version {:.16}", self.config_version),
            });
        }
        if let Some(unknown) = self
            .requires
            .iter()
            .find(|one| !FEATURES.contains(&one.as_str()))
        {
            return Err(ConfigError {
                code: "unsupported_feature",
                detail: format!("{unknown:.64}"),
            });
        }
        check_command(&self.command, "command")?;
        if self.prestart.len() > 16 {
            return Err(invalid("more than 16 prestart commands"));
        }
        for one in &self.prestart {
            check_command(&one.command, "prestart")?;
        }
        check_env(&self.env_vars)?;
        check_text(&self.workdir, "workdir")?;
        if !self.workdir.starts_with('/') {
            return Err(invalid("workdir is not absolute"));
        }
        self.check_network()?;
        self.check_secrets()?;
        if self.stop.grace_seconds > MAX_GRACE {
            return Err(invalid("stop.grace_seconds is above 300"));
        }
        if signal_number(&self.stop.signal).is_none() {
            return Err(invalid("stop.signal is no signal"));
        }
        if !(1..=crate::log::MAX_LINE).contains(&self.logs.max_line_bytes) {
            return Err(invalid("logs.max_line_bytes is not between 1 and 16384"));
        }
        if self.mounts.len() > 8 || self.user.groups.len() > 64 {
            return Err(invalid("too many mounts or groups"));
        }
        Ok(())
    }

    fn check_network(&self) -> Result<(), ConfigError> {
        let network = &self.network;
        if !(1_280..=9_000).contains(&network.mtu) {
            return Err(invalid("network.mtu is not between 1280 and 9000"));
        }
        if network.prefix_len != 128 {
            return Err(invalid("network.prefix_len is not 128"));
        }
        let name = |text: &str| {
            text.len() <= 253
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        let names = network.search.iter().chain(network.hosts.keys());
        if network.hostname.len() > 63 || !names.chain([&network.hostname]).all(|one| name(one)) {
            return Err(invalid("network has a name that is none"));
        }
        if network.dns.len() > 8 || network.search.len() > 8 || network.hosts.len() > 256 {
            return Err(invalid("network has too many entries"));
        }
        Ok(())
    }

    fn check_secrets(&self) -> Result<(), ConfigError> {
        let secrets = &self.secrets;
        if secrets.required && !secrets.present {
            return Err(ConfigError {
                code: "secrets_missing",
                detail: "required and not present".to_owned(),
            });
        }
        if secrets.mount_path != SECRETS_PATH {
            return Err(invalid("secrets.mount_path is another"));
        }
        let by_group = secrets.mode == "0440" && secrets.gid.is_some();
        if secrets.mode != "0400" && !by_group {
            return Err(invalid("secrets.mode is not 0400, nor 0440 with a gid"));
        }
        if secrets.bytes > crate::link::MAX_SECRETS as u64 {
            return Err(invalid("secrets.bytes is above 256 KiB"));
        }
        Ok(())
    }
}

fn check_text(text: &str, what: &str) -> Result<(), ConfigError> {
    if text.contains('\0') {
        return Err(invalid(format!("{what} has a NUL byte")));
    }
    Ok(())
}

/// Whether a command can be run at all.
fn check_command(command: &[String], what: &str) -> Result<(), ConfigError> {
    let (words, bytes) = MAX_COMMAND;
    let length: usize = command.iter().map(String::len).sum();
    if command.first().is_none_or(String::is_empty) || command.len() > words || length > bytes {
        return Err(invalid(format!(
            "{what} must have 1 to {words} words of {bytes} bytes together"
        )));
    }
    command.iter().try_for_each(|word| check_text(word, what))
}

fn check_env(variables: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    let (keys, bytes) = MAX_ENV;
    let length: usize = variables
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if variables.len() > keys || length > bytes {
        return Err(invalid(format!(
            "env_vars has more than {keys} keys or {bytes} bytes"
        )));
    }
    for (key, value) in variables {
        if key.is_empty() || key.contains('=') {
            return Err(invalid("env_vars has a key that is none"));
        }
        check_text(key, "env_vars")?;
        check_text(value, "env_vars")?;
    }
    Ok(())
}

impl crate::message::ExecOpen {
    /// Whether it can be run at all.
    ///
    /// # Errors
    /// With the code that a guest says.
    pub fn check(&self) -> Result<(), ConfigError> {
        const WORDS: (usize, usize) = (64, 32 << 10);
        const VARIABLES: (usize, usize) = (64, 16 << 10);
        if self.channel < crate::link::FIRST_EXEC || self.channel % 2 == 1 {
            return Err(invalid("a command's channel must be even and at least 16"));
        }
        check_command(&self.command, "command")?;
        check_env(&self.env)?;
        let words: usize = self.command.iter().map(String::len).sum();
        let variables: usize = self.env.iter().map(|(k, v)| k.len() + v.len()).sum();
        let fits = self.command.len() <= WORDS.0
            && words <= WORDS.1
            && self.env.len() <= VARIABLES.0
            && variables <= VARIABLES.1;
        if !fits || (self.tty && !(is_size(self.cols) && is_size(self.rows))) {
            return Err(invalid(
                "a command, its variables or its terminal is too large",
            ));
        }
        Ok(())
    }
}

/// Whether a terminal may have this many columns or rows.
#[must_use]
pub fn is_size(cells: u16) -> bool {
    (1..=1_000).contains(&cells)
}

/// The number of a signal by its name, with or without `SIG`.
#[must_use]
pub fn signal_number(name: &str) -> Option<i32> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    Some(match name {
        "HUP" => 1,
        "INT" => 2,
        "QUIT" => 3,
        "KILL" => 9,
        "USR1" => 10,
        "USR2" => 12,
        "TERM" => 15,
        "WINCH" => 28,
        "PWR" => 30,
        // Images may name a number, and real-time signals only so.
        _ => {
            let number: i32 = match name.strip_prefix("RTMIN+") {
                Some(more) => {
                    34 + more
                        .parse::<i32>()
                        .ok()
                        .filter(|more| (0..=30).contains(more))?
                }
                None => name.parse().ok()?,
            };
            return (1..=64).contains(&number).then_some(number);
        }
    })
}

#[cfg(test)]
mod tests;
