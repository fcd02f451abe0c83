//! Text of `usage`: the users of each filesystem.

use super::Screen;
use super::format::{bytes, inodes, safe, wrapped};
use super::stopped;
use super::table::{Table, bold};
use crate::model::Consistency;
use crate::model::documents::comparison::GrowthKind;
use crate::model::refs::{GroupBy, LineKind};
use crate::model::text::display::thousands;
use crate::report::json::{
    FilesystemDoc, ForecastDoc, ShareKind, ShareRowDoc, StoreDoc, UsageDoc, UsageFilesystemDoc,
};

/// Width of the notes at the end if the output is not a terminal.
const WIDE: usize = 110;

/// Used percentage below which a disk without a store has one line.
const EMPTY_PERCENT: f64 = 70.0;

/// Formats the usage of every filesystem. `shows_all`: small rows have lines of their own.
pub fn usage(document: &UsageDoc, screen: &Screen, shows_all: bool) -> String {
    let width = screen.width.unwrap_or(usize::MAX);
    let mut out = String::new();
    for filesystem in &document.filesystems {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&wrapped(filesystem_line(&filesystem.filesystem).trim_end(), width, ""));
        let difference = unlike_df(&filesystem.filesystem);
        out.push_str(&difference.map_or_else(String::new, |text| wrapped(&text, width, "  ")));
        filesystem.forecast.iter().for_each(|forecast| out.push_str(&forecast_line(forecast)));
        let stores = document.stores.iter().map(|store| &store.store);
        let stores: Vec<_> = stores.filter(|store| store.filesystem == filesystem.filesystem.mount).collect();
        for store in &stores {
            out.push_str(&wrapped(store_line(store).trim_end(), width, ""));
        }
        // A disk without a store matters once it is full.
        let is_empty = filesystem.filesystem.used_percent.is_some_and(|percent| percent < EMPTY_PERCENT);
        if stores.is_empty() && is_empty && !filesystem.rows.iter().any(|row| row.in_store) && !shows_all {
            continue;
        }
        out.push('\n');
        out.push_str(&match document.by {
            Some(by) => groups(filesystem, by, screen, shows_all),
            None => rows(filesystem, screen, shows_all),
        });
        out.push_str(&saved(filesystem.saved_bytes).map_or_else(String::new, |text| screen.note(&text)));
        out.push_str(&most_inodes(filesystem).map_or_else(String::new, |text| screen.note(&text)));
        if document.by.is_none() {
            out.push_str(&stopped::stopped(&document.stopped, &filesystem.filesystem.mount, screen));
        }
    }
    let note = match document.by {
        Some(_) => {
            "FAIR divides each layer equally among the images and containers that use it, so the column adds up \
             to the used bytes. What is in several groups is divided equally among them."
        }
        None => {
            "A layer that several images share is counted once, in the first of their rows. RECLAIMABLE: bytes \
             that deleting the unused objects of the row frees. `layersweep report` lists what to delete; \
             `layersweep explain DIRECTORY` shows what is in a directory."
        }
    };
    let wide = screen.width.unwrap_or(WIDE);
    if screen.notes {
        out.push('\n');
        out.push_str(&wrapped(note, wide, ""));
    }
    if let Some(why) = &document.gc_refused {
        out.push_str(&wrapped(&format!("gc would be refused now: {}.", safe(why)), wide, ""));
    }
    out
}

