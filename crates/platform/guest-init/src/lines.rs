//! One stream of logs: from bytes of the workload to records on the link.
//!
//! Logging never blocks the workload: what is read is kept, up to 1 MiB until
//! the node has dealt with it; beyond that lines are dropped and counted.

use std::collections::VecDeque;

use fluffy_guest::Link;
use fluffy_guest::log::{Content, RECORD_HEADER, Record};

use crate::redact::Redactor;

/// What is kept until the node has it.
const KEPT: usize = 1 << 20;

/// A stream of logs.
pub(crate) struct Lines {
    channel: u32,
    most: usize,
    /// The line that is not at its end yet.
    line: Vec<u8>,
    /// Whether that line is longer than is kept of it.
    cut: bool,
    sequence: u64,
    dropped: u64,
    records: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How many of these bytes went over this link.
    sent: usize,
    /// How many of the first record's bytes the node has dealt with.
    taken: usize,
}

impl Lines {
    /// A stream for a channel.
    pub(crate) fn new(channel: u32) -> Self {
        Self {
            channel,
            most: fluffy_guest::log::MAX_LINE,
            line: Vec::new(),
            cut: false,
            sequence: 0,
            dropped: 0,
            records: VecDeque::new(),
            bytes: 0,
            sent: 0,
            taken: 0,
        }
    }

    /// Where lines are cut from now on.
    pub(crate) fn cut_at(&mut self, most: usize) {
        self.most = most;
    }

    /// The sequence of the last line.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the node has dealt with everything.
    pub(crate) fn is_delivered(&self) -> bool {
        self.records.is_empty() && self.dropped == 0
    }

