//! Streams of logs at two servers: how many an org and a token may have open
//! at once counts on both together, and what a killed one had is free soon.

use std::time::Instant;

use fluffy_api::client::{Ask, CallError, Watch};
use fluffy_api::{Operation, Problem};
use serde_json::json;

use crate::kit::{ENV, Fleet, LONG, eventually};

/// What the specification allows, which is what servers start with.
const OF_ORG: usize = 20;
const OF_TOKEN: usize = 5;

/// Begins to follow the logs of the env.
async fn follow(fleet: &Fleet, server: usize, token: &str) -> Result<Watch, Box<Problem>> {
    let client = fleet.bearer(server, token).await.unwrap();
    match client.watch(Ask::new(Operation::GetLogs, &ENV), None).await {
        Ok(watch) => Ok(watch),
        Err(CallError::Refused(problem)) => Err(problem),
        Err(error) => panic!("{error:?}"),
    }
}

fn crowded(result: Result<Watch, Box<Problem>>, limit: usize) {
    let Err(problem) = result else {
        panic!("it was let in");
    };
    assert_eq!((problem.status, &*problem.code), (429, "rate_limited"));
    assert!(problem.detail.contains(&format!("all {limit} streams")));
    assert!(problem.retry_after.is_some_and(|after| after > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_together_open_no_more_streams_than_the_limit() {
    let mut fleet = Fleet::start(2).await;
    let mut tokens = Vec::new();
    for _ in 0..=OF_ORG / OF_TOKEN {
        let made = fleet.send(0, Operation::CreateToken, &["acme"], json!({}));
        tokens.push(made.await["secret"].as_str().unwrap().to_owned());
    }
    // Both know every token.
    for token in &tokens {
        eventually("the token is known", async || {
            let client = fleet.bearer(1, token).await.ok()?;
            client.call(Ask::new(Operation::Whoami, &[])).await.ok()
        })
        .await;
    }
    let (last, others) = tokens.split_last().unwrap();
    let mut open = [Vec::new(), Vec::new()];
    for token in others {
        for number in 0..OF_TOKEN {
            let server = number % 2;
            open[server].push(follow(&fleet, server, token).await.unwrap());
        }
        for server in 0..2 {
            crowded(follow(&fleet, server, token).await, OF_TOKEN);
        }
    }
    for server in 0..2 {
        crowded(follow(&fleet, server, last).await, OF_ORG);
    }
    // One that ends makes room for one, at the other server.
    open[0].pop();
    let again = eventually("there is room", async || follow(&fleet, 1, last).await.ok());
    open[1].push(again.await);
    crowded(follow(&fleet, 0, last).await, OF_ORG);
    // What a killed server had is free in a while, and not more than that.
    fleet.servers[1].kill();
    let start = Instant::now();
    let lost = open[1].len();
    for number in 0..lost {
        let token = match number {
            0 => last,
            number => &others[(number - 1) % others.len()],
        };
        let again = eventually("there is room", async || {
            follow(&fleet, 0, token).await.ok()
        });
        open[0].push(again.await);
    }
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    assert_eq!(open[0].len(), OF_ORG);
    crowded(follow(&fleet, 0, last).await, OF_ORG);
}
