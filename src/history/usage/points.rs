//! Points of a series, and their roll-up into longer spans. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::Filesystem;

/// Period that a point covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
    /// A single reading.
    Single,
    /// A day in UTC.
    Day,
}

impl Span {
    pub const ALL: [Self; 2] = [Self::Single, Self::Day];

    /// Returns the length in seconds; 0 for a single reading.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Self::Single => 0,
            Self::Day => 86_400,
        }
    }

    /// Returns the span with a length.
    pub(super) fn of_seconds(seconds: i64) -> Self {
        match seconds {
            0 => Self::Single,
            _ => Self::Day,
        }
    }

    /// Returns the start of the span that contains `time`.
    #[must_use]
    pub fn begin(self, time: Timestamp) -> Timestamp {
        match self.seconds() {
            0 => time,
            length => {
                let second = time.as_microsecond().div_euclid(1_000_000);
                Timestamp::from_second(second.div_euclid(length) * length).unwrap_or(Timestamp::MIN)
            }
        }
    }
}

/// Minimum, mean and maximum of the readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RangeDoc"))]
pub struct Range {
    /// Minimum of the readings.
    #[serde(rename = "min")]
    pub low: u64,
    /// Mean of the readings.
    #[serde(rename = "avg")]
    pub mean: u64,
    /// Maximum of the readings.
    #[serde(rename = "max")]
    pub high: u64,
}

impl Range {
    fn of(value: u64) -> Self {
        Self { low: value, mean: value, high: value }
    }

    fn plus(self, more: u64) -> Self {
        Self {
            low: self.low.saturating_add(more),
            mean: self.mean.saturating_add(more),
            high: self.high.saturating_add(more),
        }
    }

    fn with(self, weight: u64, other: Self, weight_of_other: u64) -> Self {
        let sum =
            u128::from(self.mean) * u128::from(weight) + u128::from(other.mean) * u128::from(weight_of_other);
        let weights = u128::from(weight) + u128::from(weight_of_other);
        let mean = (sum + weights / 2).checked_div(weights).unwrap_or(0);
        Self {
            low: self.low.min(other.low),
            mean: u64::try_from(mean).unwrap_or(u64::MAX),
            high: self.high.max(other.high),
        }
    }
}

/// Point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Time of the reading, or start of the span.
    pub time: Timestamp,
    /// Period that the point covers.
    pub span: Span,
    /// Size of the filesystem in bytes.
    pub capacity_bytes: u64,
    /// Number of readings in the point.
    pub readings: u64,
    /// Bytes that are not free.
    pub used: Range,
    /// Bytes that an unprivileged user can still write.
    pub available: Range,
    /// Total number of inodes, the maximum of the readings; 0 on a filesystem without a fixed number.
    pub inodes: u64,
    /// Free inodes relative to this maximum. On XFS the total decreases as the disk fills, so the readings are
    /// adjusted: used inodes are always `inodes` less this.
    pub inodes_free: Range,
}

impl Point {
    /// A single reading.
    #[must_use]
    pub fn reading(time: Timestamp, filesystem: &Filesystem) -> Self {
        Self {
            time,
            span: Span::Single,
            capacity_bytes: filesystem.capacity_bytes,
            readings: 1,
            used: Range::of(filesystem.used_bytes),
            available: Range::of(filesystem.available_bytes),
            inodes: filesystem.inodes,
            inodes_free: Range::of(filesystem.inodes_free),
        }
    }

    /// Merges two points. Time and span are those of `self`.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let (own_weight, other_weight) = (self.readings, other.readings);
        let inodes = self.inodes.max(other.inodes);
        let inodes_free = self.inodes_free.plus(inodes - self.inodes);
        let other_inodes_free = other.inodes_free.plus(inodes - other.inodes);
        Self {
            readings: own_weight.saturating_add(other_weight),
            used: self.used.with(own_weight, other.used, other_weight),
            available: self.available.with(own_weight, other.available, other_weight),
            inodes,
            inodes_free: inodes_free.with(own_weight, other_inodes_free, other_weight),
            ..*self
        }
    }

    /// Returns minimum, mean and maximum of the used percentage, measured as the kubelet does: capacity that is not
    /// available.
    #[must_use]
    pub fn used_percent(&self) -> [f64; 3] {
        #[allow(clippy::cast_precision_loss)] // shown with two decimals at most
        [self.available.high, self.available.mean, self.available.low].map(|available| {
            match self.capacity_bytes {
                0 => 0.0,
                capacity => capacity.saturating_sub(available) as f64 * 100.0 / capacity as f64,
            }
        })
    }
}

/// Rolls up `points` into days, with one point for each day and capacity.
#[must_use]
pub fn roll_up(points: &[Point]) -> Vec<Point> {
    let mut days: BTreeMap<(Timestamp, u64), Point> = BTreeMap::new();
    for point in points {
        let begin = Span::Day.begin(point.time);
        days.entry((begin, point.capacity_bytes)).and_modify(|sum| *sum = sum.with(point)).or_insert(Point {
            time: begin,
            span: Span::Day,
            ..*point
        });
    }
    days.into_values().collect()
}
