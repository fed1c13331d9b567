//! What an instance cannot do, and what it finds around itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::kit::{Instance, PATIENCE, canary};

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_sees_itself_and_nothing_else() {
    let (_folder, canary) = canary();
    let instance = Instance::start();
    let script = format!(
        "test -e {canary} && echo SEES THE HOST; \
         hostname; cat /etc/hostname; stat -c %F /etc/hosts /tmp /run; \
         ls /proc | grep -c '^[0-9]' > /tmp/n; test $(cat /tmp/n) -lt 8 && echo few; \
         ls /sys/class/net | tr '\\n' ' '; echo; \
         stat -c '%u %a' / /app /app/mine; cat /proc/1/cgroup | grep -c fluffy; \
         cat /proc/keys | wc -c; \
         ls /dev | tr '\\n' ' '",
        canary = canary.display()
    );
    let run = instance.run(&script).await;
    let expected = "web-1\nweb-1\nregular file\ndirectory\ndirectory\nfew\neth0 lo \n\
        0 755\n1000 755\n1000 600\n0\n0\n\
        fd full null ptmx pts random shm stderr stdin stdout tty urandom zero ";
    assert_eq!(run.out, expected, "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn even_its_user_0_cannot_leave() {
    let instance = Instance::start();
    let attempts = [
        "mount -t tmpfs none /tmp",
        "mount -o remount,rw /proc/sys",
        "mount -o bind / /app",
        "mknod /tmp/sda b 8 0",
        // No privilege is needed for this one: it is Landlock that refuses.
        "mknod /tmp/nothing c 0 0",
        "unshare -r true",
        "chroot /app true",
        "sh -c 'echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'",
        "sh -c 'echo h > /proc/sysrq-trigger'",
        "sh -c 'echo x > /proc/sys/kernel/core_pattern'",
        "sh -c 'echo 0 > /sys/class/net/eth0/mtu'",
        "hostname other",
        "ip addr add fd00::99/128 dev eth0",
        "ip link set eth0 down",
        "kill -KILL 1 && kill -0 1 && false",
        "ls /proc/1/root/",
        "sh -c 'cat < /proc/1/mem'",
    ];
    let script: String = attempts
        .iter()
        .map(|attempt| format!("({attempt}) >/dev/null 2>&1 && echo \"CAN: {attempt}\"\n"))
        .collect();
    let run = instance.run(&format!("{script} echo tried; id -u")).await;
    assert_eq!(run.out, "tried\n0", "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_it_is_inside_it_is_of_its_own_range_outside() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let mut config = instance.config("echo up; sleep 1000");
    (config.user.uid, config.user.gid) = (1000, 1001);
    connection.configure(config, None).await.unwrap();
    watched.until_line("up").await;
    let base = instance.order.uid_base;
    let children = |pid: u32| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let pids = text.split_whitespace();
        pids.map(|pid| pid.parse().unwrap()).collect()
    };
    let ids = |pid: u32, name: &str| -> Vec<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let numbers = line.split_whitespace();
        numbers.map(|id| id.parse().unwrap()).collect()
    };
    let [init] = children(instance.shim.id()).try_into().unwrap();
    assert_eq!(
        (ids(init, "Uid:"), ids(init, "Gid:")),
        (vec![base; 4], vec![base; 4])
    );
    let [workload] = children(init).try_into().unwrap();
    assert_eq!(ids(workload, "Uid:"), [base + 1000; 4]);
    assert_eq!(ids(workload, "Gid:"), [base + 1001; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_images_do_as_user_0_works() {
    let instance = Instance::start();
    let script = "touch /app/new && chown 1000:1000 /app/new && stat -c '%u %g' /app/new; \
        rm /app/mine && test ! -e /app/mine && echo gone; echo more >> /etc/passwd && tail -n1 /etc/passwd";
    let run = instance.run(script).await;
    assert_eq!(run.out, "1000 1000\ngone\nmore", "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_and_processes_have_a_most() {
    let instance = Instance::start_with(|order| {
        order.memory_bytes = 128 << 20;
        order.pids = 32;
    });
    // Only what the shell itself can do works when there is no process left.
    let script = "dd if=/dev/zero of=/app/big bs=1M count=100 2>/dev/null || echo full; \
        stat -c %s /app/big; rm /app/big; \
        sh -c 'n=0; while [ $n -lt 200 ]; do sleep 1000 & n=$((n+1)); done' 2>/dev/null; \
        set -- /proc/[0-9]*; echo $#";
    let run = instance.run(script).await;
    let lines: Vec<&str> = run.out.lines().collect();
    let [full, bytes, processes] = lines.as_slice() else {
        panic!("{} {}", run.out, run.err);
    };
    assert_eq!(*full, "full");
    // A quarter of the memory, of which the file system needs a little.
    let bytes: u64 = bytes.parse().unwrap();
    assert!((16 << 20..=32 << 20).contains(&bytes), "{bytes}");
    let processes: u32 = processes.parse().unwrap();
    assert!((24..=32).contains(&processes), "{processes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_reaches_what_listens_and_the_other_way_round() {
    let instance = Instance::start();
    let (connection, mut watched) = instance.connect().await;
    let script = "nc -ll -p 8080 -e echo hello from inside & \
        while ! grep -q :1F90 /proc/net/tcp6 /proc/net/tcp; do sleep 0.05; done; echo listening; sleep 1000";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    watched.until_line("listening").await;
    let address = SocketAddr::new(instance.order.address.into(), 8080);
    let text = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"x");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    })
    .await
    .unwrap();
    assert_eq!(text, "hello from inside\n");
}
