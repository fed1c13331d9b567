//! The scratch disk of a real instance: as large as the manifest says, and gone
//! with it, whatever ends it.

use std::fs;
use std::path::{Path, PathBuf};

use fluffy_test_kit::wait_for;

use super::lived::{LONG, Lived};

const MANIFEST: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 0
[processes.web]
command = ["/bin/sleep", "100000"]
restart = { backoff_seconds = 1 }
resources = { memory = "64MiB", disk = "1GiB" }
"#;

/// The files below a folder that are disks of this machine now.
fn disks(folder: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices.filter_map(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let file = PathBuf::from(file.trim());
        (file.starts_with(folder) && file.ends_with("scratch.img")).then_some(file)
    });
    backing.collect()
}

#[test]
fn what_a_process_declares_as_disk_it_gets_and_nothing_stays_of_it() {
    let mut lived = Lived::start(MANIFEST);
    lived.site.succeeds(&["deploy"]);
    let [instance] = lived.ready(1).try_into().unwrap();
    let said = lived.exec(
        0,
        &instance,
        "set -- $(stat -f -c '%S %b' /); echo $(($1*$2/1048576)); \
         /bin/busybox dd if=/dev/zero of=/big bs=1M count=1229 2>/tmp/why || grep -o 'No space left.*' /tmp/why; \
         set -- $(stat -c %s /big); echo $(($1/1048576)); rm /big; echo kept > /kept",
    );
    let lines: Vec<&str> = said.lines().collect();
    let [of, "No space left on device", written] = lines.as_slice() else {
        panic!("{said}");
    };
    let [of, written] = [of, written].map(|it| it.parse::<u64>().unwrap());
    assert!((990..=1024).contains(&of) && written >= 970, "{said}");
    let home = fs::canonicalize(lived.folder()).unwrap();
    assert_eq!(disks(&home).len(), 1);

    // Whoever kills the agent takes nothing from the instance.
    lived.kill();
    lived.up();
    let [same] = lived.ready(1).try_into().unwrap();
    assert_eq!(same, instance);
    assert_eq!(lived.exec(0, &instance, "cat /kept"), "kept\n");

    // A new start of the same instance begins with an empty disk.
    let init = lived.init_of(&instance);
    let parent = fs::read_to_string(format!("/proc/{init}/status")).unwrap();
    let parent = parent.lines().find_map(|it| it.strip_prefix("PPid:"));
    let shim: i32 = parent.unwrap().trim().parse().unwrap();
    let shim = rustix::process::Pid::from_raw(shim).unwrap();
    rustix::process::kill_process(shim, rustix::process::Signal::KILL).unwrap();
    wait_for("the end of the first start", LONG, || {
        (!Path::new(&format!("/proc/{init}")).exists()).then_some(())
    })
    .unwrap();
    wait_for("another start", LONG, || {
        let said = lived.site.run(&[
            "exec",
            "--no-stdin",
            &instance,
            "--",
            "/bin/sh",
            "-c",
            "test ! -e /kept && echo new",
        ]);
        (said.stdout == "new\n").then_some(())
    })
    .unwrap();
    assert_eq!(disks(&home).len(), 1);

    let folder = home.join("node/instances");
    lived.end();
    wait_for("no disk", LONG, || disks(&home).is_empty().then_some(())).unwrap();
    let left: Vec<_> = fs::read_dir(folder).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
