//! Text of `explain`: all facts about one object.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::format::{age, bytes, inodes, safe, short_id, wrapped};
use super::images::name;
use super::scan::leaks;
use super::screen::Screen;
use super::table::{Table, bold, heading};
use super::usage::place;
use crate::history::ages::{AgeRule, Basis};
use crate::model::EvidenceKind;
use crate::model::display::count;
use crate::report::json::{
    BelowDoc, EvidenceDoc, ExplainDoc, GcDecisionDoc, ImageDoc, LayerDoc, RememberedDoc, ShareRowDoc, UserDoc,
};

/// Formats the document of `explain`.
pub fn explain(document: &ExplainDoc, screen: &Screen) -> String {
    let mut out = String::new();
    match (&document.image, &document.container) {
        (Some(image), _) => {
            out.push_str(&image_lines(image, document));
            if let Some(known) = &document.remembered {
                out.push_str(&remembered(known, document.header.generated_at, screen));
            }
        }
        (None, Some(container)) => {
            out.push_str(&format!(
                "{} {}  {}  {}, {}\n  image   {}\n  fair    {} with its part of the image's layers\n",
                bold("container"),
                safe(&container.name),
                short_id(&container.id),
                container.owner,
                container.state,
                container.image.as_deref().map_or_else(|| "-".into(), safe),
                bytes(container.fair_bytes),
            ));
        }
        (None, None) => {
            out.push_str(&format!("{} {}\n", bold(document.subject), safe(&document.id)));
        }
    }
    if !matches!(document.subject, "directory" | "file") {
        out.push_str(&format!("  path    {}\n", safe(&document.path)));
    }
    out.push_str(&size_line(document));
    out.push_str(&difference_to_size(document));
    out.push_str(&chain(&document.chain, screen));
    if !document.held_by.is_empty() {
        out.push_str(&held_by(&document.held_by));
    }
    document.below.iter().for_each(|below| out.push_str(&owners(below, screen)));
    if !document.rules.is_empty() {
        let mut table = Table::new(screen, &["RULE", "VERDICT", "WHY"]);
        for rule in &document.rules {
            table.row(vec![rule.rule.into(), rule.verdict.into(), safe(&rule.detail)]);
        }
        out.push_str(&table.block());
        out.push_str(&document.fate.as_ref().map_or_else(String::new, fate));
    }
    out.push_str(&leaks(&document.leaks, screen));
    out
}

/// Formats the decision about an image or container.
fn fate(fate: &GcDecisionDoc) -> String {
    let command = fate.command.as_deref().unwrap_or("layersweep gc");
    match (&fate.refused, fate.place, &fate.detail) {
        (Some(why), Some(place), _) => format!(
            "`{command}` would be refused now: {}. Else it would delete it as number {place}, by {}, and free {}.\n",
            safe(why),
            fate.rule,
            bytes(fate.predicted_bytes.unwrap_or(0))
        ),
        (None, Some(place), _) => format!(
            "`{command}` would delete it now, as number {place}, by {}, and free {}.\n",
            fate.rule,
            bytes(fate.predicted_bytes.unwrap_or(0))
        ),
        (_, _, Some(detail)) => format!("Kept by rule {}: {}.\n", fate.rule, safe(detail)),
        _ => format!("Kept by rule {}.\n", fate.rule),
    }
}

/// Formats the owners of the bytes below a path, in a column that adds up.
fn owners(below: &BelowDoc, screen: &Screen) -> String {
    /// Maximum number of images in the table; a store may have thousands, and the rest is summed.
    const IMAGES: usize = 20;
    let (images, others): (Vec<_>, Vec<_>) = below.rows.iter().partition(|row| is_image(row));
    let (shown, more) = images.split_at(images.len().min(IMAGES));
    let stores: BTreeSet<_> = below.rows.iter().filter_map(|row| row.store.as_deref()).collect();
    let mut table = Table::new(screen, &["OWNER", ">COUNT", ">SIZE", ">INODES"]);
    for row in shown {
        table.row(owner(row, stores.len() > 1));
    }
    if !more.is_empty() {
        let sum = more.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        let more_inodes = more.iter().filter_map(|row| row.inodes).fold(0, u64::saturating_add);
        table.row(vec!["more images".into(), more.len().to_string(), bytes(sum), inodes(Some(more_inodes))]);
    }
    for row in others {
        table.row(owner(row, stores.len() > 1));
    }
    table.row(vec!["All".into(), String::new(), bytes(below.bytes), inodes(Some(below.inodes))]);
    table.fit(&[], &[(0, 24)]);
    let words =
        "Layers are divided equally among the images and containers that use them, as in FAIR of `images`.";
    let width = screen.width.unwrap_or(usize::MAX);
    let mut note = if !images.is_empty() { screen.note(words) } else { String::new() };
    if !below.other_filesystems.is_empty() {
        let points: Vec<_> = below.other_filesystems.iter().map(|point| safe(point)).collect();
        let text = format!("Not counted, since other filesystems are mounted there: {}.", points.join(", "));
        note.push_str(&wrapped(&text, width, ""));
    }
    format!("\n{}{}{note}", heading(&format!("Whose bytes are in {}", safe(&below.path))), table.render())
}

