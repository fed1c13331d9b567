//! Lines come once, last, and go: through crashes, restarts and time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fluffy_api::node::{MAX_LOG_LINE, v1};
use fluffy_base::ManualClock;
use fluffy_base::id::{EnvId, NodeId, OrgId};
use proptest::prelude::*;

use super::ring::{IN_ALL, PER_INSTANCE};
use super::segment::{Block, Segment};
use super::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn node() -> NodeId {
    NodeId::from_bits(1)
}

fn printer(env: u128) -> Printer {
    Printer {
        source: Arc::new(Source {
            org: OrgId::from_bits(1),
            env: EnvId::from_bits(env),
            process: "web".to_owned(),
        }),
        daily: u64::MAX,
    }
}

fn entry(instance: &str, seq: u64, line: &str) -> v1::LogEntry {
    v1::LogEntry {
        instance_id: instance.to_owned(),
        boot_id: "boot".to_owned(),
        stream: "stdout".to_owned(),
        seq,
        at_ms: 1_000 + seq,
        line: line.to_owned(),
        ..Default::default()
    }
}

async fn keep(logs: &Logs, entries: Vec<v1::LogEntry>) {
    let entries = entries.into_iter().map(|entry| (printer(1), entry));
    logs.keep(node(), entries.collect()).await.unwrap();
}

fn texts<'a>(lines: impl IntoIterator<Item = &'a LogLine>) -> Vec<String> {
    lines.into_iter().map(|it| it.text.to_string()).collect()
}

fn all() -> Query {
    Query {
        env: EnvId::from_bits(1),
        process: None,
        instance: None,
        stream: None,
        since_ms: 0,
        until_ms: u64::MAX,
        most: 100_000,
        most_bytes: usize::MAX,
        order: Order::Time,
    }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new("2026-11-16T08:00:00Z".parse().unwrap()))
}

fn keeping(folder: &Path) -> Keeping {
    Keeping {
        folder: folder.to_owned(),
        retention: 7 * DAY,
        most: Some(1 << 30),
    }
}

async fn open(folder: &Path, clock: &Arc<ManualClock>) -> Logs {
    let logs = Logs::default();
    let clock: Arc<dyn Clock> = Arc::clone(clock) as _;
    logs.keep_in(keeping(folder), clock).await.unwrap();
    logs
}

/// Ends as a process that is killed does: nothing is sealed.
async fn kill(logs: Logs) {
    let kept = logs.kept.get().unwrap();
    let writing = lock(&kept.writing).take().unwrap();
    writing.abort();
    let _ = writing.await;
    kept.store.release();
}

fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join("0")).unwrap();
    let all = all.map(|it| it.unwrap().path());
    let mut files: Vec<_> = all
        .filter(|it| it.extension().is_some_and(|it| it == kind))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn what_comes_twice_is_kept_once() {
    let logs = Logs::default();
    let mut following = logs.follow();
    keep(&logs, vec![entry("a", 1, "one"), entry("a", 2, "two")]).await;
    keep(&logs, vec![entry("a", 2, "two"), entry("a", 3, "three")]).await;
    let mut other = entry("a", 1, "again");
    other.boot_id = "later boot".to_owned();
    keep(&logs, vec![other, entry("b", 1, "another")]).await;
    let of = |instance: &str| texts(&logs.of(instance));
    assert_eq!(of("a"), ["one", "two", "three", "again"]);
    assert_eq!(of("b"), ["another"]);
    assert!(of("nobody").is_empty());
    let mut followed = Vec::new();
    while let Ok(line) = following.try_recv() {
        followed.push(line.text.to_string());
    }
    assert_eq!(followed, ["one", "two", "three", "again", "another"]);
}

