//! Hidden paths: nothing inside opens, moves, links or uncovers them.

use std::fs;

use fluffy_contract::isolation::{Finished, LayerMount, SandboxError, SandboxSpec};
use fluffy_sandbox::client::{Pool, PoolSettings, SandboxHandle};
use fluffy_sandbox::plan::Engine;

use crate::kit::{Kit, create, shell, text};

const CANARY: &str = "canary-6a51";

/// Ways to what a hidden file or directory holds. `{0}` is the project.
const ATTEMPTS: &[&str] = &[
    "cat .env",
    "cat {0}/.env",
    "python3 -c 'print(open(\".env\").read())'",
    "cp .env copy; cat copy",
    "cp -r . /tmp/all; cat /tmp/all/.env /tmp/all/keys/id",
    "tar cf - . | tr -d '\\0'",
    "ln .env hard; cat hard",
    "ln -s .env soft; cat soft",
    "mv .env moved; cat moved",
    "chmod 600 .env; cat .env",
    "rm -f .env; cat .env",
    "umount .env; cat .env",
    "unshare -Urm sh -c 'umount .env; cat .env'",
    "cat /proc/self/root{0}/.env /proc/self/cwd/.env /proc/1/root{0}/.env /proc/1/cwd/.env",
    "cat /.covers/file /.host{0}/.env",
    "exec 3<.env; cat <&3",
    "python3 -c 'import os; f = os.open(\".env\", os.O_PATH); print(open(f\"/proc/self/fd/{f}\").read())'",
    "cat conf/secret",
    "mv conf other; cat other/secret",
    "cp -a conf other; cat other/secret",
    "mv conf /tmp/; cat /tmp/conf/secret",
    "ls keys; cat keys/id",
    "mv keys opened; cat opened/id",
    "rmdir keys; rm -rf keys; cat keys/id",
    "ls -R; find . -type f -size +0 -exec cat {} +",
    "grep -r canary .",
];

on_every_engine! {
    hidden_paths_stay_hidden
}

fn plant(kit: &Kit) {
    for place in ["project", "state/layers/one/tree"] {
        let root = kit.path(place);
        fs::create_dir(root.join("conf")).unwrap();
        fs::create_dir(root.join("keys")).unwrap();
        for name in [".env", "conf/secret", "keys/id"] {
            fs::write(root.join(name), CANARY).unwrap();
        }
        fs::write(root.join("conf/open.txt"), "open\n").unwrap();
    }
}

fn hiding(kit: &Kit) -> SandboxSpec {
    let names = [".env", "conf/secret", "keys", "keys/id", "absent/below"];
    SandboxSpec {
        hidden: names.map(|name| kit.path("project").join(name)).to_vec(),
        ..kit.spec()
    }
}

async fn attempt(kit: &Kit, sandbox: &SandboxHandle, script: &str) -> Finished {
    let project = kit.path("project").display().to_string();
    shell(sandbox, &script.replace("{0}", &project)).await
}

async fn hidden_paths_stay_hidden(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    plant(&kit);
    if engine == Engine::Reduced {
        let refused = kit.launcher.create(create(), hiding(&kit)).await;
        let Err(SandboxError::Refused { reason, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(reason.contains("reduced isolation cannot hide"), "{reason}");
        return;
    }
    // Each in a sandbox of its own over the same layer: what one moved, the
    // next must not find.
    for script in ATTEMPTS {
        let sandbox = kit.launcher.create(create(), hiding(&kit)).await.unwrap();
        let finished = attempt(&kit, &sandbox, script).await;
        let said = text(&finished.stdout) + &text(&finished.stderr);
        assert!(!said.contains(CANARY), "{engine:?} `{script}` got: {said}");
        sandbox.clean().await.unwrap();
    }
    // What is beside them works.
    let sandbox = kit.launcher.create(create(), hiding(&kit)).await.unwrap();
    let beside = "cat conf/open.txt && echo new > conf/new && mv conf/new conf/newer && ls conf";
    let finished = shell(&sandbox, beside).await;
    assert_eq!(
        text(&finished.stdout),
        "open\nnewer\nopen.txt\nsecret\n",
        "{}",
        text(&finished.stderr)
    );
    let refused = shell(&sandbox, "cat .env").await;
    let said = text(&refused.stderr);
    assert!(said.contains("Permission denied"), "{said}");
    sandbox.clean().await.unwrap();
    // The host's files are as they were.
    for place in ["project", "state/layers/one/tree"] {
        for name in [".env", "conf/secret", "keys/id"] {
            let kept = fs::read_to_string(kit.path(place).join(name)).unwrap();
            assert_eq!(kept, CANARY, "{place}/{name}");
        }
    }
}

/// Without the list each of these does get through, so the list is what holds.
#[tokio::test]
async fn without_the_list_they_are_read() {
    let kit = Kit::new().await;
    plant(&kit);
    for script in [
        "cat .env",
        "tar cf - . | tr -d '\\0'",
        "cp -a conf other; cat other/secret",
        "mv keys opened; cat opened/id",
    ] {
        let sandbox = kit.sandbox().await;
        let finished = attempt(&kit, &sandbox, script).await;
        let said = text(&finished.stdout);
        assert!(said.contains(CANARY), "`{script}` got only: {said}");
        sandbox.clean().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_sandbox_hides_them_too() {
    let kit = Kit::new().await;
    plant(&kit);
    let spec = SandboxSpec {
        layer: None,
        ..kit.spec()
    };
    let pool = Pool::new(kit.launcher.clone(), PoolSettings { spec, size: 1 });
    pool.fill(create()).await.unwrap();
    let sandbox = pool.take(create(), hiding(&kit)).await.unwrap();
    assert_eq!(pool.waiting().await, 0, "the waiting one was taken");
    let finished = attempt(
        &kit,
        &sandbox,
        "cat .env conf/secret keys/id; cat hello.txt",
    )
    .await;
    assert_eq!(text(&finished.stdout), "hello\n");
    let said = text(&finished.stderr);
    assert_eq!(said.matches("Permission denied").count(), 3, "{said}");
}

#[tokio::test]
async fn a_link_in_the_place_of_a_hidden_path_is_refused() {
    let kit = Kit::new().await;
    fs::write(kit.path("project/other"), CANARY).unwrap();
    std::os::unix::fs::symlink("other", kit.path("project/.env")).unwrap();
    let spec = SandboxSpec {
        hidden: vec![kit.path("project/.env")],
        ..kit.spec()
    };
    let made = kit.launcher.create(create(), spec).await;
    assert!(made.is_err(), "{made:?}");
}

/// Where there is no overlay the native engine has a copy, in which a
/// directory could be moved.
#[tokio::test]
async fn a_copy_under_the_native_engine_keeps_them_too() {
    let kit = Kit::new().await;
    plant(&kit);
    let spec = SandboxSpec {
        layer: Some(LayerMount::Tree {
            tree: kit.path("state/layers/one/tree"),
        }),
        ..hiding(&kit)
    };
    for script in ATTEMPTS {
        let sandbox = kit.launcher.create(create(), spec.clone()).await.unwrap();
        let finished = attempt(&kit, &sandbox, script).await;
        let said = text(&finished.stdout) + &text(&finished.stderr);
        assert!(!said.contains(CANARY), "`{script}` got: {said}");
        sandbox.clean().await.unwrap();
    }
}
