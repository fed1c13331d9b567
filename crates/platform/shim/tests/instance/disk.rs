//! What instances write: to a disk of their own, which is a file of the node.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fluffy_guest::host::LogStream;
use fluffy_shim::Order;

use crate::kit::{Instance, loop_devices, wait_for};

const GIB: u64 = 1 << 30;

/// Memory of an instance that only its end gives back: files in memory.
fn files_in_memory(order: &Order) -> u64 {
    let group = &order.group;
    let both = [
        (
            format!("/sys/fs/cgroup/memory/{group}/memory.stat"),
            "total_shmem ",
        ),
        (format!("/sys/fs/cgroup/{group}/memory.stat"), "shmem "),
    ];
    let found = both.iter().find_map(|(file, name)| {
        let text = fs::read_to_string(file).ok()?;
        let bytes = text.lines().find_map(|line| line.strip_prefix(name))?;
        bytes.parse().ok()
    });
    found.expect("a group that says what it uses")
}

/// Writes more than there is room for, tells how far it came, and stays.
const TOO_MUCH: &str = "stat -f -c '%S %b %c' /; \
    dd if=/dev/zero of=/app/big bs=1M count=1229 2>/tmp/why || echo full; \
    grep -o 'No space left on device' /tmp/why; stat -c %s /app/big; echo done; sleep 1000";

struct Wrote {
    /// What the file system says of itself, in bytes and inodes.
    bytes: u64,
    inodes: u64,
    /// How much went into it.
    written: u64,
    in_memory: u64,
}

