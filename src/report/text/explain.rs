//! Text of `explain`: all facts about one object.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use unicode_width::UnicodeWidthStr;

use super::format::{age, bytes, inodes, safe, short_id, wrapped};
use super::images::name;
use super::layers;
use super::scan::leaks;
use super::screen::Screen;
use super::stopped;
use super::story::{absent_images, life_line, namesakes};
use super::table::{PIPED_CELL, Table, bold, heading};
use super::usage::{is_small_size, label_of_small, place};
use crate::app::explain::AgeLimits;
use crate::history::ages::AgeRule;
use crate::model::text::display::{count, listed, span};
use crate::model::{Evidence, EvidenceKind, PrintedCommand};
use crate::report::json::{
    BelowDoc, DifferenceCause, ExplainDoc, GcDecisionDoc, ImageDoc, LayerDoc, LostContainerDoc,
    RememberedDoc, ShareKind, ShareRowDoc, SubjectKind, UserDoc, UserKind,
};

/// Formats the document of `explain`. `shows_all`: small rows have lines of their own.
pub fn explain(document: &ExplainDoc, screen: &Screen, shows_all: bool) -> String {
    if document.subject == SubjectKind::AbsentImage {
        return absent_images(&document.earlier_images, document.header.generated_at, screen);
    }
    if let Some(lost) = &document.lost_container {
        return lost_container(document, lost);
    }
    let mut out = String::new();
    match (&document.image, &document.container) {
        (Some(image), _) => {
            out.push_str(&image_lines(image, document));
            if let Some(known) = &document.records {
                out.push_str(&remembered(known, document.header.generated_at, screen));
            }
            out.push_str(&document.age_limits.as_ref().map_or_else(String::new, age_limits));
            out.push_str(&namesakes(&document.earlier_images, screen));
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
            out.push_str(&format!("{} {}\n", bold(document.subject.as_str()), safe(&document.id)));
        }
    }
    if !matches!(document.subject, SubjectKind::Directory | SubjectKind::File) {
        out.push_str(&format!("  path    {}\n", safe(&document.path)));
    }
    if let Some(command) = &document.command {
        let label = if matches!(command, PrintedCommand::Deletes(_)) { "remove" } else { "show  " };
        out.push_str(&format!("  {label}  {}\n", safe(command.text())));
    }
    let of_container = document.stopped.removals.iter().filter(|_| document.container.is_some());
    for effect in of_container.map(|removal| &removal.effect).filter(|effect| !effect.is_empty()) {
        out.push_str(&format!("  effect  {}\n", safe(effect)));
    }
    if let Some(volume) = &document.volume {
        let users = match volume.containers.as_slice() {
            [] => {
                "no container uses it now; a service or quadlet that is stopped may need its data".to_owned()
            }
            containers => format!("used by {}", listed(containers)),
        };
        let (name, owner) = (safe(&volume.name), volume.owner);
        out.push_str(&format!("  volume  {name} ({owner}): {}\n", safe(&users)));
        out.push_str(&format!("  show    {}\n", safe(volume.command.text())));
    }
    out.push_str(&size_line(document));
    out.push_str(&difference_to_size(document));
    out.push_str(&platforms(document, screen));
    out.push_str(&chain(&document.chain, screen));
    if !document.used_by.is_empty() {
        out.push_str(&users(&document.used_by));
    }
    if document.image.is_some() {
        out.push_str(&stopped::removals(&document.stopped, screen));
    }
    document.below.iter().for_each(|below| out.push_str(&owners(below, screen, shows_all)));
    if !document.rules.is_empty() {
        let mut table = Table::new(screen, &["RULE", "VERDICT", "WHY"]);
        for rule in &document.rules {
            let verdict = if rule.keeps { "keeps it" } else { "ok to delete" };
            table.row(vec![rule.rule.to_string(), verdict.into(), safe(&rule.detail)]);
        }
        out.push_str(&table.block());
        out.push_str(&document.decision.as_ref().map_or_else(String::new, decision));
    }
    out.push_str(&leaks(&document.leaks, screen));
    out
}

