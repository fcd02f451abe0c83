//! One line an image.

use jiff::Timestamp;

use super::format::{age, bytes, safe, short_id};
use super::table::Table;
use crate::report::json::{ImageDoc, UserDoc};

/// The table of images.
#[must_use]
pub fn images(images: &[ImageDoc], now: Timestamp) -> String {
    // Without records nobody knows, and the column would only take room.
    let with_use = images.iter().any(|image| image.last_used.is_some());
    let mut headings = vec!["IMAGE", "ID", ">AGE"];
    headings.extend(with_use.then_some(">LAST USED"));
    headings.extend(["USED BY", "PINNED", ">SIZE", ">SHARED", ">EXCLUSIVE", ">FREES"]);
    let mut table = Table::new(&headings);
    for image in images {
        let mut cells = vec![name(image), short_id(&image.id), age(image.created_at, now)];
        cells.extend(with_use.then(|| age(image.last_used, now)));
        cells.extend([
            users(&image.used_by),
            if image.pinned { "yes".into() } else { "-".into() },
            bytes(image.total_bytes),
            bytes(image.shared_bytes),
            bytes(image.exclusive_bytes),
            bytes(image.frees_bytes),
        ]);
        table.row(cells);
    }
    let mut out = table.render();
    if !images.is_empty() {
        out.push_str(
            "EXCLUSIVE bytes of single images do not add up, since layers are shared: `layersweep usage` \
             has the figures for whole sets.\n",
        );
    }
    out
}

/// The image's first name; how many more there are stands behind it.
pub(super) fn name(image: &ImageDoc) -> String {
    let list = if image.manifest_list { " (list)" } else { "" };
    match image.names.as_slice() {
        [] => format!("<none>{list}"),
        [one] => format!("{}{list}", safe(one)),
        [first, more @ ..] => format!("{} +{}{list}", safe(first), more.len()),
    }
}

fn users(users: &[UserDoc]) -> String {
    match users {
        [] => "-".into(),
        [one] => format!("{} ({})", safe(&one.name), one.owner.unwrap_or("unknown")),
        [first, more @ ..] => {
            format!("{} ({}) +{}", safe(&first.name), first.owner.unwrap_or("unknown"), more.len())
        }
    }
}
