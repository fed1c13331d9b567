//! Commands in instances end with the right to run them, and with the server
//! that carried them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fluffy_api::Operation;
use fluffy_base::Digest;
use fluffy_base::id::{ExecSessionId, RequestId};
use fluffy_control::access::caller_of_token;
use fluffy_control::{Caller, Outcome};
use fluffy_node_sim::Behaviour;
use fluffy_planner::lifecycle::ExecState;
use fluffy_server::credential::recognise;
use fluffy_server::gateway;
use fluffy_server::http::{Asked, Backend as _, OpenExec, OpenedExec, Opening};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, DuplexStream};
use tokio::time::timeout;

use crate::kit::{Sim, until};
use crate::whole::{Replica, control, join};

const ENV: [&str; 3] = ["local", "shop", "dev"];

/// How soon a command must end whose owner may no longer run it.
const SOON: Duration = Duration::from_secs(5);

/// A program that may run commands, and what that hangs on.
struct Robot {
    id: String,
    grant: String,
    token: String,
    caller: Caller,
}

impl Robot {
    async fn new(replica: &Replica, name: &str) -> Self {
        let org = ["local"];
        let body = json!({ "name": name, "grants": [] });
        let (made, _) = replica.write(Operation::CreatePrincipal, &org, body).await;
        let body = json!({ "principal_id": made.id, "pattern": "instance.exec.local/*" });
        let (grant, _) = replica.write(Operation::CreateGrant, &org, body).await;
        let body = json!({ "principal_id": made.id });
        let (token, _) = replica.write(Operation::CreateToken, &org, body).await;
        let id = token.id.parse().unwrap();
        Self {
            id: made.id,
            grant: grant.id,
            caller: replica.state(|state| caller_of_token(state, id)).unwrap(),
            token: token.id,
        }
    }

    /// Asks for a command that never ends by itself; its session and token.
    async fn ask(&self, replica: &Replica, instance: &str) -> Granted {
        let body = json!({ "command": ["cat"], "stdin": true, "token_seconds": 300 });
        let path = [ENV[0], ENV[1], ENV[2], instance];
        let asked = Asked {
            caller: self.caller.clone(),
            request_id: RequestId::generate().to_string(),
            source: "test".to_owned(),
            operation: Operation::CreateExec,
            path: path.map(str::to_owned).to_vec(),
            query: BTreeMap::new(),
            idempotency: None,
            body: Some(body),
            if_match: None,
        };
        let wrote = replica.control.write(asked).await.unwrap();
        let Outcome::Done { subject, .. } = wrote.outcome else {
            panic!("{:?}", wrote.outcome);
        };
        Granted {
            session: subject.id.parse().unwrap(),
            token: recognise(wrote.once["token"].as_str().unwrap()).unwrap().1,
        }
    }
}

/// A session that was granted.
struct Granted {
    session: ExecSessionId,
    token: Digest,
}

impl Granted {
    async fn open(&self, replica: &Replica) -> Result<OpenedExec, &'static str> {
        let asked = OpenExec {
            org: "local".to_owned(),
            session: self.session.to_string(),
            token: Some(self.token),
            resume: None,
            source: "test".to_owned(),
            request_id: RequestId::generate().to_string(),
        };
        match replica.control.open_exec(asked).await {
            Ok(Opening::Here(opened)) => Ok(*opened),
            Ok(Opening::Again(_)) => panic!("nobody was here before"),
            Ok(Opening::Elsewhere(peer)) => panic!("{peer:?}"),
            Err(refusal) => Err(refusal.code),
        }
    }

    /// Opens it and carries it, as the server does; the client's end.
    async fn carry(&self, replica: &Replica) -> DuplexStream {
        let opened = self.open(replica).await.unwrap();
        let (client, stream) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let OpenedExec {
                link,
                terms,
                revoked,
                ended,
                ..
            } = opened;
            let end = gateway::carry(stream, link, terms, revoked, None).await;
            let _ = ended.send(end);
        });
        client
    }

    /// Waits until it counts as connected, whatever its node does.
    async fn connected(&self, replica: &Replica) {
        until("it counts as connected", || {
            self.state(replica).0 == ExecState::Connected
        })
        .await;
    }

    fn state(&self, replica: &Replica) -> (ExecState, Option<String>) {
        replica.state(|state| {
            let session = &state.runtime.execs[&self.session];
            let reason = session.ended.as_ref().map(|ended| ended.reason.clone());
            (session.state, reason)
        })
    }
}

