//! Summary of the scan in a document of `scan` or `report`, for `diff`. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::model::documents::reader::{NodeDocument, Text};
use crate::model::documents::scan_summary::{
    ComparedScan, Key, ScanSummary, SummaryEntry, SummaryKind, SummaryStore, join_names, layer_name, leak_id,
};

/// Reads the scan in a document, and gives it the id `id`.
///
/// # Errors
/// Describes in words why the document does not contain a scan.
pub fn read_scan(text: &[u8], id: String) -> Result<ComparedScan, String> {
    let document = NodeDocument::read(text)?;
    let places = places(&document)?;
    let mut entries = SummaryFiller { document: &document, places, entries: BTreeMap::new() };
    for store in &document.stores {
        let place = entries.place(&store.root);
        let bytes = store.bytes;
        for (id, bytes) in [
            ("images", bytes.images),
            ("containers", bytes.containers),
            ("build_cache", bytes.build_cache),
            ("leaks", bytes.leaks),
            ("metadata", bytes.metadata),
            ("other", bytes.other),
        ] {
            entries.add(Arc::clone(&place), SummaryKind::Share, id.into(), (bytes, 0, String::new()));
        }
    }
    for filesystem in &document.filesystems {
        let mount = entries.node_path(&filesystem.mount);
        let facts = (filesystem.used_bytes, filesystem.capacity_bytes, filesystem.fstype.to_owned());
        entries.add(Arc::default(), SummaryKind::Filesystem, mount, facts);
    }
    for image in &document.images {
        let names: Vec<_> = image.names.iter().map(Text::to_owned).collect();
        let facts = (image.total_bytes, image.exclusive_bytes, join_names(&names));
        entries.add(entries.place(&image.store), SummaryKind::Image, image.id.to_owned(), facts);
    }
    for layer in &document.layers {
        let name = layer_name(&layer.kind.0, layer.images.first().map(|image| &*image.0));
        let facts = (layer.bytes, layer.refcount, name);
        entries.add(entries.place(&layer.store), SummaryKind::Layer, layer.id.to_owned(), facts);
    }
    for container in &document.containers {
        let facts = (container.bytes, 0, container.name.to_owned());
        entries.add(entries.place(&container.store), SummaryKind::Container, container.id.to_owned(), facts);
    }
    for leak in &document.leaks {
        let id = leak_id(&leak.class.0, &leak.id.0);
        entries.add(
            entries.place(&leak.store),
            SummaryKind::Leak,
            id,
            (leak.bytes, 0, leak.class.to_owned()),
        );
    }
    let summary =
        ScanSummary { complete: document.scan_complete, entries: entries.entries, ..ScanSummary::default() };
    Ok(ComparedScan { id, taken_at: document.generated_at, summary })
}

/// Returns the stores by their roots in the document: objects name their store only by its root.
fn places<'a>(document: &'a NodeDocument<'_>) -> Result<BTreeMap<&'a str, Arc<SummaryStore>>, String> {
    let mut places: BTreeMap<&str, Arc<SummaryStore>> = BTreeMap::new();
    for store in &document.stores {
        let place = SummaryStore {
            kind: store.kind.to_owned(),
            root: node_path(document.sysroot.as_deref(), &store.root.0),
            driver: if store.kind.0 == "containerd" { String::new() } else { store.driver.to_owned() },
        };
        if let Some(other) = places.get(&*store.root.0)
            && **other != place
        {
            return Err(format!(
                "{} holds stores of two drivers, {} and {}, and the file does not say which store its images belong \
                 to; compare scans by their ids (`layersweep history --scans`)",
                store.root.0, other.driver, place.driver
            ));
        }
        places.insert(&store.root.0, place.into());
    }
    Ok(places)
}

struct SummaryFiller<'a> {
    document: &'a NodeDocument<'a>,
    places: BTreeMap<&'a str, Arc<SummaryStore>>,
    entries: BTreeMap<Key, SummaryEntry>,
}

