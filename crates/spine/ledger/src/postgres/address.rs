//! Where the PostgreSQL server is, and what is settled before connecting.
//!
//! `sslmode` means what it means to libpq, with one difference: a database on
//! another machine is not spoken to in the clear unless its address says so.
//! Never takes an address that promises more than is kept.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Socket};

use super::settings::Settings;
use super::tls::{self, LoadRootsError, Stream, Tls, Trust};

/// The longest address that is read.
const MAX_ADDRESS: usize = 4096;
/// How many events one partition of the table holds, unless told otherwise.
const PARTITION_EVENTS: u64 = 1_000_000;
/// What `sslrootcert` says instead of a file for the machine's own roots.
const SYSTEM: &str = "system";

/// A PostgreSQL database that holds, or will hold, one ledger.
#[derive(Debug, Clone)]
pub struct PostgresAddress {
    server: Server,
    /// The way past a pooler, if `server` is one.
    direct: Option<Box<Server>>,
    partition_events: u64,
}

/// One way to the database.
#[derive(Clone)]
struct Server {
    config: Config,
    tls: Tls,
    /// Whether it is spoken to in the clear where TLS does not come about.
    falls_back: bool,
    /// Whether it is on another machine, and its address says nothing of TLS.
    takes_anyone: bool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// What a connection has to keep from one statement to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Nothing beyond a transaction, so a pooler may be in between.
    Transactions,
    /// Settings, prepared statements, locks, or that it listens.
    Session,
}

/// What drives a connection.
pub(super) type Connection = tokio_postgres::Connection<Socket, Stream>;

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
    /// A setting of TLS in it can't be read.
    #[error("what the address of PostgreSQL says about TLS can't be understood")]
    Settings,
    /// There is no such `sslmode`.
    #[error(
        "`sslmode` in the address of PostgreSQL must be `disable`, `prefer`, `require`, \
         `verify-ca` or `verify-full`"
    )]
    Mode,
    /// Roots are named, and nothing is checked by them.
    #[error(
        "the address of PostgreSQL names roots by `sslrootcert`, and checks nothing by them; \
         add `sslmode=verify-full`"
    )]
    Unchecked,
    /// There are no roots to check by.
    #[error("PostgreSQL's certificate can't be checked: {0}")]
    Roots(#[source] LoadRootsError),
    /// It asks for a server that refuses writes.
    #[error("the address of PostgreSQL asks for a read-only server")]
    ReadOnly,
}

/// What `sslmode` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    fn read(text: &str) -> Result<Self, AddressError> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            _ => Err(AddressError::Mode),
        }
    }

    /// What is meant by the settings of an address that is on this machine or
    /// on another one.
    fn of(settings: &Settings, local: bool) -> Result<Self, AddressError> {
        let said = settings.mode.as_deref().map(Self::read).transpose()?;
        match (said, settings.root.as_deref()) {
            (None, Some(SYSTEM)) => Ok(Self::VerifyFull),
            (Some(mode), Some(SYSTEM)) if mode != Self::VerifyFull => Err(AddressError::Unchecked),
            (None | Some(Self::Disable | Self::Prefer), Some(_)) => Err(AddressError::Unchecked),
            // Where there are roots they are used, as libpq has it.
            (Some(Self::Require), Some(_)) => Ok(Self::VerifyCa),
            (Some(mode), _) => Ok(mode),
            (None, None) if local => Ok(Self::Prefer),
            // Nobody's password goes in the clear over a network that was not
            // agreed to.
            (None, None) => Ok(Self::Require),
        }
    }
}

impl FromStr for PostgresAddress {
    type Err = AddressError;

    /// Reads `postgresql://user@host/database` or `host=… dbname=…`; a host
    /// that starts with `/` is the directory of a Unix socket.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Ok(Self {
            server: text.parse()?,
            direct: None,
            partition_events: PARTITION_EVENTS,
        })
    }
}

