//! Lines that were printed and not yet delivered, on the disk.
//!
//! A folder per instance with segments of records, `u32 length | LogEntry`,
//! oldest first. Bounded per instance and in all: what is over it goes, the
//! oldest segment first, and the loss is counted in the next entry. What was
//! handed out is read again until it is acknowledged, also after the process
//! was killed; a record that was cut off by that is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fluffy_api::node::{MAX_LOG_LINE, v1};
use prost::Message as _;

use crate::home::private;

/// The longest record: a line, ids, numbers.
const MAX_RECORD: usize = MAX_LOG_LINE + 1024;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of one instance, in bytes.
    pub instance: u64,
    /// Of all, in bytes.
    pub node: u64,
    /// Of one segment, in bytes.
    pub segment: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            instance: 64 << 20,
            node: 4 << 30,
            segment: 4 << 20,
        }
    }
}

/// The lines of all instances.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limits: Limits,
    queues: BTreeMap<String, Queue>,
    bytes: u64,
    /// Whose turn it is.
    turn: String,
    dropped: u64,
}

#[derive(Debug, Default)]
struct Queue {
    segments: VecDeque<Segment>,
    file: Option<File>,
    /// Where the oldest undelivered record is in the first segment.
    read: u64,
    /// When the last line was printed that was delivered.
    delivered_ms: u64,
    /// Lines that were lost and not yet counted in an entry.
    lost: u64,
}

#[derive(Debug)]
struct Segment {
    number: u64,
    bytes: u64,
    entries: u64,
    /// When its first line was printed.
    first_ms: u64,
}

/// Entries that were handed out, and how to say that they arrived.
#[derive(Debug, Default)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<v1::LogEntry>,
    instance: String,
    segment: u64,
    until: u64,
    last_ms: u64,
}

