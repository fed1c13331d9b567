//! Debian's own registry, filled by skopeo: programs that we did not write.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fluffy_base::Digest;
use fluffy_image::{Credential, ImageReference, Registry, ResolveError};
use tempfile::TempDir;

use crate::sample::Image;
use crate::site::options;

/// A registry of its own on loopback; ends when it is dropped.
struct RealRegistry {
    child: Child,
    host: String,
    _folder: TempDir,
}

impl RealRegistry {
    /// Starts it; `settings` go into its environment.
    fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.yml");
        let storage = folder.path().join("storage");
        std::fs::write(
            &config,
            format!(
                "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  \
                 addr: 127.0.0.1:0\n",
                storage.display()
            ),
        )
        .unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve".as_ref(), config.as_os_str()])
            .env("OTEL_TRACES_EXPORTER", "none")
            .envs(settings.iter().copied())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("docker-registry: run `cargo xtask test --only setup`");
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let host = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended: {said}");
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(['"', ',', ' ', '\n']).next().unwrap().to_owned();
            }
            said.push_str(&line);
        };
        // Whoever logs must not wait for us.
        std::thread::spawn(move || log.read_to_end(&mut Vec::new()));
        Self {
            child,
            host,
            _folder: folder,
        }
    }

    fn reference(&self, rest: &str) -> ImageReference {
        format!("{}/{rest}", self.host).parse().unwrap()
    }

    fn client(&self) -> Registry {
        Registry::new(options(std::slice::from_ref(&self.host)))
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

fn push(from: &Path, to: &str, more: &[&str]) {
    let (from, to) = (format!("oci:{}", from.display()), format!("docker://{to}"));
    let mut arguments = vec!["copy", "--dest-tls-verify=false"];
    arguments.extend_from_slice(more);
    arguments.extend([from.as_str(), to.as_str()]);
    skopeo(&arguments);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_at_a_real_registry_becomes_digests_by_architecture() {
    let registry = RealRegistry::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let image = Image::new(&["amd64", "arm64", "s390x"]);
    image.write(folder.path());
    let name = format!("{}/team/app:v1", registry.host);
    push(folder.path(), &name, &["--all", "--preserve-digests"]);
    let client = registry.client();
    let resolved = client
        .resolve(&registry.reference("team/app:v1"), None)
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
    let by_digest = registry.reference(&format!("team/app@sha256:{}", image.digest()));
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
            .resolve(&registry.reference(missing), None)
            .await
            .unwrap_err();
        assert_eq!(refused.code(), "image_unresolvable");
        assert!(refused.to_string().contains(missing), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dockers_own_formats_are_read_and_what_no_node_runs_is_refused() {
    let registry = RealRegistry::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    Image::new(&["arm64", "s390x"]).write(folder.path());
    let client = registry.client();
    for (tag, more) in [
        ("list", &["--all", "--format", "v2s2"][..]),
        ("one", &["--override-arch", "arm64", "--format", "v2s2"]),
    ] {
        let name = format!("{}/app:{tag}", registry.host);
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
        let reference = registry.reference(&format!("app:{tag}"));
        let resolved = client.resolve(&reference, None).await.unwrap();
        assert_eq!(resolved.digest, Digest::of(raw.as_bytes()), "{tag}");
        assert_eq!(resolved.platforms.len(), 1);
        assert_eq!(resolved.platforms[0].arch, "arm64");
    }
    let name = format!("{}/app:s390x", registry.host);
    push(folder.path(), &name, &["--override-arch", "s390x"]);
    let refused = client
        .resolve(&registry.reference("app:s390x"), None)
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
    ]);
    let image = Image::new(&["amd64"]);
    image.write(&folder.path().join("image"));
    let name = format!("{}/app:v1", registry.host);
    let more = [
        "--all",
        "--preserve-digests",
        "--dest-creds",
        "me:marked-password",
    ];
    push(&folder.path().join("image"), &name, &more);
    let (client, reference) = (registry.client(), registry.reference("app:v1"));
    let refused = client.resolve(&reference, None).await.unwrap_err();
    assert!(matches!(refused, ResolveError::Fetch(_)) && !refused.is_transient());
    let credential = Credential {
        user: "me".to_owned(),
        password: "marked-password".to_owned().into(),
        realm: None,
    };
    let resolved = client.resolve(&reference, Some(&credential)).await.unwrap();
    assert_eq!(resolved.digest, image.digest());
}
