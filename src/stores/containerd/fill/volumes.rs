//! Images that are mounted into the containers of a pod as volumes (containerd 2.1).
//!
//! The key of such a snapshot is the directory that it is mounted on:
//! `<state>/io.containerd.grpc.v1.cri/image-volumes/<sandbox>/<hex of the image's digest>`
//! (containerd `internal/cri/server/helpers.go`). A lease by the id of the sandbox holds it.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::images::Groups;
use super::{Filler, KUBERNETES, qualified};
use crate::model::display::shell_word;
use crate::model::{ImageIx, LeakClass};
use crate::stores::containerd::metadata::{Namespace, SnapshotRecord};
use crate::stores::containerd::places::CRI;
use crate::sys::quiet;

/// The directory of the mounts, below CRI's state directory.
const DIRECTORY: &str = "image-volumes";

/// One image volume of one pod.
struct Volume<'a> {
    namespace: &'a Namespace,
    record: &'a SnapshotRecord,
    /// Id of the pod's sandbox, which need not exist any more.
    sandbox: &'a str,
    /// The images that it can be of; none where the image is gone.
    images: Vec<ImageIx>,
}

/// All image volumes of a root.
pub(crate) struct Volumes<'a>(Vec<Volume<'a>>);

impl Volumes<'_> {
    /// The images that are mounted for a sandbox.
    pub(super) fn of(&self, namespace: &str, sandbox: &str) -> Vec<ImageIx> {
        let volumes = self.0.iter().filter(|one| one.namespace.name == namespace && one.sandbox == sandbox);
        let mut images: Vec<_> = volumes.flat_map(|one| &one.images).copied().collect();
        images.sort_unstable();
        images.dedup();
        images
    }
}

/// Sandbox and digest in the path of an image volume: a snapshot's key, or a mount point.
pub(crate) fn parse(path: &str) -> Option<(&str, &str)> {
    let path = Path::new(path);
    let pod = path.parent()?;
    let is_volume = pod.parent()?.file_name() == Some(OsStr::new(DIRECTORY));
    let (sandbox, hex) = (pod.file_name()?.to_str()?, path.file_name()?.to_str()?);
    is_volume.then_some((sandbox, hex))
}

impl<'a> Filler<'a> {
    /// Finds the image volumes, and the images that they are of.
    pub(crate) fn volumes(&self, groups: &Groups<'a>) -> Volumes<'a> {
        let mut volumes = Vec::new();
        // Only CRI makes them.
        if let Some(namespace) = self.snapshot.metadata.namespace(KUBERNETES) {
            for record in &namespace.snapshots {
                let Some((sandbox, hex)) = parse(&record.key) else { continue };
                let images = of_volume(groups, namespace, record, hex);
                volumes.push(Volume { namespace, record, sandbox, images });
            }
        }
        Volumes(volumes)
    }

    /// Snapshots of image volumes whose pod is gone, and mounts of such volumes without a snapshot.
    pub(crate) fn orphan_volumes(&mut self, volumes: &Volumes<'a>) {
        for volume in &volumes.0 {
            if volume.namespace.has_pod(volume.sandbox) {
                continue;
            }
            let key = volume.record.key.as_str();
            let node = self.node(volume.namespace, volume.record.into());
            let is_mounted = self.writer.mounts.iter().any(|mount| mount == Path::new(key));
            let namespace = &volume.namespace.name;
            let [of_key, of_namespace, of_lease] = [key, namespace, volume.sandbox].map(shell_word);
            let unmount = if is_mounted { format!("`umount {of_key}`, then ") } else { String::new() };
            let has_lease = volume.namespace.leases.iter().any(|lease| lease.id == volume.sandbox);
            let remove = match has_lease {
                true => format!("`ctr -n {of_namespace} leases rm {of_lease}`"),
                false => format!("`ctr -n {of_namespace} snapshots rm {of_key}`"),
            };
            let evidence = format!(
                "an image volume of pod {}, which no longer exists{}: {unmount}{remove}",
                volume.sandbox,
                if is_mounted { "; it is still mounted" } else { "" },
            );
            let path = node.map_or_else(|| self.meta_db(), |node| self.writer.inventory[node].path.clone());
            let since = volume.record.created;
            let judged = self.judged(LeakClass::OrphanImageVolume, since, evidence);
            self.writer.leak(judged, &qualified(namespace, key), &path, since, node.into_iter().collect());
        }
        self.volume_mounts(volumes);
    }

    fn volume_mounts(&mut self, volumes: &Volumes<'a>) {
        let Some(state) = &self.snapshot.places.state else { return };
        let directory = state.join(CRI).join(DIRECTORY);
        let recorded: HashSet<&Path> = volumes.0.iter().map(|one| Path::new(&one.record.key)).collect();
        let mounts = self.writer.mounts.iter().filter(|mount| mount.starts_with(&directory));
        let alone = mounts.filter(|mount| !recorded.contains(mount.as_path())).cloned();
        for mount in alone.collect::<BTreeSet<PathBuf>>() {
            let Some((sandbox, _)) = mount.to_str().and_then(parse) else { continue };
            let namespace = self.snapshot.metadata.namespace(KUBERNETES);
            if namespace.is_some_and(|namespace| namespace.has_pod(sandbox)) {
                continue;
            }
            // Not of the mount itself: that is the image's own directory.
            let pod = mount.parent().and_then(|pod| quiet::facts(pod).ok());
            let since = pod.and_then(|pod| pod.modified);
            let evidence = format!(
                "an image volume of the pod {sandbox} is mounted, but neither the pod nor the snapshot \
                 exists: `umount {}`",
                mount.display()
            );
            let judged = self.judged(LeakClass::OrphanImageVolume, since, evidence);
            self.writer.leak(judged, &mount.display().to_string(), &mount, since, Vec::new());
        }
    }
}

/// By digest; where none fits (the tag has moved since), all images with the layers that it is made on.
fn of_volume(groups: &Groups<'_>, namespace: &Namespace, record: &SnapshotRecord, hex: &str) -> Vec<ImageIx> {
    let digest = format!("sha256:{hex}");
    let groups = || groups.all.iter().filter(|group| group.namespace.name == namespace.name);
    let named = groups().filter(|group| {
        let targets = group.names.iter().map(|name| name.target.as_str());
        let config = group.resolved.config.as_ref().map(|config| config.digest.as_str());
        targets.chain(group.resolved.manifest.as_deref()).chain(config).any(|one| one == digest)
    });
    let named: Vec<_> = named.map(|group| group.image).collect();
    let on_top = |top: &(&str, &str)| top.0 == record.snapshotter && Some(top.1) == record.parent.as_deref();
    match named.is_empty() {
        false => named,
        true => groups().filter(|group| group.tops.iter().any(on_top)).map(|group| group.image).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_volumes() {
        let state = "/run/containerd/io.containerd.grpc.v1.cri";
        assert_eq!(parse(&format!("{state}/image-volumes/pod/0a")), Some(("pod", "0a")));
        for other in ["sha256:0a", "image-volumes/pod", "/image-volumes/pod/0a/b", "pod/0a", "", "/"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
