//! Images that are mounted into the containers of a pod as volumes (containerd 2.1).
//!
//! The key of such a snapshot is the directory that it is mounted on:
//! `<state>/io.containerd.grpc.v1.cri/image-volumes/<sandbox>/<hex of the image's digest>`
//! (containerd `internal/cri/server/helpers.go`). A lease by the id of the sandbox holds it.

use std::ffi::OsStr;
use std::path::Path;

use super::Filler;
use super::images::Groups;
use crate::model::ImageIx;
use crate::stores::containerd::metadata::{Namespace, SnapshotRecord};

/// The directory of the mounts, below CRI's state directory.
pub(crate) const DIRECTORY: &str = "image-volumes";

/// One image volume of one pod.
pub(crate) struct Volume<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) record: &'a SnapshotRecord,
    /// Id of the pod's sandbox, which need not exist any more.
    pub(crate) sandbox: &'a str,
    /// The images that it can be of; none where the image is gone.
    images: Vec<ImageIx>,
}

/// All image volumes of a root.
pub(crate) struct Volumes<'a>(pub(crate) Vec<Volume<'a>>);

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
        for namespace in &self.snapshot.metadata.namespaces {
            for record in &namespace.snapshots {
                let Some((sandbox, hex)) = parse(&record.key) else { continue };
                let images = of_volume(groups, namespace, record, hex);
                volumes.push(Volume { namespace, record, sandbox, images });
            }
        }
        Volumes(volumes)
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