/// Formats the column that adds up to the used bytes: the stores, then the data outside of them.
fn rows(filesystem: &UsageFilesystemDoc, screen: &Screen, shows_all: bool) -> String {
    let mut table = Table::new(screen, &["", ">COUNT", ">SIZE", ">INODES", ">RECLAIMABLE"]);
    let is_used = |row: &&ShareRowDoc| row.bytes > 0 || row.count > Some(0) || row.inodes > Some(1);
    let (stores, outside): (Vec<_>, Vec<_>) =
        filesystem.rows.iter().filter(is_used).partition(|row| row.in_store);
    // With `--all`, no row is small.
    let small_on = (!shows_all).then_some(&filesystem.filesystem);
    let (shown, smaller) = divided(&stores, small_on, "smaller rows");
    for row in shown.into_iter().chain(&smaller) {
        let is_deletable = matches!(
            row.kind,
            ShareKind::InStore(
                LineKind::ImagesUnused | LineKind::Artifacts | LineKind::ContainersExited | LineKind::Leaks
            )
        );
        table.row(vec![
            // Names of directories and snapshotters come from outside.
            safe(&row.label),
            row.count.map_or_else(|| "-".into(), |count| count.to_string()),
            bytes(row.bytes),
            inodes(row.inodes),
            match row.reclaimable_bytes {
                Some(reclaimable) if is_deletable => bytes(reclaimable),
                None if is_deletable => "unknown".into(),
                _ => "-".into(),
            },
        ]);
    }
    if !outside.is_empty() {
        let mut headline = vec![String::new(); 5];
        headline[0] = "Outside the stores".into();
        table.row(headline);
    }
    let (places, rest): (Vec<_>, Vec<_>) = outside.into_iter().partition(|row| row.path.is_some());
    let (shown, smaller) = divided(&places, small_on, "smaller places");
    for row in shown.into_iter().chain(&smaller).chain(rest) {
        table.row(vec![
            format!("  {}", place(row)),
            "-".into(),
            bytes(row.bytes),
            inodes(row.inodes),
            "-".into(),
        ]);
    }
    table.row(vec![
        "Used".into(),
        String::new(),
        bytes(filesystem.filesystem.used_bytes),
        inodes(used_inodes(&filesystem.filesystem)),
        String::new(),
    ]);
    if stores.is_empty() {
        table.fit(&[], &[(0, 24)]);
        return table.render();
    }
    let has_artifacts = stores.iter().any(|row| row.kind == ShareKind::InStore(LineKind::Artifacts));
    let deletable = if has_artifacts { "Images, artifacts and leaks" } else { "Images and leaks" };
    table.row(vec![
        format!("{deletable} together"),
        String::new(),
        String::new(),
        String::new(),
        if stores.iter().any(|row| row.reclaimable_bytes.is_none()) {
            "unknown".into()
        } else {
            bytes(filesystem.reclaimable_bytes)
        },
    ]);
    table.fit(&[], &[(0, 24)]);
    table.render()
}

/// Returns true for a row with less than 1 MiB, 0.1 % of the used bytes and 0.1 % of the inodes.
fn is_small(row: &ShareRowDoc, filesystem: &FilesystemDoc) -> bool {
    let has_many_inodes =
        filesystem.inodes > 0 && row.inodes.is_some_and(|inodes| inodes >= filesystem.inodes / 1000);
    let frees_more = row.reclaimable_bytes.is_none_or(|bytes| bytes >= SMALL);
    is_small_size(row.bytes, filesystem.used_bytes) && !has_many_inodes && !(row.in_store && frees_more)
}

/// Size from which a row of a sum is never small.
const SMALL: u64 = 1 << 20;

/// Returns true if a row with these bytes is one of those that share a row unless `--all` is given.
pub(super) fn is_small_size(bytes: u64, all: u64) -> bool {
    bytes < SMALL.min(all / 1000)
}

/// Formats the label of a row for several small ones.
pub(super) fn label_of_small(count: usize, kind: &str) -> String {
    format!("{count} {kind} (--all shows them)")
}

/// Divides rows into those with a line of their own and the sum of those that are small on a filesystem, if these are
/// several.
fn divided<'a>(
    rows: &[&'a ShareRowDoc],
    filesystem: Option<&FilesystemDoc>,
    kind: &str,
) -> (Vec<&'a ShareRowDoc>, Option<ShareRowDoc>) {
    let (small, large): (Vec<&ShareRowDoc>, Vec<_>) =
        rows.iter().copied().partition(|row| filesystem.is_some_and(|filesystem| is_small(row, filesystem)));
    if small.len() < 2 {
        return (rows.to_vec(), None);
    }
    let inodes = small.iter().try_fold(0, |sum: u64, row| Some(sum.saturating_add(row.inodes?)));
    let bytes = small.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let sum = ShareRowDoc { inodes, ..ShareRowDoc::of_label(label_of_small(small.len(), kind), bytes) };
    (large, Some(sum))
}

pub(super) fn place(row: &ShareRowDoc) -> String {
    match &row.path {
        Some(path) if row.label.starts_with('/') => safe(path),
        Some(path) => format!("{} ({})", safe(&row.label), safe(path)),
        None => safe(&row.label),
    }
}