fn is_image(row: &ShareRowDoc) -> bool {
    matches!(row.kind, "image" | "artifact")
}

fn owner(row: &ShareRowDoc, names_store: bool) -> Vec<String> {
    let label = match (row.kind, &row.id, &row.path) {
        ("image" | "artifact", Some(id), _) if row.label == "<none>" => {
            format!("{} <none> {}", row.kind, short_id(id))
        }
        ("image" | "artifact", ..) => format!("{} {}", row.kind, safe(&row.label)),
        _ if !row.in_store => format!("Outside the stores: {}", place(row)),
        _ => safe(&row.label),
    };
    let label = match row.store.as_deref().filter(|_| names_store) {
        Some(store) => format!("{label} in {}", safe(store)),
        None => label,
    };
    let count = row.count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    vec![label, count, bytes(row.bytes), inodes(row.inodes)]
}

fn size_line(document: &ExplainDoc) -> String {
    let size = format!("  size    {} ({} bytes)", bytes(document.bytes), document.bytes);
    match document.subject {
        "layer" if document.held_by.is_empty() => format!("{size}; nothing uses it\n"),
        "layer" => format!("{size}; it is freed when everything that holds it is deleted\n"),
        "directory" | "file" => format!("{size}\n"),
        "metadata" | "other" => format!("{size}; no deletion of an image or container frees it\n"),
        _ => format!(
            "{size} exclusive; deleting it alone frees {} ({} bytes)\n",
            bytes(document.frees_bytes),
            document.frees_bytes
        ),
    }
}

/// Explains why a deletion frees another number of bytes than the size of the object.
fn difference_to_size(document: &ExplainDoc) -> String {
    let mut out = String::new();
    for copies in &document.copies {
        let kept_bytes = copies.bytes - copies.exclusive_bytes;
        let rest = match kept_bytes {
            0 => String::new(),
            _ => format!("; {} stays, since something else uses it too", bytes(kept_bytes)),
        };
        out.push_str(&format!(
            "  copies  {} snapshots of it in the snapshotter {}: {}, of which {} is deleted with it and frees \
             {}{rest}\n",
            copies.snapshots,
            safe(&copies.snapshotter),
            bytes(copies.bytes),
            bytes(copies.exclusive_bytes),
            bytes(copies.frees_bytes),
        ));
    }
    let parts = document.frees_differs.iter().map(|part| {
        let (sign, size) = (if part.bytes < 0 { '-' } else { '+' }, bytes(part.bytes.unsigned_abs()));
        match part.cause {
            "shared_extents" => format!("{sign}{size} extents that other files share"),
            _ => format!("{sign}{size} metadata of the filesystem"),
        }
    });
    let parts: Vec<_> = parts.collect();
    if !parts.is_empty() {
        out.push_str(&format!("  frees   other than its size: {}\n", parts.join(", ")));
    }
    out
}

fn image_lines(image: &ImageDoc, document: &ExplainDoc) -> String {
    let mut out = format!("{} {}\n  id      {}\n", bold("image"), name(image), safe(&image.id));
    for name in image.names.iter().skip(1) {
        out.push_str(&format!("  also    {}\n", safe(name)));
    }
    for digest in &image.digests {
        out.push_str(&format!("  digest  {}\n", safe(digest)));
    }
    // Artifacts have no creation time.
    let created = match image.created_at {
        None => String::new(),
        created => format!("created {} ago; ", age(created, document.header.generated_at)),
    };
    out.push_str(&format!(
        "  {created}total {}, shared {}, exclusive {}, fair share {}; listed as {}\n",
        bytes(image.total_bytes),
        bytes(image.shared_bytes),
        bytes(image.exclusive_bytes),
        bytes(image.fair_bytes),
        image.listed_bytes.map_or_else(|| "no size".into(), bytes),
    ));
    out
}

/// Formats the first detection of an image with its evidence, its use and its earlier lives.
fn source(evidence: &EvidenceDoc) -> &'static str {
    match evidence.kind {
        EvidenceKind::ImageRecord => "its own record",
        EvidenceKind::TopLayer => "the record of its top layer",
        EvidenceKind::MetadataDirectory => "the creation of its metadata directory",
        EvidenceKind::Container => "a container created from it",
        EvidenceKind::PullRecord => "the kubelet's record of a pull",
    }
}

