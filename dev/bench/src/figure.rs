//! One measured figure beside its reference and its bar.
//!
//! Ours and the reference run in turns, round by round, in one process, so
//! that whatever else the machine does hits both; the ratio is what counts.

use std::fmt;
use std::time::{Duration, Instant};

/// Rounds of measurement of one thing: seconds per operation, or bytes.
#[derive(Debug, Clone)]
pub(crate) struct Samples {
    sorted: Vec<f64>,
    show: Show,
}

/// How a figure is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// As the time of one operation.
    Time,
    /// As operations per second.
    Rate,
    /// As bytes; the samples are no seconds then.
    Size,
    /// As hundredths; the samples are no seconds then.
    Share,
}

impl Samples {
    /// Samples from seconds per operation or bytes, one for each round.
    pub(crate) fn new(mut values: Vec<f64>, show: Show) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            sorted: values,
            show,
        }
    }

    /// The middle round.
    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The 95th percentile.
    pub(crate) fn p95(&self) -> f64 {
        self.at(0.95)
    }

    /// The value below which this part of the samples lies.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index into a few thousand samples"
    )]
    pub(crate) fn at(&self, part: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        let index = (last as f64 * part).round() as usize;
        self.sorted.get(index).copied().unwrap_or(f64::NAN)
    }

    /// One value as people read it.
    pub(crate) fn show(&self, value: f64) -> String {
        match self.show {
            Show::Time => show_time(value),
            Show::Rate => format!("{}/s", show_count(1.0 / value)),
            Show::Size => show_size(value),
            Show::Share => show_share(value),
        }
    }
}

/// What the specification asks of a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bar {
    /// The median takes less than this many seconds.
    Under(f64),
    /// All but the slowest hundredth take less than this many seconds.
    P99Under(f64),
    /// Not one takes as much as this many seconds.
    AllUnder(f64),
    /// The largest stays below this many bytes.
    BytesUnder(f64),
    /// It is less than this part of one.
    ShareUnder(f64),
    /// The median reaches this many operations per second.
    PerSecond(f64),
    /// We are at least this many times as fast as the reference.
    TimesReference(f64),
    /// No bar; it informs where the slowest hundredth starts, of both.
    P99Inform,
    /// No bar; the figure informs.
    Inform,
}

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) what: String,
    /// Ours.
    pub(crate) ours: Samples,
    /// The reference's name and samples, if there is one.
    pub(crate) reference: Option<(String, Samples)>,
    /// What must hold.
    pub(crate) bar: Bar,
}

impl Figure {
    /// How many times as fast as the reference we are.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (_, reference) = self.reference.as_ref()?;
        let part = self.compared();
        Some(reference.at(part) / self.ours.at(part))
    }

    /// The part of the samples at which both are compared.
    pub(crate) fn compared(&self) -> f64 {
        match self.bar {
            Bar::P99Inform => 0.99,
            _ => 0.5,
        }
    }

    /// The slow end: the 95th percentile, or where the bar is.
    pub(crate) fn slow_end(&self) -> String {
        match self.bar {
            Bar::AllUnder(_) => format!("all {}", self.ours.show(self.ours.at(1.0))),
            Bar::P99Under(_) | Bar::P99Inform => {
                format!("p99 {}", self.ours.show(self.ours.at(0.99)))
            }
            _ => self.ours.show(self.ours.p95()),
        }
    }

    /// Whether anything is asked of it.
    pub(crate) fn has_bar(&self) -> bool {
        !matches!(self.bar, Bar::P99Inform | Bar::Inform)
    }

    /// Whether the bar is met.
    pub(crate) fn holds(&self) -> bool {
        match self.bar {
            Bar::Under(seconds) => self.ours.median() < seconds,
            Bar::P99Under(seconds) => self.ours.at(0.99) < seconds,
            Bar::AllUnder(most) | Bar::BytesUnder(most) | Bar::ShareUnder(most) => {
                self.ours.at(1.0) < most
            }
            Bar::PerSecond(rate) => 1.0 / self.ours.median() >= rate,
            Bar::TimesReference(times) => self.ratio().is_some_and(|ratio| ratio >= times),
            Bar::P99Inform | Bar::Inform => true,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Under(seconds) => write!(f, "under {}", show_time(*seconds)),
            Self::P99Under(seconds) => write!(f, "p99 under {}", show_time(*seconds)),
            Self::AllUnder(seconds) => write!(f, "each under {}", show_time(*seconds)),
            Self::BytesUnder(bytes) => write!(f, "under {}", show_size(*bytes)),
            Self::ShareUnder(share) => write!(f, "under {}", show_share(*share)),
            Self::PerSecond(rate) => write!(f, "at least {}/s", show_count(*rate)),
            Self::TimesReference(times) => write!(f, "at least {times:.2}x the reference"),
            Self::P99Inform | Self::Inform => f.write_str("–"),
        }
    }
}

/// Runs both in turns and returns seconds per operation of each.
pub(crate) fn alternate(
    rounds: usize,
    operations: u32,
    mut ours: impl FnMut(),
    mut reference: impl FnMut(),
) -> (Vec<f64>, Vec<f64>) {
    let mut times = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for _ in 0..rounds {
        times.0.push(per_operation(operations, &mut ours));
        times.1.push(per_operation(operations, &mut reference));
    }
    times
}

/// Seconds per operation of one round.
pub(crate) fn per_operation(operations: u32, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..operations {
        run();
    }
    start.elapsed().as_secs_f64() / f64::from(operations)
}

/// How many calls fill about this much time, so that rounds are neither
/// lost in the timer's grain nor endless.
pub(crate) fn calibrate(target: Duration, mut run: impl FnMut()) -> u32 {
    let once = per_operation(3, &mut run).max(1e-9);
    let calls = (target.as_secs_f64() / once).clamp(1.0, 5_000_000.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped above"
    )]
    let calls = calls as u32;
    calls
}

fn show_time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn show_size(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    match bytes {
        b if b >= KIB * KIB * KIB => format!("{:.2} GiB", b / KIB / KIB / KIB),
        b if b >= KIB * KIB => format!("{:.1} MiB", b / KIB / KIB),
        b => format!("{:.1} KiB", b / KIB),
    }
}

fn show_share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn show_count(count: f64) -> String {
    match count {
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e3 => format!("{:.1} k", c / 1e3),
        c => format!("{c:.0}"),
    }
}