/// Formats the fair shares by group.
fn groups(filesystem: &UsageFilesystemDoc, by: GroupBy, screen: &Screen, shows_all: bool) -> String {
    let mut table = Table::new(screen, &[&by.as_str().to_uppercase(), ">IMAGES", ">CONTAINERS", ">FAIR"]);
    let groups = filesystem.groups.iter();
    let groups = groups.filter(|group| group.fair_bytes > 0 || group.images + group.containers > 0);
    let used = filesystem.filesystem.used_bytes;
    let (small, large): (Vec<_>, Vec<_>) =
        groups.partition(|group| !shows_all && is_small_size(group.fair_bytes, used));
    let (shown, small) = if small.len() > 1 { (large, small) } else { ([large, small].concat(), Vec::new()) };
    for group in shown {
        let is_counted = matches!(group.kind, GrowthKind::Group | GrowthKind::Unnamed | GrowthKind::Unused);
        table.row(vec![
            match (group.kind, &group.name, by) {
                (_, Some(name), _) => safe(name),
                (GrowthKind::Unnamed, _, GroupBy::Namespace) => "(no namespace)".into(),
                (GrowthKind::Unused, ..) => "(unused images)".into(),
                (GrowthKind::Unnamed, ..) => "<none>".into(),
                (GrowthKind::BuildCache, ..) => "(build cache)".into(),
                (GrowthKind::Leaks, ..) => "(leaks)".into(),
                (GrowthKind::Metadata, ..) => "(store metadata)".into(),
                (GrowthKind::Other, ..) => "(other files in stores)".into(),
                _ => "(outside the stores)".into(),
            },
            if is_counted { group.images.to_string() } else { "-".into() },
            if is_counted { group.containers.to_string() } else { "-".into() },
            bytes(group.fair_bytes),
        ]);
    }
    if !small.is_empty() {
        let sum = small.iter().fold(0, |sum: u64, group| sum.saturating_add(group.fair_bytes));
        table.row(vec![label_of_small(small.len(), "smaller rows"), "-".into(), "-".into(), bytes(sum)]);
    }
    table.row(vec!["Used".into(), String::new(), String::new(), bytes(used)]);
    table.render()
}

/// Says what shared extents and compression save, if it is much.
pub(super) fn saved(saved_bytes: u64) -> Option<String> {
    (saved_bytes >= SMALL).then(|| {
        format!(
            "Extents that files share, and compression, save {}: `du` and EXCLUSIVE count them with each file.",
            bytes(saved_bytes)
        )
    })
}

fn used_inodes(filesystem: &FilesystemDoc) -> Option<u64> {
    filesystem.inodes.checked_sub(filesystem.inodes_free).filter(|_| filesystem.inodes > 0)
}

/// Names the places, containers and volumes with at least a tenth of the inodes.
fn most_inodes(filesystem: &UsageFilesystemDoc) -> Option<String> {
    /// Maximum number of places.
    const NAMED: usize = 3;
    let used = used_inodes(&filesystem.filesystem)?;
    let all = filesystem.filesystem.inodes;
    let users = filesystem.inode_users.iter().take(NAMED);
    let named: Vec<_> = users
        .map(|user| {
            let name = user.path.as_ref().unwrap_or(&user.label);
            format!("{} has {} files", safe(name), thousands(user.inodes))
        })
        .collect();
    (!named.is_empty()).then(|| {
        format!(
            "{} of {} inodes are used: {}, and no deletion of images frees these.",
            thousands(used),
            thousands(all),
            named.join(", ")
        )
    })
}

/// Explains the difference to the percentage printed by `df`, if there is one.
fn unlike_df(filesystem: &FilesystemDoc) -> Option<String> {
    let FilesystemDoc { used_bytes, available_bytes, reserved_bytes, .. } = filesystem;
    let percent = filesystem.used_percent?;
    let all = u128::from(*used_bytes) + u128::from(*available_bytes);
    if all == 0 {
        return None;
    }
    // Rounded up, as in coreutils.
    let by_df = (u128::from(*used_bytes) * 100).div_ceil(all);
    #[allow(clippy::cast_precision_loss)] // at most 100
    let differs = (percent - by_df as f64).abs() >= 1.0;
    (differs && *reserved_bytes > 0).then(|| {
        // Only ext2 to ext4 have a reserve for root.
        let what = if filesystem.fstype.starts_with("ext") {
            "are reserved for root"
        } else {
            "the filesystem keeps for itself"
        };
        format!(
            "{percent:.1}% counts the {} that {what} as used, as the kubelet does; `df` leaves them out and shows \
             {by_df}%.",
            bytes(*reserved_bytes)
        )
    })
}

pub(super) fn filesystem_line(filesystem: &FilesystemDoc) -> String {
    let percent = match filesystem.used_percent {
        Some(percent) => format!("{percent:.1}% used"),
        None => "inconsistent figures".into(),
    };
    let inodes = match filesystem.inodes {
        0 => String::new(),
        all => {
            let used = all.saturating_sub(filesystem.inodes_free);
            format!("; {}% of {all} inodes used", used.saturating_mul(100) / all)
        }
    };
    format!(
        "{}{} on {} ({}): {}, {percent}, {} available{inodes}\n",
        bold("Filesystem"),
        format_args!(" {}", safe(&filesystem.device)),
        safe(&filesystem.mount),
        safe(&filesystem.fstype),
        bytes(filesystem.capacity_bytes),
        bytes(filesystem.available_bytes),
    )
}

