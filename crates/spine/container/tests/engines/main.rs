//! Real containers on real engines: Docker, Podman, Podman of an ordinary user.
//!
//! Each case runs on each engine that `cargo xtask with-engines` started.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod fixture;
mod registry;

use std::path::{Path, PathBuf};
use std::time::Duration;

use fixture::{Site, Way, read, some_process_says};
use fluffy_contract::isolation::{Command, Exit, LayerMount, Limit};
use fluffy_sandbox::protocol::{Answer, Ask, FailureKind};
use fluffy_test_kit::{EngineKind, Seed, campaign, wait_for};

const LONG: Duration = Duration::from_secs(60);

/// One test of each case for each engine.
macro_rules! on_every_engine {
    ($($case:ident),* $(,)?) => {
        mod docker { $(
            #[test]
            fn $case() { super::run(fluffy_test_kit::EngineKind::Docker, stringify!($case), super::$case); }
        )* }
        mod podman { $(
            #[test]
            fn $case() { super::run(fluffy_test_kit::EngineKind::Podman, stringify!($case), super::$case); }
        )* }
        mod rootless { $(
            #[test]
            fn $case() { super::run(fluffy_test_kit::EngineKind::RootlessPodman, stringify!($case), super::$case); }
        )* }
    };
}

fn run(kind: EngineKind, name: &str, case: fn(Site)) {
    if let Some(site) = Site::open(kind, name) {
        case(site);
    }
}

on_every_engine!(
    a_command_runs_on_the_layer_and_leaves_nothing,
    what_surrounds_a_command_is_closed,
    a_terminal_comes_back,
    a_listener_of_the_inside_comes_out,
    a_limit_that_ends_a_command_is_told,
    memory_and_processes_are_limited,
    it_is_paused_measured_stopped_and_killed,
    everything_in_it_can_be_ended_and_it_goes_on,
    what_a_killed_launcher_left_is_swept,
    an_end_at_any_point_leaves_nothing,
    what_no_container_may_have_is_refused,
    hidden_paths_stay_hidden,
    a_named_image_is_used_with_our_init_in_it,
    an_image_that_cannot_be_fetched_is_told,
    the_engine_is_found_and_known,
);

fn a_command_runs_on_the_layer_and_leaves_nothing(site: Site) {
    let mut launcher = site.launch();
    let sandbox = launcher.create(site.spec()).unwrap();
    let ran = launcher.shell(
        sandbox,
        1,
        "cat read.me; echo new > made; echo oops >&2; exit 7",
    );
    assert_eq!(ran.exit, Exit::Code { code: 7 }, "{ran:?}");
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("hello\n", "oops\n")
    );
    assert_eq!(read(&site.path("layers/tree/made")), "new\n");
    assert!(!site.path("project/made").exists());
    let again = launcher.shell(sandbox, 2, "cat made");
    assert_eq!(again.stdout, "new\n");
    assert_eq!(site.containers().len(), 1);
    launcher.must(Ask::Cleanup { sandbox });
    launcher.must(Ask::Cleanup { sandbox });
    assert!(site.containers().is_empty());
    assert!(site.volumes().is_empty());
    launcher.finish();
    let left = std::fs::read_dir(site.path("state/launchers"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

fn what_surrounds_a_command_is_closed(site: Site) {
    let mut launcher = site.launch();
    let mut spec = site.spec();
    spec.environment
        .insert("GIVEN".to_owned(), "yes".to_owned());
    let sandbox = launcher.create(spec).unwrap();
    let status = launcher
        .run(sandbox, 1, &["cat", "/proc/self/status"])
        .stdout;
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(line), "{line} in {status}");
    }
    let environment = launcher.run(sandbox, 2, &["env"]).stdout;
    assert!(environment.contains("GIVEN=yes"), "{environment}");
    for leak in ["container=", "HOSTNAME=", "DOCKER_HOST", "CARGO"] {
        assert!(!environment.contains(leak), "{leak} in {environment}");
    }
    for (number, (script, expected)) in [
        (
            "touch /usr/x || touch /etc/x || touch /x || echo closed",
            "closed",
        ),
        ("ls /.fluffy/control | wc -l", "0"),
        (
            "ls /var/run/docker.sock /run/podman/podman.sock 2>/dev/null | wc -l",
            "0",
        ),
        ("ls /proc/self/fd | wc -l", "4"),
        ("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo"),
        ("cat /sys/class/net/lo/address || echo closed", "closed"),
        (
            "unshare --user true 2>/dev/null && echo open || echo closed",
            "closed",
        ),
        (
            "mount -t tmpfs none /tmp 2>/dev/null && echo open || echo closed",
            "closed",
        ),
        (
            "touch /tmp/a $HOME/b /var/tmp/c /dev/shm/d && echo works",
            "works",
        ),
        ("cp /bin/true /tmp/true && /tmp/true && echo works", "works"),
    ]
    .into_iter()
    .enumerate()
    {
        let exec = 10 + u64::try_from(number).unwrap();
        let ran = launcher.shell(sandbox, exec, script);
        assert_eq!(
            ran.stdout.lines().last(),
            Some(expected),
            "{script}: {ran:?}"
        );
    }
}

