//! Text of `scan`: all objects of all stores.

use super::format::{age_of, bytes, safe, short_id};
use super::images::images;
use super::screen::Screen;
use super::table::Table;
use super::usage::{filesystem_line, store_line};
use crate::model::text::display::count;
use crate::report::json::{LeakDoc, ScanDoc};

pub fn scan<L>(document: &ScanDoc<L>, screen: &Screen) -> String {
    let mut out = String::new();
    for filesystem in &document.filesystems {
        out.push_str(&filesystem_line(filesystem));
    }
    for store in &document.stores {
        out.push_str(&store_line(store));
        let sums = &store.bytes;
        out.push_str(&format!(
            "  images {}, containers {}, leaks {}, metadata {}, other {}: {} on disk\n",
            bytes(sums.images),
            bytes(sums.containers),
            bytes(sums.leaks),
            bytes(sums.metadata),
            bytes(sums.other),
            bytes(sums.total),
        ));
        for second in store.snapshotters.iter().filter(|snapshotter| snapshotter.second) {
            out.push_str(&format!(
                "  snapshotter {}: {} snapshots, {}, counted with the images and containers that have them\n",
                safe(&second.name),
                second.snapshots,
                bytes(second.bytes),
            ));
        }
        for other in store.other.iter().filter(|other| other.bytes >= 1 << 20) {
            out.push_str(&format!("  other: {} {}\n", safe(&other.name), bytes(other.bytes)));
        }
    }
    out.push('\n');
    out.push_str(&images(
        &document.images,
        document.images.len(),
        &document.fair_bytes,
        document.header.generated_at,
        screen,
    ));
    out.push_str(&containers(document, screen));
    out.push_str(&leaks(&document.leaks, screen));
    let totals = &document.totals;
    out.push_str(&format!(
        "\n{} ({} unused), {}, {}, {}; {} on disk, {} reclaimable\n",
        count(totals.images, "image", "images"),
        totals.images_unused,
        count(totals.layers, "layer", "layers"),
        count(totals.containers, "container", "containers"),
        count(totals.leaks, "leak", "leaks"),
        bytes(totals.bytes),
        bytes(totals.reclaimable_bytes),
    ));
    out.push_str(&format!("{} inodes examined in {:.1} s\n", document.scan.inodes, document.scan.seconds));
    out
}

fn containers<L>(document: &ScanDoc<L>, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["CONTAINER", "ID", "OWNER", "STATE", "IMAGE", ">SIZE"]);
    for container in &document.containers {
        table.row(vec![
            safe(&container.name),
            short_id(&container.id),
            container.owner.to_string(),
            container.state.to_string(),
            container.image.as_deref().map_or_else(|| "-".into(), safe),
            bytes(container.bytes),
        ]);
    }
    table.add_stores(document.containers.iter().map(|container| container.store.as_str()));
    table.block()
}

/// Formats the table of leaks; empty without leaks.
pub fn leaks(leaks: &[LeakDoc], screen: &Screen) -> String {
    let mut table = Table::new(screen, &["FINDING", "OBJECT", ">SIZE", ">AGE", "VERDICT", "EVIDENCE"]);
    for leak in leaks {
        table.row(vec![
            leak.class.to_string(),
            short_id(&leak.id),
            bytes(leak.bytes),
            age_of(leak.age_seconds),
            leak.verdict.to_string(),
            safe(&leak.evidence),
        ]);
    }
    table.add_stores(leaks.iter().map(|leak| leak.store.as_str()));
    table.block()
}
