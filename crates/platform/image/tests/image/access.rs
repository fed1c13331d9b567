//! What operators write, and what follows.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use fluffy_image::{ImageReference, Manner, Mirror, Proof, Registries, RegistriesError};

fn image(text: &str) -> ImageReference {
    text.parse().unwrap()
}

/// A file of credentials with this mode.
fn written(text: &str, mode: u32) -> (tempfile::TempDir, Registries) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("auth.json");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let registries = Registries {
        credentials: Some(path),
        ..Registries::default()
    };
    (folder, registries)
}

/// Who we are to a reference: `user:password`, or `token:…`.
fn who(registries: &Registries, reference: &str) -> Option<String> {
    let access = registries.access(&image(reference)).unwrap();
    access.registry.credential.map(|it| match it.proof {
        Proof::Password { user, password } => format!("{user}:{}", password.expose()),
        Proof::Identity(token) => format!("token:{}", token.expose()),
    })
}

const FILE: &str = r#"{
  "auths": {
    "https://index.docker.io/v1/": {"auth": "aHViOnBhc3M6d29yZA=="},
    "ghcr.io": {"username": "cat", "password": "plain"},
    "ghcr.io/acme": {"auth": "YWNtZTpvd24=", "email": "x"},
    "azure.example": {"auth": "MDA6", "identitytoken": "long-lived"},
    "registry.gitlab.example:5050": {"auth": "Z2w6dG9r", "realm": "gitlab.example"},
    "empty.example": {}
  },
  "HttpHeaders": {"X": "y"}
}"#;

#[test]
fn a_file_of_docker_is_read_and_the_entry_that_fits_best_is_used() {
    let (_folder, registries) = written(FILE, 0o600);
    registries.check().unwrap();
    let of = |reference| who(&registries, reference);
    assert_eq!(of("debian").as_deref(), Some("hub:pass:word"));
    assert_eq!(of("docker.io/acme/web").as_deref(), Some("hub:pass:word"));
    assert_eq!(of("ghcr.io/other/web").as_deref(), Some("cat:plain"));
    assert_eq!(of("ghcr.io/acme/web").as_deref(), Some("acme:own"));
    // A name that only begins the same is another's.
    assert_eq!(of("ghcr.io/acmetoo/web").as_deref(), Some("cat:plain"));
    assert_eq!(of("azure.example/a").as_deref(), Some("token:long-lived"));
    assert_eq!(of("empty.example/a"), None);
    assert_eq!(of("unknown.example/a"), None);
    // Another port is another registry.
    assert_eq!(of("registry.gitlab.example/a"), None);
    let access = registries.access(&image("registry.gitlab.example:5050/a"));
    let credential = access.unwrap().registry.credential.unwrap();
    assert_eq!(credential.realm.as_deref(), Some("gitlab.example"));
    assert!(!format!("{credential:?}").contains("tok"), "{credential:?}");
}