#[tokio::test]
async fn everything_in_memory_has_a_bound() {
    let logs = Logs::default();
    let long = "é".repeat(MAX_LOG_LINE);
    let many = (1..=20_000).map(|seq| entry("many", seq, "x"));
    keep(&logs, many.collect()).await;
    assert_eq!(logs.of("many").len(), PER_INSTANCE.0);
    keep(&logs, vec![entry("long", 1, &long)]).await;
    let line = &logs.of("long")[0];
    assert!(line.truncated && line.text.len() <= MAX_LOG_LINE);
    for instance in 0..40 {
        let text = &long[..MAX_LOG_LINE];
        let lines = (1..=520).map(|seq| entry(&instance.to_string(), seq, text));
        keep(&logs, lines.collect()).await;
    }
    let rings = lock(&logs.inner.rings);
    assert!(rings.bytes <= IN_ALL, "{}", rings.bytes);
    let counted: usize = rings.of.values().map(|ring| ring.bytes).sum();
    assert_eq!(rings.bytes, counted);
    assert!(!rings.of.contains_key("many"), "the quietest goes first");
    assert!(rings.of.values().all(|ring| ring.bytes <= PER_INSTANCE.1));
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let logs = open(folder.path(), &clock).await;
    let id = logs.store_id().to_owned();
    keep(&logs, vec![entry("a", 1, "one"), entry("b", 1, "other")]).await;
    keep(&logs, vec![entry("a", 2, "two")]).await;
    kill(logs).await;
    assert_eq!(files(folder.path(), "journal").len(), 1);

    // Its node was not told, say, and sends the last ones again.
    let logs = open(folder.path(), &clock).await;
    assert_eq!(logs.store_id(), id);
    assert!(logs.of("a").is_empty(), "memory is new");
    keep(&logs, vec![entry("a", 2, "two"), entry("a", 3, "three")]).await;
    let found = logs.find(all()).await.unwrap();
    assert_eq!(texts(&found.lines), ["one", "other", "two", "three"]);
    let arrivals: Vec<u64> = found.lines.iter().map(|it| it.arrival).collect();
    assert_eq!(arrivals, [1, 2, 3, 4]);
    assert_eq!(found.through, 4);

    // In good order it is the same, and there is no journal.
    logs.close().await;
    let late = vec![(printer(1), entry("a", 4, "too late"))];
    logs.keep(node(), late).await.unwrap_err();
    assert!(files(folder.path(), "journal").is_empty());
    let logs = open(folder.path(), &clock).await;
    keep(&logs, vec![entry("a", 3, "three")]).await;
    let found = logs.find(all()).await.unwrap();
    assert_eq!(texts(&found.lines), ["one", "other", "two", "three"]);
}

#[tokio::test]
async fn what_cannot_be_written_is_neither_acknowledged_nor_shown() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let logs = open(folder.path(), &clock).await;
    // Not even the owner of a machine writes to a folder.
    let obstacle = folder.path().join("0").join(format!("{:020}.journal", 1));
    fs::create_dir(&obstacle).unwrap();
    let lines = || vec![(printer(1), entry("a", 1, "one"))];
    logs.keep(node(), lines()).await.unwrap_err();
    assert!(logs.of("a").is_empty());
    fs::remove_dir(&obstacle).unwrap();
    logs.keep(node(), lines()).await.unwrap();
    assert_eq!(texts(&logs.find(all()).await.unwrap().lines), ["one"]);
}

