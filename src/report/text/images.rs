//! One line an image.

use jiff::Timestamp;

use super::format::{age, bytes, safe, short_id};
use super::screen::Screen;
use super::table::Table;
use crate::report::json::{ImageDoc, UserDoc};

/// The table of images.
#[must_use]
pub fn images(images: &[ImageDoc], now: Timestamp, screen: &Screen) -> String {
    // Without records nobody knows, and the columns would only take room.
    let remembered = images.iter().any(|image| image.first_detected.is_some());
    let mut headings = vec!["IMAGE", "ID", ">AGE"];
    if remembered {
        headings.extend([">DETECTED", ">LAST USED"]);
    }
    headings.extend(["USED BY", "PINNED", ">SIZE", ">SHARED", ">EXCLUSIVE", ">FREES"]);
    let mut table = Table::new(&headings);
    for image in images {
        let mut cells = vec![name(image), short_id(&image.id), age(image.created_at, now)];
        if remembered {
            cells.push(age(image.first_detected, now));
            cells.push(match image.use_count {
                Some(0) => "never".into(),
                _ => age(image.last_used, now),
            });
        }
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
    let place = |wanted: &str| headings.iter().position(|heading| heading.trim_start_matches('>') == wanted);
    // SHARED is SIZE less EXCLUSIVE; the build date says least of an image whose coming is known.
    let spare =
        ["SHARED", if remembered { "AGE" } else { "PINNED" }, "FREES", "PINNED", "ID", "AGE", "USED BY"];
    let spare: Vec<usize> = spare.into_iter().filter_map(place).collect();
    let elastic: Vec<_> = [("IMAGE", 22), ("USED BY", 10)]
        .iter()
        .filter_map(|(name, least)| Some((place(name)?, *least)))
        .collect();
    let gone = table.fit(screen, &spare, &elastic);
    let mut out = table.render();
    if !images.is_empty() {
        out.push_str(
            "EXCLUSIVE bytes of single images do not add up, since layers are shared: `layersweep usage` \
             has the figures for whole sets.\n",
        );
    }
    if !gone.is_empty() {
        out.push_str(&format!("A wider terminal, a pipe or --format json also shows {}.\n", gone.join(", ")));
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