fn a_terminal_comes_back(site: Site) {
    let mut launcher = site.launch();
    let sandbox = launcher.create(site.spec()).unwrap();
    let command = Command {
        terminal: Some(fluffy_contract::isolation::TerminalSize {
            columns: 93,
            rows: 31,
        }),
        ..Command::new(["sh", "-c", "stty size; tty; read line; exit 3"])
    };
    let ask = Ask::Exec {
        sandbox,
        exec: 1,
        command,
    };
    let (answer, mut descriptors) = launcher.ask(ask, &[]);
    assert!(matches!(answer, Answer::Done), "{answer:?}");
    let mut terminal = std::fs::File::from(descriptors.remove(0));
    // The kernel drops what nobody has read yet when a terminal's session ends:
    // it ends once all of it was read.
    let mut seen = String::new();
    let mut lines = std::io::BufReader::new(terminal.try_clone().unwrap());
    while !seen.contains("/dev/pts/") {
        let read = std::io::BufRead::read_line(&mut lines, &mut seen);
        assert!(matches!(read, Ok(1..)), "{read:?} after {seen:?}");
    }
    assert!(seen.contains("31 93"), "{seen}");
    std::io::Write::write_all(&mut terminal, b"\n").unwrap();
    assert_eq!(launcher.exit_of(1), Exit::Code { code: 3 });
}

fn a_listener_of_the_inside_comes_out(site: Site) {
    let mut launcher = site.launch();
    let sandbox = launcher.create(site.spec()).unwrap();
    let (answer, mut descriptors) = launcher.ask(
        Ask::Listen {
            sandbox,
            port: 3128,
        },
        &[],
    );
    assert!(matches!(answer, Answer::Done), "{answer:?}");
    let listener = std::net::TcpListener::from(descriptors.remove(0));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"from outside\n").unwrap();
    });
    let script = "import socket; s = socket.create_connection(('127.0.0.1', 3128)); print(s.makefile().read(), end='')";
    let ran = launcher.run(sandbox, 1, &["python3", "-c", script]);
    assert_eq!(ran.stdout, "from outside\n", "{ran:?}");
    server.join().unwrap();
    // The same port of the host is not the sandbox's.
    assert!(std::net::TcpStream::connect(("127.0.0.1", 3128)).is_err());
}

