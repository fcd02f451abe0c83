//! Runs of `gc` with the labels that KEP-6053 gives to the kubelet's own metrics of image garbage collection, so that one
//! dashboard shows both.
//!
//! The draft: <https://github.com/kubernetes/enhancements/pull/6054>. The labels have its values. `operation` is always
//! `garbage_collect`, since `gc` deletes no more than its thresholds and ages demand. `trigger` is always `unknown`, since
//! the records do not contain who started a run.

use super::exposition::Exposition;
use super::families as family;
use crate::history::counters::{Counter, LastRun};
use crate::history::runs::OutcomeKind;

const OPERATION: &str = "garbage_collect";
const TRIGGER: &str = "unknown";
const RESULTS: [&str; 4] = ["success", "partial", "noop", "error"];

pub(super) fn add_attempts(page: &mut Exposition, counters: &[Counter]) {
    let runs = || counters.iter().filter(|counter| counter.name == "runs" && counter.command == "gc");
    for result in RESULTS {
        let of_result = runs().filter(|counter| result_of(&counter.label) == result);
        let number = of_result.fold(0_u64, |sum, counter| sum.saturating_add(counter.value));
        page.add(family::ATTEMPTS, &[OPERATION, TRIGGER, result], number);
    }
}

/// Returns the result for an outcome, or for the label of killed runs.
fn result_of(outcome: &str) -> &'static str {
    match outcome {
        "reached" => "success",
        "not_reached" => "partial",
        "not_needed" => "noop",
        _ => "error",
    }
}

pub(super) fn add_last_attempt(page: &mut Exposition, run: &LastRun) {
    let Some(outcome) = run.outcome else { return };
    let cause = match (run.by_space, run.by_age) {
        (false, true) => "age",
        _ => "threshold",
    };
    let (result, reason) = match outcome {
        // No image was eligible.
        OutcomeKind::NotReached if run.deletions == 0 => ("noop", "insufficient_freed"),
        OutcomeKind::NotReached => ("partial", "insufficient_freed"),
        OutcomeKind::Failed if run.deletions > 0 => ("error", "delete_error"),
        OutcomeKind::Reached | OutcomeKind::NotNeeded => (result_of(outcome.as_str()), cause),
        _ => ("error", "unknown"),
    };
    page.add(family::LAST_ATTEMPT, &[OPERATION, TRIGGER, result, reason], 1);
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::history::runs::Command;

    fn sample(run: &LastRun) -> String {
        let mut page = Exposition::default();
        add_last_attempt(&mut page, run);
        page.text(family::FAMILIES).lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn outcome_has_result_and_reason_of_kubelet() {
        for (outcome, [by_space, by_age], deletions, expected) in [
            (OutcomeKind::NotNeeded, [false, false], 0, r#"result="noop",reason="threshold""#),
            (OutcomeKind::Reached, [true, false], 3, r#"result="success",reason="threshold""#),
            (OutcomeKind::Reached, [true, true], 3, r#"result="success",reason="threshold""#),
            (OutcomeKind::Reached, [false, true], 3, r#"result="success",reason="age""#),
            (OutcomeKind::NotReached, [true, false], 3, r#"result="partial",reason="insufficient_freed""#),
            (OutcomeKind::NotReached, [true, false], 0, r#"result="noop",reason="insufficient_freed""#),
            (OutcomeKind::Failed, [true, false], 1, r#"result="error",reason="delete_error""#),
            (OutcomeKind::Failed, [true, false], 0, r#"result="error",reason="unknown""#),
            (OutcomeKind::Refused, [false, false], 0, r#"result="error",reason="unknown""#),
        ] {
            let run = LastRun {
                command: Command::Gc,
                time: Timestamp::UNIX_EPOCH,
                outcome: Some(outcome),
                usage: Vec::new(),
                seconds: None,
                by_space,
                by_age,
                deletions,
                wanted_bytes: None,
                measured_bytes: None,
            };
            assert!(sample(&run).contains(expected), "{outcome:?}: {}", sample(&run));
            assert_eq!(sample(&LastRun { outcome: None, ..run }), "");
        }
    }

    #[test]
    fn attempts_are_summed_by_result() {
        let counters = [("gc", "failed", 1), ("gc", "killed", 2), ("gc", "reached", 4), ("rm", "reached", 8)]
            .map(|(command, label, value)| Counter {
                name: "runs".into(),
                command: command.into(),
                label: label.into(),
                value,
            });
        let mut page = Exposition::default();
        add_attempts(&mut page, &counters);
        let text = page.text(family::FAMILIES);
        for expected in [
            r#"result="error"} 3"#,
            r#"result="success"} 4"#,
            r#"result="noop"} 0"#,
            r#"result="partial"} 0"#,
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
