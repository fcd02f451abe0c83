//! `doctor --suggest`: ages and thresholds from the node's own past.
//!
//! Each candidate is replayed ([`crate::app::replay`]). The age is the shortest of which the past would have pulled again at
//! most a hundredth of what it pulled; the high threshold is the highest with which no pull would have found the disk full.
//! With a short past every age looks safe, so nothing is suggested below a minimum, and no age above half of the past.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::app::replay::{self, NEEDED_DAYS, ReplayRequest, ReplayRow, Variant};
use crate::config::Config;
use crate::model::text::display::{bytes, span};
use crate::policy::kubelet::IMAGE_GC_PERIOD;
use crate::policy::{Policy, Targets, Thresholds};
use crate::services::error::Error;
use crate::services::observer::Observer;
use crate::services::request::Request;

const DAY: i64 = 86_400;
/// The past that is replayed.
const WINDOW_DAYS: i64 = 90;
const AGES_DAYS: [i64; 5] = [1, 3, 7, 14, 30];
/// High thresholds, the highest first. The kubelet and eviction act above all of them by default.
const HIGHS: [u8; 5] = [80, 75, 70, 65, 60];
/// Distance of the low threshold below the high one.
const DISTANCE: u8 = 5;
/// Inverse of the maximum share of pulls that an age may cause.
const SHARE: u64 = 100;
/// Minimum fall of the mean usage for which an age is worth setting, in percentage points.
const WORTH: f64 = 1.0;

/// Value of a key, for layersweep and for the kubelet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Suggestion {
    /// Lines of a drop-in in `/etc/layersweep/layersweep.toml.d`, below `[images]`.
    pub layersweep: Vec<String>,
    /// Fields of a `KubeletConfiguration`.
    pub kubelet: Vec<String>,
    /// Result of the replay that is the reason.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Suggestions {
    /// Time that the records cover, in seconds.
    pub covered_seconds: u64,
    /// Values with their reasons; empty if there is too little history.
    pub suggestions: Vec<Suggestion>,
    /// Settings for which nothing is suggested, and why.
    pub omitted: Vec<String>,
}

/// Replays the past of this node with other ages and thresholds.
///
/// # Errors
/// When the records or the stores cannot be read, or nothing was recorded.
pub fn suggest(request: &Request, observer: &dyn Observer, config: &Config) -> Result<Suggestions, Error> {
    let now = Timestamp::now();
    let since = now.saturating_sub(SignedDuration::from_secs(WINDOW_DAYS * DAY)).unwrap_or(now);
    let mut replay_request =
        ReplayRequest { request, config, files: &[], since, period: IMAGE_GC_PERIOD, variants: Vec::new() };
    let ages = std::iter::once(None).chain(AGES_DAYS.map(Some));
    replay_request.variants = ages.map(|days| varied(with_age(&config.images, days))).collect();
    let by_age = replay::run(&replay_request, observer)?.rows;
    let Some((without, aged)) = by_age.split_first() else { return Ok(nothing(0, Vec::new())) };
    let covered = without.sums.figures.seconds / without.sums.traces.max(1);
    if let Some(why) = too_little(covered, without.sums.figures.pulled_bytes) {
        return Ok(nothing(covered, vec![why]));
    }
    let mut found = nothing(covered, Vec::new());
    let age = choose_age(covered, without, aged);
    match &age {
        Ok((_, suggestion)) => found.suggestions.push(suggestion.clone()),
        Err(why) => found.omitted.push(why.clone()),
    }
    let policy = with_age(&config.images, age.ok().map(|(days, _)| days));
    replay_request.variants = HIGHS.iter().map(|high| varied(with_high(&policy, *high))).collect();
    let by_threshold = replay::run(&replay_request, observer)?.rows;
    match choose_thresholds(&by_threshold) {
        Ok(suggestion) => found.suggestions.push(suggestion),
        Err(why) => found.omitted.push(why),
    }
    Ok(found)
}

fn nothing(covered_seconds: u64, omitted: Vec<String>) -> Suggestions {
    Suggestions { covered_seconds, suggestions: Vec::new(), omitted }
}

fn varied(policy: Policy) -> Variant {
    Variant { value: Some(String::new()), policy }
}

/// Returns a policy with this maximum age for all images, also those that have rules of their own.
fn with_age(policy: &Policy, days: Option<i64>) -> Policy {
    let mut policy = policy.clone();
    policy.disable_age_pass();
    policy.max_age = days.map(|days| SignedDuration::from_secs(days * DAY));
    policy
}

fn with_high(policy: &Policy, high: u8) -> Policy {
    let used = Some(Thresholds { high, low: high - DISTANCE });
    Policy { targets: Targets { used, ..policy.targets }, ..policy.clone() }
}

fn too_little(covered: u64, pulled_bytes: u64) -> Option<String> {
    let needed = u64::try_from(NEEDED_DAYS * DAY).unwrap_or(0);
    if covered < needed {
        let covered = span(SignedDuration::from_secs(i64::try_from(covered).unwrap_or(0)));
        return Some(format!(
            "ages and thresholds: the records cover {covered}, and {NEEDED_DAYS} days are needed; in a shorter past every \
             age looks safe"
        ));
    }
    (pulled_bytes == 0).then(|| "ages and thresholds: no image came in that time".to_owned())
}

