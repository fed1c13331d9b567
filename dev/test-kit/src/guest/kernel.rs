//! The kernel of guests: the distribution's own, unpacked and not installed.
//!
//! Installing it would change how this machine boots, and needs root; this
//! only takes the one file out of the package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The package that depends on the newest kernel for virtual machines.
const NEWEST: &str = "linux-image-cloud-amd64";

/// A kernel file.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    file: PathBuf,
}

impl GuestKernel {
    /// The kernel that [`fetch`](Self::fetch) put below cargo's target folder.
    #[must_use]
    pub fn fetched(target: &Path) -> Option<Self> {
        let file = target.join("guest-kernel/vmlinuz");
        file.is_file().then_some(Self { file })
    }

    /// Fetches it with apt, as whoever calls; does nothing where it is there.
    ///
    /// # Errors
    /// When apt does not know it, or it cannot be unpacked.
    pub fn fetch(target: &Path) -> Result<Self> {
        if let Some(kernel) = Self::fetched(target) {
            return Ok(kernel);
        }
        let place = target.join("guest-kernel");
        std::fs::create_dir_all(&place)
            .with_context(|| format!("cannot make {}", place.display()))?;
        // Beside its place, so that it appears there whole or not at all.
        let folder = tempfile::tempdir_in(&place).context("cannot make a folder")?;
        let listed = capture(Command::new("apt-cache").args(["depends", NEWEST]))?;
        let package = kernel_package(&listed)
            .with_context(|| format!("apt knows no kernel behind {NEWEST}"))?;
        capture(
            Command::new("apt-get")
                .args(["download", package])
                .current_dir(folder.path()),
        )?;
        let archive = only_file(folder.path(), |name| name.ends_with(".deb"))?;
        let unpacked = folder.path().join("unpacked");
        capture(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(archive)
                .arg(&unpacked),
        )?;
        let kernel = only_file(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))?;
        let file = place.join("vmlinuz");
        std::fs::rename(kernel, &file).context("cannot move the kernel")?;
        Ok(Self { file })
    }

    /// Where it is.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// The package with a version in its name, in what `apt-cache depends` says.
fn kernel_package(listed: &str) -> Option<&str> {
    listed
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
}

fn only_file(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<PathBuf> {
    std::fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
        .find(|entry| entry.file_name().to_str().is_some_and(&fits))
        .map(|entry| entry.path())
        .with_context(|| format!("what was looked for is not in {}", folder.display()))
}

fn capture(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let output = command
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", program.display(), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_the_one_with_a_version() {
        let listed = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-54-cloud-amd64\n";
        assert_eq!(
            kernel_package(listed),
            Some("linux-image-6.1.0-54-cloud-amd64")
        );
        assert_eq!(kernel_package("linux-image-cloud-amd64\n"), None);
    }

    #[test]
    fn a_kernel_that_is_there_is_not_fetched_again() {
        let target = tempfile::tempdir().unwrap();
        assert!(GuestKernel::fetched(target.path()).is_none());
        let place = target.path().join("guest-kernel");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("vmlinuz"), "kernel").unwrap();
        let kernel = GuestKernel::fetch(target.path()).unwrap();
        assert_eq!(kernel.file(), place.join("vmlinuz"));
    }
}