pub(super) fn forecast_line(forecast: &ForecastDoc) -> String {
    format!("  {}: {} an hour\n", forecast.text, bytes(forecast.bytes_per_hour))
}

pub(super) fn store_line(store: &StoreDoc) -> String {
    let read_only = if store.read_only { ", read-only" } else { "" };
    let state = match store.consistency {
        Consistency::Consistent => String::new(),
        other => format!(", records {other}"),
    };
    format!(
        "{} {} ({}, {}{read_only}{state}; from {})\n",
        bold("Store"),
        safe(&store.root),
        store.kind,
        safe(&store.driver),
        safe(&store.origin),
    )
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::report::json::GroupDoc;

    const MIB: u64 = 1 << 20;

    fn filesystem(fstype: &str) -> FilesystemDoc {
        FilesystemDoc {
            mount: "/var".into(),
            device: "/dev/a".into(),
            fstype: fstype.into(),
            capacity_bytes: 1000 * MIB,
            used_bytes: 500 * MIB,
            available_bytes: 400 * MIB,
            reserved_bytes: 100 * MIB,
            used_percent: Some(60.0),
            inodes: 10_000,
            inodes_free: 9000,
        }
    }

    #[test]
    fn reserve_is_roots_on_ext_alone() {
        assert!(
            unlike_df(&filesystem("ext4")).unwrap().contains("100.0 MiB that are reserved for root as used")
        );
        for fstype in ["btrfs", "xfs"] {
            let text = unlike_df(&filesystem(fstype)).unwrap();
            assert!(text.contains("100.0 MiB that the filesystem keeps for itself as used"), "{text}");
        }
    }

    #[test]
    fn small_places_share_one_row() {
        let place = |path: &str, bytes, inodes| ShareRowDoc {
            path: Some(path.into()),
            inodes: Some(inodes),
            ..ShareRowDoc::of_label(path.into(), bytes)
        };
        let rest = ShareRowDoc::of_label("everything else, and overhead".into(), 7 * MIB);
        let rows = |small: &[ShareRowDoc], shows_all| {
            let document = UsageFilesystemDoc {
                filesystem: filesystem("ext4"),
                forecast: None,
                not_in_store_bytes: 0,
                inode_users: Vec::new(),
                rows: [&[place("/srv", 400 * MIB, 5)], small, std::slice::from_ref(&rest)].concat(),
                reclaimable_bytes: 0,
                saved_bytes: 0,
                groups: Vec::new(),
            };
            let screen =
                Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
            let text = strip_str(&super::rows(&document, &screen, shows_all)).to_string();
            let lines =
                text.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.collect::<Vec<_>>()
        };
        let [one, two, many] = [place("/a", 4096, 2), place("/b", 4096, 3), place("/many", 4096, 500)];
        let shown = rows(&[one.clone(), two.clone(), many], false);
        assert_eq!(
            shown[..4],
            [
                "/srv - 400.0 MiB 5 -",
                "/many - 4.0 KiB 500 -",
                "2 smaller places (--all shows them) - 8.0 KiB 5 -",
                "everything else, and overhead - 7.0 MiB - -"
            ]
        );
        assert_eq!(rows(std::slice::from_ref(&one), false)[1], "/a - 4.0 KiB 2 -");
        assert_eq!(rows(&[one, two], true)[1..3], ["/a - 4.0 KiB 2 -", "/b - 4.0 KiB 3 -"]);
    }

    #[test]
    fn small_groups_share_one_row() {
        fn group(name: &str, fair_bytes: u64) -> GroupDoc {
            let (kind, name) = (GrowthKind::Group, Some(name.into()));
            GroupDoc { kind, name, images: 1, containers: 0, fair_bytes }
        }
        let document = UsageFilesystemDoc {
            filesystem: filesystem("ext4"),
            forecast: None,
            not_in_store_bytes: 0,
            inode_users: Vec::new(),
            rows: Vec::new(),
            reclaimable_bytes: 0,
            saved_bytes: 0,
            groups: vec![group("a", 400 * MIB), group("b", 4096), group("c", 8192)],
        };
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        for (shows_all, expected) in [(false, &["a ", "2 smaller rows "][..]), (true, &["a ", "b ", "c "])] {
            let text = groups(&document, GroupBy::Registry, &screen, shows_all);
            let lines: Vec<_> = text.lines().skip(1).collect();
            assert_eq!(lines.len(), expected.len() + 1, "{text}");
            assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{text}");
            assert!(shows_all || text.contains(" 12.0 KiB\n"), "{text}");
        }
    }
}
