use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::remaining::reason_and_remedy;
use super::*;
use crate::config::Via;
use crate::history::runs::Event;
use crate::model::deletion::outcome::UsageChange;
use crate::model::deletion::plan::{ExpectedPulls, Phase, Problem, Reason, TargetKind, Trigger};
use crate::model::rules::Rule;
use crate::model::space::Started;
use crate::model::{FilesystemIx, OutcomeKind, Owner, SCHEMA_VERSION};
use crate::policy::PolicyKind;
use crate::policy::compare::{ComparedPolicy, Comparison, PredictedRun, Prediction};
use crate::report::json::DeletionDoc;
use crate::report::json::{ComparisonDoc, FreedDoc, GcFilesystemDoc, Header, InodeUseDoc, KeptDoc};
use crate::services::diagnosis::{DeletedBy, HeldImage, RemovableContainer, StoppedHolders, StoppedRemoval};

fn screen(width: Option<usize>) -> Screen {
    Screen { width, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC }
}

fn shown(document: &GcDoc, width: Option<usize>) -> String {
    anstream::adapter::strip_str(&gc(document, &screen(width))).to_string()
}

fn freed(mount: &str, predicted: u64, measured: Option<i64>) -> FreedDoc {
    FreedDoc {
        filesystem: mount.into(),
        predicted_bytes: predicted,
        predicted_inodes: 4015,
        measured_bytes: measured,
        usage_after_percent: Some(68.0),
    }
}

fn deleted(number: u8, predicted: u64, measured: Option<i64>) -> DeletionDoc {
    DeletionDoc {
        kind: TargetKind::Image,
        id: format!("{number:064x}"),
        names: vec![format!("registry.example/a-team-with-a-long-name/app-{number}:1")],
        store: "/s".into(),
        class: None,
        path: None,
        run_id: None,
        command: None,
        filesystem: Some("/var".into()),
        freed: vec![freed("/var", predicted, measured)],
        reason: Reason::Space,
        predicted_bytes: predicted,
        measured_bytes: measured,
        usage_after_percent: Some(70.0 - f64::from(number)),
        deleted_at: None,
        group: None,
        byproduct_bytes: 0,
        differs: false,
        disturbed: false,
        outcome: None,
        confirmed: false,
        error: None,
        never_pulled: false,
    }
}

fn kept(name: &str, rule: Rule) -> KeptDoc {
    KeptDoc {
        kind: TargetKind::Image,
        id: name.repeat(32),
        names: vec![name.into()],
        rule,
        detail: format!("why {name} stays"),
        since_run_began: false,
        frees_bytes: 1 << 20,
        until: None,
        store: "/s".into(),
        explain: format!("layersweep explain {}", crate::model::text::display::short_id(&name.repeat(32))),
        closed_store: None,
    }
}

/// Returns a run that reached its target.
fn document() -> GcDoc {
    GcDoc {
        header: Header {
            schema_version: SCHEMA_VERSION,
            kind: DocumentKind::Gc,
            generated_at: Timestamp::UNIX_EPOCH,
        },
        resumed: 0,
        run_id: "r".into(),
        dry_run: false,
        policy: Some(PolicyKind::Exact),
        via: Via::Cri,
        stores: Vec::new(),
        trigger: Trigger { space: true, age: false },
        usage_before_percent: Some(77.0),
        usage_after_percent: Some(68.0),
        high_percent: Some(74),
        low_percent: Some(69),
        min_free_bytes: None,
        wanted_bytes: 96 << 20,
        predicted_bytes: 100 << 20,
        measured_bytes: Some(99 << 20),
        believed_bytes: None,
        byproduct_bytes: 0,
        filesystems: vec![GcFilesystemDoc {
            usage: UsageChange {
                mount: "/var".into(),
                started: Started { used: true, ..Started::default() },
                usage_before_percent: Some(77.0),
                usage_after_percent: Some(68.0),
                measured_bytes: Some(99 << 20),
            },
            available_before_bytes: Some(230 << 20),
            available_after_bytes: Some(320 << 20),
            wanted_bytes: 96 << 20,
            owed_bytes: 0,
            wanted_inodes: 0,
            inodes_free_before: Some(1000),
            inodes_free_after: Some(1200),
            inodes: Some(2000),
            few_inodes: None,
            missing_bytes: 0,
            missing_inodes: 0,
            predicted_bytes: 100 << 20,
            ended_by_age: false,
            pulls: None,
            outcome: OutcomeKind::Reached,
        }],
        deleted: vec![deleted(1, 50 << 20, Some(50 << 20)), deleted(2, 50 << 20, Some(49 << 20))],
        kept: vec![kept("aa", Rule::NotNeeded), kept("bb", Rule::InUse), kept("cc", Rule::NotNeeded)],
        errors: vec![],
        events: vec![],
        outcome: OutcomeKind::Reached,
        hints: vec![],
        absent: Vec::new(),
        not_in_store: vec![],
        inode_use: vec![],
        stopped: StoppedHolders::default(),
        comparison: vec![],
        warnings: vec![],
    }
}

