//! Attacks from inside the worker, each with a control that has no walls.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

/// Whether an attack works.
fn works(mode: &str, attack: &str, target: &str) -> bool {
    let program = env!("CARGO_BIN_EXE_fluffy-image-worker");
    let ended = Command::new(program)
        .args([mode, attack, target])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_ne!(ended.code(), Some(99), "there are no walls: {attack}");
    ended.success()
}

#[test]
fn a_worker_that_is_taken_over_reaches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // Whoever it is may read and write here, as far as modes go.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open).unwrap();
    std::fs::write(path("open"), "x").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = tcp.local_addr().unwrap().to_string();
    let _unix = UnixListener::bind(path("socket")).unwrap();
    // Walls alone break nothing.
    assert!(works("attack-walled", "nothing", ""));
    for (attack, target) in [
        ("read", path("open")),
        ("read", "/etc/passwd".to_owned()),
        ("write", path("new")),
        ("connect", address),
        ("unix", path("socket")),
        ("run", "/bin/true".to_owned()),
        ("enter", path("")),
        ("memory", String::new()),
        ("user", String::new()),
    ] {
        assert!(
            works("attack", attack, &target),
            "the control: {attack} {target}"
        );
        let _ = std::fs::remove_file(path("new"));
        assert!(
            !works("attack-walled", attack, &target),
            "{attack} {target}"
        );
    }
    assert!(!folder.path().join("new").exists());
}