impl Spool {
    /// Opens the spool of a folder, made if it is not there.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn open(folder: &Path, limits: Limits) -> io::Result<Self> {
        private(folder)?;
        let mut spool = Self {
            folder: folder.to_owned(),
            limits,
            queues: BTreeMap::new(),
            bytes: 0,
            turn: String::new(),
            dropped: 0,
        };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let queue = Queue::found(&entry.path())?;
            spool.bytes += queue.bytes();
            spool.queues.insert(name, queue);
        }
        Ok(spool)
    }

    /// Adds an entry; what does not fit pushes the oldest out.
    ///
    /// # Errors
    /// It cannot be written; then it is counted as lost.
    pub fn append(&mut self, mut entry: v1::LogEntry) -> io::Result<()> {
        let instance = entry.instance_id.clone();
        if !is_plain(&instance) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let folder = self.folder.join(&instance);
        let queue = self.queues.entry(instance.clone()).or_default();
        let lost = std::mem::take(&mut queue.lost);
        entry.dropped = entry.dropped.saturating_add(lost);
        let mut record = Vec::with_capacity(entry.encoded_len() + 4);
        let length = u32::try_from(entry.encoded_len()).unwrap_or(u32::MAX);
        record.extend(length.to_le_bytes());
        entry
            .encode(&mut record)
            .map_err(|_| io::ErrorKind::InvalidData)?;
        let at_ms = entry.at_ms;
        match queue.write(&folder, (&record, at_ms), self.limits.segment) {
            Ok(()) => self.bytes += record.len() as u64,
            Err(error) => {
                queue.lost = lost.saturating_add(1);
                self.dropped += 1;
                return Err(error);
            }
        }
        self.make_room(&instance);
        Ok(())
    }

    fn make_room(&mut self, instance: &str) {
        while let Some(queue) = self.queues.get_mut(instance)
            && queue.bytes() > self.limits.instance
        {
            if !Self::push_out(
                &self.folder,
                instance,
                queue,
                &mut self.bytes,
                &mut self.dropped,
            ) {
                break;
            }
        }
        while self.bytes > self.limits.node {
            // Who has most gives first.
            let most = self
                .queues
                .iter_mut()
                .max_by_key(|(_, queue)| queue.bytes());
            let Some((name, queue)) = most else { break };
            if !Self::push_out(
                &self.folder,
                name,
                queue,
                &mut self.bytes,
                &mut self.dropped,
            ) {
                break;
            }
        }
    }

    /// Removes the oldest segment; whether there was one to remove.
    fn push_out(
        folder: &Path,
        instance: &str,
        queue: &mut Queue,
        bytes: &mut u64,
        dropped: &mut u64,
    ) -> bool {
        let Some(oldest) = queue.segments.pop_front() else {
            return false;
        };
        if queue.segments.is_empty() {
            queue.file = None;
        }
        queue.read = 0;
        queue.lost = queue.lost.saturating_add(oldest.entries);
        *dropped = dropped.saturating_add(oldest.entries);
        *bytes = bytes.saturating_sub(oldest.bytes);
        let _ = fs::remove_file(path(&folder.join(instance), oldest.number));
        true
    }

    /// Lines that were lost since somebody asked.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Bytes that wait.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the oldest line was printed that waits, at the latest right after
    /// one that was delivered; none if none waits.
    #[must_use]
    pub fn oldest_ms(&self) -> Option<u64> {
        let oldest = self.queues.values().filter_map(|queue| {
            let first = queue.segments.front()?;
            let waits = first.bytes > queue.read || queue.segments.len() > 1;
            waits.then(|| first.first_ms.max(queue.delivered_ms))
        });
        oldest.min()
    }

    /// The oldest undelivered entries of the instance whose turn it is; the
    /// same again until they are [acknowledged](Self::arrived).
    ///
    /// # Errors
    /// They cannot be read.
    pub fn batch(&mut self, most: usize, bytes: usize) -> io::Result<Option<Batch>> {
        let waiting = |(name, queue): (&String, &Queue)| {
            let first = queue.segments.front()?;
            (first.bytes > queue.read || queue.segments.len() > 1).then(|| name.clone())
        };
        let after = self.queues.range(self.turn.clone()..).find_map(waiting);
        let Some(name) = after.or_else(|| self.queues.iter().find_map(waiting)) else {
            return Ok(None);
        };
        let folder = self.folder.join(&name);
        let Some(queue) = self.queues.get_mut(&name) else {
            return Ok(None);
        };
        let mut batch = Batch {
            instance: name,
            ..Batch::default()
        };
        loop {
            let Some(first) = queue.segments.front() else {
                return Ok(None);
            };
            batch.segment = first.number;
            (batch.entries, batch.until) =
                read(&path(&folder, first.number), queue.read, most, bytes)?;
            batch.last_ms = batch.entries.last().map_or(0, |last| last.at_ms);
            if !batch.entries.is_empty() || queue.segments.len() == 1 {
                break;
            }
            // Nothing whole is left in it.
            Self::drop_first(&folder, queue, &mut self.bytes);
        }
        Ok(Some(batch).filter(|batch| !batch.entries.is_empty()))
    }

    fn drop_first(folder: &Path, queue: &mut Queue, bytes: &mut u64) {
        if let Some(done) = queue.segments.pop_front() {
            *bytes = bytes.saturating_sub(done.bytes);
            let _ = fs::remove_file(path(folder, done.number));
        }
        if queue.segments.is_empty() {
            queue.file = None;
        }
        queue.read = 0;
    }

    /// A batch arrived: it is not handed out again.
    pub fn arrived(&mut self, batch: &Batch) {
        // The next one's turn.
        self.turn = format!("{}\0", batch.instance);
        let folder = self.folder.join(&batch.instance);
        let Some(queue) = self.queues.get_mut(&batch.instance) else {
            return;
        };
        let Some(first) = queue.segments.front() else {
            return;
        };
        if first.number != batch.segment {
            return;
        }
        queue.read = batch.until;
        queue.delivered_ms = queue.delivered_ms.max(batch.last_ms);
        if queue.read >= first.bytes {
            Self::drop_first(&folder, queue, &mut self.bytes);
        }
        if queue.segments.is_empty() && queue.lost == 0 {
            self.queues.remove(&batch.instance);
            let _ = fs::remove_dir(&folder);
        }
    }
}