/// Long lines are not more to hold than short ones.
#[tokio::test]
async fn one_look_has_so_much_text_and_going_on_has_the_rest() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let long = "x".repeat(MAX_LOG_LINE);
    let fit = MOST_TEXT / MAX_LOG_LINE;
    let many = 3 * fit as u64 / 2;
    let lines = |seqs: std::ops::RangeInclusive<u64>| {
        let lines = seqs.map(|seq| entry("a", seq, &long));
        lines.collect::<Vec<_>>()
    };
    // Half of it is sealed, and half is not.
    let logs = open(folder.path(), &clock).await;
    keep(&logs, lines(1..=many / 2)).await;
    logs.close().await;
    let logs = open(folder.path(), &clock).await;
    keep(&logs, lines(many / 2 + 1..=many)).await;
    let seqs = |found: &Found| found.lines.iter().map(|it| it.seq).collect::<Vec<_>>();
    for order in [Order::Time, Order::Arrival] {
        let last = Query {
            most_bytes: MOST_TEXT,
            order,
            ..all()
        };
        let found = logs.find(last).await.unwrap();
        let newest = (many - fit as u64 + 1)..=many;
        assert_eq!(seqs(&found), newest.collect::<Vec<_>>(), "{order:?}");
        assert_eq!(found.through, many, "{order:?}");
    }
    let (mut had, mut after) = (Vec::new(), 0);
    for _ in 0..2 {
        let next = Query {
            most_bytes: MOST_TEXT,
            order: Order::After(after),
            ..all()
        };
        let found = logs.find(next).await.unwrap();
        assert!(found.lines.len() <= fit, "{}", found.lines.len());
        had.extend(seqs(&found));
        after = found.through;
    }
    assert_eq!(had, (1..=many).collect::<Vec<_>>());
}

#[tokio::test]
async fn replicas_that_share_a_folder_keep_apart() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let one = open(folder.path(), &clock).await;
    let other = open(folder.path(), &clock).await;
    assert_ne!(one.store_id(), other.store_id());
    keep(&one, vec![entry("a", 1, "here")]).await;
    keep(&other, vec![entry("a", 2, "there")]).await;
    assert_eq!(texts(&one.find(all()).await.unwrap().lines), ["here"]);
    assert_eq!(texts(&other.find(all()).await.unwrap().lines), ["there"]);
}

#[tokio::test]
async fn lines_go_with_time_with_their_env_and_when_they_are_too_many() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let mut of_two = entry("two", 1, "of another env");
    of_two.at_ms = 2_000;
    let logs = open(folder.path(), &clock).await;
    keep(&logs, vec![entry("a", 1, "one")]).await;
    logs.keep(node(), vec![(printer(2), of_two)]).await.unwrap();
    logs.close().await;
    let two = Query {
        env: EnvId::from_bits(2),
        ..all()
    };
    let seen = async |logs: &Logs| {
        let found = [logs.find(all()).await, logs.find(two.clone()).await];
        found.map(|it| it.unwrap().lines.len())
    };
    let logs = open(folder.path(), &clock).await;
    let without_two = |env: EnvId| env != EnvId::from_bits(2);
    // An env that is gone keeps its lines for less than seven days.
    clock.advance(6 * DAY - Duration::from_secs(1));
    logs.tend(without_two).await.unwrap();
    assert_eq!(seen(&logs).await, [1, 1]);
    clock.advance(Duration::from_secs(1));
    logs.tend(without_two).await.unwrap();
    assert_eq!(seen(&logs).await, [1, 0]);
    clock.advance(DAY - Duration::from_secs(1));
    logs.tend(without_two).await.unwrap();
    assert_eq!(seen(&logs).await, [1, 0]);
    clock.advance(Duration::from_secs(1));
    logs.tend(|_| true).await.unwrap();
    assert_eq!(seen(&logs).await, [0, 0]);
    assert!(files(folder.path(), "seg").is_empty());
    logs.close().await;

    // Too many bytes: the oldest go.
    let mut most = keeping(folder.path());
    most.most = Some(1_000);
    for round in 1..=4 {
        let logs = Logs::default();
        logs.keep_in(most.clone(), Arc::clone(&clock) as _)
            .await
            .unwrap();
        let noise: String = (0..300_u32)
            .map(|n| char::from(u8::try_from(33 + n * n * round % 89).unwrap()))
            .collect();
        keep(&logs, vec![entry("a", 10 + u64::from(round), &noise)]).await;
        logs.close().await;
    }
    let sizes = files(folder.path(), "seg").into_iter();
    let sizes: Vec<u64> = sizes.map(|it| fs::metadata(it).unwrap().len()).collect();
    assert!(sizes.iter().sum::<u64>() <= 1_000, "{sizes:?}");
    let logs = Logs::default();
    logs.keep_in(most, Arc::clone(&clock) as _).await.unwrap();
    let left = logs.find(all()).await.unwrap().lines;
    assert_eq!(left.last().map(|it| it.seq), Some(14), "the newest stay");
    assert!(left.len() < 4);
}

