//! The overlay driver's short names: `l/NAME -> ../<id>/diff`, each layer's `link` file, and
//! the files that mounts are built from: `lower` with short names, and since library version 1.63
//! `lower-layers` with ids.
//!
//! A store of 10,000 layers has as many of each, so they are read before the locks are taken, and under the locks only
//! new ones are read. That is safe because the library never changes them once they are written.

use std::cell::OnceCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Component, Path};

use super::directory::Directory;
use super::error::Fault;
use crate::stores::containers_storage::records::is_id;

/// The driver's directory for short names.
pub(super) const DIRECTORY: &str = "l";

#[derive(Debug, Default)]
pub(super) struct ShortLinks {
    /// Names in `l/`, each with the layer directory that it leads to.
    targets: BTreeMap<OsString, Option<String>>,
    /// Short names and ids of the layers below each directory, by the directory's name and inode number.
    lowers: HashMap<(OsString, u64), Vec<String>>,
    /// Inode number of each existing directory.
    directories: HashMap<OsString, u64>,
    /// Built at the first lookup after a change: 10,000 leaks mean as many lookups.
    index: OnceCell<Index>,
}

/// The same in the other direction.
#[derive(Debug, Default)]
struct Index {
    names: HashMap<String, Vec<String>>,
    /// Directories above a short name or an id.
    users: HashMap<String, Vec<String>>,
}

impl ShortLinks {
    /// Reads new links and `lower` files, and forgets deleted ones.
    pub(super) fn refresh(&mut self, driver: &Directory) -> Result<(), Fault> {
        let mut directories = HashMap::new();
        for name in driver.names()? {
            let Some(stat) = driver.stat(&name)? else { continue };
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() && name != DIRECTORY {
                directories.insert(name, stat.st_ino);
            }
        }
        self.directories = directories;
        self.index.take();
        let Self { lowers, directories, .. } = self;
        lowers.retain(|(name, inode), _| directories.get(name) == Some(inode));
        for (name, inode) in directories.iter() {
            let key = (name.clone(), *inode);
            if lowers.contains_key(&key) {
                continue;
            }
            let text = match driver.read_small(Path::new(name).join("lower")) {
                // A filesystem mounted beside the layers hides no layer's file.
                Err(fault) if fault.is_other_filesystem() && !name.to_str().is_some_and(is_id) => continue,
                text => text?,
            };
            // A layer without `lower` is a base layer, or is still being created: it is read again next time.
            if let Some(text) = text {
                let ids = driver.read_small(Path::new(name).join("lower-layers"))?.unwrap_or_default();
                let parts = text.split(':').map(short_name);
                lowers.insert(key, parts.chain(ids.split(':').map(str::to_owned)).collect());
            }
        }
        let Some(links) = driver.below(DIRECTORY)? else {
            self.targets.clear();
            return Ok(());
        };
        let names: BTreeSet<OsString> = links.names()?.into_iter().collect();
        self.targets.retain(|name, _| names.contains(name));
        for name in names {
            if let Entry::Vacant(entry) = self.targets.entry(name) {
                let target = links.link_target(entry.key())?;
                entry.insert(target.as_deref().and_then(target_id));
            }
        }
        Ok(())
    }

    /// All short names of the layer: those in `l/` that lead to it, and the one in its `link`.
    pub(super) fn of(&self, id: &str, driver: &Directory) -> Result<BTreeSet<String>, Fault> {
        let mut names: BTreeSet<String> = self.names_of(id).map(str::to_owned).collect();
        if let Some(link) = driver.read_small(Path::new(id).join("link"))?
            && is_short_name(&link)
            // A copied or damaged link file must not make another layer's name count as this layer's.
            && self.target(&link).is_none_or(|target| target == id)
        {
            names.insert(link);
        }
        Ok(names)
    }

    /// The names in `l/` that lead to the layer.
    pub(super) fn names_of(&self, id: &str) -> impl Iterator<Item = &str> {
        self.index().names.get(id).into_iter().flatten().map(String::as_str)
    }

