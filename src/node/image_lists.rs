//! Images that a person asks about: manifests, lists of references, pinned image sets, and a release's image stream.
//!
//! A file is one of:
//! - one or more manifests in OCI's or Docker's format, as `skopeo inspect --raw` prints them;
//! - the output of `skopeo inspect`, whose `LayersData` has the sizes, or of `oc image info -o json`;
//! - documents of kind `PinnedImageSet` or `ImageStream`, or the output of `oc adm release info -o json`;
//! - a list: one reference a line, `#` begins a comment;
//! - documents of JSON and references mixed: a script prints the reference of an image whose manifest it cannot get.

use serde_json::Value;

use super::yaml;
use crate::model::LayerBlob;
use crate::model::platform;
use crate::model::text::reference::{checked, is_digest, normalized, repository};

/// Maximum number of images of all files together.
pub const MOST_IMAGES: usize = 20_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedImage {
    /// Reference, or the file and its position for a manifest.
    pub name: String,
    /// Blobs of its layers, the base first: digest, and length in bytes. `None`: they are unknown.
    pub layers: Option<Vec<LayerBlob>>,
    /// Repository in the full form, if the manifest has the image's name.
    pub repository: Option<String>,
    /// Digests that mean it: of its manifest, of its configuration.
    pub digests: Vec<String>,
    /// It is an index of manifests; `digests` has that of this node's platform, if there is one.
    pub is_index: bool,
    /// It is an argument without a registry, and no file has this name.
    pub no_such_file: bool,
}

impl WantedImage {
    #[must_use]
    pub fn named(reference: &str) -> Self {
        Self { name: reference.to_owned(), ..Self::default() }
    }
}

/// Parses a file. `origin` names it in messages.
///
/// # Errors
/// A clause that says what is wrong, and with which part of the file.
pub fn parse(origin: &str, text: &str) -> Result<Vec<WantedImage>, String> {
    let start = text.trim_start();
    if start.is_empty() {
        return Err("it is empty".into());
    }
    if start.starts_with('<') {
        return Err("it is HTML, not a manifest or a list of images".into());
    }
    let is_yaml = text.lines().any(|line| line.starts_with("kind:"));
    let entries = if is_yaml { of_yaml(text) } else { entries(text) }?;
    let is_alone = entries.len() == 1;
    let mut images = Vec::new();
    for (position, entry) in (1..).zip(&entries) {
        match entry {
            Entry::Reference(reference) => images.push(WantedImage::named(reference)),
            Entry::Document(document) if is_alone => images.extend(of_document(origin, document)?),
            Entry::Document(document) => {
                let found = of_document(&format!("{origin}#{position}"), document);
                images.extend(found.map_err(|why| format!("document {position}: {why}"))?);
            }
        }
    }
    match images.len() {
        0 => Err("it names no image".into()),
        count if count > MOST_IMAGES => Err(format!("it names {count} images, more than {MOST_IMAGES}")),
        _ => Ok(images),
    }
}

enum Entry<'a> {
    Document(Value),
    Reference(&'a str),
}

fn of_yaml(text: &str) -> Result<Vec<Entry<'_>>, String> {
    Ok(yaml::documents(text)?.into_iter().map(Entry::Document).collect())
}

/// Reads documents of JSON and lines with references, in any order.
fn entries(text: &str) -> Result<Vec<Entry<'_>>, String> {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let (mut entries, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        if entries.len() > MOST_IMAGES {
            return Err(format!("it names more than {MOST_IMAGES} images"));
        }
        let length = if rest.starts_with(['{', '[']) {
            let mut documents = serde_json::Deserializer::from_str(rest).into_iter();
            match documents.next() {
                Some(Ok(document)) => entries.push(Entry::Document(document)),
                // YAML may look like this, too, and its parser says more about an error.
                _ if entries.is_empty() => return of_yaml(text),
                _ => return Err(format!("document {} is not valid JSON", entries.len() + 1)),
            }
            documents.byte_offset()
        } else {
            let line = rest.lines().next().unwrap_or_default();
            if let Some(reference) = content(line) {
                let number = || text[..text.len() - rest.len()].matches('\n').count() + 1;
                let reference = checked_line(reference).map_err(|why| format!("line {}: {why}", number()))?;
                entries.push(Entry::Reference(reference));
            }
            line.len()
        };
        rest = rest[length..].trim_start();
    }
    Ok(entries)
}

