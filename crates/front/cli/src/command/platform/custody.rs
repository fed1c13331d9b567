//! Master keys that several people keep: made, proved, brought, recovered.
//!
//! Shares are encrypted and decrypted by the `age` program, whose identities
//! (files, tokens, ssh keys) are the custodians' own business; here they are
//! only in memory, which is dumped for nobody, in buffers that do not grow. No
//! server is asked but by `server unseal`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::thread;

use clap::{ArgMatches, FromArgMatches as _};
use fluffy_base::{Clock as _, Digest, SystemClock};
use fluffy_ipc::CallError;
use fluffy_node::privileges;
use fluffy_report::{ExitCode, Report};
use fluffy_server::unseal::{BringError, Progress, bring};
use fluffy_vault::{CombineError, Custody, Keyring, LoadKeyError, Share, SplitError, shares};
use serde_json::json;
use zeroize::Zeroizing;

use super::ask;
use crate::args::platform::{
    IdentityArgs, InitKeysArgs, RecoverKeysArgs, UnsealArgs, VerifySharesArgs,
};
use crate::command::{Outcome, person};
use crate::failure::{self, Failure};
use crate::session::Session;

/// How the files of `age` begin.
const ENCRYPTED: [&[u8]; 2] = [
    b"age-encryption.org/",
    b"-----BEGIN AGE ENCRYPTED FILE-----",
];
/// The largest file with a share.
const MAX_FILE: usize = 64 << 10;
/// The most of what `age` says that is looked at.
const MAX_SAID: u64 = 16 << 10;
/// What `age` and its plugins know of this environment: where programs and
/// tokens are, and how a person is asked. Nothing that loads code or writes
/// down what they do.
const PASSED_ON: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TERM",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "GPG_TTY",
    "PCSCLITE_CSOCK_NAME",
    "TPM2TOOLS_TCTI",
];

/// Runs the command of these words, if it is one that needs no server.
pub(super) fn run(session: &Session, words: &str, matches: &ArgMatches) -> Option<Outcome> {
    // Clap has checked them by the same definition.
    let usage = |error: clap::Error| Failure::from(Report::new(ExitCode::Usage, error.to_string()));
    let run: fn(&Session, &ArgMatches) -> Result<Outcome, clap::Error> = match words {
        "keys init" => |session, matches| {
            InitKeysArgs::from_arg_matches(matches).map(|args| init(session, &args))
        },
        "keys recover" => |session, matches| {
            RecoverKeysArgs::from_arg_matches(matches).map(|args| recover(session, &args))
        },
        "keys shares verify" => |session, matches| {
            VerifySharesArgs::from_arg_matches(matches).map(|args| verify(session, &args))
        },
        _ => return None,
    };
    let concealed = conceal().and_then(|()| run(session, matches).map_err(usage)?);
    Some(concealed)
}

/// Keeps what is in memory from here on out of dumps, and out of the swap if
/// that is allowed.
fn conceal() -> Result<(), Failure> {
    privileges::conceal().map_err(|error| {
        let report = Report::from_error(ExitCode::Failure, &error);
        let report = report.why("the memory of this process can't be kept out of dumps");
        report
            .fix("run it outside of a sandbox that forbids that")
            .into()
    })
}

