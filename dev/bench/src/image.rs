//! Images: a layer of gzip becomes a root file system, as a node does it:
//! brought, checked, unpacked in its worker, on the disk.
//!
//! The reference is what others have for the same: `skopeo copy`, `umoci
//! unpack` and `mkfs.erofs`, whose files may still be on their way to the disk
//! when they are done. `FLUFFY_IMAGE_MIB` makes the larger layer smaller.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use fluffy_base::{Digest, Hasher};
use fluffy_image::{
    BlobSource, Bring, Bytes, FetchError, ImageRequest, Opened, Piece, Pinned, Store, StoreLimits,
    Waiting, WorkerCommand,
};
use fluffy_test_kit::Random;
use serde_json::{Value, json};

use crate::figure::{Bar, Figure, Samples, Show};

/// What this program is told to be the worker.
pub(crate) const WORKER: &str = "image-worker";

/// The MiB of the larger layer as it is stored; the other has half of it.
const SIZE_ENV: &str = "FLUFFY_IMAGE_MIB";
const LARGER: u64 = 512;

const ROUNDS: usize = 5;
const MIB: u64 = 1 << 20;

/// Bytes that are noise, of so many: what is left after packing is about as
/// much as of programs and libraries.
const NOISE: (usize, usize) = (23, 64);

/// All figures of images.
///
/// # Errors
/// A program is missing, or a root file system is not what its layer was.
pub(crate) fn run() -> Result<Vec<Figure>> {
    let larger = match std::env::var(SIZE_ENV) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{SIZE_ENV}: {text}"))?,
        Err(_) => LARGER,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let (mut figures, mut medians) = (Vec::new(), Vec::new());
    for mib in [larger / 2, larger] {
        let folder = tempfile::tempdir()?;
        let layer = Layer::make(folder.path(), mib * MIB)?;
        eprintln!(
            "  {:.0} MiB of gzip, {:.2} times as much unpacked, {} files …",
            layer.megabytes * 1e6 / MIB as f64,
            layer.ratio,
            layer.files
        );
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            ours.push(layer.by_us(&runtime, round == 0)? / layer.megabytes);
            theirs.push(layer.by_others()? / layer.megabytes);
        }
        let ours = Samples::new(ours, Show::Rate);
        medians.push(ours.median());
        figures.push(Figure {
            what: format!("MB of a gzip layer of {mib} MiB into a root"),
            ours,
            reference: Some((
                "skopeo, umoci, mkfs.erofs".to_owned(),
                Samples::new(theirs, Show::Rate),
            )),
            bar: Bar::PerSecond(84.0),
        });
    }
    if let [small, large] = medians.as_slice() {
        figures.push(Figure {
            what: format!("rate of {larger} MiB beside that of half of it"),
            ours: Samples::new(vec![(large / small - 1.0).abs()], Show::Share),
            reference: None,
            bar: Bar::ShareUnder(0.15),
        });
    }
    Ok(figures)
}

/// A tree and the image of one layer that it was packed into.
struct Layer {
    folder: PathBuf,
    manifest: Digest,
    /// As it is stored, in millions of bytes.
    megabytes: f64,
    ratio: f64,
    files: usize,
    tree: BTreeMap<PathBuf, String>,
}