/// Mark with which programs on Windows begin a file.
const MARK: char = '\u{feff}';

/// Returns the lines of a list with their numbers from 1, without comments and empty lines.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, content(line)?)))
}

/// Returns a line without its comment; `None` if nothing remains.
fn content(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    (!line.is_empty()).then_some(line)
}

fn checked_line(line: &str) -> Result<&str, String> {
    const SHOWN: usize = 80;
    checked(line).map_err(|why| format!("{why}: {:?}", line.chars().take(SHOWN).collect::<String>()))
}

/// Maximum number of references in a list.
const MOST_LISTED: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number}: {why}")]
pub struct BadLine {
    pub number: usize,
    pub why: String,
}

/// Reads a list of images: one reference, whole digest or whole id a line, with the number of the line; `#` begins a
/// comment.
///
/// # Errors
/// The first line that is not accepted: the file is probably something else.
pub fn listed(text: &str) -> Result<Vec<(usize, &str)>, BadLine> {
    let mut references = Vec::new();
    for (number, line) in lines(text) {
        let reference = checked_line(line).map_err(|why| BadLine { number, why })?;
        if references.len() == MOST_LISTED {
            return Err(BadLine { number, why: format!("the list has more than {MOST_LISTED} references") });
        }
        references.push((number, reference));
    }
    Ok(references)
}

