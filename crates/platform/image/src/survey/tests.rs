//! Walks over images made up in memory.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::*;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Documents by digest, and how they are described.
#[derive(Default)]
struct Store(HashMap<Digest, Vec<u8>>);

impl Store {
    fn put(&mut self, media_type: &str, document: &Value) -> Value {
        let bytes = document.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        let size = bytes.len();
        self.0.insert(digest, bytes);
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size})
    }

    fn config(&mut self, arch: &str, layers: usize) -> Value {
        let diff_ids = vec![format!("sha256:{}", Digest::of(b"layer")); layers];
        let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
        let config = json!({"os": "linux", "architecture": arch, "rootfs": rootfs});
        self.put(CONFIG, &config)
    }

    fn image(&mut self, arch: &str, layers: &[u64]) -> Value {
        let config = self.config(arch, layers.len());
        self.with_config(&config, layers)
    }

    fn with_config(&mut self, config: &Value, layers: &[u64]) -> Value {
        let digest = format!("sha256:{}", Digest::of(b"packed"));
        let layer = |size: &u64| json!({"mediaType": LAYER, "digest": digest, "size": size});
        let layers: Vec<Value> = layers.iter().map(layer).collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        self.put(MANIFEST, &manifest)
    }

    fn index(&mut self, entries: &[Value]) -> Value {
        self.put(INDEX, &json!({"schemaVersion": 2, "manifests": entries}))
    }

    fn resolve(&self, root: &Value) -> Result<Resolved, SurveyError> {
        let text = |name: &str| root[name].as_str().unwrap();
        let digest: Digest = text("digest")
            .strip_prefix("sha256:")
            .unwrap()
            .parse()
            .unwrap();
        let mut survey = Survey::begin(text("mediaType"), &self.0[&digest], Limits::default())?;
        while let Some(Wanted::Document(it) | Wanted::Config(it)) = survey.wanted() {
            let bytes = self.0.get(&it.digest).cloned().unwrap_or_default();
            survey.take(&bytes)?;
        }
        survey.finish()
    }
}

fn on(mut descriptor: Value, os: &str, arch: &str, variant: Option<&str>) -> Value {
    descriptor["platform"] = json!({"os": os, "architecture": arch, "variant": variant});
    descriptor
}

fn archs(resolved: &Resolved) -> Vec<&str> {
    let archs = resolved.platforms.iter().map(|it| it.arch.as_str());
    archs.collect()
}

#[test]
fn each_kind_of_machine_gets_its_image() {
    let mut store = Store::default();
    let (amd64, arm64) = (store.image("amd64", &[10, 20]), store.image("arm64", &[5]));
    let papers = store.with_config(
        &json!({
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": format!("sha256:{}", Digest::of(b"{}")),
            "size": 2,
        }),
        &[],
    );
    let missing = json!({"mediaType": MANIFEST, "digest": amd64["digest"], "size": 1});
    let root = store.index(&[
        on(missing.clone(), "windows", "amd64", None),
        on(missing.clone(), "linux", "amd64", Some("v3")),
        on(missing.clone(), "unknown", "unknown", None),
        papers,
        on(arm64.clone(), "linux", "arm64", Some("v8")),
        on(amd64.clone(), "linux", "amd64", None),
        on(missing, "linux", "amd64", None),
    ]);
    let resolved = store.resolve(&root).unwrap();
    assert_eq!(
        format!("sha256:{}", resolved.digest),
        root["digest"].as_str().unwrap()
    );
    assert_eq!(archs(&resolved), ["amd64", "arm64"]);
    let found = resolved
        .platforms
        .iter()
        .map(|it| format!("sha256:{}", it.digest));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            amd64["digest"].as_str().unwrap(),
            arm64["digest"].as_str().unwrap()
        ]
    );
    assert!(resolved.compressed_bytes() > 30 && resolved.platforms[1].compressed_bytes > 5);
    assert_eq!(
        resolved.compressed_bytes(),
        resolved.platforms[0].compressed_bytes
    );
    // One image alone says what it is for in its config.
    assert_eq!(archs(&store.resolve(&arm64).unwrap()), ["arm64"]);
    // And so does one whose index does not.
    let silent = store.index(&[amd64]);
    assert_eq!(archs(&store.resolve(&silent).unwrap()), ["amd64"]);
}