impl FromStr for Server {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.len() > MAX_ADDRESS {
            return Err(AddressError::TooLong);
        }
        let Some(settings) = Settings::take(text) else {
            let read = text.parse::<Config>();
            return Err(read.map_or_else(AddressError::Syntax, |_| AddressError::Settings));
        };
        let mut config: Config = settings.rest.parse().map_err(AddressError::Syntax)?;
        let local = is_local(&config);
        let mode = Mode::of(&settings, local)?;
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(AddressError::ReadOnly);
        }
        // TLS goes by the name that was written, which may be an address.
        if config.get_hosts().is_empty() {
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        // As libpq has it, there is no TLS over a socket of this machine.
        let mode = match config.get_hosts().iter().all(is_socket) {
            true => Mode::Disable,
            false => mode,
        };
        let file = settings.root.as_deref().filter(|root| *root != SYSTEM);
        let roots = || tls::roots(file.map(Path::new));
        let trust = match mode {
            Mode::Disable | Mode::Prefer | Mode::Require => Trust::Anyone,
            Mode::VerifyCa => Trust::Signed(roots().map_err(AddressError::Roots)?),
            Mode::VerifyFull => Trust::Named(roots().map_err(AddressError::Roots)?),
        };
        let tls = Tls::new(trust).map_err(|error| AddressError::Roots(error.into()))?;
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        // Of several hosts, only the one that takes writes will do: after a
        // fail-over that is another one.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(3));
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(20));
        }
        config.keepalives_idle(Duration::from_secs(20));
        Ok(Self {
            config,
            tls,
            falls_back: mode == Mode::Prefer,
            takes_anyone: !local && settings.mode.is_none() && mode == Mode::Require,
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

impl Server {
    async fn open(&self, name: &str) -> Result<(Client, Connection), tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.application_name(name);
        match config.connect(self.tls.clone()).await {
            Err(error) if self.falls_back && may_be_plain(&error) => {
                config.ssl_mode(SslMode::Disable);
                config.connect(self.tls.clone()).await
            }
            opened => opened,
        }
    }
}

/// Whether it failed because of TLS alone: libpq's `prefer` goes on without.
fn may_be_plain(error: &tokio_postgres::Error) -> bool {
    // Rows of `pg_hba.conf` may be for connections without TLS only.
    let unwanted = Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
    tls::is_refused(error) || error.code() == unwanted
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

    /// Says that this address is of a pooler that gives a session of the
    /// server for one transaction, and which one leads to the server itself.
    ///
    /// Whatever needs a session goes to the server: appending, views, locks
    /// and `LISTEN`. What is read goes through the pooler.
    #[must_use]
    pub fn with_direct(mut self, direct: Self) -> Self {
        self.direct = Some(Box::new(direct.server));
        self
    }

    /// Whether there is a pooler in between for what needs no session.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether it is on another machine, encrypted, and nothing in its address
    /// says that whoever answers there is fine.
    #[must_use]
    pub fn takes_anyone(&self) -> bool {
        self.server.takes_anyone
    }

    pub(super) fn partition_events(&self) -> u64 {
        self.partition_events
    }

    pub(super) async fn open(
        &self,
        name: &str,
        way: Way,
    ) -> Result<(Client, Connection), tokio_postgres::Error> {
        let direct = self.direct.as_deref().filter(|_| way == Way::Session);
        direct.unwrap_or(&self.server).open(name).await
    }

    /// Opens a connection that calls itself `name`; it goes on while what
    /// comes with it is polled.
    ///
    /// # Errors
    /// The server can't be reached, or refuses.
    pub async fn connect(
        &self,
        name: &str,
        way: Way,
    ) -> Result<(Client, impl Future<Output = ()> + Send + use<>), tokio_postgres::Error> {
        let (client, connection) = self.open(name, way).await?;
        // Whoever uses the connection hears of its end by the answer.
        Ok((client, async move { drop(connection.await) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> Server {
        text.parse().unwrap()
    }

    fn mode(text: &str) -> (SslMode, bool) {
        let server = server(text);
        (server.config.get_ssl_mode(), server.falls_back)
    }

    #[test]
    fn sockets_and_hosts_are_understood() {
        for text in [
            "postgresql://fluffy@/ledger?host=/run/postgresql",
            "postgresql://fluffy:secret@db1,db2:5433/ledger?sslmode=disable",
            "postgresql://fluffy:secret@localhost,127.0.0.2,[::1]:5433/ledger?sslmode=prefer",
            "postgresql://fluffy@db1/ledger?hostaddr=127.0.0.1",
            "host=/run/postgresql dbname=ledger user=fluffy",
        ] {
            assert_eq!(server(text).config.get_dbname(), Some("ledger"), "{text}");
        }
    }

    #[test]
    fn a_mode_means_what_libpq_means_by_it() {
        const OFF: (SslMode, bool) = (SslMode::Disable, false);
        const PREFER: (SslMode, bool) = (SslMode::Prefer, true);
        const MUST: (SslMode, bool) = (SslMode::Require, false);
        for (text, expected) in [
            ("postgresql://h/d?sslmode=disable", OFF),
            ("postgresql://h/d?sslmode=prefer", PREFER),
            ("postgresql://h/d?sslmode=require", MUST),
            ("host=h sslmode='require'", MUST),
            ("postgresql://localhost/d", PREFER),
            ("postgresql://db1/d?hostaddr=127.0.0.1", PREFER),
            // There is no TLS over a socket.
            ("postgresql:///d?host=/run/postgresql&sslmode=require", OFF),
        ] {
            assert_eq!(mode(text), expected, "{text}");
        }
        let refused = |text: &str| text.parse::<PostgresAddress>().unwrap_err();
        for unknown in ["allow", "verify_full", "", "REQUIRE"] {
            let error = refused(&format!("postgresql://h/d?sslmode={unknown}"));
            assert!(matches!(error, AddressError::Mode), "{unknown}: {error}");
        }
    }

    #[test]
    fn what_would_be_weakened_is_refused() {
        let parse = |text: &str| text.parse::<PostgresAddress>().unwrap_err();
        // Nobody's password goes in the clear over a network that was not
        // agreed to.
        for remote in [
            "postgresql://u:p@db1/ledger",
            "postgresql://u:p@localhost,db2/ledger",
            "postgresql://u:p@192.0.2.7/ledger",
            "postgresql://u:p@localhost/ledger?hostaddr=192.0.2.7",
            "host=db1 dbname=ledger",
        ] {
            assert_eq!(mode(remote), (SslMode::Require, false), "{remote}");
            assert!(server(remote).takes_anyone, "{remote}");
            let agreed = server("postgresql://db1/d?sslmode=require");
            assert!(!agreed.takes_anyone && !server("host=localhost").takes_anyone);
        }
        // Roots that nothing is checked by.
        for text in [
            "postgresql://h/d?sslrootcert=/x",
            "postgresql://h/d?sslmode=prefer&sslrootcert=/x",
            "postgresql://h/d?sslmode=disable&sslrootcert=/x",
            "postgresql://h/d?sslmode=verify-ca&sslrootcert=system",
        ] {
            assert!(matches!(parse(text), AddressError::Unchecked), "{text}");
        }
        // Roots that are not there.
        for text in [
            "postgresql://h/d?sslmode=verify-full&sslrootcert=/nowhere",
            "postgresql://h/d?sslmode=verify-ca&sslrootcert=/dev/null",
            "postgresql://h/d?sslmode=require&sslrootcert=/nowhere",
        ] {
            assert!(matches!(parse(text), AddressError::Roots(_)), "{text}");
        }
        assert!(matches!(
            parse("postgresql://h/d?sslcert=/mine"),
            AddressError::Syntax(_)
        ));
        assert!(matches!(
            parse("postgresql://h/d?sslmode=disable&target_session_attrs=read-only"),
            AddressError::ReadOnly
        ));
        assert!(matches!(parse("nonsense"), AddressError::Syntax(_)));
        assert!(matches!(
            parse("postgresql://h/d?sslmode=%ff"),
            AddressError::Settings | AddressError::Syntax(_)
        ));
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
