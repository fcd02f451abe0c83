use jiff::SignedDuration;

use crate::app::doctor::thresholds::*;
use crate::node::kubelet::{Kubelet, SettingsFile};
use crate::node::thresholds as kubelet_thresholds;
use crate::policy::Policy;
use crate::policy::space::{FreeFloor, Thresholds};

const GIB: u64 = 1 << 30;

fn kubelet(text: &str) -> KubeletThresholds {
    let configs = vec![SettingsFile { path: "/var/lib/kubelet/config.yaml".into(), text: text.into() }];
    let (found, problems) = kubelet_thresholds::read(&Kubelet { configs, ..Kubelet::default() });
    assert_eq!(problems, [], "{text}");
    found
}

fn used(high: u8) -> Targets {
    Targets { used: Some(Thresholds { high, low: high - 5 }), ..Targets::default() }
}

fn floor(gib: u64) -> Targets {
    Targets { free: Some(FreeFloor { start_below: gib * GIB, until: gib * GIB }), ..Targets::default() }
}

fn inodes_used(high: u8) -> Targets {
    Targets { inodes: Some(Thresholds { high, low: high - 5 }), ..used(75) }
}

fn disk() -> Disk {
    Disk {
        mount: "/".into(),
        capacity_bytes: 100 * GIB,
        inodes: 1000,
        has_images: true,
        is_imagefs: true,
        is_nodefs: true,
    }
}

fn found(text: &str, targets: Targets, disk: Disk) -> Vec<Check> {
    found_on(text, Policy { targets, ..Policy::default() }, vec![disk])
}

fn found_on(text: &str, images: Policy, disks: Vec<Disk>) -> Vec<Check> {
    type SettingsCheck = (&'static str, fn(&CheckedSettings<'_>) -> Vec<Check>);
    const CHECKS: [SettingsCheck; 6] = [
        ("kubelet-settings", validity),
        ("kubelet-eviction", dropped),
        ("image-age", age),
        ("kubelet-order", order),
        ("our-thresholds", our_bytes),
        ("our-inodes", our_inodes),
    ];
    let settings = CheckedSettings { kubelet: kubelet(text), images: &images, containers: None, disks };
    let checks: Vec<_> = CHECKS
        .iter()
        .flat_map(|(name, run)| run(&settings).into_iter().map(|check| Check { name, ..check }))
        .collect();
    for check in &checks {
        assert!(check.remedy.is_empty() || check.status > Status::Ok, "{check:?}");
        assert!(check.status < Status::Warning || !check.remedy.is_empty(), "{check:?}");
    }
    checks
}

fn status(checks: &[Check], name: &str) -> Option<Status> {
    checks.iter().find(|check| check.name == name).map(|check| check.status)
}

#[test]
fn image_collection_before_eviction_is_ok() {
    use Status::{Error, Note, Ok, Warning};
    for (text, targets, expected) in [
        // The defaults: the kubelet collects at 85, as soon as usage is above 84. Eviction also begins at 85, and the
        // kubelet checks for eviction more often.
        ("", used(75), Note),
        ("", used(84), Note),
        ("", Targets::default(), Warning),
        ("imageGCHighThresholdPercent: 80\nimageGCLowThresholdPercent: 70", used(75), Ok),
        // Collection begins above 85%, the same usage as eviction.
        ("imageGCHighThresholdPercent: 86", used(75), Error),
        // The settings of the article about image collection.
        ("imageGCHighThresholdPercent: 95", used(75), Error),
        (
            "imageGCHighThresholdPercent: 90\nevictionHard: {imagefs.available: 5%, nodefs.available: 5%}",
            used(75),
            Ok,
        ),
        // The stricter threshold of nodefs applies because the images are on the same filesystem.
        (
            "imageGCHighThresholdPercent: 90\nevictionHard: {imagefs.available: 5%, nodefs.available: 15%}",
            used(75),
            Error,
        ),
        // 20 GiB of 100 GiB.
        ("evictionHard: {imagefs.available: 20Gi}", used(75), Error),
        ("evictionHard: {imagefs.available: 5Gi}", used(75), Ok),
        ("evictionSoft: {imagefs.available: 20%}", used(75), Warning),
        ("imageGCHighThresholdPercent: 100", used(75), Note),
        ("imageGCHighThresholdPercent: 100", used(86), Error),
        ("imageGCHighThresholdPercent: 100", Targets::default(), Error),
        ("imageGCHighThresholdPercent: 100\nimageMaximumGCAge: 24h", used(75), Error),
        ("evictionHard: {imagefs.available: 0%, nodefs.available: 0%}", used(75), Ok),
    ] {
        let checks = found(text, targets, disk());
        assert_eq!(status(&checks, "kubelet-order"), Some(expected), "{text:?} {targets:?}");
    }
    let text =
        "imageGCHighThresholdPercent: 90\nevictionHard: {imagefs.available: 5%, nodefs.available: 15%}";
    let apart = Disk { is_nodefs: false, ..disk() };
    assert_eq!(status(&found(text, used(75), apart), "kubelet-order"), Some(Ok));
}

