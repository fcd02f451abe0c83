//! Text of `fits`.

use super::Screen;
use super::format::{bytes, safe, wrapped};
use super::table::Table;
use crate::app::fits::Fit;
use crate::model::arrival::SizeSource;
use crate::model::rules::Rule;
use crate::model::text::display::{count, shell_word};
use crate::report::json::{ComingDoc, ComingState, FitsDoc};

/// Maximum number of images that a list names.
const MOST_NAMED: usize = 10;

pub fn fits(document: &FitsDoc, screen: &Screen) -> String {
    let headings = ["IMAGE", ">LAYERS", ">NEW", ">DOWNLOAD", ">ON DISK", ">AT LEAST", ">AT MOST"];
    let mut table = Table::new(screen, &headings);
    for image in &document.images {
        table.row(row(image));
    }
    if document.images.len() > 1 {
        // A sum of nothing but unknown sizes would be 0.
        let is_unknown = unknown(document) > 0 && document.disk_bytes == 0;
        let sums =
            [document.download_bytes, document.disk_bytes, document.disk_bytes_low, document.disk_bytes_high];
        let sums = sums.map(|sum| if is_unknown { "unknown".to_owned() } else { bytes(sum) });
        let title = if !is_unknown && unknown(document) > 0 { "All of known size" } else { "All" };
        table.row([title.to_owned(), String::new(), String::new()].into_iter().chain(sums).collect());
    }
    table.fit(&[1], &[(0, 24)]);
    let mut out = table.render();
    out.push('\n');
    if document.disk_bytes > 0 {
        out.push_str(&screen.note(&estimate(document)));
    }
    out.push_str(&paragraph(screen, &verdict(document)));
    out.push_str(&room(document, screen));
    out.push_str(&paragraph(screen, &only_named(document)));
    indexes(document).iter().for_each(|line| out.push_str(&paragraph(screen, line)));
    out
}

fn paragraph(screen: &Screen, text: &str) -> String {
    if text.is_empty() { String::new() } else { wrapped(text, screen.width.unwrap_or(usize::MAX), "") }
}

/// Formats a list, one element a line unless the terminal is narrower.
fn list(screen: &Screen, elements: &[String]) -> String {
    elements.iter().map(|element| wrapped(element, screen.width.unwrap_or(usize::MAX), "  ")).collect()
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
        amount(image.disk_bytes_low),
        amount(image.disk_bytes_high),
    ]
}

fn estimate(document: &FitsDoc) -> String {
    let sources = document.estimated_from.iter().map(|from| {
        let source = match from.source {
            SizeSource::Layer => "the same layers on this node",
            SizeSource::Repository => "layers of the same repository on this node",
            SizeSource::Manifest => "the length of their tar in the manifest",
            SizeSource::Node => "the mean of this node's layers",
            SizeSource::Usual => "the usual ratio",
        };
        format!("{source} ({} compressed)", bytes(from.compressed_bytes))
    });
    let sources: Vec<_> = sources.collect();
    let is_wide = document.disk_bytes_high > document.disk_bytes.saturating_mul(3) / 2;
    let advice = if is_wide {
        " The spread is narrower for a manifest that has the image's name, if this node has layers of its repository."
    } else {
        ""
    };
    format!("ON DISK is an estimate from {}.{advice}", sources.join(", "))
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
    let (low, high) = (document.used_with_images_percent_low, document.used_with_images_percent_high);
    let spread = (low < high).then(|| format!("{low} to {high}%"));
    let threshold = document.high_percent.map(|high| format!("high threshold {high}%"));
    let notes: Vec<_> = spread.into_iter().chain(threshold).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) };
    let subject = if unknown > 0 { "those of known size" } else { "they" };
    let answer = match document.fits {
        Fit::Yes => "fit",
        Fit::Probably => "probably fit",
        Fit::No => "do not fit",
    };
    format!(
        "{filesystem}: {now}, {}% with {}{notes}: {subject} {answer}.",
        document.used_with_images_percent,
        arriving(document),
    )
}

