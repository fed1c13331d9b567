//! Images made up for tests: documents and blobs by digest.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::write::GzEncoder;
use fluffy_base::Digest;
use serde_json::{Value, json};

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An index over one image for each architecture.
#[derive(Debug, Clone, Default)]
pub(crate) struct Image {
    pub(crate) root: Vec<u8>,
    /// Documents, configs and layers.
    pub(crate) blobs: HashMap<Digest, Vec<u8>>,
    /// The manifests, in the order of the architectures.
    pub(crate) manifests: Vec<Digest>,
    pub(crate) configs: Vec<Digest>,
    pub(crate) layers: Vec<Digest>,
}

impl Image {
    pub(crate) fn new(archs: &[&str]) -> Self {
        Self::elsewhere(archs, None)
    }

    /// Its layers claim to be somewhere else.
    pub(crate) fn elsewhere(archs: &[&str], elsewhere: Option<String>) -> Self {
        let mut image = Self::default();
        let mut entries = Vec::new();
        for arch in archs {
            let layer = tar_of(&format!("for-{arch}"));
            let layer_digest = Digest::of(&layer);
            let config = json!({
                "os": "linux",
                "architecture": arch,
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
                "config": {"Cmd": ["/bin/true"]},
            });
            let mut layer = image.put(LAYER, layer);
            if let Some(elsewhere) = &elsewhere {
                layer["urls"] = json!([elsewhere]);
            }
            let config = image.put(CONFIG, config.to_string().into_bytes());
            image.configs.push(digest_of(&config));
            image.layers.push(layer_digest);
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": config,
                "layers": [layer],
            });
            let mut entry = image.put(MANIFEST, manifest.to_string().into_bytes());
            image.manifests.push(digest_of(&entry));
            entry["platform"] = json!({"os": "linux", "architecture": arch});
            entries.push(entry);
        }
        let root = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        image.root = root.to_string().into_bytes();
        image
    }

    /// One image for `amd64` of these archives, compressed as gzip or not.
    pub(crate) fn of_layers(archives: &[Vec<u8>], gzip: bool) -> Self {
        let mut image = Self::default();
        let ids: Vec<String> = archives
            .iter()
            .map(|archive| format!("sha256:{}", Digest::of(archive)))
            .collect();
        let mut layers = Vec::new();
        for archive in archives {
            let layer = match gzip {
                true => {
                    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                    packed.write_all(archive).unwrap();
                    image.put(&format!("{LAYER}+gzip"), packed.finish().unwrap())
                }
                false => image.put(LAYER, archive.clone()),
            };
            image.layers.push(digest_of(&layer));
            layers.push(layer);
        }
        let config = json!({
            "os": "linux",
            "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": ids},
            "config": {
                "Env": ["PATH=/bin", "A=b"],
                "Entrypoint": ["/bin/serve"],
                "Cmd": null,
                "User": "12:34",
                "WorkingDir": "/srv",
                "StopSignal": "SIGINT",
            },
        });
        let config = image.put(CONFIG, config.to_string().into_bytes());
        image.configs.push(digest_of(&config));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
        });
        let mut entry = image.put(MANIFEST, manifest.to_string().into_bytes());
        image.manifests.push(digest_of(&entry));
        entry["platform"] = json!({"os": "linux", "architecture": "amd64"});
        let root = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        image.root = root.to_string().into_bytes();
        image
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.root)
    }

    /// Writes it as a folder of the OCI layout.
    pub(crate) fn write(&self, folder: &Path) {
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        for (digest, bytes) in &self.blobs {
            fs::write(blobs.join(digest.to_string()), bytes).unwrap();
        }
        fs::write(blobs.join(self.digest().to_string()), &self.root).unwrap();
        let version = json!({"imageLayoutVersion": "1.0.0"});
        fs::write(folder.join("oci-layout"), version.to_string()).unwrap();
        let entry = describe(INDEX, &self.root);
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        fs::write(folder.join("index.json"), index.to_string()).unwrap();
    }

    fn put(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let descriptor = describe(media_type, &bytes);
        self.blobs.insert(Digest::of(&bytes), bytes);
        descriptor
    }
}

fn describe(media_type: &str, bytes: &[u8]) -> Value {
    let digest = format!("sha256:{}", Digest::of(bytes));
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

fn digest_of(descriptor: &Value) -> Digest {
    let text = descriptor["digest"].as_str().unwrap();
    text.strip_prefix("sha256:").unwrap().parse().unwrap()
}

/// An archive of one empty file.
fn tar_of(name: &str) -> Vec<u8> {
    [header(name, b'0', 0), vec![0; 1024]].concat()
}

/// The header of an entry in a tar archive.
pub(crate) fn header(name: &str, kind: u8, size: u64) -> Vec<u8> {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, &char::from(kind).to_string());
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.to_vec()
}
