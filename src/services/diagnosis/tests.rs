//! Tests of the summary and the advice.

use crate::model::documents::urgency::Urgency;
use crate::model::space::BytesAndInodes;
use crate::policy::thresholds::{Counted, DiskThreshold, Source, ThresholdName};
use crate::services::diagnosis::*;

const GIB: u64 = 1 << 30;

/// Returns a disk of 100 GiB with these parts, in GiB, and typical thresholds.
fn disk(parts: &[(PartKind, u64)]) -> Disk {
    let used: u64 = parts.iter().map(|(_, gib)| gib * GIB).sum();
    let eviction = ThresholdName::Eviction { hard: true, signal: "imagefs.available" };
    let thresholds = [
        (ThresholdName::GcLow, 70.0, Source::Layersweep),
        (ThresholdName::GcHigh, 75.0, Source::Layersweep),
        (ThresholdName::ImageGcHigh, 85.0, Source::Kubelet),
        (eviction, 85.0, Source::Eviction),
    ];
    let thresholds =
        thresholds.map(|(name, percent, source)| DiskThreshold { name, percent, source, of: Counted::Bytes });
    let available = 100 * GIB - used;
    Disk {
        ix: 0.into(),
        filesystem: Filesystem {
            mount: "/var".into(),
            device: "/dev/x".into(),
            fstype: "ext4".into(),
            capacity_bytes: 100 * GIB,
            used_bytes: used,
            available_bytes: available,
            inodes: 1000,
            inodes_free: 700,
        },
        parts: parts.iter().map(|(kind, gib)| Part::new(*kind, gib * GIB)).collect(),
        thresholds: thresholds.into(),
        planned: Planned {
            command: "layersweep gc",
            gc: BytesAndInodes::default(),
            none: "the disk is below its thresholds".into(),
            by_age: None,
            sweep: BytesAndInodes::default(),
            owed_bytes: 0,
        },
        inode_users: Vec::new(),
        is_full_by_design: false,
    }
}

/// Plans to delete all causes that layersweep can delete, as on a disk past its thresholds.
fn plan_all(mut disk: Disk, causes: &[Cause]) -> Disk {
    for cause in causes.iter().filter(|cause| cause.group == CauseGroup::Layersweep) {
        let planned = &mut disk.planned;
        let freed = if cause.kind == CauseKind::Leak { &mut planned.sweep } else { &mut planned.gc };
        freed.bytes += cause.bytes;
        freed.inodes += 10;
    }
    disk
}

/// Returns the sentence about the fullness of a disk.
fn fullness(disk: &Disk) -> String {
    summary(std::slice::from_ref(disk), &[], true, false)[0].clone()
}

fn cause(kind: CauseKind, group: CauseGroup, gib: u64, title: &str) -> Cause {
    Cause {
        kind,
        filesystem: "/var".into(),
        filesystem_ix: 0.into(),
        title: title.into(),
        text: format!("{title}, in full"),
        remedy: String::new(),
        command: None,
        frees_bytes: if group == CauseGroup::Kept { 0 } else { gib * GIB },
        frees_inodes: 10,
        keeps_bytes: 0,
        used_after_percent: None,
        reaches_low: false,
        bytes: gib * GIB,
        id: None,
        path: None,
        group,
    }
}