    pub(super) fn target(&self, name: &str) -> Option<&str> {
        self.targets.get(std::ffi::OsStr::new(name))?.as_deref()
    }

    /// A directory above one of `names` (short names or ids) for which `counts` returns true.
    pub(super) fn user(&self, names: &BTreeSet<String>, counts: impl Fn(&str) -> bool) -> Option<String> {
        let users = names.iter().filter_map(|name| self.index().users.get(name)).flatten();
        users.map(String::as_str).find(|name| counts(name)).map(str::to_owned)
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| {
            let mut index = Index::default();
            for (name, target) in &self.targets {
                if let (Some(name), Some(id)) = (name.to_str(), target) {
                    index.names.entry(id.clone()).or_default().push(name.to_owned());
                }
            }
            for ((name, _), lower) in &self.lowers {
                let Some(name) = name.to_str() else { continue };
                for part in lower {
                    index.users.entry(part.clone()).or_default().push(name.to_owned());
                }
            }
            index
        })
    }
}

/// The short name in a part of a `lower` file, `l/NAME`. A part without a slash, as libraries before 2018 wrote it, is
/// returned unchanged.
fn short_name(part: &str) -> String {
    part.rsplit('/').next().unwrap_or(part).to_owned()
}

/// The id in the target of a short name, `../<id>/diff`.
pub(super) fn target_id(target: &Path) -> Option<String> {
    let mut parts = target.components();
    match (parts.next()?, parts.next()?, parts.next()?, parts.next()) {
        (Component::ParentDir, Component::Normal(id), Component::Normal(diff), None) if diff == "diff" => {
            id.to_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// Returns true for 26 letters and digits of base 32.
pub(super) fn is_short_name(name: &str) -> bool {
    name.len() == 26 && name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::root::Root;

    const A: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAA";
    const B: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBB";
    const C: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCC";

    #[test]
    fn names_targets_and_users_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for layer in ["a", "b", "l"] {
            std::fs::create_dir(root.join(layer)).unwrap();
        }
        std::fs::write(root.join("a/link"), A).unwrap();
        std::fs::write(root.join("b/link"), B).unwrap();
        std::fs::write(root.join("b/lower"), format!("l/{A}")).unwrap();
        for (name, target) in [(A, "../a/diff"), (B, "../b/diff"), (C, "../a/diff"), ("odd", "/etc")] {
            std::os::unix::fs::symlink(target, root.join("l").join(name)).unwrap();
        }
        let driver = Directory::top(&Root::open(dir.path()).unwrap()).unwrap();
        let mut links = ShortLinks::default();
        links.refresh(&driver).unwrap();
        let names = links.of("a", &driver).unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), [A, C]);
        assert_eq!(links.user(&names, |_| true).as_deref(), Some("b"));
        assert_eq!(links.user(&names, |name| name != "b"), None);
        assert_eq!((links.target(B), links.target("odd")), (Some("b"), None));
        // A link file with the name of another layer does not count.
        std::fs::write(root.join("a/link"), B).unwrap();
        assert!(!links.of("a", &driver).unwrap().contains(B));
        // New and deleted entries are noticed.
        assert!(driver.remove_tree("b").is_complete());
        std::fs::create_dir(root.join("c")).unwrap();
        std::fs::write(root.join("c/lower"), format!("l/{B}:l/{C}")).unwrap();
        std::fs::remove_file(root.join("l").join(A)).unwrap();
        links.refresh(&driver).unwrap();
        assert_eq!(links.user(&names, |_| true).as_deref(), Some("c"));
        assert_eq!(links.target(A), None);
    }

    #[test]
    fn short_names_are_parsed() {
        for (part, name) in [("l/ABC", "ABC"), ("ABC", "ABC"), ("/x/l/ABC", "ABC"), ("", "")] {
            assert_eq!(short_name(part), name);
        }
        assert!(is_short_name(A) && !is_short_name("l") && !is_short_name("../../../../../../etc/passwd"));
        for odd in ["../a/diff/..", "/a/diff", "a/diff", "../a", "../../diff", "../a/work"] {
            assert_eq!(target_id(Path::new(odd)), None, "{odd}");
        }
    }
}