impl Layer {
    /// Makes a layer of about so many bytes as it is stored.
    fn make(folder: &Path, stored: u64) -> Result<Self> {
        let tree = folder.join("tree");
        let unpacked = stored / 2 * 5;
        let files = plant(&tree, unpacked)?;
        let layout = folder.join("layout");
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let (layer, diff_id, size) = pack(&tree, &blobs)?;
        let put = |kind: &str, bytes: &[u8]| -> Result<Value> {
            let digest = Digest::of(bytes);
            fs::write(blobs.join(digest.to_string()), bytes)?;
            Ok(described(kind, digest, bytes.len() as u64))
        };
        let config = json!({
            "os": "linux", "architecture": "amd64", "config": {"Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
        });
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": put("config.v1+json", config.to_string().as_bytes())?,
            "layers": [described("layer.v1.tar+gzip", layer, size)],
        });
        let bytes = manifest.to_string();
        let mut entry = put("manifest.v1+json", bytes.as_bytes())?;
        if let Value::Object(fields) = &mut entry {
            let name = json!({"org.opencontainers.image.ref.name": "one"});
            fields.insert("annotations".to_owned(), name);
        }
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        fs::write(layout.join("index.json"), index.to_string())?;
        let version = json!({"imageLayoutVersion": "1.0.0"});
        fs::write(layout.join("oci-layout"), version.to_string())?;
        let described = describe(&tree)?;
        fs::remove_dir_all(&tree)?;
        Ok(Self {
            folder: folder.to_owned(),
            manifest: Digest::of(bytes.as_bytes()),
            megabytes: size as f64 / 1e6,
            ratio: unpacked as f64 / size as f64,
            files,
            tree: described,
        })
    }

    /// The seconds it takes us; `check` looks at what was made.
    fn by_us(&self, runtime: &tokio::runtime::Runtime, check: bool) -> Result<f64> {
        let folder = self.folder.join("store");
        let worker = WorkerCommand {
            program: std::env::current_exe()?,
            arguments: vec![WORKER.to_owned()],
        };
        let store = Store::open(&folder, StoreLimits::with_quota(64 << 30), worker)?;
        let request = ImageRequest {
            digest: self.manifest,
            source: Arc::new(Layout(self.folder.join("layout/blobs/sha256"))),
            limits: None,
        };
        settle()?;
        let start = Instant::now();
        let made = runtime.block_on(store.ensure(request, "bench"))?;
        let seconds = start.elapsed().as_secs_f64();
        if check {
            self.check(&made)?;
        }
        drop(store);
        fs::remove_dir_all(&folder)?;
        Ok(seconds)
    }

    /// Another program, and the kernel, find in it what was packed.
    fn check(&self, made: &Pinned) -> Result<()> {
        command("fsck.erofs", &[made.root.as_os_str()])?;
        let at = self.folder.join("mounted");
        fs::create_dir_all(&at)?;
        let options = ["-t", "erofs", "-o", "ro,loop"].map(AsRef::as_ref);
        let places = [made.root.as_os_str(), at.as_os_str()];
        command("mount", &[&options[..], &places].concat())?;
        let found = describe(&at);
        command("umount", &[at.as_os_str()])?;
        ensure!(found? == self.tree, "the root holds another tree");
        Ok(())
    }

    /// The seconds it takes others.
    fn by_others(&self) -> Result<f64> {
        let work = self.folder.join("theirs");
        fs::create_dir_all(&work)?;
        let name = |path: &Path| format!("{}:one", path.display());
        let (from, copy) = (name(&self.folder.join("layout")), name(&work.join("copy")));
        let (bundle, root) = (work.join("bundle"), work.join("root.erofs"));
        settle()?;
        let start = Instant::now();
        let (from, to) = (format!("oci:{from}"), format!("oci:{copy}"));
        let words = ["--insecure-policy", "copy", "--quiet", &from, &to];
        command("skopeo", &words.map(AsRef::as_ref))?;
        let words = ["unpack".as_ref(), "--image".as_ref(), copy.as_ref()];
        command("umoci", &[&words[..], &[bundle.as_os_str()]].concat())?;
        let rootfs = bundle.join("rootfs");
        command("mkfs.erofs", &[root.as_os_str(), rootfs.as_os_str()])?;
        let seconds = start.elapsed().as_secs_f64();
        fs::remove_dir_all(&work)?;
        Ok(seconds)
    }
}

/// What others left to be written does not cost who comes next.
fn settle() -> Result<()> {
    command("sync", &[])
}

fn command(program: &str, words: &[&std::ffi::OsStr]) -> Result<()> {
    let done = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{program}: `cargo xtask test --only setup` installs it"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{program}: {}", said.trim());
    Ok(())
}

fn described(kind: &str, digest: Digest, size: u64) -> Value {
    json!({
        "mediaType": format!("application/vnd.oci.image.{kind}"),
        "digest": format!("sha256:{digest}"), "size": size,
    })
}