#[test]
fn what_no_node_could_run_is_refused_with_what_it_is_for() {
    let mut store = Store::default();
    let s390x = store.image("s390x", &[1]);
    let index = store.index(&[on(s390x.clone(), "linux", "s390x", None)]);
    let empty = store.index(&[]);
    for (root, found) in [
        (s390x, vec!["linux/s390x"]),
        (index, vec!["linux/s390x"]),
        (empty, vec![]),
    ] {
        let found = found.into_iter().map(str::to_owned).collect();
        assert_eq!(store.resolve(&root), Err(SurveyError::Platform { found }));
    }
    let artifact = store.with_config(
        &json!({
            "mediaType": "application/vnd.cncf.helm.config.v1+json",
            "digest": format!("sha256:{}", Digest::of(b"{}")),
            "size": 2,
        }),
        &[],
    );
    let refused = store.resolve(&artifact).unwrap_err().to_string();
    assert!(refused.contains("helm.config"), "{refused}");
}

#[test]
fn an_image_has_its_limits() {
    let mut store = Store::default();
    let fits = store.image("amd64", &[(10 << 30) - 1_000]);
    assert!(store.resolve(&fits).is_ok());
    let many = store.image("amd64", &[1; 128]);
    assert!(store.resolve(&many).is_ok());
    for (layers, what) in [
        (vec![10 << 30], "bytes"),
        (vec![u64::MAX, u64::MAX], "bytes"),
        (vec![1; 129], "layers"),
    ] {
        let image = store.image("amd64", &layers);
        let root = store.index(&[on(image, "linux", "amd64", None)]);
        match store.resolve(&root) {
            Err(SurveyError::TooLarge { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn documents_that_sprawl_are_refused() {
    let mut store = Store::default();
    let image = store.image("amd64", &[1]);
    let mut nested = store.index(&[image]);
    nested = store.index(&[nested]);
    nested = store.index(&[nested]);
    assert!(store.resolve(&nested).is_ok());
    nested = store.index(&[nested]);
    assert!(matches!(
        store.resolve(&nested),
        Err(SurveyError::Sprawling { .. })
    ));
    let images: Vec<Value> = (1..40).map(|size| store.image("s390x", &[size])).collect();
    let broad = store.index(&images);
    assert!(matches!(
        store.resolve(&broad),
        Err(SurveyError::Sprawling { .. })
    ));
    let mut config = store.config("amd64", 0);
    config["size"] = json!(LARGEST_CONFIG + 1);
    let fat = store.with_config(&config, &[]);
    assert!(matches!(
        store.resolve(&fat),
        Err(SurveyError::Sprawling { .. })
    ));
}

#[test]
fn documents_that_contradict_each_other_are_refused() {
    let mut store = Store::default();
    let image = store.image("amd64", &[1]);
    let lie = store.index(&[on(image.clone(), "linux", "arm64", None)]);
    let short = store.config("amd64", 2);
    let short = store.with_config(&short, &[1]);
    for root in [lie, short] {
        let refused = store.resolve(&root);
        assert!(
            matches!(refused, Err(SurveyError::Contradiction { .. })),
            "{refused:?}"
        );
    }
    // What is delivered is what was described: its size, then its digest.
    for (change, what) in [(&b"{} "[..], "size"), (b"{]", "digest"), (b"{}", "form")] {
        let config = json!({
            "mediaType": CONFIG,
            "digest": format!("sha256:{}", Digest::of(b"{}")),
            "size": 2,
        });
        let root = store.with_config(&config, &[1]);
        store.0.insert(Digest::of(b"{}"), change.to_vec());
        match store.resolve(&root) {
            Err(SurveyError::Content { what: found, .. }) => assert_eq!(found, what),
            // The control: content that fits gets as far as being read.
            Err(SurveyError::Document { .. }) => assert_eq!("form", what),
            other => panic!("{other:?}"),
        }
    }
}
