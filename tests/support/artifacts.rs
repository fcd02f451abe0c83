//! A store of OCI artifacts, written as CRI-O 1.36 and podman 5.4 write it: neither is packaged for the systems
//! that these tests run on.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::program::text;

/// Annotation of an index entry that contains its name.
pub const NAME: &str = "org.opencontainers.image.ref.name";

/// Artifact store of a graphroot.
#[derive(Clone, Debug)]
pub struct Artifacts {
    dir: PathBuf,
}

/// An artifact as CRI-O lists it.
#[derive(Clone, Debug)]
pub struct Listed {
    pub id: String,
    pub names: Vec<String>,
    pub size: u64,
}

/// Returns bytes that do not compress and that no other seed shares.
pub fn content(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut bytes = Vec::with_capacity(length);
    for _ in 0..length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push(state.to_be_bytes()[0]);
    }
    bytes
}

impl Artifacts {
    /// Returns the store of a graphroot, which need not exist.
    pub fn of(graphroot: &Path) -> Self {
        Self { dir: graphroot.join("artifacts") }
    }

    /// Creates an empty store.
    pub fn make(graphroot: &Path) -> Self {
        let store = Self::of(graphroot);
        std::fs::create_dir_all(store.dir.join("blobs/sha256")).expect("making a layout");
        std::fs::write(store.dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("writing");
        std::fs::write(store.dir.join("index.lock"), "").expect("writing");
        store.set_index(&json!({"schemaVersion": 2, "manifests": [], "x-kept": {"a": [1.50]}}));
        store
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn index(&self) -> Value {
        let index = std::fs::read(self.dir.join("index.json")).unwrap_or_else(|_| b"{}".to_vec());
        serde_json::from_slice(&index).expect("an index")
    }

    pub fn set_index(&self, index: &Value) {
        std::fs::write(self.dir.join("index.json"), index.to_string()).expect("writing the index");
    }

    /// Returns the path of a blob.
    pub fn path(&self, digest: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// Returns the sorted names of all blobs.
    pub fn blobs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.join("blobs/sha256")).expect("listing");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    /// Adds a blob; returns its digest.
    pub fn blob(&self, content: &[u8]) -> String {
        let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.path(&hex);
        std::fs::write(path, content).expect("writing a blob");
        format!("sha256:{hex}")
    }

    /// Adds an artifact with these layers; returns its id.
    pub fn add(&self, name: Option<&str>, layers: &[&[u8]]) -> String {
        let manifest = self.manifest(layers);
        self.entry(name, &manifest);
        manifest.trim_start_matches("sha256:").to_owned()
    }

    /// Adds a manifest without an index entry; returns its digest.
    pub fn manifest(&self, layers: &[&[u8]]) -> String {
        let config = self.blob(b"{}");
        let layers: Vec<_> = layers
            .iter()
            .map(|content| {
                json!({"mediaType": "application/octet-stream",
                "digest": self.blob(content), "size": content.len()})
            })
            .collect();
        let manifest = json!({"schemaVersion": 2, "artifactType": "application/x-model",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": config, "size": 2},
            "layers": layers, "annotations": {"team": "models"}});
        self.blob(manifest.to_string().as_bytes())
    }

    /// Adds an entry to the index.
    pub fn entry(&self, name: Option<&str>, digest: &str) {
        let mut index = self.index();
        let mut entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest, "size": self.path(digest).metadata().map_or(0, |facts| facts.len())});
        if let Some(name) = name {
            entry["annotations"] = json!({NAME: name});
        }
        index["manifests"].as_array_mut().expect("a list").push(entry);
        self.set_index(&index);
    }

    /// Returns the artifacts as CRI-O lists them.
    pub fn list(&self) -> Vec<Listed> {
        let index = self.index();
        let mut all: Vec<Listed> = Vec::new();
        for entry in index["manifests"].as_array().into_iter().flatten() {
            let id = text(entry, "/digest").trim_start_matches("sha256:").to_owned();
            let name = entry["annotations"][NAME].as_str().map(str::to_owned);
            if let Some(known) = all.iter_mut().find(|artifact| artifact.id == id) {
                known.names.extend(name);
                continue;
            }
            let manifest = std::fs::read(self.path(&id)).unwrap_or_else(|_| b"{}".to_vec());
            let manifest: Value = serde_json::from_slice(&manifest).expect("a manifest");
            let layers = manifest["layers"].as_array().into_iter().flatten();
            let size = layers.filter_map(|layer| layer["size"].as_u64()).sum();
            all.push(Listed { id, names: name.into_iter().collect(), size });
        }
        all
    }

    /// Removes one entry as the library does: first the blobs that no other entry needs, then the index entry.
    pub fn remove(&self, reference: &str) {
        let (name, digest) = reference.split_once('@').expect("a name with a digest");
        let mut index = self.index();
        let rows = index["manifests"].as_array_mut().expect("a list");
        let position = rows.iter().position(|row| {
            let tagged = row["annotations"][NAME].as_str().unwrap_or_default();
            row["digest"] == digest && tagged.rsplit_once(':').is_some_and(|(bare, _)| bare == name)
        });
        let Some(position) = position else { return };
        let removed = self.blobs_of(text(&rows.remove(position), "/digest"));
        let needed: Vec<_> = rows.iter().flat_map(|row| self.blobs_of(text(row, "/digest"))).collect();
        for blob in removed.iter().filter(|blob| !needed.contains(blob)) {
            let _ = std::fs::remove_file(self.path(blob));
        }
        self.set_index(&index);
    }

    /// Digests of a manifest and of every blob that it names.
    fn blobs_of(&self, digest: &str) -> Vec<String> {
        let manifest = std::fs::read(self.path(digest)).expect("reading");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let layers = manifest["layers"].as_array().into_iter().flatten();
        let named = layers.chain([&manifest["config"]]).map(|blob| text(blob, "/digest").to_owned());
        named.chain([digest.to_owned()]).collect()
    }
}
