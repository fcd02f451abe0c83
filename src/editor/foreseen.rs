//! Mounted layers, for a plan: their deletion would be refused. They are found without the store's locks.
//!
//! A store may have 20,000 layers and very few mounts, so the code looks up the mounts, and not each layer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::directory::{Directory, id_of};
use super::error::{Error, Refusal};
use super::graphroot_editor::Editor;
use super::links;
use super::mounted::{Read, UseEvidence};
use super::store_directory::StoreDirectory;

impl Editor {
    /// Ids of layers that are mounted in any mount namespace, each with the reason for which its deletion would be
    /// refused. Empty if the mounts cannot be read: then the editor refuses the deletion.
    #[must_use]
    pub fn mounted_layers(&self) -> HashMap<String, Refusal> {
        self.find_mounted_layers().unwrap_or_else(|error| {
            tracing::debug!(%error, "mounted layers are unknown");
            HashMap::new()
        })
    }

    fn find_mounted_layers(&self) -> Result<HashMap<String, Refusal>, Error> {
        let directories = StoreDirectory::open_all(&self.places)?;
        let evidence = UseEvidence::of_store(&directories, Read::Mounts, self.options.trust_pid_namespace)?;
        let mut mounted = HashMap::new();
        for layers in directories.iter().filter_map(|directory| directory.layers.as_ref()) {
            for (id, names) in suspects(layers, &evidence)? {
                if let Err(refusal) = evidence.prove_layer_unmounted(layers, &id, &names) {
                    mounted.insert(id, refusal);
                }
            }
        }
        Ok(mounted)
    }
}

/// Ids of layers in `layers` that a mount may use, each with those of its short names that are in an overlay's options.
fn suspects(layers: &Directory, evidence: &UseEvidence) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for id in evidence.names_in_use(layers.path()).filter_map(id_of) {
        found.entry(id.to_owned()).or_default();
    }
    let Some(links) = layers.below(links::DIRECTORY)? else { return Ok(found) };
    for name in links.names()? {
        if let Some(text) = name.to_str()
            && evidence.has_overlay_on(text)
            && let Some(id) = links.link_target(&name)?.as_deref().and_then(links::target_id)
        {
            found.entry(id).or_default().insert(text.to_owned());
        }
    }
    Ok(found)
}