impl SummaryFiller<'_> {
    fn place(&self, root: &Text<'_>) -> Arc<SummaryStore> {
        self.places
            .get(&*root.0)
            .cloned()
            .unwrap_or_else(|| SummaryStore { root: self.node_path(root), ..SummaryStore::default() }.into())
    }

    fn node_path(&self, path: &Text<'_>) -> String {
        node_path(self.document.sysroot.as_deref(), &path.0)
    }

    /// Adds an entry with its bytes, extra number and name. Objects with the same key count together.
    fn add(
        &mut self,
        place: Arc<SummaryStore>,
        kind: SummaryKind,
        id: String,
        (bytes, extra, name): (u64, u64, String),
    ) {
        let entry = self.entries.entry(Key { place, kind, id }).or_default();
        entry.bytes = entry.bytes.saturating_add(bytes);
        entry.extra = entry.extra.max(extra);
        entry.name = name;
    }
}

/// Returns a path below a mounted root as the node itself names it, which is how the node's records and other
/// scans name it. See [`Sysroot`](crate::sys::sysroot::Sysroot) for the paths of an ostree system.
pub(super) fn node_path(sysroot: Option<&str>, path: &str) -> String {
    let Some(Ok(inside)) = sysroot.map(|sysroot| Path::new(path).strip_prefix(sysroot)) else {
        return path.to_owned();
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::documents::comparison::{BytesChange, ScanComparison};

    const TOTALS: &str =
        r#"{"images":0,"images_unused":0,"containers":0,"leaks":0,"bytes":0,"reclaimable_bytes":0}"#;

    /// Returns a scan of a store with two layers, with these bytes in images and in other files.
    fn scan(images: u64, other: u64) -> String {
        let layer =
            format!(r#"{{"id":"ID","store":"/s","kind":"layer","refcount":1,"images":[],"bytes":{images}}}"#);
        format!(
            r#"{{"schema_version":1,"kind":"scan","generated_at":"2026-11-20T10:00:00Z","complete":true,
               "filesystems":[],"images":[],"layers":[{},{}],"containers":[],"leaks":[],
               "stores":[{{"kind":"containers-storage","root":"/s","driver":"overlay",
               "filesystem":"/","reclaimable_bytes":0,"bytes":{{"images":{images},"containers":{images},"build_cache":0,
               "leaks":{images},"metadata":0,"other":{other}}}}}],"totals":{TOTALS}}}"#,
            layer.replace("ID", "a"),
            layer.replace("ID", "b")
        )
    }

    fn read(text: &str) -> Result<ComparedScan, String> {
        read_scan(text.as_bytes(), "x".into())
    }

    #[test]
    fn differences_beyond_i64_are_saturated() {
        let most = u64::MAX;
        let scans = [scan(0, 0), scan(most, most)];
        for [before, after] in [[0, 1], [1, 0]] {
            let [before, after] = [before, after].map(|position: usize| read(&scans[position]).unwrap());
            let [old, new] = [&before, &after].map(|scan| scan.summary.bytes());
            assert_eq!(old.max(new), most);
            let compared = ScanComparison { before, after };
            let stores = compared.stores();
            let [old, new] =
                stores.values().next().unwrap().each_ref().map(|store| store.as_ref().unwrap().layers);
            assert!([i64::MIN, i64::MAX].contains(&BytesChange::new(old, new).change_bytes));
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
            assert_eq!(node_path(sysroot, path), expected, "{path}");
        }
    }

    #[test]
    fn two_drivers_in_one_root_are_refused() {
        fn store(driver: &str) -> String {
            format!(
                r#"{{"kind":"containers-storage","root":"/s","driver":"{driver}",
                   "filesystem":"/","reclaimable_bytes":0,
                   "bytes":{{"images":1,"containers":0,"build_cache":0,"leaks":0,"metadata":0,"other":0}}}}"#
            )
        }
        let whole = scan(1, 1);
        let (head, _) = whole.split_once(r#""stores":["#).unwrap();
        let with_drivers = |first, second| {
            format!(r#"{head}"stores":[{},{}],"totals":{TOTALS}}}"#, store(first), store(second))
        };
        assert!(read(&with_drivers("overlay", "overlay")).is_ok());
        let error = read(&with_drivers("overlay", "vfs")).unwrap_err();
        assert!(error.contains("/s holds stores of two drivers, overlay and vfs"), "{error}");
    }
}
