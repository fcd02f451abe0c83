//! Text of `fits`.

use super::Screen;
use super::format::{bytes, safe, wrapped};
use super::table::Table;
use crate::model::display::{count, shell_word};
use crate::report::json::{ComingDoc, FitsDoc};

/// Maximum number of images that a sentence names.
const MOST_NAMED: usize = 10;

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
    out.push_str(&paragraph(screen, &only_named(document)));
    indexes(document).iter().for_each(|line| out.push_str(&paragraph(screen, line)));
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
    let filesystem = safe(&document.filesystem);
    let now = format!("{}% used now", document.used_percent);
    if document.images.iter().all(|image| image.state == "here") {
        return match document.used_after_gc_percent {
            None => format!("{filesystem}: all images are here; {now}{threshold}."),
            Some(_) => format!(
                "{filesystem}: all images are here; the disk is above its threshold without them: {now}{threshold}."
            ),
        };
    }
    format!(
        "{filesystem}: {now}, {}% with these images{threshold}: {}",
        document.used_then_percent,
        match (document.fits, document.images.iter().any(|image| image.state == "unknown")) {
            (false, _) => "they do not fit.",
            (true, false) => "they fit.",
            (true, true) if document.disk_bytes == 0 => "those of known size are here.",
            (true, true) => "those of known size fit.",
        }
    )
}

fn room(document: &FitsDoc) -> String {
    let (Some(after), Some(command)) = (document.used_after_gc_percent, &document.command) else {
        return String::new();
    };
    if document.deletes.is_empty() {
        let stays = document.stays.iter().map(|rule| {
            format!(
                "{} by {} ({})",
                count(rule.images, "image stays", "images stay"),
                rule.rule,
                safe(&rule.detail)
            )
        });
        let stays: Vec<_> = stays.collect();
        return format!(
            "Nothing can be deleted to make room: {}. `layersweep report` lists what holds the disk.",
            if stays.is_empty() { "there is no image".to_owned() } else { stays.join(", ") }
        );
    }
    let refused = document
        .gc_refused
        .as_deref()
        .map_or_else(String::new, |why| format!(" (it would be refused now: {})", safe(why)));
    let enough = if document.fits_after_gc == Some(false) { ", which is still too much" } else { "" };
    let deletions = format!(
        "`{command}` would delete {} and free {}: {after}% used with these images then{enough}{refused}. They are: {}.",
        count(document.deletes.len(), "image", "images"),
        bytes(document.freed_bytes),
        first(&document.deletes)
    );
    match document.to_pin.len() {
        0 => format!("To make room, {deletions}"),
        1..=MOST_NAMED => {
            let names: Vec<_> = document.to_pin.iter().map(|name| shell_word(name)).collect();
            format!(
                "To make room, first `layersweep pin add {}`, since gc would delete what is here of these images. Then \
                 {deletions}",
                safe(&names.join(" "))
            )
        }
        more => format!(
            "To make room, first pin {more} of these images, which are here and which gc would delete (--format json has \
             them in to_pin): {}. Then {deletions}",
            first(&document.to_pin)
        ),
    }
}

/// Formats the first names of a list.
fn first(names: &[String]) -> String {
    let mut shown: Vec<_> = names.iter().take(MOST_NAMED).map(|name| safe(name)).collect();
    if names.len() > MOST_NAMED {
        shown.push(format!("{} more", names.len() - MOST_NAMED));
    }
    shown.join(", ")
}

/// Formats the images of which only the name is known.
fn only_named(document: &FitsDoc) -> String {
    let unknown = document.images.iter().filter(|image| image.state == "unknown" && !image.is_index);
    let unknown: Vec<_> = unknown.collect();
    let Some(image) = unknown.first() else { return String::new() };
    format!(
        "{} left out: only the name is known. With its manifest it counts: pipe `skopeo inspect --raw docker://{}` into \
         `layersweep fits -`.",
        match unknown.len() {
            1 => "1 image is".to_owned(),
            count => format!("{count} images are"),
        },
        safe(&image.name)
    )
}

/// Formats the indexes, each with the command that prints the manifest of this node's platform.
fn indexes(document: &FitsDoc) -> Vec<String> {
    let indexes: Vec<_> =
        document.images.iter().filter(|image| image.is_index && image.state == "unknown").collect();
    let lines = indexes.iter().take(MOST_NAMED).map(|image| match &image.platform_digest {
        Some(digest) => format!(
            "{} is left out: it is an index, which has no sizes. This node's manifest has them: `skopeo inspect --raw \
             docker://REPOSITORY@{}`",
            safe(&image.name),
            safe(digest)
        ),
        None => format!("{} is left out: it is an index without a manifest for this node's platform.", safe(&image.name)),
    });
    let more = indexes.len().saturating_sub(MOST_NAMED);
    let more = (more > 0).then(|| format!("{more} more indexes are left out; --format json has them."));
    lines.chain(more).collect()
}