fn of_document(name: &str, document: &Value) -> Result<Vec<WantedImage>, String> {
    if document.get("layers").is_some() || document.get("fsLayers").is_some() {
        return of_manifest(name, document, "layers").map(|image| vec![image]);
    }
    if let Some(entries) = document.get("manifests").and_then(Value::as_array) {
        let digests = of_platform(entries).map(str::to_owned).into_iter().collect();
        return Ok(vec![WantedImage { digests, is_index: true, ..WantedImage::named(name) }]);
    }
    if document.get("LayersData").is_some_and(Value::is_array) {
        return of_manifest(name, document, "LayersData").map(|image| vec![image]);
    }
    if document.get("Layers").is_some_and(Value::is_array) && document.get("DockerVersion").is_some() {
        return Err("this skopeo prints no sizes of layers (LayersData): use skopeo inspect --raw".into());
    }
    match document["kind"].as_str() {
        Some("PinnedImageSet") => names(document, "/spec/pinnedImages", "/name"),
        Some("ImageStream") => names(document, "/spec/tags", "/from/name"),
        _ if document.get("references").is_some() => names(document, "/references/spec/tags", "/from/name"),
        Some("List") => {
            let items = document["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let images = items.iter().map(|item| of_document(name, item)).collect::<Result<Vec<_>, _>>()?;
            Ok(images.concat())
        }
        Some(kind) => Err(format!("documents of kind {kind:?} name no images")),
        None => match document["mediaType"].as_str() {
            Some(media_type) => Err(format!("the media type {media_type:?} is not that of a manifest")),
            None => Err("it is neither a manifest nor a list of images".into()),
        },
    }
}

/// Reads names of images from a list of objects. `field`: the name in each object. A name that is not a reference is an
/// error: names are printed as parts of commands.
fn names(document: &Value, list: &str, field: &str) -> Result<Vec<WantedImage>, String> {
    let entries = document.pointer(list).and_then(Value::as_array).into_iter().flatten().enumerate();
    let names = entries.filter_map(|(position, entry)| Some((position, entry.pointer(field)?.as_str()?)));
    let images = names.map(|(position, name)| {
        let reference = checked_line(name).map_err(|why| format!("{list}/{position}{field}: {why}"))?;
        Ok(WantedImage::named(reference))
    });
    images.collect()
}

/// Returns the digest of the manifest of this node's platform, or of the only one if it names no platform.
fn of_platform(entries: &[Value]) -> Option<&str> {
    let platform = platform();
    let is_of_platform = |entry: &&Value| {
        let [os, architecture] = ["os", "architecture"].map(|key| entry["platform"][key].as_str());
        os.zip(architecture).is_some_and(|(os, architecture)| format!("{os}/{architecture}") == platform)
    };
    let alone = match entries {
        [entry] if entry.get("platform").is_none() => Some(entry),
        _ => None,
    };
    // The text is printed as part of a command.
    entries.iter().find(is_of_platform).or(alone)?["digest"].as_str().filter(|digest| is_digest(digest))
}

/// Reads a manifest, with the name that `oc image info` or a script adds to it, or the output of `skopeo inspect`, whose
/// fields begin with capital letters.
fn of_manifest(name: &str, manifest: &Value, list: &str) -> Result<WantedImage, String> {
    let Some(layers) = manifest.get(list).and_then(Value::as_array) else {
        return Err("it is a manifest of Docker's schema 1, which has no sizes of layers".into());
    };
    let layers = Some(layers.iter().map(wanted_layer).collect::<Result<Vec<_>, _>>()?);
    let configuration = manifest.pointer("/config/digest").and_then(Value::as_str);
    let digests = configuration.or(manifest["Digest"].as_str()).or(manifest["digest"].as_str());
    let digests = digests.map(str::to_owned).into_iter().collect();
    let reference =
        ["Name", "name"].into_iter().find_map(|field| Some((field, manifest.get(field)?.as_str()?)));
    let Some((field, reference)) = reference.filter(|(_, reference)| !reference.is_empty()) else {
        return Ok(WantedImage { layers, digests, ..WantedImage::named(name) });
    };
    let reference = checked_line(reference).map_err(|why| format!("/{field}: {why}"))?;
    let repository = Some(repository(&normalized(reference)).to_owned());
    Ok(WantedImage { layers, digests, repository, ..WantedImage::named(reference) })
}

/// Annotation of an eStargz layer: the length of its tar.
const TAR_BYTES: &str = "io.containers.estargz.uncompressed-size";

fn wanted_layer(layer: &Value) -> Result<LayerBlob, String> {
    let field = |names: [&str; 2]| names.into_iter().find_map(|name| layer.get(name));
    let digest = field(["digest", "Digest"]).and_then(Value::as_str).ok_or("a layer has no digest")?;
    let compressed_bytes = field(["size", "Size"]).and_then(Value::as_u64);
    let compressed_bytes = compressed_bytes.ok_or_else(|| format!("the layer {digest} has no size"))?;
    let media_type = field(["mediaType", "MIMEType"]).and_then(Value::as_str).unwrap_or_default();
    let tar_bytes = field(["annotations", "Annotations"]).and_then(|annotations| annotations.get(TAR_BYTES));
    let tar_bytes = tar_bytes.and_then(Value::as_str).and_then(|bytes| bytes.parse().ok());
    let blob = LayerBlob::new(digest.to_owned(), compressed_bytes, media_type);
    Ok(LayerBlob { tar_bytes: tar_bytes.or(blob.tar_bytes), ..blob })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"{"schemaVersion":2,"config":{"digest":"sha256:c","size":7},"layers":[{"digest":"sha256:a","size":10},{"digest":"sha256:b","size":20}]}"#;

    #[test]
    fn files_name_their_images() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let [etcd, a, b] = ["etcd", "a", "b"].map(|name| format!("quay.io/{name}@{digest}"));
        let stream = format!(
            r#"{{"kind":"ImageStream","spec":{{"tags":[{{"name":"etcd","from":{{"name":"{etcd}"}}}}]}}}}"#
        );
        let release = format!(r#"{{"image":"x","references":{stream}}}"#);
        let set = format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: PinnedImageSet\nspec:\n  pinnedImages:\n  - name: \
             {a}\n  - name: {b}\n"
        );
        let inspected =
            r#"{"Name":"quay.io/app","Layers":["sha256:a"],"LayersData":[{"Digest":"sha256:a","Size":10}]}"#;
        let named = MANIFEST.replacen('{', r#"{"name":"quay.io/app:2","#, 1);
        let two = format!("{MANIFEST}\n{MANIFEST}");
        let mixed = format!("{MANIFEST} quay.io/lost:1 # unauthorized\n{MANIFEST}quay.io/b\n");
        for (text, expected) in [
            (MANIFEST, &["f"][..]),
            (&two, &["f#1", "f#2"]),
            (&mixed, &["f#1", "quay.io/lost:1", "f#3", "quay.io/b"]),
            (inspected, &["quay.io/app"]),
            (&named, &["quay.io/app:2"]),
            (&set, &[&a, &b]),
            (&stream, &[&etcd]),
            (&release, &[&etcd]),
            ("# needed\nquay.io/a:1\n\nbusybox # base\n", &["quay.io/a:1", "busybox"]),
        ] {
            let images = parse("f", text).unwrap();
            let names: Vec<_> = images.iter().map(|image| image.name.as_str()).collect();
            assert_eq!(names, expected, "{text}");
        }
        let layers = parse("f", MANIFEST).unwrap().remove(0).layers.unwrap();
        assert_eq!(layers.iter().map(|layer| layer.compressed_bytes).sum::<u64>(), 30);
    }

    #[test]
    fn manifest_with_name_has_its_repository() {
        for text in [
            r#"{"name":"nginx:1.27","layers":[{"digest":"sha256:a","size":10,"mediaType":"x.tar+zstd","annotations":{"io.containers.estargz.uncompressed-size":"30"}}]}"#,
            r#"{"Name":"docker.io/library/nginx","LayersData":[{"Digest":"sha256:a","Size":10,"MIMEType":"x.tar+zstd","Annotations":{"io.containers.estargz.uncompressed-size":"30"}}]}"#,
        ] {
            let image = parse("f", text).unwrap().remove(0);
            assert_eq!(image.repository.as_deref(), Some("docker.io/library/nginx"));
            let layer = LayerBlob::new("sha256:a".into(), 10, "x.tar+zstd");
            assert_eq!(image.layers, Some(vec![LayerBlob { tar_bytes: Some(30), ..layer }]));
        }
        assert_eq!(parse("f", MANIFEST).unwrap()[0].repository, None);
    }

    /// The names are printed as parts of commands.
    #[test]
    fn names_that_are_no_references_are_refused() {
        let name = "x;touch${IFS}/pwned;#";
        let tags = format!(r#"{{"spec":{{"tags":[{{}},{{"from":{{"name":"{name}"}}}}]}}}}"#);
        for (text, field) in [
            (
                format!(r#"{{"kind":"PinnedImageSet","spec":{{"pinnedImages":[{{"name":"{name}"}}]}}}}"#),
                "/spec/pinnedImages/0/name: ",
            ),
            (tags.replacen('{', r#"{"kind":"ImageStream","#, 1), "/spec/tags/1/from/name: "),
            (format!(r#"{{"references":{tags}}}"#), "/references/spec/tags/1/from/name: "),
            (format!(r#"{{"Name":"{name}","LayersData":[{{"Digest":"sha256:a","Size":10}}]}}"#), "/Name: "),
            (format!(r#"{{"name":"{name}","layers":[]}}"#), "/name: "),
            (format!("kind: PinnedImageSet\nspec:\n  pinnedImages:\n  - name: '{name}'\n"), "/0/name: "),
            (format!("quay.io/a\n{name}\n"), "line 2: "),
        ] {
            let error = parse("f", &text).unwrap_err();
            assert!(error.contains(field) && error.contains("not an image reference"), "{text}: {error}");
        }
    }

    #[test]
    fn lists_to_delete_are_read_by_line() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let text = format!(
            "{MARK}# report\r\n\n docker://quay.io/a:1 \r\n{digest}# high\ndocker-pullable://quay.io/b@{digest}\n\n"
        );
        let by_digest = format!("quay.io/b@{digest}");
        let expected = [(3, "quay.io/a:1"), (4, digest.as_str()), (5, by_digest.as_str())];
        assert_eq!(listed(&text).unwrap(), expected);
        assert_eq!(listed("# none\n\n").unwrap(), []);
        let long = format!("a\n{}", "x ".repeat(10_000));
        for (text, number, words) in [
            ("{\"Results\": []}", 1, "not an image reference or digest: \"{"),
            ("# a\n\nquay.io/a:1\nquay.io/a 1\n", 4, "quay.io/a 1"),
            ("a\n0123456789ab\n", 2, "the start of an id"),
            ("a\0b", 1, "a\\0b"),
            ("a\ncontainers-storage:b\n", 2, "not an image of a registry"),
            (&long, 2, "not an image reference"),
        ] {
            let bad = listed(text).unwrap_err();
            assert_eq!(bad.number, number, "{bad:?}");
            assert!(bad.why.contains(words) && bad.why.len() < 200 && !bad.why.contains('\n'), "{bad:?}");
        }
        let bad = listed(&"a\n".repeat(MOST_LISTED + 1)).unwrap_err();
        assert_eq!((bad.number, bad.why.as_str()), (100_001, "the list has more than 100000 references"));
    }

    #[test]
    fn indexes_name_the_manifest_of_the_platform() {
        let [first, second] = ["1a", "2b"].map(|byte| format!("sha256:{}", byte.repeat(32)));
        let platform = platform();
        let (os, architecture) = platform.split_once('/').unwrap();
        let of = |digest: &str, architecture: &str| {
            format!(r#"{{"digest":"{digest}","platform":{{"os":"{os}","architecture":"{architecture}"}}}}"#)
        };
        for (entries, expected) in [
            (format!("{},{}", of(&first, "z80"), of(&second, architecture)), Some(&second)),
            (of(&first, "z80"), None),
            (format!(r#"{{"digest":"{first}"}}"#), Some(&first)),
            (r#"{"digest":"$(x)"}"#.to_owned(), None),
            (String::new(), None),
        ] {
            let text = format!("{MANIFEST}\n{{\"manifests\":[{entries}]}}\n{MANIFEST}");
            let images = parse("f", &text).unwrap();
            assert_eq!(images.len(), 3, "the others count");
            assert!(images[1].is_index && images[1].layers.is_none());
            assert_eq!(images[1].digests.first(), expected, "{text}");
        }
    }

    #[test]
    fn wrong_files_are_named_in_one_line() {
        for (text, expected) in [
            ("", "it is empty"),
            ("<!DOCTYPE html><html>", "it is HTML"),
            (r#"{"DockerVersion":"","Layers":["sha256:a"]}"#, "use skopeo inspect --raw"),
            (r#"{"layers":[{"digest":"sha256:a"}]}"#, "the layer sha256:a has no size"),
            (r#"{"layers":[{"size":1}]}"#, "a layer has no digest"),
            (r#"{"fsLayers":[]}"#, "schema 1"),
            (r#"{"mediaType":"application/x-cat"}"#, "the media type \"application/x-cat\""),
            (r#"{"kind":"Pod"}"#, "documents of kind \"Pod\""),
            ("kind: PinnedImageSet\n", "it names no image"),
            ("# nothing\n", "it names no image"),
            ("quay.io/a:1\n=== not a reference ===\n", "line 2: not an image reference"),
            ("a\nhttps://quay.io/a:1\n", "line 2: not an image reference (of all schemes"),
            ("{", "unclosed bracket"),
            ("{\"layers\":[]}\n\n404 page not found\n", "line 3: not an image reference"),
            ("{\"layers\":[]} a:1\n{", "document 3 is not valid JSON"),
        ] {
            let why = parse("f", text).unwrap_err();
            assert!(why.contains(expected) && !why.contains('\n'), "{text}: {why}");
        }
    }
}