/// Formats the images that stay, by rule. Those in use are one group, with each of its users.
fn kept(document: &FitsDoc, screen: &Screen) -> Vec<String> {
    let now = document.header.generated_at;
    let (used, others): (Vec<_>, Vec<_>) = document.kept.iter().partition(|group| group.rule == Rule::InUse);
    let in_use = used.iter().map(|group| group.images).sum::<usize>();
    let users: Vec<_> = used.iter().map(|group| group.detail.clone()).collect();
    let why = if in_use == 1 { "because it is in use" } else { "because they are in use" };
    let used =
        format!("{} {why} ({})", count(in_use, "image stays", "images stay"), first(&users).join(", "));
    let others = others.iter().map(|group| {
        let until =
            group.until.map_or_else(String::new, |until| format!(" until {}", screen.time_on(until, now)));
        let images = count(group.images, "image stays", "images stay");
        let first = if group.images > 1 { "the first: " } else { "" };
        format!("{images} by {}{until} ({first}{})", group.rule, safe(&group.detail))
    });
    (in_use > 0).then_some(used).into_iter().chain(others).collect()
}

/// Formats the deletions that make room: a line with the command, and the list of its images.
fn room(document: &FitsDoc, screen: &Screen) -> String {
    let Some(after) = document.used_after_gc_percent else { return String::new() };
    let kept = kept(document, screen);
    let Some(command) = &document.command else {
        let stays = if kept.is_empty() { vec!["there is no image".to_owned()] } else { kept };
        let lost = document.never_pulled.len();
        // No other command is left out although its deletions are enough: the disk is that of another node.
        let is_elsewhere =
            document.fits_after_gc.is_some_and(|fit| fit != Fit::No) && !document.deletes.is_empty();
        let title = if lost > 0 {
            format!(
                "No command is given: a run that makes room would delete {} that {} built or loaded here, which perhaps \
                 no registry has:",
                count(lost, "image", "images"),
                if lost == 1 { "was" } else { "were" },
            )
        } else if document.deletes.is_empty() {
            "Nothing can be deleted to make room (`layersweep report` lists what holds the disk):".to_owned()
        } else if is_elsewhere {
            format!(
                "Once the node runs again, its gc can make room (fits prints the command there): without {}, {} less, it is \
                 {after}%{}:",
                count(document.deletes.len(), "image", "images"),
                bytes(document.freed_bytes),
                then(document),
            )
        } else {
            format!(
                "No deletion makes enough room: without {} that can be pulled again, {} less, it is {after}% used{}, still \
                 too much (`layersweep report` lists what holds the disk):",
                count(document.deletes.len(), "unused image", "unused images"),
                bytes(document.freed_bytes),
                if document.disk_bytes == 0 { "" } else { " after the pull" },
            )
        };
        let elements = match lost {
            0 if is_elsewhere => deletions(document),
            0 => stays,
            _ => first(&document.never_pulled),
        };
        return paragraph(screen, &title) + &list(screen, &elements);
    };
    let advice = format!(
        "{} `{command}` deletes {} and frees {}: {after}%{}.",
        if document.fits == Fit::Probably { "To be sure," } else { "To make room," },
        count(document.deletes.len(), "image", "images"),
        bytes(document.freed_bytes),
        then(document),
    );
    let refused = document.gc_refused.as_deref();
    let refused = refused.map_or_else(String::new, |why| format!("It would be refused now: {}", safe(why)));
    [
        pins(document, screen),
        paragraph(screen, &advice),
        list(screen, &deletions(document)),
        paragraph(screen, &refused),
    ]
    .concat()
}

/// Returns the end of a sentence about the usage after the deletions.
fn then(document: &FitsDoc) -> &'static str {
    match (document.disk_bytes, document.fits_after_gc) {
        // Images that are here, or of unknown size, add nothing.
        (0, _) => " used then",
        (_, Some(Fit::Probably)) => " used after the pull, which probably fits",
        (..) => " used after the pull, which fits",
    }
}

/// Formats the command that keeps images of the request.
fn pins(document: &FitsDoc, screen: &Screen) -> String {
    match document.to_pin.len() {
        0 => String::new(),
        1..=MOST_NAMED => {
            let names: Vec<_> = document.to_pin.iter().map(|name| shell_word(name)).collect();
            let names = safe(&names.join(" "));
            paragraph(
                screen,
                &format!("First `layersweep pin add {names}`: gc may delete what is here of these images."),
            )
        }
        more => {
            let title = format!(
                "First pin {more} of these images, which are here and which gc may delete (--format json has them in \
                 to_pin):"
            );
            paragraph(screen, &title) + &list(screen, &first(&document.to_pin))
        }
    }
}

/// Formats the list of deletions, with a mark at the one that is enough to be below the high threshold.
fn deletions(document: &FitsDoc) -> Vec<String> {
    let mut names = first(&document.deletes);
    let needed = document.deletes_needed.filter(|needed| *needed < document.deletes.len());
    if let (Some(needed), Some(high)) = (needed, document.high_percent) {
        let enough = format!("below the high threshold ({high}%)");
        if needed <= MOST_NAMED {
            names[needed - 1].push_str(&format!("   then {enough}"));
        } else if let Some(more) = names.last_mut() {
            more.push_str(&format!("; the first {needed} deletions are enough to be {enough}"));
        }
    }
    names
}