fn a_limit_that_ends_a_command_is_told(site: Site) {
    let mut settings = site.settings();
    for template in &mut settings.templates {
        if template.name == "code-executor" {
            template.disk = fluffy_base::ByteSize(4 << 20);
            template.file_size = fluffy_base::ByteSize(64 << 20);
            template.scratch = fluffy_base::ByteSize(16 << 20);
        }
    }
    let mut launcher = site.launch_with(settings).unwrap();
    let sandbox = launcher.create(site.spec()).unwrap();
    let command = Command {
        time: Some(fluffy_base::Span { millis: 300 }),
        ..Command::new(["sleep", "1000"])
    };
    let late = launcher.run_command(sandbox, 1, command);
    assert_eq!(late.exit, Exit::Limit { limit: Limit::Time });
    let full = launcher.shell(
        sandbox,
        2,
        "dd if=/dev/zero of=big bs=1M count=16 2>/dev/null; sleep 1000",
    );
    assert_eq!(full.exit, Exit::Limit { limit: Limit::Disk });
    let sparse = launcher.shell(sandbox, 3, "rm big; exec truncate -s 10G sparse");
    assert_eq!(
        sparse.exit,
        Exit::Limit { limit: Limit::Disk },
        "{sparse:?}"
    );
    let missing = launcher.run(sandbox, 4, &["no-such-program"]);
    assert_eq!(missing.exit, Exit::NotStarted { errno: 2 });
    // Files count too, not only what is in them.
    for (place, exec) in ["/tmp", "/dev/shm", "/home/fluffy"].into_iter().zip(10..) {
        let many = format!("for n in range(100000): open(f'{place}/{{n}}', 'w').close()");
        let many = launcher.run(sandbox, exec, &["python3", "-c", &many]);
        assert_eq!(many.exit, Exit::Code { code: 1 }, "{place}: {many:?}");
        assert!(many.stderr.contains("No space left"), "{place}: {many:?}");
    }
    let fine = launcher.shell(sandbox, 5, "echo fine");
    assert_eq!(fine.stdout, "fine\n");
}

fn memory_and_processes_are_limited(site: Site) {
    let mut settings = site.settings();
    for template in &mut settings.templates {
        if template.name == "code-executor" {
            template.memory = fluffy_base::ByteSize(128 << 20);
            template.pids = 40;
        }
    }
    let mut launcher = site.launch_with(settings).unwrap();
    let sandbox = launcher.create(site.spec()).unwrap();
    let hungry = "held = []\nwhile True: held.append(bytearray(1 << 20))";
    let ran = launcher.run(sandbox, 1, &["python3", "-c", hungry]);
    assert_eq!(
        ran.exit,
        Exit::Limit {
            limit: Limit::Memory
        },
        "{ran:?}"
    );
    let many = "i=0; while [ $i -lt 200 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; wait";
    let ran = launcher.shell(sandbox, 2, many);
    assert_eq!(ran.exit, Exit::Limit { limit: Limit::Pids }, "{ran:?}");
    launcher.must(Ask::Kill { sandbox });
    launcher.must(Ask::Cleanup { sandbox });
}

fn it_is_paused_measured_stopped_and_killed(site: Site) {
    let mut launcher = site.launch();
    let sandbox = launcher.create(site.spec()).unwrap();
    let (mut counting, _errors) = launcher.start(
        sandbox,
        1,
        Command::new([
            "sh",
            "-c",
            "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done",
        ]),
    );
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut counting, &mut ready).unwrap();
    launcher.must(Ask::Pause { sandbox });
    let (answer, _) = launcher.ask(Ask::Stats { sandbox }, &[]);
    let Answer::Stats { stats } = answer else {
        panic!("{answer:?}");
    };
    assert!(stats.memory > 0 && stats.pids >= 2, "{stats:?}");
    launcher.must(Ask::Resume { sandbox });
    launcher.must(Ask::Stop {
        sandbox,
        grace_millis: 30_000,
    });
    assert_eq!(launcher.exit_of(1), Exit::Code { code: 9 });
    let (answer, _) = launcher.ask(Ask::Stats { sandbox }, &[]);
    assert!(
        matches!(&answer, Answer::Failed { failure } if failure.kind == FailureKind::Ended),
        "{answer:?}"
    );
    launcher.must(Ask::Cleanup { sandbox });

    let second = launcher.create(site.spec()).unwrap();
    let word = format!("{}", 1_000_000 + std::process::id());
    let (_out, _err) = launcher.start(second, 2, Command::new(["sleep", word.as_str()]));
    wait_for("it sleeps", LONG, || some_process_says(&word).then_some(())).unwrap();
    launcher.must(Ask::Kill { sandbox: second });
    assert_eq!(launcher.exit_of(2), Exit::Signal { signal: 9 });
    assert!(!some_process_says(&word));
    launcher.must(Ask::Cleanup { sandbox: second });
    assert!(site.containers().is_empty());
}

