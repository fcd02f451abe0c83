//! Everything about one object.

use super::format::{age, bytes, safe, short_id};
use super::images::name;
use super::scan::leaks;
use super::table::{Table, heading};
use crate::report::json::{ExplainDoc, ImageDoc, LayerDoc, UserDoc};

/// The whole story of one object.
#[must_use]
pub fn explain(document: &ExplainDoc) -> String {
    let mut out = String::new();
    match (&document.image, &document.container) {
        (Some(image), _) => out.push_str(&image_lines(image, document)),
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
