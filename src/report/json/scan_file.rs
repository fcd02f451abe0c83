//! A document of `layersweep scan --format json`, read again.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

use super::SCHEMA_VERSION;
use crate::model::scan_summary::{
    ComparedScan, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, join_names, leak_id,
};

/// What of it is compared; what else it has is passed over.
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

/// A filesystem, image, layer, container or leak; each has some of these names, and none has two for the same.
#[derive(Deserialize)]
struct Row {
    #[serde(alias = "mount")]
    id: String,
    /// No filesystem has one.
    #[serde(default)]
    store: String,
    #[serde(alias = "total_bytes", alias = "used_bytes")]
    bytes: u64,
    #[serde(default, alias = "exclusive_bytes", alias = "refcount", alias = "capacity_bytes")]
    extra: u64,
    /// Of an image.
    #[serde(default)]
    names: Vec<String>,
    #[serde(default, alias = "kind", alias = "class", alias = "fstype")]
    name: String,
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

/// Reads a scan; `id` is what it is called. The report has a scan inside, which will do too.
///
/// # Errors
/// Why it is none, in words.
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

/// A path of the disk that was looked at, as the node itself names it: that is how its records and
/// other scans do. See [`Sysroot`](crate::sys::sysroot::Sysroot) for where an ostree system has it.
fn own_path(sysroot: Option<&Path>, path: String) -> String {
    let Some(Ok(inside)) = sysroot.map(|sysroot| Path::new(&path).strip_prefix(sysroot)) else { return path };
    let parts: Vec<_> = inside.components().map(Component::as_os_str).collect();
    let own: PathBuf = match parts.as_slice() {
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
    Path::new("/").join(own).to_string_lossy().into_owned()
}

fn summary(file: File) -> Result<ScanSummary, String> {
    let own = |path: String| own_path(file.sysroot.as_deref(), path);
    let mut entries: BTreeMap<Key, SummaryEntry> = BTreeMap::new();
    let mut add = |place: &SummaryStore, kind, id: String, entry: SummaryEntry| {
        let known = entries.entry(Key { place: place.clone().into(), kind, id }).or_default();
        known.bytes = known.bytes.saturating_add(entry.bytes);
        known.extra = known.extra.max(entry.extra);
        known.name = entry.name;
    };
    // Objects name their store by its root alone.
    let mut places: BTreeMap<String, SummaryStore> = BTreeMap::new();
    for store in file.stores {
        let driver = if store.kind == "containerd" { String::new() } else { store.driver };
        let place = SummaryStore { kind: store.kind, root: own(store.root.clone()), driver };
        for (id, bytes) in [
            ("images", store.bytes.images),
            ("containers", store.bytes.containers),
            ("build_cache", store.bytes.build_cache),
            ("leaks", store.bytes.leaks),
            ("metadata", store.bytes.metadata),
            ("other", store.bytes.other),
        ] {
            add(&place, SummaryKind::Share, id.into(), SummaryEntry { bytes, ..SummaryEntry::default() });
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
    let place = |root: String| {
        places
            .get(&root)
            .cloned()
            .unwrap_or_else(|| SummaryStore { root: own(root), ..SummaryStore::default() })
    };
    for (what, rows) in [
        (SummaryKind::Filesystem, file.filesystems),
        (SummaryKind::Image, file.images),
        (SummaryKind::Layer, file.layers),
        (SummaryKind::Container, file.containers),
        (SummaryKind::Leak, file.leaks),
    ] {
        for row in rows {
            let (id, name) = match what {
                SummaryKind::Filesystem => (own(row.id), row.name),
                SummaryKind::Image => (row.id, join_names(&row.names)),
                SummaryKind::Leak => (leak_id(&row.name, &row.id), row.name),
                _ => (row.id, row.name),
            };
            add(&place(row.store), what, id, SummaryEntry { bytes: row.bytes, extra: row.extra, name });
        }
    }
    Ok(ScanSummary { complete: file.complete, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scan with a store of two layers, whose images and other bytes are so many.
    fn scan(images: u64, other: u64) -> String {
        let layer = |id: &str| {
            format!(r#"{{"id":"{id}","store":"/s","kind":"layer","refcount":1,"bytes":{images}}}"#)
        };
        format!(
            r#"{{"schema_version":1,"kind":"scan","generated_at":"2026-11-20T10:00:00Z","complete":true,
               "filesystems":[],"images":[],"layers":[{},{}],"containers":[],"leaks":[],
               "stores":[{{"kind":"containers-storage","root":"/s","driver":"overlay",
               "bytes":{{"images":{images},"containers":{images},"leaks":{images},"metadata":0,"other":{other}}}}}]}}"#,
            layer("a"),
            layer("b")
        )
    }

    #[test]
    fn bytes_beyond_all_disks_are_no_panic() {
        let read = |text: &str| scan_of(text.as_bytes(), "x".into());
        let most = u64::MAX;
        let (least, largest) = (read(&scan(0, 0)).unwrap(), read(&scan(most, most)).unwrap());
        for (before, after) in [(&least, &largest), (&largest, &least)] {
            let diff = crate::report::json::diff(before.taken_at, before, after);
            assert_eq!(diff.totals.before_bytes.max(diff.totals.after_bytes), most);
            assert!([i64::MIN, i64::MAX].contains(&diff.stores[0].layers.change_bytes));
        }
    }

    #[test]
    fn paths_of_a_mounted_disk_are_those_of_its_node() {
        for (sysroot, path, expected) in [
            (None, "/mnt/n/var", "/mnt/n/var"),
            (Some("/mnt/n"), "/mnt/n", "/"),
            (Some("/mnt/n"), "/mnt/n/var/lib/containers", "/var/lib/containers"),
            (Some("/mnt/n"), "/mnt/name/var", "/mnt/name/var"),
            (Some("/mnt/n"), "/mnt/n/ostree/deploy/rhcos/var/lib/x", "/var/lib/x"),
            (Some("/mnt/n"), "/mnt/n/ostree/deploy/rhcos/deploy/0f.0/opt/x", "/opt/x"),
            (Some("/mnt/n"), "/mnt/n/ostree/repo", "/ostree/repo"),
        ] {
            assert_eq!(own_path(sysroot.map(Path::new), path.into()), expected, "{path}");
        }
    }

    #[test]
    fn two_drivers_in_one_root_are_refused() {
        let store = |driver: &str| {
            format!(
                r#"{{"kind":"containers-storage","root":"/s","driver":"{driver}",
                   "bytes":{{"images":1,"containers":0,"leaks":0,"metadata":0,"other":0}}}}"#
            )
        };
        let one = scan(1, 1);
        let (head, _) = one.split_once(r#""stores":["#).unwrap();
        let read = |stores: [String; 2]| {
            scan_of(format!(r#"{head}"stores":[{}]}}"#, stores.join(",")).as_bytes(), "x".into())
        };
        assert!(read([store("overlay"), store("overlay")]).is_ok());
        let error = read([store("overlay"), store("vfs")]).unwrap_err();
        assert!(error.contains("/s holds stores of two drivers, overlay and vfs"), "{error}");
    }

    #[test]
    fn what_is_no_scan_is_said() {
        for (text, expected) in [
            ("", "not a JSON document"),
            ("[1]", "not a JSON document"),
            ("{}", "not a document of layersweep"),
            (r#"{"schema_version":1,"kind":"images"}"#, "kind \"images\""),
            (r#"{"schema_version":9,"kind":"scan"}"#, "schema_version is 9"),
            (r#"{"schema_version":1,"kind":"scan"}"#, "not a valid scan document"),
        ] {
            let error = scan_of(text.as_bytes(), "x".into()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
