//! Images that are mounted into the containers of a pod as volumes (containerd 2.1).
//!
//! The key of such a snapshot is the directory on which it is mounted:
//! `<state>/io.containerd.grpc.v1.cri/image-volumes/<sandbox>/<hex of the image's digest>` (containerd
//! `internal/cri/server/helpers.go`). A lease with the id of the sandbox keeps it.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::images::ImageGroups;
use super::{Filler, KUBERNETES, qualified};
use crate::model::text::display::shell_word;
use crate::model::{ImageIx, LeakClass};
use crate::stores::containerd::metadata::{Namespace, SnapshotRecord};
use crate::stores::containerd::places::CRI;
use crate::sys::quiet;

/// Directory of the mounts, below CRI's state directory.
const DIRECTORY: &str = "image-volumes";

struct ImageVolume<'a> {
    namespace: &'a Namespace,
    record: &'a SnapshotRecord,
    /// Id of the pod's sandbox, which may no longer exist.
    sandbox: &'a str,
    /// Images that the volume may be of; empty if the image was deleted.
    images: Vec<ImageIx>,
}

pub(crate) struct Volumes<'a>(Vec<ImageVolume<'a>>);

impl Volumes<'_> {
    pub(super) fn of(&self, namespace: &str, sandbox: &str) -> Vec<ImageIx> {
        let volumes =
            self.0.iter().filter(|volume| volume.namespace.name == namespace && volume.sandbox == sandbox);
        let mut images: Vec<_> = volumes.flat_map(|volume| &volume.images).copied().collect();
        images.sort_unstable();
        images.dedup();
        images
    }
}

/// Returns the sandbox and the digest in the path of an image volume, which is a snapshot's key or a mount point.
pub(crate) fn parse(path: &str) -> Option<(&str, &str)> {
    let path = Path::new(path);
    let pod = path.parent()?;
    let is_volume = pod.parent()?.file_name() == Some(OsStr::new(DIRECTORY));
    let (sandbox, hex) = (pod.file_name()?.to_str()?, path.file_name()?.to_str()?);
    is_volume.then_some((sandbox, hex))
}

impl<'a> Filler<'a> {
    pub(crate) fn volumes(&self, groups: &ImageGroups<'a>) -> Volumes<'a> {
        let mut volumes = Vec::new();
        // Only CRI creates image volumes.
        if let Some(namespace) = self.snapshot.metadata.namespace(KUBERNETES) {
            for record in &namespace.snapshots {
                let Some((sandbox, hex)) = parse(&record.key) else { continue };
                let images = of_volume(groups, namespace, record, hex);
                volumes.push(ImageVolume { namespace, record, sandbox, images });
            }
        }
        Volumes(volumes)
    }

    /// Adds snapshots of image volumes whose pod no longer exists, and mounts of such volumes without a snapshot.
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
            let remove = if has_lease {
                format!("`ctr -n {of_namespace} leases rm {of_lease}`")
            } else {
                format!("`ctr -n {of_namespace} snapshots rm {of_key}`")
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
        let recorded: HashSet<&Path> = volumes.0.iter().map(|volume| Path::new(&volume.record.key)).collect();
        let mounts = self.writer.mounts.iter().filter(|mount| mount.starts_with(&directory));
        let alone = mounts.filter(|mount| !recorded.contains(mount.as_path())).cloned();
        for mount in alone.collect::<BTreeSet<PathBuf>>() {
            let Some((sandbox, _)) = mount.to_str().and_then(parse) else { continue };
            let namespace = self.snapshot.metadata.namespace(KUBERNETES);
            if namespace.is_some_and(|namespace| namespace.has_pod(sandbox)) {
                continue;
            }
            // The time of the mount point's parent: the mount itself shows the image's directory.
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

/// Returns the images of a volume: by digest, or if no image has it (the tag has moved since), all images with the
/// layers below it.
fn of_volume(
    groups: &ImageGroups<'_>,
    namespace: &Namespace,
    record: &SnapshotRecord,
    hex: &str,
) -> Vec<ImageIx> {
    let digest = format!("sha256:{hex}");
    let here = groups.all.iter().filter(|group| group.namespace.name == namespace.name);
    let (named, others): (Vec<_>, Vec<_>) = here.partition(|group| group.has_digest(&digest));
    if !named.is_empty() {
        return named.into_iter().map(|group| group.image).collect();
    }
    let on_top = others.into_iter().filter(|group| {
        group.tops.iter().any(|(snapshotter, key)| {
            *snapshotter == record.snapshotter && Some(*key) == record.parent.as_deref()
        })
    });
    on_top.map(|group| group.image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_volumes_are_recognized() {
        let state = "/run/containerd/io.containerd.grpc.v1.cri";
        assert_eq!(parse(&format!("{state}/image-volumes/pod/0a")), Some(("pod", "0a")));
        for other in ["sha256:0a", "image-volumes/pod", "/image-volumes/pod/0a/b", "pod/0a", "", "/"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
