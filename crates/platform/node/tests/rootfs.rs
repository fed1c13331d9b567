//! The driver `container-rootfs` for real.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "tests"
)]

#[path = "../../shim/tests/instance/image.rs"]
mod image;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use fluffy_guest::GuestConfig;
use fluffy_guest::host::{Connection, Events, GuestEvent, Options, open};
use fluffy_guest::message::Happening;
use fluffy_node::Audited;
use fluffy_node::driver::rootfs::Rootfs;
use fluffy_node::driver::{Adoption, Handle, InstanceDriver, Network, StartOrder};
use fluffy_shim::cgroup::{Group, keepers_of};

const PATIENCE: Duration = Duration::from_secs(120);

/// A driver with groups of its own, and what it started.
struct Site {
    driver: Rootfs,
    group: String,
    folder: tempfile::TempDir,
}

impl Site {
    fn new(name: &str) -> Self {
        let group = format!("fluffy-node-test-{}-{name}", std::process::id());
        let folder = tempfile::tempdir().unwrap();
        image::image(&folder.path().join("root.erofs"));
        Self {
            driver: driver(&group),
            group,
            folder,
        }
    }

    fn order(&self, instance: &str) -> StartOrder {
        let dir = self.folder.path().join(instance);
        std::fs::create_dir(&dir).unwrap();
        let pid = std::process::id();
        let [high, low] = [(pid >> 16) as u16, (pid & 0xffff) as u16];
        let last = u16::from(instance.as_bytes()[0]);
        StartOrder {
            instance_id: instance.to_owned(),
            generation: 1,
            boot_id: "boot_1".to_owned(),
            dir: dir.clone(),
            run_dir: dir,
            root: self.folder.path().join("root.erofs"),
            uid_base: 0x3000_0000,
            memory_bytes: 128 << 20,
            cpu_millis: 500,
            pids: 128,
            disk_bytes: 1 << 30,
            network: Network {
                address: [0xfd7e, 0x58, high, low, 0, 0, 0, last].into(),
                gateway: "fe80::1".parse().unwrap(),
                mac: [2, 9, 9, 9, 9, 9],
                mtu: 1_420,
                hostname: "web".to_owned(),
            },
        }
    }
}

fn driver(group: &str) -> Rootfs {
    let program = env!("CARGO_BIN_EXE_fluffy-node-shim").into();
    Rootfs::new(program, Vec::new(), group)
}

impl Drop for Site {
    fn drop(&mut self) {
        // Instances first: what holds them ends with them.
        for parent in [self.group.clone(), keepers_of(&self.group)] {
            let Ok(any) = Group::named(&format!("{parent}/any")) else {
                return;
            };
            for name in any.siblings() {
                if let Ok(group) = Group::named(&format!("{parent}/{name}")) {
                    let _ = group.kill();
                    let _ = group.remove();
                }
            }
            let _ = Group::named(&parent).and_then(|group| group.remove());
        }
    }
}

async fn connect(handle: &Handle) -> (Connection, Events) {
    let stream = tokio::net::UnixStream::connect(&handle.link).await.unwrap();
    let options = Options {
        handshake: PATIENCE,
        ..Options::default()
    };
    let (hello, connection, events) = open(stream, options).await.unwrap();
    assert_eq!(hello.boot_id, handle.boot_id);
    (connection, events)
}