fn everything_in_it_can_be_ended_and_it_goes_on(site: Site) {
    let mut launcher = site.launch();
    let sandbox = launcher.create(site.spec()).unwrap();
    let word = format!("{}", 2_000_000 + std::process::id());
    let left = format!(
        "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep {word}; done' >/dev/null 2>&1 &"
    );
    launcher.shell(sandbox, 1, &left);
    wait_for("it sleeps", LONG, || some_process_says(&word).then_some(())).unwrap();
    launcher.must(Ask::EndAll { sandbox });
    let gone = || (!some_process_says(&word)).then_some(());
    wait_for("it is gone", LONG, gone).unwrap();
    assert_eq!(launcher.shell(sandbox, 2, "echo two").stdout, "two\n");
    launcher.must(Ask::Cleanup { sandbox });
}

fn what_a_killed_launcher_left_is_swept(site: Site) {
    let mut first = site.launch();
    let sandbox = first.create(site.spec()).unwrap();
    let word = format!("{}", 2_000_000 + std::process::id());
    let (_out, _err) = first.start(sandbox, 1, Command::new(["setsid", "sleep", word.as_str()]));
    wait_for("it sleeps", LONG, || some_process_says(&word).then_some(())).unwrap();
    // A launcher that lives is left alone.
    let mut second = site.launch();
    let (answer, _) = second.ask(Ask::Sweep, &[]);
    assert!(matches!(answer, Answer::Swept { removed } if removed.is_empty()));
    first.kill();
    wait_for("its processes end by themselves", LONG, || {
        (!some_process_says(&word)).then_some(())
    })
    .unwrap();
    let (answer, _) = second.ask(Ask::Sweep, &[]);
    let Answer::Swept { removed } = answer else {
        panic!("{answer:?}");
    };
    let kinds = |kind: &str| removed.iter().filter(|line| line.starts_with(kind)).count();
    assert_eq!(kinds("container "), 1, "{removed:?}");
    assert_eq!(kinds("record "), 1, "{removed:?}");
    assert!(matches!(kinds("volume "), 0 | 5), "{removed:?}");
    assert!(site.volumes().is_empty());
    assert!(site.containers().is_empty());
    second.finish();
    let left = std::fs::read_dir(site.path("state/launchers"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

/// Kills the launcher, or hangs up on it, at random points of its work.
fn an_end_at_any_point_leaves_nothing(site: Site) {
    let seed = Seed::from_environment();
    let word = format!("{}", 3_000_000 + std::process::id());
    for round in 0..campaign(7, 70) {
        let mut launcher = site.launch();
        let way = [Way::Kill, Way::HangUp][usize::from(seed.choice(2 * round).is_multiple_of(2))];
        let delay = Duration::from_millis(seed.choice(2 * round + 1) % 900);
        let ending = launcher.end_after(delay, way);
        launcher.work_until_gone(&site.spec(), &word);
        ending.join().unwrap();
        match way {
            Way::Kill => launcher.kill(),
            Way::HangUp => {
                launcher.finish();
                assert!(site.containers().is_empty(), "{way:?} after {delay:?}");
            }
        }
        let mut next = site.launch();
        // What the engine was just doing for the dead launcher may come late.
        wait_for("everything is swept", LONG, || {
            let (answer, _) = next.ask(Ask::Sweep, &[]);
            assert!(matches!(answer, Answer::Swept { .. }), "{answer:?}");
            let gone = site.containers().is_empty() && site.volumes().is_empty();
            (gone && !some_process_says(&word)).then_some(())
        })
        .unwrap();
        next.finish();
        let left = std::fs::read_dir(site.path("state/launchers")).unwrap();
        assert_eq!(left.count(), 0, "{way:?} after {delay:?}");
    }
}

fn what_no_container_may_have_is_refused(site: Site) {
    let mut launcher = site.launch();
    let refused = |answer: &Answer, word: &str| {
        let Answer::Failed { failure } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(failure.kind, FailureKind::Refused, "{failure:?}");
        assert!(failure.why.contains(word), "{failure:?}");
    };
    let mut spec = site.spec();
    spec.layer = Some(LayerMount::Overlay {
        upper: site.path("layers/tree"),
        work: site.path("layers/work"),
    });
    refused(&launcher.create(spec).unwrap_err(), "copy");
    let mut spec = site.spec();
    spec.read = vec!["/etc".into()];
    refused(&launcher.create(spec).unwrap_err(), "/etc");
    // What a sandbox left in its layer does not choose what is mounted.
    std::os::unix::fs::symlink("/etc", site.path("layers/tree/.git")).unwrap();
    let mut spec = site.spec();
    spec.protected = vec![site.path("project/.git")];
    refused(&launcher.create(spec).unwrap_err(), "symbolic link");
    let mut spec = site.spec();
    spec.image = Some("--privileged".to_owned());
    refused(&launcher.create(spec).unwrap_err(), "--privileged");
    assert!(site.containers().is_empty());
}

fn hidden_paths_stay_hidden(site: Site) {
    const CANARY: &str = "canary-6a51";
    let root = site.path("layers/tree");
    for name in ["conf", "keys"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    for name in [".env", "conf/secret", "keys/id"] {
        std::fs::write(root.join(name), CANARY).unwrap();
    }
    std::fs::write(root.join("conf/open.txt"), "open\n").unwrap();
    site.hand_over();
    let mut launcher = site.launch();
    let names = [".env", "conf/secret", "keys", "absent/below"];
    let mut spec = site.spec();
    spec.hidden = names.map(|name| site.path("project").join(name)).to_vec();
    // In two containers after each other: what the first moved, the second
    // must not find.
    for _ in 0..2 {
        let sandbox = launcher.create(spec.clone()).unwrap();
        for (number, script) in (1..).zip([
            "cat .env conf/secret keys/id",
            "chmod 600 .env; chmod 700 keys; cat .env keys/id",
            "mv .env moved; cat moved; rm -f .env; cat .env; ln .env hard; cat hard",
            "mv conf other; cat other/secret; mv keys opened; cat opened/id",
            "umount .env; cat .env; cat /proc/1/root$PWD/.env /proc/self/cwd/.env",
            "cp -r . /tmp/all; grep -r canary . /tmp",
        ]) {
            let ran = launcher.shell(sandbox, number, script);
            let said = ran.stdout + &ran.stderr;
            assert!(!said.contains(CANARY), "`{script}` got: {said}");
        }
        let beside = launcher.shell(sandbox, 9, "cat conf/open.txt; echo x > conf/new; cat .env");
        assert_eq!(beside.stdout, "open\n", "{beside:?}");
        assert!(beside.stderr.contains("Permission denied"), "{beside:?}");
        launcher.must(Ask::Cleanup { sandbox });
    }
    // Without the list they are read, and the files are as they were.
    let sandbox = launcher.create(site.spec()).unwrap();
    let ran = launcher.shell(sandbox, 1, "cat .env conf/secret keys/id");
    assert_eq!(ran.stdout, CANARY.repeat(3), "{ran:?}");
    launcher.must(Ask::Cleanup { sandbox });
    launcher.finish();
    let left = std::fs::read_dir(site.path("state/launchers")).unwrap();
    assert_eq!(left.count(), 0);
}

/// A folder with one static program and nothing else, not even a library.
fn small_root(site: &Site) -> PathBuf {
    let root = site.path("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    std::fs::write(root.join("own"), "the image's own\n").unwrap();
    let programs = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let program = programs.into_iter().find(|path| path.exists());
    let program = program.expect("busybox-static is missing; `cargo xtask test` installs it");
    std::fs::copy(program, root.join("bin/busybox")).unwrap();
    root
}

fn a_named_image_is_used_with_our_init_in_it(site: Site) {
    let name = format!("localhost/fluffy-test-{}", std::process::id());
    site.import(&small_root(&site), &name);
    let mut launcher = site.launch();
    let mut spec = site.spec();
    spec.image = Some(format!("{name}:latest"));
    let sandbox = launcher.create(spec).unwrap();
    let ran = launcher.run(sandbox, 1, &["/bin/busybox", "cat", "/own", "read.me"]);
    assert_eq!(ran.stdout, "the image's own\nhello\n", "{ran:?}");
    let host = launcher.run(sandbox, 2, &["/bin/busybox", "ls", "/usr"]);
    assert_ne!(host.exit, Exit::Code { code: 0 }, "{host:?}");
    launcher.must(Ask::Cleanup { sandbox });
    site.remove_image(&name);
}

/// On Docker only: Podman speaks no plain HTTP to a registry without settings.
#[test]
fn an_image_is_fetched_while_nobody_waits() {
    let Some(site) = Site::open(EngineKind::Docker, "an_image_is_fetched_while_nobody_waits")
    else {
        return;
    };
    let archive = site.archive(&small_root(&site));
    let registry = registry::Registry::serve(std::fs::read(archive).unwrap());
    let mut launcher = site.launch();
    let mut spec = site.spec();
    spec.image = Some(registry.image());
    let pending = |answer: Answer| match answer {
        Answer::Pending { progress } => progress,
        other => panic!("{other:?}"),
    };
    let first = pending(launcher.create(spec.clone()).unwrap_err());
    assert!(first.contains(&registry.image()), "{first}");
    wait_for("the engine tells how far it is", LONG, || {
        let progress = pending(launcher.create(spec.clone()).unwrap_err());
        progress.contains("fs layer").then_some(())
    })
    .unwrap();
    // Meanwhile others are served.
    let other = launcher.create(site.spec()).unwrap();
    assert_eq!(launcher.shell(other, 1, "echo here").stdout, "here\n");
    launcher.must(Ask::Cleanup { sandbox: other });
    registry.let_go();
    let sandbox = wait_for("the image is there", LONG, || {
        match launcher.create(spec.clone()) {
            Ok(sandbox) => Some(sandbox),
            Err(answer) => {
                pending(answer);
                None
            }
        }
    })
    .unwrap();
    let ran = launcher.run(sandbox, 2, &["/bin/busybox", "cat", "/own"]);
    assert_eq!(ran.stdout, "the image's own\n", "{ran:?}");
    launcher.must(Ask::Cleanup { sandbox });
    // Somebody tidies up: it is fetched once more, and nobody hears an error.
    site.remove_image(&registry.image());
    let sandbox = wait_for("the image is there again", LONG, || {
        match launcher.create(spec.clone()) {
            Ok(sandbox) => Some(sandbox),
            Err(answer) => {
                pending(answer);
                None
            }
        }
    })
    .unwrap();
    launcher.must(Ask::Cleanup { sandbox });
    site.remove_image(&registry.image());
}

fn the_engine_is_found_and_known(site: Site) {
    let address = format!("unix://{}", site.socket.display());
    let environment = std::iter::once(("DOCKER_HOST".to_owned(), address)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let found = runtime.block_on(fluffy_container::probe::probe(&environment, 0));
    let found = found.unwrap();
    assert_eq!(found.socket, site.socket);
    assert!(found.version.contains('.'), "{found:?}");
    // A launcher whose engine is gone says so instead of starting.
    let mut nobody = site;
    nobody.socket = nobody.path("nobody.sock");
    let failure = nobody.launch_with(nobody.settings()).err().unwrap();
    assert!(failure.what.contains("nobody.sock"), "{failure:?}");
}

fn an_image_that_cannot_be_fetched_is_told(site: Site) {
    let mut launcher = site.launch();
    let mut spec = site.spec();
    // Nobody listens there: the fetch is started, and fails.
    spec.image = Some("127.0.0.1:9/nobody/nothing:1".to_owned());
    let first = launcher.create(spec.clone()).unwrap_err();
    let Answer::Pending { progress } = first else {
        panic!("{first:?}");
    };
    assert!(
        progress.contains("127.0.0.1:9/nobody/nothing:1"),
        "{progress}"
    );
    let failure = wait_for("the fetch has failed", LONG, || {
        match launcher.create(spec.clone()).unwrap_err() {
            Answer::Pending { .. } => None,
            Answer::Failed { failure } => Some(failure),
            other => panic!("{other:?}"),
        }
    })
    .unwrap();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(failure.what.contains("cannot be fetched"), "{failure:?}");
}
