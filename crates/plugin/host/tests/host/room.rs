//! The sandbox of a plugin.

use fluffy_base::ByteSize;
use fluffy_contract::isolation::{Child as _, Exit, Output};
use fluffy_plugin_host::room::{Room, words};

use crate::kit::{ALLOW_ALL, Kit};

#[tokio::test]
async fn a_program_starts_inside_and_ends_with_its_room() {
    let kit = Kit::new(ALLOW_ALL).await;
    let script = "echo in; cat /etc/hostname; echo $HOME_SECRET; read line; echo $line; sleep 600";
    let program = kit.file("run.sh", script);
    let entry = kit.entry(["sh", program.to_str().unwrap()]);
    let (room, mut child) = Room::open(entry).await.unwrap();
    let mut input = child.take_input().unwrap();
    input.write(b"hello\n").await.unwrap();
    let mut said = Vec::new();
    while !said.ends_with(b"hello\n") {
        match child.output().await.unwrap().unwrap() {
            Output::Stdout(bytes) => said.extend(bytes),
            Output::Stderr(bytes) => panic!("{}", String::from_utf8_lossy(&bytes)),
        }
    }
    assert_eq!(String::from_utf8_lossy(&said), "in\nsandbox\n\nhello\n");
    drop(room);
    let exit = child.wait().await.unwrap();
    assert_ne!(exit, Exit::Code { code: 0 });
    assert!(words(exit).contains("signal"), "{exit:?}");
}

#[tokio::test]
async fn its_limits_are_its_own() {
    let kit = Kit::new(ALLOW_ALL).await;
    let grow = "x = bytearray(400 << 20)\nprint(len(x))";
    let mut entry = kit.entry(["python3", "-c", grow]);
    entry.spec.limits.memory = Some(ByteSize(64 << 20));
    let (room, child) = Room::open(entry).await.unwrap();
    let finished = child.finish().await.unwrap();
    assert_ne!(finished.exit, Exit::Code { code: 0 }, "{finished:?}");
    room.close().await;
    room.close().await;
    let (room, child) = Room::open(kit.entry(["python3", "-c", grow]))
        .await
        .unwrap();
    let finished = child.finish().await.unwrap();
    assert_eq!(finished.exit, Exit::Code { code: 0 }, "{finished:?}");
    room.close().await;
}
