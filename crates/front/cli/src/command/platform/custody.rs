//! Master keys that several people keep: made, proved, brought, recovered.
//!
//! Shares are encrypted and decrypted by the `age` program, whose identities
//! (files, tokens, ssh keys) are the custodians' own business; here they are
//! only in memory. No server is asked but by `server unseal`.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::{ArgMatches, FromArgMatches as _};
use fluffy_base::{Clock as _, Digest, SystemClock};
use fluffy_ipc::CallError;
use fluffy_report::{ExitCode, Report};
use fluffy_server::unseal::{BringError, bring};
use fluffy_vault::{CombineError, Custody, Keyring, LoadKeyError, Share, SplitError};
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
const MAX_FILE: u64 = 64 << 10;

/// Runs the command of these words, if it is one that needs no server.
pub(super) fn run(session: &Session, words: &str, matches: &ArgMatches) -> Option<Outcome> {
    // Clap has checked them by the same definition.
    let usage = |error: clap::Error| Report::new(ExitCode::Usage, error.to_string()).into();
    match words {
        "keys init" => Some(
            InitKeysArgs::from_arg_matches(matches)
                .map_err(usage)
                .and_then(|args| init(session, &args)),
        ),
        "keys recover" => Some(
            RecoverKeysArgs::from_arg_matches(matches)
                .map_err(usage)
                .and_then(|args| recover(session, &args)),
        ),
        "keys shares verify" => Some(
            VerifySharesArgs::from_arg_matches(matches)
                .map_err(usage)
                .and_then(|args| verify(session, &args)),
        ),
        _ => None,
    }
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
    let twice = |(at, one): (usize, &String)| recipients.iter().skip(at + 1).any(|it| it == one);
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
            let text = person::secret(session, "Your share (it is not shown):", asks)?;
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
    let (key, needed, here) = (progress.key, progress.needed, progress.here.len());
    let (index, total) = (share.index(), share.total());
    let text = match progress.unsealed {
        true => format!("share {index} of {total} is taken: the server has {key}"),
        false => format!(
            "share {index} of {total} is taken: {here} of the {needed} that {key} takes are here"
        ),
    };
    session.printer.data(&text)?;
    Ok(ExitCode::Success)
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
    let mut bytes = Zeroizing::new(Vec::new());
    let read = opened.take(MAX_FILE).read_to_end(&mut bytes);
    read.map_err(|error| failure::unreadable(file, &error))?;
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
    parse(
        &format!("`{}`", file.display()),
        &String::from_utf8_lossy(&bytes),
    )
}

fn parse(place: &str, text: &str) -> Result<Share, Failure> {
    text.parse().map_err(|error: fluffy_vault::ReadShareError| {
        let report = Report::new(ExitCode::Usage, format!("{place} is not a share"));
        let fix = "use what `fluffy keys init` gave to its custodian, unchanged";
        report.why(error.to_string()).fix(fix).into()
    })
}

fn encrypt(share: &Share, recipient: &str) -> Result<Vec<u8>, Failure> {
    let text = Zeroizing::new(format!(
        "# Your share of master key {} of Fluffy Waffle. Show it to nobody.\n{}\n",
        share.key(),
        *share.expose()
    ));
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
    let mut child = Command::new("age")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(not_run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read, what it says tells why.
        let _ = stdin.write_all(bytes);
    }
    let output = child.wait_with_output().map_err(not_run)?;
    let printed = Zeroizing::new(output.stdout);
    if output.status.success() {
        return Ok(printed);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    let report = Report::new(ExitCode::Usage, what).why(line);
    Err(report
        .fix("check the recipient or identity: `age-keygen` makes one")
        .into())
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
