//! Reader of the JSON documents that `scan` and `report` print, for `diff`.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

use crate::model::SCHEMA_VERSION;
use crate::model::scan_summary::{
    ComparedScan, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, join_names, layer_name, leak_id,
};

/// Fields of a scan document that are compared; others are ignored.
#[derive(Deserialize)]
struct File {
    generated_at: Timestamp,
    complete: bool,
    sysroot: Option<PathBuf>,
    filesystems: Vec<Row>,
    stores: Vec<FileStore>,
    images: Vec<Row>,
    layers: Vec<Row>,
    containers: Vec<Row>,
    leaks: Vec<Row>,
}

/// Filesystem, image, layer, container or leak. Each kind has some of these fields under its own names, never
/// two names of one field.
#[derive(Deserialize)]
struct Row {
    #[serde(alias = "mount")]
    id: String,
    /// Root of the store; filesystems have none.
    #[serde(default)]
    store: String,
    #[serde(alias = "total_bytes", alias = "used_bytes")]
    bytes: u64,
    #[serde(default, alias = "exclusive_bytes", alias = "refcount", alias = "capacity_bytes")]
    extra: u64,
    /// Names of an image.
    #[serde(default)]
    names: Vec<String>,
    #[serde(default, alias = "kind", alias = "class", alias = "fstype")]
    name: String,
    /// Ids of the images that reach a layer.
    #[serde(default)]
    images: Vec<String>,
}

#[derive(Deserialize)]
struct FileStore {
    kind: String,
    root: String,
    driver: String,
    bytes: FileBytes,
}

#[derive(Deserialize)]
struct FileBytes {
    images: u64,
    containers: u64,
    #[serde(default)]
    build_cache: u64,
    leaks: u64,
    metadata: u64,
    other: u64,
}

/// Reads the scan in a document of `scan` or `report`, and gives it the id `id`.
///
/// # Errors
/// Describes in words why the document does not contain a scan.
pub fn scan_of(text: &[u8], id: String) -> Result<ComparedScan, String> {
    #[derive(Deserialize)]
    struct Head {
        schema_version: Option<u32>,
        kind: Option<String>,
    }
    #[derive(Deserialize)]
    struct Report {
        scan: File,
    }
    let head: Head =
        serde_json::from_slice(text).map_err(|error| format!("it is not a JSON document: {error}"))?;
    let file = match (head.schema_version, head.kind.as_deref()) {
        (Some(SCHEMA_VERSION), Some("scan")) => serde_json::from_slice(text),
        (Some(SCHEMA_VERSION), Some("report")) => {
            serde_json::from_slice(text).map(|report: Report| report.scan)
        }
        (Some(version), Some("scan" | "report")) => {
            return Err(format!("its schema_version is {version}, and only {SCHEMA_VERSION} is known"));
        }
        (_, Some(kind)) => return Err(format!("it is a document of kind {kind:?}, not a scan")),
        (_, None) => return Err("it is not a document of layersweep".into()),
    };
    let file: File = file.map_err(|error| format!("it is not a valid scan document: {error}"))?;
    Ok(ComparedScan { id, taken_at: file.generated_at, summary: summary(file)? })
}

/// Returns a path below a mounted root as the node itself names it, which is how the node's records and other
/// scans name it. See [`Sysroot`](crate::sys::sysroot::Sysroot) for the paths of an ostree system.
fn node_path(sysroot: Option<&Path>, path: String) -> String {
    let Some(Ok(inside)) = sysroot.map(|sysroot| Path::new(&path).strip_prefix(sysroot)) else { return path };
    let parts: Vec<_> = inside.components().map(Component::as_os_str).collect();
    let path: PathBuf = match parts.as_slice() {
        [first, second, _, third, _, rest @ ..]
            if *first == "ostree" && *second == "deploy" && *third == "deploy" =>
        {
            rest.iter().collect()
        }
        [first, second, _, rest @ ..]
            if *first == "ostree"
                && *second == "deploy"
                && rest.first().is_some_and(|part| *part == "var") =>
        {
            rest.iter().collect()
        }
        _ => inside.to_path_buf(),
    };
    Path::new("/").join(path).to_string_lossy().into_owned()
}

