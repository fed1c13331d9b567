//! A tiny image for tests, made as any image is; also of `fluffy-node`'s.

use std::fs::{self, File};
use std::path::Path;

use fluffy_base::Digest;
use fluffy_image::document::Compression;
use fluffy_image::{LayerBlob, RootLimits, convert};

/// A tar archive in the making.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(&mut self, kind: u8, name: &str, link: &str, mode: u32, owner: u32, content: &[u8]) {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}\0").as_bytes());
        put(108, format!("{owner:07o}\0").as_bytes());
        put(116, format!("{owner:07o}\0").as_bytes());
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{:011o}\0", 1_700_000_000).as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }
}

/// The image: a static busybox under the names that tests use. What stands
/// where mounts go are links that lead out, as a hostile image has them.
pub(crate) fn image(result: &Path) {
    let busybox = fs::read("/bin/busybox").or_else(|_| fs::read("/usr/bin/busybox"));
    let busybox = busybox.expect("needs busybox-static: cargo xtask setup");
    let mut archive = Archive::default();
    archive.add(b'5', "bin/", "", 0o755, 0, b"");
    archive.add(b'0', "bin/busybox", "", 0o4755, 0, &busybox);
    for name in [
        "sh", "cat", "echo", "sleep", "id", "ls", "dd", "head", "tail", "stat", "mount", "ps",
        "wc", "md5sum", "kill", "true", "false", "hostname", "stty", "setsid", "nc", "grep", "tr",
        "chroot", "mknod", "ip", "touch", "unshare", "chown", "seq", "yes", "env", "pwd", "rm",
        "mkdir",
    ] {
        archive.add(b'2', &format!("bin/{name}"), "busybox", 0o777, 0, b"");
    }
    archive.add(b'5', "etc/", "", 0o755, 0, b"");
    let passwd = b"root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n";
    archive.add(b'0', "etc/passwd", "", 0o644, 0, passwd);
    archive.add(
        b'0',
        "etc/group",
        "",
        0o644,
        0,
        b"root:x:0:\nweb:x:33:app\n",
    );
    archive.add(b'2', "etc/hosts", "/etc/passwd", 0o777, 0, b"");
    archive.add(b'2', "tmp", "/etc", 0o777, 0, b"");
    archive.add(b'2', "run", "../../../etc", 0o777, 0, b"");
    archive.add(b'5', "app/", "", 0o755, 1000, b"");
    archive.add(b'0', "app/mine", "", 0o600, 1000, b"mine\n");
    archive.0.extend([0; 1024]);
    image_of(&[&archive.0], result);
}

/// An image of these layers, each a tar archive.
pub(crate) fn image_of(layers: &[&[u8]], result: &Path) {
    let layers = layers.iter().map(|bytes| LayerBlob {
        bytes: *bytes,
        compression: Compression::None,
        diff_id: Digest::of(bytes),
    });
    let aside = tempfile::tempfile().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(result)
        .unwrap();
    convert(layers, RootLimits::default(), &file, &aside).unwrap();
}