#[tokio::test]
async fn over_its_day_an_org_keeps_a_tenth_and_the_rest_is_counted() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let mut small = printer(1);
    small.daily = 1_000;
    let text = "x".repeat(100);
    let flood = |from: u64, to: u64| {
        let lines = (from..=to).map(|seq| (small.clone(), entry("a", seq, &text)));
        lines.collect::<Vec<_>>()
    };
    let logs = open(folder.path(), &clock).await;
    logs.keep(node(), flood(1, 100)).await.unwrap();
    let kept = logs.of("a");
    let seqs: Vec<u64> = kept.iter().map(|it| it.seq).collect();
    let first = (1..=10).chain((20..=100).step_by(10));
    assert_eq!(seqs, first.collect::<Vec<_>>());
    let dropped: u64 = kept.iter().map(|it| it.dropped).sum();
    assert_eq!(dropped, 81, "every line that is missing is counted");
    let org = OrgId::from_bits(1);
    assert_eq!(logs.today().1, BTreeMap::from([(org, 1_900)]));
    // A restart does not begin the day anew.
    kill(logs).await;
    let logs = open(folder.path(), &clock).await;
    assert_eq!(logs.today().1, BTreeMap::from([(org, 1_900)]));
    logs.keep(node(), flood(101, 110)).await.unwrap();
    assert_eq!(logs.of("a").len(), 1);
    // Another org has its own share, and tomorrow is another day.
    clock.advance(DAY);
    logs.keep(node(), flood(111, 115)).await.unwrap();
    assert_eq!(logs.of("a").len(), 6);
    // What others heard counts as well.
    let (day, _) = logs.today();
    logs.set_elsewhere(day, &BTreeMap::from([(org, 1_000)]));
    logs.keep(node(), flood(116, 119)).await.unwrap();
    assert_eq!(logs.of("a").len(), 6);
}

/// A line of the model: everything that tells it from another.
fn told(line: &LogLine) -> (String, String, u64, String) {
    let LogLine {
        instance, stream, ..
    } = line;
    (
        instance.to_string(),
        stream.to_string(),
        line.seq,
        line.text.to_string(),
    )
}

#[derive(Debug, Clone)]
enum Step {
    /// So many lines of an instance and a stream, by a clock that jumps.
    Print(u8, bool, u8, u64),
    /// The last lines come again.
    Again,
    Kill,
    Close,
    Ask(Query),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let order = prop_oneof![
        Just(Order::Time),
        Just(Order::Arrival),
        (0..60_u64).prop_map(Order::After),
    ];
    let filters = (
        prop::option::of(0..4_u8),
        prop::option::of(prop_oneof![Just("stdout"), Just("platform")]),
    );
    let bytes = prop_oneof![2 => Just(usize::MAX), 1 => 1..200_usize];
    let ask = (
        order,
        (1..40_usize, bytes),
        0..2_000_u64,
        0..2_000_u64,
        filters,
    );
    let ask = ask.prop_map(
        |(order, (most, most_bytes), since_ms, length, (instance, stream))| Query {
            instance: instance.map(|it| it.to_string()),
            stream: stream.map(str::to_owned),
            since_ms,
            until_ms: since_ms + length,
            most,
            most_bytes,
            order,
            ..all()
        },
    );
    let step = prop_oneof![
        5 => (0..4_u8, any::<bool>(), 1..12_u8, 0..2_000_u64)
            .prop_map(|(i, s, n, at)| Step::Print(i, s, n, at)),
        1 => Just(Step::Again),
        1 => Just(Step::Kill),
        1 => Just(Step::Close),
        4 => ask.prop_map(Step::Ask),
    ];
    prop::collection::vec(step, 1..40)
}