/// Before eviction of pods, the kubelet deletes every unused image.
#[test]
fn messages_say_what_the_kubelet_does() {
    let message = |text: &str, name: &str| {
        let checks = found(text, used(75), disk());
        checks.into_iter().find(|check| check.name == name).unwrap().message
    };
    let late = message("imageGCHighThresholdPercent: 90", "kubelet-order");
    assert!(late.ends_with(
        "deletes every unused image at once, then evicts pods, before the collection ever starts"
    ));
    for (text, expected) in [
        ("", "image collection from 85% to 80% used, minimum age 2m"),
        ("imageGCHighThresholdPercent: 100", "image collection off (100%), minimum age 2m"),
    ] {
        assert_eq!(message(text, "kubelet-settings"), expected);
    }
}

#[test]
fn gc_before_collection_and_eviction_is_ok() {
    use Status::{Error, Ok, Warning};
    for (text, targets, expected) in [
        ("", used(75), Ok),
        ("", used(83), Ok),
        // The kubelet's threshold of 85 is reached above 84.
        ("", used(84), Warning),
        ("", used(85), Error),
        ("", used(99), Error),
        ("", Targets::default(), Warning),
        ("", floor(20), Ok),
        ("", floor(16), Warning),
        ("", floor(10), Error),
        ("", Targets { used: used(99).used, ..floor(20) }, Ok),
        ("evictionSoft: {imagefs.available: 30%}", used(75), Warning),
        ("imageGCHighThresholdPercent: 70\nimageGCLowThresholdPercent: 60", used(75), Warning),
        ("evictionHard: {imagefs.available: 30Gi}", used(75), Error),
        ("evictionHard: {imagefs.available: 0%}\nimageGCHighThresholdPercent: 100", used(99), Ok),
    ] {
        let checks = found(text, targets, disk());
        assert_eq!(status(&checks, "our-thresholds"), Some(expected), "{text:?} {targets:?}: {checks:?}");
    }
    // 5 percentage points below the lowest threshold.
    for (low, remedy) in [
        (79, "set images.high_percent to 79 or less"),
        // The configuration is refused with a low threshold above the high one.
        (80, "set images.high_percent to 79 or less, and images.low_percent, if it is set, below that"),
    ] {
        let marks = Some(Thresholds { high: 90, low });
        let checks = found("", Targets { used: marks, ..Targets::default() }, disk());
        let check = checks.iter().find(|check| check.name == "our-thresholds").unwrap();
        assert_eq!(check.remedy, remedy);
    }
    // Percentages apply also to a filesystem that does not report its size.
    let sizeless = Disk { capacity_bytes: 0, ..disk() };
    assert_eq!(status(&found("", floor(1), sizeless), "our-thresholds"), Some(Warning));
}

#[test]
fn gc_before_eviction_by_inodes_is_ok() {
    use Status::{Error, Note, Ok, Warning};
    for (text, targets, inodes, expected) in [
        ("", used(75), 1000, Some(Note)),
        ("", used(75), 0, None),
        ("", inodes_used(90), 1000, Some(Ok)),
        ("", inodes_used(95), 1000, Some(Error)),
        ("evictionHard: {nodefs.inodesFree: 200}", inodes_used(90), 1000, Some(Error)),
        ("evictionSoft: {nodefs.inodesFree: 20%}", inodes_used(90), 1000, Some(Warning)),
        ("evictionHard: {imagefs.available: 10%}", inodes_used(90), 1000, None),
    ] {
        let checks = found(text, targets, Disk { inodes, ..disk() });
        assert_eq!(status(&checks, "our-inodes"), expected, "{text:?}");
    }
}

#[test]
fn settings_that_the_kubelet_refuses_are_errors() {
    for (text, expected) in [
        ("", 0),
        ("imageGCHighThresholdPercent: 80", 1),
        ("imageGCLowThresholdPercent: 90", 1),
        ("imageGCHighThresholdPercent: 101", 1),
        ("imageGCLowThresholdPercent: -1", 1),
        ("imageMaximumGCAge: 1m", 1),
        ("imageMaximumGCAge: 2m", 1),
        ("imageMaximumGCAge: 3m", 0),
    ] {
        let checks = found(text, used(75), disk());
        let errors =
            checks.iter().filter(|check| check.name == "kubelet-settings" && check.status == Status::Error);
        assert_eq!(errors.count(), expected, "{text}: {checks:?}");
    }
}

#[test]
fn dropped_default_evictions_are_a_warning() {
    for (text, expected) in [
        ("", Status::Ok),
        ("evictionHard: {memory.available: 1Gi}", Status::Warning),
        ("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true", Status::Ok),
    ] {
        let checks = found(text, used(75), disk());
        assert_eq!(status(&checks, "kubelet-eviction"), Some(expected), "{text}");
    }
}

fn image_age(text: &str, max_days: Option<i64>) -> Option<Check> {
    let max_age = max_days.map(|days| SignedDuration::from_hours(24 * days));
    let policy = Policy { targets: used(75), max_age, ..Policy::default() };
    found_on(text, policy, Vec::new()).into_iter().find(|check| check.name == "image-age")
}

#[test]
fn collection_by_age_is_compared() {
    assert_eq!(image_age("", Some(3)), None);
    for (max_days, words) in
        [(None, "images.max_age is off here"), (Some(3), "come first"), (Some(30), "would keep")]
    {
        let check = image_age("imageMaximumGCAge: 168h", max_days).unwrap();
        assert!(check.status == Status::Note && check.message.contains(words), "{check:?}");
    }
}