    /// Takes bytes as the workload wrote them.
    pub(crate) fn take(&mut self, bytes: &[u8], redactor: &Redactor) {
        for (number, piece) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if number > 0 {
                self.end_line(redactor);
            }
            let room = (self.most + redactor.longest() + 1).saturating_sub(self.line.len());
            self.cut |= piece.len() > room;
            self.line.extend(piece.iter().take(room));
        }
    }

    /// The stream is over: its last line may lack an end.
    pub(crate) fn finish(&mut self, redactor: &Redactor) {
        if !self.line.is_empty() {
            self.end_line(redactor);
        }
    }

    fn end_line(&mut self, redactor: &Redactor) {
        let line = std::mem::take(&mut self.line);
        let truncated = std::mem::take(&mut self.cut) || line.len() > self.most;
        let mut text = redactor.mask(&line, self.most);
        // Masks may be longer than what they hide.
        text.truncate(self.most);
        self.put(text, truncated);
    }

    /// A line that is whole, and holds no secret.
    pub(crate) fn put(&mut self, text: Vec<u8>, truncated: bool) {
        // While there is a gap, it is said before any line.
        if self.dropped > 0 || self.bytes + text.len() + RECORD_HEADER > KEPT {
            self.dropped += 1;
            return;
        }
        self.keep(Content::Line { text, truncated });
    }

    fn keep(&mut self, content: Content) {
        self.sequence += 1;
        let record = Record {
            sequence: self.sequence,
            time_ms: now_ms(),
            content,
        };
        let bytes = record.to_bytes();
        self.bytes += bytes.len();
        self.records.push_back(bytes);
    }

    /// Sends what there is credit for.
    pub(crate) fn send(&mut self, link: &mut Link) {
        let mut skip = self.sent;
        for record in &self.records {
            if skip >= record.len() {
                skip -= record.len();
                continue;
            }
            let rest = record.get(skip..).unwrap_or_default();
            skip = 0;
            let sent = link.send_data(self.channel, rest);
            self.sent += sent;
            if sent < rest.len() {
                return;
            }
        }
    }

    /// The node has dealt with this many bytes.
    pub(crate) fn taken(&mut self, bytes: usize) {
        self.taken += bytes;
        while let Some(first) = self.records.front().map(Vec::len) {
            if self.taken < first {
                break;
            }
            self.taken -= first;
            self.bytes -= first;
            self.sent = self.sent.saturating_sub(first);
            self.records.pop_front();
        }
        // Not for each line that could be kept: half of the room is free then.
        if self.dropped > 0 && self.bytes <= KEPT / 2 {
            let dropped = std::mem::take(&mut self.dropped);
            self.keep(Content::Gap { dropped });
        }
    }

    /// Another link: what the node has not dealt with goes again.
    pub(crate) fn again(&mut self) {
        self.sent = 0;
        self.taken = 0;
    }
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use fluffy_guest::link::{Event, STDOUT};
    use fluffy_guest::log::Reader;

    use super::*;

    /// What a node would read now, and has dealt with `keep` of it.
    fn read(lines: &mut Lines, deal: bool) -> Vec<Record> {
        let (mut guest, mut node) = (Link::new(), Link::new());
        let mut reader = Reader::default();
        let mut records = Vec::new();
        loop {
            lines.send(&mut guest);
            let bytes = guest.outgoing().to_vec();
            guest.written(bytes.len());
            node.feed(&bytes).unwrap();
            let mut taken = 0;
            while let Some(event) = node.event() {
                if let Event::Data { bytes, .. } = event {
                    reader.feed(&bytes);
                    taken += bytes.len();
                }
            }
            while let Some((record, _)) = reader.record().unwrap() {
                records.push(record);
            }
            if taken == 0 {
                return records;
            }
            if deal {
                lines.taken(taken);
            }
            node.consumed(STDOUT, taken);
            let bytes = node.outgoing().to_vec();
            node.written(bytes.len());
            guest.feed(&bytes).unwrap();
        }
    }

    fn text(record: &Record) -> String {
        match &record.content {
            Content::Line { text, truncated } => {
                format!(
                    "{}{}",
                    String::from_utf8_lossy(text),
                    if *truncated { "…" } else { "" }
                )
            }
            Content::Gap { dropped } => format!("-{dropped}"),
        }
    }

    #[test]
    fn lines_are_put_together_and_cut() {
        let mut lines = Lines::new(STDOUT);
        lines.cut_at(5);
        let nothing = Redactor::default();
        for piece in ["a", "b\n\nlong", "er line", " still\nlast"] {
            lines.take(piece.as_bytes(), &nothing);
        }
        lines.finish(&nothing);
        let read: Vec<String> = read(&mut lines, true).iter().map(text).collect();
        assert_eq!(read, ["ab", "", "longe…", "last"]);
        assert!(lines.is_delivered());
    }

    #[test]
    fn a_secret_in_pieces_is_masked() {
        let secrets: [(&str, &[u8]); 1] = [("KEY", b"hunter2hunter2")];
        let redactor = Redactor::new(secrets.into_iter());
        let mut lines = Lines::new(STDOUT);
        for byte in b"my hunter2hunter2!\n" {
            lines.take(&[*byte], &redactor);
        }
        assert_eq!(text(&read(&mut lines, true)[0]), "my [redacted:KEY]!");
    }

    #[test]
    fn too_much_is_dropped_and_counted() {
        let mut lines = Lines::new(STDOUT);
        let nothing = Redactor::default();
        let line = [vec![b'x'; 9_999], vec![b'\n']].concat();
        for _ in 0..500 {
            lines.take(&line, &nothing);
            assert!(lines.bytes <= KEPT);
        }
        let mut before = read(&mut lines, true);
        let gap = before.iter().position(|one| text(one).starts_with('-'));
        let gap = text(&before.remove(gap.unwrap()));
        assert_eq!(gap, format!("-{}", 500 - before.len()));
        assert!(lines.is_delivered());
        lines.take(b"after\n", &nothing);
        assert_eq!(text(&read(&mut lines, true)[0]), "after");
    }

    #[test]
    fn another_link_hears_again_what_was_not_dealt_with() {
        let mut lines = Lines::new(STDOUT);
        lines.take(b"one\ntwo\n", &Redactor::default());
        assert_eq!(read(&mut lines, false).len(), 2);
        lines.again();
        assert_eq!(read(&mut lines, true).len(), 2);
        lines.again();
        assert_eq!(read(&mut lines, true).len(), 0);
    }
}
