//! Images. All names of a namespace with the same configuration are one image, because CRI lists and deletes them as
//! one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Filler, KUBERNETES, origin, qualified};
use crate::model::text::display::shell_word;
use crate::model::text::reference;
use crate::model::{
    Evidence, EvidenceKind, Image, ImageIx, IndexedManifest, Labels, LayerBlob, PinReason, is_for_ctr,
};
use crate::stores::containerd::content::{self, Resolved};
use crate::stores::containerd::gc::{Graph, Ref};
use crate::stores::containerd::metadata::{ContainerRecord, ImageRecord, Namespace};
use crate::stores::containerd::snapshot::Snapshot;
use crate::stores::oci::Document;

/// CRI's label for pinned images; any of an image's names may have it.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");
/// Start of the label with the top snapshot of a configuration; the snapshotter's name follows.
const SNAPSHOT_REF: &str = "containerd.io/gc.ref.snapshot.";

/// Maximum size of a configuration; larger ones are not read. containerd reads such blobs up to 8 MiB.
const MOST_CONFIG_BYTES: u64 = 8 << 20;

pub(crate) struct ImageGroup<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) names: Vec<&'a ImageRecord>,
    pub(crate) resolved: Resolved,
    pub(crate) image: ImageIx,
    pub(crate) id: String,
    /// Its top snapshots: snapshotter and key, recorded or not.
    pub(crate) tops: Vec<(&'a str, &'a str)>,
}

pub(crate) struct ImageGroups<'a> {
    pub(crate) all: Vec<ImageGroup<'a>>,
    /// Positions by namespace and name.
    by_name: HashMap<(&'a str, &'a str), usize>,
    /// Positions by namespace and digest of the configuration.
    by_config: HashMap<(&'a str, String), usize>,
}

impl ImageGroup<'_> {
    /// Returns true if the image has this digest: as a target, a manifest or a configuration.
    pub(crate) fn has_digest(&self, digest: &str) -> bool {
        let targets = self.names.iter().map(|name| name.target.as_str());
        let config = self.resolved.config.as_ref().map(|config| config.digest.as_str());
        targets.chain(self.resolved.manifest.as_deref()).chain(config).any(|known| known == digest)
    }
}

impl<'a> ImageGroups<'a> {
    /// Returns the image from which a container was created: by the configuration that CRI recorded, or by name.
    pub(crate) fn of(&self, namespace: &str, container: &ContainerRecord) -> Option<&ImageGroup<'a>> {
        let cri = container.cri.as_ref();
        let by_config = cri
            .and_then(|cri| cri.image_ref.clone())
            .and_then(|config| self.by_config.get(&(namespace, config)));
        // The configuration of an image without a manifest is unknown, but its names are still recorded. CRI uses the
        // configuration's digest as one of them.
        let names = [
            container.image.as_deref(),
            cri.and_then(|cri| cri.image_ref.as_deref()),
            cri.and_then(|cri| cri.image_asked.as_deref()),
        ];
        let by_config = by_config.map(|position| &self.all[*position]);
        by_config.or_else(|| names.into_iter().flatten().find_map(|name| self.named(namespace, name)))
    }

    /// Returns the image with this name, which may be short, as in a configuration.
    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<&ImageGroup<'a>> {
        let full = reference::normalized(name);
        let position = [name, &full].into_iter().find_map(|name| self.by_name.get(&(namespace, name)));
        position.map(|position| &self.all[*position])
    }
}

