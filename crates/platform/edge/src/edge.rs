//! The edge itself: listeners, the table in force, and how one follows another.
//!
//! A new table is built aside and takes over in one step; connections of
//! routes that stay go on as if nothing had happened. Decides nothing about
//! who may be reached: the server did.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::Mutex as SyncMutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use fluffy_api::node::v1;
use rustix::process::{Resource, getrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::keep::Keep;
use crate::meter::{Applied, Ended, Meter, STATES};
use crate::relay::{Choice, Dice, Target, carry, reset};
use crate::table::{Prefix, Route, Table};

/// Descriptors of this process that are no connection's.
const OTHERS: u64 = 1_024;
/// So few connections a person should hear of.
const FEW: usize = 4_096;

/// How an edge works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The addresses that it listens on; those that the machine does not have
    /// are left out, as long as one is left.
    pub listen: Vec<IpAddr>,
    /// Where instances may be.
    pub prefixes: Vec<Prefix>,
    /// Where the last good table is kept.
    pub keep: Option<Keep>,
    /// How often an instance is probed, and how long it has to answer.
    pub probe: (Duration, Duration),
    /// How long connections of a route that is gone go on.
    pub grace: Duration,
    /// The most connections: of all, of one route, of one client. There are
    /// fewer of all where this process may not open that many files.
    pub most: (usize, usize, usize),
    /// What choices begin with.
    pub seed: u64,
}

impl Options {
    /// For one machine: loopback only.
    #[must_use]
    pub fn loopback(prefixes: Vec<Prefix>) -> Self {
        Self {
            listen: vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
            prefixes,
            keep: None,
            probe: (Duration::from_secs(2), Duration::from_secs(1)),
            grace: Duration::from_secs(30),
            most: (50_000, 10_000, 1_024),
            seed: 1,
        }
    }
}

/// What an edge is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// The table in force.
    pub config: v1::Position,
    /// Routes that are listened for.
    pub routes: usize,
    /// Connections that are open.
    pub connections: usize,
    /// Connections that were over a limit.
    pub refused: u64,
}

/// An edge; to be cloned freely. It ends with the last of them.
#[derive(Debug, Clone)]
pub struct Edge {
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    /// The routes in force, by port.
    routes: ArcSwap<HashMap<u16, Arc<Live>>>,
    dice: Dice,
    counts: SyncMutex<Counts>,
    meter: Meter,
}

/// Somebody hears a server for an edge, as long as it lives.
#[derive(Debug)]
pub struct Hearing(Arc<Shared>);

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.meter.end_hearing();
    }
}

