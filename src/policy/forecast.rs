//! When a filesystem is full if it goes on filling as it does now.
//!
//! Full means: no byte is available to an unprivileged user (`Avail` of df is 0). What acts before that (our own
//! thresholds, the kubelet's, eviction) lies at a known number of bytes on the way: [`Forecast::after`].
//!
//! The rate is Sen's slope: the median of the slopes of all pairs of readings. A single jump (a large pull, a prune
//! by hand) hardly moves it. What our own deletions freed is added back: a deletion is a step and no trend, and
//! "at this rate" means what comes if nothing more is deleted. What others delete (the kubelet, log rotation, a
//! build that removes its files) stays in the trend.
//!
//! The interval is Sen's, from the variance of Kendall's S. That is for independent readings, and usage is anything
//! but: it is widened by the autocorrelation of the residuals, as Hamed and Rao do. Where the slower end of it is no
//! growth at all, there is no forecast.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::model::display::span;

/// How full a filesystem was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageReading {
    pub at: Timestamp,
    pub capacity_bytes: u64,
    pub available_bytes: u64,
}

/// What a deletion of ours freed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedAt {
    pub at: Timestamp,
    pub bytes: u64,
}

/// The readings that a rate comes from, and how far it may be extrapolated.
#[derive(Clone, Copy, Debug)]
struct Window {
    hours: i64,
    ahead_hours: i64,
}

/// A rate says nothing about more than four times the time it was seen in.
const WINDOWS: [Window; 2] =
    [Window { hours: 6, ahead_hours: 24 }, Window { hours: 7 * 24, ahead_hours: 4 * 7 * 24 }];

/// Fewer readings in different parts of a window are no trend.
const LEAST_READINGS: usize = 6;
/// A window has so many parts; of each, the last reading counts.
const PARTS: i64 = 120;
/// For an interval of 95 %.
const Z: f64 = 1.96;
/// Readings that hang together more than this say nothing at all.
const MOST_CORRELATED: f64 = 0.98;

/// How fast a filesystem fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// The rate is that of this time.
    pub window: SignedDuration,
    /// Bytes a second; above 0.
    pub rate: f64,
    /// The 95 % interval of [`Self::rate`]; above 0.
    pub slowest: f64,
    pub fastest: f64,
    /// Bytes available now.
    pub available_bytes: u64,
}

/// After how long something is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub after: SignedDuration,
    pub earliest: SignedDuration,
    pub latest: SignedDuration,
}

impl Forecast {
    /// Until so many bytes more are taken.
    #[must_use]
    pub fn after(&self, bytes: u64) -> Expected {
        #[allow(clippy::cast_precision_loss)] // an estimate
        let at =
            |rate: f64| SignedDuration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(SignedDuration::MAX);
        Expected { after: at(self.rate), earliest: at(self.fastest), latest: at(self.slowest) }
    }

    /// Until the filesystem is full.
    #[must_use]
    pub fn until_full(&self) -> Expected {
        self.after(self.available_bytes)
    }

    /// Growth in an hour.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an estimate above 0
    pub fn bytes_per_hour(&self) -> u64 {
        (self.rate * 3600.0) as u64
    }
}

/// For people: `full in 2d4h at the rate of the last 7d (1d19h to 3d)`.
impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expected { after, earliest, latest } = self.until_full();
        let [after, window, earliest, latest] = [after, self.window, earliest, latest].map(span);
        write!(f, "full in {after} at the rate of the last {window} ({earliest} to {latest})")
    }
}

/// When the filesystem is full, by the window that says it the soonest. `readings`: the oldest first.
///
/// `None`: it does not fill, not for certain, or not within four times a window; or the last reading is too old
/// (an hour for the window of six hours), there are fewer than six readings, or they span less than half of a
/// window.
#[must_use]
pub fn forecast(
    readings: &[UsageReading],
    freed: &[FreedAt],
    available_bytes: u64,
    now: Timestamp,
) -> Option<Forecast> {
    let of = |window: &Window| {
        let forecast = window.rate(readings, freed, available_bytes, now)?;
        (forecast.until_full().after <= SignedDuration::from_hours(window.ahead_hours)).then_some(forecast)
    };
    let sooner = |a: &Forecast, b: &Forecast| b.rate.total_cmp(&a.rate);
    WINDOWS.iter().filter_map(of).filter(|_| available_bytes > 0).min_by(sooner)
}

