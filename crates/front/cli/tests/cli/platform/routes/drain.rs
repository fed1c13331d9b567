//! E17: a node is emptied under load and nobody notices; one that is lost is
//! replaced. Three nodes, each in its own network, behind one edge.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fluffy_base::{Clock as _, SystemClock, Timestamp};
use fluffy_test_kit::{Acceptance, Limit, campaign, wait_for};
use serde_json::Value;

use super::super::instances::{LONG, reach, ready};
use super::fleet::{Fleet, Network};
use super::load::{PAGE, STREAM, ask, get};
use super::{make_env, site};

/// How long connections of an instance go on that is on its way out.
const GRACE: Duration = Duration::from_secs(10);

const GROUPS: &str = r#"schema_version = "v1"
[app]
name = "hello"
[image]
ref = "oci:image"
[deploy]
min_ready_seconds = 1
[processes.one]
command = ["/bin/busybox", "httpd", "-f", "-p", "[::]:8081", "-h", "/www"]
resources = { memory = "128MiB", cpu = 0.05 }
ports = [{ internal = 8081 }]
stop = { grace_seconds = 10 }
[processes.three]
replicas = 3
command = ["/bin/busybox", "httpd", "-f", "-p", "[::]:8082", "-h", "/www"]
resources = { memory = "128MiB", cpu = 0.05 }
ports = [{ internal = 8082 }]
stop = { grace_seconds = 10 }
"#;

