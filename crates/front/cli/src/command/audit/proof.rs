//! `fluffy audit prove` and `check-proof`: one event, believed elsewhere.

use std::fs;
use std::io::Write;
use std::path::Path;

use fluffy_ledger::proof::{ParseProofError, Proof};
use fluffy_report::{ExitCode, Report};
use serde_json::json;

use super::{show, verify};
use crate::command::{Outcome, ledger};
use crate::failure::{self, Failure};
use crate::session::Session;

/// The most bytes that are read as a proof.
const MAX_FILE: u64 = 2 << 20;

/// Writes a proof that an event is in the ledger.
pub(crate) fn prove(session: &Session, seq: u64, output: Option<&Path>) -> Outcome {
    let here = session.here()?;
    let archives = ledger::archives(&ledger::folder(here)?);
    let open = ledger::open_existing(session, here)?;
    let proof = open
        .ledger
        .prove_with_archives(seq, &ledger::signing(here), &archives)
        .map_err(|error| failure::prove(&error))?;
    ledger::close(session, open)?;
    let text = proof.to_string();
    let Some(path) = output else {
        if session.json() {
            let size = proof.checkpoint.checkpoint.size;
            let value = json!({"text": text, "seq": seq, "size": size});
            session.printer.json(&value)?;
        } else {
            session.printer.raw(text.as_bytes())?;
        }
        return Ok(ExitCode::Success);
    };
    let write = fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    write.map_err(|error| failure::unwritable(path, &error))?;
    if session.json() {
        let checkpoint = &proof.checkpoint.checkpoint;
        session
            .printer
            .json(&json!({"proof": path, "seq": seq, "size": checkpoint.size}))?;
    } else {
        session.printer.data(&format!(
            "wrote {}: event {seq} among {} events, {} hashes",
            path.display(),
            proof.checkpoint.checkpoint.size,
            proof.path.len()
        ))?;
    }
    Ok(ExitCode::Success)
}

/// Checks a proof; needs no ledger.
pub(crate) fn check(session: &Session, path: &Path, key: Option<&str>) -> Outcome {
    let text = read(path)?;
    let proof = Proof::parse(&text).map_err(|error| not_a_proof(path, &error))?;
    let pinned = key.map(verify::parse_key).transpose()?;
    let key = match pinned {
        Some(key) => key,
        None => own_key(session)?,
    };
    proof.check(&key).map_err(|error| {
        Report::from_error(ExitCode::Internal, &error)
            .code("proof_does_not_hold")
            .fix("check that the proof was not changed and that the key is the ledger's")
    })?;
    let event = &proof.event;
    if session.json() {
        let value = json!({
            "holds": true,
            "key": key.to_string(),
            "key_pinned": pinned.is_some(),
            "origin": proof.checkpoint.checkpoint.origin,
            "size": proof.checkpoint.checkpoint.size,
            "event": show::json(event),
        });
        session.printer.json(&value)?;
        return Ok(ExitCode::Success);
    }
    let checkpoint = &proof.checkpoint.checkpoint;
    let signer = if pinned.is_some() {
        "the pinned key"
    } else {
        "the key on this machine"
    };
    session.printer.data("The proof holds.")?;
    session
        .printer
        .data(&format!("  event   {}", show::line(event)))?;
    session.printer.data(&format!(
        "  ledger  {} with {} events, signed by {signer}",
        checkpoint.origin, checkpoint.size
    ))?;
    Ok(ExitCode::Success)
}

fn read(path: &Path) -> Result<String, Failure> {
    let size = fs::metadata(path)
        .map_err(|error| failure::unreadable(path, &error))?
        .len();
    if size > MAX_FILE {
        return Err(not_a_proof(path, &ParseProofError::TooLong).into());
    }
    Ok(fs::read_to_string(path).map_err(|error| failure::unreadable(path, &error))?)
}

fn own_key(session: &Session) -> Result<fluffy_ledger::PublicKey, Failure> {
    let file = ledger::key_file(session.here()?);
    if !file.exists() {
        return Err(
            Report::new(ExitCode::Usage, "there is no key to check the proof with")
                .why("this machine has no ledger of its own")
                .fix("pass the ledger's public key with --key")
                .into(),
        );
    }
    let key = fluffy_ledger::SigningKeyFile::open(&file).map_err(|e| failure::key_file(&e))?;
    Ok(key.public_key())
}

fn not_a_proof(path: &Path, error: &ParseProofError) -> Report {
    Report::new(
        ExitCode::Usage,
        format!("`{}` is not a proof", path.display()),
    )
    .why_chain(Some(error))
    .fix("pass a file that `fluffy audit prove` wrote, unchanged")
}
