//! Text of `usage --since`: the growth of each filesystem, the largest first.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::format::{age_of, bytes, safe, signed_change, wrapped};
use super::screen::Screen;
use super::table::Table;
use crate::model::Owner;
use crate::model::documents::comparison::{FilesystemGrowth, GrowthKind, GrowthRow};
use crate::model::refs::GroupBy;
use crate::model::text::display::{shell_word, thousands};
use crate::model::text::volume;
use crate::report::json::GrowthDoc;

/// Maximum number of rows of a table on a terminal.
const ROWS: usize = 15;
/// Width of the notes if the output is not a terminal.
const WIDE: usize = 110;
/// Minimum time between the scans for a rate in a day, in seconds; for a shorter one the rate is that in an hour.
const DAY: i64 = 86_400;

/// Formats the growth of every filesystem. `shows_all`: small changes have rows of their own.
pub fn growth(document: &GrowthDoc, screen: &Screen, shows_all: bool) -> String {
    let mut lines = warnings(document, screen);
    if document.filesystems.is_empty() {
        lines.push("The earlier scan does not contain these filesystems.".to_owned());
    }
    let width = screen.width.unwrap_or(WIDE);
    let mut out: String = lines.iter().map(|line| wrapped(line, width, "")).collect();
    for filesystem in &document.filesystems {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&wrapped(&headline(filesystem, document, screen), width, ""));
        out.push('\n');
        out.push_str(&table(filesystem, document, screen, shows_all));
        let grew = |row: &&GrowthRow| {
            row.change_inodes.filter(|_| filesystem.by_inodes).unwrap_or(row.change_bytes) > 0
        };
        let largest = filesystem.rows.first().filter(grew);
        if let Some(text) = largest.and_then(advice).filter(|_| screen.notes) {
            out.push('\n');
            out.push_str(&wrapped(&text, width, ""));
        }
    }
    out
}

/// Returns the reasons why the figures are not what the user asked for.
fn warnings(document: &GrowthDoc, screen: &Screen) -> Vec<String> {
    let mut lines = Vec::new();
    if document.begins_later {
        let begin = document.before.taken_at;
        lines.push(format!(
            "The kept scans begin at {} {}: what grew before that is unknown.",
            screen.minute(begin),
            screen.zone_name(begin)
        ));
    }
    for (scan, word) in [(&document.before, "earlier"), (&document.after, "present")] {
        if !scan.complete {
            lines.push(format!("The {word} scan could not read everything: what it lacks may be there."));
        }
    }
    let mut rows = document.filesystems.iter().flat_map(|filesystem| &filesystem.rows);
    if rows.any(|row| row.kind == GrowthKind::Unknown) {
        lines.push(
            "An earlier version of layersweep made the earlier scan, without the users of containers: those that are \
             gone count as unknown."
                .to_owned(),
        );
    }
    lines
}

fn headline(filesystem: &FilesystemGrowth, document: &GrowthDoc, screen: &Screen) -> String {
    let since = document.before.taken_at;
    let inodes = filesystem.change_inodes.filter(|_| filesystem.by_inodes);
    let inodes = inodes.map(|change| format!(" and {} inodes", signed_count(change)));
    let rate = filesystem.bytes_per_day.map(|per_day| {
        let (rate, unit) = rate(per_day, document.seconds);
        format!(", {} {unit}", signed_change(rate))
    });
    format!(
        "Filesystem {}: {}{} used since {} {}, {} ago{}",
        safe(&filesystem.mount),
        signed_change(filesystem.used.change_bytes),
        inodes.unwrap_or_default(),
        screen.minute(since),
        screen.zone_name(since),
        age_of(u64::try_from(document.seconds).ok()),
        rate.unwrap_or_default()
    )
}

/// Returns the change in a day, or in an hour for scans of the same day, and the unit.
fn rate(per_day: i64, seconds: i64) -> (i64, &'static str) {
    if seconds < DAY { (per_day / 24, "an hour") } else { (per_day, "a day") }
}

