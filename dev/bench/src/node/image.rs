//! The image that instances run: a static busybox with a page.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use fluffy_image::document::ImageConfig;
use fluffy_image::pack;

/// The one port that it listens at.
pub(super) const PORT: u16 = 8080;

/// Writes an image with this many bytes more than it needs.
pub(super) fn write(layout: &Path, more: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    for part in ["bin", "www"] {
        fs::create_dir_all(root.join(part))?;
    }
    let busybox = "/bin/busybox";
    fs::copy(busybox, root.join("bin/busybox"))
        .with_context(|| format!("there is no {busybox}: cargo xtask test --only setup"))?;
    fs::write(root.join("www/index.html"), "hello\n")?;
    fill(&root.join("more"), more)?;
    pack(&root, layout, &ImageConfig::default())?;
    Ok(())
}

/// Bytes that no compression makes fewer, in files as programs have them.
fn fill(folder: &Path, bytes: usize) -> Result<()> {
    const FILE: usize = 1 << 20;
    fs::create_dir(folder)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..bytes.div_ceil(FILE) {
        let mut content = Vec::with_capacity(FILE);
        while content.len() < FILE {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend(state.to_le_bytes());
        }
        File::create(folder.join(number.to_string()))?.write_all(&content)?;
    }
    Ok(())
}
