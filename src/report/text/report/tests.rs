use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::history::usage::{KnownFilesystem, Point, Range, Span};
use crate::model::PrintedCommand;
use crate::policy::thresholds::{DiskThreshold, Source, ThresholdName};
use crate::report::json::{FilesystemDoc, PointDoc};
use crate::services::diagnosis::{Cause, CauseGroup, CauseKind, Part, PartKind};

fn screen(width: Option<usize>, unicode: bool) -> Screen {
    Screen { width, unicode, truncates: true, notes: true, zone: TimeZone::UTC }
}

fn filesystem(parts: &[u64], capacity: u64) -> ReportFilesystemDoc {
    let used = parts.iter().sum();
    let parts = parts.iter().map(|bytes| Part {
        kind: PartKind::Directory,
        label: format!("part \u{1b}[31m{bytes}"),
        path: Some(format!("/{bytes}")),
        bytes: *bytes,
        measured_bytes: *bytes,
        inodes: 0,
        store: None,
        tool: None,
    });
    fn mark(name: ThresholdName, percent: f64, source: Source) -> DiskThreshold {
        DiskThreshold { name, percent, source, of: Counted::Bytes }
    }
    ReportFilesystemDoc {
        filesystem: FilesystemDoc {
            mount: "/var".into(),
            device: "/dev/x".into(),
            fstype: "xfs".into(),
            capacity_bytes: capacity,
            used_bytes: used,
            available_bytes: capacity.saturating_sub(used),
            reserved_bytes: 0,
            used_percent: None,
            inodes: 0,
            inodes_free: 0,
        },
        forecast: None,
        scarce: Counted::Bytes,
        saved_bytes: 0,
        parts: parts.collect(),
        thresholds: vec![
            mark(ThresholdName::GcLow, 10.0, Source::Layersweep),
            mark(ThresholdName::GcHigh, 50.0, Source::Layersweep),
            mark(ThresholdName::ImageGcHigh, 75.0, Source::Kubelet),
            mark(ThresholdName::Eviction { hard: true, signal: "nodefs.available" }, 75.0, Source::Eviction),
        ],
    }
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn bar_shows_parts_and_thresholds_to_scale() {
    let disk = filesystem(&[25, 25, 0, 1], 100);
    let drawn = plain(&bar(&disk, &screen(Some(104), false), 104, 7));
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(lines[0], format!("  {}{}d{}", "a".repeat(25), "b".repeat(25), ".".repeat(49)));
    assert_eq!(lines[1].find('^'), Some(52));
    assert_eq!(lines[1].matches('^').count(), 2, "low thresholds are not drawn, equal ones once");
    assert_eq!(lines[2], "  ^ 50% gc; 75% kubelet's image GC, hard eviction (nodefs.available)");
    for width in [40, 80, 200] {
        for unicode in [true, false] {
            let screen = screen(Some(width), unicode);
            let drawn = plain(&(bar(&disk, &screen, width, 3) + &legend(&disk, &screen, width, 3)));
            assert!(drawn.lines().all(|line| line.width() <= width), "{drawn}");
            assert!(!drawn.contains('\u{1b}') && drawn.is_ascii() != unicode, "{drawn}");
            assert!(drawn.contains("in 2 smaller parts"), "{drawn}");
        }
    }
    // Without colours, each row has its own character, and parts without a row do not use these.
    let many = filesystem(&[10, 1, 9, 11, 2, 12, 13, 14, 15], 100);
    let drawn = plain(&bar(&many, &screen(Some(104), true), 104, 7));
    let signs: std::collections::BTreeSet<char> = drawn.lines().next().unwrap().trim().chars().collect();
    let rows = plain(&legend(&many, &screen(Some(104), true), 104, 7));
    let in_legend: Vec<char> =
        rows.lines().skip(1).filter_map(|row| row.trim_start().chars().next()).collect();
    assert_eq!(in_legend.iter().collect::<std::collections::BTreeSet<_>>().len(), in_legend.len(), "{rows}");
    assert!(signs.iter().all(|sign| in_legend.contains(sign) || *sign == '·'), "{drawn}{rows}");
    // Two stores have images in use.
    let mut stores = filesystem(&[10, 20, 5], 100);
    for (part, path) in stores.parts.iter_mut().zip(["/a", "/b", "/b"]) {
        part.label = if part.bytes == 5 { "unused" } else { "in use" }.into();
        (part.path, part.store) = (Some(path.into()), Some(path.into()));
    }
    let rows = plain(&legend(&stores, &screen(Some(80), true), 80, 7));
    assert!(["in use (/a)\n", "in use (/b)\n", "unused\n"].iter().all(|row| rows.contains(row)), "{rows}");
    // Parts larger than the capacity, and no parts.
    for (parts, capacity) in [(vec![200, 300], 100), (vec![], 0), (vec![u64::MAX], u64::MAX)] {
        let drawn = plain(&bar(&filesystem(&parts, capacity), &screen(Some(80), true), 80, 7));
        assert_eq!(drawn.lines().next().unwrap().width(), 78);
    }
}

#[test]
fn sparkline_shows_the_highest_of_each_column() {
    fn point(time: &str, used_percent: f64, span: Span) -> PointDoc {
        let none = Range { min: 0, avg: 0, max: 0 };
        PointDoc {
            reading: Point {
                time: time.parse().unwrap(),
                span,
                capacity_bytes: 100,
                readings: 1,
                used: none,
                available: none,
                inodes: 0,
                inodes_free: none,
            },
            used_percent: Range { min: used_percent, avg: used_percent, max: used_percent },
        }
    }
    let series = SeriesDoc {
        filesystem: KnownFilesystem {
            id: 0,
            mount: "/var".into(),
            fstype: "xfs".into(),
            device: "/dev/x".into(),
            capacity_bytes: 100,
            first_seen: Timestamp::UNIX_EPOCH,
            last_seen: Timestamp::UNIX_EPOCH,
        },
        points: vec![
            point("2026-11-01T00:00:00Z", 5.0, Span::Single),
            point("2026-11-11T00:00:00Z", 100.0, Span::Single),
            point("2026-11-21T00:00:00Z", 55.0, Span::Single),
        ],
    };
    let drawn = sparkline(&series, &[], Some(91.04), &screen(Some(44), true), 44);
    assert!(drawn.lines().next().unwrap().ends_with(", now 91.0%"), "{drawn}");
    let line = drawn.lines().nth(1).unwrap();
    assert_eq!(line.chars().filter(|c| *c != ' ').collect::<String>(), "▁█▅");
    assert_eq!(line.width(), 42);
    let ascii = sparkline(&series, &[], Some(91.04), &screen(Some(44), false), 44);
    let digits = ascii.lines().nth(1).unwrap();
    assert_eq!(digits.chars().filter(|c| *c != ' ').collect::<String>(), "195");
    let single = SeriesDoc { points: series.points[..1].to_vec(), ..series.clone() };
    let drawn = sparkline(&single, &[], None, &screen(None, true), 80);
    assert!(drawn.starts_with("  Used at 2026-11-01 00:00: 5.0%\n") && drawn.contains('▁'), "{drawn}");
    let none = SeriesDoc { points: Vec::new(), ..series };
    assert_eq!(sparkline(&none, &[], None, &screen(None, true), 80), "");
}

#[test]
fn legend_explains_percentages_and_reserve() {
    let mut disk = filesystem(&[25, 25], 100);
    let drawn = plain(&legend(&disk, &screen(Some(80), true), 80, 3));
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(lines[0], "               of used");
    assert!(lines[1].contains("  50%  part"), "{drawn}");
    assert!(!drawn.contains("reserved"), "{drawn}");
    disk.filesystem.reserved_bytes = 10;
    let drawn = plain(&legend(&disk, &screen(Some(80), true), 80, 3));
    assert_eq!(drawn.lines().last(), Some("  ╌       10 B       reserved for root, or not available"));
    assert!(plain(&bar(&disk, &screen(Some(80), true), 80, 7)).contains('╌'));
}

#[test]
fn evidence_is_wrapped_and_path_cut() {
    let cause = Cause {
        kind: CauseKind::Leak,
        title: "leak orphan-dir 0123".into(),
        text: format!("leak orphan-dir 0123: {}", "nothing names it; ".repeat(20)),
        remedy: "look at it ".repeat(20),
        command: Some(PrintedCommand::Shows(format!("ls {}", "x".repeat(90)))),
        frees_bytes: 1 << 20,
        frees_inodes: 1,
        keeps_bytes: 0,
        used_after_percent: Some(69.96),
        reaches_low: true,
        bytes: 1 << 20,
        filesystem: "/".into(),
        id: None,
        path: Some(format!("/{}", "p".repeat(90))),
        group: CauseGroup::OnlyYouCanJudge,
        filesystem_ix: 0.into(),
    };
    for width in [None, Some(80)] {
        let list = Deletions { causes: vec![&cause], scarce: Counted::Bytes, low: Some(70.0) };
        let drawn = list.list("What to delete", &screen(width, true), 80);
        // A path or command is never wrapped.
        let is_whole = |line: &str| line.contains("/ppp") || line.contains("ls xxx");
        let long: Vec<_> = drawn.lines().filter(|line| line.width() > 80 && !is_whole(line)).collect();
        assert!(long.is_empty(), "{long:#?}");
        assert_eq!(drawn.contains(cause.path.as_deref().unwrap()), width.is_none(), "{drawn}");
        let words: Vec<_> = drawn.split_whitespace().collect();
        assert_eq!(words.join(" ").matches("nothing names it;").count(), 20, "{drawn}");
        assert!(drawn.contains("   1.0 MiB      70.0%  leak orphan-dir 0123"), "{drawn}");
        assert!(drawn.contains("\n                       this alone reaches 70%; look at it"), "{drawn}");
    }
    // Deletions above it have reached the threshold already.
    let later = Cause { used_after_percent: None, ..cause.clone() };
    let list = Deletions { causes: vec![&later], scarce: Counted::Bytes, low: Some(70.0) };
    assert!(list.list("What to delete", &screen(None, true), 80).contains("this alone reaches 70%"));
    let in_use = Cause { frees_bytes: 0, ..cause };
    let list = Deletions { causes: vec![&in_use], scarce: Counted::Bytes, low: None };
    assert_eq!(list.list("What to delete", &screen(None, true), 80), "");
    assert!(list.rest("What else holds it", &screen(None, true), 80).contains("1.0 MiB"));
}