/// An app that runs so many instances on one node.
async fn running(replica: &Replica, replicas: u32) -> Vec<String> {
    replica.shop().await;
    let release = replica.release("one", replicas).await;
    replica.succeeds(&replica.deploy(&release).await).await;
    replica.ready().keys().map(ToString::to_string).collect()
}

/// One instance on a node that takes its time to open a command's stream.
async fn running_slowly(replica: &Replica, sims: &PathBuf) -> (Sim, String) {
    let sim = join(&replica.home(sims), &[replica.token().await], 1);
    let [instance] = running(replica, 1).await.try_into().unwrap();
    let slow = Behaviour {
        attach_ms: 1_000,
        ..Behaviour::default()
    };
    sim.behave(slow).await;
    (sim, instance)
}

/// Nobody waits any more for what is being opened: it does not count for as
/// long as it might have lasted.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_client_left_while_it_began_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let sims = folder.path().join("sim");
    let (sim, instance) = running_slowly(&replica, &sims).await;
    let robot = Robot::new(&replica, "robot").await;
    let session = robot.ask(&replica, &instance).await;
    tokio::select! {
        opened = session.open(&replica) => drop(opened),
        () = session.connected(&replica) => {}
    }
    until("it is over", || {
        session.state(&replica).0 == ExecState::Ended
    })
    .await;
    let reason = session.state(&replica).1;
    assert_eq!(reason.as_deref(), Some("instance_gone"));
    drop(sim);
    replica.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_revoked_while_it_began_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let sims = folder.path().join("sim");
    let (sim, instance) = running_slowly(&replica, &sims).await;
    let robot = Robot::new(&replica, "robot").await;
    let session = robot.ask(&replica, &instance).await;
    let revoke = async {
        session.connected(&replica).await;
        let id = session.session.to_string();
        let path = ["local", id.as_str()];
        replica.write(Operation::RevokeExec, &path, json!({})).await;
    };
    let (opened, ()) = tokio::join!(session.open(&replica), revoke);
    let mut opened = opened.unwrap();
    let cut_off = timeout(SOON, opened.revoked.wait_for(|revoked| *revoked)).await;
    assert!(cut_off.is_ok_and(|it| it.is_ok()), "it goes on");
    drop(opened);
    drop(sim);
    replica.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_soon_after_its_owner_may_no_longer_run_it() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let sims = folder.path().join("sim");
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    let instances = running(&replica, 2).await;
    // The same command of somebody who still may goes on all the while.
    let other = Robot::new(&replica, "other").await;
    let kept = other.ask(&replica, &instances[0]).await;
    let client = kept.carry(&replica).await;

    for way in ["grant", "token", "principal", "policy"] {
        let robot = Robot::new(&replica, way).await;
        let live = robot.ask(&replica, &instances[0]).await;
        let _client = live.carry(&replica).await;
        let waits = robot.ask(&replica, &instances[1]).await;
        assert_eq!(live.state(&replica), (ExecState::Connected, None));
        let none = json!({});
        let (operation, path, body) = match way {
            "grant" => (Operation::RemoveGrant, vec!["local", &robot.grant], none),
            "token" => (Operation::RevokeToken, vec!["local", &robot.token], none),
            "principal" => (Operation::DeletePrincipal, vec!["local", &robot.id], none),
            _ => (Operation::SetPolicy, vec!["local"], forbid(&robot.id)),
        };
        replica.write(operation, &path, body).await;
        let lost = Instant::now();
        until("the command has ended", || {
            live.state(&replica).0 == ExecState::Ended
        })
        .await;
        let took = lost.elapsed();
        assert!(took < SOON, "{way}: {took:?}");
        let ended = (ExecState::Ended, Some("operator_revoked".to_owned()));
        assert_eq!(live.state(&replica), ended, "{way}");
        // And a session that was granted before lets nobody in.
        let refused = waits.open(&replica).await.unwrap_err();
        assert_eq!(refused, "exec_token_invalid", "{way}");
        assert_eq!(waits.state(&replica), ended, "{way}");
    }
    assert_eq!(kept.state(&replica), (ExecState::Connected, None));
    let again = other.ask(&replica, &instances[1]).await;
    assert!(again.open(&replica).await.is_ok());
    drop((client, sim));
    replica.server.stop().await;
}

