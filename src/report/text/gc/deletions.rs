//! Tables of the deletions.

use crate::model::deletion::outcome::differs;
use crate::model::deletion::plan::TargetKind;
use crate::model::text::display::thousands;
use crate::report::json::{DeletionDoc, GcDoc, GcFilesystemDoc};
use crate::report::text::format::{DIFFERS, bytes, measured, never_pulled, safe, short_id};
use crate::report::text::screen::Screen;
use crate::report::text::table::Table;

const GROUP: &str = "An image \"with N more\" and the N images below it share layers, which only the last deletion frees: \
                     delete all of them, or none.\n";

/// Formats the table of these deletions after an empty line, with their inodes on a filesystem that is short of them.
pub(super) fn deletions(
    document: &GcDoc,
    filesystem: Option<&GcFilesystemDoc>,
    all: &[&DeletionDoc],
    screen: &Screen,
) -> String {
    if all.is_empty() {
        return String::new();
    }
    let only_images = all.iter().all(|deleted| deleted.kind == TargetKind::Image);
    let first = if only_images { "IMAGE" } else { "WHAT" };
    let mut headings = vec![first, "ID", "REASON", ">PREDICTED"];
    let short = filesystem.filter(|filesystem| filesystem.wanted_inodes > 0);
    let is_done = !document.dry_run;
    if is_done {
        headings.push(">MEASURED");
    }
    headings.extend(short.map(|_| ">INODES"));
    headings.extend([">USED AFTER", ""]);
    let mut table = Table::new(screen, &headings);
    for deleted in all {
        let mut cells = vec![
            match deleted.kind {
                TargetKind::Image if deleted.names.is_empty() && screen.width.is_some() => {
                    format!("<none> {}", short_id(&deleted.id))
                }
                TargetKind::Image => screen.list(&deleted.names, "<none>", |name| safe(name)),
                kind => format!("{kind} {}", screen.list(&deleted.names, "<none>", |name| safe(name))),
            },
            // A log has a path instead of an id.
            if deleted.kind == TargetKind::Log { String::new() } else { short_id(&deleted.id) },
            reason(deleted),
            bytes(deleted.predicted_bytes),
        ];
        if is_done {
            cells.push(measured(deleted.measured_bytes, deleted.disturbed));
        }
        cells.extend(short.map(|filesystem| {
            let here = deleted.freed.iter().filter(|freed| freed.filesystem == filesystem.usage.mount);
            thousands(here.fold(0, |sum: u64, freed| sum.saturating_add(freed.predicted_inodes)))
        }));
        cells.push(deleted.usage_after_percent.map_or_else(|| "-".into(), |used| format!("{used:.2}%")));
        cells.push(if deleted.differs { "!".into() } else { String::new() });
        table.row(cells);
    }
    table.add_stores(all.iter().map(|deleted| deleted.store.as_str()));
    table.fit(&[1], &[(0, 24)]);
    let mut out = table.block();
    if all.iter().any(|deleted| deleted.group.is_some_and(|members| members > 1)) {
        out.push_str(&screen.note(GROUP.trim_end()));
    }
    if all.iter().any(|deleted| deleted.differs) {
        out.push_str(&screen.note(DIFFERS.trim_end()));
    }
    let lost = never_pulled(all.iter().filter(|deleted| deleted.never_pulled).count());
    out.push_str(&lost.map_or_else(String::new, |text| screen.note(&text)));
    out
}

fn reason(deleted: &DeletionDoc) -> String {
    match deleted.group {
        Some(members) if members > 1 => format!("{}, with {} more", deleted.reason, members - 1),
        _ => deleted.reason.to_string(),
    }
}

/// Returns a deletion with the bytes that it frees on one filesystem, or `None` if it frees none there.
pub(super) fn freed_on(deleted: &DeletionDoc, mount: &str) -> Option<DeletionDoc> {
    let freed = deleted.freed.iter().find(|freed| freed.filesystem == mount && freed.predicted_bytes > 0)?;
    let (predicted_bytes, measured_bytes) = (freed.predicted_bytes, freed.measured_bytes);
    Some(DeletionDoc {
        predicted_bytes,
        measured_bytes,
        usage_after_percent: freed.usage_after_percent,
        differs: deleted.differs && measured_bytes.is_some_and(|bytes| differs(predicted_bytes, bytes)),
        ..deleted.clone()
    })
}
