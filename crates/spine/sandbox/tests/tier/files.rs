//! Files: the project untouched, writes in the layer, nothing else to see.

use fluffy_contract::isolation::{Exit, SandboxSpec};
use fluffy_sandbox::plan::Engine;

use crate::kit::{Kit, create, shell, text};

on_every_engine! {
    without_a_layer_the_project_is_read_only
}

#[tokio::test]
async fn writes_land_in_the_layer_and_never_in_the_project() {
    let kit = Kit::new().await;
    let finished = kit
        .shell("cat hello.txt; echo changed > hello.txt; echo new > new.txt; cat hello.txt new.txt")
        .await;
    assert_eq!(
        text(&finished.stdout),
        "hello\nchanged\nnew\n",
        "{}",
        text(&finished.stderr)
    );
    let read = |path: &str| std::fs::read_to_string(kit.path(path));
    assert_eq!(read("project/hello.txt").unwrap(), "hello\n");
    assert!(read("project/new.txt").is_err());
    assert_eq!(
        read("state/layers/one/upper/hello.txt").unwrap(),
        "changed\n"
    );
    // The next sandbox of the session sees them.
    let finished = kit.shell("cat hello.txt new.txt").await;
    assert_eq!(text(&finished.stdout), "changed\nnew\n");
}

async fn without_a_layer_the_project_is_read_only(engine: Engine) {
    let kit = Kit::with(engine, |_| {}).await;
    let spec = SandboxSpec {
        layer: None,
        ..kit.spec()
    };
    let sandbox = kit.launcher.create(create(), spec).await.unwrap();
    let finished = shell(&sandbox, "cat hello.txt && echo no > hello.txt").await;
    assert_ne!(finished.exit, Exit::Code { code: 0 });
    assert_eq!(text(&finished.stdout), "hello\n");
}

#[tokio::test]
async fn only_the_named_parts_can_be_written_and_protected_ones_never() {
    let kit = Kit::new().await;
    for name in ["src", "docs", ".git/hooks"] {
        std::fs::create_dir_all(kit.path("project").join(name)).unwrap();
    }
    let spec = SandboxSpec {
        writable: vec![kit.path("project/src")],
        ..kit.spec()
    };
    let sandbox = kit.launcher.create(create(), spec).await.unwrap();
    let finished = shell(
        &sandbox,
        "echo a > src/a && echo ok; echo b > docs/b; echo c > c",
    )
    .await;
    assert_eq!(text(&finished.stdout), "ok\n");
    sandbox.clean().await.unwrap();
    assert!(!kit.path("state/layers/one/upper/docs/b").exists());
    assert!(!kit.path("state/layers/one/upper/c").exists());
    let spec = SandboxSpec {
        protected: vec![kit.path("project/.git"), kit.path("project/absent")],
        ..kit.spec()
    };
    let sandbox = kit.launcher.create(create(), spec).await.unwrap();
    let finished = shell(
        &sandbox,
        "echo x > .git/hooks/x; echo y > docs/y && echo ok",
    )
    .await;
    assert_eq!(text(&finished.stdout), "ok\n");
}

#[tokio::test]
async fn the_host_is_not_there() {
    let kit = Kit::new().await;
    std::fs::write(kit.path("secret"), "canary").unwrap();
    let outside = kit.path("secret");
    let script = format!(
        "cat {0} ../secret /etc/shadow; ls {1} /root /home /var/run /sys; cat /proc/1/environ; \
         echo x > /usr/x; echo x > /etc/x; echo x > /x; echo 1 > /proc/sys/kernel/printk",
        outside.display(),
        kit.path("state").display(),
    );
    let finished = kit.shell(&script).await;
    assert!(
        !text(&finished.stdout).contains("canary"),
        "{}",
        text(&finished.stdout)
    );
    let errors = text(&finished.stderr);
    for refused in ["/usr/x", "/etc/x", "/x", "/etc/shadow", "printk"] {
        assert!(
            errors.contains(refused),
            "{refused} must be refused: {errors}"
        );
    }
}

#[tokio::test]
async fn odd_names_of_a_project_are_only_names() {
    for name in [
        "a b",
        "co:lon,comma",
        "back\\slash",
        "new\nline",
        "ümlaut",
        "--option",
        "'quote\"",
    ] {
        let kit = Kit::with(fluffy_sandbox::plan::Engine::Native, |settings| {
            let project = settings.state.parent().unwrap().join(name);
            std::fs::create_dir(&project).unwrap();
            std::fs::write(project.join("file"), "content").unwrap();
            settings.projects = vec![project];
        })
        .await;
        let spec = SandboxSpec {
            project: Some(kit.path(name)),
            ..kit.spec()
        };
        let sandbox = kit.launcher.create(create(), spec).await.unwrap();
        let finished = shell(&sandbox, "cat file; echo x > written && cat written").await;
        assert_eq!(
            text(&finished.stdout),
            "contentx\n",
            "{name:?} {}",
            text(&finished.stderr)
        );
        sandbox.clean().await.unwrap();
        assert!(kit.path("state/layers/one/upper/written").exists());
        assert!(!kit.path(name).join("written").exists());
    }
}

#[tokio::test]
async fn scratch_space_is_private_and_bounded() {
    let kit = Kit::new().await;
    let first = kit.sandbox().await;
    shell(
        &first,
        "echo secret > /tmp/x; echo secret > /dev/shm/x; echo secret > $HOME/x",
    )
    .await;
    let spec = SandboxSpec {
        layer: None,
        ..kit.spec()
    };
    let second = kit.launcher.create(create(), spec).await.unwrap();
    let finished = shell(
        &second,
        "cat /tmp/x /dev/shm/x $HOME/x; head -c 300000000 /dev/zero > /dev/shm/big",
    )
    .await;
    assert_eq!(text(&finished.stdout), "");
    assert!(
        text(&finished.stderr).contains("No space left"),
        "{}",
        text(&finished.stderr)
    );
}
