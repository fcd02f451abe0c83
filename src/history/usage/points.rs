//! Points of a series, and their roll-up into longer spans. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::Filesystem;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
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
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RangeDoc_{T}"))]
pub struct Range<T = u64> {
    /// Minimum of the readings.
    pub min: T,
    /// Mean of the readings.
    pub avg: T,
    /// Maximum of the readings.
    pub max: T,
}

impl Range {
    fn of(value: u64) -> Self {
        Self { min: value, avg: value, max: value }
    }

    fn plus(self, more: u64) -> Self {
        Self {
            min: self.min.saturating_add(more),
            avg: self.avg.saturating_add(more),
            max: self.max.saturating_add(more),
        }
    }

    fn with(self, weight: u64, other: Self, weight_of_other: u64) -> Self {
        let sum =
            u128::from(self.avg) * u128::from(weight) + u128::from(other.avg) * u128::from(weight_of_other);
        let weights = u128::from(weight) + u128::from(weight_of_other);
        let mean = (sum + weights / 2).checked_div(weights).unwrap_or(0);
        Self {
            min: self.min.min(other.min),
            avg: u64::try_from(mean).unwrap_or(u64::MAX),
            max: self.max.max(other.max),
        }
    }
}

/// Usage at a point in time: a single reading, or the readings of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Point {
    /// Time of the reading, or start of the day.
    #[serde(rename = "at")]
    pub time: Timestamp,
    /// Length of the period in seconds: 0 for a single reading, else 86400.
    #[serde(rename = "span_seconds")]
    #[cfg_attr(test, schemars(with = "i64"))]
    pub span: Span,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Number of readings.
    pub readings: u64,
    /// Bytes that were not free.
    #[serde(rename = "used_bytes")]
    pub used: Range,
    /// Bytes that an unprivileged user could still write.
    #[serde(rename = "available_bytes")]
    pub available: Range,
    /// Total number of inodes, the maximum of the readings; 0 if the filesystem has no fixed number.
    pub inodes: u64,
    /// Free inodes relative to this maximum. On XFS the total decreases as the disk fills, so the readings are
    /// adjusted: used inodes are always `inodes` less this.
    pub inodes_free: Range,
}

impl Point {
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
    pub fn used_percent(&self) -> Range<f64> {
        let Range { min, avg, max } = self.available;
        Range {
            min: self.percent_without(max),
            avg: self.percent_without(avg),
            max: self.percent_without(min),
        }
    }

    #[allow(clippy::cast_precision_loss)] // shown with two decimals at most
    fn percent_without(&self, available: u64) -> f64 {
        match self.capacity_bytes {
            0 => 0.0,
            capacity => capacity.saturating_sub(available) as f64 * 100.0 / capacity as f64,
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.seconds())
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