fn table(filesystem: &FilesystemGrowth, document: &GrowthDoc, screen: &Screen, shows_all: bool) -> String {
    let (_, unit) = rate(0, document.seconds);
    let rate_heading = format!(">{}", unit.to_uppercase());
    let has_namespaces = filesystem.rows.iter().any(|row| row.namespace.is_some());
    let has_images = filesystem.rows.iter().any(|row| row.image.is_some());
    let group_heading = document.by.as_str().to_uppercase();
    let mut headings = vec![if document.by == GroupBy::Container { "" } else { &group_heading }];
    headings.extend(has_namespaces.then_some("NAMESPACE"));
    headings.extend(filesystem.by_inodes.then_some(">INODES"));
    headings.extend([">FROM", ">TO", ">CHANGE"]);
    headings.extend(filesystem.bytes_per_day.map(|_| rate_heading.as_str()));
    headings.extend(has_images.then_some("IMAGE"));
    let mut table = Table::new(screen, &headings);
    let used = GrowthRow {
        before_bytes: i64::try_from(filesystem.used.before_bytes).unwrap_or(i64::MAX),
        after_bytes: i64::try_from(filesystem.used.after_bytes).unwrap_or(i64::MAX),
        change_bytes: filesystem.used.change_bytes,
        change_inodes: filesystem.change_inodes,
        ..nameless(filesystem.bytes_per_day)
    };
    let (least, most) = match (shows_all, screen.width) {
        (true, _) => (1, usize::MAX),
        (false, Some(_)) => (least_change(filesystem), ROWS),
        (false, None) => (least_change(filesystem), usize::MAX),
    };
    let (shown, others) = shown(filesystem, least, most);
    let named = shown.into_iter().map(|row| (name(row, document.by), row));
    let sums = others.iter().map(|(label, row)| (label.clone(), row)).chain([("Used".to_owned(), &used)]);
    for (name, row) in named.chain(sums) {
        let mut cells = vec![name];
        cells.extend(has_namespaces.then(|| row.namespace.as_deref().map_or_else(String::new, safe)));
        cells.extend(row.change_inodes.filter(|_| filesystem.by_inodes).map(signed_count));
        cells.extend([row.before_bytes, row.after_bytes].map(|bytes| size(row.kind, bytes)));
        cells.push(signed_change(row.change_bytes));
        cells.extend(row.bytes_per_day.map(|per_day| signed_change(rate(per_day, document.seconds).0)));
        cells.extend(has_images.then(|| row.image.as_deref().map_or_else(String::new, safe)));
        table.row(cells);
    }
    let optional: Vec<_> = has_images.then_some(headings.len() - 1).into_iter().collect();
    table.fit(&optional, &[(0, 24)]);
    table.render()
}

fn nameless(bytes_per_day: Option<i64>) -> GrowthRow {
    GrowthRow {
        kind: GrowthKind::Rest,
        name: None,
        namespace: None,
        path: None,
        image: None,
        owner: None,
        before_bytes: 0,
        after_bytes: 0,
        change_bytes: 0,
        bytes_per_day,
        change_inodes: None,
    }
}

/// Returns the minimum change of a row: 1 MiB, or 0.1 % of the used bytes if that is less; if the inodes are what grew,
/// 1 % of their change.
fn least_change(filesystem: &FilesystemGrowth) -> u64 {
    const LEAST: u64 = 1 << 20;
    match filesystem.change_inodes.filter(|_| filesystem.by_inodes) {
        Some(change) => (change.unsigned_abs() / 100).max(1),
        None => LEAST.min(filesystem.used.after_bytes / 1000).max(1),
    }
}

