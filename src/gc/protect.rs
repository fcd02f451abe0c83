//! What the node's own files protect: images of static pods, those that pod sandboxes are made from,
//! and those that the kubelet is pulling.

use std::path::Path;

use super::policy::{NamedBy, Protect};
use crate::inventory::{Finding, LabelsOf};
use crate::node::{NamedImage, Unreadable, pulls, static_pods};
use crate::survey::{self, Request};

/// What was read from the files of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FromNode {
    /// Images that static pods name.
    pub static_pods: Vec<NamedBy>,
    /// Images that pod sandboxes are made from.
    pub sandboxes: Vec<NamedBy>,
    /// Images that the kubelet is pulling.
    pub pulling: Vec<NamedBy>,
    /// What was not understood.
    pub findings: Vec<Finding>,
}

impl FromNode {
    /// Reads what protects images of the stores of `request`. `manifests` is where static pods are
    /// defined, besides what the kubelet's own settings say; `None`: static pods protect nothing.
    /// `kubelet` is the kubelet's own directory, where it is configured for us.
    ///
    /// Reads some dozen small files, and no store: it can be asked again whenever a deletion is to be
    /// proven.
    ///
    /// # Errors
    /// When it cannot be known what static pods name: then nothing may be deleted.
    pub fn read(
        request: &Request,
        manifests: Option<&Path>,
        kubelet: Option<&Path>,
    ) -> Result<Self, Unreadable> {
        let pods = manifests.map(|manifests| static_pods::read(&request.sysroot, manifests));
        let pods = pods.transpose()?.unwrap_or_default();
        let pulls = pulls::read(&request.sysroot, kubelet);
        Ok(Self {
            pulling: pulls.images.into_iter().map(NamedBy::from).collect(),
            static_pods: pods.images.into_iter().map(NamedBy::from).collect(),
            sandboxes: survey::sandbox_images(request).into_iter().map(NamedBy::from).collect(),
            findings: [pods.findings, pulls.findings].concat(),
        })
    }

    /// Adds it to what configuration protects, in the place of what an earlier reading added.
    pub fn apply(&self, protect: &mut Protect) {
        protect.static_pods.clone_from(&self.static_pods);
        protect.sandboxes.clone_from(&self.sandboxes);
        protect.pulling.clone_from(&self.pulling);
    }
}

impl From<NamedImage> for NamedBy {
    fn from(image: NamedImage) -> Self {
        Self { reference: image.reference, source: image.source }
    }
}

/// Whose labels a survey has to read for these protections.
#[must_use]
pub fn labels_for(protect: &Protect) -> LabelsOf {
    if protect.labels.is_empty() { LabelsOf::Nobody } else { LabelsOf::Everybody }
}