#[test]
fn run_fits_wide_and_narrow_screens() {
    let mut document = document();
    document.deleted[1].differs = true;
    let expected = "\
/var: 77.00% used before; thresholds: high 74%, low 69%: 96.0 MiB to free

IMAGE                                             ID            REASON  PREDICTED  MEASURED  USED AFTER
registry.example/a-team-with-a-long-name/app-1:1  000000000000  space    50.0 MiB  50.0 MiB      69.00%
registry.example/a-team-with-a-long-name/app-2:1  000000000000  space    50.0 MiB  49.0 MiB      68.00%  !
! predicted and measured differ by more than the filesystem's own fluctuation

KEPT BY RULE  IMAGES  WHICH
not-needed         2  aa, cc
in-use             1  bb

Low threshold reached: 2 images deleted, 99.0 MiB freed (100.0 MiB predicted); 68.00% used now.
";
    assert_eq!(shown(&document, None), expected);
    let narrow = shown(&document, Some(80));
    assert!(
        narrow.lines().filter(|line| line.contains("app-")).all(|line| line.chars().count() <= 80),
        "{narrow}"
    );
    assert!(narrow.contains("app-2:1  space    50.0 MiB  49.0 MiB      68.00%  !"), "{narrow}");
}

#[test]
fn filesystems_have_separate_blocks() {
    let mut document = document();
    let mut other = document.filesystems[0].clone();
    other.usage.mount = "/data".into();
    document.filesystems.push(other);
    document.deleted[1].filesystem = Some("/data".into());
    document.deleted[1].freed = vec![freed("/data", 50 << 20, Some(49 << 20))];
    let text = shown(&document, None);
    let lines: Vec<_> = text.lines().map(|line| line.split([' ', ':']).next().unwrap_or_default()).collect();
    let app = "registry.example/a-team-with-a-long-name/app-";
    let (first, second) = (format!("{app}1"), format!("{app}2"));
    assert_eq!(lines[..8], ["/var", "", "IMAGE", &first, "", "/data", "", "IMAGE"], "{text}");
    assert_eq!(lines[8], second, "{text}");

    // Blobs on one filesystem, snapshots on the other, which has enough space.
    let parts = vec![freed("/var", 20 << 20, Some(20 << 20)), freed("/data", 30 << 20, Some(29 << 20))];
    document.deleted[1].freed = parts;
    document.filesystems[1].usage.started = Started::default();
    let text = shown(&document, None);
    let cells = |size: &str| text.lines().any(|line| line.contains("app-2") && line.contains(size));
    assert!(cells("20.0 MiB  20.0 MiB") && cells("30.0 MiB  29.0 MiB"), "{text}");
    assert!(
        text.contains("no deletion needed, but those for other filesystems free 30.0 MiB here"),
        "{text}"
    );
}

#[test]
fn writes_of_others_make_freed_bytes_unknown() {
    let mut document = document();
    (document.deleted[1].measured_bytes, document.deleted[1].disturbed) = (Some(3 << 20), true);
    let text = shown(&document, None);
    assert!(text.contains("50.0 MiB  others were writing "), "{text}");
    let end = "2 images deleted, freed bytes unknown since others were writing (100.0 MiB predicted); ";
    assert!(text.contains(end), "{text}");
}