/// Formats the manifests of an index, and the sum of those that this node does not use.
fn platforms(document: &ExplainDoc, screen: &Screen) -> String {
    /// Maximum number of manifests in the table.
    const MOST: usize = 20;
    if document.manifests.iter().all(|manifest| manifest.used) {
        return String::new();
    }
    let mut table = Table::new(screen, &["PLATFORM", "MANIFEST", ">SIZE", ""]);
    for manifest in document.manifests.iter().take(MOST) {
        table.row(vec![
            match manifest.platform.as_deref() {
                Some("unknown/unknown") => "attestation".into(),
                Some(platform) => safe(platform),
                None => "-".into(),
            },
            short_id(&manifest.digest),
            bytes(manifest.bytes),
            if manifest.used { "used here" } else { "" }.into(),
        ]);
    }
    let more = match document.manifests.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    };
    format!(
        "{}{more}Content of other platforms and attestations: {}\n",
        table.block(),
        bytes(document.other_platforms_bytes.unwrap_or_default())
    )
}

/// Formats a container that only podman's database knows.
fn lost_container(document: &ExplainDoc, lost: &LostContainerDoc) -> String {
    let command = document
        .command
        .as_ref()
        .map_or_else(String::new, |command| format!("  remove  {}; it has no files\n", safe(command.text())));
    format!(
        "{} {}  {}  podman, {}\n  record  only in podman's database: the store has neither a record nor a layer of it\n  \
         image   {}, which it keeps in use\n{command}",
        bold("container"),
        safe(&lost.name),
        short_id(&document.id),
        lost.state,
        lost.image.as_deref().map_or_else(|| "-".into(), safe),
    )
}

fn decision(decision: &GcDecisionDoc) -> String {
    let command = decision.command.as_deref().unwrap_or("layersweep gc");
    let detail = decision.detail.as_ref().map_or_else(String::new, |detail| format!(": {}", safe(detail)));
    let (position, reason) = match (decision.position, decision.reason, decision.rule) {
        (Some(position), Some(reason), _) => (position, reason),
        (_, _, Some(rule)) => return format!("Kept by rule {rule}{detail}.\n"),
        _ => return String::new(),
    };
    let frees = bytes(decision.predicted_bytes.unwrap_or(0));
    match &decision.refused {
        Some(why) => format!(
            "gc would be refused now: {}. Else it would delete it as number {position}, by {reason}, and free {frees}.\n",
            safe(why)
        ),
        None => {
            format!("`{command}` would delete it now, as number {position}, by {reason}, and free {frees}.\n")
        }
    }
}

/// Formats the owners of the bytes below a path, in a column that adds up.
fn owners(below: &BelowDoc, screen: &Screen, shows_all: bool) -> String {
    /// Maximum number of images in the table; a store may have thousands, and the rest is summed.
    const IMAGES: usize = 20;
    let (images, others): (Vec<_>, Vec<_>) = below.rows.iter().partition(|row| is_image(row));
    let most = if shows_all { images.len() } else { images.len().min(IMAGES) };
    let (shown, more) = images.split_at(most);
    let (small, large): (Vec<_>, Vec<_>) =
        others.iter().partition(|row| !shows_all && is_small_size(row.bytes, below.bytes));
    let (others, small) = if small.len() > 1 { (large, small) } else { (others, Vec::new()) };
    let stores: BTreeSet<_> = below.rows.iter().filter_map(|row| row.store.as_deref()).collect();
    let mut table = Table::new(screen, &["OWNER", ">COUNT", ">SIZE", ">INODES"]);
    for row in shown {
        table.row(owner(row, stores.len() > 1, screen));
    }
    if !more.is_empty() {
        let sum = more.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        let more_inodes = more.iter().filter_map(|row| row.inodes).fold(0, u64::saturating_add);
        table.row(vec!["more images".into(), more.len().to_string(), bytes(sum), inodes(Some(more_inodes))]);
    }
    for row in others {
        table.row(owner(row, stores.len() > 1, screen));
    }
    if !small.is_empty() {
        let sum = small.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
        let sum_of_inodes = small.iter().filter_map(|row| row.inodes).fold(0, u64::saturating_add);
        let label = label_of_small(small.len(), "smaller rows");
        table.row(vec![label, "-".into(), bytes(sum), inodes(Some(sum_of_inodes))]);
    }
    table.row(vec!["All".into(), String::new(), bytes(below.bytes), inodes(Some(below.inodes))]);
    table.fit(&[], &[(0, 24)]);
    let words = "Layers are divided equally among the images and containers that use them.";
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
    matches!(row.kind, ShareKind::Object(_))
}