/// Writes files of all sizes, so many bytes in all; how many files.
fn plant(tree: &Path, bytes: u64) -> Result<usize> {
    let mut random = Random::new(1);
    let (mut written, mut files) = (0, 0);
    while written < bytes {
        // From a few bytes to a few MiB, each order of size as often.
        let size = (1_u64 << (4 + random.below(18))) + random.below(1 << 12);
        let folder = tree.join(format!("{:03}/{:02}", files / 640, files / 32 % 20));
        if files % 32 == 0 {
            fs::create_dir_all(&folder)?;
        }
        let path = folder.join(format!("file-{files}"));
        fs::write(&path, content(&mut random, size))?;
        if files % 16 == 0 {
            symlink(
                format!("file-{files}"),
                folder.join(format!("link-{files}")),
            )?;
        }
        written += size;
        files += 1;
    }
    Ok(files)
}

fn content(random: &mut Random, size: u64) -> Vec<u8> {
    let size = usize::try_from(size).unwrap_or_default();
    let mut bytes = Vec::with_capacity(size + NOISE.1);
    while bytes.len() < size {
        let start = bytes.len();
        while bytes.len() < start + NOISE.0 {
            bytes.extend(random.next().to_le_bytes());
        }
        bytes.truncate(start + NOISE.0);
        bytes.resize(start + NOISE.1, b'=');
    }
    bytes.truncate(size);
    bytes
}

/// Packs a tree: the digest of the layer, that of its archive, its size.
fn pack(tree: &Path, blobs: &Path) -> Result<(Digest, Digest, u64)> {
    let mut tar = Command::new("tar")
        .args(["--create", "--sort=name", "--directory"])
        .arg(tree)
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut archive = tar.stdout.take().context("tar has no output")?;
    let path = blobs.join("layer");
    let file = BufWriter::new(File::create(&path)?);
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    let (mut hasher, mut piece) = (Hasher::new(), vec![0; 1 << 20]);
    loop {
        let read = archive.read(&mut piece)?;
        let Some(piece) = piece.get(..read).filter(|piece| !piece.is_empty()) else {
            break;
        };
        hasher.update(piece);
        packed.write_all(piece)?;
    }
    packed.finish()?.flush()?;
    ensure!(tar.wait()?.success(), "tar failed");
    let digest = digest_of(&path)?;
    fs::rename(&path, blobs.join(digest.to_string()))?;
    let size = fs::metadata(blobs.join(digest.to_string()))?.len();
    Ok((digest, hasher.finish(), size))
}

fn digest_of(path: &Path) -> Result<Digest> {
    let (mut file, mut hasher) = (File::open(path)?, Hasher::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(piece.get(..read).unwrap_or_default()),
        }
    }
}

/// Everything in a tree that a layer carries.
fn describe(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let about = fs::symlink_metadata(&path)?;
        let mut what = format!(
            "{:o} {} {} {}",
            about.mode(),
            about.uid(),
            about.gid(),
            about.mtime()
        );
        if about.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        } else if about.is_symlink() {
            what = format!("{what} -> {}", fs::read_link(&path)?.display());
        } else {
            what = format!("{what} {}", digest_of(&path)?);
        }
        all.insert(path.strip_prefix(root)?.to_owned(), what);
    }
    Ok(all)
}

/// The blobs of a layout, as a registry next door would give them.
#[derive(Debug)]
struct Layout(PathBuf);

struct Rest(File, u64);

impl BlobSource for Layout {
    fn name(&self) -> &str {
        "layout"
    }

    fn open(&self, _: Piece, digest: Digest, from: u64) -> Waiting<'_, Result<Opened, FetchError>> {
        Box::pin(async move {
            let file = File::open(self.0.join(digest.to_string())).map_err(broken)?;
            Ok(Opened {
                begins: from,
                bytes: Box::new(Rest(file, from)),
            })
        })
    }
}

impl Bring for Rest {
    fn next(&mut self) -> Waiting<'_, Result<Option<Bytes>, FetchError>> {
        Box::pin(async move {
            let mut piece = vec![0; 256 << 10];
            let read = self.0.read_at(&mut piece, self.1).map_err(broken)?;
            piece.truncate(read);
            self.1 += read as u64;
            Ok((read > 0).then(|| piece.into()))
        })
    }
}

fn broken(source: io::Error) -> FetchError {
    FetchError::Connect {
        host: "layout".to_owned(),
        source,
    }
}