impl Queue {
    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// What an earlier process left.
    fn found(folder: &Path) -> io::Result<Self> {
        let mut numbers: Vec<u64> = fs::read_dir(folder)?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let mut queue = Self::default();
        for number in numbers {
            let path = path(folder, number);
            let (entries, whole) = read(&path, 0, usize::MAX, usize::MAX)?;
            // What was cut off would hide what is written after it.
            OpenOptions::new().write(true).open(&path)?.set_len(whole)?;
            queue.segments.push_back(Segment {
                number,
                bytes: whole,
                entries: entries.len() as u64,
                first_ms: entries.first().map_or(0, |first| first.at_ms),
            });
        }
        Ok(queue)
    }

    fn write(&mut self, folder: &Path, (record, at_ms): (&[u8], u64), most: u64) -> io::Result<()> {
        let full = self.segments.back().is_none_or(|last| last.bytes >= most);
        if full || self.file.is_none() {
            private(folder)?;
            if full {
                let number = self.segments.back().map_or(1, |last| last.number + 1);
                self.segments.push_back(Segment {
                    number,
                    bytes: 0,
                    entries: 0,
                    first_ms: at_ms,
                });
            }
            let number = self.segments.back().map_or(1, |last| last.number);
            let mut options = OpenOptions::new();
            let file = options.create(true).append(true).mode(0o600);
            self.file = Some(file.open(path(folder, number))?);
        }
        let (Some(file), Some(last)) = (&mut self.file, self.segments.back_mut()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Err(error) = file.write_all(record) {
            // Half a record would hide what is written after it.
            let _ = file.set_len(last.bytes);
            return Err(error);
        }
        last.bytes += record.len() as u64;
        last.entries += 1;
        Ok(())
    }
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:012}.log"))
}

/// Ids are names of folders.
fn is_plain(id: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !id.is_empty() && id.len() <= 64 && id.bytes().all(plain)
}