fn owner(row: &ShareRowDoc, names_store: bool, screen: &Screen) -> Vec<String> {
    /// Minimum width of the root of a store that is shortened.
    const ROOT: usize = 20;
    let label = match (row.kind, &row.id, &row.path) {
        (ShareKind::Object(kind), Some(id), _) if row.label == "<none>" => {
            format!("{kind} <none> {}", short_id(id))
        }
        (ShareKind::Object(kind), ..) => format!("{kind} {}", safe(&row.label)),
        _ if !row.in_store => place(row),
        _ => safe(&row.label),
    };
    let label = match row.store.as_deref().filter(|_| names_store) {
        // Of a label that is too long, the table would cut the name of the owner.
        Some(store) => {
            let (start, store) = (format!("{label} in "), safe(store));
            let room = PIPED_CELL.saturating_sub(start.width()).max(ROOT);
            start + &if screen.truncates { screen.shorten(&store, room) } else { store }
        }
        None => label,
    };
    let count = row.count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    vec![label, count, bytes(row.bytes), inodes(row.inodes)]
}

fn size_line(document: &ExplainDoc) -> String {
    let size = format!("  size    {} ({} bytes)", bytes(document.bytes), document.bytes);
    match document.subject {
        SubjectKind::Layer if document.chain.first().is_some_and(|layer| layer.unmeasured) => {
            "  size    unknown: it is not measured\n".to_owned()
        }
        SubjectKind::Layer if document.used_by.is_empty() => format!("{size}; nothing uses it\n"),
        SubjectKind::Layer => format!("{size}; it is freed when everything that holds it is deleted\n"),
        SubjectKind::Directory | SubjectKind::File => format!("{size}\n"),
        SubjectKind::Metadata | SubjectKind::Other if document.frees_bytes.is_none() => {
            format!("{size}; what needs it is unknown: see the warnings\n")
        }
        SubjectKind::Metadata | SubjectKind::Other => {
            format!("{size}; no deletion of an image or container frees it\n")
        }
        _ => format!(
            "{size} exclusive; {}\n",
            match document.frees_bytes {
                Some(frees) => format!("deleting it alone frees {} ({frees} bytes)", bytes(frees)),
                None => "what deleting it frees is unknown: some of its layers are not measured".to_owned(),
            }
        ),
    }
}

/// Explains why a deletion frees another number of bytes than the size of the object.
fn difference_to_size(document: &ExplainDoc) -> String {
    let mut out = String::new();
    if let Some((kept_bytes, command)) = &document.kept_by_cache {
        let kept = bytes(*kept_bytes);
        out.push_str(&format!(
            "  cache   {kept} of its layers stay in a build cache: `{command}` deletes that\n"
        ));
    }
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
    let parts: Vec<_> = document
        .frees_differs
        .iter()
        .map(|part| {
            let (sign, size) = (if part.bytes < 0 { '-' } else { '+' }, bytes(part.bytes.unsigned_abs()));
            match part.cause {
                DifferenceCause::SharedExtents => format!("{sign}{size} shared with other layers by extents"),
                DifferenceCause::Compression => format!("{sign}{size} by compression"),
                DifferenceCause::FilesystemMetadata => format!("{sign}{size} metadata of the filesystem"),
            }
        })
        .collect();
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
    let measured = image.frees_bytes.map_or("in the measured layers ", |_| "");
    out.push_str(&format!(
        "  {created}{measured}total {}, shared {}, exclusive {}, fair share {}; listed as {}\n",
        bytes(image.total_bytes),
        bytes(image.shared_bytes),
        bytes(image.exclusive_bytes),
        bytes(image.fair_bytes),
        image.listed_bytes.map_or_else(|| "no size".into(), bytes),
    ));
    out
}

