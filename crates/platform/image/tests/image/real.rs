//! Debian's own registry, filled by skopeo: programs that we did not write.

use std::path::Path;
use std::process::Command;

use fluffy_base::Digest;
use fluffy_image::{Credential, ImageReference, Proof, Registries, Registry, ResolveError};
use fluffy_test_kit::RealRegistry;

use crate::sample::Image;
use crate::site::options;

/// Where its images are.
fn reference(registry: &RealRegistry, rest: &str) -> ImageReference {
    format!("{}/{rest}", registry.host()).parse().unwrap()
}

fn client(registry: &RealRegistry) -> Registry {
    Registry::new(options(&[registry.host().to_owned()]))
}

pub(crate) fn skopeo(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let done = Command::new("skopeo")
        .args(["--insecure-policy"])
        .args(arguments)
        .env("HOME", home.path())
        .env("XDG_RUNTIME_DIR", home.path())
        .output()
        .expect("skopeo: run `cargo xtask test --only setup`");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

pub(crate) fn push(from: &Path, to: &str, more: &[&str]) {
    let (from, to) = (format!("oci:{}", from.display()), format!("docker://{to}"));
    let mut arguments = vec!["copy", "--dest-tls-verify=false"];
    arguments.extend_from_slice(more);
    arguments.extend([from.as_str(), to.as_str()]);
    skopeo(&arguments);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_at_a_real_registry_becomes_digests_by_architecture() {
    let registry = RealRegistry::start(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let image = Image::new(&["amd64", "arm64", "s390x"]);
    image.write(folder.path());
    let name = format!("{}/team/app:v1", registry.host());
    push(folder.path(), &name, &["--all", "--preserve-digests"]);
    let client = client(&registry);
    let resolved = client
        .resolve(&reference(&registry, "team/app:v1"), None)
        .await
        .unwrap();
    assert_eq!(resolved.digest, image.digest());
    let found: Vec<_> = resolved
        .platforms
        .iter()
        .map(|it| (it.arch.as_str(), it.digest))
        .collect();
    assert_eq!(
        found,
        [("amd64", image.manifests[0]), ("arm64", image.manifests[1])]
    );
    let by_digest = reference(&registry, &format!("team/app@sha256:{}", image.digest()));
    assert_eq!(client.resolve(&by_digest, None).await.unwrap(), resolved);
    // A layer, as nodes will pull it.
    let digest = image.layers[1];
    let size = image.blobs[&digest].len() as u64;
    let mut blob = client
        .open_blob(&by_digest, (digest, size), None)
        .await
        .unwrap();
    let mut all = Vec::new();
    while let Some(piece) = blob.next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    assert_eq!(all, image.blobs[&digest]);
    for missing in ["team/app:v2", "team/other:v1"] {
        let refused = client
            .resolve(&reference(&registry, missing), None)
            .await
            .unwrap_err();
        assert_eq!(refused.code(), "image_unresolvable");
        assert!(refused.to_string().contains(missing), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dockers_own_formats_are_read_and_what_no_node_runs_is_refused() {
    let registry = RealRegistry::start(&[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    Image::new(&["arm64", "s390x"]).write(folder.path());
    let client = client(&registry);
    for (tag, more) in [
        ("list", &["--all", "--format", "v2s2"][..]),
        ("one", &["--override-arch", "arm64", "--format", "v2s2"]),
    ] {
        let name = format!("{}/app:{tag}", registry.host());
        push(folder.path(), &name, more);
        let raw = skopeo(&[
            "inspect",
            "--raw",
            "--tls-verify=false",
            &format!("docker://{name}"),
        ]);
        assert!(
            raw.contains("application/vnd.docker.distribution.manifest"),
            "{raw}"
        );
        let reference = reference(&registry, &format!("app:{tag}"));
        let resolved = client.resolve(&reference, None).await.unwrap();
        assert_eq!(resolved.digest, Digest::of(raw.as_bytes()), "{tag}");
        assert_eq!(resolved.platforms.len(), 1);
        assert_eq!(resolved.platforms[0].arch, "arm64");
    }
    let name = format!("{}/app:s390x", registry.host());
    push(folder.path(), &name, &["--override-arch", "s390x"]);
    let refused = client
        .resolve(&reference(&registry, "app:s390x"), None)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "arch_unavailable");
    assert!(refused.to_string().contains("linux/s390x"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry_that_asks_for_a_password_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    // As `htpasswd -B -C 4` writes it for `marked-password`.
    let hash = "$2b$04$P7bqZYJUuX7L9vWu0SKgx.g5WzISqFNdg4uyi99wVLWGyG/4GpZ56";
    std::fs::write(&users, format!("me:{hash}\n")).unwrap();
    let registry = RealRegistry::start(&[
        ("REGISTRY_AUTH", "htpasswd"),
        ("REGISTRY_AUTH_HTPASSWD_REALM", "here"),
        ("REGISTRY_AUTH_HTPASSWD_PATH", users.to_str().unwrap()),
    ])
    .unwrap();
    let image = Image::new(&["amd64"]);
    image.write(&folder.path().join("image"));
    let name = format!("{}/app:v1", registry.host());
    let more = [
        "--all",
        "--preserve-digests",
        "--dest-creds",
        "me:marked-password",
    ];
    push(&folder.path().join("image"), &name, &more);
    let (client, reference) = (client(&registry), reference(&registry, "app:v1"));
    let refused = client.resolve(&reference, None).await.unwrap_err();
    assert!(matches!(refused, ResolveError::Fetch(_)) && !refused.is_transient());
    let credential = Credential {
        proof: Proof::Password {
            user: "me".to_owned(),
            password: "marked-password".to_owned().into(),
        },
        realm: None,
    };
    let resolved = client.resolve(&reference, Some(&credential)).await.unwrap();
    assert_eq!(resolved.digest, image.digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_registry_with_tls_at_a_private_address_is_reached_if_it_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("ca.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let registry = RealRegistry::start(&[
        (
            "REGISTRY_HTTP_TLS_CERTIFICATE",
            certificate.to_str().unwrap(),
        ),
        ("REGISTRY_HTTP_TLS_KEY", key.to_str().unwrap()),
    ])
    .unwrap();
    let image = Image::new(&["amd64"]);
    image.write(&folder.path().join("image"));
    let name = format!("{}/app:v1", registry.host());
    push(
        &folder.path().join("image"),
        &name,
        &["--all", "--preserve-digests"],
    );
    let reference = reference(&registry, "app:v1");
    let base = fluffy_image::Options::public(
        std::sync::Arc::new(fluffy_egress::HostNetwork),
        fluffy_image::system_roots(),
    );
    let listed = Registries {
        internal: [registry.host().to_owned()].into(),
        authorities: Some(certificate),
        ..Registries::default()
    };
    let resolve = async |registries: &Registries| {
        let access = registries.access(&reference).unwrap();
        access.resolve(&base, &reference).await
    };
    let resolved = resolve(&listed).await.unwrap();
    assert_eq!(resolved.digest, image.digest());
    // Each part is needed: the address, and who signed its certificate.
    let untrusted = Registries {
        authorities: None,
        ..listed.clone()
    };
    let refused = resolve(&untrusted).await.unwrap_err();
    assert!(
        refused.fix().contains("--registry-ca"),
        "{refused}: {}",
        refused.fix()
    );
    let unlisted = Registries {
        internal: Default::default(),
        ..listed
    };
    let refused = resolve(&unlisted).await.unwrap_err();
    assert!(
        refused.fix().contains("--internal-registry"),
        "{refused}: {}",
        refused.fix()
    );
}