/// What a query finds among all lines, in the order in which they came.
fn model(lines: &[LogLine], query: &Query) -> Vec<(String, String, u64, String)> {
    let wanted = lines.iter().filter(|it| {
        let after = match query.order {
            Order::After(after) => it.arrival > after,
            _ => true,
        };
        let instance = query.instance.as_deref();
        let stream = query.stream.as_deref();
        after
            && instance.is_none_or(|name| name == &*it.instance)
            && stream.is_none_or(|name| name == stream_of(&it.stream))
            && it.at_ms >= query.since_ms
            && it.at_ms <= query.until_ms
    });
    let mut wanted: Vec<&LogLine> = wanted.collect();
    match query.order {
        Order::Time => wanted.sort_by_key(|it| it.at_ms),
        Order::Arrival | Order::After(_) => {}
    }
    let is_last = !matches!(query.order, Order::After(_));
    if is_last {
        wanted.reverse();
    }
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for line in wanted {
        if shown.len() == query.most || bytes >= query.most_bytes {
            break;
        }
        bytes += line.text.len();
        shown.push(told(line));
    }
    if is_last {
        shown.reverse();
    }
    shown
}

/// Who goes on from where each answer ended has every line once.
async fn goes_on(logs: &Logs, came: &[LogLine], mut query: Query) {
    let whole = Query {
        most: usize::MAX,
        most_bytes: usize::MAX,
        ..query.clone()
    };
    let mut had = Vec::new();
    loop {
        let found = logs.find(query.clone()).await.unwrap();
        had.extend(found.lines.iter().map(told));
        if found.lines.is_empty() {
            break;
        }
        query.order = Order::After(found.through);
    }
    assert_eq!(had, model(came, &whole), "{query:?}");
}

