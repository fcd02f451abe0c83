//! Everything about one object.

use jiff::Timestamp;

use super::format::{age, bytes, safe, short_id};
use super::images::name;
use super::scan::leaks;
use super::screen::Screen;
use super::table::{Table, heading};
use crate::report::json::{EvidenceDoc, ExplainDoc, ImageDoc, LayerDoc, RememberedDoc, UserDoc};

/// The whole story of one object.
#[must_use]
pub fn explain(document: &ExplainDoc, screen: &Screen) -> String {
    let mut out = String::new();
    match (&document.image, &document.container) {
        (Some(image), _) => {
            out.push_str(&image_lines(image, document));
            if let Some(known) = &document.remembered {
                out.push_str(&remembered(known, document.generated_at, screen));
            }
        }
        (None, Some(container)) => {
            out.push_str(&format!(
                "{} {}  {}  {}, {}\n  image   {}\n",
                heading("container").trim_end(),
                safe(&container.name),
                short_id(&container.id),
                container.owner,
                container.state,
                container.image.as_deref().map_or_else(|| "-".into(), safe),
            ));
        }
        (None, None) => {
            out.push_str(&format!("{} {}\n", heading(document.subject).trim_end(), safe(&document.id)));
        }
    }
    out.push_str(&format!("  path    {}\n", safe(&document.path)));
    out.push_str(&size_line(document));
    if !document.chain.is_empty() {
        out.push_str(&chain(&document.chain));
    }
    if !document.held_by.is_empty() {
        out.push_str(&held_by(&document.held_by));
    }
    if !document.rules.is_empty() {
        out.push('\n');
        let mut table = Table::new(&["RULE", "VERDICT", "WHY"]);
        for rule in &document.rules {
            table.row(vec![rule.rule.into(), rule.verdict.into(), safe(&rule.detail)]);
        }
        out.push_str(&table.render());
        match document.rules.iter().find(|rule| rule.verdict == "stay") {
            Some(rule) => out.push_str(&format!("It stays, by the rule {}.\n", rule.rule)),
            None => out.push_str("It may go: no rule keeps it.\n"),
        }
    }
    out.push_str(&leaks(&document.leaks));
    out
}

fn size_line(document: &ExplainDoc) -> String {
    let size = format!("  size    {} ({} bytes)", bytes(document.bytes), document.bytes);
    match document.subject {
        "layer" if document.held_by.is_empty() => format!("{size}; nobody holds it\n"),
        "layer" => format!("{size}; it goes when all that hold it have gone\n"),
        "metadata" | "other" => format!("{size}; no deletion of an image or container frees it\n"),
        _ => format!(
            "{size} that only it holds; its deletion alone would give back {} ({} bytes)\n",
            bytes(document.frees_bytes),
            document.frees_bytes
        ),
    }
}

fn image_lines(image: &ImageDoc, document: &ExplainDoc) -> String {
    let mut out = format!("{} {}\n  id      {}\n", heading("image").trim_end(), name(image), safe(&image.id));
    for name in image.names.iter().skip(1) {
        out.push_str(&format!("  also    {}\n", safe(name)));
    }
    for digest in &image.digests {
        out.push_str(&format!("  digest  {}\n", safe(digest)));
    }
    out.push_str(&format!(
        "  made    {} ago; total {}, shared {}, exclusive {}; the runtime lists {}\n",
        age(image.created_at, document.generated_at),
        bytes(image.total_bytes),
        bytes(image.shared_bytes),
        bytes(image.exclusive_bytes),
        image.listed_bytes.map_or_else(|| "no size".into(), bytes),
    ));
    out
}

/// Since when it is here and how that is known, its use, its earlier lives.
fn remembered(known: &RememberedDoc, now: Timestamp, screen: &Screen) -> String {
    let source = |evidence: &EvidenceDoc| match evidence.kind {
        "image-record" => "its own record",
        "top-layer" => "the record of its top layer",
        "metadata-directory" => "the birth of its metadata directory",
        "container" => "a container made from it",
        other => other,
    };
    let decider = known.evidence.iter().find(|evidence| evidence.decides);
    let from = match (known.first_detected_from, decider) {
        ("records", _) => "when a scan first saw it".to_owned(),
        (_, Some(evidence)) => format!("from {}", source(evidence)),
        (_, None) => "from the disk".to_owned(),
    };
    let mut out = format!(
        "  since   {} ({} ago), {from}",
        screen.minute(known.first_detected),
        age(Some(known.first_detected), now)
    );
    for evidence in known.evidence.iter().filter(|evidence| !evidence.decides) {
        out.push_str(&format!("; {} says {}", source(evidence), screen.minute(evidence.at)));
    }
    let times = if known.use_count == 1 { "container" } else { "containers" };
    out.push_str(&match known.last_used {
        Some(last) => {
            let ago = age(Some(last), now);
            format!("\n  used    by {} {times}, last {} ({ago} ago)\n", known.use_count, screen.minute(last))
        }
        None => "\n  used    never, as far as was seen\n".to_owned(),
    });
    for life in known.lives.iter().filter(|life| life.gone_since.is_some()) {
        let until = life.gone_since.map_or_else(String::new, |gone| screen.minute(gone));
        out.push_str(&format!(
            "  before  here from {} to {until}, used by {} containers\n",
            screen.minute(life.first_detected),
            life.use_count
        ));
    }
    out
}

fn chain(chain: &[LayerDoc]) -> String {
    let mut table = Table::new(&["LAYER", "KIND", ">SIZE", ">INODES", ">REFS", ""]);
    for layer in chain {
        let others = layer.refcount.saturating_sub(1);
        let note = match layer.refcount {
            0 => "nobody uses it".into(),
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
    format!("\n{}", table.render())
}

fn held_by(users: &[UserDoc]) -> String {
    /// More are counted: a base layer may have thousands.
    const MOST: usize = 20;
    let mut out = format!("\n{}", heading("Held by"));
    for user in users.iter().take(MOST) {
        let owner = user.owner.map_or_else(String::new, |owner| format!(" ({owner})"));
        out.push_str(&format!("  {} {}  {}{owner}\n", user.kind, safe(&user.name), short_id(&user.id)));
    }
    if users.len() > MOST {
        out.push_str(&format!("  and {} more\n", users.len() - MOST));
    }
    out
}