/// A route in force.
#[derive(Debug)]
struct Live {
    id: String,
    env: String,
    choices: ArcSwap<Vec<Choice>>,
    /// Becomes true when no table has it any more.
    gone: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// The table in force, and what cannot be served of it.
    told: Option<v1::RoutingTable>,
    problems: Vec<(String, &'static str)>,
    listeners: HashMap<u16, Vec<Task>>,
    /// By instance and address, with who probes it.
    targets: HashMap<(String, SocketAddr), (Arc<Target>, Task)>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    by_route: HashMap<String, usize>,
    by_client: HashMap<IpAddr, usize>,
    refused: u64,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Task {
    /// Ends it; what it held is free when this returns, and not merely soon.
    async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn task(work: impl Future<Output = ()> + Send + 'static) -> Task {
    Task(tokio::spawn(work))
}

impl Edge {
    /// An edge that goes by the last good table, if it kept one.
    pub async fn start(mut options: Options) -> Self {
        let wanted = options.most.0;
        options.most.0 = affordable(wanted, getrlimit(Resource::Nofile).current);
        let most = options.most.0;
        let fewer = "there will be fewer connections: this process may open too few files";
        match most < wanted {
            true if most < FEW => tracing::warn!(wanted, most, "{fewer}"),
            true => tracing::info!(wanted, most, "{fewer}"),
            false => {}
        }
        let keep = options.keep.clone();
        let shared = Shared {
            dice: Dice::new(options.seed),
            options,
            routes: ArcSwap::default(),
            counts: SyncMutex::default(),
            meter: Meter::default(),
        };
        let edge = Self {
            shared: Arc::new(shared),
            state: Arc::default(),
        };
        let kept = spawn_blocking(move || keep.and_then(|keep| keep.read())).await;
        if let Some(table) = kept.ok().flatten() {
            edge.apply(&table).await;
        }
        edge
    }

    /// Goes by a table from now on, whole, or says why not. One that is not
    /// newer changes nothing.
    pub async fn apply(&self, told: &v1::RoutingTable) -> v1::EdgeAck {
        let mut state = self.state.lock().await;
        let position = told.config.unwrap_or_default();
        if let Some(ack) = state.standing()
            && !position.is_above(ack.config.unwrap_or_default())
        {
            self.shared.meter.applied(Applied::Old);
            return ack;
        }
        let table = match Table::read(told, &self.shared.options.prefixes) {
            Ok(table) => table,
            Err(refused) => {
                self.shared.meter.applied(Applied::Refused);
                return v1::EdgeAck {
                    config: Some(position),
                    refused: refused.to_string(),
                    problems: Vec::new(),
                };
            }
        };
        state.problems = self.take(&mut state, table).await;
        state.told = Some(v1::RoutingTable {
            config: Some(position),
            ..told.clone()
        });
        let meter = &self.shared.meter;
        meter.applied(Applied::Taken);
        meter.version.store(position.seq, Ordering::Relaxed);
        if let Some(keep) = self.shared.options.keep.clone() {
            let told = told.clone();
            let kept = spawn_blocking(move || keep.write(&told)).await;
            if let Ok(Err(error)) = kept {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the routing table is in force, and not kept");
            }
        }
        state.standing().unwrap_or_default()
    }

    /// The table in force, and what cannot be served of it; none before the
    /// first. Ports that were taken are tried again.
    pub async fn standing(&self) -> Option<v1::EdgeAck> {
        let mut state = self.state.lock().await;
        if !state.problems.is_empty()
            && let Some(told) = state.told.clone()
            && let Ok(table) = Table::read(&told, &self.shared.options.prefixes)
        {
            state.problems = self.take(&mut state, table).await;
        }
        state.standing()
    }

    /// The table in force; none before the first.
    pub async fn config(&self) -> Option<v1::Position> {
        self.state.lock().await.told.as_ref()?.config
    }

    /// What it is doing.
    pub async fn figures(&self) -> Figures {
        let config = self.config().await.unwrap_or_default();
        let counts = self.shared.counts();
        Figures {
            config,
            routes: self.shared.routes.load().len(),
            connections: counts.all,
            refused: counts.refused,
        }
    }

    /// A server is heard from now on, until this is dropped: what it says is
    /// what is in force.
    #[must_use]
    pub fn hear(&self) -> Hearing {
        self.shared.meter.begin_hearing();
        Hearing(Arc::clone(&self.shared))
    }

    /// What it counts, as Prometheus reads it.
    #[must_use]
    pub fn metrics(&self) -> String {
        let routes = self.shared.routes.load_full();
        self.shared.meter.text(routes.len(), backends(&routes))
    }

    async fn take(&self, state: &mut State, table: Table) -> Vec<(String, &'static str)> {
        let mut problems = table.unserved;
        let before = self.shared.routes.load_full();
        let (mut routes, mut targets) = (HashMap::new(), HashMap::new());
        for (port, route) in table.routes {
            if let Entry::Vacant(place) = state.listeners.entry(port) {
                match self.shared.listen(port).await {
                    Ok(listening) => place.insert(listening),
                    Err(error) => {
                        tracing::debug!(port, route = route.id, %error, "a port cannot be had");
                        problems.push((route.id, "bind_failed"));
                        continue;
                    }
                };
            }
            let choices = self.choices(state, &route, &mut targets);
            let same = |live: &&Arc<Live>| live.id == route.id && live.env == route.env;
            let live = match before.get(&port).filter(same) {
                Some(live) => {
                    live.choices.store(Arc::new(choices));
                    Arc::clone(live)
                }
                None => Arc::new(Live {
                    id: route.id,
                    env: route.env,
                    choices: ArcSwap::from_pointee(choices),
                    gone: watch::Sender::new(false),
                }),
            };
            routes.insert(port, live);
        }
        let unused = |port: &u16, _: &mut Vec<Task>| !routes.contains_key(port);
        let closing: Vec<_> = state.listeners.extract_if(unused).collect();
        state.targets = targets;
        self.shared
            .meter
            .keep_ports(|port| routes.contains_key(&port));
        let stays = |port: &u16, live: &Arc<Live>| {
            let now: Option<&Arc<Live>> = routes.get(port);
            now.is_some_and(|now| Arc::ptr_eq(now, live))
        };
        let gone: Vec<_> = before
            .iter()
            .filter(|(port, live)| !stays(port, live))
            .map(|(_, live)| Arc::clone(live))
            .collect();
        self.shared.routes.store(Arc::new(routes));
        for live in gone {
            live.gone.send_replace(true);
        }
        // Whoever is told that a table is in force finds its ports closed.
        for listener in closing.into_iter().flat_map(|(_, listeners)| listeners) {
            listener.end().await;
        }
        problems
    }

    /// The targets of a route; those that are known keep what is known.
    fn choices(
        &self,
        state: &mut State,
        route: &Route,
        targets: &mut HashMap<(String, SocketAddr), (Arc<Target>, Task)>,
    ) -> Vec<Choice> {
        let mut choices = Vec::new();
        for backend in &route.backends {
            let key = (backend.instance.clone(), backend.address);
            let known = targets.entry(key.clone()).or_insert_with(|| {
                state.targets.remove(&key).unwrap_or_else(|| {
                    let target = Arc::new(Target::new(key.0, key.1));
                    let probing = task(probe(Arc::clone(&target), self.shared.options.probe));
                    (target, probing)
                })
            });
            choices.push(Choice {
                target: Arc::clone(&known.0),
                draining: backend.draining,
            });
        }
        choices
    }
}

/// How many connections there may be, each of which takes two descriptors:
/// the rest of this process needs some as well.
fn affordable(wanted: usize, descriptors: Option<u64>) -> usize {
    let Some(all) = descriptors else {
        return wanted;
    };
    // Of few it takes half: an edge that serves nobody helps nobody.
    let room = all.saturating_sub(OTHERS).max(all / 2) / 2;
    usize::try_from(room).map_or(wanted, |room| room.min(wanted))
}

/// How many instances there are in each state; one that takes new connections
/// anywhere is not draining.
fn backends(routes: &HashMap<u16, Arc<Live>>) -> [u64; STATES.len()] {
    let mut known: HashMap<(String, SocketAddr), (Arc<Target>, bool)> = HashMap::new();
    for live in routes.values() {
        for choice in live.choices.load().iter() {
            let key = (choice.target.instance.clone(), choice.target.address);
            let entry = known.entry(key);
            let entry = entry.or_insert_with(|| (Arc::clone(&choice.target), true));
            entry.1 &= choice.draining;
        }
    }
    let now = Instant::now();
    let mut counts = [0; STATES.len()];
    for (target, is_draining) in known.into_values() {
        let gate = target.gate();
        let state = match () {
            () if is_draining => "draining",
            () if gate.is_out() => "out",
            () if !gate.admits(now) => "aside",
            () => "up",
        };
        let place = STATES.iter().position(|it| *it == state);
        if let Some(count) = place.and_then(|place| counts.get_mut(place)) {
            *count += 1;
        }
    }
    counts
}

impl State {
    fn standing(&self) -> Option<v1::EdgeAck> {
        let problem = |(route_id, reason): &(String, &str)| v1::RouteProblem {
            route_id: route_id.clone(),
            reason: (*reason).to_owned(),
        };
        Some(v1::EdgeAck {
            config: self.told.as_ref()?.config,
            refused: String::new(),
            problems: self.problems.iter().map(problem).collect(),
        })
    }
}

impl Shared {
    /// Listens on a port of every address that the machine has.
    async fn listen(self: &Arc<Self>, port: u16) -> io::Result<Vec<Task>> {
        let mut tasks = Vec::new();
        let mut missing = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in &self.options.listen {
            match TcpListener::bind((*address, port)).await {
                Ok(listener) => tasks.push(task(accept(Arc::clone(self), listener, port))),
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => missing = error,
                Err(error) => return Err(error),
            }
        }
        match tasks.is_empty() {
            true => Err(missing),
            false => Ok(tasks),
        }
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection, unless there are too many.
    fn admit(self: &Arc<Self>, route: &str, client: IpAddr) -> Option<Admitted> {
        // A whole network of the newer kind is one client.
        let client = match client {
            IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() & !u128::from(u64::MAX)).into(),
            other => other,
        };
        let mut counts = self.counts();
        let (all, of_route, of_client) = self.options.most;
        let open = |map: Option<&usize>| map.copied().unwrap_or_default();
        if counts.all >= all
            || open(counts.by_route.get(route)) >= of_route
            || open(counts.by_client.get(&client)) >= of_client
        {
            counts.refused += 1;
            return None;
        }
        counts.all += 1;
        *counts.by_route.entry(route.to_owned()).or_default() += 1;
        *counts.by_client.entry(client).or_default() += 1;
        Some(Admitted {
            shared: Arc::clone(self),
            route: route.to_owned(),
            client,
        })
    }
}

/// A connection that is counted.
struct Admitted {
    shared: Arc<Shared>,
    route: String,
    client: IpAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.shared.counts();
        counts.all -= 1;
        less(&mut counts.by_route, &self.route);
        less(&mut counts.by_client, &self.client);
    }
}

/// Counts one less, and forgets what there is none of.
fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, port: u16) {
    loop {
        let Ok((client, from)) = listener.accept().await else {
            // Out of descriptors: others have to end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let route = shared.routes.load().get(&port).cloned();
        let admitted = route
            .as_ref()
            .and_then(|it| shared.admit(&it.id, from.ip()));
        let (Some(live), Some(admitted)) = (route, admitted) else {
            // Where there is no route, nobody listens any more in a moment.
            if shared.routes.load().contains_key(&port) {
                shared.meter.turned_away(port, Ended::Limited);
            }
            reset(&client);
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let _admitted = admitted;
            let mut open = Open::begin(&shared.meter, port);
            let (choices, gone) = (live.choices.load_full(), live.gone.subscribe());
            // While it waits the route must not count as in force.
            drop(live);
            let by = (&shared.dice, &shared.meter);
            open.how = carry(client, &choices, by, gone, shared.options.grace).await;
        });
    }
}

/// A connection that is open on a port, however it ends.
struct Open<'a> {
    meter: &'a Meter,
    port: u16,
    how: Ended,
}

