//! What is made of layers, and who else says what it is: the kernel,
//! `fsck.erofs`, umoci.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::document::Compression;
use fluffy_image::{ConvertError, LayerBlob, Root, RootLimits, convert};
use fluffy_test_kit::record_skip;
use serde_json::json;

/// Converts layers as they are.
pub(crate) struct Made {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) root: Result<Root, ConvertError>,
}

impl Made {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("root.erofs")
    }

    pub(crate) fn of(layers: &[Vec<u8>]) -> Self {
        Self::within(layers, RootLimits::default())
    }

    pub(crate) fn within(layers: &[Vec<u8>], limits: RootLimits) -> Self {
        let blobs = layers.iter().map(|layer| LayerBlob {
            bytes: &**layer,
            compression: Compression::None,
            diff_id: Digest::of(layer),
        });
        Self::from(blobs, limits)
    }

    pub(crate) fn from<'a>(
        blobs: impl IntoIterator<Item = LayerBlob<&'a [u8]>>,
        limits: RootLimits,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            options.open(folder.path().join(name)).unwrap()
        };
        let root = convert(blobs, limits, &file("root.erofs"), &file("aside"));
        // Nothing else came to be, whatever names the layers had.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        Self { folder, root }
    }

    /// What `fsck.erofs` finds good and takes out of it.
    pub(crate) fn taken_out(&self) -> PathBuf {
        self.root.as_ref().unwrap();
        let out = self.folder.path().join("out");
        let mut check = Command::new("fsck.erofs");
        check.arg(format!("--extract={}", out.display()));
        let checked = check.arg(self.path()).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
        out
    }

    pub(crate) fn code(&self) -> &'static str {
        self.root.as_ref().unwrap_err().code()
    }
}

/// A file system that this machine's kernel mounted; unmounted when dropped.
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
}

impl Mounted {
    pub(crate) fn new(made: &Made) -> Option<Self> {
        made.root.as_ref().unwrap();
        let known = fs::read_to_string("/proc/filesystems").unwrap();
        if !known.contains("erofs") {
            record_skip("EROFS by the kernel", "the kernel of this machine has none");
            return None;
        }
        let at = made.folder.path().join("mounted");
        fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "erofs", "-o", "loop,ro"]);
        let mounted = mount.arg(made.path()).arg(&at).output().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        Some(Self { at })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

/// Everything that can be seen of a tree.
pub(crate) fn seen(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let content = if kind.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap();
            format!("{} {}", content.len(), Digest::of(&content))
        } else {
            String::new()
        };
        let times = (meta.mtime(), meta.mtime_nsec());
        let links = if kind.is_dir() { 0 } else { meta.nlink() };
        let (mode, owner) = (meta.mode(), (meta.uid(), meta.gid()));
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        all.insert(
            name.escape_ascii().to_string(),
            format!("{mode:o} {owner:?} {times:?} {links} {content}"),
        );
        if kind.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    all
}

/// What umoci makes of the same layers.
pub(crate) fn unpacked_by_umoci(folder: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let layout = folder.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |kind: &str, bytes: &[u8]| {
        let digest = Digest::of(bytes).to_string();
        fs::write(blobs.join(&digest), bytes).unwrap();
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        })
    };
    let ids: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", Digest::of(layer)))
        .collect();
    let config = json!({
        "os": "linux",
        "architecture": "amd64",
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    let config = put("config.v1+json", config.to_string().as_bytes());
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| put("layer.v1.tar", layer))
        .collect();
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
    let mut manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "one" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    fs::write(layout.join("oci-layout"), version.to_string()).unwrap();
    let bundle = folder.join("bundle");
    let mut umoci = Command::new("umoci");
    umoci.arg("unpack").arg("--image");
    umoci.arg(format!("{}:one", layout.display())).arg(&bundle);
    let done = umoci.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    bundle.join("rootfs")
}
