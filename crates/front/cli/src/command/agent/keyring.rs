//! Keys from the system's keyring, read by the person's own command.
//!
//! Asked through the system's own program, at the place where the system has
//! it: `secret-tool` of libsecret (GNOME Keyring, KWallet, KeePassXC), or
//! `security` of macOS. An entry has the attributes `service` = `fluffy` and
//! `name`. The key is in no environment, argument or file of ours; it goes on
//! to the kernel as keys from variables do. Nothing here writes a keyring.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fluffy_secret::SecretString;

/// What entries of ours are filed under.
const SERVICE: &str = "fluffy";

/// The longest key.
const MAX_KEY: usize = 16 * 1024;

/// How long a person may take to unlock it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long its last words may take when it has ended.
const REST: Duration = Duration::from_secs(2);

/// Between two looks whether it has answered.
const LOOK: Duration = Duration::from_millis(10);

/// Where systems keep their own programs; what a `PATH` says is not asked.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/run/current-system/sw/bin"];

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadKeyError {
    /// There is no program to ask.
    #[error("`{program}` is not installed, which reads the system's keyring")]
    NoProgram {
        /// Which.
        program: &'static str,
    },
    /// It could not be started.
    #[error("`{program}` could not be run")]
    NotRun {
        /// Which.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nobody answered.
    #[error("the keyring did not answer within {} s", PATIENCE.as_secs())]
    Late,
    /// There is none, or it cannot be reached.
    #[error("the keyring cannot be reached: {said}")]
    NoKeyring {
        /// What the program said.
        said: String,
    },
    /// The entry is there and stays closed.
    #[error("the keyring is locked")]
    Locked,
    /// There is no such entry.
    #[error("the keyring has no entry `{name}` of the service `{SERVICE}`")]
    NoEntry {
        /// Which.
        name: String,
    },
    /// What is there is no key.
    #[error("what the keyring has under `{name}` is no key: it must be one line of text")]
    NoKey {
        /// Which.
        name: String,
    },
}

impl ReadKeyError {
    /// What to do about it.
    pub(crate) fn fix(&self) -> String {
        match self {
            Self::NoProgram { .. } => "install it (Debian: `apt install libsecret-tools`), or use \
                 `api_key = { env = \"NAME\" }`"
                .to_owned(),
            Self::NotRun { .. } | Self::NoKeyring { .. } => {
                "log in to a desktop session or start a keyring (such as `gnome-keyring-daemon`), \
                 or use `api_key = { env = \"NAME\" }`"
                    .to_owned()
            }
            Self::Late | Self::Locked => "unlock the keyring, and run the command again".to_owned(),
            Self::NoEntry { name } | Self::NoKey { name } => format!("store it: {}", store(name)),
        }
    }
}

/// The command that stores a key.
fn store(name: &str) -> String {
    match cfg!(target_os = "macos") {
        true => format!("`security add-generic-password -s {SERVICE} -a {name} -w`"),
        false => {
            format!(
                "`secret-tool store --label \"{SERVICE} {name}\" service {SERVICE} name {name}`"
            )
        }
    }
}

/// The key of this name.
pub(crate) fn read(name: &str) -> Result<SecretString, ReadKeyError> {
    match cfg!(target_os = "macos") {
        true => of_macos(name),
        false => of_secret_service(name),
    }
}

fn of_secret_service(name: &str) -> Result<SecretString, ReadKeyError> {
    let program = find("secret-tool")?;
    let entry = ["--", "service", SERVICE, "name", name];
    let asked = ask(&program, &[&["lookup"][..], &entry].concat())?;
    if asked.status.success() {
        return key(name, &asked.printed);
    }
    if !asked.errors.is_empty() {
        return Err(asked.unreachable());
    }
    // It says nothing when there is no entry, and nothing when it stays shut.
    let found = ask(&program, &[&["search", "--all"][..], &entry].concat())?;
    let is_there = |text: &[u8]| text.windows(8).any(|some| some == b"label = ");
    Err(match is_there(&found.printed) || is_there(&found.errors) {
        true => ReadKeyError::Locked,
        false => ReadKeyError::NoEntry {
            name: name.to_owned(),
        },
    })
}

fn of_macos(name: &str) -> Result<SecretString, ReadKeyError> {
    // What `security` says when there is no such item, and when it is locked.
    const NOT_FOUND: i32 = 44;
    const NOT_ALLOWED: [i32; 2] = [36, 51];
    let program = find("security")?;
    let words = ["find-generic-password", "-s", SERVICE, "-a", name, "-w"];
    let asked = ask(&program, &words)?;
    match asked.status.code() {
        Some(0) => key(name, &asked.printed),
        Some(NOT_FOUND) => Err(ReadKeyError::NoEntry {
            name: name.to_owned(),
        }),
        Some(code) if NOT_ALLOWED.contains(&code) => Err(ReadKeyError::Locked),
        _ => Err(asked.unreachable()),
    }
}

fn find(program: &'static str) -> Result<PathBuf, ReadKeyError> {
    let mut places = PLACES.iter().map(|place| Path::new(place).join(program));
    let found = places.find(|path| path.is_file());
    found.ok_or(ReadKeyError::NoProgram { program })
}

/// What a program answered.
struct Asked {
    status: ExitStatus,
    printed: Vec<u8>,
    errors: Vec<u8>,
}

impl Asked {
    fn unreachable(&self) -> ReadKeyError {
        let said = String::from_utf8_lossy(&self.errors);
        let line = said.lines().next().unwrap_or_default();
        let said = line.chars().filter(|c| !c.is_control()).take(200).collect();
        ReadKeyError::NoKeyring { said }
    }
}

fn ask(program: &Path, words: &[&str]) -> Result<Asked, ReadKeyError> {
    let not_run = |source| ReadKeyError::NotRun {
        program: program.to_owned(),
        source,
    };
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    let printed = heard(child.stdout.take());
    let errors = heard(child.stderr.take());
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(not_run)? {
            Some(status) => break status,
            None if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ReadKeyError::Late);
            }
        }
    };
    // What it started itself may hold its streams open.
    let hear = |from: &mpsc::Receiver<Vec<u8>>| from.recv_timeout(REST).unwrap_or_default();
    Ok(Asked {
        status,
        printed: hear(&printed),
        errors: hear(&errors),
    })
}

/// What comes out of a stream, once it has ended.
fn heard(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(bytes(from)));
    told
}

/// All that it has to say, up to a little more than a key.
fn bytes(from: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let most = u64::try_from(MAX_KEY).unwrap_or(u64::MAX) + 2;
        // What cannot be read is not there.
        let _ = from.take(most).read_to_end(&mut bytes);
    }
    bytes
}

fn key(name: &str, printed: &[u8]) -> Result<SecretString, ReadKeyError> {
    let text = std::str::from_utf8(printed).unwrap_or_default();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let is_key = (1..=MAX_KEY).contains(&text.len()) && !text.contains(char::is_control);
    match is_key {
        true => Ok(SecretString::from(text.to_owned())),
        false => Err(ReadKeyError::NoKey {
            name: name.to_owned(),
        }),
    }
}
