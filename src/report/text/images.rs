//! Text of `images`: a line for each image.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::format::{age, bytes, names, safe, short_id};
use super::screen::Screen;
use super::table::Table;
use crate::model::Owner;
use crate::model::deletion::plan::TargetKind;
use crate::model::text::display::count;
use crate::report::json::{BytesDoc, ImageDoc, UserDoc, UserKind};

/// Formats the table of images, with the sum of their fair shares and the reasons why images are out of
/// reach. `all`: number of images without `--filter`.
pub fn images(images: &[ImageDoc], all: usize, fair: &BytesDoc, now: Timestamp, screen: &Screen) -> String {
    // Without records, the columns of ages would be empty.
    let remembered = images.iter().any(|image| image.first_detected.is_some());
    let mut headings = vec!["IMAGE", "ID", ">CREATED"];
    if remembered {
        headings.extend([">DETECTED", ">LAST USED"]);
    }
    headings.extend(["USED BY", "PINNED", ">SIZE", ">SHARED", ">EXCLUSIVE", ">FAIR", ">FREES"]);
    let mut table = Table::new(screen, &headings);
    for image in images {
        let label = if image.names.is_empty() && screen.width.is_some() {
            // A narrow terminal removes the column of ids.
            format!("{} {}", name(image), short_id(&image.id))
        } else {
            screen.list(&image.names, "<none>", |name| safe(name)) + kind(image)
        };
        let mut cells = vec![label, short_id(&image.id), age(image.created_at, now)];
        if remembered {
            cells.push(age(image.first_detected, now));
            // A container deleted before the first scan leaves a time of use, but is not counted.
            cells.push(match (image.last_used, image.use_count) {
                (None, Some(0)) => "never".into(),
                (last_used, _) => age(last_used, now),
            });
        }
        cells.extend([
            screen.list(&image.used_by, "-", user),
            if image.pinned { "yes".into() } else { "-".into() },
            size(image, image.total_bytes),
            size(image, image.shared_bytes),
            size(image, image.exclusive_bytes),
            size(image, image.fair_bytes),
            image.frees_bytes.map_or_else(|| "-".into(), bytes),
        ]);
        table.row(cells);
    }
    table.add_stores(images.iter().map(|image| image.store.as_str()));
    // SHARED is SIZE minus EXCLUSIVE; the build date is of little use once the detection is known.
    let optional: Vec<usize> = [
        "SHARED",
        if remembered { "CREATED" } else { "PINNED" },
        "FREES",
        "PINNED",
        "ID",
        "CREATED",
        "FAIR",
        "USED BY",
    ]
    .into_iter()
    .filter_map(|heading| position(&headings, heading))
    .collect();
    let elastic: Vec<_> = [("IMAGE", 22), ("USED BY", 10)]
        .into_iter()
        .filter_map(|(heading, width)| Some((position(&headings, heading)?, width)))
        .collect();
    let removed = table.fit(&optional, &elastic);
    let mut out = table.render();
    if !screen.notes {
        return out;
    }
    if !images.is_empty() {
        if !removed.iter().any(|heading| heading == "FAIR") {
            out.push_str(&if images.len() == all { adds_up(fair) } else { part(images, all, fair) });
        }
        if !removed.iter().any(|heading| heading == "FREES") {
            out.push_str(frees_less(images));
        }
        out.push_str(&out_of_reach(images));
    }
    if !removed.is_empty() {
        out.push_str(&format!(
            "A wider terminal, a pipe or --format json also shows {}.\n",
            removed.join(", ")
        ));
    }
    out
}

/// Says why FREES may be much less than EXCLUSIVE.
fn frees_less(images: &[ImageDoc]) -> &'static str {
    /// Bytes from which the difference is no metadata of the filesystem.
    const MUCH: u64 = 1 << 20;
    let mut frees = images.iter().filter_map(|image| Some((image.frees_bytes?, image.exclusive_bytes)));
    if frees.any(|(frees, exclusive)| frees + MUCH < exclusive) {
        "FREES is less than EXCLUSIVE where layers share extents or files are compressed: `layersweep explain` says \
         how much.\n"
    } else {
        ""
    }
}

/// Formats one of the sizes of an image, which are unknown if some of its layers are not measured.
fn size(image: &ImageDoc, size: u64) -> String {
    image.frees_bytes.map_or_else(|| "unknown".into(), |_| bytes(size))
}

fn position(headings: &[&str], wanted: &str) -> Option<usize> {
    headings.iter().position(|heading| heading.trim_start_matches('>') == wanted)
}

fn adds_up(fair: &BytesDoc) -> String {
    let rest = [
        ("containers", fair.containers),
        ("build cache", fair.build_cache),
        ("leaks", fair.leaks),
        ("store metadata", fair.metadata),
        ("other files", fair.other),
    ];
    let rest: Vec<_> = rest
        .iter()
        .filter(|(_, size)| *size > 0)
        .map(|(name, size)| format!(", {name} {}", bytes(*size)))
        .collect();
    format!(
        "FAIR divides each layer equally among the images and containers that use it, and adds up: images \
         {}{}; {} in all.\n",
        bytes(fair.images),
        rest.concat(),
        bytes(fair.total)
    )
}

/// Formats the sum of the listed fair shares, beside that of all images.
fn part(images: &[ImageDoc], all: usize, fair: &BytesDoc) -> String {
    let listed = images.iter().fold(0, |sum: u64, image| sum.saturating_add(image.fair_bytes));
    format!(
        "FAIR divides each layer equally among the images and containers that use it: {} in {} listed, of {} in all {all} \
         images.\n",
        bytes(listed),
        count(images.len(), "image", "images"),
        bytes(fair.images)
    )
}