/// A replica that does not follow the ledger hears of no revocation: what it
/// carries goes on for a while, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_when_nobody_can_say_whether_it_may_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut replica = Replica::start(&folder, 0).await;
    let sims = folder.path().join("sim");
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    let instances = running(&replica, 1).await;
    let robot = Robot::new(&replica, "robot").await;
    let patient = robot.ask(&replica, &instances[0]).await;
    let mut calm = patient.carry(&replica).await;
    replica.control = control(&replica, &folder, Duration::from_secs(3));
    let short = robot.ask(&replica, &instances[0]).await;
    let mut client = short.carry(&replica).await;
    let sequencer = replica.server.platform().sequencer().clone();
    assert_eq!(short.state(&replica), (ExecState::Connected, None));

    // What was decided since is kept from whoever looks.
    sequencer.hold();
    let lost = Instant::now();
    replica
        .write(Operation::RevokeToken, &["local", &robot.token], json!({}))
        .await;
    let mut rest = Vec::new();
    timeout(SOON * 6, client.read_to_end(&mut rest))
        .await
        .expect("its client is sent away")
        .unwrap();
    assert!(
        lost.elapsed() >= Duration::from_secs(2),
        "{:?}",
        lost.elapsed()
    );
    // Who has more patience goes on meanwhile, and then hears of it.
    let (mut some, short_while) = ([0; 256], Duration::from_millis(100));
    while let Ok(read) = timeout(short_while, calm.read(&mut some)).await {
        assert_ne!(read.unwrap(), 0, "it has ended");
    }
    sequencer.release();
    for session in [&patient, &short] {
        until("the command has ended", || {
            session.state(&replica).0 == ExecState::Ended
        })
        .await;
    }
    drop((client, calm, sim));
    replica.server.stop().await;
}

fn forbid(principal: &str) -> Value {
    let rules = format!(
        "version: 1\ncapabilities:\n  - name: not-this-one\n    match:\n      \
         action: instance.exec\n      caller: {principal}\n    do: deny\n    reason: a test\n"
    );
    json!({ "rules": rules, "expected_version": 0 })
}

/// Whoever carried a session and was killed says nothing any more; the session
/// ends when its node is back, and another can be had.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_a_server_that_was_killed_end_when_their_node_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(&folder, 0).await;
    let (sims, port) = (folder.path().join("sim"), replica.port);
    let sim = join(&replica.home(&sims), &[replica.token().await], 1);
    let instances = running(&replica, 1).await;
    let robot = Robot::new(&replica, "robot").await;
    let mut granted = Vec::new();
    for _ in 0..2 {
        let session = robot.ask(&replica, &instances[0]).await;
        // Nobody will ever hear how it ended.
        std::mem::forget(session.open(&replica).await.unwrap());
        granted.push(session);
    }
    replica.server.stop().await;
    sim.until("the link is down", |node| node["connected"] == false)
        .await;
    let replica = Replica::start(&folder, port).await;
    until("it is back", || {
        !replica.door.server().connected().is_empty()
    })
    .await;
    for session in &granted {
        until("nobody is connected", || {
            session.state(&replica).0 == ExecState::Ended
        })
        .await;
        let reason = session.state(&replica).1;
        assert_eq!(reason.as_deref(), Some("client_disconnect"));
    }
    // There is room for two again, and they stay while the node does.
    let mut clients = Vec::new();
    for _ in 0..2 {
        let session = robot.ask(&replica, &instances[0]).await;
        clients.push((session.carry(&replica).await, session));
    }
    for (_, session) in &clients {
        assert_eq!(session.state(&replica), (ExecState::Connected, None));
    }
    drop((clients, sim));
    replica.server.stop().await;
}
