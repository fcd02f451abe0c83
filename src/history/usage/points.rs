//! Points of a series, and how many become one. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::model::Filesystem;

/// How long a point stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span {
    /// A single reading (or several within a minute).
    Single,
    /// An hour of UTC.
    Hour,
    /// A day of UTC.
    Day,
}

impl Span {
    pub const ALL: [Self; 3] = [Self::Single, Self::Hour, Self::Day];

    /// Its length; 0 for a single reading.
    #[must_use]
    pub fn seconds(self) -> i64 {
        match self {
            Self::Single => 0,
            Self::Hour => 3600,
            Self::Day => 86_400,
        }
    }

    /// The span of a length.
    pub(super) fn of_seconds(seconds: i64) -> Self {
        match seconds {
            0 => Self::Single,
            3600 => Self::Hour,
            _ => Self::Day,
        }
    }

    /// When the span that holds `at` begins.
    #[must_use]
    pub fn begin(self, at: Timestamp) -> Timestamp {
        match self.seconds() {
            0 => at,
            length => {
                let second = at.as_microsecond().div_euclid(1_000_000);
                Timestamp::from_second(second.div_euclid(length) * length).unwrap_or(Timestamp::MIN)
            }
        }
    }
}

/// The least, the mean and the greatest of the readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "RangeDoc"))]
pub struct Range {
    /// The least.
    #[serde(rename = "min")]
    pub low: u64,
    /// The mean.
    #[serde(rename = "avg")]
    pub mean: u64,
    /// The greatest.
    #[serde(rename = "max")]
    pub high: u64,
}

impl Range {
    fn of(value: u64) -> Self {
        Self { low: value, mean: value, high: value }
    }

    fn plus(self, more: u64) -> Self {
        let plus = |value: u64| value.saturating_add(more);
        Self { low: plus(self.low), mean: plus(self.mean), high: plus(self.high) }
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

/// A point of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// When it was read, or when its span begins.
    pub at: Timestamp,
    /// How long it stands for.
    pub span: Span,
    /// Size of the filesystem in bytes.
    pub capacity_bytes: u64,
    /// How many readings it is made of.
    pub readings: u64,
    /// Bytes that are not free.
    pub used: Range,
    /// Bytes that an unprivileged user can still write.
    pub available: Range,
    /// Inodes in all, the most that were read; 0 where there is no fixed number.
    pub inodes: u64,
    /// Free inodes, of that number: XFS has fewer in all the fuller it is, and what is used of
    /// them is `inodes` less this.
    pub inodes_free: Range,
}

impl Point {
    /// A single reading.
    #[must_use]
    pub fn reading(at: Timestamp, filesystem: &Filesystem) -> Self {
        Self {
            at,
            span: Span::Single,
            capacity_bytes: filesystem.capacity_bytes,
            readings: 1,
            used: Range::of(filesystem.used_bytes),
            available: Range::of(filesystem.available_bytes),
            inodes: filesystem.inodes,
            inodes_free: Range::of(filesystem.inodes_free),
        }
    }

    /// Both in one; time and span are this one's.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let (ours, theirs) = (self.readings, other.readings);
        let inodes = self.inodes.max(other.inodes);
        let free = |point: &Self| point.inodes_free.plus(inodes - point.inodes);
        Self {
            readings: ours.saturating_add(theirs),
            used: self.used.with(ours, other.used, theirs),
            available: self.available.with(ours, other.available, theirs),
            inodes,
            inodes_free: free(self).with(ours, free(other), theirs),
            ..*self
        }
    }

    /// Least, mean and greatest percent of the capacity that was not available (the
    /// kubelet's measure).
    #[must_use]
    pub fn used_percent(&self) -> [f64; 3] {
        #[allow(clippy::cast_precision_loss)] // shown with two decimals at most
        let percent = |available: u64| match self.capacity_bytes {
            0 => 0.0,
            all => all.saturating_sub(available) as f64 * 100.0 / all as f64,
        };
        [self.available.high, self.available.mean, self.available.low].map(percent)
    }
}

/// Points of the longer span `to` made from `points`: one for each span and capacity.
#[must_use]
pub fn roll_up(points: &[Point], to: Span) -> Vec<Point> {
    let mut spans: BTreeMap<(Timestamp, u64), Point> = BTreeMap::new();
    for point in points {
        let begin = to.begin(point.at);
        spans
            .entry((begin, point.capacity_bytes))
            .and_modify(|sum| *sum = sum.with(point))
            .or_insert(Point { at: begin, span: to, ..*point });
    }
    spans.into_values().collect()
}
