//! Text of `history --repull`: references for other programs, and notes about them.

use std::collections::HashSet;

use super::format::{name_or_id, safe};
use crate::history::runs::Command;
use crate::model::text::display::count;
use crate::model::text::reference::{is_well_formed, normalized, repository};
use crate::report::json::{RepullDoc, RepullImageDoc};

pub fn references(document: &RepullDoc) -> Vec<&str> {
    let mut seen = HashSet::new();
    let references = document.images.iter().flat_map(|image| &image.references).map(String::as_str);
    references.filter(|reference| seen.insert(*reference)).collect()
}

/// Formats the tags of an image, which a pull by digest does not bring back. A tag of a repository that has no reference,
/// for example of `localhost`, belongs to the first one: all mean the same image.
fn tags(image: &RepullImageDoc) -> String {
    let tags =
        image.names.iter().filter(|name| !name.contains('@') && is_well_formed(name)).filter_map(|name| {
            let start = format!("{}@", repository(&normalized(name)));
            let mut same = image.references.iter().filter(|reference| reference.starts_with(&start));
            let reference = same.next().or(image.references.first())?;
            Some(format!("# tag: {reference} {name}\n"))
        });
    tags.collect()
}

const UNTAGGED: &str =
    "# pins, rules and pods that refer to a tag will not match these images until they are tagged again\n";

/// Formats what the list of references does not say. The lines are comments, so that both together are a list, too.
pub fn notes(document: &RepullDoc) -> String {
    let Some(run_id) = document.run_id.as_deref() else {
        return "# no recorded run has deleted an image\n".to_owned();
    };
    let images = match document.images.len() {
        0 => "no image".to_owned(),
        number => count(number, "image", "images"),
    };
    let mut out = format!(
        "# run {} ({}) deleted {images}\n",
        safe(run_id),
        document.command.map_or("", Command::as_str)
    );
    let mut tagged = String::new();
    for image in &document.images {
        let title = name_or_id(&image.names, &image.id);
        match image.not_pullable {
            Some(why) => out.push_str(&format!("# not pullable: {title} ({why})\n")),
            None if !image.by_digest => {
                out.push_str(&format!(
                    "# by tag, since no digest is known: {title} (the tag may have moved)\n"
                ));
            }
            None => tagged.push_str(&tags(image)),
        }
    }
    if !tagged.is_empty() {
        out.push_str(&tagged);
        out.push_str(UNTAGGED);
    }
    out
}
