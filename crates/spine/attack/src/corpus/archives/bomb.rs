//! Unpacks a small archive that is large inside.
//!
//! Twice the limit of the disk, at most 2 GiB, of zeros.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::corpus::look;
use crate::corpus::prelude::*;

pub(crate) const ATTACK: Attack = Attack::new("bomb", Family::Archives, Guard::DiskLimit, attempt)
    .gains("fills the disk by a small archive that is large inside")
    .on_its_word();

fn attempt(stage: &Stage) -> Outcome {
    let target = stage.limits.disk.saturating_mul(2).min(2 << 30);
    let packed = match pack_zeros() {
        Ok(packed) => packed,
        Err(outcome) => return outcome,
    };
    // In parts, so that no limit on one file stops it.
    let parts = target.div_ceil(PART);
    for part in 0..parts {
        let unpacked = File::create(format!("part-{part}")).and_then(|file| {
            let mut child = Command::new("gzip")
                .args(["-d", "-c"])
                .stdin(Stdio::piped())
                .stdout(file)
                .stderr(Stdio::null())
                .spawn()?;
            let written = child
                .stdin
                .take()
                .map_or(Ok(()), |mut input| input.write_all(&packed));
            let status = child.wait()?;
            written?;
            Ok(status)
        });
        match unpacked {
            Ok(status) if status.success() => {}
            Ok(status) => return Outcome::blocked(format!("gzip: {status}")),
            Err(error) => return Outcome::stopped("unpack", error),
        }
    }
    look::hold_still();
    Outcome::succeeded(format!("unpacked {} MiB", target >> 20))
}

/// How large each part is.
const PART: u64 = 16 << 20;

/// Has `gzip` pack one part of zeros.
fn pack_zeros() -> Result<Vec<u8>, Outcome> {
    let child = Command::new("gzip")
        .args(["-9", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|_| Outcome::unavailable("there is no `gzip` inside"))?;
    let zeros = vec![0_u8; 1 << 20];
    if let Some(mut input) = child.stdin.take() {
        for _ in 0..PART >> 20 {
            input
                .write_all(&zeros)
                .map_err(|error| Outcome::stopped("pack", error))?;
        }
    }
    let output = child
        .wait_with_output()
        .map_err(|error| Outcome::stopped("pack", error))?;
    Ok(output.stdout)
}
