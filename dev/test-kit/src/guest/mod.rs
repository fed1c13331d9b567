//! Small virtual machines for what this machine's own kernel cannot show.
//!
//! Emulated, so that no hardware is needed: a kernel of the distribution, a
//! file system in memory made here, and a serial line that everything said
//! inside comes out of. No network and no disk of the host. Next: `image` for
//! what is inside, `kernel` for where the kernel comes from.

mod image;
mod kernel;

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use image::GuestImage;
pub use kernel::GuestKernel;

/// The program that emulates.
pub const EMULATOR: &str = "qemu-system-x86_64";
/// The most that a guest may say.
const MOST_OUTPUT: usize = 16 << 20;

/// A machine to boot.
#[derive(Debug)]
pub struct Guest<'a> {
    /// What runs.
    pub kernel: &'a GuestKernel,
    /// The file system; the kernel starts `/init` in it.
    pub image: &'a GuestImage,
    /// More words for the kernel.
    pub options: &'a str,
    /// Its memory, in MiB.
    pub memory: u32,
}

impl Guest<'_> {
    /// Boots it and waits for its end; what it said on its serial line.
    ///
    /// # Errors
    /// When it cannot be started, or has not ended by itself in time; then
    /// what it said so far is part of the error.
    pub fn run(&self, patience: Duration) -> Result<String> {
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let archive = folder.path().join("image");
        std::fs::write(&archive, self.image.archive()).context("cannot write the image")?;
        let mut machine = self.start(&archive)?;
        let heard = listen(&mut machine, patience);
        // Only does something where it has not ended by itself.
        let _ = machine.kill();
        machine.wait().context("cannot wait for the emulator")?;
        match heard? {
            Heard::All(text) => Ok(text),
            Heard::Part(text) => bail!("the guest has not ended in {patience:?}; it said:\n{text}"),
        }
    }

    fn start(&self, archive: &Path) -> Result<Child> {
        // The kernel is silent: its words would fall between those of others.
        let options = format!(
            "console=ttyS0 loglevel=0 reboot=t panic=-1 {}",
            self.options
        );
        // Ends with the thread that waits for it, however that ends.
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", EMULATOR])
            .args(["-M", "microvm,acpi=off,pit=on,pic=on,rtc=on"])
            .args(["-accel", "tcg", "-cpu", "max", "-smp", "2"])
            .args(["-m", &self.memory.to_string()])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(self.kernel.file())
            .arg("-initrd")
            .arg(archive)
            .args(["-append", &options])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start setpriv")
    }
}

/// What was heard until the end, or until patience was over.
enum Heard {
    All(String),
    Part(String),
}

fn listen(machine: &mut Child, patience: Duration) -> Result<Heard> {
    let mut line = machine.stdout.take().context("it has no output")?;
    let (sender, pieces) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 4096];
        // The end of the channel is the end of the line.
        while let Ok(count @ 1..) = line.read(&mut buffer) {
            let piece = buffer.get(..count).unwrap_or_default().to_vec();
            if sender.send(piece).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + patience;
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match pieces.recv_timeout(left) {
            Ok(piece) if said.len() + piece.len() <= MOST_OUTPUT => said.extend(piece),
            Ok(_) => bail!("the guest says more than {MOST_OUTPUT} bytes"),
            Err(end) => {
                let text = String::from_utf8_lossy(&said).into_owned();
                return Ok(match end {
                    mpsc::RecvTimeoutError::Disconnected => Heard::All(text),
                    mpsc::RecvTimeoutError::Timeout => Heard::Part(text),
                });
            }
        }
    }
}
