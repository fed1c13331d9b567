//! `lcov.info`, line by line.
//!
//! Only `SF` and `DA` records count; functions and branches are not ours to
//! judge by. See [`crate::coverage`].

use super::{Coverage, MAX_LINES, ParseCoverageError, malformed};
use crate::results::workspace_path;

pub(super) fn parse(root: &str, text: &str) -> Result<Coverage, ParseCoverageError> {
    let mut coverage = Coverage::default();
    let mut file: Option<String> = None;
    let mut lines = 0usize;
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            // Files outside the project are none of ours.
            file = workspace_path(root, path);
        } else if line == "end_of_record" {
            file = None;
        } else if let (Some(data), Some(file)) = (line.strip_prefix("DA:"), &file) {
            let mut fields = data.split(',');
            let number = fields.next().and_then(|field| field.trim().parse().ok());
            let hits = fields
                .next()
                .and_then(|field| field.trim().parse::<i64>().ok());
            let (number, hits) = number.zip(hits).ok_or_else(|| malformed(line))?;
            lines += 1;
            if lines > MAX_LINES {
                return Err(ParseCoverageError::TooLarge);
            }
            // Some tools write a negative count for an overflow.
            coverage.line(file, number, hits.unsigned_abs());
        }
    }
    Ok(coverage)
}
