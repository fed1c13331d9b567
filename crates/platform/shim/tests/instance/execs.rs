//! Commands beside the workload.

use fluffy_guest::host::{Connection, Exec, Piece};
use fluffy_guest::message::ExecOpen;

use crate::kit::{Instance, PATIENCE, Watched, wait_for};

async fn running(instance: &Instance) -> (Connection, Watched) {
    let (connection, mut watched) = instance.connect().await;
    connection
        .configure(instance.config("echo up; sleep 1000"), None)
        .await
        .unwrap();
    watched.until_line("up").await;
    (connection, watched)
}

fn command(script: &str) -> ExecOpen {
    ExecOpen {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        stdin: true,
        ..ExecOpen::default()
    }
}

/// All output, and the end.
async fn finish(mut exec: Exec) -> (Vec<u8>, Vec<u8>, Option<i32>, Option<i32>) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        let piece = tokio::time::timeout(PATIENCE, exec.output.next())
            .await
            .unwrap();
        match piece.expect("an end") {
            Piece::Stdout(bytes) => out.extend(bytes),
            Piece::Stderr(bytes) => err.extend(bytes),
            Piece::Exit { exit_code, signal } => return (out, err, exit_code, signal),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_its_streams_code_and_user() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let mut config = instance.config("echo up; sleep 1000");
    (config.user.name, config.requires) = (Some("app".to_owned()), vec!["named_user".to_owned()]);
    config.workdir = "/app".to_owned();
    connection.configure(config, None).await.unwrap();
    watched.until_line("up").await;
    let _listening = watched.keep();
    let exec = connection.exec(command(
        "id -u; id -g; id -G; pwd; cat mine; cat; echo no >&2; exit 5",
    ));
    let exec = exec.await.unwrap();
    exec.input.write(b"typed".to_vec()).await.unwrap();
    exec.input.close().await.unwrap();
    let (out, err, code, _) = finish(exec).await;
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "1000\n1001\n1001 33\n/app\nmine\ntyped"
    );
    assert_eq!((err.as_slice(), code), (b"no\n".as_slice(), Some(5)));
    let root = ExecOpen {
        as_root: true,
        ..command("id -u")
    };
    let (out, ..) = finish(connection.exec(root).await.unwrap()).await;
    assert_eq!(out, b"0\n");
    let missing = ExecOpen {
        command: vec!["missing".to_owned()],
        ..ExecOpen::default()
    };
    let error = connection.exec(missing).await.unwrap_err();
    assert!(error.to_string().contains("exec_not_found"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_go_through_a_pipe_unchanged() {
    const LENGTH: usize = 10 << 20;
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let exec = connection.exec(command("cat; exit 9")).await.unwrap();
    let bytes: Vec<u8> = (0..LENGTH).map(|n| ((n * 31) >> 3) as u8).collect();
    let input = exec.input.clone();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        for piece in sent.chunks(100_000) {
            input.write(piece.to_vec()).await.unwrap();
        }
        input.close().await.unwrap();
    });
    let (out, err, code, _) = finish(exec).await;
    writing.await.unwrap();
    assert!(out == bytes, "{} bytes came back", out.len());
    assert_eq!((err.len(), code), (0, Some(9)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_and_takes_signals() {
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let order = ExecOpen {
        tty: true,
        cols: 100,
        rows: 40,
        ..command("stty size; echo $TERM; read x; stty size; echo got $x; sleep 1000")
    };
    let mut exec = connection.exec(order).await.unwrap();
    let mut seen = String::new();
    let mut typed = false;
    while !seen.contains("got line") {
        let piece = tokio::time::timeout(PATIENCE, exec.output.next())
            .await
            .unwrap()
            .unwrap();
        let Piece::Stdout(bytes) = piece else {
            panic!("{piece:?} after {seen}");
        };
        seen.push_str(&String::from_utf8_lossy(&bytes));
        if seen.contains("xterm-256color") && !typed {
            typed = true;
            exec.input.resize(120, 50).await.unwrap();
            exec.input.write(b"line\n".to_vec()).await.unwrap();
        }
    }
    assert!(
        seen.contains("40 100\r\n") && seen.contains("50 120\r\n"),
        "{seen}"
    );
    // The key for it, as people press it.
    exec.input.write(vec![3]).await.unwrap();
    let (.., signal) = finish(exec).await;
    assert_eq!(signal, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_nobody_reads_does_not_grow_anything() {
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let exec = connection.exec(command("sleep 1000")).await.unwrap();
    let input = exec.input.clone();
    let (said, mut hears) = tokio::sync::watch::channel(0_usize);
    let writing = tokio::spawn(async move {
        // A gigabyte, if it were taken.
        for piece in 1..=16_384 {
            if input.write(vec![b'x'; 64 << 10]).await.is_err() {
                return;
            }
            let _ = said.send(piece);
        }
    });
    // What window and pipe hold is taken, and no more while others are served.
    hears.wait_for(|taken| *taken >= 4).await.unwrap();
    for _ in 0..20 {
        let (.., code, _) = finish(connection.exec(command("true")).await.unwrap()).await;
        assert_eq!(code, Some(0));
    }
    let taken = *hears.borrow();
    assert!(taken <= 16, "{taken} pieces were taken");
    let (out, ..) = finish(connection.exec(command("cat /proc/1/statm")).await.unwrap()).await;
    let pages: u64 = String::from_utf8(out)
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    assert!(pages < 4_096, "init has {pages} pages");
    exec.input.signal("KILL").await.unwrap();
    let (.., signal) = finish(exec).await;
    assert_eq!(signal, Some(9));
    writing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_waits_for_a_slow_reader() {
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let script = "head -c 2000000 /dev/zero; touch /tmp/written; head -c 7 /dev/zero";
    let exec = connection.exec(command(script)).await.unwrap();
    // Not read at all yet, it cannot have got to its end.
    let test = "test -e /tmp/written";
    let (.., code, _) = finish(connection.exec(command(test)).await.unwrap()).await;
    assert_eq!(code, Some(1));
    let (out, ..) = finish(exec).await;
    assert_eq!(out.len(), 2_000_007);
    let (.., code, _) = finish(connection.exec(command(test)).await.unwrap()).await;
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_nobody_wants_any_more_ends() {
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let group = instance.group();
    let before = group.usage().unwrap().processes;
    // It ignores the first word, and has children in groups of their own.
    let exec = connection.exec(command(
        "trap '' HUP; sleep 1000 & setsid sleep 2000 & echo up; wait",
    ));
    let mut exec = exec.await.unwrap();
    assert_eq!(
        exec.output.next().await,
        Some(Piece::Stdout(b"up\n".to_vec()))
    );
    drop(exec);
    // The one that left the session stays the instance's own.
    wait_for("the end of the command", || {
        group
            .usage()
            .is_ok_and(|usage| usage.processes <= before + 1)
    })
    .await;
}

/// As a server ends a session whose client is gone, and one that is revoked:
/// the command hears it, and what it started must go too.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_session_stays_behind_its_command() {
    let instance = Instance::start();
    let (connection, watched) = running(&instance).await;
    let _listening = watched.keep();
    let group = instance.group();
    let before = group.usage().unwrap().processes;
    // Deaf to the signal, or in a group of its own.
    let deaf = "(trap '' HUP; echo up; exec sleep 1000) & wait";
    let apart = "set -m; sleep 1000 & echo up; wait";
    for (script, tty, told, number) in [(deaf, false, "HUP", 1), (apart, true, "KILL", 9)] {
        let order = ExecOpen {
            tty,
            cols: 80,
            rows: 24,
            ..command(script)
        };
        let mut exec = connection.exec(order).await.unwrap();
        let mut seen = String::new();
        while !seen.contains("up") {
            let piece = tokio::time::timeout(PATIENCE, exec.output.next()).await;
            let Some(Piece::Stdout(bytes)) = piece.unwrap() else {
                panic!("it ended after {seen}");
            };
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        exec.input.signal(told).await.unwrap();
        let (.., signal) = finish(exec).await;
        assert_eq!(signal, Some(number), "{seen}");
        wait_for("the end of all that it started", || {
            let usage = group.usage();
            usage.is_ok_and(|usage| usage.processes <= before)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_commands_at_once() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let mut config = instance.config("echo up; sleep 1000");
    config.exec.max_sessions = 1;
    connection.configure(config, None).await.unwrap();
    watched.until_line("up").await;
    let _listening = watched.keep();
    let first = connection.exec(command("cat")).await.unwrap();
    let error = connection.exec(command("true")).await.unwrap_err();
    assert!(error.to_string().contains("exec_limit"), "{error}");
    first.input.close().await.unwrap();
    assert_eq!(finish(first).await.2, Some(0));
    let again = connection.exec(command("exit 4")).await.unwrap();
    assert_eq!(finish(again).await.2, Some(4));
}
