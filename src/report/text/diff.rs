//! Text of `diff`: the changes between two scans.

use super::format::{bytes, safe, short_id, signed_bytes};
use super::screen::Screen;
use super::table::{Table, heading};
use crate::model::ARTIFACTS;
use crate::report::json::{ChangeDoc, DiffDoc, ImageDiffDoc, SumDoc, TakenDoc};

/// Maximum number of rows of a table on a terminal.
const ROWS: usize = 15;

/// Formats the changes, the largest of each kind first.
pub fn diff(document: &DiffDoc, screen: &Screen) -> String {
    let (before, after) = (taken(&document.before, screen), taken(&document.after, screen));
    let mut out = format!("From {before} to {after}\n");
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
            "came" => ", only in the second",
            "went" => ", only in the first",
            _ => "",
        };
        let is_of_artifacts = store.place.driver == ARTIFACTS;
        let label = if is_of_artifacts { "Artifacts of" } else { "Store" };
        sums.row(sum(format!("{label} {}{seen}", safe(&store.place.root)), &store.total));
        for share in store.shares.iter().filter(|share| share.bytes.change_bytes != 0) {
            let kind = if is_of_artifacts && share.kind == "images" { "artifacts" } else { &share.kind };
            sums.row(sum(format!("  {kind}"), &share.bytes));
        }
    }
    if document.stores.len() > 1 {
        sums.row(sum("All stores".into(), &document.totals));
    }
    out.push('\n');
    out.push_str(&sums.render());
    out.push_str(&images(&document.images, screen));
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

fn taken(scan: &TakenDoc, screen: &Screen) -> String {
    format!("{} ({})", screen.minute(scan.taken_at), safe(&scan.id))
}

fn change(change_bytes: i64) -> String {
    let sign = if change_bytes > 0 { "+" } else { "" };
    format!("{sign}{}", signed_bytes(change_bytes))
}

fn sum(name: String, sum: &SumDoc) -> Vec<String> {
    vec![name, bytes(sum.before_bytes), bytes(sum.after_bytes), change(sum.change_bytes)]
}

fn images(images: &[ImageDiffDoc], screen: &Screen) -> String {
    // A change of the other users of its layers follows from added and removed images.
    let changed: Vec<_> = images
        .iter()
        .filter(|image| image.change != "altered" || image.names_before != image.names_after)
        .collect();
    let mut table = Table::new(screen, &["IMAGE", "", ">TOTAL", ">EXCLUSIVE", ">CHANGE"]);
    let shown = rows(changed.len(), screen);
    for image in &changed[..shown] {
        let names = if image.names_after.is_empty() { &image.names_before } else { &image.names_after };
        let name = names.first().map_or_else(|| short_id(&image.id), |name| safe(name));
        let name = if image.kind == "artifact" { format!("{name} (artifact)") } else { name };
        let word = match image.change {
            "altered" => "renamed",
            word => word,
        };
        let (total, exclusive) = match image.change {
            "went" => (image.total.before_bytes, image.exclusive.before_bytes),
            _ => (image.total.after_bytes, image.exclusive.after_bytes),
        };
        let change = change(image.total.change_bytes);
        table.row(vec![name, word.into(), bytes(total), bytes(exclusive), change]);
    }
    table.fit(&[3], &[(0, 20)]);
    table.block() + &more(changed.len() - shown)
}

fn changes(title: &str, all: &[ChangeDoc], screen: &Screen, name: impl Fn(&ChangeDoc) -> String) -> String {
    let mut table = Table::new(screen, &[title, "", ">BEFORE", ">AFTER", ">CHANGE"]);
    let shown = rows(all.len(), screen);
    for object in &all[..shown] {
        table.row(vec![
            name(object),
            object.change.into(),
            bytes(object.bytes.before_bytes),
            bytes(object.bytes.after_bytes),
            change(object.bytes.change_bytes),
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