/// Whole records from a place on, and where they end.
fn read(path: &Path, from: u64, most: usize, bytes: usize) -> io::Result<(Vec<v1::LogEntry>, u64)> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut buffer = Vec::new();
    let limit = u64::try_from(bytes).unwrap_or(u64::MAX);
    let limit = limit.saturating_add(MAX_RECORD as u64);
    file.take(limit).read_to_end(&mut buffer)?;
    let (mut entries, mut rest, mut until) = (Vec::new(), buffer.as_slice(), from);
    let mut taken = 0;
    while entries.len() < most && taken < bytes {
        let Some((length, after)) = rest.split_first_chunk::<4>() else {
            break;
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((record, after)) = after
            .split_at_checked(length)
            .filter(|_| length <= MAX_RECORD)
        else {
            break;
        };
        let Ok(entry) = v1::LogEntry::decode(record) else {
            break;
        };
        entries.push(entry);
        rest = after;
        taken += length + 4;
        until += length as u64 + 4;
    }
    Ok((entries, until))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(instance: &str, seq: u64) -> v1::LogEntry {
        v1::LogEntry {
            instance_id: instance.to_owned(),
            seq,
            line: format!("line {seq}"),
            ..Default::default()
        }
    }

    fn drain(spool: &mut Spool) -> Vec<(String, u64, u64)> {
        let mut all = Vec::new();
        while let Some(batch) = spool.batch(3, 1 << 20).unwrap() {
            let shown = |it: &v1::LogEntry| (it.instance_id.clone(), it.seq, it.dropped);
            all.extend(batch.entries.iter().map(shown));
            spool.arrived(&batch);
        }
        all
    }

    #[test]
    fn it_knows_how_old_the_oldest_line_is_that_waits() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        assert_eq!(spool.oldest_ms(), None);
        for (instance, seq, at_ms) in [("a", 1, 500), ("b", 1, 200), ("a", 2, 700), ("b", 2, 900)] {
            let printed = v1::LogEntry {
                at_ms,
                ..entry(instance, seq)
            };
            spool.append(printed).unwrap();
        }
        assert_eq!(spool.oldest_ms(), Some(200));
        // Also after a restart.
        drop(spool);
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        assert_eq!(spool.oldest_ms(), Some(200));
        let mut seen = Vec::new();
        while let Some(batch) = spool.batch(1, 1 << 20).unwrap() {
            spool.arrived(&batch);
            seen.push(spool.oldest_ms());
        }
        // Turn by turn: what is left of one begins after what was delivered.
        assert_eq!(seen, [Some(200), Some(200), Some(200), None]);
    }

    #[test]
    fn what_was_not_acknowledged_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let small = Limits {
            segment: 100,
            ..Limits::default()
        };
        let mut spool = Spool::open(folder.path(), small).unwrap();
        for seq in 1..=20 {
            spool.append(entry("a", seq)).unwrap();
        }
        let first = spool.batch(3, 1 << 20).unwrap().unwrap();
        spool.arrived(&first);
        let second = spool.batch(3, 1 << 20).unwrap().unwrap();
        assert_eq!(second.entries[0].seq, 4);
        drop(spool);
        // A record that was cut off.
        let last = fs::read_dir(folder.path().join("a")).unwrap();
        let last = last.map(|it| it.unwrap().path()).max().unwrap();
        let mut file = OpenOptions::new().append(true).open(last).unwrap();
        file.write_all(&[9, 0, 0, 0, 1]).unwrap();
        let mut spool = Spool::open(folder.path(), small).unwrap();
        spool.append(entry("a", 21)).unwrap();
        let all: Vec<u64> = drain(&mut spool)
            .into_iter()
            .map(|(_, seq, _)| seq)
            .collect();
        // At least once: the first segment was not done.
        let wanted: Vec<u64> = (all[0]..=21).collect();
        assert_eq!(all, wanted);
        assert!(all[0] <= 4);
        assert_eq!(spool.bytes(), 0);
        assert!(!folder.path().join("a").exists(), "nothing is left");
    }

    #[test]
    fn what_is_over_the_limit_goes_and_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let small = Limits {
            instance: 300,
            node: 500,
            segment: 100,
        };
        let mut spool = Spool::open(folder.path(), small).unwrap();
        for seq in 1..=50 {
            spool.append(entry("a", seq)).unwrap();
            spool.append(entry("b", seq)).unwrap();
            assert!(spool.bytes() <= 500 + 100);
        }
        let dropped = spool.take_dropped();
        assert!(dropped > 50, "{dropped}");
        let all = drain(&mut spool);
        // The gaps say how many are missing; the newest lines are all there.
        let told: u64 = all.iter().map(|(_, _, dropped)| dropped).sum();
        assert!(all.contains(&("a".to_owned(), 50, 0)) && all.contains(&("b".to_owned(), 50, 0)));
        assert_eq!(all.len() as u64 + dropped, 100);
        assert!(told <= dropped);
    }

    #[test]
    fn everybody_gets_a_turn_and_no_id_is_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(folder.path(), Limits::default()).unwrap();
        for seq in 1..=9 {
            spool.append(entry("loud", seq)).unwrap();
        }
        spool.append(entry("quiet", 1)).unwrap();
        let turns: Vec<String> = drain(&mut spool).into_iter().map(|(it, _, _)| it).collect();
        assert_eq!(turns[3], "quiet", "{turns:?}");
        assert!(spool.append(entry("../x", 1)).is_err());
        assert!(spool.append(entry("", 1)).is_err());
    }
}