#[test]
fn unmeasured_bytes_are_not_zero() {
    let mut document = document();
    document.deleted[1].measured_bytes = None;
    assert!(shown(&document, None).contains("2 images deleted, at least "), "{}", shown(&document, None));
    document.measured_bytes = Some(0);
    assert!(
        shown(&document, None).contains("2 images deleted, freed bytes not measured (100.0 MiB predicted)")
    );
}

#[test]
fn failed_filesystem_cannot_be_judged() {
    let mut document = document();
    document.filesystems[0].usage.started = Started::default();
    assert!(shown(&document, None).contains(": no deletion needed\n"));
    document.filesystems[0].outcome = OutcomeKind::Failed;
    let text = shown(&document, None);
    assert!(text.contains(": cannot be judged\n") && !text.contains("no deletion needed"), "{text}");
}

#[test]
fn images_that_were_never_pulled_have_a_hint() {
    let mut document = document();
    let hint = "built or loaded here and never pulled: perhaps no registry has such an image; \
                protect.not_repullable = \"always\" keeps such images.\n";
    assert!(!shown(&document, None).contains(hint));
    for (position, words) in ["1 image was", "2 images were"].into_iter().enumerate() {
        document.deleted[position].never_pulled = true;
        let text = shown(&document, None);
        assert!(text.contains(&format!("\n{words} {hint}")), "{text}");
    }
}

#[test]
fn cost_of_images_that_were_never_pulled_is_shown() {
    let mut document = document();
    document.kept.push(kept("quay.io/air/app:1", Rule::NotRepullable));
    document.kept.last_mut().unwrap().frees_bytes = 3 << 30;
    for outcome in [OutcomeKind::Reached, OutcomeKind::NotReached] {
        document.outcome = outcome;
        let text = shown(&document, None);
        assert!(text.lines().last().unwrap().starts_with("3.0 GiB stay with 1 image"), "{text}");
        assert_eq!(text.matches("no registry").count(), 1, "{text}");
    }
}

#[test]
fn reason_since_the_run_began_is_shown() {
    let mut document = document();
    let reason = "since the run began: pinned: /e.txt:5: not an image reference";
    for kept in &mut document.kept[..2] {
        kept.detail = reason.into();
        kept.since_run_began = true;
    }
    let text = shown(&document, None);
    assert_eq!(text.matches(&format!("\n2 images: {reason}\n")).count(), 1, "{text}");
}

#[test]
fn narrow_screen_names_fewer_kept_images() {
    let kept = (0..9).map(|number| kept(&format!("registry.example/some-team/app-{number}:1"), Rule::InUse));
    let document = GcDoc { kept: kept.collect(), ..document() };
    let line = |width| {
        let text = shown(&document, width);
        text.lines().find(|line| line.starts_with("in-use ")).unwrap().to_owned()
    };
    let (first, second) = ("registry.example/some-team/app-0:1", "registry.example/some-team/app-1:1");
    assert_eq!(line(Some(80)), format!("in-use             9  {first} and 8 more"));
    assert_eq!(line(Some(120)), format!("in-use             9  {first}, {second} and 7 more"));
    assert!(line(None).ends_with(":1 and 6 more"));
}

#[test]
fn each_reason_that_keeps_images_has_a_remedy() {
    let minutes = |minutes: i64| Some(Timestamp::from_second(minutes * 60).unwrap());
    let kept = vec![
        KeptDoc { frees_bytes: 1, ..kept("aa", Rule::InUse) },
        KeptDoc { frees_bytes: 9, until: minutes(2), ..kept("bb", Rule::MinAge) },
        KeptDoc { frees_bytes: 8, until: minutes(3), ..kept("cc", Rule::MinAge) },
        KeptDoc { frees_bytes: 7, until: minutes(24 * 60), ..kept("dd", Rule::BackingOff) },
        KeptDoc { frees_bytes: 90, ..kept("ee", Rule::NotNeeded) },
    ];
    let text = shown(&GcDoc { outcome: OutcomeKind::NotReached, kept, ..document() }, None);
    let expected = "\
2 images are too young until 00:03:00; --min-age 0s lets gc delete them now
1 image is left alone until 1970-01-02 00:00:00, since a deletion failed; `layersweep explain dddddddddddd` says why it failed
1 image is in use
  aa: why aa stays
";
    assert!(text.ends_with(expected), "{text}");
    for rule in Rule::ALL {
        let text = reason_and_remedy(*rule, &[&self::kept("a", *rule)], Timestamp::UNIX_EPOCH, &screen(None));
        let is_of_image = match rule {
            // The users of images in use have lines of their own, and the last line of a run names the cost of the third.
            Rule::InUse | Rule::NotNeeded | Rule::NotRepullable => false,
            Rule::NotProven => true,
            rule => *rule < Rule::Running,
        };
        assert_eq!(text.is_some(), is_of_image, "{rule}");
    }
}

