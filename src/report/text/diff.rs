//! Text of `diff`: the changes between two scans.

use super::format::{bytes, safe, short_id, signed_change};
use super::screen::Screen;
use super::table::{Table, heading};
use crate::model::ARTIFACTS;
use crate::model::documents::comparison::{BytesChange, ChangeKind};
use crate::report::json::{ChangeDoc, DiffDoc, ImageDiffDoc};

/// Maximum number of rows of a table on a terminal.
const ROWS: usize = 15;

/// Formats the changes, the largest of each kind first.
pub fn diff(document: &DiffDoc, screen: &Screen) -> String {
    let (before, after) = (&document.before, &document.after);
    let mut out = format!(
        "From {} ({}) to {} {} ({})\n",
        screen.time(before.taken_at),
        safe(&before.id),
        screen.time_on(after.taken_at, before.taken_at),
        screen.zone_name(after.taken_at),
        safe(&after.id)
    );
    if document.before.taken_at > document.after.taken_at {
        out.push_str("The first scan is the later one: additions are shown as removals.\n");
    }
    for (scan, word) in [(&document.before, "first"), (&document.after, "second")] {
        if !scan.complete {
            out.push_str(&format!(
                "The {word} could not read everything: figures are lower bounds, and what it lacks may be there.\n"
            ));
        }
    }
    let mut sums = Table::new(screen, &["", ">BEFORE", ">AFTER", ">CHANGE"]);
    for filesystem in &document.filesystems {
        sums.row(sum(format!("Filesystem {}, used", safe(&filesystem.mount)), &filesystem.used));
    }
    for store in &document.stores {
        let seen = match store.seen {
            "added" => ", only in the second",
            "removed" => ", only in the first",
            _ => "",
        };
        let is_of_artifacts = store.place.driver == ARTIFACTS;
        let label = if is_of_artifacts { "Artifacts of" } else { "Store" };
        sums.row(sum(format!("{label} {}{seen}", safe(&store.place.root)), &store.total));
        for share in store.shares.iter().filter(|share| share.bytes.change_bytes != 0) {
            let kind = if is_of_artifacts && share.kind == "images" { "artifacts" } else { share.kind };
            sums.row(sum(format!("  {kind}"), &share.bytes));
        }
    }
    if document.stores.len() > 1 {
        sums.row(sum("All stores".into(), &document.totals));
    }
    out.push('\n');
    out.push_str(&sums.render());
    out.push_str(&images(document, screen));
    out.push_str(&changes("LAYER", &document.layers, screen, |layer| short_id(&layer.id)));
    out.push_str(&changes("CONTAINER", &document.containers, screen, |container| safe(&container.name)));
    out.push_str(&changes("LEAK", &document.leaks, screen, |leak| match leak.id.split_once(' ') {
        Some((class, id)) => format!("{class} {}", short_id(id)),
        None => safe(&leak.id),
    }));
    let lists = [document.layers.len(), document.containers.len(), document.leaks.len()];
    if document.images.is_empty() && lists.iter().all(|length| *length == 0) {
        out.push_str("\nNo image, layer, container or leak was added, removed or changed.\n");
    }
    out
}

fn sum(name: String, sum: &BytesChange) -> Vec<String> {
    vec![name, bytes(sum.before_bytes), bytes(sum.after_bytes), signed_change(sum.change_bytes)]
}

/// Formats the changed images with what each of them took or freed on the disk.
fn images(document: &DiffDoc, screen: &Screen) -> String {
    // A change of the other users of its layers follows from added and removed images.
    let changed: Vec<_> = document
        .images
        .iter()
        .filter(|image| image.change != ChangeKind::Changed || image.names_before != image.names_after)
        .collect();
    let mut table = Table::new(screen, &["IMAGE", "", ">CHANGE", ""]);
    let shown = rows(changed.len(), screen);
    for image in &changed[..shown] {
        let (name, word) = naming(image, screen);
        let name = if image.kind == "artifact" { format!("{name} (artifact)") } else { name };
        let note = match (image.change, image.disk_change_bytes) {
            (ChangeKind::Added, 0) => "its layers were there already",
            (ChangeKind::Removed, 0) => "its layers are still used, or count with another image",
            _ => "",
        };
        table.row(vec![name, word.into(), signed_change(image.disk_change_bytes), note.into()]);
    }
    let rest = changed.len() - shown;
    if rest > 0 {
        table.row(vec![format!("and {rest} more"), String::new(), String::new(), String::new()]);
    }
    if !changed.is_empty() {
        let total = signed_change(document.images_disk_change_bytes);
        table.row(vec!["total on the disk".into(), String::new(), total, String::new()]);
    }
    table.fit(&[3], &[(0, 20)]);
    table.block()
}

