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

use std::future::poll_fn;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fluffy_guest::GuestConfig;
use fluffy_guest::host::{Connection, Events, GuestEvent, Options, Piece, open};
use fluffy_guest::message::Happening;
use fluffy_node::Audited;
use fluffy_node::driver::rootfs::Rootfs;
use fluffy_node::driver::scratch::Scratch;
use fluffy_node::driver::{Adoption, Handle, InstanceDriver, Network, Room, StartOrder};
use fluffy_shim::cgroup::{Group, keepers_of};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
            driver: driver(&group).with_scratch(scratch(folder.path())),
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

/// Disks for instances, with templates in a folder of a site.
fn scratch(folder: &Path) -> Scratch {
    let program = env!("CARGO_BIN_EXE_fluffy-node-shim").into();
    Scratch::new(folder.join("scratch"), program, vec!["mke2fs".to_owned()])
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

/// Goes on listening, so that commands do.
fn listen(mut events: Events) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move { while events.next().await.is_some() {} })
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

/// Lets this process open nothing more, or again what it could before.
fn descriptors(soft: Option<u64>) -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: soft,
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    before.current
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_descriptors_takes_nothing_for_ended() {
    let mut holder = Innocent(
        std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap(),
    );
    let pid = holder.0.id();
    let nowhere = PathBuf::from("/nonexistent");
    let handle = Handle {
        driver: "container-rootfs".to_owned(),
        instance_id: "seventeen".to_owned(),
        boot_id: "boot_1".to_owned(),
        shim: (pid, fluffy_shim::watch::started(pid).unwrap()),
        host_boot: fluffy_shim::watch::host_boot().unwrap(),
        program: (0, 0),
        cgroup: "fluffy-node-test/seventeen".to_owned(),
        interface: "fwt-17".to_owned(),
        link: nowhere.clone(),
        exit: nowhere.clone(),
        console: nowhere,
        own: std::collections::BTreeMap::new(),
    };
    let driver = driver("fluffy-node-test");
    let mut ended = driver.ended(&handle);
    let before = descriptors(Some(0));
    // Looked at once, and not waited for.
    let blind = poll_fn(|context| Poll::Ready(ended.as_mut().poll(context).is_ready())).await;
    let killed = driver.kill(&handle).await;
    descriptors(before);
    assert!(!blind, "it was not seen, and so it was taken for gone");
    assert!(killed.is_err(), "nobody can say that nothing of it runs");
    assert!(holder.0.try_wait().unwrap().is_none());
    // The control: its end is seen once there are descriptors again.
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let seen = tokio::time::timeout(PATIENCE, ended).await;
    assert_eq!(seen.expect("its end"), None);
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
    std::fs::set_permissions(&order.run_dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let disk = order.dir.join("scratch.img");
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o640)).unwrap();
    let [only] = wrong(&of).try_into().unwrap();
    assert!(only.starts_with("scratch: "), "{only}");
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

/// The loop devices of a file, as the host sees them.
fn devices(file: &Path) -> usize {
    let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
    let is_its = |device: &std::fs::DirEntry| {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|path| Path::new(path.trim()) == file)
    };
    devices.filter(is_its).count()
}

