//! Containers of Docker, which since version 29 stores images and containers in containerd.
//!
//! A container is a lease without expiry whose id is the container's id. The lease keeps the writable snapshot
//! `<id>`. Its parent `<id>-init` contains the files that Docker writes into every container, and the parent of that
//! is the top snapshot of the image (moby's `daemon/containerd/image_snapshot.go`, `createLayer`). containerd has a
//! record of a container only while it runs: a stopped container is only this lease, until `docker rm` deletes it.
//! Name, image and state are in `containers/<id>/config.v2.json` in Docker's data root.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use super::gc;
use super::metadata::{LeaseRecord, Metadata, Namespace, SnapshotRecord};
use crate::model::Finding;
use crate::stores::dockerd::{self, DockerRecord, OWN_CONTAINERD};
use crate::sys::quiet::{self, FileKind, Within};
use crate::sys::sysroot::Sysroot;

/// A lease that represents a container of Docker.
#[derive(Clone, Copy, Debug)]
pub struct DockerLease<'a> {
    pub lease: &'a LeaseRecord,
    pub snapshot: &'a SnapshotRecord,
    /// Key of the top snapshot of its image; `None` for an image without layers.
    pub image_top: Option<&'a str>,
}

/// Returns the leases of a namespace that represent containers of Docker.
#[must_use]
pub fn containers(namespace: &Namespace) -> Vec<DockerLease<'_>> {
    let snapshots = namespace.snapshots.iter();
    let by_key: HashMap<(&str, &str), &SnapshotRecord> =
        snapshots.map(|record| ((record.snapshotter.as_str(), record.key.as_str()), record)).collect();
    let leases = namespace.leases.iter().filter(|lease| gc::is_unlimited(&lease.labels));
    leases.filter_map(|lease| container(lease, &by_key)).collect()
}

fn container<'a>(
    lease: &'a LeaseRecord,
    by_key: &HashMap<(&str, &str), &'a SnapshotRecord>,
) -> Option<DockerLease<'a>> {
    let (snapshotter, key) = lease.snapshots.iter().find(|(_, key)| *key == lease.id)?;
    let snapshot = by_key.get(&(snapshotter, key)).copied()?;
    let init = snapshot.parent.as_deref().filter(|parent| parent.strip_suffix("-init") == Some(&lease.id))?;
    let below = by_key.get(&(snapshotter, init)).copied();
    Some(DockerLease { lease, snapshot, image_top: below.and_then(|init| init.parent.as_deref()) })
}

/// Returns the data root of the Docker that uses the containerd at `root`, if it exists: the directory around a
/// containerd that Docker starts, otherwise the configured one.
#[must_use]
pub fn data_root(sysroot: &Sysroot, root: &Path) -> Option<PathBuf> {
    if root.ends_with(OWN_CONTAINERD)
        && let Some(around) = root.ancestors().nth(2).filter(|path| has_containers(path))
    {
        return Some(around.to_path_buf());
    }
    let named = dockerd::configured_data_root(sysroot);
    let configured = sysroot.resolve(named.as_deref().unwrap_or(Path::new(dockerd::DATA_ROOT))).ok();
    configured.filter(|path| has_containers(path))
}

fn has_containers(data_root: &Path) -> bool {
    quiet::facts(&data_root.join("containers")).is_ok_and(|facts| facts.kind == FileKind::Directory)
}

/// Returns the root of the containerd that Docker starts in its configured data root, and the source of the path.
pub(super) fn configured_root(sysroot: &Sysroot) -> Option<(PathBuf, String)> {
    let root = dockerd::configured_data_root(sysroot)?.join(OWN_CONTAINERD);
    Some((root, format!("data-root in {}", dockerd::DAEMON_JSON)))
}

/// Reads the records of all containers of Docker in `metadata`, by id. Returns findings for those that cannot be
/// read.
pub(super) fn read(data_root: &Path, metadata: &Metadata) -> (HashMap<String, DockerRecord>, Vec<Finding>) {
    let within = Within::at([data_root]);
    let (mut records, mut findings) = (HashMap::new(), Vec::new());
    for container in metadata.namespaces.iter().flat_map(containers) {
        let id = &container.lease.id;
        if !dockerd::is_id(id) {
            continue;
        }
        match DockerRecord::read(&within, data_root, id) {
            Ok(record) => drop(records.insert(id.clone(), record)),
            Err(error) if quiet::is_absent(&error) => {}
            Err(error) => findings.push(unread(dockerd::record_path(data_root, id), &error)),
        }
    }
    (records, findings)
}

fn unread(path: PathBuf, error: &io::Error) -> Finding {
    Finding::new(
        path,
        format!("reading Docker's record: {error}; the container's name and state are unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lease_with_own_snapshot_is_a_container() {
        fn lease(id: &str, snapshot: &str, expiry: Option<&str>) -> LeaseRecord {
            LeaseRecord {
                id: id.into(),
                snapshots: vec![("overlayfs".into(), snapshot.into())],
                labels: expiry
                    .map(|end| ("containerd.io/gc.expire".to_owned(), end.to_owned()))
                    .into_iter()
                    .collect(),
                ..LeaseRecord::default()
            }
        }
        fn snapshot(key: &str, parent: Option<&str>) -> SnapshotRecord {
            SnapshotRecord {
                snapshotter: "overlayfs".into(),
                key: key.into(),
                parent: parent.map(Into::into),
                ..SnapshotRecord::default()
            }
        }
        let namespace = Namespace {
            leases: vec![
                lease("a", "a", None),
                lease("b", "b", None),
                lease("c", "a", None),
                lease("d", "d", Some("2026-01-01T00:00:00Z")),
                lease("e", "e", None),
                lease("gone", "gone", None),
            ],
            snapshots: vec![
                snapshot("base", None),
                snapshot("a-init", Some("base")),
                snapshot("a", Some("a-init")),
                // A mutable record of BuildKit.
                snapshot("b", Some("base")),
                snapshot("d", Some("d-init")),
                snapshot("e-init", None),
                snapshot("e", Some("e-init")),
            ],
            ..Namespace::default()
        };
        let found = containers(&namespace);
        let found: Vec<_> =
            found.iter().map(|container| (container.lease.id.as_str(), container.image_top)).collect();
        assert_eq!(found, [("a", Some("base")), ("e", None)]);
    }
}
