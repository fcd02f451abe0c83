//! Which pods the kubelet still knows, by its own directory: it creates `pods/<uid>` before
//! anything of a pod runs, and removes it when the pod was deleted and everything in it has exited.
//!
//! A static pod's uid is made by the kubelet from its manifest; its directory and its containers'
//! labels have that one, not the uid of the mirror pod that the API server knows. So one rule
//! covers all pods. In addition, a static pod is known as long as a manifest has a matching name.
//!
//! What cannot be read, and a directory that does not fit what runs (a disk that is not mounted,
//! the directory of an earlier installation) prove nothing: then no pod counts as deleted.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::places::KubeletPlaces;
use super::{content, manifest, static_pods};
use crate::sys::quiet::is_absent;
use crate::sys::sysroot::Sysroot;

/// The pods that the kubelet knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPods {
    /// Uids with a directory.
    uids: HashSet<String>,
    /// Everything that a manifest calls a name.
    manifest_names: HashSet<String>,
    /// Where the directories are.
    roots: Vec<PathBuf>,
    said_by_kubelet: bool,
}

/// Why no pod can be called deleted.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// None of the candidates for the kubelet's directory exists.
    #[error("no directory of pods in {}", list(.0))]
    NoKubelet(Vec<PathBuf>),
    /// It is there.
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It exists, but belongs to another kubelet than the one that runs pods here.
    #[error("pod {uid} is running but has no directory in {}", list(roots))]
    NotTheirs {
        uid: String,
        /// Where it should be.
        roots: Vec<PathBuf>,
    },
    /// No running pod proves whose directory it is.
    #[error("no running pod confirms that {} is the kubelet's directory", list(.0))]
    Unproven(Vec<PathBuf>),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl KnownPods {
    /// Reads the directories of pods and the manifests of static pods.
    ///
    /// # Errors
    /// When there is no such directory, or anything of it cannot be read.
    pub fn read(root: &Sysroot, places: &KubeletPlaces) -> Result<Self, Unknown> {
        let mut known = Self { said_by_kubelet: places.said_by_kubelet, ..Self::default() };
        for place in &places.roots {
            let pods = place.join("pods");
            match root.list(&pods) {
                Ok(entries) => {
                    let names = entries.into_iter().filter_map(|entry| entry.name.into_string().ok());
                    known.uids.extend(names);
                    known.roots.push(pods);
                }
                Err(error) if is_absent(&error) => {}
                Err(source) => return Err(Unknown::Unreadable { path: pods, source }),
            }
        }
        if known.roots.is_empty() {
            return Err(Unknown::NoKubelet(places.roots.clone()));
        }
        for place in &places.manifests {
            known.manifests(root, place)?;
        }
        Ok(known)
    }

    fn manifests(&mut self, root: &Sysroot, place: &Path) -> Result<(), Unknown> {
        let unreadable = |path: &Path, source| Unknown::Unreadable { path: path.to_path_buf(), source };
        for (path, _) in static_pods::files(root, place).map_err(|source| unreadable(place, source))? {
            let bytes = content(root, &path, static_pods::MAX_FILE_BYTES);
            // The kubelet runs nothing from what is no such file.
            if let Ok(bytes) = bytes.map_err(|source| unreadable(&path, source))? {
                let manifest = manifest::read(&bytes);
                if let Some(why) = manifest.problem {
                    let why = format!("neither YAML nor JSON: {why}");
                    return Err(unreadable(&path, io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                self.manifest_names.extend(manifest.names);
            }
        }
        Ok(())
    }

    /// Compares the directories with the running pods, by the uids in their labels.
    ///
    /// # Errors
    /// When they do not match, or no running pod shows that they do.
    pub fn vouch<'a>(&self, mut running: impl Iterator<Item = &'a str>) -> Result<(), Unknown> {
        let Some(first) = running.next() else {
            return if self.said_by_kubelet { Ok(()) } else { Err(Unknown::Unproven(self.roots.clone())) };
        };
        match std::iter::once(first).chain(running).find(|uid| !self.uids.contains(*uid)) {
            None => Ok(()),
            Some(uid) => Err(Unknown::NotTheirs { uid: uid.to_owned(), roots: self.roots.clone() }),
        }
    }

    /// Whether the kubelet still knows a pod. `name` is the pod's own, empty if nobody knows it.
    #[must_use]
    pub fn has(&self, uid: &str, name: &str) -> bool {
        self.uids.contains(uid) || (is_static(uid) && self.a_manifest_fits(name))
    }

    /// The kubelet appends the node's name to that of the manifest.
    fn a_manifest_fits(&self, name: &str) -> bool {
        if name.is_empty() {
            return !self.manifest_names.is_empty();
        }
        let mut ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
        ends.any(|end| self.manifest_names.contains(&name[..end]))
    }
}

/// The API server makes uids of RFC 4122, the kubelet the hash of a manifest, unless that
/// has a uid, which can look like anything.
fn is_static(uid: &str) -> bool {
    let groups: Vec<_> = uid.split('-').map(str::len).collect();
    !(groups == [8, 4, 4, 4, 12] && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const API: &str = "0f8a31b2-7a5c-4f7e-9d1e-0b6a7c8d9e0f";
    const HASH: &str = "0f8a31b27a5c4f7e9d1e0b6a7c8d9e0f";

    struct Node {
        directory: tempfile::TempDir,
        places: KubeletPlaces,
    }

    impl Node {
        fn new(uids: &[&str]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path().join("kubelet");
            fs::create_dir_all(root.join("pods")).unwrap();
            for uid in uids {
                fs::create_dir(root.join("pods").join(uid)).unwrap();
            }
            let manifests = vec![directory.path().join("manifests")];
            let places = KubeletPlaces { roots: vec![root], manifests, ..KubeletPlaces::default() };
            Self { directory, places }
        }

        fn read(&self) -> Result<KnownPods, Unknown> {
            KnownPods::read(&Sysroot::live(), &self.places)
        }
    }

    #[test]
    fn a_directory_makes_a_pod_known() {
        let known = Node::new(&[API, HASH]).read().unwrap();
        assert!(known.has(API, "web") && known.has(HASH, "etcd-node1"));
        let other = API.replace('0', "1");
        assert!(!known.has(&other, "web"));
        assert!(!known.has(&other, ""));
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        let mut node = Node::new(&[]);
        node.places.roots = vec!["/none".into(), "/none/either".into()];
        let error = node.read().unwrap_err();
        assert_eq!(error.to_string(), "no directory of pods in /none, /none/either");
        let node = Node::new(&[]);
        let pods = node.places.roots[0].join("pods");
        fs::remove_dir(&pods).unwrap();
        assert!(matches!(node.read(), Err(Unknown::NoKubelet(_))));
        std::os::unix::fs::symlink("pods", &pods).unwrap();
        assert!(matches!(node.read(), Err(Unknown::Unreadable { .. })), "a loop");
        let node = Node::new(&[API]);
        std::os::unix::fs::symlink("manifests", &node.places.manifests[0]).unwrap();
        assert!(matches!(node.read(), Err(Unknown::Unreadable { .. })), "a loop");
    }

    #[test]
    fn any_of_several_places_makes_it_known() {
        let (mut one, other) = (Node::new(&[]), Node::new(&[API]));
        one.places.roots.extend(other.places.roots.clone());
        assert!(one.read().unwrap().has(API, ""));
    }

    #[test]
    fn directories_must_fit_what_runs() {
        let node = Node::new(&[API]);
        let known = node.read().unwrap();
        assert!(known.vouch([API].into_iter()).is_ok());
        let error = known.vouch([API, HASH].into_iter()).unwrap_err().to_string();
        assert!(error.contains(HASH) && error.contains("is running"), "{error}");
        assert!(matches!(known.vouch([].into_iter()), Err(Unknown::Unproven(_))));
        let places = KubeletPlaces { said_by_kubelet: true, ..node.places.clone() };
        let known = KnownPods::read(&Sysroot::live(), &places).unwrap();
        assert!(known.vouch([].into_iter()).is_ok());
        assert!(known.vouch([HASH].into_iter()).is_err(), "it may be another kubelet");
    }

    #[test]
    fn a_manifest_keeps_its_pod() {
        let node = Node::new(&[]);
        let manifests = &node.places.manifests[0];
        fs::create_dir(manifests).unwrap();
        fs::create_dir(manifests.join("deeper")).unwrap();
        fs::write(manifests.join("a.yaml"), "metadata:\n  name: kube-apiserver\n  namespace: x\n").unwrap();
        fs::write(manifests.join("b"), r#"{"metadata":{"name":"etcd","namespace":"kube-system"}}"#).unwrap();
        fs::write(manifests.join("c.yaml"), "kind: List\nitems:\n- metadata:\n    name: 'proxy' # x\n")
            .unwrap();
        let known = node.read().unwrap();
        for (name, is_known) in [
            ("proxy-node1", true),
            ("kube-apiserver-node1", true),
            ("kube-apiserver", true),
            ("etcd-node-with-dashes", true),
            ("etcd2-node1", false),
            ("kube-proxy-node1", false),
            ("", true), // whose it is cannot be told
        ] {
            assert_eq!(known.has(HASH, name), is_known, "{name}");
            assert!(!known.has(API, name), "the API server's");
        }
        // The name of its pod is unknown.
        fs::write(manifests.join("d.yaml"), "metadata:\n  name: \"half").unwrap();
        assert!(matches!(node.read(), Err(Unknown::Unreadable { path, .. }) if path.ends_with("d.yaml")));
        drop(node.directory);
    }
}