/// Returns the rows to show, and the sum of the others with its label: those with the `most` largest changes of at least
/// `least` bytes, or inodes if these are what grew.
fn shown(
    filesystem: &FilesystemGrowth,
    least: u64,
    most: usize,
) -> (Vec<&GrowthRow>, Option<(String, GrowthRow)>) {
    let rows = &filesystem.rows;
    let change = |position: &usize| {
        let row = &rows[*position];
        row.change_inodes.filter(|_| filesystem.by_inodes).unwrap_or(row.change_bytes).unsigned_abs()
    };
    let mut largest: Vec<_> = (0..rows.len()).filter(|position| change(position) >= least).collect();
    largest.sort_by_key(|position| Reverse(change(position)));
    largest.truncate(most);
    let largest: HashSet<_> = largest.into_iter().collect();
    let (mut shown, mut others) = (Vec::new(), Vec::new());
    for (position, row) in rows.iter().enumerate() {
        if largest.contains(&position) { shown.push(row) } else { others.push(row) }
    }
    let sum =
        |field: fn(&GrowthRow) -> i64| others.iter().fold(0, |sum: i64, row| sum.saturating_add(field(row)));
    let label = if others.len() == 1 { "(1 other)".into() } else { format!("({} others)", others.len()) };
    let others = others.first().map(|first| {
        let bytes_per_day = first.bytes_per_day.map(|_| sum(|row| row.bytes_per_day.unwrap_or(0)));
        let row = GrowthRow {
            before_bytes: sum(|row| row.before_bytes),
            after_bytes: sum(|row| row.after_bytes),
            change_bytes: sum(|row| row.change_bytes),
            change_inodes: first.change_inodes.map(|_| sum(|row| row.change_inodes.unwrap_or(0))),
            ..nameless(bytes_per_day)
        };
        (label, row)
    });
    (shown, others)
}

/// Formats a number of inodes with its sign: `+310,000`.
fn signed_count(number: i64) -> String {
    let sign = match number {
        ..0 => "-",
        0 => "",
        1.. => "+",
    };
    format!("{sign}{}", thousands(number.unsigned_abs()))
}

/// Formats a size; `-` for one below 0, which means only that files share bytes.
fn size(kind: GrowthKind, number: i64) -> String {
    if kind == GrowthKind::Saved {
        return signed_change(number);
    }
    u64::try_from(number).map_or_else(|_| "-".to_owned(), bytes)
}

fn name(row: &GrowthRow, by: GroupBy) -> String {
    let name = row.name.as_deref().map(safe).unwrap_or_default();
    match row.kind {
        GrowthKind::Container => format!("container {name}"),
        GrowthKind::Images if name.is_empty() => "images without a name".into(),
        GrowthKind::Images => format!("images of {name}"),
        GrowthKind::Group => name,
        GrowthKind::Unnamed if by == GroupBy::Namespace => "(no namespace)".into(),
        GrowthKind::Unnamed => "<none>".into(),
        GrowthKind::Several => format!("(images of several {by}s)"),
        GrowthKind::Unused => "(unused images)".into(),
        GrowthKind::Unknown => "(unknown)".into(),
        GrowthKind::BuildCache => "(build cache)".into(),
        GrowthKind::Leaks => "(leaks)".into(),
        GrowthKind::Metadata => "(store metadata)".into(),
        GrowthKind::Other => "(other files in stores)".into(),
        GrowthKind::Volume => format!("volume {name}"),
        GrowthKind::PodLog => format!("log of pod {name}"),
        GrowthKind::PodVolume => format!("volume of pod {name}"),
        GrowthKind::Path => volume::title(&name),
        GrowthKind::Outside => "(elsewhere outside the stores)".into(),
        GrowthKind::Rest => "(image records, shared files)".into(),
        GrowthKind::Saved => "(saved by shared extents, compression)".into(),
    }
}