fn source(evidence: &Evidence) -> &'static str {
    match evidence.kind {
        EvidenceKind::ImageRecord => "its own record",
        EvidenceKind::TopLayer => "the record of its top layer",
        EvidenceKind::MetadataDirectory => "the creation of its metadata directory",
        EvidenceKind::Container => "a container created from it",
        EvidenceKind::PullRecord => "the kubelet's record of a pull",
    }
}

/// Formats the first detection of an image, its use and its earlier lives.
fn remembered(known: &RememberedDoc, now: Timestamp, screen: &Screen) -> String {
    let (is_lower_bound, from) = match (known.rule, &known.decided_by) {
        (AgeRule::Creation, Some(evidence)) => (false, format!("proven by {}", source(evidence))),
        (AgeRule::Container, Some(Evidence { kind: EvidenceKind::PullRecord, .. })) => {
            (true, "proven by the kubelet's record of a pull".to_owned())
        }
        (AgeRule::Container, _) => (true, "proven by its first container".to_owned()),
        (AgeRule::AbsentBefore, _) => {
            (false, "first found by a scan; the scan before did not find it".to_owned())
        }
        (AgeRule::FutureEvidence, _) => {
            (true, "first found by a scan; its records on the disk are dated in the future".to_owned())
        }
        _ => (true, "first found by a scan; the disk does not record it".to_owned()),
    };
    let since = known.first_detected;
    let (zone, ago) = (screen.zone_name(since), age(Some(since), now));
    let at_least = if is_lower_bound { "at least " } else { "" };
    let mut out = format!("  on this disk since {at_least}{} {zone} ({ago}), {from}\n", screen.time(since));
    out.push_str(&match known.last_used {
        Some(last) => {
            let ago = age(Some(last), now);
            let times = count(known.use_count, "time", "times");
            format!("  used    {times}, last {} ({ago} ago)\n", screen.time_on(last, now))
        }
        None if known.use_count > 0 => {
            format!("  used    {}, at an unknown time\n", count(known.use_count, "time", "times"))
        }
        None => "  used    never, as far as recorded\n".to_owned(),
    });
    for life in &known.earlier_lives {
        out.push_str(&life_line(life, "  before  ", true, screen));
    }
    out
}

/// Formats the ages of an image, each with the rule that sets it; empty without a rule.
fn age_limits(limits: &AgeLimits) -> String {
    fn by(rule: Option<&String>) -> String {
        rule.map_or_else(String::new, |rule| format!(" by the rule {}", safe(rule)))
    }
    if limits.min_age_rule.is_none() && limits.max_age_rule.is_none() {
        return String::new();
    }
    let min = span(SignedDuration::from_secs(limits.min_age_seconds));
    let max = limits.max_age_seconds.map_or_else(|| "off".into(), |age| span(SignedDuration::from_secs(age)));
    let (by_min, by_max) = (by(limits.min_age_rule.as_ref()), by(limits.max_age_rule.as_ref()));
    if limits.min_age_rule == limits.max_age_rule {
        format!("  ages    min_age {min}, max_age {max}{by_max}\n")
    } else {
        format!("  ages    min_age {min}{by_min}\n          max_age {max}{by_max}\n")
    }
}

