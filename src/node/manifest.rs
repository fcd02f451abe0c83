//! The images that a manifest of pods names. Pure: bytes in, references out.
//!
//! The kubelet takes one Pod or a list of pods from each file. Here everything that looks like
//! a pod counts, in every document, at any depth (an item of a list, a template): keeping one image too
//! many only costs bytes.

use serde_json::Value;

use super::yaml;

/// The lists of containers that a pod can have.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// How many characters are looked at behind a key.
const LONGEST: usize = 512;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The references, each once, in order of their names.
    pub(super) images: Vec<String>,
    /// Why the file cannot be parsed. Then the references were extracted line by
    /// line.
    pub(super) problem: Option<String>,
}

/// Reads a manifest, YAML or JSON. Anything else is searched line by line for `image:` and
/// `reference:`, so that a file that is just being written still protects its images.
pub(super) fn read(bytes: &[u8]) -> Manifest {
    let (text, documents) = match decode(bytes) {
        Ok(text) => {
            let documents = yaml::documents(&text);
            (text, documents)
        }
        Err(why) => (String::from_utf8_lossy(bytes).into_owned(), Err(why)),
    };
    let mut images = Vec::new();
    let problem = match documents {
        Ok(documents) => {
            documents.iter().for_each(|document| collect(document, &mut images));
            None
        }
        Err(why) => {
            scan(&text, &mut images);
            Some(why)
        }
    };
    images.sort();
    images.dedup();
    Manifest { images, problem }
}

/// YAML may be UTF-16 if it begins with a byte order mark.
fn decode(bytes: &[u8]) -> Result<String, String> {
    let utf16 = |of: fn([u8; 2]) -> u16, rest: &[u8]| {
        let (pairs, odd) = rest.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| of(*pair)).collect();
        let text = String::from_utf16(&units).ok().filter(|_| odd.is_empty());
        text.ok_or_else(|| "not UTF-16".to_owned())
    };
    match bytes {
        [0xFF, 0xFE, rest @ ..] => utf16(u16::from_le_bytes, rest),
        [0xFE, 0xFF, rest @ ..] => utf16(u16::from_be_bytes, rest),
        [0xEF, 0xBB, 0xBF, rest @ ..] => utf8(rest),
        _ => utf8(bytes),
    }
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|error| format!("not valid UTF-8 at byte {} on", error.valid_up_to()))
}

/// Images of containers and of image volumes (`volumes[].image.reference`). The depth is bounded
/// by whoever parsed it.
fn collect(value: &Value, images: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, images)),
        Value::Object(members) => {
            for (key, member) in members {
                let items = member.as_array().map_or(&[][..], Vec::as_slice);
                if CONTAINERS.contains(&key.as_str()) {
                    add_all(items.iter().filter_map(|item| item.get("image")), images);
                } else if key == "volumes" {
                    add_all(items.iter().filter_map(|item| item.pointer("/image/reference")), images);
                }
                collect(member, images);
            }
        }
        _ => {}
    }
}

fn add_all<'a>(values: impl Iterator<Item = &'a Value>, images: &mut Vec<String>) {
    let texts = values.filter_map(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    images.extend(texts.map(str::to_owned));
}

/// Everything behind `image:` and `reference:` that can be a reference, and what an anchor stands
/// before, since it may be meant by an alias.
fn scan(text: &str, images: &mut Vec<String>) {
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    for (at, line) in lines.iter().enumerate() {
        let mut next_line = None;
        for key in ["image", "reference"] {
            for (start, _) in line.match_indices(key) {
                let before = line[..start].chars().next_back();
                let Some(rest) = value_of(&line[start + key.len()..]) else { continue };
                if before.is_some_and(|c| c.is_alphanumeric() || "_-./".contains(c)) {
                    continue;
                }
                let rest = match rest.chars().next() {
                    None | Some('|' | '>' | '#') => {
                        let next =
                            || lines[at + 1..].iter().map(|line| line.trim()).find(|line| !line.is_empty());
                        next_line.get_or_insert_with(|| next().unwrap_or_default())
                    }
                    Some(_) => rest,
                };
                images.extend(reference(rest));
            }
        }
        for (start, _) in line.match_indices('&') {
            let before = line[..start].chars().next_back();
            if before.is_none_or(|c| c.is_whitespace() || "[{,:".contains(c)) {
                images.extend(reference(&line[start..]));
            }
        }
    }
}

/// What stands behind a key and its colon; `None` where no colon follows.
fn value_of(after: &str) -> Option<&str> {
    let unquoted = after.strip_prefix(['"', '\'']);
    let value = unquoted.unwrap_or(after).trim_start().strip_prefix(':')?;
    // `image:x` is a plain text in YAML; behind a key in quotes no space is needed.
    let ends = value.is_empty() || value.starts_with([' ', '\t']);
    (ends || unquoted.is_some()).then(|| value.trim_start())
}

/// The scalar at the beginning of `text`, without tag and anchor, if it can be a reference.
fn reference(text: &str) -> Option<String> {
    // No reference is longer (255 bytes of name, a tag or digest), nor is anybody's anchor.
    let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(at, _)| at);
    let mut text = &text[..end];
    for _ in 0..2 {
        if text.starts_with(['&', '!']) {
            text = text.split_once([' ', '\t'])?.1.trim_start();
        }
    }
    let found = if let Some(inside) = text.strip_prefix('"') {
        let end = inside.find('"').unwrap_or(inside.len());
        // Some writers of JSON write `\/`.
        inside[..end].replace("\\/", "/")
    } else if let Some(inside) = text.strip_prefix('\'') {
        inside[..inside.find('\'').unwrap_or(inside.len())].to_owned()
    } else {
        let end = text.find(|c: char| c.is_whitespace() || ",}]".contains(c));
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let found = found.trim();
    let first = found.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    let all = found.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@+".contains(c));
    (first && all && !found.ends_with(':')).then(|| found.to_owned())
}

#[cfg(test)]
mod tests;