impl<'a> Filler<'a> {
    pub(crate) fn images(&mut self) -> ImageGroups<'a> {
        let mut groups = ImageGroups { all: Vec::new(), by_name: HashMap::new(), by_config: HashMap::new() };
        for (namespace, graph) in self.graphs {
            let mut by_id: BTreeMap<String, (Vec<&ImageRecord>, Resolved)> = BTreeMap::new();
            for record in &namespace.images {
                let resolved = self.resolve(graph, record);
                let id = resolved.config.as_ref().map_or(&record.target, |config| &config.digest);
                by_id.entry(id.clone()).or_insert_with(|| (Vec::new(), resolved)).0.push(record);
            }
            for (digest, (names, resolved)) in by_id {
                let place = groups.all.len();
                for name in &names {
                    groups.by_name.insert((&namespace.name, &name.name), place);
                }
                if resolved.config.is_some() {
                    groups.by_config.insert((&namespace.name, digest.clone()), place);
                }
                let group = self.image((namespace, graph), &digest, names, resolved);
                groups.all.push(group);
            }
        }
        groups
    }

    fn resolve(&self, graph: &Graph<'a>, record: &ImageRecord) -> Resolved {
        // Only blobs with a record in this namespace count: it cannot read the blobs of other namespaces.
        let known = |digest: &str| graph.blob(digest).is_some() && self.snapshot.blobs.contains_key(digest);
        content::resolve(
            (&record.target, record.target_size),
            self.platform,
            &|digest| {
                let document = self.snapshot.documents.get(digest).filter(|_| known(digest));
                document.map(|document| (**document).clone())
            },
            &known,
            &|config| {
                let labels = graph.blob(config).map(|blob| &blob.labels);
                labels.is_some_and(|labels| labels.keys().any(|label| label.starts_with(SNAPSHOT_REF)))
            },
        )
    }

    fn image(
        &mut self,
        (namespace, graph): (&'a Namespace, &Graph<'a>),
        digest: &str,
        names: Vec<&'a ImageRecord>,
        resolved: Resolved,
    ) -> ImageGroup<'a> {
        let mut refs = Vec::new();
        // An expired name keeps nothing, but CRI lists its image until it is collected.
        for name in names.iter().filter(|name| graph.expired(name, self.writer.present.now()).is_none()) {
            refs.extend(graph.image(name));
        }
        // The top snapshot comes first, as the top layer does in other stores, then the blobs.
        refs.sort_by_key(|object| match object {
            Ref::Snapshot(snapshotter, _) => u8::from(*snapshotter != self.primary),
            _ => 2,
        });
        let holds = self.nodes(namespace, &refs);
        let tops = self.tops(graph, &resolved);
        let layers = self.chain(namespace, &tops);
        self.diff_ids(namespace, &tops, &resolved);
        let hex = digest.split_once(':').map_or(digest, |(_, hex)| hex);
        let id = qualified(&namespace.name, hex);
        let image = ImageIx::from(self.writer.inventory.images.len());
        let mut digests: Vec<_> = names.iter().map(|name| name.target.clone()).collect();
        digests.sort();
        digests.dedup();
        let created = names.iter().filter_map(|name| name.created).min();
        let evidence = created.map(|at| Evidence { kind: EvidenceKind::ImageRecord, at });
        self.writer.inventory.images.push(Image {
            id: id.as_str().into(),
            store: self.writer.store,
            names: shown(&names),
            digests,
            created,
            evidence: evidence.into_iter().collect(),
            origin: origin::origin(namespace, graph, &names, &resolved),
            blobs: if self.writer.blobs { blobs(&resolved) } else { Vec::new() },
            is_list: resolved.index && resolved.config.is_none(),
            pinned_by: self.pinned_by(namespace, &names),
            labels: if self.writer.reads_labels_of(&id) {
                labels(self.snapshot, &names, &resolved)
            } else {
                Labels::NotRead
            },
            layers: layers.into_iter().map(Into::into).collect(),
            listed_bytes: resolved.listed_bytes,
            holds,
        });
        if namespace.name == KUBERNETES {
            let all = names.iter().map(|name| name.name.clone()).collect();
            self.writer.inventory.record_names.insert(image, all);
        }
        let manifests = self.manifests(graph, &names, &resolved);
        if !manifests.is_empty() {
            self.writer.inventory.manifests.insert(image, manifests);
        }
        ImageGroup { namespace, names, resolved, image, id, tops }
    }

    /// Returns the manifests in the indexes that `names` have as targets, each once, if some of their content is here.
    fn manifests(
        &self,
        graph: &Graph<'a>,
        names: &[&ImageRecord],
        resolved: &Resolved,
    ) -> Vec<IndexedManifest> {
        let mut seen = HashSet::new();
        let mut manifests = Vec::new();
        for target in names.iter().map(|name| &name.target) {
            let Some(Document::Index(children)) =
                self.snapshot.documents.get(target).map(|document| &**document)
            else {
                continue;
            };
            for child in children.iter().filter(|child| seen.insert(child.digest.as_str())) {
                let mut digests = vec![&child.digest];
                if let Some(Document::Manifest { config, layers }) =
                    self.snapshot.documents.get(&child.digest).map(|document| &**document)
                {
                    digests.extend(config.iter().chain(layers).map(|blob| &blob.digest));
                }
                let blobs = digests.into_iter().filter(|digest| graph.blob(digest).is_some());
                let mut holds: Vec<_> =
                    blobs.filter_map(|digest| self.blobs.get(digest.as_str()).copied()).collect();
                holds.sort_unstable();
                holds.dedup();
                if !holds.is_empty() {
                    manifests.push(IndexedManifest {
                        digest: child.digest.clone(),
                        platform: child.platform.clone(),
                        is_used: resolved.manifest.as_ref() == Some(&child.digest),
                        holds,
                    });
                }
            }
        }
        manifests
    }

    /// Returns the top snapshots in the labels of the configuration, the primary snapshotter's first.
    fn tops(&self, graph: &Graph<'a>, resolved: &Resolved) -> Vec<(&'a str, &'a str)> {
        let config = resolved.config.as_ref().and_then(|config| graph.blob(&config.digest));
        let labels = config.into_iter().flat_map(|blob| &blob.labels);
        let mut tops: Vec<_> = labels
            .filter_map(|(label, key)| {
                Some((label.strip_prefix(SNAPSHOT_REF)?.split('/').next()?, key.as_str()))
            })
            .collect();
        tops.sort_by_key(|(snapshotter, _)| *snapshotter != self.primary);
        tops
    }

    /// Returns the ids of the snapshots from the top to the base. A cycle ends the chain.
    fn chain(&self, namespace: &'a Namespace, tops: &[(&'a str, &'a str)]) -> Vec<String> {
        let mut seen = HashSet::new();
        let tops = tops.iter().map(|(snapshotter, key)| Ref::Snapshot(snapshotter, key));
        let mut next = tops.filter_map(|top| self.node(namespace, top)).next();
        let mut chain = Vec::new();
        while let Some(node) = next.filter(|node| seen.insert(*node)) {
            let node = &self.writer.inventory[node];
            chain.push(node.id.clone());
            // The first need of a snapshot is its parent, if it has one.
            let has_parent = node.layer.as_ref().is_some_and(|layer| layer.parent.is_some());
            next = node.needs.first().copied().filter(|_| has_parent);
        }
        chain
    }

    /// Adds the diffID to each snapshot, as far as the labels of the layers' blobs contain it.
    fn diff_ids(&mut self, namespace: &'a Namespace, tops: &[(&'a str, &'a str)], resolved: &Resolved) {
        for (snapshotter, key) in tops {
            let mut next = self.node(namespace, Ref::Snapshot(snapshotter, key));
            for layer in resolved.layers.iter().rev() {
                let Some(current) = next else { break };
                let blob = self.blobs.get(layer.digest.as_str()).map(|node| &self.writer.inventory[*node]);
                let diff_id = blob.and_then(|node| node.layer.as_ref()?.diff_id.clone());
                let node = &mut self.writer.inventory[current];
                next = node.needs.first().copied();
                if let (Some(facts), Some(diff_id)) = (&mut node.layer, diff_id) {
                    facts.diff_id = Some(diff_id);
                }
            }
        }
    }

    /// Returns the reasons why an image is kept: CRI's label, the configured sandbox image, or a sandbox that uses
    /// it. CRI itself does not report the latter reliably before 1.6.25 and 1.7.10.
    fn pinned_by(&self, namespace: &Namespace, names: &[&ImageRecord]) -> Vec<PinReason> {
        let mut reasons = Vec::new();
        let (label, value) = PINNED;
        for name in names.iter().filter(|name| name.labels.get(label).is_some_and(|is| is == value)) {
            let text = format!("label {label}={value} on {}", name.name);
            let (namespace, image) = (namespace.name.as_str(), shell_word(&name.name));
            reasons.push(if is_for_ctr(namespace) {
                PinReason::new(text, format!("`ctr -n {namespace} images label {image} {label}=`"))
            } else {
                text.into()
            });
        }
        if namespace.name != KUBERNETES {
            return reasons;
        }
        for pin in &self.snapshot.places.pins {
            let image = reference::normalized(&pin.image);
            if names.iter().any(|name| name.name == image || name.name == pin.image) {
                let text = format!("sandbox image {:?} in {}", pin.image, pin.origin);
                let reason = PinReason::new(text, format!("remove it from {}", pin.origin));
                reasons.push(PinReason { is_of_sandboxes: true, ..reason });
            }
        }
        let containers = namespace.containers.iter();
        let sandboxes = containers.filter(|container| container.cri.as_ref().is_some_and(|cri| cri.sandbox));
        let mut images = sandboxes.filter_map(|sandbox| sandbox.image.as_deref());
        if let Some(used) = images.find(|image| names.iter().any(|name| name.name == *image)) {
            reasons.push(format!("a pod sandbox uses {used}").into());
        }
        reasons
    }
}

