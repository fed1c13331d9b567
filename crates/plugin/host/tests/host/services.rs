//! What a plugin may ask its host for.

use std::os::unix::fs::symlink;

use fluffy_plugin_host::ServiceError;
use fluffy_plugin_host::log::{self, Level};
use fluffy_plugin_host::services::{MAX_KEY, MAX_VALUE};
use fluffy_policy::grant::GrantLists;

use crate::kit::{ALLOW_ALL, Kit};

const ALL: &[&str] = &[
    "kv.*",
    "fs.*",
    "config.*",
    "log.write",
    "net.connect.a.example:443",
];

#[tokio::test]
async fn values_are_kept_listed_and_deleted() {
    let kit = Kit::new(ALLOW_ALL).await;
    let services = kit.services(kit.desk(ALL));
    assert_eq!(services.kv_get("a").await, Ok(None));
    for key in ["a", "a.1", "a.2", "b"] {
        services.kv_set(key, key.as_bytes().to_vec()).await.unwrap();
    }
    services.kv_set("a", b"new".to_vec()).await.unwrap();
    // Another start of the same plugin.
    let services = kit.services(kit.desk(ALL));
    assert_eq!(services.kv_get("a").await, Ok(Some(b"new".to_vec())));
    assert_eq!(services.kv_list("a.", "").await.unwrap(), ["a.1", "a.2"]);
    assert_eq!(services.kv_list("a.", "a.1").await.unwrap(), ["a.2"]);
    assert_eq!(services.kv_list("", "a.2").await.unwrap(), ["b"]);
    services.kv_delete("a.1").await.unwrap();
    services.kv_delete("a.1").await.unwrap();
    assert_eq!(services.kv_list("a.", "").await.unwrap(), ["a.2"]);
    let long = "k".repeat(MAX_KEY + 1);
    for key in ["", "a\0b", "a\nb", &long] {
        let answer = services.kv_set(key, Vec::new()).await;
        assert!(
            matches!(answer, Err(ServiceError::Invalid { .. })),
            "{key:?}"
        );
    }
    let large = services.kv_set("large", vec![0; MAX_VALUE + 1]).await;
    assert!(matches!(large, Err(ServiceError::TooLarge { .. })));
    let mut number = 0;
    let full = loop {
        let set = services
            .kv_set(&number.to_string(), vec![0; MAX_VALUE])
            .await;
        number += 1;
        match set {
            Ok(()) => assert!(number < 100),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ServiceError::Full { .. }), "{full:?}");
    assert_eq!(services.kv_get("a").await, Ok(Some(b"new".to_vec())));
}

#[tokio::test]
async fn files_are_read_below_their_roots_and_never_through_a_link() {
    let kit = Kit::new(ALLOW_ALL).await;
    let services = kit.services(kit.desk(ALL));
    std::fs::create_dir(kit.path("project/docs")).unwrap();
    std::fs::write(kit.path("project/docs/a.md"), "text").unwrap();
    std::fs::write(kit.path("outside"), "secret").unwrap();
    symlink(kit.path("outside"), kit.path("project/docs/link")).unwrap();
    symlink(kit.path(""), kit.path("project/up")).unwrap();
    let fifo = kit.path("project/docs/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();

    assert_eq!(services.fs_read("/docs/a.md").await.unwrap(), b"text");
    let listed = services.fs_list("/docs").await.unwrap();
    assert_eq!(listed, ["a.md", "link", "pipe"]);
    assert_eq!(services.fs_list("/").await.unwrap(), ["docs/", "up"]);
    for path in ["/docs/link", "/up/outside", "/docs/pipe", "/docs"] {
        let answer = services.fs_read(path).await;
        assert!(
            matches!(answer, Err(ServiceError::Invalid { .. })),
            "{path}: {answer:?}"
        );
    }
    let gone = services.fs_read("/docs/b.md").await;
    assert!(matches!(gone, Err(ServiceError::NotFound { .. })));
    // What is no path of a root does not even reach the rules.
    for path in [
        "/../outside",
        "docs",
        "@host/etc/passwd",
        "@data/../outside",
    ] {
        let answer = services.fs_read(path).await;
        assert!(answer.is_err(), "{path}");
    }

    services
        .fs_write("@data/kept", b"mine".to_vec())
        .await
        .unwrap();
    services
        .fs_write("@data/kept", b"m".to_vec())
        .await
        .unwrap();
    assert_eq!(services.fs_read("@data/kept").await.unwrap(), b"m");
    let project = services.fs_write("/docs/a.md", b"x".to_vec()).await;
    assert!(matches!(project, Err(ServiceError::Invalid { .. })));
    symlink(kit.path("outside"), kit.path("p/a/data/link")).unwrap();
    assert!(
        services
            .fs_write("@data/link", b"x".to_vec())
            .await
            .is_err()
    );
    assert_eq!(std::fs::read(kit.path("outside")).unwrap(), b"secret");
}

#[tokio::test]
async fn what_was_not_granted_is_refused_and_every_decision_recorded() {
    let kit = Kit::new(ALLOW_ALL).await;
    let services = kit.services(kit.desk(&["kv.get.*", "net.connect.a.example:443"]));
    assert_eq!(services.kv_get("a").await, Ok(None));
    services.may_connect("a.example:443").unwrap();
    let refused = [
        services.kv_set("a", Vec::new()).await.err(),
        services.kv_delete("a").await.err(),
        services.kv_list("", "").await.err(),
        services.fs_read("/a").await.err(),
        services.fs_list("/").await.err(),
        services.fs_write("@data/a", Vec::new()).await.err(),
        services.configuration().err(),
        services.log(Level::Info, "hello").err(),
        services.may_connect("a.example:80").err(),
        services.may_connect("b.example:443").err(),
    ];
    for error in refused {
        assert!(
            matches!(error, Some(ServiceError::Denied { .. })),
            "{error:?}"
        );
    }
    assert!(log::read(&kit.log()).unwrap().is_empty());
    for action in [
        "kv.set",
        "kv.delete",
        "kv.list",
        "fs.read",
        "fs.list",
        "fs.write",
    ] {
        assert_eq!(kit.decisions(action, "deny"), 1, "{action}");
    }
    assert_eq!(
        (
            kit.decisions("kv.get", "allow"),
            kit.decisions("net.connect", "deny")
        ),
        (1, 2)
    );
}

/// Each of the four sets can be the one that says no.
#[tokio::test]
async fn each_of_the_four_sets_is_needed() {
    let kit = Kit::new(ALLOW_ALL).await;
    let all = || vec!["*".to_owned()];
    let whole = GrantLists {
        capabilities: all(),
        deny_capabilities: Vec::new(),
        workspace: all(),
        user: all(),
    };
    let ask = async |lists: &GrantLists| kit.services(kit.desk_of(lists)).kv_get("a").await.is_ok();
    assert!(ask(&whole).await);
    for lists in [
        GrantLists {
            capabilities: Vec::new(),
            ..whole.clone()
        },
        GrantLists {
            deny_capabilities: vec!["kv.*".to_owned()],
            ..whole.clone()
        },
        GrantLists {
            workspace: Vec::new(),
            ..whole.clone()
        },
        GrantLists {
            user: Vec::new(),
            ..whole.clone()
        },
    ] {
        assert!(!ask(&lists).await, "{lists:?}");
    }
    let mut nobody = kit.desk_of(&whole);
    nobody.principal.grant = None;
    assert!(kit.services(nobody).kv_get("a").await.is_err());
}