impl<'a> Open<'a> {
    fn begin(meter: &'a Meter, port: u16) -> Self {
        meter.opened(port);
        // Who ends it from outside is the process's own end.
        let how = Ended::Closed;
        Self { meter, port, how }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.meter.closed(self.port, self.how);
    }
}

/// Asks an instance again and again whether it takes connections.
async fn probe(target: Arc<Target>, (every, patience): (Duration, Duration)) {
    // Each at its own moment: a tenth of the pause is its own.
    let own = target.address.port().wrapping_mul(31) % 100;
    let pause = every.mul_f64(0.9 + f64::from(own) / 500.0);
    loop {
        tokio::time::sleep(pause).await;
        let connecting = timeout(patience, TcpStream::connect(target.address));
        let well = matches!(connecting.await, Ok(Ok(_)));
        target.gate().probed(well);
        if !well {
            tracing::debug!(instance = target.instance, "a probe failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest_of_the_process() {
        for (descriptors, most) in [
            (None, 50_000),
            (Some(1 << 20), 50_000),
            (Some(101_024), 50_000),
            (Some(101_023), 49_999),
            (Some(4_096), 1_536),
            (Some(1_024), 256),
            (Some(0), 0),
        ] {
            assert_eq!(affordable(50_000, descriptors), most, "{descriptors:?}");
        }
    }
}