/// Makes or takes a key, and gives every custodian a share of it.
fn init(session: &Session, args: &InitKeysArgs) -> Outcome {
    let recipients = &args.custodians;
    if recipients.len() != usize::from(args.shares) {
        let what = format!("{} shares for {} custodians", args.shares, recipients.len());
        let report = Report::new(ExitCode::Usage, what);
        return Err(report
            .fix("name each custodian once, by --custodian")
            .into());
    }
    let twice = |(at, one): (usize, &String)| {
        let mut others = recipients.iter().skip(at + 1);
        others.any(|it| identity(it) == identity(one))
    };
    if recipients.iter().enumerate().any(twice) {
        let report = Report::new(ExitCode::Usage, "a custodian would have two shares");
        return Err(report
            .fix("name each custodian once, by --custodian")
            .into());
    }
    let old = match (args.after.as_slice(), args.renew.as_slice()) {
        ([], []) => None,
        ([], files) | (files, _) => Some(combined(files, &args.with)?.0),
    };
    let custody = match (&args.keys, old) {
        (Some(folder), _) if Keyring::is_absent(folder) => {
            let what = format!("there are no master keys in `{}`", folder.display());
            return Err(Report::new(ExitCode::NotFound, what)
                .fix("name the folder of the server's keys, or leave --keys out for a new key")
                .into());
        }
        (Some(folder), _) => {
            let ring = Keyring::open(folder).map_err(|error| keys(&error))?;
            ring.custody().map_err(|error| keys(&error))?
        }
        (None, Some(old)) if args.renew.is_empty() => old.next().map_err(|error| keys(&error))?,
        (None, Some(old)) => old,
        (None, None) => Custody::generate().map_err(|error| keys(&error))?,
    };
    let shares = custody.split(args.shares, args.threshold);
    let shares = shares.map_err(|error| {
        let (exit, fix) = match &error {
            SplitError::Numbers { .. } => (ExitCode::Usage, "change --shares or --threshold"),
            SplitError::Randomness | SplitError::Unproven { .. } => (
                ExitCode::Internal,
                "do it again, on another machine if it fails again",
            ),
        };
        Failure::of(exit, &error, fix)
    })?;
    let sealed: Vec<(&Share, &String, Vec<u8>)> = shares
        .iter()
        .zip(recipients)
        .map(|(share, recipient)| Ok((share, recipient, encrypt(share, recipient)?)))
        .collect::<Result<_, Failure>>()?;
    let record = record(&custody, args, &sealed)?;
    write_all(&args.out, &sealed, &record)?;
    let (key, set) = (custody.key_id(), set_of(&shares));
    let names: Vec<String> = sealed.iter().map(|(share, ..)| name(share)).collect();
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Custody",
            "data": {
                "key": key, "set": set, "shares": args.shares, "threshold": args.threshold,
                "folder": args.out, "files": names, "record": record_name(&shares),
            },
        }))?;
        return Ok(ExitCode::Success);
    }
    session.printer.data(&record)?;
    let folder = args.out.display();
    session.printer.note(&format!(
        "next: have the record in `{folder}` signed, give each custodian their file, and keep \
         none of them here"
    ));
    Ok(ExitCode::Success)
}

/// Who a recipient is: what stands after an ssh key is a remark.
fn identity(recipient: &str) -> Vec<&str> {
    let words = recipient.split_whitespace();
    let of_ssh = recipient.trim_start().starts_with("ssh-");
    words.take(if of_ssh { 2 } else { 1 }).collect()
}

/// Puts a key back from its shares.
fn recover(session: &Session, args: &RecoverKeysArgs) -> Outcome {
    let (custody, shares) = combined(&args.files, &args.with)?;
    Keyring::restore(&args.keys, &custody).map_err(|error| keys(&error))?;
    let (key, folder) = (custody.key_id(), args.keys.display());
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Recovered",
            "data": {"key": key, "folder": args.keys, "shares": numbers(&shares)},
        }))?;
        return Ok(ExitCode::Success);
    }
    session.printer.data(&format!(
        "{key} is in `{folder}`, from {}",
        in_words(&shares)
    ))?;
    session.printer.note(
        "next: a server that waits for it goes on by itself; if a share was lost, make new ones \
         with `fluffy keys init --renew`",
    );
    Ok(ExitCode::Success)
}

/// Proves that shares are a key, and keeps nothing.
fn verify(session: &Session, args: &VerifySharesArgs) -> Outcome {
    let (custody, shares) = combined(&args.files, &args.with)?;
    let key = custody.key_id();
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "SharesVerified",
            "data": {"key": key, "set": set_of(&shares), "shares": numbers(&shares)},
        }))?;
        return Ok(ExitCode::Success);
    }
    let shares = in_words(&shares);
    session
        .printer
        .data(&format!("{key} is what {shares} make; it was not kept"))?;
    Ok(ExitCode::Success)
}