impl Window {
    fn rate(
        self,
        readings: &[UsageReading],
        freed: &[FreedAt],
        available_bytes: u64,
        now: Timestamp,
    ) -> Option<Forecast> {
        let length = SignedDuration::from_hours(self.hours);
        let newest = readings.last()?;
        if now.duration_since(newest.at) > length / 6 {
            return None;
        }
        let points = points(&self.thinned(readings, newest), freed);
        let (first, last) = (points.first()?, points.last()?);
        #[allow(clippy::cast_precision_loss)] // hours
        if points.len() < LEAST_READINGS || last.0 - first.0 < length.as_secs_f64() / 2.0 {
            return None;
        }
        let [slowest, rate, fastest] = sens_slope(&points)?;
        (slowest > 0.0).then_some(Forecast { window: length, rate, slowest, fastest, available_bytes })
    }

    /// The readings of the window since the filesystem has its present size, one for each part of it.
    fn thinned<'a>(self, readings: &'a [UsageReading], newest: &UsageReading) -> Vec<&'a UsageReading> {
        let part = self.hours * 3600 / PARTS;
        let number = |reading: &UsageReading| newest.at.duration_since(reading.at).as_secs() / part;
        let mut thinned: Vec<&UsageReading> = Vec::new();
        for reading in readings.iter().rev() {
            if number(reading) >= PARTS || reading.capacity_bytes != newest.capacity_bytes {
                break;
            }
            if thinned.last().is_none_or(|later| number(later) < number(reading)) {
                thinned.push(reading);
            }
        }
        thinned.reverse();
        thinned
    }
}

/// Seconds since the first reading, and bytes that would be taken if we had deleted nothing since.
fn points(readings: &[&UsageReading], freed: &[FreedAt]) -> Vec<(f64, f64)> {
    let Some(first) = readings.first() else { return Vec::new() };
    let point = |reading: &&UsageReading| {
        let ours = freed.iter().filter(|freed| freed.at > first.at && freed.at <= reading.at);
        let added: u64 = ours.map(|freed| freed.bytes).fold(0, u64::saturating_add);
        let taken = reading.capacity_bytes.saturating_sub(reading.available_bytes);
        #[allow(clippy::cast_precision_loss)] // an estimate
        let taken = taken.saturating_add(added) as f64;
        (reading.at.duration_since(first.at).as_secs_f64(), taken)
    };
    readings.iter().map(point).collect()
}

/// The lower end of the interval, the median and the upper end of the slopes between all points.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
fn sens_slope(points: &[(f64, f64)]) -> Option<[f64; 3]> {
    let mut slopes: Vec<f64> = points
        .iter()
        .enumerate()
        .flat_map(|(at, a)| points[at + 1..].iter().map(move |b| (b.1 - a.1) / (b.0 - a.0)))
        .filter(|slope| slope.is_finite())
        .collect();
    slopes.sort_unstable_by(f64::total_cmp);
    let median = median_of_sorted(&slopes)?;
    let count = points.len() as f64;
    let variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    let together = autocorrelation(points, median).clamp(0.0, MOST_CORRELATED);
    let reach = Z * (variance * (1.0 + together) / (1.0 - together)).sqrt();
    let all = slopes.len() as f64;
    if reach >= all {
        return None;
    }
    let low = ((all - reach) / 2.0) as usize;
    let high = (((all + reach) / 2.0).ceil() as usize).min(slopes.len() - 1);
    Some([slopes[low], median, slopes[high]])
}

fn median_of_sorted(numbers: &[f64]) -> Option<f64> {
    let (low, high) = (numbers.get(numbers.len().checked_sub(1)? / 2)?, numbers.get(numbers.len() / 2)?);
    Some(low + (high - low) / 2.0)
}

/// Of the residuals of a line with this slope, each with the next.
#[allow(clippy::cast_precision_loss)] // small numbers
fn autocorrelation(points: &[(f64, f64)], slope: f64) -> f64 {
    let mut residuals: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    let mean = residuals.iter().sum::<f64>() / residuals.len() as f64;
    residuals.iter_mut().for_each(|residual| *residual -= mean);
    let squares: f64 = residuals.iter().map(|residual| residual * residual).sum();
    let products: f64 = residuals.windows(2).map(|pair| pair[0] * pair[1]).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

#[cfg(test)]
mod tests;