fn advice(row: &GrowthRow) -> Option<String> {
    let name = row.name.as_deref().map(safe).unwrap_or_default();
    Some(match row.kind {
        GrowthKind::Container => {
            if row.owner.as_deref() == Some(Owner::Buildah.as_str()) {
                return Some(format!(
                    "{name} is the container of a build. No deletion of images frees these bytes: they are freed with \
                     the container. `layersweep report` names it if its build has left it behind."
                ));
            }
            // Only Kubernetes has the limit.
            let limit = if row.namespace.is_some() { ", or limit its ephemeral-storage" } else { "" };
            format!(
                "{name} writes to its own layer or log instead of a volume. No deletion of images frees these bytes: \
                 delete files in it, or the container. Give it a volume{limit}."
            )
        }
        GrowthKind::Images => "`layersweep gc --dry-run` shows which images can be deleted.".into(),
        GrowthKind::Group => {
            format!("`--by container` shows the containers and images of {name} one by one.")
        }
        GrowthKind::Leaks => "`layersweep sweep` lists the leaks.".into(),
        GrowthKind::Volume => {
            format!(
                "`{} volume inspect {}` shows the volume; its containers write to it.",
                row.owner.as_deref().unwrap_or("podman"),
                shell_word(row.name.as_deref()?)
            )
        }
        GrowthKind::PodLog => {
            "The kubelet's containerLogMaxSize and containerLogMaxFiles limit the logs of a container.".into()
        }
        GrowthKind::PodVolume => "It is deleted with its pod; an emptyDir can have a sizeLimit.".into(),
        GrowthKind::Path => {
            format!("`layersweep explain {}` shows what is in it.", shell_word(row.path.as_deref()?))
        }
        GrowthKind::Other | GrowthKind::Outside => {
            "`layersweep report` shows the volumes, and the files outside the stores.".into()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::model::documents::comparison::BytesChange;
    use crate::report::json::{DocumentKind, Header, TakenDoc};

    const MIB: i64 = 1 << 20;

    fn row(kind: GrowthKind, name: Option<&str>, mib: [i64; 2]) -> GrowthRow {
        let [before_bytes, after_bytes] = mib.map(|mib| mib * MIB);
        let is_container = kind == GrowthKind::Container;
        GrowthRow {
            kind,
            name: name.map(str::to_owned),
            namespace: is_container.then(|| "shop".to_owned()),
            path: None,
            image: is_container.then(|| "quay.io/app:1".to_owned()),
            owner: None,
            before_bytes,
            after_bytes,
            change_bytes: after_bytes - before_bytes,
            bytes_per_day: Some((after_bytes - before_bytes) * 4),
            change_inodes: None,
        }
    }

    /// Formats rows that six hours lie between.
    fn shown(rows: Vec<GrowthRow>, width: Option<usize>) -> String {
        let taken_at: Timestamp = "2026-11-26T09:00:00Z".parse().unwrap();
        let taken = |id: &str| TakenDoc { id: id.into(), taken_at, complete: true };
        let sum = |field: fn(&GrowthRow) -> i64| rows.iter().map(field).sum::<i64>();
        let used = BytesChange {
            before_bytes: sum(|row| row.before_bytes).try_into().unwrap(),
            after_bytes: sum(|row| row.after_bytes).try_into().unwrap(),
            change_bytes: sum(|row| row.change_bytes),
        };
        let inodes: Option<i64> = rows.iter().map(|row| row.change_inodes).sum();
        let inodes = inodes.filter(|_| !rows.is_empty());
        let document = GrowthDoc {
            header: Header { schema_version: 1, kind: DocumentKind::UsageGrowth, generated_at: taken_at },
            complete: true,
            by: GroupBy::Container,
            since: taken_at,
            before: taken("s1"),
            after: taken("now"),
            begins_later: false,
            seconds: 6 * 3600,
            filesystems: vec![FilesystemGrowth {
                mount: "/var".into(),
                bytes_per_day: Some(used.change_bytes * 4),
                used,
                change_inodes: inodes,
                by_inodes: inodes.is_some(),
                rows,
            }],
        };
        let screen = Screen { width, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        strip_str(&growth(&document, &screen, false)).to_string()
    }

    #[test]
    fn growing_container_is_named_first() {
        let rows = vec![
            row(GrowthKind::Container, Some("web-0/app"), [1024, 18_432]),
            row(GrowthKind::Images, Some("quay.io/app"), [2048, 2560]),
            row(GrowthKind::Metadata, None, [1, 1]),
            row(GrowthKind::Container, Some("evil\u{1b}[31m\u{202e}"), [12, 0]),
            row(GrowthKind::Rest, None, [-2, -1]),
        ];
        let expected = "\
Filesystem /var: +17.5 GiB used since 2026-11-26 09:00 UTC, 6h ago, +2.9 GiB an hour

                                  NAMESPACE      FROM        TO      CHANGE     AN HOUR  IMAGE
container web-0/app               shop        1.0 GiB  18.0 GiB   +17.0 GiB    +2.8 GiB  quay.io/app:1
images of quay.io/app                         2.0 GiB   2.5 GiB  +512.0 MiB   +85.3 MiB
container evil\\u{1b}[31m\\u{202e}  shop       12.0 MiB       0 B   -12.0 MiB    -2.0 MiB  quay.io/app:1
(image records, shared files)                       -         -    +1.0 MiB  +170.7 KiB
(1 other)                                     1.0 MiB   1.0 MiB         0 B         0 B
Used                                          3.0 GiB  20.5 GiB   +17.5 GiB    +2.9 GiB

web-0/app writes to its own layer or log instead of a volume. No deletion of images frees these bytes: delete
files in it, or the container. Give it a volume, or limit its ephemeral-storage.
";
        assert_eq!(shown(rows, None), expected);
        // A container of podman.
        let alone = GrowthRow { namespace: None, ..row(GrowthKind::Container, Some("db"), [0, 40]) };
        assert!(shown(vec![alone.clone()], None).ends_with("or the container. Give it a volume.\n"));
        let of_build = GrowthRow { owner: Some("buildah".into()), ..alone };
        let screen = shown(vec![of_build], None).replace('\n', " ");
        assert!(
            screen.contains("db is the container of a build. ") && !screen.contains("volume"),
            "{screen}"
        );
    }

    #[test]
    fn grown_place_has_the_command_that_shows_it() {
        for (kind, name, expected) in [
            (GrowthKind::Volume, Some("pg data"), "`podman volume inspect 'pg data'` shows the volume; "),
            (GrowthKind::Path, Some("/srv/a b"), "`layersweep explain '/srv/a b'` shows what is in it."),
            (
                GrowthKind::Outside,
                None,
                "`layersweep report` shows the volumes, and the files outside the stores.",
            ),
        ] {
            let place = GrowthRow { path: name.map(str::to_owned), ..row(kind, name, [0, 30]) };
            let text = shown(vec![place, row(GrowthKind::Container, Some("db"), [0, 20])], None);
            assert!(text.lines().last().unwrap().starts_with(expected), "{text}");
        }
    }

    #[test]
    fn things_that_took_inodes_have_their_number() {
        let counted =
            |kind, name, mib, inodes| GrowthRow { change_inodes: Some(inodes), ..row(kind, name, mib) };
        let rows = vec![
            counted(GrowthKind::PodVolume, Some("web-0/cache"), [1, 2], 310_000),
            counted(GrowthKind::Container, Some("db"), [10, 900], 12),
            counted(GrowthKind::Leaks, None, [3, 0], -9000),
        ];
        let expected = "\
Filesystem /var: +888.0 MiB and +301,012 inodes used since 2026-11-26 09:00 UTC, 6h ago, +148.0 MiB an hour

                           NAMESPACE    INODES      FROM         TO      CHANGE     AN HOUR  IMAGE
volume of pod web-0/cache             +310,000   1.0 MiB    2.0 MiB    +1.0 MiB  +170.7 KiB
(leaks)                                 -9,000   3.0 MiB        0 B    -3.0 MiB  -512.0 KiB
(1 other)                                  +12  10.0 MiB  900.0 MiB  +890.0 MiB  +148.3 MiB
Used                                  +301,012  14.0 MiB  902.0 MiB  +888.0 MiB  +148.0 MiB

It is deleted with its pod; an emptyDir can have a sizeLimit.
";
        assert_eq!(shown(rows, None), expected);
    }

    #[test]
    fn terminal_shows_largest_changes() {
        let rows = (0..10_000)
            .map(|number| row(GrowthKind::Container, Some(&format!("c{number}")), [100, 10_099 - number]));
        let text = shown(rows.collect(), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let containers: Vec<_> = text.lines().filter(|line| line.starts_with("container ")).collect();
        assert_eq!(containers.len(), ROWS, "{text}");
        assert!(containers[0].starts_with("container c0 "), "{text}");
        assert!(text.contains("\n(9985 others) "), "{text}");
        assert_eq!(shown(vec![], Some(80)).lines().count(), 4);
        // Equal changes.
        let rows = (0..20).map(|number| row(GrowthKind::Container, Some(&format!("c{number}")), [100, 105]));
        let text = shown(rows.collect(), Some(80));
        let containers: Vec<_> = text.lines().filter(|line| line.starts_with("container ")).collect();
        assert_eq!(containers.len(), ROWS, "{text}");
        assert!(containers[0].starts_with("container c0 ") && text.contains("\n(5 others) "), "{text}");
    }
}