/// Brings a share to the server of this machine.
pub(super) fn unseal(session: &Session, args: &UnsealArgs) -> Outcome {
    conceal()?;
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => session.here()?.paths.state_dir.join("server"),
    };
    let socket = std::path::absolute(socket(&folder));
    let socket = socket.map_err(|error| failure::unreadable(&folder, &error))?;
    let share = match &args.file {
        Some(file) => read(file, &args.with)?,
        None => {
            let asks = person::Asks::Allowed {
                words: "fluffy server unseal",
            };
            let question = "Your share (it is not shown):";
            let text = person::secret_line(session, question, shares::BEGINNING, asks)?;
            parse("what was typed", text.expose())?
        }
    };
    let progress = ask::block(async {
        let brought = bring(&socket, &share).await;
        brought.map_err(|error| not_brought(&error))
    })?;
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "Unsealing", "data": progress,
        }))?;
        return Ok(ExitCode::Success);
    }
    session.printer.data(&done(&share, &progress))?;
    let Progress { key, needs, .. } = &progress;
    if let Some(newest) = progress.newest.filter(|newest| !needs.contains(newest)) {
        session.printer.warn(&format!(
            "{key} is not the newest master key, and new secrets are refused until the shares of \
             {newest} are brought too"
        ));
    }
    for other in needs {
        session.printer.warn(&format!(
            "the server does not go on without master key {other}: have its custodians bring \
             their shares too"
        ));
    }
    Ok(ExitCode::Success)
}

/// What became of a share, in words.
fn done(share: &Share, progress: &Progress) -> String {
    let (key, needed, here) = (progress.key, progress.needed, progress.here.len());
    if progress.already {
        return format!("the server has {key} already: the share was not needed");
    }
    let taken = format!("share {} of {} is taken", share.index(), share.total());
    match progress.unsealed {
        true => format!("{taken}: the server has {key}"),
        false if here >= usize::from(needed) => {
            format!("{taken}: {key} is whole, and waits for another key")
        }
        false => format!("{taken}: {here} of the {needed} that {key} takes are here"),
    }
}

/// Where a server takes shares.
pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("custody/unseal.sock")
}

/// The key of the shares in these files.
fn combined(files: &[PathBuf], with: &IdentityArgs) -> Result<(Custody, Vec<Share>), Failure> {
    let shares = files.iter().map(|file| read(file, with));
    let shares: Vec<Share> = shares.collect::<Result<_, _>>()?;
    let custody = Custody::combine(&shares).map_err(|error| {
        let (exit, fix) = match &error {
            CombineError::Sets { .. } => (ExitCode::Usage, "name shares of one set"),
            CombineError::TooFew { .. } => (ExitCode::Usage, "name as many different ones"),
            CombineError::Integrity { .. } => (
                ExitCode::Internal,
                "try other groups of custodians: the share that is in every group that fails is it",
            ),
        };
        Failure::of(exit, &error, fix)
    })?;
    Ok((custody, shares))
}

/// The share in a file, decrypted if it is not in the clear.
fn read(file: &Path, with: &IdentityArgs) -> Result<Share, Failure> {
    let opened = fs::File::open(file).map_err(|error| failure::unreadable(file, &error))?;
    let bytes = filled(opened).map_err(|error| failure::unreadable(file, &error))?;
    let mut bytes = bytes.ok_or_else(|| too_large(&format!("`{}`", file.display())))?;
    if ENCRYPTED.iter().any(|head| bytes.starts_with(head)) {
        if with.identities.is_empty() {
            let what = format!("the share in `{}` is encrypted", file.display());
            return Err(Report::new(ExitCode::Usage, what)
                .fix("add --identity FILE, or decrypt it by `age -d` yourself")
                .into());
        }
        let mut words = vec!["--decrypt".to_owned()];
        for identity in &with.identities {
            words.extend(["--identity".to_owned(), identity.display().to_string()]);
        }
        let what = format!("`{}` can't be decrypted", file.display());
        bytes = age(&words, &bytes, &what)?;
    }
    // What is no text is no share either.
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    parse(&format!("`{}`", file.display()), text)
}