#[test]
fn what_changes_is_seen_at_the_next_use() {
    let (folder, registries) = written(r#"{"auths": {"a.example": {"auth": "YTpi"}}}"#, 0o400);
    assert_eq!(who(&registries, "a.example/x").as_deref(), Some("a:b"));
    let next = folder.path().join("next");
    fs::write(&next, r#"{"auths": {"a.example": {"auth": "YTpj"}}}"#).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(&next, registries.credentials.as_ref().unwrap()).unwrap();
    assert_eq!(who(&registries, "a.example/x").as_deref(), Some("a:c"));
}

#[test]
fn a_file_that_others_may_read_is_refused_with_what_to_do() {
    for mode in [0o640, 0o604, 0o644, 0o660, 0o610] {
        let (_folder, registries) = written(FILE, mode);
        let refused = registries.check().unwrap_err();
        assert!(matches!(refused, RegistriesError::Loose { .. }), "{mode:o}");
        assert!(refused.fix().contains("chmod 600"), "{}", refused.fix());
        registries.access(&image("ghcr.io/a")).unwrap_err();
    }
    let (folder, mut registries) = written(FILE, 0o600);
    registries.credentials = Some(folder.path().join("none"));
    assert!(matches!(
        registries.check(),
        Err(RegistriesError::Read { .. })
    ));
}

#[test]
fn helpers_are_not_run_and_what_is_wrong_is_said_without_its_content() {
    for (text, host) in [
        (r#"{"credHelpers": {"gcr.io": "gcloud"}}"#, "gcr.io"),
        (
            r#"{"auths": {"ghcr.io": {}}, "credsStore": "desktop"}"#,
            "ghcr.io",
        ),
    ] {
        let (_folder, registries) = written(text, 0o600);
        for refused in [
            registries.check().unwrap_err(),
            registries.access(&image(&format!("{host}/a"))).unwrap_err(),
        ] {
            assert!(matches!(&refused, RegistriesError::Helper { host: it, .. } if it == host));
            assert!(refused.fix().contains("no helper is run"));
        }
        // Others are not concerned.
        assert_eq!(who(&registries, "quay.io/a"), None);
    }
    for text in [
        "marked",
        r#"{"auths": "marked"}"#,
        r#"{"auths": {"a": "marked"}}"#,
        r#"{"auths": {"a": {"auth": "marked!"}}}"#,
        // No colon in it.
        r#"{"auths": {"a": {"auth": "bWFya2Vk"}}}"#,
        r#"{"auths": {"a": {"username": "marked"}}}"#,
    ] {
        let (_folder, registries) = written(text, 0o600);
        let refused = registries.check().unwrap_err();
        let said = format!("{refused} {refused:?} {}", refused.fix());
        assert!(
            !said.contains("marked") && !said.contains("bWFya2Vk"),
            "{said}"
        );
    }
}

#[test]
fn mirrors_are_hosts_and_say_how_they_are_spoken_to() {
    let read = |text: &str| text.parse::<Mirror>();
    let mirror = read("index.docker.io=https://mirror.example.com/").unwrap();
    assert_eq!(
        (mirror.of.as_str(), mirror.manner),
        ("docker.io", Manner::Internal)
    );
    assert_eq!(mirror.host, "mirror.example.com");
    let mirror = read("ghcr.io=http://127.0.0.1:5000").unwrap();
    assert_eq!(
        (mirror.host.as_str(), mirror.manner),
        ("127.0.0.1:5000", Manner::Clear)
    );
    for wrong in [
        "mirror.example.com",
        "ghcr.io=mirror.example.com",
        "ghcr.io=ftp://mirror.example.com",
        "ghcr.io=https://mirror.example.com/v2/proxy",
        "ghcr.io=https://me:password@mirror.example.com",
        "ghcr.io/acme=https://mirror.example.com",
        "=https://mirror.example.com",
        "ghcr.io=https://",
    ] {
        read(wrong).unwrap_err();
    }
    let registries = Registries {
        mirrors: vec![mirror],
        ..Registries::default()
    };
    let access = registries.access(&image("ghcr.io/acme/web:1")).unwrap();
    assert_eq!(access.mirrors[0].host, "127.0.0.1:5000");
    assert!(
        registries
            .access(&image("quay.io/a"))
            .unwrap()
            .mirrors
            .is_empty()
    );
}

#[test]
fn one_way_to_speak_to_a_registry() {
    let both: BTreeSet<String> = ["registry.lan".to_owned()].into();
    let registries = Registries {
        insecure: both.clone(),
        internal: both,
        ..Registries::default()
    };
    assert!(matches!(
        registries.check(),
        Err(RegistriesError::Both { .. })
    ));
}

#[test]
fn authorities_are_certificates_that_others_cannot_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let registries = Registries {
        authorities: Some(path.clone()),
        ..Registries::default()
    };
    let made = rcgen::generate_simple_self_signed(["registry.lan".to_owned()]).unwrap();
    fs::write(&path, made.cert.pem()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let access = registries.access(&image("registry.lan/a")).unwrap();
    assert_eq!(access.authorities, [made.cert.der().to_vec()]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    let refused = registries.check().unwrap_err();
    assert!(refused.fix().contains("chmod 644"), "{}", refused.fix());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "nothing").unwrap();
    assert!(matches!(
        registries.check(),
        Err(RegistriesError::Form { .. })
    ));
}
