//! What a workload prints, and its secrets.

use fluffy_guest::config::Secrets;

use crate::kit::{Instance, Watched};

const FILE: &[u8] = b"# FLUFFY_SECRETS_V1\nDB_PASSWORD=hunter2hunter2\nSHORT=abc\n";

fn present(uid: Option<u32>) -> Secrets {
    Secrets {
        required: true,
        present: true,
        uid,
        bytes: FILE.len() as u64,
        ..Secrets::none()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_a_file_for_the_workload_alone() {
    let instance = Instance::start();
    let script = "cd /run/secrets; ls -A; stat -c '%a %u %g' platform.env; \
        grep -c hunter2 platform.env; touch x 2>/dev/null || echo fixed; \
        rm -f platform.env 2>/dev/null || echo stays; env | grep -c hunter2";
    let mut config = instance.config(script);
    (config.user.uid, config.user.gid) = (1000, 1001);
    config.secrets = present(None);
    let run = instance.run_config(config, Some(FILE.to_vec())).await;
    assert_eq!(
        run.out, "platform.env\n400 1000 1001\n1\nfixed\nstays\n0",
        "{}",
        run.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_reads_the_secrets() {
    let instance = Instance::start();
    let script = "cat /run/secrets/platform.env || echo closed; cat /proc/1/environ || echo shut; \
        cat /proc/1/maps || echo shut; ls /proc/1/fd || echo shut";
    let mut config = instance.config(script);
    (config.user.uid, config.user.gid) = (1000, 1001);
    config.secrets = present(Some(2000));
    let run = instance.run_config(config, Some(FILE.to_vec())).await;
    assert_eq!(run.out, "closed\nshut\nshut\nshut", "{}", run.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_never_leave_in_a_line() {
    let instance = Instance::start();
    // In two pieces, in base64 and as a URL has it; the short one is a word.
    let script = "echo -n 'a hunter2'; sleep 0.2; echo 'hunter2 b'; echo aHVudGVyMmh1bnRlcjI=; \
        echo abc; echo 'x hunter2hunter2 y' >&2";
    let mut config = instance.config(script);
    config.secrets = present(None);
    let run = instance.run_config(config, Some(FILE.to_vec())).await;
    let mask = "[redacted:DB_PASSWORD]";
    assert_eq!(run.out, format!("a {mask} b\n{mask}=\nabc"));
    assert_eq!(run.err, format!("x {mask} y"));
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_do_not_come_whole_are_refused() {
    let instance = Instance::start();
    let mut config = instance.config("true");
    config.secrets = present(None);
    config.secrets.bytes += 1;
    let (connection, _watched) = instance.connect().await;
    let error = connection
        .configure(config, Some(FILE.to_vec()))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("secrets_missing"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn logging_never_blocks_the_workload() {
    let instance = Instance::start();
    let (connection, watched) = instance.connect().await;
    // Eight megabytes while nobody listens: more than is kept anywhere.
    let script = "yes 0123456789012345678901234567890123456789 | head -n 200000; \
        echo done > /tmp/done; while ! test -e /tmp/go; do sleep 0.05; done; echo after";
    connection
        .configure(instance.config(script), None)
        .await
        .unwrap();
    drop((connection, watched));
    let (connection, mut watched) = instance.connect().await;
    let exec = |words: &str| fluffy_guest::message::ExecOpen {
        command: ["sh", "-c", words].map(str::to_owned).to_vec(),
        ..Default::default()
    };
    // Every line is there or counted.
    let all = |watched: &Watched| {
        let lines = watched.lines.get("out").into_iter().flatten();
        let count = |line: &String| match line.strip_prefix("gap of ") {
            Some(dropped) => dropped.parse::<usize>().unwrap(),
            None => 1,
        };
        lines.map(count).sum::<usize>() == 200_000
    };
    watched.until("200000 lines", all).await;
    let _waiting = connection.exec(exec("touch /tmp/go")).await.unwrap();
    watched.until_line("after").await;
}
