//! Text of `fits`.

use super::Screen;
use super::format::{bytes, safe, wrapped};
use super::table::Table;
use crate::model::display::count;
use crate::report::json::{ComingDoc, FitsDoc};

/// Maximum number of deletions that are named.
const MOST_DELETIONS: usize = 10;

/// Formats the images, the estimate, and whether they fit.
pub fn fits(document: &FitsDoc, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["IMAGE", ">LAYERS", ">NEW", ">DOWNLOAD", ">ON DISK"]);
    for image in &document.images {
        table.row(row(image));
    }
    if document.images.len() > 1 {
        table.row(vec![
            "All".into(),
            String::new(),
            String::new(),
            bytes(document.download_bytes),
            bytes(document.disk_bytes),
        ]);
    }
    table.fit(&[], &[(0, 24)]);
    let mut out = table.render();
    out.push('\n');
    if document.disk_bytes > 0 {
        out.push_str(&screen.note(&estimate(document)));
    }
    out.push_str(&paragraph(screen, &verdict(document)));
    out.push_str(&paragraph(screen, &room(document)));
    let unknown: Vec<_> = document.images.iter().filter(|image| image.state == "unknown").collect();
    if let Some(first) = unknown.first() {
        out.push_str(&paragraph(screen, &format!(
            "{} left out: only the name is known. With its manifest it counts: `skopeo inspect --raw docker://{} | layersweep fits -`",
            match unknown.len() {
                1 => "1 image is".to_owned(),
                count => format!("{count} images are"),
            },
            safe(&first.name)
        )));
    }
    out
}

/// Formats a part of the result on lines that fit the terminal.
fn paragraph(screen: &Screen, text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => wrapped(text, screen.width.unwrap_or(usize::MAX), ""),
    }
}

fn row(image: &ComingDoc) -> Vec<String> {
    let number = |number: Option<usize>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let amount = |amount: Option<u64>| match (image.state, amount) {
        ("here", _) => "here".to_owned(),
        (_, Some(amount)) => bytes(amount),
        (_, None) => "unknown".to_owned(),
    };
    vec![
        safe(&image.name),
        number(image.layers),
        number(image.new_layers),
        amount(image.download_bytes),
        amount(image.disk_bytes),
    ]
}

fn estimate(document: &FitsDoc) -> String {
    let ratio = &document.ratio;
    let source = match ratio.layers {
        0 => "a usual ratio, since this store has no layer of known size".to_owned(),
        layers => format!("the ratio of this store's {}", count(layers, "layer", "layers")),
    };
    format!(
        "ON DISK is an estimate: {} bytes for each byte of the download, {source}. Most layers have between {} and {}: \
         {} to {}.",
        ratio.mean,
        ratio.low,
        ratio.high,
        bytes(document.disk_bytes_low),
        bytes(document.disk_bytes_high),
    )
}

fn verdict(document: &FitsDoc) -> String {
    let threshold =
        document.high_percent.map_or_else(String::new, |high| format!(" (high threshold {high}%)"));
    format!(
        "{}: {}% used now, {}% with these images{threshold}: {}",
        safe(&document.filesystem),
        document.used_percent,
        document.used_then_percent,
        match (document.fits, document.images.iter().any(|image| image.state == "unknown")) {
            (false, _) => "they do not fit.",
            (true, false) => "they fit.",
            (true, true) => "those of known size fit.",
        }
    )
}

fn room(document: &FitsDoc) -> String {
    let Some(after) = document.used_after_gc_percent else { return String::new() };
    if document.deletes.is_empty() {
        return "`layersweep gc` would find nothing to delete; `layersweep report` lists what holds the disk.".to_owned();
    }
    let mut names: Vec<_> = document.deletes.iter().take(MOST_DELETIONS).map(|name| safe(name)).collect();
    if document.deletes.len() > MOST_DELETIONS {
        names.push(format!("{} more", document.deletes.len() - MOST_DELETIONS));
    }
    let refused = document
        .gc_refused
        .as_deref()
        .map_or_else(String::new, |why| format!(" (it would be refused now: {})", safe(why)));
    format!(
        "To make room, `layersweep gc` would delete {} and free {}: {after}% used with these images then{refused}. They \
         are: {}.",
        count(document.deletes.len(), "image", "images"),
        bytes(document.freed_bytes),
        names.join(", ")
    )
}