fn removal(images: Vec<HeldImage>, names: &[&str]) -> StoppedRemoval {
    let containers = names.iter().map(|name| RemovableContainer {
        id: name.repeat(9),
        name: (*name).into(),
        owner: Owner::Podman,
        state: "exited",
        store: "/s".into(),
        path: None,
        own_bytes: 0,
    });
    StoppedRemoval {
        filesystem: "/var".into(),
        command: None,
        containers: containers.collect(),
        images,
        needs_others: false,
        own_bytes: 0,
        own_inodes: 0,
        keeps_bytes: 105 << 20,
        deleted_by: DeletedBy::Gc,
        text: String::new(),
        effect: String::new(),
        filesystem_ix: FilesystemIx::from(0),
    }
}

/// Formats the images in use: `aa`, which the stopped containers `names` keep, and others; the `aa` among these is that of
/// another store.
fn in_use(names: &[&str], others: &[&str]) -> String {
    let image = HeldImage { id: "aa".repeat(32), name: "aa".into(), store: "/s".into() };
    let removals = vec![removal(vec![image.clone()], names), removal(vec![], &["large"])];
    let stopped = StoppedHolders { images: vec![image], keeps_bytes: 105 << 20, removals };
    let others = others.iter().zip(1..);
    let others = others.map(|(name, bytes)| KeptDoc {
        frees_bytes: bytes,
        store: if *name == "aa" { "/other" } else { "/s" }.into(),
        ..kept(name, Rule::InUse)
    });
    let kept = [kept("aa", Rule::InUse)].into_iter().chain(others).collect();
    let text = shown(&GcDoc { outcome: OutcomeKind::NotReached, kept, stopped, ..document() }, None);
    text[text.rfind("in use").unwrap()..].to_owned()
}

#[test]
fn stopped_containers_are_named_before_users() {
    assert_eq!(in_use(&["etl"], &[]), "in use only by stopped containers: etl (105.0 MiB)\n");
    assert_eq!(
        in_use(&["ci", "db", "etl", "web"], &["bb", "cc", "dd", "ee"]),
        "in use, 1 of them only by stopped containers: ci, db, etl, 1 more (105.0 MiB)\n  ee: why ee stays\n  dd: why dd \
         stays\n  cc: why cc stays\n  and 1 more; `layersweep explain bbbbbbbbbbbb` says by which container\n"
    );
    assert_eq!(
        in_use(&["etl"], &["aa"]),
        "in use, 1 of them only by stopped containers: etl (105.0 MiB)\n  aa: why aa stays\n"
    );
}

