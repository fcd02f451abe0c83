//! Text of `fits`.

use super::Screen;
use super::format::{bytes, never_pulled, safe, wrapped};
use super::table::Table;
use crate::model::rules::Rule;
use crate::model::text::display::{count, shell_word};
use crate::report::json::{ComingDoc, ComingState, FitsDoc};

/// Maximum number of images that a sentence names.
const MOST_NAMED: usize = 10;

pub fn fits(document: &FitsDoc, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["IMAGE", ">LAYERS", ">NEW", ">DOWNLOAD", ">ON DISK"]);
    for image in &document.images {
        table.row(row(image));
    }
    if document.images.len() > 1 {
        // A sum of nothing but unknown sizes would be 0.
        let is_unknown = unknown(document) > 0 && document.disk_bytes == 0;
        let total = |sum| if is_unknown { "unknown".to_owned() } else { bytes(sum) };
        table.row(vec![
            if !is_unknown && unknown(document) > 0 { "All of known size".into() } else { "All".into() },
            String::new(),
            String::new(),
            total(document.download_bytes),
            total(document.disk_bytes),
        ]);
    }
    table.fit(&[], &[(0, 24)]);
    let mut out = table.render();
    out.push('\n');
    if document.disk_bytes > 0 {
        out.push_str(&screen.note(&estimate(document)));
    }
    out.push_str(&paragraph(screen, &verdict(document)));
    out.push_str(&paragraph(screen, &room(document, screen)));
    out.push_str(
        &never_pulled(document.never_pulled.len()).map_or_else(String::new, |text| screen.note(&text)),
    );
    out.push_str(&paragraph(screen, &only_named(document)));
    indexes(document).iter().for_each(|line| out.push_str(&paragraph(screen, line)));
    out
}

fn paragraph(screen: &Screen, text: &str) -> String {
    if text.is_empty() { String::new() } else { wrapped(text, screen.width.unwrap_or(usize::MAX), "") }
}