/// Formats the reasons why unused images cannot be deleted by layersweep, a line for each reason.
fn out_of_reach(images: &[ImageDoc]) -> String {
    /// Maximum number of lines.
    const REASONS: usize = 5;
    let unused = images.iter().filter(|image| !image.in_use && !image.pinned);
    let mut by_reason: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in unused.filter_map(|image| image.out_of_reach.as_deref()) {
        *by_reason.entry(reason).or_default() += 1;
    }
    let lines = by_reason.into_iter().take(REASONS).map(|(reason, images)| {
        let images = count(images, "unused image", "unused images");
        format!("Out of reach of gc: {images}, {}.\n", safe(reason))
    });
    lines.collect()
}

/// Formats the first name of an image, the number of others, and the kind if it is unusual.
pub(super) fn name(image: &ImageDoc) -> String {
    names(&image.names) + kind(image)
}

/// Formats the kind of an image if it is unusual.
fn kind(image: &ImageDoc) -> &'static str {
    match image.kind {
        TargetKind::Artifact => " (artifact)",
        _ if image.manifest_list => " (list)",
        _ => "",
    }
}

fn user(user: &UserDoc) -> String {
    match (user.kind, user.owner) {
        (UserKind::External, _) => safe(&user.name).to_string(),
        (_, owner) => format!("{} ({})", safe(&user.name), owner.unwrap_or(Owner::Unknown)),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::model::Origin;

    fn image(name: &str) -> ImageDoc {
        ImageDoc {
            id: "0123456789abcdef".repeat(4),
            names: vec![name.into()],
            kind: TargetKind::Image,
            digests: vec![],
            store: "/s".into(),
            origin: Origin::default(),
            manifest_list: false,
            created_at: "2026-11-01T12:00:00Z".parse().ok(),
            first_detected: None,
            first_detected_from: None,
            last_used: None,
            use_count: None,
            lives: None,
            in_use: false,
            used_by: vec![],
            pinned: false,
            pinned_by: vec![],
            layers: vec![],
            total_bytes: 700 << 20,
            shared_bytes: 100 << 20,
            exclusive_bytes: 600 << 20,
            fair_bytes: 650 << 20,
            frees_bytes: Some(600 << 20),
            listed_bytes: None,
            out_of_reach: None,
        }
    }

    fn lines(given: &[ImageDoc], width: Option<usize>) -> Vec<String> {
        let shown = shown(given, given.len(), width);
        shown.lines().take(given.len() + 1).map(str::to_owned).collect()
    }

    fn shown(given: &[ImageDoc], all: usize, width: Option<usize>) -> String {
        let screen = Screen { width, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let fair = BytesDoc {
            images: 650 << 20,
            containers: 0,
            build_cache: 0,
            leaks: 0,
            metadata: 0,
            other: 0,
            total: 650 << 20,
        };
        anstream::adapter::strip_str(&images(given, all, &fair, now, &screen)).to_string()
    }

    #[test]
    fn filtered_images_have_their_own_sum() {
        let mut given = image("quay.io/a:1");
        given.fair_bytes = 50 << 20;
        let text = shown(&[given], 9, None);
        let sum = "use it: 50.0 MiB in 1 image listed, of 650.0 MiB in all 9 images.\n";
        assert!(text.ends_with(sum), "{text}");
    }

    #[test]
    fn uncounted_use_shows_its_time() {
        let mut used = image("quay.io/a:1");
        used.first_detected = "2026-11-10T12:00:00Z".parse().ok();
        used.use_count = Some(0);
        let mut never = used.clone();
        never.names = vec!["quay.io/b:1".into()];
        used.last_used = "2026-11-21T11:00:00Z".parse().ok();
        let shown = lines(&[used, never], None);
        assert!(shown[1].contains("60m") && !shown[1].contains("never"), "{shown:#?}");
        assert!(shown[2].contains("never"), "{shown:#?}");
    }

    #[test]
    fn table_fits_narrow_terminals() {
        let mut used = image("registry.example:5000/some/longer/path/service:1.2.3");
        fn user(name: &str) -> UserDoc {
            UserDoc { kind: UserKind::Container, id: "c".into(), name: name.into(), owner: Some(Owner::CriO) }
        }
        used.used_by = vec![user("k8s_service_service-5d8f9_default_0"), user("other")];
        let mut known = used.clone();
        known.first_detected = "2026-11-10T12:00:00Z".parse().ok();
        known.use_count = Some(0);
        for given in [[image("quay.io/a:1"), used], [image("quay.io/b\u{1b}[2J:1"), known]] {
            let whole = lines(&given, None);
            assert!(
                whole[2].starts_with("registry.example:5000/some/longer/path/service:1.2.3  0123456789ab")
            );
            assert!(whole[0].contains("SHARED"));
            for width in [80, 100, 120] {
                let fitted = lines(&given, Some(width));
                assert!(fitted.iter().all(|line| line.chars().count() <= width), "{fitted:#?}");
                assert!(fitted[2].contains("service:1.2.3"), "the end of the name: {fitted:#?}");
                assert!(!fitted.concat().contains('\u{1b}'));
                // The note about a column is shown with the column.
                let text = shown(&given, 2, Some(width));
                assert_eq!(text.contains("FAIR divides"), fitted[0].contains("FAIR"), "{text}");
                for heading in ["USED BY", "SIZE", "EXCLUSIVE"] {
                    assert!(fitted[0].contains(heading), "{heading}: {fitted:#?}");
                }
                if given[1].first_detected.is_some() {
                    assert!(fitted[0].contains("DETECTED") && fitted[0].contains("LAST USED"), "{fitted:#?}");
                    assert!(fitted[2].contains("11d") && fitted[2].contains("never"), "{fitted:#?}");
                }
            }
        }
    }
}
