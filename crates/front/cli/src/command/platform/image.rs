//! `fluffy image …`: images without an engine or a builder.

use fluffy_image::document::ImageConfig;
use fluffy_image::{PackError, pack};
use fluffy_report::ExitCode;
use serde_json::json;

use crate::args::{ImageCommand, ImagePackArgs};
use crate::command::Outcome;
use crate::failure::Failure;
use crate::session::Session;

/// Runs one of the commands about images.
pub(crate) fn run(session: &Session, command: ImageCommand) -> Outcome {
    match command {
        ImageCommand::Pack(args) => run_pack(session, args),
    }
}

fn run_pack(session: &Session, args: ImagePackArgs) -> Outcome {
    let folder = session.folder()?;
    let runs = ImageConfig {
        env: args.variables,
        cmd: args.command,
        user: args.user.unwrap_or_default(),
        workdir: args.workdir.unwrap_or_default(),
        ..ImageConfig::default()
    };
    let (root, layout) = (folder.join(&args.root), folder.join(&args.image));
    let packed = pack(&root, &layout, &runs).map_err(|error| failed(&error))?;
    if session.json() {
        session.printer.json(&json!({
            "api_version": "v1", "kind": "PackedImage", "image": format!("oci:{}", layout.display()),
            "digest": format!("sha256:{}", packed.digest), "entries": packed.entries,
            "bytes": packed.bytes,
        }))?;
    } else {
        session.printer.data(&format!(
            "sha256:{}\n  {} files, folders and links, {} bytes",
            packed.digest, packed.entries, packed.bytes
        ))?;
    }
    Ok(ExitCode::Success)
}

fn failed(error: &PackError) -> Failure {
    let (code, fix) = match error {
        PackError::Read { .. } => (
            ExitCode::NotFound,
            "name a folder that is there and can be read",
        ),
        PackError::Write { .. } => (
            ExitCode::Conflict,
            "name a place that is not there yet, in a folder that is yours and has room",
        ),
        PackError::Inside { .. } => (ExitCode::Usage, "write it beside the folder"),
        PackError::Entry { .. } => (ExitCode::Usage, "take it out of the folder"),
        PackError::Architecture(_) | PackError::Config => (
            ExitCode::Failure,
            "pack it on a machine with Linux on amd64 or arm64",
        ),
    };
    Failure::of(code, error, fix)
}