fn row(image: &ComingDoc) -> Vec<String> {
    let number = |number: Option<usize>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let amount = |amount: Option<u64>| match (image.state, amount) {
        (ComingState::Present, _) => "here".to_owned(),
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

fn unknown(document: &FitsDoc) -> usize {
    document.images.iter().filter(|image| image.state == ComingState::Unknown).count()
}

/// Returns the words for the images whose sizes are in the sums.
fn arriving(document: &FitsDoc) -> &'static str {
    if unknown(document) > 0 { "those of known size" } else { "these images" }
}

fn verdict(document: &FitsDoc) -> String {
    let threshold =
        document.high_percent.map_or_else(String::new, |high| format!(" (high threshold {high}%)"));
    let filesystem = safe(&document.filesystem);
    let now = format!("{}% used now", document.used_percent);
    let (all, unknown) = (document.images.len(), unknown(document));
    if document.images.iter().all(|image| image.state == ComingState::Present) {
        let state = match (document.used_after_gc_percent, document.high_percent) {
            (None, _) => threshold,
            (Some(_), Some(high)) if document.used_percent >= f64::from(high) => {
                format!(", above the high threshold {high}%")
            }
            (Some(_), _) => ", and less is available than the configuration asks for".to_owned(),
        };
        return format!("{filesystem}: all images are here already, nothing is to be pulled; {now}{state}.");
    }
    if unknown > 0 && document.disk_bytes == 0 {
        let whose = match (all, all - unknown) {
            (1, _) => "the size of the image is unknown, so whether it fits is unknown".to_owned(),
            (_, 0) => {
                format!("the size of none of the {all} images is known, so whether they fit is unknown")
            }
            (_, here) => format!(
                "{here} of the {all} images {} here already, and the size of the others is unknown, so whether they fit \
                 is unknown",
                if here == 1 { "is" } else { "are" },
            ),
        };
        return format!("{filesystem}: {now}{threshold}; {whose}.");
    }
    format!(
        "{filesystem}: {now}, {}% with {}{threshold}: {}",
        document.used_with_images_percent,
        arriving(document),
        match (document.fits, unknown > 0) {
            (false, _) => "they do not fit.",
            (true, false) => "they fit.",
            (true, true) => "those of known size fit.",
        }
    )
}

/// Formats the images that stay, by rule. Those in use are one group, with each of its users.
fn kept(document: &FitsDoc, screen: &Screen) -> String {
    let now = document.header.generated_at;
    let (used, others): (Vec<_>, Vec<_>) = document.kept.iter().partition(|group| group.rule == Rule::InUse);
    let in_use = used.iter().map(|group| group.images).sum::<usize>();
    let users: Vec<_> = used.iter().map(|group| group.detail.clone()).collect();
    let why = if in_use == 1 { "because it is in use" } else { "because they are in use" };
    let used = format!("{} {why} ({})", count(in_use, "image stays", "images stay"), first(&users));
    let others = others.iter().map(|group| {
        let until =
            group.until.map_or_else(String::new, |until| format!(" until {}", screen.time_on(until, now)));
        let images = count(group.images, "image stays", "images stay");
        let first = if group.images > 1 { "the first: " } else { "" };
        format!("{images} by {}{until} ({first}{})", group.rule, safe(&group.detail))
    });
    (in_use > 0).then_some(used).into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

fn room(document: &FitsDoc, screen: &Screen) -> String {
    let Some(after) = document.used_after_gc_percent else { return String::new() };
    let Some(command) = &document.command else {
        let kept = kept(document, screen);
        return format!(
            "Nothing can be deleted to make room: {}. `layersweep report` lists what holds the disk.",
            if kept.is_empty() { "there is no image" } else { &kept }
        );
    };
    let refused = document
        .gc_refused
        .as_deref()
        .map_or_else(String::new, |why| format!(" (it would be refused now: {})", safe(why)));
    // Images that are here, or of unknown size, add nothing.
    let (pulled, with) = match document.disk_bytes {
        0 => ("", String::new()),
        _ => (" after the pull", format!(" with {}", arriving(document))),
    };
    let aim = match document.low_percent.filter(|_| document.deletes_needed.is_some()) {
        Some(low) => format!(", to be at the low threshold ({low}%){pulled}"),
        None => String::new(),
    };
    let enough = match (document.deletes_needed, document.high_percent) {
        (None, _) => match kept(document, screen) {
            kept if kept.is_empty() => ", which is still too much".to_owned(),
            kept => format!(", which is still too much; {kept}"),
        },
        (Some(needed), Some(high)) if needed < document.deletes.len() => {
            let first = match needed {
                1 => "the first deletion is enough".to_owned(),
                _ => format!("the first {needed} deletions are enough"),
            };
            format!("; to be below the high threshold ({high}%), {first}")
        }
        (Some(_), _) => String::new(),
    };
    let deletions = format!(
        "`{command}` would delete {} ({}) and free {}{aim}: {after}% used{with} then{enough}{refused}.",
        count(document.deletes.len(), "image", "images"),
        first(&document.deletes),
        bytes(document.freed_bytes),
    );
    match document.to_pin.len() {
        0 => format!("To make room, {deletions}"),
        1..=MOST_NAMED => {
            let names: Vec<_> = document.to_pin.iter().map(|name| shell_word(name)).collect();
            format!(
                "To make room, first `layersweep pin add {}`, since gc may delete what is here of these images. Then \
                 {deletions}",
                safe(&names.join(" "))
            )
        }
        more => format!(
            "To make room, first pin {more} of these images, which are here and which gc may delete (--format json has \
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

fn only_named(document: &FitsDoc) -> String {
    let unknown: Vec<_> = document
        .images
        .iter()
        .filter(|image| image.state == ComingState::Unknown && !image.is_index)
        .collect();
    // Perhaps the name of a file is misspelt: that is named first.
    let Some(image) = unknown.iter().find(|image| image.no_such_file).or(unknown.first()) else {
        return String::new();
    };
    let name = safe(&image.name);
    let source = safe(&shell_word(&format!("docker://{}", image.name)));
    format!(
        "{} left out: only the name is known{}. With its manifest it counts: pipe `skopeo inspect --raw {source}` into \
         `layersweep fits -`.",
        match unknown.len() {
            1 => "1 image is".to_owned(),
            count => format!("{count} images are"),
        },
        match (image.no_such_file, unknown.len()) {
            (false, _) => String::new(),
            (true, 1) => " (no file has this name)".to_owned(),
            (true, _) => format!(" (no file has the name {name})"),
        },
    )
}

/// Formats the indexes, each with the command that prints the manifest of this node's platform.
fn indexes(document: &FitsDoc) -> Vec<String> {
    let indexes: Vec<_> = document
        .images
        .iter()
        .filter(|image| image.is_index && image.state == ComingState::Unknown)
        .collect();
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::model::SCHEMA_VERSION;
    use crate::model::arrival::Ratio;
    use crate::report::json::{DocumentKind, Header, KeptByRuleDoc};

    fn document() -> FitsDoc {
        let in_use = |images, detail: &str| KeptByRuleDoc {
            rule: Rule::InUse,
            images,
            detail: detail.into(),
            until: None,
        };
        FitsDoc {
            header: Header {
                schema_version: SCHEMA_VERSION,
                kind: DocumentKind::Fits,
                generated_at: Timestamp::UNIX_EPOCH,
            },
            complete: true,
            fits: false,
            store: "/s".into(),
            filesystem: "/var".into(),
            images: vec![],
            download_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            disk_bytes_low: 1 << 20,
            disk_bytes_high: 1 << 20,
            ratio: Ratio { mean: 1.0, low: 1.0, high: 1.0, layers: 1 },
            used_percent: 90.0,
            used_with_images_percent: 97.0,
            high_percent: Some(85),
            low_percent: Some(80),
            command: Some("layersweep gc".into()),
            to_pin: vec![],
            deletes: vec!["acme/old:1".into()],
            deletes_needed: None,
            never_pulled: vec![],
            freed_bytes: 1 << 20,
            used_after_gc_percent: Some(95.0),
            fits_after_gc: Some(false),
            kept: vec![
                in_use(2, "used by db"),
                KeptByRuleDoc { rule: Rule::Pinned, images: 2, detail: "pinned by a".into(), until: None },
                in_use(1, "used by web"),
            ],
            gc_refused: None,
            warnings: vec![],
        }
    }

    #[test]
    fn deleted_images_are_named_before_kept_ones() {
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let document = document();
        assert_eq!(
            room(&document, &screen),
            "To make room, `layersweep gc` would delete 1 image (acme/old:1) and free 1.0 MiB: 95% used with these \
             images then, which is still too much; 3 images stay because they are in use (used by db, used by web); \
             2 images stay by pinned (the first: pinned by a)."
        );
        let deletes = vec!["a:1".into(), "b:1".into(), "c:1".into()];
        let enough = FitsDoc { deletes, deletes_needed: Some(2), ..document };
        let text = room(&enough, &screen);
        assert!(text.contains("delete 3 images (a:1, b:1, c:1) and free "), "{text}");
        assert!(text.ends_with("the high threshold (85%), the first 2 deletions are enough."), "{text}");
    }
}
