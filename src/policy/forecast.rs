//! Forecast of the time when a filesystem is full at its present rate.
//!
//! Full means that no byte is available to an unprivileged user (`Avail` of df is 0). Everything that acts earlier
//! (layersweep's thresholds, the kubelet's, eviction) is at a known number of bytes before that:
//! [`Forecast::after`].
//!
//! The rate is Sen's slope: the median of the slopes of all pairs of readings. A single jump (a large pull, a
//! manual prune) hardly changes it. The bytes that layersweep freed are added back: a deletion is a step and not a
//! trend, and "at this rate" means the growth if nothing more is deleted. The deletions of other programs (the
//! kubelet, log rotation, a build that removes its files) remain in the trend.
//!
//! The interval is Sen's, from the variance of Kendall's S. It is valid for independent readings, but readings of
//! usage depend on each other. It is therefore widened by the autocorrelation of the residuals, as Hamed and Rao
//! do. If its slower end is not growth, there is no forecast.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::model::text::display::span;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageReading {
    pub time: Timestamp,
    pub capacity_bytes: u64,
    pub available_bytes: u64,
}

/// Bytes that a deletion of layersweep freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedAt {
    pub time: Timestamp,
    pub bytes: u64,
}

/// Time span of the readings that a rate is computed from, and the limit of its extrapolation.
#[derive(Clone, Copy, Debug)]
struct Window {
    hours: i64,
    ahead_hours: i64,
}

/// A rate is not extrapolated beyond four times its window.
const WINDOWS: [Window; 2] =
    [Window { hours: 6, ahead_hours: 24 }, Window { hours: 7 * 24, ahead_hours: 4 * 7 * 24 }];

/// Minimum number of readings in different parts of a window.
const MIN_READINGS: usize = 6;
/// Number of parts of a window. The last reading of each part counts.
const PARTS: i64 = 120;
/// Quantile for an interval of 95 %.
const Z: f64 = 1.96;
/// Maximum autocorrelation of the residuals; more correlated readings contain no information.
const MAX_AUTOCORRELATION: f64 = 0.98;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub window: SignedDuration,
    /// Bytes per second; above 0.
    pub rate: f64,
    /// Slower end of the 95 % interval of [`Self::rate`]; above 0.
    pub slowest: f64,
    /// Faster end of that interval.
    pub fastest: f64,
    pub available_bytes: u64,
}

/// Time until an expected event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub after: SignedDuration,
    pub earliest: SignedDuration,
    pub latest: SignedDuration,
}

impl Forecast {
    /// Returns the time until this number of bytes is used up.
    #[must_use]
    pub fn after(&self, bytes: u64) -> Expected {
        let duration = |rate: f64| {
            #[allow(clippy::cast_precision_loss)] // an estimate
            SignedDuration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(SignedDuration::MAX)
        };
        let (after, earliest, latest) = (duration(self.rate), duration(self.fastest), duration(self.slowest));
        Expected { after, earliest, latest }
    }

    #[must_use]
    pub fn until_full(&self) -> Expected {
        self.after(self.available_bytes)
    }

    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an estimate above 0
    pub fn bytes_per_hour(&self) -> u64 {
        (self.rate * 3600.0) as u64
    }
}

/// Text for people: `full in 2d4h at the rate of the last 7d (1d19h to 3d)`.
impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expected { after, earliest, latest } = self.until_full();
        let [after, window, earliest, latest] = [after, self.window, earliest, latest].map(span);
        write!(f, "full in {after} at the rate of the last {window} ({earliest} to {latest})")
    }
}

/// Returns the forecast of the window that predicts the fastest growth. `readings` are sorted, the oldest first.
///
/// `None` if the filesystem does not fill, not with certainty, or not within four times a window. Also `None` if
/// the last reading is too old (one hour for the window of six hours), if there are fewer than six readings, or if
/// they span less than half of a window.
#[must_use]
pub fn forecast(
    readings: &[UsageReading],
    freed: &[FreedAt],
    available_bytes: u64,
    now: Timestamp,
) -> Option<Forecast> {
    if available_bytes == 0 {
        return None;
    }
    let forecasts = WINDOWS.iter().filter_map(|window| {
        let forecast = window.rate(readings, freed, available_bytes, now)?;
        (forecast.until_full().after <= SignedDuration::from_hours(window.ahead_hours)).then_some(forecast)
    });
    forecasts.min_by(|a, b| b.rate.total_cmp(&a.rate))
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
        if now.duration_since(newest.time) > length / 6 {
            return None;
        }
        let points = points(&self.thinned(readings, newest), freed);
        let (first, last) = (points.first()?, points.last()?);
        #[allow(clippy::cast_precision_loss)] // hours
        if points.len() < MIN_READINGS || last.0 - first.0 < length.as_secs_f64() / 2.0 {
            return None;
        }
        let [slowest, rate, fastest] = sens_slope(&points)?;
        (slowest > 0.0).then_some(Forecast { window: length, rate, slowest, fastest, available_bytes })
    }

    /// Returns the readings of the window since the filesystem got its present size, one for each part of the
    /// window.
    fn thinned<'a>(self, readings: &'a [UsageReading], newest: &UsageReading) -> Vec<&'a UsageReading> {
        let seconds_per_part = self.hours * 3600 / PARTS;
        let mut thinned: Vec<&UsageReading> = Vec::new();
        let mut last_part = None;
        for reading in readings.iter().rev() {
            let part = newest.time.duration_since(reading.time).as_secs() / seconds_per_part;
            if part >= PARTS || reading.capacity_bytes != newest.capacity_bytes {
                break;
            }
            if last_part.is_none_or(|later| later < part) {
                thinned.push(reading);
                last_part = Some(part);
            }
        }
        thinned.reverse();
        thinned
    }
}

/// Returns points of time and usage: seconds since the first reading, and bytes that would be used if layersweep
/// had not deleted anything since.
fn points(readings: &[&UsageReading], freed: &[FreedAt]) -> Vec<(f64, f64)> {
    let Some(first) = readings.first() else { return Vec::new() };
    let points = readings.iter().map(|reading| {
        let freed = freed
            .iter()
            .filter(|freed| freed.time > first.time && freed.time <= reading.time)
            .map(|freed| freed.bytes)
            .fold(0, u64::saturating_add);
        let used = reading.capacity_bytes.saturating_sub(reading.available_bytes);
        #[allow(clippy::cast_precision_loss)] // an estimate
        let used = used.saturating_add(freed) as f64;
        (reading.time.duration_since(first.time).as_secs_f64(), used)
    });
    points.collect()
}

/// Returns the lower end of the interval, the median and the upper end of the slopes between all points.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers
fn sens_slope(points: &[(f64, f64)]) -> Option<[f64; 3]> {
    let mut slopes: Vec<f64> = points
        .iter()
        .enumerate()
        .flat_map(|(ix, a)| points[ix + 1..].iter().map(move |b| (b.1 - a.1) / (b.0 - a.0)))
        .filter(|slope| slope.is_finite())
        .collect();
    slopes.sort_unstable_by(f64::total_cmp);
    let median = median_of_sorted(&slopes)?;
    let count = points.len() as f64;
    let variance = count * (count - 1.0) * (2.0 * count + 5.0) / 18.0;
    let correlation = autocorrelation(points, median).clamp(0.0, MAX_AUTOCORRELATION);
    let reach = Z * (variance * (1.0 + correlation) / (1.0 - correlation)).sqrt();
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

/// Returns the correlation of the residuals of a line with this slope, each with the next.
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
