//! Waiting sandboxes: fast, fresh, and used once.

use fluffy_contract::isolation::{Command, LayerMount, SandboxError, SandboxSpec};
use fluffy_sandbox::client::{Pool, PoolSettings};

use crate::kit::{Kit, create, run, shell, text};

#[tokio::test]
async fn a_waiting_sandbox_gets_its_layer_and_serves_once() {
    let kit = Kit::new().await;
    let spec = SandboxSpec {
        layer: None,
        ..kit.spec()
    };
    let pool = Pool::new(kit.launcher.clone(), PoolSettings { spec, size: 2 });
    for _ in 0..3 {
        pool.fill(create()).await.unwrap();
    }
    assert_eq!(pool.waiting().await, 2, "no more than asked for");
    let sandbox = pool.take(create(), kit.spec()).await.unwrap();
    assert_eq!(pool.waiting().await, 1);
    let finished = shell(
        &sandbox,
        "cat hello.txt; echo warm > warm.txt; ls /.host 2>&1; echo x > /x",
    )
    .await;
    assert!(
        text(&finished.stdout).starts_with("hello\n"),
        "{}",
        text(&finished.stderr)
    );
    assert!(
        text(&finished.stdout).contains("No such file"),
        "{}",
        text(&finished.stdout)
    );
    assert!(
        text(&finished.stderr).contains("Read-only"),
        "{}",
        text(&finished.stderr)
    );
    shell(
        &sandbox,
        "echo secret > /tmp/s; export S=secret; sleep 300 & echo secret > /dev/shm/s",
    )
    .await;
    sandbox.clean().await.unwrap();
    assert!(kit.path("state/layers/one/upper/warm.txt").exists());
    let next = pool.take(create(), kit.spec()).await.unwrap();
    let finished = shell(
        &next,
        "cat /tmp/s /dev/shm/s; env; ls -d /proc/[0-9]* | wc -l; ipcs -m -q -s",
    )
    .await;
    assert!(
        !text(&finished.stdout).contains("secret"),
        "{}",
        text(&finished.stdout)
    );
    next.clean().await.unwrap();
    // Empty: a new one is made.
    let fresh = pool.take(create(), kit.spec()).await.unwrap();
    assert_eq!(text(&shell(&fresh, "cat warm.txt").await.stdout), "warm\n");
}

#[tokio::test]
async fn a_sandbox_whose_layer_cannot_be_mounted_runs_nothing() {
    let kit = Kit::new().await;
    let spec = SandboxSpec {
        layer: None,
        ..kit.spec()
    };
    let pool = Pool::new(kit.launcher.clone(), PoolSettings { spec, size: 1 });
    pool.fill(create()).await.unwrap();
    let missing = SandboxSpec {
        layer: Some(LayerMount::Overlay {
            upper: kit.path("state/layers/none/upper"),
            work: kit.path("state/layers/none/work"),
        }),
        ..kit.spec()
    };
    let sandbox = pool.take(create(), missing).await.unwrap();
    // Where every sandbox has a directory, so that nothing else stops it.
    let command = Command {
        directory: Some("/".into()),
        ..Command::new(["true"])
    };
    let error = sandbox.run(run(), command.clone()).await.unwrap_err();
    let project = kit.path("project").display().to_string();
    assert!(error_text(&error).contains(&project), "{error:?}");
    let again = sandbox.run(run(), command).await.unwrap_err();
    assert!(
        error_text(&again).contains("has not got its project"),
        "{again:?}"
    );
}

/// The error and what it comes from.
fn error_text(error: &SandboxError) -> String {
    let source = std::error::Error::source(error);
    format!(
        "{error}: {}",
        source.map(ToString::to_string).unwrap_or_default()
    )
}
