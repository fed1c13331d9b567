//! Where the PostgreSQL server is, and what is settled before connecting.
//!
//! Never takes an address that promises more than is kept: there is no TLS
//! yet, so an address that asks for it is refused instead of weakened, and one
//! on another machine has to say that it does without.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

/// The longest address that is read.
const MAX_ADDRESS: usize = 4096;
/// How many events one partition of the table holds, unless told otherwise.
const PARTITION_EVENTS: u64 = 1_000_000;

/// A PostgreSQL database that holds, or will hold, one ledger.
#[derive(Debug, Clone)]
pub struct PostgresAddress {
    config: Config,
    partition_events: u64,
}

/// Why a text is not the address of a usable database.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Longer than any address.
    #[error("the address of PostgreSQL is longer than {MAX_ADDRESS} bytes")]
    TooLong,
    /// Neither a URL nor a list of `key=value`. The text may hold a password,
    /// so it is not repeated.
    #[error("the address of PostgreSQL can't be understood")]
    Syntax(#[source] tokio_postgres::Error),
    /// It asks for TLS.
    #[error(
        "the address of PostgreSQL asks for TLS, which the ledger does not speak yet; \
         use a Unix socket or a private network with `sslmode=disable`"
    )]
    Tls,
    /// It is on another machine, and does not say that it is fine with that.
    #[error(
        "PostgreSQL is on another machine, and the ledger does not speak TLS yet: whoever is in \
         between could read and change everything; use a Unix socket, a tunnel to this machine, \
         or a private network with `sslmode=disable`"
    )]
    Plain,
    /// It asks for a server that refuses writes.
    #[error("the address of PostgreSQL asks for a read-only server")]
    ReadOnly,
}

impl FromStr for PostgresAddress {
    type Err = AddressError;

    /// Reads `postgresql://user@host/database` or `host=… dbname=…`; a host
    /// that starts with `/` is the directory of a Unix socket.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.len() > MAX_ADDRESS {
            return Err(AddressError::TooLong);
        }
        let mut config: Config = text.parse().map_err(AddressError::Syntax)?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(AddressError::Tls);
        }
        if config.get_ssl_mode() != SslMode::Disable && !is_local(&config) {
            return Err(AddressError::Plain);
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(AddressError::ReadOnly);
        }
        // Of several hosts, only the one that takes writes will do: after a
        // fail-over that is another one.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.ssl_mode(SslMode::Disable);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(3));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        config.keepalives_idle(Duration::from_secs(20));
        Ok(Self {
            config,
            partition_events: PARTITION_EVENTS,
        })
    }
}

/// Whether nothing of it leaves this machine.
fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    let of_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address = name.parse::<IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    };
    // Where there are addresses, names are not looked up.
    match addresses.is_empty() {
        true => config.get_hosts().iter().all(of_host),
        false => addresses.iter().all(IpAddr::is_loopback),
    }
}

impl PostgresAddress {
    /// Sets how many events a partition of a new ledger holds, 1,000 at least.
    ///
    /// It is settled when the ledger is created and ignored afterwards.
    /// Pruning drops whole partitions, so it is best near the size of an
    /// archive segment.
    #[must_use]
    pub fn with_partition_events(mut self, events: u64) -> Self {
        self.partition_events = events.clamp(1_000, 1_000_000_000);
        self
    }

    pub(super) fn partition_events(&self) -> u64 {
        self.partition_events
    }

    /// The settings of a connection that calls itself `name`.
    #[must_use]
    pub fn config(&self, name: &str) -> Config {
        let mut config = self.config.clone();
        config.application_name(name);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_hosts_are_understood() {
        for text in [
            "postgresql://fluffy@/ledger?host=/run/postgresql",
            "postgresql://fluffy:secret@db1,db2:5433/ledger?sslmode=disable",
            "postgresql://fluffy:secret@localhost,127.0.0.2,[::1]:5433/ledger?sslmode=prefer",
            "postgresql://fluffy@db1/ledger?hostaddr=127.0.0.1",
            "host=/run/postgresql dbname=ledger user=fluffy",
        ] {
            let address: PostgresAddress = text.parse().unwrap();
            let config = address.config("test");
            assert_eq!(config.get_dbname(), Some("ledger"), "{text}");
            assert_eq!(config.get_ssl_mode(), SslMode::Disable);
            assert_eq!(config.get_application_name(), Some("test"));
        }
    }

    #[test]
    fn what_would_be_weakened_is_refused() {
        let parse = |text: &str| text.parse::<PostgresAddress>().unwrap_err();
        assert!(matches!(
            parse("postgresql://h/d?sslmode=require"),
            AddressError::Tls
        ));
        // Nobody's password goes over a network that was not agreed to.
        for remote in [
            "postgresql://u:p@db1/ledger",
            "postgresql://u:p@db1/ledger?sslmode=prefer",
            "postgresql://u:p@localhost,db2/ledger",
            "postgresql://u:p@192.0.2.7/ledger",
            "postgresql://u:p@localhost/ledger?hostaddr=192.0.2.7",
            "host=db1 dbname=ledger",
        ] {
            assert!(matches!(parse(remote), AddressError::Plain), "{remote}");
        }
        assert!(matches!(
            parse("postgresql://h/d?sslmode=verify-full"),
            AddressError::Syntax(_)
        ));
        assert!(matches!(
            parse("postgresql://h/d?sslmode=disable&target_session_attrs=read-only"),
            AddressError::ReadOnly
        ));
        assert!(matches!(parse("nonsense"), AddressError::Syntax(_)));
        assert!(matches!(parse(&"x".repeat(5000)), AddressError::TooLong));
    }

    #[test]
    fn a_password_is_never_shown() {
        let address: PostgresAddress = "postgresql://u:hunter2@localhost/d".parse().unwrap();
        assert!(!format!("{address:?}").contains("hunter2"));
        let error = "postgresql://u:hunter2@h/d?x=1"
            .parse::<PostgresAddress>()
            .unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