/// New connections at a steady pace, each asked for one page.
struct Pace {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    failed: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pace {
    /// So many a second, by turns to each address.
    fn start(addresses: &[String], rate: u64) -> Self {
        let mut pace = Self {
            stop: Arc::default(),
            done: Arc::default(),
            failed: Arc::default(),
            threads: Vec::new(),
        };
        let workers = (rate / 10).max(2);
        let pause = Duration::from_micros(1_000_000 * workers / rate);
        for worker in 0..workers {
            let address = addresses[usize::try_from(worker).unwrap() % addresses.len()].clone();
            let (stop, done) = (Arc::clone(&pace.stop), Arc::clone(&pace.done));
            let failed = Arc::clone(&pace.failed);
            pace.threads.push(std::thread::spawn(move || {
                let mut next = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    match get(&address, PAGE) {
                        Ok(_) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => failed.lock().unwrap().push(error),
                    }
                    // Who fell behind does not catch up in a burst.
                    next = (next + pause).max(Instant::now());
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                }
            }));
        }
        pace
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn failed(&self) -> Vec<String> {
        self.failed.lock().unwrap().clone()
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A connection that never ends by itself.
struct Long {
    /// The name of the instance that it is with.
    instance: String,
    ended: Option<Timestamp>,
}

/// Opens connections that never end by themselves; says when each ended.
fn streams(addresses: &[String], count: u64) -> Arc<Mutex<Vec<Long>>> {
    let all = Arc::<Mutex<Vec<Long>>>::default();
    for number in 0..count {
        let address = addresses[usize::try_from(number).unwrap() % addresses.len()].clone();
        let all = Arc::clone(&all);
        std::thread::spawn(move || {
            let stream = BufReader::new(ask(&address, STREAM).unwrap());
            let mut lines = stream.lines().map_while(Result::ok);
            let head = lines.find(|line| line.trim().is_empty());
            let Some(instance) = head.and_then(|_| lines.next()) else {
                return;
            };
            let place = {
                let mut all = all.lock().unwrap();
                all.push(Long {
                    instance,
                    ended: None,
                });
                all.len() - 1
            };
            // Something comes every second; the end, or a cut, ends it.
            lines.for_each(drop);
            all.lock().unwrap()[place].ended = Some(SystemClock.now());
        });
    }
    wait_for("all long connections to flow", LONG, || {
        (all.lock().unwrap().len() == usize::try_from(count).unwrap()).then_some(())
    })
    .unwrap();
    all
}

/// When each instance was first told to go, by its name.
fn told_to_go(fleet: &Fleet) -> BTreeMap<String, Timestamp> {
    let types = "instance.desired_state_changed";
    let line = ["events", "list", "--types", types, "--limit", "200"];
    let events = fleet.site.json(0, &line);
    let mut told = BTreeMap::new();
    for event in events["items"].as_array().unwrap() {
        let id = event["aggregate_id"].as_str().unwrap();
        let ulid = id.rsplit('_').next().unwrap().to_ascii_lowercase();
        let at = event["occurred_at"].as_str().unwrap().parse().unwrap();
        if event["payload"]["desired_state"] == "draining" {
            told.entry(ulid).or_insert(at);
        }
    }
    told
}

/// Those that ended though their instance was to stay, or before its grace was over.
fn cut_early(long: &[Long], told: &BTreeMap<String, Timestamp>) -> Vec<String> {
    let early = |it: &&Long| {
        let ulid = it.instance.rsplit('-').next().unwrap_or_default();
        let grace = i64::try_from(GRACE.as_micros()).unwrap();
        let until = told.get(ulid).map(|at| at.as_micros() + grace);
        let ended = it.ended.map(Timestamp::as_micros);
        ended.is_some_and(|ended| until.is_none_or(|until| ended < until))
    };
    let early = long.iter().filter(early);
    early.map(|it| it.instance.clone()).collect()
}

fn is_on(instance: &Value, node: &str) -> bool {
    instance["assignment"]["node_id"] == node
}

fn on(instances: &[Value], node: &str) -> usize {
    instances.iter().filter(|it| is_on(it, node)).count()
}

fn state(fleet: &Fleet, node: &str) -> String {
    let node = fleet.site.json(0, &["nodes", "describe", node]);
    node["data"]["status"].as_str().unwrap().to_owned()
}

#[test]
fn a_node_is_emptied_unnoticed_and_a_lost_one_is_replaced() {
    let site = site(8080);
    site.context.write("fluffy.toml", GROUPS).unwrap();
    let mut fleet = Fleet::start(site);
    for number in 0..3 {
        fleet.join(Some(Network::new(number)));
    }
    make_env(&fleet.site);
    let done = fleet.site.json(0, &["deploy"]);
    let routes = done["routes"].as_array().unwrap();
    let address = |route: &Value| route["address"].as_str().unwrap().to_owned();
    let addresses: Vec<String> = routes.iter().map(address).collect();
    assert_eq!(addresses.len(), 2);
    let instances = reach(&fleet.site, 4);
    // The one that has both groups' instances, or most of them.
    let busiest = (0..3).max_by_key(|number| on(&instances, &fleet.agents[*number].id));
    let busiest = busiest.unwrap();
    let node = fleet.agents[busiest].id.clone();
    let moved = on(&instances, &node);

    let (rate, long) = (campaign(20, 200), campaign(10, 100));
    let streams = streams(&addresses, long);
    let pace = Pace::start(&addresses, rate);
    let began = Instant::now();
    let drained = Instant::now();
    fleet.site.succeeds(&["nodes", "drain", &node, "--no-wait"]);
    // Its agent and another one are killed meanwhile, and come back.
    for number in [busiest, (busiest + 1) % 3] {
        fleet.kill(number);
        fleet.restart(number);
    }
    wait_for("the node to be drained", LONG, || {
        (state(&fleet, &node) == "drained").then_some(())
    })
    .unwrap();
    let took = drained.elapsed();
    let until = pace.done() + rate * 2;
    wait_for("two seconds more", LONG, || {
        (pace.done() >= until).then_some(())
    })
    .unwrap();
    let (done, failed) = (pace.done(), pace.failed());
    drop(pace);
    let seconds = began.elapsed().as_secs_f64();
    let told = told_to_go(&fleet);
    let (cut, early) = {
        let long = streams.lock().unwrap();
        let cut = long.iter().filter(|it| it.ended.is_some()).count();
        (cut, cut_early(&long, &told))
    };
    println!(
        "E17 drain: {moved} instances moved in {:.1} s; {done} connections in {seconds:.1} s \
         ({:.0} a second), {} failed; {} of {long} long ones ended, {} before grace",
        took.as_secs_f64(),
        f64::from(u32::try_from(done).unwrap()) / seconds,
        failed.len(),
        cut,
        early.len(),
    );
    let count = |number: usize| f64::from(u32::try_from(number).unwrap());
    let connections = f64::from(u32::try_from(done).unwrap());
    let mut acceptance = Acceptance::of("e17", "drain");
    acceptance
        .figure(
            "instances moved",
            (count(moved), "instances"),
            Limit::AtLeast(1.0),
        )
        .figure("until drained", (took.as_secs_f64(), "s"), Limit::None)
        .figure(
            "new connections",
            (connections / seconds, "1/s"),
            Limit::AtLeast(0.9 * f64::from(u32::try_from(rate).unwrap())),
        )
        .figure(
            "failed connects",
            (count(failed.len()), "connections"),
            Limit::AtMost(0.0),
        )
        .figure(
            "resets before grace",
            (count(early.len()), "connections"),
            Limit::AtMost(0.0),
        )
        .not_measured(
            "a group with a volume, which stays",
            "nodes have no volumes yet; the planner and the control plane are tried with them",
        )
        .not_measured("the same with microVMs", "no driver of these is there yet");
    acceptance.write().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(early.is_empty(), "{early:?} of {told:?}");
    assert!(cut > 0, "no long connection was where one is cut");
    let least = f64::from(u32::try_from(campaign(0, rate * 9 / 10)).unwrap());
    assert!(connections / seconds >= least, "too few connections");
    assert!(moved > 0, "nothing was moved");
    assert_eq!(on(&reach(&fleet.site, 4), &node), 0);

    // Lost without a word: its instances are somewhere else soon after.
    fleet.site.succeeds(&["nodes", "uncordon", &node]);
    let instances = ready(&fleet.site);
    let lost = (0..3).max_by_key(|number| on(&instances, &fleet.agents[*number].id));
    let agent = &mut fleet.agents[lost.unwrap()];
    let node = agent.id.clone();
    agent.vanish();
    wait_for("the node to be offline", LONG, || {
        (state(&fleet, &node) == "offline").then_some(())
    })
    .unwrap();
    let offline = Instant::now();
    let wanted = BTreeMap::from([("one", 1), ("three", 3)]);
    wait_for("replacements", LONG, || {
        let ready = ready(&fleet.site);
        let elsewhere = |process: &str| {
            let own = ready.iter().filter(|it| it["process"] == process);
            own.filter(|it| !is_on(it, &node)).count()
        };
        let all = wanted
            .iter()
            .all(|(process, count)| elsewhere(process) >= *count);
        all.then_some(())
    })
    .unwrap();
    let took = offline.elapsed();
    println!(
        "E17 kill: replaced {:.1} s after offline",
        took.as_secs_f64()
    );
    let mut acceptance = Acceptance::of("e17", "kill");
    let after = (took.as_secs_f64(), "s");
    acceptance.figure("replaced after offline", after, Limit::AtMost(60.0));
    acceptance.write().unwrap();
    let bar = Duration::from_secs(campaign(u64::MAX, 60));
    assert!(took < bar, "{took:?}");
    for address in &addresses {
        wait_for("an answer", LONG, || get(address, PAGE).ok()).unwrap();
    }
}
