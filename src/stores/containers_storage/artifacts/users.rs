//! Finds containers that use an artifact as a volume.
//!
//! A mount exists only while the container runs, so the containers' records are read instead.

use std::io;

use super::read::Artifact;
use crate::model::text::reference::may_be;
use crate::stores::containers_storage::cri_o::{self, ImageVolumes};
use crate::stores::containers_storage::engine::{self, Engine, PodmanContainer};
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::records::is_id;
use crate::sys::allowance;
use crate::sys::quiet::{FileKind, Within};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArtifactVolume {
    /// The user, for messages.
    pub(crate) by: String,
    /// Id of a container of CRI-O.
    pub(crate) container: Option<String>,
    /// Reference to the artifact: an id, a digest or a name. `None` means that it is unknown and may be any artifact.
    pub(crate) reference: Option<String>,
}

impl ArtifactVolume {
    /// Returns true if the volume is, or may be, this artifact.
    pub(crate) fn means(&self, artifact: &Artifact) -> bool {
        self.means_one_of(&artifact.digest, &artifact.names)
    }

    pub(crate) fn means_one_of(&self, digest: &str, names: &[String]) -> bool {
        let Some(reference) = &self.reference else { return true };
        // Podman accepts the beginning of a digest.
        let hex = digest.rsplit(':').next().unwrap_or(digest);
        may_be(reference, hex, names, &[digest.to_owned()])
    }
}

/// Returns the volumes of all containers of the graphroot, with any driver.
pub(crate) fn of(places: &StorePlaces) -> Vec<ArtifactVolume> {
    let within = places.within();
    let mut found = of_crio(&within, places);
    match engine::read(places) {
        Engine::Unreadable(why) => {
            found.push(ArtifactVolume {
                by: format!("possibly a podman container ({why})"),
                ..ArtifactVolume::default()
            });
        }
        engine => found.extend(engine.containers().flat_map(|(_, container)| of_podman(container))),
    }
    found
}

fn of_podman(container: &PodmanContainer) -> impl Iterator<Item = ArtifactVolume> {
    container.artifact_volumes.iter().map(|source| ArtifactVolume {
        by: format!("podman container {}, which has it as a volume", container.name),
        container: None,
        reference: Some(source.clone()),
    })
}

fn of_crio(within: &Within, places: &StorePlaces) -> Vec<ArtifactVolume> {
    let graphroot = &places.graphroot;
    let mut found = Vec::new();
    // If the graphroot cannot be listed, the image store in it reports that.
    for entry in within.list(graphroot).unwrap_or_default() {
        let is_records = entry.name.to_str().is_some_and(|name| name.ends_with("-containers"));
        if !is_records || entry.kind != FileKind::Directory {
            continue;
        }
        let records = graphroot.join(&entry.name);
        let containers = within.list(&records).unwrap_or_else(|error| {
            let by = format!("a container of {}, which cannot be listed ({error})", records.display());
            found.push(ArtifactVolume { by, ..ArtifactVolume::default() });
            Vec::new()
        });
        for id in containers.iter().filter_map(|entry| entry.name.to_str()).filter(|name| is_id(name)) {
            if let Err(error) = places.allowance.charge(allowance::CONTAINER) {
                found.push(ArtifactVolume {
                    by: format!("possibly a container of {} ({error})", records.display()),
                    ..ArtifactVolume::default()
                });
                break;
            }
            found.extend(of_container(id, cri_o::image_volumes(within, &records.join(id))));
        }
    }
    found
}

fn of_container(id: &str, volumes: io::Result<ImageVolumes>) -> Vec<ArtifactVolume> {
    let ImageVolumes { name, ids } = match volumes {
        Ok(volumes) => volumes,
        Err(error) => {
            let by = format!("the container {id}, whose volumes are unknown ({error})");
            return vec![ArtifactVolume { by, container: Some(id.to_owned()), reference: None }];
        }
    };
    let by = format!("the cri-o container {}, which has it as a volume", name.as_deref().unwrap_or(id));
    let uses = ids.into_iter().map(|reference| ArtifactVolume {
        by: by.clone(),
        container: Some(id.to_owned()),
        reference: Some(reference),
    });
    uses.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_crio_container_are_found() {
        fn volumes(name: Option<&str>, ids: &[&str]) -> io::Result<ImageVolumes> {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            Ok(ImageVolumes { name: name.map(str::to_owned), ids })
        }
        fn uses(volumes: io::Result<ImageVolumes>) -> Vec<(String, Option<String>)> {
            of_container("c1", volumes).into_iter().map(|volume| (volume.by, volume.reference)).collect()
        }
        let named = "the cri-o container model-server, which has it as a volume";
        assert_eq!(
            uses(volumes(Some("model-server"), &["aa", "bb"])),
            [(named.into(), Some("aa".into())), (named.into(), Some("bb".into()))]
        );
        let unnamed = "the cri-o container c1, which has it as a volume";
        assert_eq!(uses(volumes(None, &["aa"])), [(unnamed.into(), Some("aa".into()))]);
        assert_eq!(uses(volumes(None, &[])), []);
        let unknown = "the container c1, whose volumes are unknown (cut off)";
        assert_eq!(uses(Err(io::Error::other("cut off"))), [(unknown.into(), None)], "may be any");
    }

    #[test]
    fn artifact_is_matched_by_id_digest_or_name() {
        let hex = "ab".repeat(32);
        let digest = format!("sha256:{hex}");
        let names = ["quay.io/test/model:v1".to_owned(), "quay.io/test/other:latest".to_owned()];
        for (reference, expected) in [
            (hex.clone(), true),
            (digest.clone(), true),
            (format!("quay.io/gone@{digest}"), true),
            ("abab".into(), true),
            ("quay.io/test/model:v1".into(), true),
            ("test/model:v1".into(), true),
            ("quay.io/test/other".into(), true),
            ("quay.io/test/model:v2".into(), false),
            ("model".into(), false),
            ("ba".repeat(32), false),
            ("b".into(), false),
        ] {
            let by = ArtifactVolume { reference: Some(reference.clone()), ..ArtifactVolume::default() };
            assert_eq!(by.means_one_of(&digest, &names), expected, "{reference}");
        }
        assert!(ArtifactVolume::default().means_one_of(&digest, &[]));
    }
}