#[test]
fn disk_without_inodes_is_never_reached() {
    let mut document = document();
    document.outcome = OutcomeKind::NotReached;
    document.kept.clear();
    let filesystem = &mut document.filesystems[0];
    filesystem.usage.started.inodes = true;
    filesystem.outcome = OutcomeKind::NotReached;
    (filesystem.wanted_inodes, filesystem.missing_inodes) = (29_289, 29_289);
    (filesystem.inodes, filesystem.inodes_free_before) = (Some(196_608), Some(203));
    (filesystem.inodes_free_after, filesystem.few_inodes) = (Some(203), Some(99));
    document.inode_use.push(InodeUseDoc {
        mount: "/var".into(),
        inodes: 196_608,
        in_images: 306,
        is_outside: true,
        largest: vec![],
        text: "/var/spool/q: 195,946 files".into(),
    });
    document.deleted.truncate(1);
    let start = "/var: 77.00% used before, 203 of 196,608 inodes free; thresholds: high 74%, low 69%: 96.0 MiB and \
                 29,289 inodes to free; no image is deleted for inodes: all that may be deleted hold only 99\n";
    let text = shown(&document, None);
    assert!(text.starts_with(start), "{text}");
    let table = "REASON  PREDICTED  MEASURED  INODES  USED AFTER\n";
    assert!(text.contains(table) && text.contains(" 50.0 MiB   4,015      69.00%\n"), "{text}");
    let end = "Low threshold reached for bytes only: 1 image deleted, 99.0 MiB freed (100.0 MiB predicted); 68.00% used \
               now. STILL FULL: 203 of 196,608 inodes free; images hold 306.\n/var/spool/q: 195,946 files\n";
    assert!(text.ends_with(end), "{text}");
    document.filesystems[0].few_inodes = Some(0);
    assert!(shown(&document, None).contains("inodes to free; deleting images would free no inodes\n"));
    // Unknown is not full.
    document.filesystems[0].inodes_free_after = None;
    assert!(shown(&document, None).contains(" now. STILL SHORT OF INODES: - of 196,608 inodes free;"));
    document.filesystems[0].inodes_free_after = Some(203);
    document.dry_run = true;
    let plan = "Plan: delete 1 image, free 100.0 MiB, 68.00% used after (reaches the low threshold for bytes only). \
                STILL FULL: 203 of 196,608 inodes free; images hold 306.\n";
    let text = shown(&document, None);
    assert!(text.contains(plan), "{text}");
    document.filesystems[0].inodes_free_after = Some(2000);
    assert!(shown(&document, None).contains(". STILL SHORT OF INODES: 2,000 of 196,608 inodes free; images"));
}