fn chain(chain: &[LayerDoc], screen: &Screen) -> String {
    let mut table = Table::new(screen, &["LAYER", "KIND", ">SIZE", ">INODES", ">REFS", ""]);
    for layer in chain {
        let others = layer.refcount.saturating_sub(1);
        let note = match (layer.refcount, layer.build_cache) {
            (0, true) => "only a build cache uses it".into(),
            (0, false) => "nothing uses it".into(),
            (1, true) => "shared with a build cache".into(),
            (1, false) => "exclusive".into(),
            _ => format!("shared with {others} more"),
        };
        let note = match &layer.content_path {
            Some(path) => format!("{note}, in an additional layer store: {}", safe(path)),
            None => note,
        };
        table.row(vec![
            short_id(&layer.id),
            if layer.read_write { "read-write".into() } else { layer.kind.to_string() },
            layers::size(layer),
            layer.inodes.to_string(),
            layer.refcount.to_string(),
            note,
        ]);
    }
    table.block()
}

fn users(users: &[UserDoc]) -> String {
    /// Maximum number of users in the list; a base layer may have thousands.
    const MOST: usize = 20;
    let mut out = format!("\n{}", heading("Held by"));
    for user in users.iter().take(MOST) {
        let name = safe(&user.name);
        out.push_str(&match (user.kind, user.owner) {
            // The name of these kinds is a sentence.
            (UserKind::External | UserKind::BuildCache, _) => format!("  {name}\n"),
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
    use crate::history::ages::Basis;
    use crate::report::json::{EndedBy, LifeDoc};

    #[test]
    fn records_of_an_image_are_shown_in_words() {
        fn time(text: &str) -> Timestamp {
            text.parse().unwrap()
        }
        let evidence = |kind, text| Evidence { kind, at: time(text) };
        let known = RememberedDoc {
            first_detected: time("2026-11-02T10:00:00Z"),
            first_detected_from: Basis::Records,
            rule: AgeRule::Creation,
            evidence: vec![
                evidence(EvidenceKind::ImageRecord, "2026-10-01T10:00:00Z"),
                evidence(EvidenceKind::TopLayer, "2026-11-02T10:00:00Z"),
            ],
            decided_by: Some(evidence(EvidenceKind::TopLayer, "2026-11-02T10:00:00Z")),
            last_used: Some(time("2026-11-20T12:00:00Z")),
            use_count: 1,
            life: 2,
            earlier_lives: vec![LifeDoc {
                life: 1,
                first_detected: time("2026-09-01T00:00:00Z"),
                last_seen: time("2026-09-05T00:00:00Z"),
                absent_since: Some(time("2026-09-05T00:05:00Z")),
                last_used: None,
                use_count: 0,
                names: Vec::new(),
                frees_bytes: 0,
                ended_by: Some(EndedBy::Other),
                deletion: None,
            }],
        };
        let screen = Screen { width: None, unicode: true, truncates: true, notes: true, zone: TimeZone::UTC };
        let now = time("2026-11-21T12:00:00Z");
        assert_eq!(
            remembered(&known, now, &screen),
            "  on this disk since 2026-11-02 10:00:00 UTC (19d), proven by the record of its top layer\n\
             \x20 used    1 time, last 2026-11-20 12:00:00 (24h ago)\n\
             \x20 before  2026-09-01 00:00:00 to 2026-09-05 00:00:00, never used; removed by another program between the \
             scans of 2026-09-05 00:00:00 and 00:05:00\n"
        );
        let unknown = RememberedDoc {
            first_detected_from: Basis::Disk,
            rule: AgeRule::Container,
            evidence: vec![],
            last_used: None,
            earlier_lives: vec![],
            ..known
        };
        for (use_count, expected) in [(0, "never, as far as recorded"), (1, "1 time, at an unknown time")] {
            assert_eq!(
                remembered(&RememberedDoc { use_count, ..unknown.clone() }, now, &screen),
                format!(
                    "  on this disk since at least 2026-11-02 10:00:00 UTC (19d), proven by its first container\n\
                     \x20 used    {expected}\n"
                )
            );
        }
    }
}