/// Everything that there is, with room for all of it at once: growing would
/// leave copies behind. None if it is more than any file with a share.
fn filled(mut from: impl Read) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut bytes = Zeroizing::new(vec![0; MAX_FILE + 1]);
    let mut length = 0;
    while let Some(free) = bytes.get_mut(length..).filter(|free| !free.is_empty()) {
        match from.read(free) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(length);
    Ok((length <= MAX_FILE).then_some(bytes))
}

fn too_large(what: &str) -> Failure {
    let what = format!("{what} is larger than any file with a share");
    let report = Report::new(ExitCode::Usage, what);
    report
        .fix("use what `fluffy keys init` gave to its custodian, unchanged")
        .into()
}

fn parse(place: &str, text: &str) -> Result<Share, Failure> {
    text.parse().map_err(|error: fluffy_vault::ReadShareError| {
        let report = Report::new(ExitCode::Usage, format!("{place} is not a share"));
        let fix = "use what `fluffy keys init` gave to its custodian, unchanged";
        report.why(error.to_string()).fix(fix).into()
    })
}

fn encrypt(share: &Share, recipient: &str) -> Result<Vec<u8>, Failure> {
    let mut text = Zeroizing::new(String::with_capacity(1024));
    // A text takes everything.
    let _ = writeln!(
        text,
        "# Your share of master key {} of Fluffy Waffle. Show it to nobody.\n{}",
        share.key(),
        *share.expose()
    );
    let words = ["--recipient".to_owned(), recipient.to_owned()];
    let what = format!("nothing can be encrypted to `{recipient}`");
    let sealed = age(&words, text.as_bytes(), &what)?;
    Ok(sealed.to_vec())
}

/// What `age` makes of some bytes.
fn age(words: &[String], bytes: &[u8], what: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let not_run = |error: io::Error| {
        let report = Report::new(ExitCode::NotFound, "the program `age` can't be run");
        let report = report.why(error.to_string());
        Failure::from(report.fix("install it, such as by `apt-get install age`"))
    };
    let environment = PASSED_ON.iter().filter_map(|name| {
        let value: OsString = std::env::var_os(name)?;
        Some((name, value))
    });
    let mut child = Command::new("age")
        .args(words)
        .env_clear()
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    // Heard beside the rest: who is not heard may stop.
    let said = child.stderr.take().map(|said| thread::spawn(|| hear(said)));
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read, what it says tells why.
        let _ = stdin.write_all(bytes);
    }
    let printed = child.stdout.take().map(filled).transpose();
    let status = child.wait().map_err(not_run)?;
    let printed = printed.map_err(not_run)?.flatten();
    if status.success() {
        return printed.ok_or_else(|| too_large("what was encrypted"));
    }
    let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
    let line = said.lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    let report = Report::new(ExitCode::Usage, what).why(line);
    Err(report
        .fix("check the recipient or identity: `age-keygen` makes one")
        .into())
}

/// What it says, as far as anybody reads.
fn hear(mut said: ChildStderr) -> String {
    let mut text = Vec::new();
    let read = said.by_ref().take(MAX_SAID).read_to_end(&mut text);
    // The rest only has to go somewhere.
    let _ = read.and_then(|_| io::copy(&mut said, &mut io::sink()));
    String::from_utf8_lossy(&text).into_owned()
}

/// What those who were there sign.
fn record(
    custody: &Custody,
    args: &InitKeysArgs,
    sealed: &[(&Share, &String, Vec<u8>)],
) -> Result<String, Failure> {
    let program = fs::read("/proc/self/exe").map_err(|error| failure::no_program(&error))?;
    let (key, now) = (custody.key_id(), SystemClock.now());
    let set = sealed.first().map(|(share, ..)| share.set().to_string());
    let mut text = format!(
        "Custody of master key {key}\n\
         set        {} of {} shares, any {} of which are the key: every group was proved\n\
         made       {now}\n\
         by         {}\n\
         program    fluffy {}, {}\n",
        set.unwrap_or_default(),
        args.shares,
        args.threshold,
        person::name(),
        env!("CARGO_PKG_VERSION"),
        Digest::of(&program),
    );
    for (share, recipient, bytes) in sealed {
        let (index, file, digest) = (share.index(), name(share), Digest::of(bytes));
        text += &format!("share {index}    for {recipient}\n           {file}, {digest}\n");
    }
    text += "\nSigned by two custodians and a witness:\n\n\n";
    Ok(text)
}