/// Returns the name of an image, or its names before and after, and the word for its change.
fn naming(image: &ImageDiffDoc, screen: &Screen) -> (String, &'static str) {
    let (before, after) = (&image.names_before, &image.names_after);
    let named = |names: &[String]| match names {
        [] => format!("<none> {}", short_id(&image.id)),
        names => names.iter().map(|name| safe(name)).collect::<Vec<_>>().join(", "),
    };
    match image.change {
        ChangeKind::Removed => return (named(before), "removed"),
        ChangeKind::Added => return (named(after), "added"),
        _ => {}
    }
    let word = match (before.is_empty(), after.is_empty()) {
        _ if before == after => return (named(after), image.change.as_str()),
        (true, _) => "tagged",
        (_, true) => "untagged",
        _ => "renamed",
    };
    let arrow = if screen.unicode { "→" } else { "->" };
    (format!("{} {arrow} {}", named(before), named(after)), word)
}

fn changes(title: &str, all: &[ChangeDoc], screen: &Screen, name: impl Fn(&ChangeDoc) -> String) -> String {
    let mut table = Table::new(screen, &[title, "", ">BEFORE", ">AFTER", ">CHANGE"]);
    let shown = rows(all.len(), screen);
    for object in &all[..shown] {
        table.row(vec![
            name(object),
            object.change.to_string(),
            bytes(object.bytes.before_bytes),
            bytes(object.bytes.after_bytes),
            signed_change(object.bytes.change_bytes),
        ]);
    }
    table.fit(&[2], &[(0, 20)]);
    table.block() + &more(all.len() - shown)
}

fn rows(all: usize, screen: &Screen) -> usize {
    if screen.width.is_some() { all.min(ROWS) } else { all }
}

fn more(rest: usize) -> String {
    match rest {
        0 => String::new(),
        rest => heading(&format!("and {rest} more with smaller changes")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::model::documents::comparison::ScanComparison;
    use crate::model::documents::scan_summary::{
        ComparedScan, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, layer_name,
    };
    use crate::report::json;

    const MIB: u64 = 1 << 20;

    fn scan(id: &str, time: &str, entries: &[(SummaryKind, &str, u64, &str)]) -> ComparedScan {
        let place =
            SummaryStore { kind: "containers-storage".into(), root: "/s".into(), driver: "overlay".into() };
        let entries = entries.iter().map(|(kind, id, mib, name)| {
            let key = Key { place: place.clone().into(), kind: *kind, id: (*id).to_owned() };
            (key, SummaryEntry { name: (*name).to_owned(), ..SummaryEntry::of_bytes(mib * MIB) })
        });
        let summary = ScanSummary { complete: true, entries: entries.collect(), ..ScanSummary::default() };
        ComparedScan { id: id.into(), taken_at: time.parse().unwrap(), summary }
    }

    #[test]
    fn change_of_image_is_bytes_on_disk() {
        use SummaryKind::{Image, Layer, Share};
        let own = |image| layer_name("layer", Some(image));
        let (base, a, c) = (own("a"), own("a"), own("c"));
        let before = scan(
            "s1",
            "2026-11-26T09:00:00Z",
            &[
                (Share, "images", 90, ""),
                (Image, "a", 80, "web:1"),
                (Image, "b", 60, "app:1"),
                (Image, "d", 60, "old:1"),
                (Image, "e", 10, "x:1"),
                (Layer, "base", 60, &base),
                (Layer, "top-of-a", 20, &a),
                (Layer, "e", 10, "layer e"),
            ],
        );
        // `a` is removed, `b` lost its name, `d` and `e` have other names, `c` is added with a layer of its own.
        let after = scan(
            "s2",
            "2026-11-26T09:15:00Z",
            &[
                (Share, "images", 100, ""),
                (Image, "b", 60, ""),
                (Image, "c", 90, "new:1"),
                (Image, "e", 10, "x:2"),
                (Layer, "base", 60, &own("b")),
                (Layer, "c", 30, &c),
                (Layer, "e", 10, "layer e"),
            ],
        );
        let document = json::diff(after.taken_at, &ScanComparison { before, after });
        assert_eq!(document.images_disk_change_bytes, 10 * (1 << 20));
        let screen =
            Screen { width: None, unicode: false, truncates: true, notes: true, zone: TimeZone::UTC };
        let shown = anstream::adapter::strip_str(&images(&document, &screen)).to_string();
        let expected = "
IMAGE                           CHANGE
new:1              added     +30.0 MiB
web:1              removed   -20.0 MiB
old:1              removed         0 B  its layers are still used, or count with another image
app:1 -> <none> b  untagged        0 B
x:1 -> x:2         renamed         0 B
total on the disk            +10.0 MiB
";
        assert_eq!(shown, expected);
    }
}