async fn no_device(file: &Path) {
    let by = std::time::Instant::now() + PATIENCE;
    while devices(file) > 0 {
        assert!(std::time::Instant::now() < by, "a device stays");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Runs a command inside, and tells what it printed.
async fn inside(connection: &Connection, script: &str) -> String {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    let open = fluffy_guest::message::ExecOpen {
        command,
        ..Default::default()
    };
    let mut exec = connection.exec(open).await.unwrap();
    let mut out = Vec::new();
    while let Some(piece) = exec.output.next().await {
        if let Piece::Stdout(bytes) = piece {
            out.extend(bytes);
        }
    }
    String::from_utf8(out).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_has_an_empty_disk_of_its_own_and_its_end_takes_it() {
    let site = Site::new("disk");
    let mut order = site.order("eight");
    let file = order.dir.join("scratch.img");
    let probe = site.driver.probe().await.unwrap();
    assert_eq!(probe.room, Room::Disk);
    for boot in ["boot_1", "boot_2"] {
        order.boot_id = boot.to_owned();
        let handle = site.driver.start(&order).await.unwrap();
        let (connection, events) = run(&handle, "sleep 1000").await;
        let listening = listen(events);
        let script = "cat /app/kept 2>/dev/null; echo kept > /app/kept; \
            set -- $(stat -f -c '%S %b' /); echo $(($1*$2/1048576))";
        let mebibytes: u64 = inside(&connection, script).await.parse().expect("no file");
        assert!((990..=1024).contains(&mebibytes), "{mebibytes}");
        let found = std::fs::metadata(&file).unwrap();
        assert_eq!((found.len(), devices(&file)), (1 << 30, 1));
        assert_eq!(found.permissions().mode() & 0o7777, 0o600);
        // Neither the device nor the file is anybody's but the node's.
        site.driver.kill(&handle).await.unwrap();
        listening.await.unwrap();
        site.driver.clean(&handle).await.unwrap();
        assert!(!file.exists());
        no_device(&file).await;
    }
    // One template, and nothing that was begun.
    let templates = files(&site.folder.path().join("scratch"));
    assert_eq!(templates.len(), 1, "{templates:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_shim_that_was_killed_a_later_agent_leaves_no_disk() {
    let site = Site::new("disk-lost");
    let order = site.order("nine");
    let file = order.dir.join("scratch.img");
    let handle = site.driver.start(&order).await.unwrap();
    let _link = run(&handle, "sleep 1000").await;
    let (pid, start) = handle.shim;
    fluffy_shim::watch::kill(pid, start).unwrap();
    fluffy_shim::watch::ended(pid, start).await.unwrap();
    // Another agent has only what was kept.
    let later = driver(&site.group);
    let kept: Handle = serde_json::from_str(&serde_json::to_string(&handle).unwrap()).unwrap();
    assert_eq!(later.adopt(&kept).await, Adoption::Lost);
    later.kill(&kept).await.unwrap();
    no_device(&file).await;
    later.clean(&kept).await.unwrap();
    assert!(!file.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_disk_may_take_counts_in_full_whatever_it_takes() {
    let site = Site::new("disk-full");
    let (mut first, mut second) = (site.order("ten"), site.order("twenty"));
    second.instance_id = "other".to_owned();
    let disk = rustix::fs::statvfs(site.folder.path()).unwrap();
    let free = (disk.f_bfree - disk.f_blocks / 20) * disk.f_frsize;
    // Either has room; both together have not.
    (first.disk_bytes, second.disk_bytes) = (free / 10 * 7, free / 10 * 6);
    for order in [&mut first, &mut second] {
        order.disk_bytes &= !((1 << 20) - 1);
    }
    second.network.address = [0xfd7e, 0x59, 0, 0, 0, 0, 0, 2].into();
    let handle = site.driver.start(&first).await.unwrap();
    let failure = site.driver.start(&second).await.unwrap_err();
    assert_eq!(failure.code, "disk_full", "{failure}");
    assert!(
        failure.detail.contains("neither used nor promised"),
        "{failure}"
    );
    assert!(!second.dir.join("scratch.img").exists());
    site.driver.kill(&handle).await.unwrap();
    site.driver.clean(&handle).await.unwrap();
    let handle = site.driver.start(&second).await.unwrap();
    site.driver.kill(&handle).await.unwrap();
    site.driver.clean(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_disk_can_be_had_everybody_is_told_and_memory_is_used() {
    let mut site = Site::new("disk-none");
    let broken = Scratch::new(
        site.folder.path().join("scratch"),
        "/bin/false".into(),
        Vec::new(),
    );
    site.driver = driver(&site.group).with_scratch(broken);
    let probe = site.driver.probe().await.unwrap();
    let told = probe.room.shortfall().expect("less than was declared");
    assert!(told.contains("mke2fs"), "{told}");
    let drivers: Vec<Arc<dyn InstanceDriver>> = vec![Arc::new(site.driver.clone())];
    let checks = fluffy_node::doctor(site.folder.path(), &drivers, false).await;
    let check = checks.iter().find(|it| it.name == "scratch").unwrap();
    assert_eq!(check.verdict, fluffy_node::Verdict::Warn);
    assert_eq!(check.detail, told);
    let mut order = site.order("sixteen");
    order.uid_base = 0x4010_0000;
    let handle = site.driver.start(&order).await.unwrap();
    let (connection, events) = run(&handle, "sleep 1000").await;
    let _listening = listen(events);
    let script = "set -- $(stat -f -c '%S %b' /); echo $(($1*$2/1048576))";
    assert_eq!(inside(&connection, script).await, "36");
    let of = Audited {
        group: site.group.clone(),
        instance: "sixteen".to_owned(),
        run_dir: order.run_dir.clone(),
        dir: order.dir.clone(),
    };
    let held = fluffy_node::audit(&of).expect("an instance");
    let found = held.iter().find(|it| it.name == "scratch").unwrap();
    assert!(found.detail.starts_with("IN MEMORY"), "{}", found.detail);
    // The control: with what it takes, there is a disk.
    let drivers: Vec<Arc<dyn InstanceDriver>> = vec![Arc::new(
        driver(&site.group).with_scratch(scratch(site.folder.path())),
    )];
    let checks = fluffy_node::doctor(site.folder.path(), &drivers, false).await;
    let check = checks.iter().find(|it| it.name == "scratch").unwrap();
    assert_eq!(
        check.verdict,
        fluffy_node::Verdict::Pass,
        "{}",
        check.detail
    );
    site.driver.kill(&handle).await.unwrap();
    site.driver.clean(&handle).await.unwrap();
}