async fn run(handle: &Handle, script: &str) -> (Connection, Events) {
    let (connection, mut events) = connect(handle).await;
    let config = serde_json::json!({
        "type": "config", "config_version": "v1", "instance_id": handle.instance_id,
        "generation": 1, "root": {"lower": {"serial": "fw-root", "fs": "erofs"}},
        "command": ["sh", "-c", script],
        "network": {"overlay_ipv6": "fd00::1", "gateway_ipv6": "fe80::1"},
        "secrets": {"present": false}, "exec": {"enabled": true},
    });
    let config = GuestConfig::read(config.to_string().as_bytes()).unwrap();
    connection.configure(config, None).await.unwrap();
    loop {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap();
        match event.expect("a link") {
            GuestEvent::Status(status) => match status.what {
                Happening::WorkloadStarted { .. } => return (connection, events),
                Happening::Failed { code, detail } => panic!("{code}: {detail}"),
                _ => {}
            },
            GuestEvent::Lost(lost) => panic!("{lost}"),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_later_finds_what_runs_and_ends_it() {
    let site = Site::new("adopt");
    site.driver.probe().await.unwrap();
    let handle = site.driver.start(&site.order("one")).await.unwrap();
    drop(run(&handle, "sleep 1000").await);
    // Another agent has only what was kept.
    let kept = serde_json::to_string(&handle).unwrap();
    let handle: Handle = serde_json::from_str(&kept).unwrap();
    let later = driver(&site.group);
    assert_eq!(later.adopt(&handle).await, Adoption::Alive);
    let (connection, _events) = connect(&handle).await;
    assert_eq!(connection.state().await.unwrap().generation, 1);
    let stats = later.stats(&handle).await.unwrap();
    assert!(stats.processes >= 2 && stats.memory_bytes > 0, "{stats:?}");
    later.kill(&handle).await.unwrap();
    let record = later.ended(&handle).await.expect("a record");
    assert_eq!(record.signal, Some(9));
    assert_eq!(later.adopt(&handle).await, Adoption::Exited(record));
    later.clean(&handle).await.unwrap();
    later.clean(&handle).await.unwrap();
    assert!(!Group::named(&handle.cgroup).unwrap().exists());
    assert!(!Path::new("/sys/class/net").join(&handle.interface).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_told_with_its_code_and_a_restart_is_another_boot() {
    let site = Site::new("restart");
    let mut order = site.order("two");
    let handle = site.driver.start(&order).await.unwrap();
    let (_connection, mut events) = run(&handle, "exit 5").await;
    let listening = tokio::spawn(async move { while events.next().await.is_some() {} });
    let record = tokio::time::timeout(PATIENCE, site.driver.ended(&handle))
        .await
        .unwrap();
    assert_eq!(record.expect("a record").exit_code, Some(5));
    listening.await.unwrap();
    order.boot_id = "boot_2".to_owned();
    let again = site.driver.start(&order).await.unwrap();
    // The record of the boot before is not taken for this one's.
    assert_eq!(site.driver.adopt(&again).await, Adoption::Alive);
    site.driver.kill(&again).await.unwrap();
    site.driver.clean(&again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_was_killed_is_lost_and_nothing_runs_on() {
    let site = Site::new("lost");
    let handle = site.driver.start(&site.order("three")).await.unwrap();
    let _link = run(&handle, "sleep 1000").await;
    let (pid, start) = handle.shim;
    fluffy_shim::watch::kill(pid, start).unwrap();
    fluffy_shim::watch::ended(pid, start).await.unwrap();
    assert_eq!(site.driver.adopt(&handle).await, Adoption::Lost);
    // Whoever ended counts until the machine's first process collected it.
    let by = std::time::Instant::now() + PATIENCE;
    while site.driver.stats(&handle).await.unwrap().processes > 0 {
        assert!(std::time::Instant::now() < by, "something runs on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nobody knows it: it is swept away.
    let nothing: [String; 0] = [];
    assert_eq!(site.driver.sweep(&["three".to_owned()]).await, nothing);
    assert_eq!(site.driver.sweep(&[]).await, ["instance three"]);
    assert!(!Group::named(&handle.cgroup).unwrap().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_none_is_a_failure_with_its_code() {
    let site = Site::new("root");
    let mut order = site.order("four");
    order.root = site.folder.path().join("missing.erofs");
    let failure = site.driver.start(&order).await.unwrap_err();
    assert_eq!(failure.code, "rootfs_build_failed", "{failure}");
}

/// A process that has nothing to do with any instance.
struct Innocent(std::process::Child);

impl Drop for Innocent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_only_has_the_number_of_a_shim_is_left_alone() {
    let site = Site::new("other");
    let mut other = Innocent(
        std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap(),
    );
    let pid = other.0.id();
    // Until it is `sleep`, it is this program.
    let by = std::time::Instant::now() + PATIENCE;
    let own = fluffy_shim::watch::program(std::process::id());
    while fluffy_shim::watch::program(pid) == own {
        assert!(std::time::Instant::now() < by, "it never started");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let start = fluffy_shim::watch::started(pid).unwrap();
    let program = fluffy_shim::watch::program(pid).unwrap();
    let boot = fluffy_shim::watch::host_boot().unwrap();
    let known = site.driver.start(&site.order("five")).await.unwrap();
    site.driver.kill(&known).await.unwrap();
    site.driver.clean(&known).await.unwrap();
    let of = |start, program, host_boot: &str| Handle {
        shim: (pid, start),
        program,
        host_boot: host_boot.to_owned(),
        exit: site.folder.path().join("no exit"),
        ..known.clone()
    };
    // The control: as it is, it would be taken for one.
    assert_eq!(
        site.driver.adopt(&of(start, program, &boot)).await,
        Adoption::Alive
    );
    for wrong in [
        of(start + 1, program, &boot),
        of(start, (program.0, program.1 + 1), &boot),
        of(start, program, "another boot"),
    ] {
        assert_eq!(site.driver.adopt(&wrong).await, Adoption::Lost);
        site.driver.kill(&wrong).await.unwrap();
    }
    assert!(other.0.try_wait().unwrap().is_none(), "it was ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_another_boot_counts_for_nothing() {
    let site = Site::new("record");
    let handle = site.driver.start(&site.order("six")).await.unwrap();
    let record =
        r#"{"boot_id":"boot_0","exit_code":0,"signal":null,"oom":false,"at_ms":1,"failed":null}"#;
    std::fs::write(&handle.exit, record).unwrap();
    assert_eq!(site.driver.adopt(&handle).await, Adoption::Alive);
    std::fs::write(&handle.exit, record.replace("boot_0", "boot_1")).unwrap();
    assert!(matches!(
        site.driver.adopt(&handle).await,
        Adoption::Exited(_)
    ));
    site.driver.clean(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_holds_for_an_instance_and_for_nobody_else() {
    let site = Site::new("audit");
    let mut order = site.order("seven");
    order.uid_base = 0x4000_0000;
    std::fs::set_permissions(&order.run_dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let handle = site.driver.start(&order).await.unwrap();
    let (_connection, _events) = run(&handle, "sleep 1000").await;
    let of = Audited {
        group: site.group.clone(),
        instance: "seven".to_owned(),
        run_dir: order.run_dir.clone(),
        dir: order.dir.clone(),
    };
    let wrong = |of: &Audited| -> Vec<String> {
        let all = fluffy_node::audit(of).expect("an instance");
        let wrong = all.into_iter().filter(|it| !it.holds);
        wrong
            .map(|it| format!("{}: {}", it.name, it.detail))
            .collect()
    };
    let nothing: [String; 0] = [];
    assert_eq!(wrong(&of), nothing);
    // What is loosened is found.
    std::fs::set_permissions(&order.run_dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let [only] = wrong(&of).try_into().unwrap();
    assert!(only.starts_with("sockets: "), "{only}");
    // The control: an ordinary process has none of it.
    let other = Innocent(
        std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap(),
    );
    let held: Vec<_> = fluffy_node::audit_process(other.0.id())
        .into_iter()
        .filter(|it| it.holds)
        .collect();
    assert_eq!(held, []);
    site.driver.kill(&handle).await.unwrap();
    assert_eq!(fluffy_node::audit(&of), None);
    site.driver.clean(&handle).await.unwrap();
}
