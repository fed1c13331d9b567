//! How instances begin and end.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fluffy_guest::message::{Happening, Phase};
use fluffy_shim::Word;
use fluffy_shim::cgroup::Group;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};

use crate::kit::{Instance, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_runs_its_workload_and_tells_how_it_ended() {
    let mut instance = Instance::start();
    let run = instance.run("echo hello; echo trouble >&2; exit 7").await;
    assert_eq!((run.out.as_str(), run.err.as_str()), ("hello", "trouble"));
    assert_eq!(run.code(), Some(7));
    let ended = instance.exit_file().await;
    assert_eq!(
        (ended.exit_code, ended.signal, ended.oom),
        (Some(7), None, false)
    );
    assert_eq!(ended.boot_id, instance.order.boot);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_that_a_signal_ends_says_which() {
    let mut instance = Instance::start();
    let run = instance.run("kill -KILL $$").await;
    assert!(matches!(
        run.end,
        Happening::Exited {
            exit_code: None,
            signal: Some(9),
            ..
        }
    ));
    assert_eq!(instance.exit_file().await.signal, Some(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_sends_the_signal_to_the_whole_group() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    // The child says that it is ready: a shell that is told to end between its word and its
    // fork would wait for a child that nobody told.
    let script = "trap 'echo bye; exit 3' TERM; sh -c 'echo ready; exec sleep 1000'; exit 4";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("ready").await;
    connection.stop(None, None, "test").await.unwrap();
    let end = watched.until_the_end().await;
    assert!(
        matches!(
            end,
            Happening::Exited {
                exit_code: Some(3),
                ..
            }
        ),
        "{end:?}"
    );
    assert_eq!(watched.lines["out"], ["ready", "bye"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ignores_the_signal_is_killed_after_the_grace() {
    let mut instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let script = "trap '' TERM; echo ready; while true; do sleep 1; done";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("ready").await;
    let grace = Some(Duration::from_millis(100));
    connection.stop(None, grace, "test").await.unwrap();
    let end = watched.until_the_end().await;
    assert!(
        matches!(
            end,
            Happening::Exited {
                signal: Some(9),
                ..
            }
        ),
        "{end:?}"
    );
    instance.shim_ended().await;
    assert!(instance.group().kill().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_reaped_and_end_with_the_workload() {
    let mut instance = Instance::start();
    // Twenty grandchildren lose their parent and end; one stays.
    let script = "for i in $(seq 20); do sh -c 'true & exit' ; done; \
        setsid sleep 1000 & \
        while ps -o stat | grep -q Z; do :; done; echo none left";
    let run = instance.run(script).await;
    assert_eq!((run.out.as_str(), run.code()), ("none left", Some(0)));
    instance.shim_ended().await;
    let group = instance.group();
    wait_for("the end of all", || {
        group.usage().is_ok_and(|usage| usage.processes == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_beyond_the_limit_ends_the_workload() {
    let mut instance = Instance::start_with(|order| order.memory_bytes = 64 << 20);
    // A variable that doubles until there is no more memory for it.
    let script = "a=0123456789abcdef; while true; do a=$a$a; done";
    let (connection, watched) = instance.connect().await;
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    let _listening = watched.keep();
    let ended = instance.exit_file().await;
    assert!(ended.oom, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_says_why() {
    for (change, code) in [
        ("missing", "exec_not_found"),
        ("/etc/passwd", "exec_permission"),
    ] {
        let instance = Instance::start();
        let mut config = instance.config("");
        config.command = vec![change.to_owned()];
        assert_eq!(instance.run_config(config, None).await.failure(), code);
    }
    let instance = Instance::start();
    let mut config = instance.config("");
    (config.user.name, config.requires) = (Some("who".to_owned()), vec!["named_user".to_owned()]);
    assert_eq!(
        instance.run_config(config, None).await.failure(),
        "bad_user"
    );
    let mut instance = Instance::start();
    let mut config = instance.config("");
    config.workdir = "/etc/passwd".to_owned();
    assert_eq!(
        instance.run_config(config, None).await.failure(),
        "workdir_missing"
    );
    let failed = instance.exit_file().await.failed.unwrap();
    assert!(failed.starts_with("workdir_missing"), "{failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn prestart_runs_before_and_must_succeed() {
    let instance = Instance::start();
    let mut config = instance.config("cat /tmp/made");
    let prestart = |script: &str| fluffy_guest::config::Prestart {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        timeout_seconds: 60,
    };
    config.prestart = vec![
        prestart("echo one > /tmp/made"),
        prestart("echo two >> /tmp/made"),
    ];
    let run = instance.run_config(config.clone(), None).await;
    assert_eq!((run.out.as_str(), run.code()), ("one\ntwo", Some(0)));
    let instance = Instance::start();
    config.instance_id.clone_from(&instance.order.instance);
    config.prestart = vec![prestart("exit 3")];
    assert_eq!(
        instance.run_config(config.clone(), None).await.failure(),
        "prestart_failed"
    );
    let instance = Instance::start();
    config.instance_id.clone_from(&instance.order.instance);
    config.prestart = vec![prestart("sleep 1000")];
    config.prestart[0].timeout_seconds = 1;
    assert_eq!(
        instance.run_config(config, None).await.failure(),
        "prestart_timeout"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_goes_on_without_its_node_and_is_found_again() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let script = "echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two; sleep 1000";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("one").await;
    let before = connection.state().await.unwrap();
    assert_eq!(before.phase, Phase::Running);
    // The node's end is gone without a word.
    drop((connection, watched));
    let (connection, mut watched) = instance.connect().await;
    let exec = connection
        .exec(fluffy_guest::message::ExecOpen {
            command: ["touch", "/tmp/go"].map(str::to_owned).to_vec(),
            ..Default::default()
        })
        .await
        .unwrap();
    watched.until_line("two").await;
    drop(exec);
    let after = connection.state().await.unwrap();
    assert_eq!(after.workload_pid, before.workload_pid);
    assert_eq!((after.boot_id, after.generation), (before.boot_id, 1));
    // A newer link replaces the older, which hears that it is over.
    let (newer, _watched) = instance.connect().await;
    assert_eq!(newer.state().await.unwrap().phase, Phase::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_for_somebody_else_is_refused() {
    let instance = Instance::start();
    let mut config = instance.config("true");
    config.instance_id = "inst_other".to_owned();
    let (connection, _watched) = instance.connect().await;
    let error = connection.configure(config, None).await.unwrap_err();
    assert!(error.to_string().contains("instance_mismatch"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_kills_the_shim_ends_the_instance_and_nothing_stays() {
    let mut instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    connection
        .configure(instance.config("echo up; sleep 1000"), None)
        .await
        .unwrap();
    watched.until_line("up").await;
    instance.shim.kill().unwrap();
    instance.shim.wait().unwrap();
    let group = instance.group();
    wait_for("the end of all", || {
        group.usage().is_ok_and(|usage| usage.processes == 0)
    })
    .await;
    let order = instance.order.clone();
    fluffy_shim::clean(&order.group, &order.interface, Some(&order.link)).unwrap();
    assert!(!group.exists() && !order.link.exists());
    let interface = format!("/sys/class/net/{}", order.interface);
    assert!(!std::path::Path::new(&interface).exists());
    let backing = std::fs::read_dir("/sys/block")
        .unwrap()
        .flatten()
        .any(|device| {
            let file = device.path().join("loop/backing_file");
            std::fs::read_to_string(file)
                .is_ok_and(|path| path.trim() == order.root.to_str().unwrap())
        });
    assert!(!backing, "the loop device stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_leaves_nothing() {
    let (mut instance, word) = Instance::try_start(|order| {
        std::fs::write(&order.root, b"no file system").unwrap();
    });
    let Word::Failed(failure) = word else {
        panic!("it started");
    };
    assert_eq!(failure.code, "rootfs_build_failed", "{failure}");
    instance.shim_ended().await;
    assert!(!instance.group().exists() && !instance.order.link.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_the_service_of_an_agent_ends_no_instance() {
    // As systemd does: whoever is started is in a group, and all of that group
    // is ended.
    let name = format!("fluffy-service-{}", std::process::id());
    let service = Group::named(&name).unwrap();
    service.create_without_limits().unwrap();
    let in_service = |program: &str| {
        let join = "for file in /sys/fs/cgroup/$0/cgroup.procs /sys/fs/cgroup/*/$0/cgroup.procs; \
            do [ ! -e $file ] || echo $$ > $file || exit 9; done; exec $1";
        let mut command = Command::new("sh");
        command.args(["-c", join, &name, program]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let mut innocent = in_service("cat").spawn().unwrap();
    let shim = env!("CARGO_BIN_EXE_fluffy-shim-worker");
    let (instance, word) = Instance::try_start_by(|_| {}, |it| *it = in_service(shim));
    assert_eq!(word, Word::Ready);
    let (_connection, _watched) = instance.connect().await;
    let groups = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let shim = instance.shim.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap();
    // The control: whoever did not leave is still there.
    let is_in = || groups(&innocent.id().to_string()).contains(&name);
    wait_for("somebody in the service", is_in).await;
    assert!(!groups(&shim).contains(&name), "{}", groups(&shim));
    let init = groups(children.trim());
    assert!(!init.contains(&name), "{init}");
    service.kill().unwrap();
    wait_for("end of what was in the service", || {
        innocent.try_wait().unwrap().is_some()
    })
    .await;
    let (connection, _watched) = instance.connect().await;
    connection.state().await.unwrap();
    service.remove().unwrap();
}

/// A file system that the host has mounted, as long as this lives.
struct Mounted(PathBuf);

impl Mounted {
    fn at(place: PathBuf) -> Self {
        mount("tmpfs", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_unmounts_no_instance_holds_on_to() {
    let folder = tempfile::tempdir().unwrap();
    let outer = Mounted::at(folder.path().canonicalize().unwrap());
    // As everything is where systemd runs.
    mount_change(&outer.0, MountPropagationFlags::SHARED).unwrap();
    let place = outer.0.join("disk");
    fs::create_dir(&place).unwrap();
    let inner = Mounted::at(place);
    let instance = Instance::start();
    let holds = || {
        let mounts = format!("/proc/{}/mountinfo", instance.shim.id());
        let mounts = fs::read_to_string(mounts).unwrap();
        mounts.contains(inner.0.to_str().unwrap())
    };
    // The control: it is seen, if it is there.
    assert!(holds());
    unmount(&inner.0, UnmountFlags::empty()).unwrap();
    assert!(!holds());
}