fn remembered(known: &RememberedDoc, now: Timestamp, screen: &Screen) -> String {
    let decider = known.evidence.iter().find(|evidence| evidence.decides);
    let from = match (known.rule, decider) {
        (AgeRule::Making, Some(evidence)) => format!("from {}", source(evidence)),
        (AgeRule::Container, Some(EvidenceDoc { kind: EvidenceKind::PullRecord, .. })) => {
            "from the kubelet's record of a pull; it may be older".to_owned()
        }
        (AgeRule::Container, _) => "from its first container; it may be older".to_owned(),
        (AgeRule::AbsentBefore, _) => "first detected by a scan; the scan before did not find it".to_owned(),
        (AgeRule::FutureEvidence, _) => {
            "first detected by a scan; the disk gives a time in the future".to_owned()
        }
        _ => "first detected by a scan; the disk does not record it".to_owned(),
    };
    let mut out = format!(
        "  since   {} ({} ago), {from}",
        screen.minute(known.first_detected),
        age(Some(known.first_detected), now)
    );
    for evidence in known.evidence.iter().filter(|evidence| !evidence.decides) {
        out.push_str(&format!("; {} says {}", source(evidence), screen.minute(evidence.time)));
    }
    if known.first_detected_from == Basis::Disk {
        out.push_str("; not in the records");
    }
    out.push_str(&match known.last_used {
        Some(last) => {
            let ago = age(Some(last), now);
            let times = count(known.use_count, "time", "times");
            format!("\n  used    {times}, last {} ({ago} ago)\n", screen.minute(last))
        }
        None => "\n\x20 used    never, as far as recorded\n".to_owned(),
    });
    for life in &known.earlier_lives {
        let until = life.gone_since.map_or_else(|| "?".to_owned(), |gone| screen.minute(gone));
        out.push_str(&format!(
            "  before  {} to {until}, used {}\n",
            screen.minute(life.first_detected),
            count(life.use_count, "time", "times")
        ));
    }
    out
}

fn chain(chain: &[LayerDoc], screen: &Screen) -> String {
    let mut table = Table::new(screen, &["LAYER", "KIND", ">SIZE", ">INODES", ">REFS", ""]);
    for layer in chain {
        let others = layer.refcount.saturating_sub(1);
        let note = match layer.refcount {
            0 => "nothing uses it".into(),
            1 => "exclusive".into(),
            _ => format!("shared with {others} more"),
        };
        table.row(vec![
            short_id(&layer.id),
            if layer.read_write { "read-write".into() } else { layer.kind.into() },
            bytes(layer.bytes),
            layer.inodes.to_string(),
            layer.refcount.to_string(),
            note,
        ]);
    }
    table.block()
}

fn held_by(users: &[UserDoc]) -> String {
    /// Maximum number of users in the list; a base layer may have thousands.
    const MOST: usize = 20;
    let mut out = format!("\n{}", heading("Held by"));
    for user in users.iter().take(MOST) {
        let name = safe(&user.name);
        out.push_str(&match (user.kind, user.owner) {
            // The name of these kinds is a sentence.
            ("elsewhere" | "build-cache", _) => format!("  {name}\n"),
            (kind, Some(owner)) => format!("  {kind} {name}  {} ({owner})\n", short_id(&user.id)),
            (kind, None) => format!("  {kind} {name}  {}\n", short_id(&user.id)),
        });
    }
    if users.len() > MOST {
        out.push_str(&format!("  and {} more\n", users.len() - MOST));
    }
    out
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;
    use crate::report::json::LifeDoc;

    #[test]
    fn records_of_an_image_are_shown_in_words() {
        fn time(text: &str) -> Timestamp {
            text.parse().unwrap()
        }
        fn evidence(kind: EvidenceKind, text: &str, decides: bool) -> EvidenceDoc {
            EvidenceDoc { kind, time: time(text), decides }
        }
        let known = RememberedDoc {
            first_detected: time("2026-11-02T10:00:00Z"),
            first_detected_from: Basis::Records,
            rule: AgeRule::Making,
            evidence: vec![
                evidence(EvidenceKind::ImageRecord, "2026-10-01T10:00:00Z", false),
                evidence(EvidenceKind::TopLayer, "2026-11-02T10:00:00Z", true),
            ],
            last_used: Some(time("2026-11-20T12:00:00Z")),
            use_count: 1,
            life: 2,
            earlier_lives: vec![LifeDoc {
                first_detected: time("2026-09-01T00:00:00Z"),
                last_seen: time("2026-09-05T00:00:00Z"),
                gone_since: Some(time("2026-09-05T00:05:00Z")),
                last_used: None,
                use_count: 0,
            }],
        };
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let now = time("2026-11-21T12:00:00Z");
        assert_eq!(
            remembered(&known, now, &screen),
            "  since   2026-11-02 10:00 (19d ago), from the record of its top layer; its own record says \
             2026-10-01 10:00\n\
             \x20 used    1 time, last 2026-11-20 12:00 (24h ago)\n\
             \x20 before  2026-09-01 00:00 to 2026-09-05 00:05, used 0 times\n"
        );
        let unknown = RememberedDoc {
            first_detected_from: Basis::Disk,
            rule: AgeRule::Container,
            evidence: vec![],
            last_used: None,
            earlier_lives: vec![],
            ..known
        };
        assert_eq!(
            remembered(&unknown, now, &screen),
            "  since   2026-11-02 10:00 (19d ago), from its first container; it may be older; not in the records\n\
             \x20 used    never, as far as recorded\n"
        );
    }
}
