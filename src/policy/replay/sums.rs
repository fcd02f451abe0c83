//! Figures of a replay over many traces. A trace is the past of one filesystem of a node.

use serde::Serialize;

use crate::model::text::display::two_decimals;

/// Sums over traces, and how they are distributed. Memory per trace: three numbers.
#[derive(Clone, Debug, Default)]
pub struct ReplaySums {
    sums: ReplayedSums,
    area: f64,
    deletions: Vec<u64>,
    pulled_again_bytes: Vec<u64>,
    /// Hundredths of a percent.
    peaks: Vec<u64>,
}

/// Figures of a policy in one trace, or their sums over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayFigures {
    /// Bytes on the disk freed by the deletions: those of layers that no other image of the node
    /// held at that time.
    pub deleted_bytes: u64,
    /// Bytes transferred by all pulls, first pulls included. Where a trace does not say the compressed size of a layer,
    /// its bytes on the disk.
    pub pulled_bytes: u64,
    /// Pulls of images that the policy had deleted, and that the trace wanted again: the image arrives in it again, or a
    /// container uses it.
    pub pulled_again: u64,
    /// Bytes transferred by these pulls: only of layers that were not on the node.
    /// Compressed, as for `pulled_bytes`.
    pub pulled_again_bytes: u64,
    /// Of these images, those that never came from a registry: perhaps no pull brings them back.
    pub lost: u64,
    /// Pulls that found no room and had to wait for deletions. A run makes room at once if it can, else the next run of
    /// the timer tries again.
    pub waited: u64,
    /// Sum of the times after which these pulls began; 0 if a run made room at once.
    pub waited_seconds: u64,
    /// Highest usage in any trace in percent, two decimals. Used is what an unprivileged user cannot
    /// write to, as the thresholds count.
    pub peak_percent: f64,
    /// Mean usage over time and traces in percent, two decimals.
    pub mean_percent: f64,
    /// Sum of the times that the traces cover.
    pub seconds: u64,
    /// Sum of the times at or above the high threshold, in seconds; 0 without one. A run lowers the usage
    /// at the next period of the timer.
    pub above_high_seconds: u64,
    /// Sum of the times above the low threshold, in seconds; 0 without one. Between the thresholds nothing
    /// is deleted for space.
    pub above_low_seconds: u64,
}

/// Result of one policy in all traces.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayedSums {
    /// Number of traces, one for each filesystem.
    pub traces: u64,
    /// Images deleted by the policy.
    pub deletions: u64,
    #[serde(flatten)]
    pub figures: ReplayFigures,
    /// Distribution of the deletions over the traces.
    pub deletions_by_trace: Quantiles,
    /// Distribution of the bytes that were pulled again.
    pub pulled_again_bytes_by_trace: Quantiles,
    /// Distribution of the highest usage of each trace, in hundredths of a percent.
    pub peak_by_trace: Quantiles,
}

/// Distribution over the traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Quantiles {
    /// Half of the traces are at or below it. With an even number of traces, the lower of the two in
    /// the middle.
    pub p50: u64,
    /// 90 % of the traces are at or below it.
    pub p90: u64,
    /// Largest value.
    pub max: u64,
}

impl Quantiles {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        Self { p50: values[last / 2], p90: values[last * 9 / 10], max: values[last] }
    }
}

impl ReplaySums {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn add(&mut self, deletions: u64, trace: &ReplayFigures) {
        self.sums.traces += 1;
        self.sums.deletions += deletions;
        let sums = &mut self.sums.figures;
        sums.deleted_bytes = sums.deleted_bytes.saturating_add(trace.deleted_bytes);
        sums.pulled_bytes = sums.pulled_bytes.saturating_add(trace.pulled_bytes);
        sums.pulled_again += trace.pulled_again;
        sums.pulled_again_bytes = sums.pulled_again_bytes.saturating_add(trace.pulled_again_bytes);
        sums.lost += trace.lost;
        sums.waited += trace.waited;
        sums.waited_seconds = sums.waited_seconds.saturating_add(trace.waited_seconds);
        sums.peak_percent = sums.peak_percent.max(trace.peak_percent);
        sums.seconds = sums.seconds.saturating_add(trace.seconds);
        sums.above_high_seconds = sums.above_high_seconds.saturating_add(trace.above_high_seconds);
        sums.above_low_seconds = sums.above_low_seconds.saturating_add(trace.above_low_seconds);
        self.area += trace.mean_percent * trace.seconds as f64;
        self.deletions.push(deletions);
        self.pulled_again_bytes.push(trace.pulled_again_bytes);
        self.peaks.push((trace.peak_percent * 100.0) as u64);
    }

    #[must_use]
    #[allow(clippy::cast_precision_loss)] // shown with two decimals
    pub fn finish(self) -> ReplayedSums {
        let figures = self.sums.figures;
        ReplayedSums {
            figures: ReplayFigures {
                peak_percent: two_decimals(figures.peak_percent),
                mean_percent: two_decimals(self.area / figures.seconds.max(1) as f64),
                ..figures
            },
            deletions_by_trace: Quantiles::of(self.deletions),
            pulled_again_bytes_by_trace: Quantiles::of(self.pulled_again_bytes),
            peak_by_trace: Quantiles::of(self.peaks),
            ..self.sums
        }
    }
}