fn summary(file: File) -> Result<ScanSummary, String> {
    fn add(
        entries: &mut BTreeMap<Key, SummaryEntry>,
        place: &SummaryStore,
        kind: SummaryKind,
        id: String,
        entry: SummaryEntry,
    ) {
        let known = entries.entry(Key { place: place.clone().into(), kind, id }).or_default();
        known.bytes = known.bytes.saturating_add(entry.bytes);
        known.extra = known.extra.max(entry.extra);
        known.name = entry.name;
    }
    let sysroot = file.sysroot.as_deref();
    let mut entries = BTreeMap::new();
    // Objects name their store only by its root.
    let mut places: BTreeMap<String, SummaryStore> = BTreeMap::new();
    for store in file.stores {
        let driver = if store.kind == "containerd" { String::new() } else { store.driver };
        let place = SummaryStore { kind: store.kind, root: node_path(sysroot, store.root.clone()), driver };
        for (id, bytes) in [
            ("images", store.bytes.images),
            ("containers", store.bytes.containers),
            ("build_cache", store.bytes.build_cache),
            ("leaks", store.bytes.leaks),
            ("metadata", store.bytes.metadata),
            ("other", store.bytes.other),
        ] {
            let entry = SummaryEntry { bytes, ..SummaryEntry::default() };
            add(&mut entries, &place, SummaryKind::Share, id.into(), entry);
        }
        if let Some(other) = places.insert(store.root.clone(), place.clone())
            && other != place
        {
            return Err(format!(
                "{} holds stores of two drivers, {} and {}, and the file does not say which store its \
                    images belong to; \
                 compare scans by their ids (`layersweep history --scans`)",
                store.root, other.driver, place.driver
            ));
        }
    }
    for (kind, rows) in [
        (SummaryKind::Filesystem, file.filesystems),
        (SummaryKind::Image, file.images),
        (SummaryKind::Layer, file.layers),
        (SummaryKind::Container, file.containers),
        (SummaryKind::Leak, file.leaks),
    ] {
        for row in rows {
            let (id, name) = match kind {
                SummaryKind::Filesystem => (node_path(sysroot, row.id), row.name),
                SummaryKind::Image => (row.id, join_names(&row.names)),
                SummaryKind::Leak => (leak_id(&row.name, &row.id), row.name),
                SummaryKind::Layer => {
                    let image = row.images.first().map(String::as_str);
                    (row.id, layer_name(&row.name, image))
                }
                _ => (row.id, row.name),
            };
            let place = places.get(&row.store).cloned().unwrap_or_else(|| SummaryStore {
                root: node_path(sysroot, row.store),
                ..SummaryStore::default()
            });
            let entry = SummaryEntry { bytes: row.bytes, extra: row.extra, name };
            add(&mut entries, &place, kind, id, entry);
        }
    }
    Ok(ScanSummary { complete: file.complete, entries, ..ScanSummary::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a scan of a store with two layers, with these bytes in images and in other files.
    fn scan(images: u64, other: u64) -> String {
        let layer = format!(r#"{{"id":"ID","store":"/s","kind":"layer","refcount":1,"bytes":{images}}}"#);
        format!(
            r#"{{"schema_version":1,"kind":"scan","generated_at":"2026-11-20T10:00:00Z","complete":true,
               "filesystems":[],"images":[],"layers":[{},{}],"containers":[],"leaks":[],
               "stores":[{{"kind":"containers-storage","root":"/s","driver":"overlay",
               "bytes":{{"images":{images},"containers":{images},"leaks":{images},"metadata":0,"other":{other}}}}}]}}"#,
            layer.replace("ID", "a"),
            layer.replace("ID", "b")
        )
    }

    fn read(text: &str) -> Result<ComparedScan, String> {
        scan_of(text.as_bytes(), "x".into())
    }

    #[test]
    fn differences_beyond_i64_are_saturated() {
        let most = u64::MAX;
        let (least, largest) = (read(&scan(0, 0)).unwrap(), read(&scan(most, most)).unwrap());
        for (before, after) in [(&least, &largest), (&largest, &least)] {
            let diff = crate::report::json::diff(before.taken_at, before, after);
            assert_eq!(diff.totals.before_bytes.max(diff.totals.after_bytes), most);
            assert!([i64::MIN, i64::MAX].contains(&diff.stores[0].layers.change_bytes));
        }
    }

    #[test]
    fn mounted_paths_are_named_as_on_their_node() {
        for (sysroot, path, expected) in [
            (None, "/mnt/n/var", "/mnt/n/var"),
            (Some("/mnt/n"), "/mnt/n", "/"),
            (Some("/mnt/n"), "/mnt/n/var/lib/containers", "/var/lib/containers"),
            (Some("/mnt/n"), "/mnt/name/var", "/mnt/name/var"),
            (Some("/mnt/n"), "/mnt/n/ostree/deploy/rhcos/var/lib/x", "/var/lib/x"),
            (Some("/mnt/n"), "/mnt/n/ostree/deploy/rhcos/deploy/0f.0/opt/x", "/opt/x"),
            (Some("/mnt/n"), "/mnt/n/ostree/repo", "/ostree/repo"),
        ] {
            assert_eq!(node_path(sysroot.map(Path::new), path.into()), expected, "{path}");
        }
    }

    #[test]
    fn two_drivers_in_one_root_are_refused() {
        fn store(driver: &str) -> String {
            format!(
                r#"{{"kind":"containers-storage","root":"/s","driver":"{driver}",
                   "bytes":{{"images":1,"containers":0,"leaks":0,"metadata":0,"other":0}}}}"#
            )
        }
        let whole = scan(1, 1);
        let (head, _) = whole.split_once(r#""stores":["#).unwrap();
        let with_drivers =
            |first, second| format!(r#"{head}"stores":[{},{}]}}"#, store(first), store(second));
        assert!(read(&with_drivers("overlay", "overlay")).is_ok());
        let error = read(&with_drivers("overlay", "vfs")).unwrap_err();
        assert!(error.contains("/s holds stores of two drivers, overlay and vfs"), "{error}");
    }

    #[test]
    fn document_that_is_not_a_scan_is_refused() {
        for (text, expected) in [
            ("", "not a JSON document"),
            ("[1]", "not a JSON document"),
            ("{}", "not a document of layersweep"),
            (r#"{"schema_version":1,"kind":"images"}"#, "kind \"images\""),
            (r#"{"schema_version":9,"kind":"scan"}"#, "schema_version is 9"),
            (r#"{"schema_version":1,"kind":"scan"}"#, "not a valid scan document"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