async fn write_too_much(instance: &Instance) -> Wrote {
    let (connection, mut watched) = instance.connect().await;
    let config = instance.config(TOO_MUCH);
    connection.configure(config, None).await.unwrap();
    watched.until_line("done").await;
    let out = watched.text(LogStream::Stdout);
    let lines: Vec<&str> = out.lines().collect();
    let [of, "full", "No space left on device", written, "done"] = lines.as_slice() else {
        panic!("{out}");
    };
    let of: Vec<u64> = of.split(' ').map(|it| it.parse().unwrap()).collect();
    Wrote {
        bytes: of[0] * of[1],
        inodes: of[2],
        written: written.parse().unwrap(),
        in_memory: files_in_memory(&instance.order),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_instance_writes_is_as_much_as_it_declared_and_no_memory() {
    let on_disk = Instance::start_on_disk(GIB, |order| order.memory_bytes = 64 << 20);
    let wrote = write_too_much(&on_disk).await;
    assert!(
        (GIB / 100 * 97..=GIB).contains(&wrote.bytes),
        "{}",
        wrote.bytes
    );
    assert!(wrote.written > GIB / 100 * 95, "{}", wrote.written);
    assert_eq!(wrote.inodes, GIB >> 14);
    assert!(wrote.in_memory < 2 << 20, "{}", wrote.in_memory);
    let file = on_disk.order.scratch.clone().unwrap();
    let found = fs::metadata(file).unwrap();
    assert_eq!(found.len(), GIB);
    assert!(found.blocks() * 512 <= GIB + (1 << 20));
    // The control: without a disk it is the memory that is written to.
    let in_memory = Instance::start_with(|order| order.memory_bytes = 64 << 20);
    let wrote = write_too_much(&in_memory).await;
    assert!(wrote.in_memory > 14 << 20, "{}", wrote.in_memory);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_that_of_one_instance_and_files_have_a_most() {
    let full = Instance::start_on_disk(64 << 20, |_| {});
    let other = Instance::start_on_disk(64 << 20, |_| {});
    let script = "n=0; while true > /app/file-$n; do n=$((n+1)); [ $n -lt 5000 ] || break; done \
        2>/dev/null; echo $n; rm -r /app; mkdir /app 2>/dev/null; \
        dd if=/dev/zero of=/big bs=1M count=100 2>/dev/null || echo full; echo more >> /etc/passwd \
        || echo still full; echo done; sleep 1000";
    let (connection, mut watched) = full.connect().await;
    let config = full.config(script);
    connection.configure(config, None).await.unwrap();
    watched.until_line("done").await;
    let out = watched.text(LogStream::Stdout);
    let lines: Vec<&str> = out.lines().collect();
    let files: u64 = lines[0].parse().unwrap();
    // One inode for each 16 KiB, of which the file system and the image need
    // a few.
    assert!((3_500..=4_096).contains(&files), "{out}");
    assert!(lines.contains(&"full"), "{out}");
    // Next to it there is room.
    let run = other.run("echo mine > /app/new && cat /app/new").await;
    assert_eq!(run.out, "mine", "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_inside_reaches_the_disk_itself_or_that_of_another() {
    let victim = Instance::start_on_disk(64 << 20, |_| {});
    let (connection, mut watched) = victim.connect().await;
    let secret = "echo of-the-victim > /app/secret; echo written; sleep 1000";
    connection
        .configure(victim.config(secret), None)
        .await
        .unwrap();
    watched.until_line("written").await;
    let attacker = Instance::start_on_disk(64 << 20, |_| {});
    let files = [&victim, &attacker].map(|it| it.order.scratch.clone().unwrap());
    let [of_victim, own] = files.each_ref().map(|file| {
        let devices = loop_devices(file);
        let [device] = devices.as_slice() else {
            panic!("{devices:?}");
        };
        device.trim_start_matches("loop").to_owned()
    });
    let mut script = String::new();
    for number in [&of_victim, &own] {
        for attempt in [
            format!("mknod /app/disk b 7 {number}"),
            format!("mknod /tmp/disk b 7 {number}"),
            format!("mknod /dev/disk b 7 {number}"),
            format!("cat /dev/loop{number}"),
            format!("cat /sys/block/loop{number}/loop/backing_file"),
            format!("cat /sys/devices/virtual/block/loop{number}/stat"),
            format!("cat /sys/class/block/loop{number}/size"),
            format!("cat /sys/dev/block/7:{number}/size"),
            format!("ls /sys/fs/ext4/loop{number}"),
            format!("ls /proc/fs/ext4/loop{number}"),
            format!("grep loop{number} /proc/partitions"),
            format!("grep loop{number} /proc/diskstats"),
            format!("mount -t ext4 /dev/loop{number} /tmp"),
        ] {
            script += &format!("({attempt}) >/dev/null 2>&1 && echo \"CAN: {attempt}\"\n");
        }
    }
    for attempt in [
        format!("cat {}", files[0].display()),
        format!("cat {}", files[1].display()),
        "cat /dev/loop-control".to_owned(),
        "cat /app/secret".to_owned(),
        "grep -r of-the-victim /app /etc".to_owned(),
    ] {
        script += &format!("({attempt}) >/dev/null 2>&1 && echo \"CAN: {attempt}\"\n");
    }
    let run = attacker.run(&format!("{script} echo tried")).await;
    assert_eq!(run.out, "tried", "{}", run.err);
    // The control: the host sees all of it.
    let device = Path::new("/sys/block").join(format!("loop{of_victim}"));
    assert!(device.join("loop/backing_file").exists());
    let name = format!("loop{of_victim}");
    assert!(
        fs::read_to_string("/proc/partitions")
            .unwrap()
            .contains(&name)
    );
    assert!(Path::new("/sys/fs/ext4").join(&name).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_device_and_no_mount_stays_of_an_instance_whose_shim_was_killed() {
    let mut instance = Instance::start_on_disk(64 << 20, |_| {});
    let (connection, mut watched) = instance.connect().await;
    let script = "dd if=/dev/zero of=/app/big bs=1M count=20 2>/dev/null; echo up; sleep 1000";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("up").await;
    let file = instance.order.scratch.clone().unwrap();
    let devices = loop_devices(&file);
    assert_eq!(devices.len(), 1);
    instance.shim.kill().unwrap();
    instance.shim.wait().unwrap();
    wait_for("disk without a device", || loop_devices(&file).is_empty()).await;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&format!("/dev/{} ", devices[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_a_file_system_is_a_failure_with_its_code() {
    let (instance, word) = Instance::try_start(|order| {
        let file = order.dir.join("scratch.img");
        fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
        order.scratch = Some(file);
    });
    let fluffy_shim::Word::Failed(failure) = word else {
        panic!("it started");
    };
    assert_eq!(failure.code, "rootfs_build_failed");
    assert!(failure.detail.contains("scratch disk"), "{failure}");
    let file = instance.order.scratch.clone().unwrap();
    wait_for("file without a device", || loop_devices(&file).is_empty()).await;
}
