//! The summary of disk usage.

use super::format::{bytes, safe};
use super::table::{Table, heading};
use crate::model::Consistency;
use crate::model::refs::RowKind;
use crate::report::json::{FilesystemDoc, RowDoc, StoreDoc, UsageDoc};

/// The summary of every filesystem and store.
pub fn usage(document: &UsageDoc) -> String {
    let mut out = String::new();
    for filesystem in &document.filesystems {
        out.push_str(&filesystem_line(filesystem));
    }
    for store in &document.stores {
        out.push('\n');
        out.push_str(&store_line(&store.store));
        let mut table = Table::new(&["", ">COUNT", ">SIZE", ">EXCLUSIVE", ">RECLAIMABLE"]);
        for row in store.rows.iter().filter(|row| row.count > 0 || row.bytes > 0) {
            table.row(cells(row));
        }
        table.row(vec![
            "Total on disk".into(),
            String::new(),
            bytes(store.store.bytes.total),
            String::new(),
            bytes(store.store.reclaimable_bytes),
        ]);
        out.push_str(&table.render());
        if store.rows.iter().any(|row| row.kind == RowKind::Snapshotter) {
            out.push_str(
                "Snapshots of a second snapshotter are copies of image layers: they are deleted with their \
                 images, whose RECLAIMABLE includes them.\n",
            );
        }
    }
    out.push_str(
        "\nLayers are shared, so a row's SIZE may hold bytes of another row, and exclusive bytes of single \
         images do not add up.\nRECLAIMABLE is what deleting the whole row would free; in the last line, deleting all unused images and leaks.\n",
    );
    out
}

/// One line about a filesystem.
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
        heading("Filesystem").trim_end(),
        format_args!(" {}", safe(&filesystem.device)),
        safe(&filesystem.mount),
        safe(&filesystem.fstype),
        bytes(filesystem.capacity_bytes),
        bytes(filesystem.available_bytes),
    )
}

/// One line about a store.
pub(super) fn store_line(store: &StoreDoc) -> String {
    let read_only = if store.read_only { ", read-only" } else { "" };
    let state = match store.consistency {
        Consistency::Consistent => String::new(),
        other => format!(", records {other}"),
    };
    format!(
        "{} {} ({}, {}{read_only}{state}; from {})\n",
        heading("Store").trim_end(),
        safe(&store.root),
        store.kind,
        safe(&store.driver),
        safe(&store.origin),
    )
}

fn cells(row: &RowDoc) -> Vec<String> {
    let (name, counted, goes) = match row.kind {
        RowKind::ImagesInUse => ("Images in use", true, false),
        RowKind::ImagesPinned => ("Images pinned, not in use", true, false),
        RowKind::ImagesUnused => ("Images not in use", true, true),
        RowKind::Snapshotter => ("", true, false),
        RowKind::Containers => ("Containers", true, true),
        RowKind::LeaksReclaimable => ("Leaks", true, true),
        RowKind::LeaksKept => ("Findings that stay", true, false),
        RowKind::Metadata => ("Store metadata", false, false),
        RowKind::Other => ("Other files", false, false),
    };
    let dash = || "-".to_owned();
    // A snapshotter's name is a foreign text.
    let name =
        row.name.as_ref().map_or_else(|| name.to_owned(), |name| format!("Snapshotter {}", safe(name)));
    vec![
        name,
        if counted { row.count.to_string() } else { dash() },
        bytes(row.bytes),
        if counted { bytes(row.exclusive_bytes) } else { dash() },
        if goes { bytes(row.reclaimable_bytes) } else { dash() },
    ]
}
