//! How long a provider wants us to wait, however it says so.
//!
//! `retry-after-ms`, then `retry-after` in seconds or as an HTTP date. What
//! cannot be read is no wish. Never decides whether to wait: that is `attempt`.

use std::time::{Duration, SystemTime};

use fluffy_base::Timestamp;

/// Longer wishes are taken as this long.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The wish in a response's headers.
pub(crate) fn retry_after<'a>(
    header: impl Fn(&str) -> Option<&'a str>,
    now: Timestamp,
) -> Option<Duration> {
    let millis = header("retry-after-ms").and_then(|text| number(text, 0.001));
    let wish = millis.or_else(|| {
        let text = header("retry-after")?;
        number(text, 1.0).or_else(|| date(text, now))
    });
    wish.map(|wish| wish.min(LONGEST))
}

fn number(text: &str, unit: f64) -> Option<Duration> {
    let seconds = text.trim().parse::<f64>().ok()? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}

fn date(text: &str, now: Timestamp) -> Option<Duration> {
    let moment = httpdate::parse_http_date(text.trim()).ok()?;
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let micros = i64::try_from(since.as_micros()).ok()?;
    Some(Timestamp::from_micros(micros).since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = &'a [(&'a str, &'a str)];

    fn read(headers: Headers<'_>) -> Option<u128> {
        let now: Timestamp = "2026-11-15T08:00:00Z".parse().unwrap();
        let get = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        retry_after(get, now).map(|wish| wish.as_millis())
    }

    #[test]
    fn seconds_milliseconds_and_dates_are_understood() {
        let table: [(Headers<'_>, Option<u128>); 12] = [
            (&[("retry-after", "3")], Some(3000)),
            (&[("retry-after", " 0.5 ")], Some(500)),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after-ms", "20"), ("retry-after", "9")], Some(20)),
            (&[("retry-after-ms", "x"), ("retry-after", "9")], Some(9000)),
            (
                &[("retry-after", "Sun, 15 Nov 2026 08:00:30 GMT")],
                Some(30_000),
            ),
            (&[("retry-after", "Sun, 15 Nov 2026 07:00:00 GMT")], Some(0)),
            (&[("retry-after", "99999999999")], Some(LONGEST.as_millis())),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "soon")], None),
            (&[], None),
        ];
        for (headers, wanted) in table {
            assert_eq!(read(headers), wanted, "{headers:?}");
        }
    }
}
