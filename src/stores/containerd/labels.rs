//! The labels of images, from their configuration and from containerd's own records.

use super::content::Resolved;
use super::metadata::ImageRecord;
use super::snapshot::Snapshot;
use crate::model::Labels;

/// No configuration is longer: containerd reads blobs like it of at most 8 MiB.
const LIMIT_BYTES: u64 = 8 << 20;

/// The labels of the image that has these `names`. A name that cannot be resolved to a
/// configuration leaves them unknown.
pub(super) fn of_image(snapshot: &Snapshot, names: &[&ImageRecord], resolved: &Resolved) -> Labels {
    let Some(config) = &resolved.config else {
        return Labels::Unknown("its manifest could not be read".into());
    };
    let Some(path) = snapshot.blob_path(&config.digest) else {
        return Labels::Unknown(format!("its configuration {:?} is not a digest", config.digest));
    };
    let recorded = names.iter().flat_map(|name| &name.labels);
    match snapshot.places.within().read(&path, LIMIT_BYTES) {
        Ok(bytes) => {
            Labels::of_configuration(&bytes).and(recorded.map(|(key, value)| (key.clone(), value.clone())))
        }
        Err(error) => Labels::Unknown(format!("reading its configuration {}: {error}", config.digest)),
    }
}