/// Writes everything, or leaves nothing.
fn write_all(
    folder: &Path,
    sealed: &[(&Share, &String, Vec<u8>)],
    record: &str,
) -> Result<(), Failure> {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(|error| failure::unwritable(folder, &error))?;
    let shares = sealed
        .iter()
        .map(|(share, _, bytes)| (name(share), bytes.as_slice()));
    let record = sealed
        .first()
        .map(|(share, ..)| (record_of(share), record.as_bytes()));
    let mut written: Vec<PathBuf> = Vec::new();
    for (name, bytes) in shares.chain(record) {
        let path = folder.join(name);
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let done = options.open(&path).and_then(|mut file| {
            written.push(path.clone());
            file.write_all(bytes)?;
            file.sync_all()
        });
        if let Err(error) = done {
            for path in &written {
                // What can't be removed is encrypted.
                let _ = fs::remove_file(path);
            }
            return Err(failure::unwritable(&path, &error).into());
        }
    }
    Ok(())
}

fn name(share: &Share) -> String {
    format!("{}-{}-{}.age", share.key(), share.set(), share.index())
}

fn record_of(share: &Share) -> String {
    format!("{}-{}-record.txt", share.key(), share.set())
}

fn record_name(shares: &[Share]) -> Option<String> {
    shares.first().map(record_of)
}

fn set_of(shares: &[Share]) -> Option<String> {
    shares.first().map(|share| share.set().to_string())
}

fn numbers(shares: &[Share]) -> Vec<u8> {
    let mut numbers: Vec<u8> = shares.iter().map(Share::index).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn in_words(shares: &[Share]) -> String {
    let numbers = numbers(shares).into_iter().map(|it| it.to_string());
    let (numbers, set) = (numbers.collect::<Vec<_>>().join(", "), set_of(shares));
    format!("shares {numbers} of set {}", set.unwrap_or_default())
}

fn keys(error: &LoadKeyError) -> Failure {
    let (exit, fix) = match error {
        LoadKeyError::Foreign { .. } => (
            ExitCode::Conflict,
            "name the folder of the platform that the key is of, or an empty one",
        ),
        LoadKeyError::Missing { .. } => (
            ExitCode::NotFound,
            "recover the key that is missing by its shares first",
        ),
        LoadKeyError::Randomness => (ExitCode::Internal, "do it again on another machine"),
        LoadKeyError::Others { .. } => (
            ExitCode::Conflict,
            "on the server, `fluffy keys rewrap --wait` and then `fluffy keys retire` each of \
             them: what they sealed would have no custodians",
        ),
        _ => (
            ExitCode::Usage,
            "check that the folder is yours alone and holds what the server left there",
        ),
    };
    Failure::of(exit, error, fix)
}

fn not_brought(error: &BringError) -> Failure {
    match error {
        BringError::Connect(error) => Failure::of(
            ExitCode::Transient,
            error,
            "start the server with `--unseal`, run this as its user, and name its folder by \
             --data if it has one of its own",
        ),
        BringError::Call(CallError::Failed { failure, .. }) => {
            let (exit, fix) = match failure.retryable {
                true => (ExitCode::Transient, "bring it again in a moment"),
                false => (
                    ExitCode::Denied,
                    "find the wrong one by `fluffy keys shares verify`; then bring all of them \
                     again",
                ),
            };
            let report = Report::new(exit, "the server did not take the share");
            report.why(failure.message.clone()).fix(fix).into()
        }
        BringError::Call(error) => {
            Failure::of(ExitCode::Transient, error, "bring it again in a moment")
        }
    }
}