/// Returns the days of the shortest age that pulls little again, or the reason why no age is suggested.
fn choose_age(covered: u64, without: &ReplayRow, aged: &[ReplayRow]) -> Result<(i64, Suggestion), String> {
    let pulled = without.sums.figures.pulled_bytes;
    let candidates = AGES_DAYS.iter().copied().zip(aged);
    let mut candidates =
        candidates.filter(|(days, _)| u64::try_from(2 * days * DAY).is_ok_and(|twice| twice <= covered));
    let acceptable =
        candidates.find(|(_, row)| row.sums.figures.pulled_again_bytes.saturating_mul(SHARE) <= pulled);
    let Some((days, row)) = acceptable else {
        return Err(
            "the maximum age: each one would have pulled more than 1 % of all pulled bytes again".to_owned()
        );
    };
    let saved = without.sums.figures.mean_percent - row.sums.figures.mean_percent;
    if saved < WORTH {
        return Err(format!(
            "the maximum age: with {days}d the mean usage would have been {:.1} % instead of {:.1} %, so it brings little",
            row.sums.figures.mean_percent, without.sums.figures.mean_percent
        ));
    }
    let reason = format!(
        "{days}d: {} images deleted, {} pulled again of {} pulled; mean usage {:.1} % instead of {:.1} %",
        row.sums.deletions,
        bytes(row.sums.figures.pulled_again_bytes),
        bytes(pulled),
        row.sums.figures.mean_percent,
        without.sums.figures.mean_percent
    );
    let suggestion = Suggestion {
        layersweep: vec![format!("max_age = \"{days}d\"")],
        kubelet: vec![format!("imageMaximumGCAge: {}h", days * 24)],
        reason,
    };
    Ok((days, suggestion))
}

/// Returns the highest thresholds with which no pull waits. `rows` are those of [`HIGHS`].
fn choose_thresholds(rows: &[ReplayRow]) -> Result<Suggestion, String> {
    let mut candidates = HIGHS.iter().copied().zip(rows);
    let Some((high, row)) = candidates.find(|(_, row)| row.sums.figures.waited == 0) else {
        let lowest = HIGHS.last().copied().unwrap_or_default();
        return Err(format!(
            "the thresholds: even from {lowest} % on, pulls would have found the disk full: it is too small for this node"
        ));
    };
    let reason = format!(
        "{high} %: no pull found the disk full; peak {:.1} %, {} pulled again",
        row.sums.figures.peak_percent,
        bytes(row.sums.figures.pulled_again_bytes)
    );
    Ok(Suggestion {
        layersweep: vec![format!("high_percent = {high}"), format!("low_percent = {}", high - DISTANCE)],
        // The kubelet begins above layersweep, and frees only a little.
        kubelet: vec![
            format!("imageGCHighThresholdPercent: {}", high + DISTANCE),
            format!("imageGCLowThresholdPercent: {}", high + DISTANCE - 2),
        ],
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::replay::ReplayedPolicy;
    use crate::policy::replay::{ReplayFigures, ReplayedSums};

    fn row(pulled_again_bytes: u64, mean_percent: f64, waited: u64) -> ReplayRow {
        ReplayRow {
            policy: ReplayedPolicy::Exact,
            value: None,
            high_percent: None,
            low_percent: None,
            max_age_seconds: None,
            sums: ReplayedSums {
                figures: ReplayFigures {
                    pulled_bytes: 1000,
                    pulled_again_bytes,
                    mean_percent,
                    waited,
                    ..ReplayFigures::default()
                },
                ..ReplayedSums::default()
            },
        }
    }

    #[test]
    fn shortest_cheap_age_is_suggested() {
        let without = row(0, 70.0, 0);
        let aged = [row(500, 40.0, 0), row(11, 45.0, 0), row(10, 50.0, 0), row(0, 60.0, 0), row(0, 69.5, 0)];
        // A past of 14 days says nothing about ages of more than 7.
        for (covered, expected) in [(90, Some(7)), (14, Some(7)), (13, None)] {
            let covered = covered * 86_400;
            let found = choose_age(covered, &without, &aged).ok().map(|(days, _)| days);
            assert_eq!(found, expected, "{covered}");
        }
        let little = [row(500, 40.0, 0), row(500, 40.0, 0), row(0, 69.5, 0)];
        assert!(choose_age(90 * 86_400, &without, &little).unwrap_err().contains("brings little"));
    }

    #[test]
    fn highest_threshold_without_waiting_is_suggested() {
        let rows = [row(0, 1.0, 3), row(0, 1.0, 0), row(0, 1.0, 0), row(0, 1.0, 0), row(0, 1.0, 0)];
        let found = choose_thresholds(&rows).unwrap();
        assert_eq!(found.layersweep, ["high_percent = 75", "low_percent = 70"]);
        let kubelet = ["imageGCHighThresholdPercent: 80", "imageGCLowThresholdPercent: 78"];
        assert_eq!(found.kubelet, kubelet, "packaging/kubelet/50-layersweep-first.conf");
        assert!(choose_thresholds(&[row(0, 1.0, 1), row(0, 1.0, 1)]).is_err());
    }

    #[test]
    fn short_past_suggests_nothing() {
        for (days, pulled, expected) in [(13, 5, "14 days are needed"), (20, 0, "no image came")] {
            let why = too_little(u64::try_from(days * DAY).unwrap(), pulled);
            assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?}");
        }
        assert_eq!(too_little(20 * 86_400, 5), None);
    }
}