/// Formats the first names of a list.
fn first(names: &[String]) -> Vec<String> {
    let mut shown: Vec<_> = names.iter().take(MOST_NAMED).map(|name| safe(name)).collect();
    if names.len() > MOST_NAMED {
        shown.push(format!("{} more", names.len() - MOST_NAMED));
    }
    shown
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
    use crate::report::json::{DocumentKind, Header, KeptByRuleDoc};

    fn arriving_image() -> ComingDoc {
        ComingDoc {
            name: "a:2".into(),
            state: ComingState::Arrives,
            layers: Some(1),
            new_layers: Some(1),
            download_bytes: Some(1),
            disk_bytes: Some(2),
            disk_bytes_low: Some(1),
            disk_bytes_high: Some(3),
            is_index: false,
            platform_digest: None,
            no_such_file: false,
        }
    }

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
            fits: Fit::No,
            store: "/s".into(),
            filesystem: "/var".into(),
            images: vec![],
            download_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            disk_bytes_low: 1 << 20,
            disk_bytes_high: 1 << 20,
            estimated_from: vec![],
            used_percent: 90.0,
            used_with_images_percent: 97.0,
            used_with_images_percent_low: 96.0,
            used_with_images_percent_high: 98.0,
            high_percent: Some(85),
            low_percent: Some(80),
            command: Some("layersweep gc".into()),
            to_pin: vec![],
            deletes: vec!["acme/old:1".into()],
            deletes_needed: None,
            never_pulled: vec![],
            freed_bytes: 1 << 20,
            used_after_gc_percent: Some(95.0),
            fits_after_gc: Some(Fit::No),
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
    fn advice_is_one_line_and_a_list() {
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let document = FitsDoc { command: None, ..document() };
        assert_eq!(
            room(&document, &screen),
            "No deletion makes enough room: without 1 unused image that can be pulled again, 1.0 MiB less, it is 95% used \
             after the pull, still too much (`layersweep report` lists what holds the disk):\n\
             \x20 3 images stay because they are in use (used by db, used by web)\n\
             \x20 2 images stay by pinned (the first: pinned by a)\n"
        );
        let deletes = vec!["a:1".into(), "b:1".into(), "c:1".into()];
        let fits_after_gc = Some(Fit::Yes);
        let to_pin = vec!["x;reboot".into()];
        let command = Some("layersweep gc".into());
        let lost = FitsDoc { never_pulled: vec!["mine:1".into()], ..document.clone() };
        let screen_of_lost = room(&lost, &screen);
        assert!(
            screen_of_lost.starts_with("No command is given: ") && screen_of_lost.ends_with(":\n  mine:1\n")
        );
        let enough = FitsDoc { command, deletes, deletes_needed: Some(2), fits_after_gc, to_pin, ..document };
        let elsewhere = FitsDoc { command: None, to_pin: vec![], ..enough.clone() };
        assert_eq!(
            room(&elsewhere, &screen),
            "Once the node runs again, its gc can make room (fits prints the command there): without 3 images, 1.0 MiB \
             less, it is 95% used after the pull, which fits:\n\
             \x20 a:1\n\
             \x20 b:1   then below the high threshold (85%)\n\
             \x20 c:1\n"
        );
        assert_eq!(
            room(&enough, &screen),
            "First `layersweep pin add 'x;reboot'`: gc may delete what is here of these images.\n\
             To make room, `layersweep gc` deletes 3 images and frees 1.0 MiB: 95% used after the pull, which fits.\n\
             \x20 a:1\n\
             \x20 b:1   then below the high threshold (85%)\n\
             \x20 c:1\n"
        );
    }

    #[test]
    fn answer_is_as_sure_as_the_estimate() {
        for (fits, low, expected) in [
            (
                Fit::Yes,
                70.0,
                "/var: 90% used now, 97% with these images (70 to 98%; high threshold 85%): they fit.",
            ),
            (Fit::Probably, 70.0, ": they probably fit."),
            // The estimate decides, although its lower end would fit.
            (Fit::No, 70.0, ": they do not fit."),
        ] {
            let document = FitsDoc { fits, used_with_images_percent_low: low, ..document() };
            let text = verdict(&FitsDoc { images: vec![arriving_image()], ..document });
            assert!(text.ends_with(expected), "{text}");
        }
    }
}