/// Name, parts in GiB, causes, true if everything could be read, and texts that each sentence contains.
type Case = (&'static str, Vec<(PartKind, u64)>, Vec<Cause>, bool, [&'static [&'static str]; 3]);

#[test]
#[allow(clippy::too_many_lines)] // a table
fn sentences_match_parts_and_causes() {
    use CauseGroup::{Kept, Layersweep, OnlyYouCanJudge};
    use CauseKind as C;
    use PartKind as P;
    let cases: Vec<Case> = vec![
        (
            "healthy",
            vec![(P::Images, 20), (P::Other, 10)],
            vec![],
            true,
            [
                &["/var is 30.0% in use", "below every threshold (next: layersweep's gc at 75%)"],
                &["Largest users: images in use 20.0 GiB (67%) and other files 10.0 GiB (33%)"],
                &["nothing to free"],
            ],
        ),
        (
            "full of unused images",
            vec![(P::Images, 20), (P::ImagesUnused, 60), (P::Other, 10)],
            vec![cause(C::UnusedImages, Layersweep, 60, "images not in use")],
            true,
            [
                &[
                    "90.0% full",
                    "above layersweep's gc at 75%, the kubelet's image GC at 85% and hard eviction",
                ],
                &["Largest users: unused images 60.0 GiB (67%)"],
                &["`layersweep gc` (unused images, 60.0 GiB) frees up to 60.0 GiB", "leaves 30.0%"],
            ],
        ),
        (
            "full of leaks",
            vec![(P::Images, 20), (P::Leaks, 60)],
            vec![
                cause(C::Leak, Layersweep, 40, "leak orphan-dir 1"),
                cause(C::Leak, Layersweep, 20, "leak orphan-dir 2"),
            ],
            true,
            [
                &["80.0% full"],
                &["leaks 60.0 GiB (75%)", "largest single item: leak orphan-dir 1, 40.0 GiB"],
                &["`layersweep sweep --delete` (leaks, 60.0 GiB) frees", "leaves 20.0%"],
            ],
        ),
        (
            "full of dead containers' layers",
            vec![(P::Images, 20), (P::Containers, 65)],
            vec![
                cause(C::DeadContainer, CauseGroup::StoppedContainer, 50, "container batch"),
                cause(C::DeadContainer, CauseGroup::StoppedContainer, 15, "container b"),
            ],
            true,
            [
                &["85.0% full"],
                &["containers' own layers 65.0 GiB (76%)", "container batch, 50.0 GiB"],
                &[
                    "`layersweep gc` cannot free anything; you can free 65.0 GiB by hand: container batch (50.0 GiB), container b (15.0 GiB)",
                ],
            ],
        ),
        (
            "a log that runs away",
            vec![(P::Images, 20), (P::PodLogs, 65), (P::KubeletVolumes, 5)],
            vec![cause(C::Log, OnlyYouCanJudge, 68, "log of pod shop/cart")],
            true,
            [
                &["90.0% full"],
                &[
                    "Most of it is outside the stores, which use only 20.0 GiB (22%)",
                    "logs and volumes of pods 70.0 GiB (78%)",
                    "log of pod shop/cart, 68.0 GiB",
                ],
                &["only you can judge 68.0 GiB: log of pod shop/cart"],
            ],
        ),
        (
            "pinned for no reason",
            vec![(P::Images, 20), (P::ImagesPinned, 56)],
            vec![cause(C::PinnedImage, Kept, 56, "pinned image old:1")],
            true,
            [&["76.0% full"], &["images kept by rules 56.0 GiB"], &["Nothing can be freed safely"]],
        ),
        (
            "out of reach while the runtime is down",
            vec![(P::Images, 20), (P::ImagesOutOfReach, 60), (P::StoreOther, 20)],
            vec![
                Cause {
                    remedy: "start it, then `layersweep gc` deletes them".into(),
                    ..cause(C::ImagesOutOfReach, Kept, 60, "i")
                },
                Cause { path: Some("/store/filler".into()), ..cause(C::Other, Kept, 20, "files") },
            ],
            true,
            [
                &["100.0% full"],
                &["images out of reach 60.0 GiB"],
                &[
                    "60.0 GiB of unused images are out of reach: start it, then `layersweep gc` deletes them; ",
                    "; only you can judge the largest files: /store/filler (20.0 GiB).",
                ],
            ],
        ),
        (
            "mostly outside the stores",
            vec![(P::Images, 5), (P::Directory, 75), (P::Other, 10)],
            vec![cause(C::Other, Kept, 75, "files in /home")],
            true,
            [
                &["90.0% full"],
                &["Most of it is outside the stores, which use only 5.0 GiB (6%)", "other files 85.0 GiB"],
                &["Nothing can be freed safely"],
            ],
        ),
        (
            "logs that do not belong to pods",
            vec![(P::Images, 5), (P::Logs, 75)],
            vec![],
            true,
            [
                &["80.0% full"],
                &["which use only 5.0 GiB (6%). Largest users: other logs 75.0 GiB (94%)"],
                &["Nothing can be freed"],
            ],
        ),
        (
            "nothing to free",
            vec![(P::Images, 88), (P::Other, 2)],
            vec![],
            true,
            [&["90.0% full"], &["images in use 88.0 GiB (98%)"], &["Nothing can be freed safely"]],
        ),
        (
            "not all could be read",
            vec![(P::Images, 40), (P::Other, 40)],
            vec![cause(C::UnusedImages, Layersweep, 1, "images not in use")],
            false,
            [&["80.0% full"], &["images in use"], &["frees up to 1.0 GiB", "figures are lower bounds"]],
        ),
        (
            "images and leaks and more",
            vec![(P::Images, 10), (P::ImagesUnused, 30), (P::Leaks, 20), (P::Logs, 20)],
            vec![
                cause(C::UnusedImages, Layersweep, 30, "images not in use"),
                cause(C::Leak, Layersweep, 20, "leak"),
                cause(C::Leak, Kept, 1, "kept"),
                cause(C::Log, OnlyYouCanJudge, 9, "l1"),
                cause(C::Log, OnlyYouCanJudge, 8, "l2"),
                cause(C::Log, OnlyYouCanJudge, 1, "l3"),
                cause(C::Log, OnlyYouCanJudge, 1, "l4"),
            ],
            true,
            [
                &["80.0% full"],
                &["unused images 30.0 GiB"],
                &["`layersweep gc` (unused images, 30.0 GiB) and `layersweep sweep --delete` (leaks, \
                        20.0 GiB) free up to 50.0 GiB, which leaves 30.0%; only you can judge \
                        19.0 GiB: l1 (9.0 GiB), l2 (8.0 GiB), l3 (1.0 GiB) and 1 more."],
            ],
        ),
    ];
    for (name, parts, causes, complete, expected) in cases {
        let sentences = summary(&[plan_all(disk(&parts), &causes)], &causes, complete, false);
        for (sentence, expected) in sentences.iter().zip(expected) {
            for words in expected {
                assert!(sentence.contains(words), "{name}: {words:?} is not in {sentence:?}");
            }
        }
        assert!(sentences.iter().all(|sentence| sentence.ends_with('.')), "{name}: {sentences:#?}");
    }
}

#[test]
fn inconsistent_or_missing_disk_has_a_sentence() {
    let mut broken = disk(&[(PartKind::Images, 10)]);
    broken.filesystem.available_bytes = 101 * GIB;
    let sentences = summary(&[broken], &[], true, false);
    assert!(sentences[0].contains("inconsistent"), "{sentences:?}");
    assert!(!sentences[2].contains('%'), "{sentences:?}");
    assert!(summary(&[], &[], true, false)[0].contains("No filesystem"));
    let empty = summary(&[disk(&[])], &[], true, false);
    assert!(empty[1].contains("Nothing is stored"), "{empty:?}");
}

#[test]
fn summary_describes_the_fullest_disk_alone() {
    let (calm, mut full) = (disk(&[(PartKind::Images, 10)]), disk(&[(PartKind::Leaks, 90)]));
    full.filesystem.mount = "/data".into();
    let elsewhere = cause(CauseKind::Leak, CauseGroup::Layersweep, 5, "leak elsewhere");
    let here =
        Cause { filesystem_ix: 1.into(), ..cause(CauseKind::Leak, CauseGroup::Layersweep, 80, "leak here") };
    let full = plan_all(full, std::slice::from_ref(&here));
    let sentences = summary(&[calm, full], &[here, elsewhere], true, true);
    assert!(sentences[0].starts_with("/data (the fullest of 2 filesystems"), "{sentences:?}");
    assert!(sentences[1].contains("leak here"), "{sentences:?}");
    assert!(
        sentences[2].starts_with("Once the node runs again, `layersweep sweep --delete`"),
        "{sentences:?}"
    );
    assert!(sentences[2].contains("80.0 GiB") && !sentences[2].contains("85.0"), "{sentences:?}");
}

#[test]
fn shortage_of_inodes_is_reported_before_bytes() {
    let mut disk = disk(&[(PartKind::Images, 30)]);
    let mut calm = disk.clone();
    calm.filesystem.mount = "/calm".into();
    calm.filesystem.available_bytes = 26 * GIB;
    disk.filesystem.inodes = 2128;
    disk.filesystem.inodes_free = 0;
    let sentences = summary(&[calm, disk.clone()], &[], true, false);
    assert!(
        sentences[0].starts_with("/var (the fullest of 2 filesystems) has no free inodes: all 2128 are used"),
        "{sentences:?}"
    );
    assert!(sentences[0].contains("its bytes are 30.0% in use"), "{sentences:?}");
    assert!(sentences[1].starts_with("Largest users of its bytes: "), "{sentences:?}");
    assert!(sentences[2].contains("Nothing can be freed"), "{sentences:?}");
    // A configured threshold is passed, then a higher one is not.
    disk.filesystem.inodes_free = 528;
    disk.thresholds.push(DiskThreshold {
        name: ThresholdName::GcInodesHigh,
        percent: 70.0,
        source: Source::Layersweep,
        of: Counted::Inodes,
    });
    let above = fullness(&disk);
    assert!(above.starts_with("/var has used 75.2% of its 2128 inodes"), "{above}");
    assert!(above.contains(", above layersweep's gc by inodes at 70%."), "{above}");
    disk.thresholds.last_mut().unwrap().percent = 80.0;
    let below = fullness(&disk);
    assert!(below.starts_with("/var is 30.0% in use"), "{below}");
    assert!(below.contains("below every threshold (next: layersweep's gc by inodes at 80%)"), "{below}");
    // A btrfs filesystem has no fixed number of inodes.
    (disk.filesystem.inodes, disk.filesystem.inodes_free) = (0, 0);
    assert!(fullness(&disk).contains("next: layersweep's gc at 75%"), "{}", fullness(&disk));
}

#[test]
fn remedy_names_only_planned_bytes() {
    let causes = [
        cause(CauseKind::UnusedImages, CauseGroup::Layersweep, 20, "images not in use"),
        cause(CauseKind::Leak, CauseGroup::Layersweep, 5, "leak"),
    ];
    let parts = [(PartKind::ImagesUnused, 20), (PartKind::Leaks, 5)];
    let calm = disk(&parts);
    let last = |disk: &Disk| summary(std::slice::from_ref(disk), &causes, true, false)[2].clone();
    assert_eq!(
        last(&calm),
        "`layersweep gc` keeps the 20.0 GiB of unused images for now: the disk is below its thresholds; 5.0 GiB of leaks cannot be deleted yet (see `layersweep sweep`)."
    );
    // The plan deletes only enough to reach the low threshold.
    let mut part = calm.clone();
    part.planned.gc = BytesAndInodes { bytes: 3 * GIB, inodes: 7 };
    assert!(
        last(&part).starts_with(
            "`layersweep gc` (unused images, 3.0 GiB) frees up to 3.0 GiB, which leaves 22.0%; 5.0 GiB of leaks"
        ),
        "{}",
        last(&part)
    );
    part.filesystem.inodes_free = 0;
    assert!(last(&part).contains("frees up to 3.0 GiB and 7 inodes"), "{}", last(&part));
}

#[test]
fn reserved_bytes_explain_the_percentage() {
    let mut disk = disk(&[(PartKind::Images, 20)]);
    assert!(!fullness(&disk).contains("reserved"), "{}", fullness(&disk));
    disk.filesystem.available_bytes -= 65 * GIB;
    let sentence = fullness(&disk);
    assert!(
        sentence.contains("15.0 GiB available, 65.0 GiB reserved for root or not available, above"),
        "{sentence}"
    );
}

#[test]
fn advice_has_urgency_and_safe_steps_first() {
    let causes = [
        cause(CauseKind::Log, CauseGroup::OnlyYouCanJudge, 40, "log"),
        cause(CauseKind::UnusedImages, CauseGroup::Layersweep, 20, "images not in use"),
        cause(CauseKind::Leak, CauseGroup::Layersweep, 5, "leak"),
        cause(CauseKind::Container, CauseGroup::Kept, 5, "container"),
    ];
    let advise = |disk: Disk| advice(std::slice::from_ref(&disk), &causes, false);
    for (gib, urgency, headline) in [
        (30, Urgency::Calm, "/var is 30.0% full, below every threshold"),
        (
            80,
            Urgency::Warning,
            "/var is 80.0% full, past layersweep's gc at 75%; hard eviction (imagefs.available) at 85%",
        ),
        (95, Urgency::Critical, "/var is 95.0% full, past hard eviction (imagefs.available) at 85%"),
        (100, Urgency::Critical, "/var is full: no byte is available"),
    ] {
        let advice = advise(disk(&[(PartKind::Images, gib)]));
        assert_eq!((advice.urgency, advice.headline.as_str()), (urgency, headline));
    }
    // Safe commands come first, sorted by the bytes that they free.
    let advice = advise(plan_all(disk(&[(PartKind::Images, 95)]), &causes));
    let steps = advice.steps.iter();
    let steps: Vec<_> =
        steps.map(|step| (step.command.as_ref().map(PrintedCommand::text), step.bytes / GIB)).collect();
    assert_eq!(
        steps,
        [(Some("layersweep gc"), 20), (Some("layersweep sweep --delete"), 5), (None, 40)],
        "{advice:#?}"
    );
    assert!(advice.steps[0].text.ends_with("frees up to 20.0 GiB, which leaves 75.0%"), "{advice:#?}");
    assert!(advice.steps[1].text.ends_with("which leaves 70.0%"), "{advice:#?}");
    assert!(advice.steps[2].needs_decision && !advice.steps[1].needs_decision);
    assert_eq!(advise(disk(&[(PartKind::Images, 30)])).steps, []);
    let mut bare = disk(&[(PartKind::Images, 90)]);
    bare.thresholds.clear();
    let bare = crate::services::diagnosis::advice(&[bare], &[], false);
    assert_eq!(bare.urgency, Urgency::Warning);
    assert!(bare.headline.ends_with("no thresholds are set here"), "{bare:?}");
    assert!(bare.steps[0].needs_decision && bare.steps[0].text.contains("enlarge"), "{bare:?}");
    assert_eq!(crate::services::diagnosis::advice(&[], &[], false).urgency, Urgency::Unknown);
}

/// Deletion of a case: kind, group, GiB, inodes; expected usage after it, and true if it alone reaches the threshold.
type Deletion = (CauseKind, CauseGroup, u64, u64, Option<f64>, bool);

fn ranked(disk: &Disk, deletions: &[Deletion]) -> Vec<Deletion> {
    let causes = deletions.iter().map(|(kind, group, gib, inodes, ..)| Cause {
        frees_inodes: *inodes,
        ..cause(*kind, *group, *gib, "cause")
    });
    let mut causes: Vec<_> = causes.rev().collect();
    rank(&mut causes, std::slice::from_ref(disk));
    let ranked = causes.iter().map(|cause| {
        let gib = cause.bytes / GIB;
        (cause.kind, cause.group, gib, cause.frees_inodes, cause.used_after_percent, cause.reaches_low)
    });
    ranked.collect()
}

#[test]
fn usage_is_cumulative_until_the_low_threshold() {
    use CauseGroup::{Kept, Layersweep, OnlyYouCanJudge};
    use CauseKind as C;
    let mut disk = disk(&[(PartKind::Images, 90)]);
    disk.thresholds.push(DiskThreshold {
        name: ThresholdName::GcLow,
        percent: 70.0,
        source: Source::Layersweep,
        of: Counted::Bytes,
    });
    for deletions in [
        // layersweep's deletions come first, however small; the third reaches the threshold only with the others.
        vec![
            (C::UnusedImages, Layersweep, 6, 1, Some(84.0), false),
            (C::Leak, Layersweep, 5, 1, Some(79.0), false),
            (C::Log, OnlyYouCanJudge, 12, 0, Some(67.0), false),
            (C::CoreDumps, OnlyYouCanJudge, 3, 1, None, false),
            (C::Container, Kept, 30, 1, None, false),
        ],
        // Each of the first two is enough alone.
        vec![
            (C::File, OnlyYouCanJudge, 25, 1, Some(65.0), true),
            (C::File, OnlyYouCanJudge, 20, 1, None, true),
            (C::File, OnlyYouCanJudge, 19, 1, None, false),
        ],
    ] {
        assert_eq!(ranked(&disk, &deletions), deletions);
    }
    // The first freed bytes fill root's reserve.
    disk.planned.owed_bytes = GIB;
    let owed = [(C::File, OnlyYouCanJudge, 20, 1, Some(71.0), false)];
    assert_eq!(ranked(&disk, &owed), owed);
    disk.planned.owed_bytes = 0;
    // Below the threshold there is nothing to reach.
    disk.filesystem.available_bytes = 40 * GIB;
    let calm = [
        (C::File, OnlyYouCanJudge, 8, 1, Some(52.0), false),
        (C::Log, OnlyYouCanJudge, 2, 0, Some(50.0), false),
    ];
    assert_eq!(ranked(&disk, &calm), calm);
}

#[test]
fn short_inodes_rank_deletions_by_inodes() {
    use CauseGroup::{Layersweep, OnlyYouCanJudge, StoppedContainer};
    use CauseKind as C;
    let mut disk = disk(&[(PartKind::Images, 90)]);
    (disk.filesystem.inodes, disk.filesystem.inodes_free) = (1000, 0);
    let deletions = [
        (C::UnusedImages, Layersweep, 6, 99, Some(90.1), false),
        (C::DeadContainer, StoppedContainer, 1, 500, Some(40.1), false),
        // Truncating a log frees no inode, and one file is nothing against thousands that are missing.
        (C::Log, OnlyYouCanJudge, 30, 0, None, false),
        (C::File, OnlyYouCanJudge, 2, 1, None, false),
    ];
    assert_eq!(ranked(&disk, &deletions), deletions);
    let causes: Vec<_> = deletions
        .iter()
        .map(|(kind, by, gib, inodes, ..)| Cause {
            frees_inodes: *inodes,
            ..cause(*kind, *by, *gib, "cause")
        })
        .collect();
    let advice = advice(&[disk], &causes, false);
    assert!(advice.steps.iter().all(|step| step.bytes != 30 * GIB), "{advice:#?}");
}

#[test]
fn least_risk_comes_first() {
    use CauseGroup::{CanBeMadeAgain, Kept, Layersweep, OnlyYouCanJudge, StoppedContainer};
    let disk = disk(&[(PartKind::Images, 90)]);
    let keeper = Cause {
        keeps_bytes: 50 * GIB,
        frees_bytes: 0,
        ..cause(CauseKind::DeadContainer, StoppedContainer, 0, "keeper of an image")
    };
    let mut causes = vec![
        cause(CauseKind::Container, Kept, 60, "kept"),
        Cause {
            command: Some(PrintedCommand::Shows("podman volume inspect volume".into())),
            ..cause(CauseKind::Volume, OnlyYouCanJudge, 40, "volume")
        },
        cause(CauseKind::DeadContainer, StoppedContainer, 9, "large container"),
        keeper,
        cause(CauseKind::Journal, CanBeMadeAgain, 2, "journal"),
        cause(CauseKind::Leak, Layersweep, 1, "leak"),
    ];
    rank(&mut causes, std::slice::from_ref(&disk));
    let titles: Vec<_> = causes.iter().map(|cause| cause.title.as_str()).collect();
    let expected = ["leak", "journal", "keeper of an image", "large container", "volume", "kept"];
    assert_eq!(titles, expected);
    let advice = advice(&[disk], &causes, false);
    assert!(advice.steps[0].text.starts_with("journal"), "{advice:#?}");
    assert_eq!(advice.steps[3].text, "shows volume, which only you can judge", "{advice:#?}");
}
