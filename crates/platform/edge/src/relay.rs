//! Carries one connection: finds an instance that answers, then both ways.
//!
//! Other instances are tried only while nothing was sent to one. An end that
//! was closed for writing is closed for the other side too, and no sooner.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::gate::Gate;
use crate::meter::{Ended, Failed, Meter, Metered};

/// How long one instance has to answer, and how many are tried.
const CONNECT: Duration = Duration::from_secs(2);
const MOST_TRIES: usize = 3;

/// An instance behind routes, as long as any table names it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) instance: String,
    pub(crate) address: SocketAddr,
    pub(crate) gate: Mutex<Gate>,
    open: AtomicUsize,
}

/// A target in a route.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) target: Arc<Target>,
    pub(crate) draining: bool,
}

/// Counts something while it lives.
#[derive(Debug)]
struct Counted<'a>(&'a AtomicUsize);

/// Random enough to choose by, and the same for the same seed.
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Target {
    pub(crate) fn new(instance: String, address: SocketAddr) -> Self {
        Self {
            instance,
            address,
            gate: Mutex::default(),
            open: AtomicUsize::new(0),
        }
    }

    pub(crate) fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// A number below `many`.
    fn below(&self, many: usize) -> usize {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut bits = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        let many = u64::try_from(many).unwrap_or(1).max(1);
        usize::try_from(bits % many).unwrap_or(0)
    }
}

/// Those who may get a new connection. If all that are ready seem unwell, the
/// fault is likely here: then all are tried.
fn eligible(choices: &[Choice], now: Instant) -> Vec<Arc<Target>> {
    let ready = || choices.iter().filter(|choice| !choice.draining);
    let well: Vec<_> = ready()
        .filter(|choice| choice.target.gate().admits(now))
        .map(|choice| Arc::clone(&choice.target))
        .collect();
    match well.is_empty() {
        true => ready().map(|choice| Arc::clone(&choice.target)).collect(),
        false => well,
    }
}

/// Of two at random the one with fewer connections; it is taken out.
fn choose(targets: &mut Vec<Arc<Target>>, dice: &Dice) -> Option<Arc<Target>> {
    let (one, other) = (dice.below(targets.len()), dice.below(targets.len()));
    let open = |place: usize| {
        let target: Option<&Arc<Target>> = targets.get(place);
        target.map_or(usize::MAX, |it| it.open.load(Ordering::Relaxed))
    };
    let place = if open(other) < open(one) { other } else { one };
    (place < targets.len()).then(|| targets.swap_remove(place))
}

/// Carries a connection until it ends, or until its route is gone and `grace`
/// is over. Whoever finds nobody is reset.
pub(crate) async fn carry(
    client: TcpStream,
    choices: &[Choice],
    (dice, meter): (&Dice, &Meter),
    mut gone: watch::Receiver<bool>,
    grace: Duration,
) -> Ended {
    let mut targets = eligible(choices, Instant::now());
    for _ in 0..MOST_TRIES {
        let Some(target) = choose(&mut targets, dice) else {
            break;
        };
        let _open = Counted::new(&target.open);
        let begun = Instant::now();
        let connected = timeout(CONNECT, TcpStream::connect(target.address)).await;
        let failed = match &connected {
            Ok(Ok(_)) => Failed::Other,
            Ok(Err(error)) => Failed::of(error),
            Err(_) => Failed::Timeout,
        };
        let Ok(Ok(mut server)) = connected else {
            target.gate().failed(Instant::now());
            meter.failed(failed);
            continue;
        };
        meter.connected(begun.elapsed());
        target.gate().connected();
        prepare(&client);
        prepare(&server);
        let over = async {
            // Whoever tells of it may be gone as well.
            let _ = gone.wait_for(|gone| *gone).await;
            tokio::time::sleep(grace).await;
        };
        let mut client = Metered {
            stream: client,
            meter,
        };
        return tokio::select! {
            done = copy_bidirectional(&mut client, &mut server) => {
                // Who was cut off shall not take it for a whole answer.
                if done.is_err() {
                    reset(&client.stream);
                    reset(&server);
                }
                Ended::Closed
            }
            () = over => {
                reset(&client.stream);
                reset(&server);
                Ended::Gone
            }
        };
    }
    reset(&client);
    Ended::Unavailable
}

/// Small pieces go at once, and a peer that is gone is noticed.
fn prepare(stream: &TcpStream) {
    // Each only makes it better.
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepcnt(stream, 6);
}

/// Makes closing a reset: nobody shall take it for the end of an answer.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(count: u16) -> Vec<Choice> {
        let target = |port: u16| Target::new(port.to_string(), ([127, 0, 0, 1], port).into());
        let choice = |port| Choice {
            target: Arc::new(target(port)),
            draining: false,
        };
        (1..=count).map(choice).collect()
    }

    #[test]
    fn the_less_busy_of_two_is_taken_and_the_same_seed_takes_the_same() {
        let choices = choices(4);
        choices[0].target.open.store(100, Ordering::Relaxed);
        let taken = |seed: u64| -> Vec<u16> {
            let dice = Dice::new(seed);
            let take = |_| {
                let mut targets = eligible(&choices, Instant::now());
                choose(&mut targets, &dice).unwrap().address.port()
            };
            (0..400).map(take).collect()
        };
        let first = taken(7);
        assert_eq!(first, taken(7));
        assert_ne!(first, taken(8));
        let count = |port: u16| first.iter().filter(|it| **it == port).count();
        // Only when it is drawn twice: one time in sixteen.
        assert!((5..60).contains(&count(1)), "{}", count(1));
        assert!((2..=4).all(|port| count(port) > 60));
    }

    #[test]
    fn who_drains_or_is_unwell_gets_nothing_unless_all_are_unwell() {
        let mut choices = choices(3);
        let ports = |choices: &[Choice]| -> Vec<u16> {
            let eligible = eligible(choices, Instant::now());
            eligible.iter().map(|it| it.address.port()).collect()
        };
        choices[0].draining = true;
        assert_eq!(ports(&choices), [2, 3]);
        let unwell = |choice: &Choice| (0..3).for_each(|_| choice.target.gate().probed(false));
        unwell(&choices[1]);
        assert_eq!(ports(&choices), [3]);
        unwell(&choices[2]);
        assert_eq!(ports(&choices), [2, 3]);
        choices.iter_mut().for_each(|it| it.draining = true);
        assert!(ports(&choices).is_empty());
    }
}
