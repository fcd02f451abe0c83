//! Image volumes of deleted pods.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use crate::model::LeakClass;
use crate::stores::containerd::fill::volumes::{DIRECTORY, Volumes, parse};
use crate::stores::containerd::fill::{Filler, KUBERNETES, qualified};
use crate::stores::containerd::gc::Ref;
use crate::stores::containerd::places::CRI;
use crate::sys::quiet;

impl<'a> Filler<'a> {
    /// Snapshots of image volumes whose pod is gone, and mounts of such volumes without a snapshot.
    pub(crate) fn orphan_volumes(&mut self, volumes: &Volumes<'a>) {
        for volume in &volumes.0 {
            if volume.namespace.has_pod(volume.sandbox) {
                continue;
            }
            let key = volume.record.key.as_str();
            let node = self.node(volume.namespace, Ref::Snapshot(&volume.record.snapshotter, key));
            let is_mounted = self.writer.mounts.iter().any(|mount| mount == Path::new(key));
            let unmount = if is_mounted { format!("`umount {key}`, then ") } else { String::new() };
            let namespace = &volume.namespace.name;
            let has_lease = volume.namespace.leases.iter().any(|lease| lease.id == volume.sandbox);
            let remove = match has_lease {
                true => format!("`ctr -n {namespace} leases rm {}`", volume.sandbox),
                false => format!("`ctr -n {namespace} snapshots rm {key}`"),
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
