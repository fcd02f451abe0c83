//! Rows about settings and loops.

use jiff::SignedDuration;
use layersweep::policy::kubelet::{
    ConfigFault, FailureStreak, IMAGE_GC_PERIOD, KubeletEvent, KubeletPolicy, KubeletRecords, Manager,
};

use super::kubelet::{EVERYTHING, Fake, make_space, policy as kubelet_policy, time};
use super::model::{
    self, CONTAINER_GC_PERIOD, EVICTION_PERIOD, IMAGE_DETECT_PERIOD, IMAGE_LIST_PERIOD, PolicyFault,
};
use super::rows::{ConfigRow, Image, LoopRow, PolicyRow, RunResult, SwitchRow};
use super::same;

pub fn image_loop(row: &LoopRow) -> Result<(), String> {
    let expected = &row.expected;
    if let Some(event) = &expected.event {
        same("event", event, &KubeletEvent::ImageGCFailed.as_str().to_owned())?;
    }
    if let Some(runs) = &expected.events_at_run {
        let mut streak = FailureStreak::default();
        let reported = row.runs.iter().map(|run| streak.reports(*run == RunResult::Error));
        let reported: Vec<_> =
            (1..).zip(reported).filter(|(_, reported)| *reported).map(|(run, _)| run).collect();
        same("events_at_run", runs, &reported)?;
    }
    for (what, expected, period) in [
        ("image_gc_ms", expected.image_gc_ms, IMAGE_GC_PERIOD),
        ("image_detect_ms", expected.image_detect_ms, IMAGE_DETECT_PERIOD),
        ("image_list_cache_ms", expected.image_list_cache_ms, IMAGE_LIST_PERIOD),
        ("container_gc_ms", expected.container_gc_ms, CONTAINER_GC_PERIOD),
        ("eviction_check_ms", expected.eviction_check_ms, EVICTION_PERIOD),
    ] {
        if let Some(expected) = expected {
            same(what, &expected, &period.as_millis())?;
        }
    }
    Ok(())
}

pub fn switch(row: &SwitchRow) -> Result<(), String> {
    let policy = kubelet_policy(&row.policy);
    let loops = model::loops(&policy);
    same("loop_started", &row.expected.loop_started, &loops.collection)?;
    if let Some(detection) = row.expected.detection_loop_started {
        same("detection_loop_started", &detection, &loops.detection)?;
    }
    if let Some(works) = row.expected.disk_pressure_cleanup_still_works {
        let image = Image {
            id: "unused".into(),
            size: 1,
            pinned: false,
            runtime_handler: String::new(),
            remove_error: false,
            layers: vec![],
        };
        let mut fake = Fake { images: vec![image], ..Fake::default() };
        let mut manager = Manager { policy, began: time(0), records: KubeletRecords::new() };
        let report = make_space(&mut manager, &mut fake, EVERYTHING, time(10_000_000));
        let worked = report.failure.is_none() && fake.images.is_empty();
        same("disk_pressure_cleanup_still_works", &works, &worked)?;
    }
    Ok(())
}

pub fn policy(row: &PolicyRow) -> Result<(), String> {
    let fault = model::check(&kubelet_policy(&row.policy)).err().map(|fault| match fault {
        PolicyFault::HighOutOfRange => "high_out_of_range",
        PolicyFault::LowOutOfRange => "low_out_of_range",
        PolicyFault::LowAboveHigh => "low_above_high",
    });
    same("error", &row.expected.error.as_deref(), &fault)
}

pub fn config(row: &ConfigRow) -> Result<(), String> {
    let policy = KubeletPolicy {
        high_percent: row.config.high_percent,
        low_percent: row.config.low_percent,
        min_age: SignedDuration::from_nanos(row.config.min_age_ns),
        max_age: SignedDuration::from_nanos(row.config.max_age_ns),
        ..KubeletPolicy::default()
    };
    let faults = policy.check().into_iter().map(|fault| match fault {
        ConfigFault::HighOutOfRange => "high_out_of_range",
        ConfigFault::LowOutOfRange => "low_out_of_range",
        ConfigFault::LowNotBelowHigh => "low_not_below_high",
        ConfigFault::MaxAgeNegative => "max_age_negative",
        ConfigFault::MaxAgeNotAboveMinAge => "max_age_not_above_min_age",
    });
    let gate = model::lacks_gate(&policy, row.config.max_age_gate).then_some("max_age_gate_required");
    let faults: Vec<_> = faults.chain(gate).map(str::to_owned).collect();
    same("errors", &row.expected.errors, &faults)
}