#[test]
fn failures_are_shown_before_the_end() {
    let document = GcDoc {
        outcome: OutcomeKind::NotReached,
        deleted: vec![],
        kept: vec![],
        measured_bytes: Some(-4096),
        errors: vec![Problem {
            hint: Some("try\u{1b}[31m".into()),
            ..Problem::new(Some("f".repeat(64)), Phase::RemoveImage, "no\u{1b}[31m")
        }],
        events: vec![Event { reason: "FreeDiskSpaceFailed".into(), message: "/var: too little".into() }],
        ..document()
    };
    let expected = "\
/var: 77.00% used before; thresholds: high 74%, low 69%: 96.0 MiB to free

failed: remove-image: ffffffffffff: no\\u{1b}[31m
hint: try\\u{1b}[31m
event: FreeDiskSpaceFailed: /var: too little

Low threshold NOT reached: 0 images deleted, -4.0 KiB freed (100.0 MiB predicted); 68.00% used now.
";
    assert_eq!(shown(&document, None), expected);
}

fn prediction(policy: ComparedPolicy, runs: &[(&[&str], u64, u64, f64)], reached: bool) -> Prediction {
    let predicted = runs.iter().map(|(deleted, believed, freed, used)| PredictedRun {
        deleted: deleted.iter().map(|id| id.repeat(32)).collect(),
        still_there: vec![],
        wanted_bytes: 96 << 20,
        believed_bytes: believed << 20,
        freed_bytes: freed << 20,
        usage_after_percent: *used,
        failure: None,
        events: vec![],
    });
    Prediction {
        policy,
        never_pulled: 0,
        pulls: ExpectedPulls { bytes: 30 << 20, ..ExpectedPulls::default() },
        runs: predicted.collect(),
        deleted: runs.iter().map(|run| run.0.len()).sum(),
        believed_bytes: runs.iter().map(|run| run.1 << 20).sum(),
        freed_bytes: runs.iter().map(|run| run.2 << 20).sum(),
        usage_after_percent: runs.last().map_or(77.0, |run| run.3),
        reached,
    }
}

fn compared(kubelet: Prediction) -> GcDoc {
    let idle = prediction(ComparedPolicy::Idle, &[(&["aa"], 100, 100, 68.0)], true);
    let pulls = ExpectedPulls { bytes: 20 << 20, at_least_bytes: Some(19 << 20), is_estimated: true };
    let cheapest = Prediction { policy: ComparedPolicy::Cheapest, pulls, ..idle.clone() };
    let policies = vec![kubelet, idle, cheapest];
    let policies = Comparison { filesystem: FilesystemIx::from(0), usage_before_percent: 77.0, policies };
    GcDoc {
        dry_run: true,
        policy: Some(PolicyKind::Kubelet),
        believed_bytes: Some(200 << 20),
        measured_bytes: None,
        outcome: OutcomeKind::NotReached,
        comparison: vec![ComparisonDoc { mount: "/var".into(), policies }],
        ..document()
    }
}

#[test]
fn policies_are_compared_side_by_side() {
    let document = compared(prediction(
        ComparedPolicy::Kubelet,
        &[(&["bb", "dd"], 98, 30, 75.0), (&["ee"], 70, 20, 73.5)],
        false,
    ));
    let text = shown(&document, Some(80));
    let expected = "\
/var: 77.00% used; thresholds: high 74%, low 69%

                             KUBELET       IDLE   CHEAPEST
runs                               2          1          1
images deleted                     3          1          1
of these never pulled              0          0          0
believed to be freed       168.0 MiB  100.0 MiB  100.0 MiB
actually freed              50.0 MiB  100.0 MiB  100.0 MiB
usage afterwards              73.50%     68.00%     68.00%
low threshold reached             NO        yes        yes
expected pulls              30.0 MiB   30.0 MiB   20.0 MiB
no choice costs less than          -          -   19.0 MiB

The kubelet, run by run
RUN    WANTED  IMAGES  BELIEVED  ACTUALLY FREED  USED AFTER
  1  96.0 MiB       2  98.0 MiB        30.0 MiB      75.00%
  2  96.0 MiB       1  70.0 MiB        20.0 MiB      73.50%
Then it stops: 73.50% is below 74%. It considers the work done, and
starts again as soon as the disk fills up.

The first run by policy kubelet, as layersweep carries it out
keeps 1 of the images above, protected by layersweep's own rules (the first is bb: why bb stays)

IMAGE ";
    assert!(text.starts_with(expected), "{text}\n{expected}");
    assert!(
        text.contains(
            "free 100.0 MiB, believed to be 200.0 MiB, 68.00% used after (does NOT reach the low threshold).\nThe \
             kubelet's algorithm believes that this is enough.\n"
        ),
        "{text}"
    );
}

#[test]
fn repeated_failure_of_the_kubelet_is_shown() {
    let mut kubelet =
        prediction(ComparedPolicy::Kubelet, &[(&["bb"], 98, 30, 75.0), (&[], 0, 0, 75.0)], false);
    kubelet.runs[1].failure = Some("wanted to free 5 bytes, but freed 0".into());
    kubelet.runs[1].events = vec!["FreeDiskSpaceFailed", "ImageGCFailed"];
    let text = shown(&compared(kubelet), None);
    let end = "run 2 fails: wanted to free 5 bytes, but freed 0 (FreeDiskSpaceFailed, ImageGCFailed)
Every run after it fails in the same way.
";
    assert!(text.contains(end), "{text}");
}

#[test]
fn deletion_only_by_age_is_shown_first() {
    fn first(document: &GcDoc) -> String {
        shown(document, None).lines().next().unwrap().to_owned()
    }
    let mut document = GcDoc { dry_run: true, trigger: Trigger { space: false, age: true }, ..document() };
    (document.high_percent, document.low_percent) = (None, None);
    document.filesystems[0].usage.started = Started::default();
    document.deleted[0].reason = Reason::Age;
    assert_eq!(first(&document), "/var: 77.00% used before: no deletion needed for space, only by age");
    document.filesystems[0].ended_by_age = true;
    let enough = "/var: 77.00% used before: no deletion needed for space after those by age";
    assert_eq!(first(&document), enough);
    document.filesystems[0].ended_by_age = false;
    document.filesystems[0].usage.mount = "/data".into();
    assert_eq!(first(&document), "/data: 77.00% used before: no deletion needed", "they free nothing here");
    document.deleted.clear();
    assert_eq!(first(&document), "/data: 77.00% used before: no deletion needed");
}
