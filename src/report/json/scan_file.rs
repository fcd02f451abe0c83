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
    filesystems: Vec<FileFilesystem>,
    stores: Vec<FileStore>,
    images: Vec<FileImage>,
    layers: Vec<FileLayer>,
    containers: Vec<FileContainer>,
    leaks: Vec<FileLeak>,
}

#[derive(Deserialize)]
struct FileFilesystem {
    mount: String,
    used_bytes: u64,
    #[serde(default)]
    capacity_bytes: u64,
    #[serde(default)]
    fstype: String,
}

#[derive(Deserialize)]
struct FileImage {
    id: String,
    #[serde(default)]
    store: String,
    total_bytes: u64,
    #[serde(default)]
    exclusive_bytes: u64,
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Deserialize)]
struct FileLayer {
    id: String,
    #[serde(default)]
    store: String,
    bytes: u64,
    #[serde(default)]
    refcount: u64,
    #[serde(default)]
    kind: String,
    /// Ids of the images that reach it.
    #[serde(default)]
    images: Vec<String>,
}

#[derive(Deserialize)]
struct FileContainer {
    id: String,
    #[serde(default)]
    store: String,
    bytes: u64,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct FileLeak {
    id: String,
    #[serde(default)]
    store: String,
    bytes: u64,
    #[serde(default)]
    class: String,
}

/// Object of a scan document, of any kind.
struct Row {
    kind: SummaryKind,
    /// Root of the store; empty for filesystems.
    store: String,
    id: String,
    entry: SummaryEntry,
}

impl File {
    fn into_rows(self, sysroot: Option<&Path>) -> impl Iterator<Item = Row> {
        let row = |kind, store, id, bytes, extra, name| Row {
            kind,
            store,
            id,
            entry: SummaryEntry { bytes, extra, name },
        };
        let filesystems = self.filesystems.into_iter().map(move |filesystem| {
            let mount = node_path(sysroot, filesystem.mount);
            let FileFilesystem { used_bytes, capacity_bytes, fstype, .. } = filesystem;
            row(SummaryKind::Filesystem, String::new(), mount, used_bytes, capacity_bytes, fstype)
        });
        let images = self.images.into_iter().map(move |image| {
            let names = join_names(&image.names);
            row(SummaryKind::Image, image.store, image.id, image.total_bytes, image.exclusive_bytes, names)
        });
        let layers = self.layers.into_iter().map(move |layer| {
            let name = layer_name(&layer.kind, layer.images.first().map(String::as_str));
            row(SummaryKind::Layer, layer.store, layer.id, layer.bytes, layer.refcount, name)
        });
        let containers = self.containers.into_iter().map(move |container| {
            let FileContainer { id, store, bytes, name } = container;
            row(SummaryKind::Container, store, id, bytes, 0, name)
        });
        let leaks = self.leaks.into_iter().map(move |leak| {
            let id = leak_id(&leak.class, &leak.id);
            row(SummaryKind::Leak, leak.store, id, leak.bytes, 0, leak.class)
        });
        filesystems.chain(images).chain(layers).chain(containers).chain(leaks)
    }
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

fn summary(mut file: File) -> Result<ScanSummary, String> {
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
    let sysroot = file.sysroot.take();
    let mut entries = BTreeMap::new();
    // Objects name their store only by its root.
    let mut places: BTreeMap<String, SummaryStore> = BTreeMap::new();
    for store in std::mem::take(&mut file.stores) {
        let driver = if store.kind == "containerd" { String::new() } else { store.driver };
        let place = SummaryStore {
            kind: store.kind,
            root: node_path(sysroot.as_deref(), store.root.clone()),
            driver,
        };
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
    let is_complete = file.complete;
    for row in file.into_rows(sysroot.as_deref()) {
        let place = places.get(&row.store).cloned().unwrap_or_else(|| SummaryStore {
            root: node_path(sysroot.as_deref(), row.store),
            ..SummaryStore::default()
        });
        add(&mut entries, &place, row.kind, row.id, row.entry);
    }
    Ok(ScanSummary { complete: is_complete, entries, ..ScanSummary::default() })
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

    /// Later versions add fields, whose names another kind may use already.
    #[test]
    fn added_fields_do_not_collide() {
        let text = scan(1, 1).replace(
            r#""containers":[]"#,
            r#""containers":[{"id":"c","store":"/s","bytes":7,"used_bytes":8,"name":"web","kind":"pod","class":"x"}]"#,
        );
        let text = text.replace(r#""refcount":1"#, r#""refcount":1,"name":"base","total_bytes":9"#);
        let found = read(&text).unwrap();
        let container = found.summary.entries.iter().find(|(key, _)| key.kind == SummaryKind::Container);
        let (_, container) = container.unwrap();
        assert_eq!((container.bytes, container.name.as_str()), (7, "web"));
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