async fn lives_through(steps: Vec<Step>) {
    let (folder, clock) = (tempfile::tempdir().unwrap(), clock());
    let mut logs = open(folder.path(), &clock).await;
    let mut numbers: BTreeMap<(u8, bool), u64> = BTreeMap::new();
    let mut last: Vec<v1::LogEntry> = Vec::new();
    let mut came: Vec<LogLine> = Vec::new();
    for step in steps {
        match step {
            Step::Print(instance, is_init, count, at_ms) => {
                let seq = numbers.entry((instance, is_init)).or_default();
                last.clear();
                for n in 0..u64::from(count) {
                    *seq += 1;
                    let mut line = entry(&instance.to_string(), *seq, &format!("line {seq}"));
                    line.stream = if is_init { "init" } else { "stdout" }.to_owned();
                    line.at_ms = at_ms + n;
                    last.push(line);
                }
                let before = came.len() as u64;
                keep(&logs, last.clone()).await;
                for (n, entry) in last.iter().enumerate() {
                    came.push(LogLine {
                        source: Arc::clone(&printer(1).source),
                        instance: entry.instance_id.as_str().into(),
                        boot: entry.boot_id.as_str().into(),
                        stream: entry.stream.as_str().into(),
                        seq: entry.seq,
                        arrival: before + n as u64 + 1,
                        at_ms: entry.at_ms,
                        text: entry.line.as_str().into(),
                        truncated: false,
                        dropped: 0,
                    });
                }
            }
            Step::Again => keep(&logs, last.clone()).await,
            Step::Kill => {
                kill(logs).await;
                logs = open(folder.path(), &clock).await;
            }
            Step::Close => {
                logs.close().await;
                logs = open(folder.path(), &clock).await;
            }
            Step::Ask(query) => {
                let found = logs.find(query.clone()).await.unwrap();
                let shown: Vec<_> = found.lines.iter().map(told).collect();
                assert_eq!(shown, model(&came, &query), "{query:?}");
                if let Order::After(_) = query.order {
                    goes_on(&logs, &came, query).await;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_every_line_is_found_once(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(lives_through(steps));
    }

    /// A journal that ends anywhere, or has a wrong byte anywhere, has exactly
    /// the frames before that.
    #[test]
    fn a_torn_journal_has_all_that_was_whole(
        counts in prop::collection::vec(1..5_u64, 1..8),
        place in any::<prop::sample::Index>(),
        flip in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.journal");
        let mut journal = segment::Journal::create(&path).unwrap();
        let mut seq = 0;
        let mut ends: Vec<(u64, u64)> = vec![(journal.bytes, 0)];
        for count in counts {
            let lines = (0..count).map(|_| {
                seq += 1;
                record(seq)
            });
            let lines = lines.collect();
            journal.append(&[block(lines)]).unwrap();
            ends.push((journal.bytes, seq));
        }
        let whole = fs::read(&path).unwrap();
        let at = place.index(whole.len());
        let mut torn = whole.clone();
        match flip {
            true => torn[at] ^= 0x10,
            false => torn.truncate(at),
        }
        fs::write(&path, &torn).unwrap();
        let before = ends.iter().filter(|(end, _)| *end <= at as u64);
        let expected = before.map(|(_, seq)| *seq).max().unwrap_or(0);
        let found = segment::recover(&path).unwrap();
        let found: Vec<u64> = found.iter().flat_map(|it| it.lines.iter().map(|it| it.seq)).collect();
        prop_assert_eq!(found, (1..=expected).collect::<Vec<_>>());
    }

    /// A segment with a wrong byte is refused or has lines that were printed;
    /// it never makes one up and never ends the process.
    #[test]
    fn a_broken_segment_makes_nothing_up(place in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.seg");
        let lines: Vec<_> = (1..=50).map(record).collect();
        segment::seal(&path, vec![block(lines.clone())], 7).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = place.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        if let Ok(mut segment) = Segment::open(&path)
            && let Ok(found) = segment.lines(|_| true)
        {
            let known: BTreeSet<u64> = lines.iter().map(|it| it.seq).collect();
            for (_, _, found) in found {
                prop_assert!(found.iter().all(|it| known.contains(&it.seq) && it.text == "text"));
            }
        }
    }
}

fn record(seq: u64) -> segment::Record {
    segment::Record {
        arrival: seq,
        boot: "boot".to_owned(),
        stream: "stdout".to_owned(),
        seq,
        at_ms: seq,
        text: "text".to_owned(),
        truncated: false,
        dropped: 0,
    }
}

fn block(lines: Vec<segment::Record>) -> Block {
    Block {
        source: (*printer(1).source).clone(),
        instance: "a".to_owned(),
        lines,
    }
}

#[test]
fn a_write_that_failed_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.journal");
    let mut journal = segment::Journal::create(&path).unwrap();
    journal.append(&[block(vec![record(1)])]).unwrap();
    journal.tear();
    journal.append(&[block(vec![record(2)])]).unwrap();
    let found = segment::recover(&path).unwrap();
    let found: Vec<u64> = found
        .iter()
        .flat_map(|it| it.lines.iter().map(|it| it.seq))
        .collect();
    assert_eq!(found, [1, 2]);
}

#[test]
fn a_line_of_no_time_is_a_line() {
    // Nodes say when; nothing here may depend on it being sane.
    let times = [0, 1, u64::MAX];
    let lines = times.map(|at_ms| segment::Record {
        at_ms,
        ..record(at_ms.max(1))
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.seg");
    let (header, _) = segment::seal(&path, vec![block(lines.to_vec())], 7).unwrap();
    assert_eq!(header.times(), (0, u64::MAX));
    assert_eq!(Segment::open(&path).unwrap().header, header);
}