/// Returns the labels of the image with these `names`; unknown if its configuration cannot be found.
fn labels(snapshot: &Snapshot, names: &[&ImageRecord], resolved: &Resolved) -> Labels {
    let Some(config) = &resolved.config else {
        return Labels::Unknown("its manifest could not be read".into());
    };
    let Some(path) = snapshot.blob_path(&config.digest) else {
        return Labels::Unknown(format!("its configuration {:?} is not a digest", config.digest));
    };
    let recorded = names.iter().flat_map(|name| &name.labels);
    match snapshot.within.read(&path, MOST_CONFIG_BYTES) {
        Ok(bytes) => {
            Labels::of_configuration(&bytes).and(recorded.map(|(key, value)| (key.clone(), value.clone())))
        }
        Err(error) => Labels::Unknown(format!("reading its configuration {}: {error}", config.digest)),
    }
}

/// Returns the layers in the manifest, the base first.
fn blobs(resolved: &Resolved) -> Vec<LayerBlob> {
    let blobs = resolved.layers.iter();
    blobs
        .map(|layer| LayerBlob::new(layer.digest.clone(), layer.size.unwrap_or_default(), &layer.media_type))
        .collect()
}

/// Returns the names to show: not the image's id, and names with a digest only if there are no others.
fn shown(names: &[&ImageRecord]) -> Vec<String> {
    let named = names.iter().map(|name| name.name.clone()).filter(|name| !name.starts_with("sha256:"));
    let (digested, tagged): (Vec<_>, Vec<_>) = named.partition(|name| name.contains('@'));
    if tagged.is_empty() { digested } else { tagged }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_shown_before_digests() {
        fn of(names: &[&str]) -> Vec<String> {
            let record = |name: &&str| ImageRecord { name: (*name).into(), ..ImageRecord::default() };
            let records: Vec<_> = names.iter().map(record).collect();
            shown(&records.iter().collect::<Vec<_>>())
        }
        assert_eq!(of(&["a/b:1", "a/b@sha256:0", "sha256:1"]), ["a/b:1"]);
        assert_eq!(of(&["a/b@sha256:0", "sha256:1"]), ["a/b@sha256:0"]);
        assert!(of(&["sha256:1"]).is_empty(), "dangling");
    }
}
