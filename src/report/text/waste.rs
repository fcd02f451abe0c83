//! Text of `waste`: a line for each image, or the layers and hidden files of one image.

use super::format::{bytes, name_or_id, safe, short_id};
use super::screen::Screen;
use super::table::Table;
use crate::app::waste::{ImageWaste, StoreWaste};
use crate::model::text::display::count;
use crate::report::json::WasteDoc;

pub fn waste(document: &WasteDoc, screen: &Screen) -> String {
    match (&document.image, document.images.as_slice()) {
        (Some(_), [image]) => {
            let mut out = layers(document, screen);
            out.push_str(&files(document, screen));
            out + &screen.note(&of_image(image, document.omitted_files))
        }
        (_, images) => {
            let mut out = table_of_images(images, screen);
            for store in &document.stores {
                let sentences = format!("\n{}", of_store(store));
                out.push_str(&screen.note(&sentences));
            }
            out
        }
    }
}

fn unknown_or(number: Option<u64>) -> String {
    number.map_or_else(|| "unknown".into(), bytes)
}

fn table_of_images(images: &[ImageWaste], screen: &Screen) -> String {
    let mut table =
        Table::new(screen, &["IMAGE", ">SIZE", ">HIDDEN", ">FILES", ">DELETED", ">COPIED", ">EQUAL"]);
    for image in images {
        table.row(vec![
            name_or_id(&image.names, &image.id),
            bytes(image.bytes),
            if image.complete { bytes(image.hidden.bytes) } else { "unknown".into() },
            image.hidden.files.to_string(),
            bytes(image.hidden.deleted_bytes),
            bytes(image.hidden.copied_bytes),
            unknown_or(image.equal_bytes),
        ]);
    }
    table.add_stores(images.iter().map(|image| image.store.as_str()));
    table.render()
}

fn layers(document: &WasteDoc, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["LAYER", ">SIZE", ">HIDDEN", ">HIDES", ">EQUAL", "SOURCE"]);
    for layer in &document.layers {
        table.row(vec![
            short_id(&layer.id),
            bytes(layer.bytes),
            bytes(layer.hidden.bytes),
            bytes(layer.hides_bytes),
            unknown_or(layer.equal_bytes),
            layer.source.to_string(),
        ]);
    }
    table.render()
}

fn files(document: &WasteDoc, screen: &Screen) -> String {
    let mut table = Table::new(screen, &[">SIZE", "HOW", "LAYER", "HIDDEN BY", "FILE"]);
    for file in &document.files {
        table.row(vec![
            bytes(file.bytes),
            file.how.to_string(),
            short_id(&file.layer),
            short_id(&file.hidden_by),
            safe(&file.path),
        ]);
    }
    table.block()
}

fn of_image(image: &ImageWaste, omitted: Option<usize>) -> String {
    let hidden = &image.hidden;
    let files = count(hidden.files, "file", "files");
    let mut text = format!(
        "\nThis image does not show {} of its {}: {files}, {} deleted and {} copied with the same content.",
        bytes(hidden.bytes),
        bytes(image.bytes),
        bytes(hidden.deleted_bytes),
        bytes(hidden.copied_bytes),
    );
    match omitted {
        None if hidden.files > 0 => text.push_str(" --files lists them."),
        Some(more) if more > 0 => {
            text.push_str(&format!(" {} not listed; --all lists them.", count(more, "file is", "files are")));
        }
        _ => {}
    }
    text
}

fn of_store(store: &StoreWaste) -> String {
    let layers = count(store.layers, "layer", "layers");
    let mut text = match (store.hidden.bytes, store.unread_layers) {
        (0, 0) => format!(
            "{}: images and containers show all files in {layers} ({}).",
            safe(&store.root),
            bytes(store.bytes)
        ),
        (hidden, unread) => format!(
            "{}: no image and no container shows {}{} of {} in {layers}{}. A rebuild of the images without these files \
             saves them.",
            safe(&store.root),
            if unread > 0 { "at least " } else { "" },
            bytes(hidden),
            bytes(store.bytes),
            share(hidden, store),
        ),
    };
    match store.equal_bytes {
        None => text.push_str(" Its layers have no checksums: equal files are unknown."),
        Some(0) => {}
        Some(equal) => {
            let remedy = if store.can_deduplicate {
                "deduplication (unless it was done already), a common base or a rebuild saves them"
            } else {
                "a common base or a rebuild saves them; this filesystem cannot share blocks between files"
            };
            text.push_str(&format!(
                " {}{} are further copies of equal files: {remedy}.",
                bytes(equal),
                share(equal, store)
            ));
        }
    }
    text
}

/// Formats the share of the filesystem's size, if it is worth a word.
fn share(part: u64, store: &StoreWaste) -> String {
    #[allow(clippy::cast_precision_loss)] // one decimal is shown
    let percent = part as f64 * 100.0 / store.capacity_bytes.max(1) as f64;
    if percent < 1.0 { String::new() } else { format!(" ({percent:.1}% of {})", safe(&store.filesystem)) }
}
