//! What a store needs from other stores, and users of its own images that are not in its records.

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};

use super::inspect::data;
use super::inspect::engine::{self, Engine, PodmanContainer};
use super::inspect::mountpoints;
use super::lists;
use super::owner;
use super::places::{RecordKind, StorePlaces};
use super::records::{ImageRecord, LayerRecord, is_id};
use super::snapshot::Snapshot;
use crate::model::Consistency;
use crate::model::reference::{bare_id, is_surely, may_be};

/// What one user needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Who, for messages: `the podman container web`.
    pub by: String,
    /// Ids of layers.
    pub layers: Vec<String>,
    /// Ids of images, or what else means one ([`may_be`]).
    pub images: Vec<String>,
    /// Ids of top layers: any image with one of them may be the needed one.
    pub tops: Vec<String>,
    /// Which images is not known: any may be needed.
    pub any_image: bool,
}

impl Need {
    fn is_nothing(&self) -> bool {
        self.layers.is_empty() && self.images.is_empty() && self.tops.is_empty() && !self.any_image
    }

    /// Whether it needs this image, or may.
    #[must_use]
    pub fn needs_image(&self, image: &ImageRecord) -> bool {
        self.any_image
            || self.images.iter().any(|one| may_be(one, &image.id, &image.names, &image.digests))
            || image.tops().any(|top| self.tops.contains(top))
    }

    /// Of a mount of an image, which tells the image's top layer alone.
    pub(super) fn of_mount(top: &str) -> Self {
        let by = "a mount (`podman image unmount` ends it)".to_owned();
        Self { by, layers: vec![top.to_owned()], tops: vec![top.to_owned()], ..Self::default() }
    }

    /// Of containers in a database that cannot be read.
    fn perhaps(engine: &Engine) -> Option<Self> {
        let Engine::Unreadable(why) = engine else { return None };
        let by = format!("possibly a podman container: podman's database cannot be read ({why})");
        Some(Self { by, any_image: true, ..Self::default() })
    }
}

/// What images, containers and layers of the store need and the store itself has not: it can only
/// come from a store that this one takes images from. Whatever a store has itself it does not take from
/// others.
#[must_use]
pub fn elsewhere(snapshot: &Snapshot) -> Vec<Need> {
    let own = Own::new(snapshot);
    let mut reached = HashSet::new();
    let mut needs: Vec<Need> = Vec::new();
    for image in &snapshot.images {
        let layers = image.tops().filter_map(|top| own.missing_below(top, &mut reached)).collect();
        let by = format!("the image {}", image.names.first().unwrap_or(&image.id));
        let members =
            if lists::is_list(image) { lists::digests(&snapshot.places, image) } else { Ok(HashSet::new()) };
        let any_image = members.is_err();
        let members = members.unwrap_or_default().into_iter().filter(|digest| !own.surely_has(digest));
        // A tag of an image in another store copies its record, in podman 4 without its data: the library reads the
        // manifest of the first store that has it (container-libs, `storage/store.go`, `updateNames`, `ImageBigData`).
        let original = data::lacks(image).map(|_| image.id.clone());
        let images = members.chain(original).collect();
        needs.push(Need { by, layers, images, any_image, ..Need::default() });
    }
    let directory = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Containers);
    let within = snapshot.places.within();
    for container in &snapshot.containers {
        let top = container.layer.iter();
        let layers: Vec<_> = top.filter_map(|top| own.missing_below(top, &mut reached)).collect();
        let images: Vec<_> = container.image.iter().filter(|id| !own.surely_has(id)).cloned().collect();
        if !(layers.is_empty() && images.is_empty()) {
            let origin = owner::origin(&within, container, &directory.join(&container.id));
            let by = format!("the {} container {}", origin.owner.as_str(), origin.name);
            needs.push(Need { by, layers, images, ..Need::default() });
        }
    }
    for (id, container) in snapshot.inspection.engine.containers() {
        let mut need = own.images_of_podman(id, container);
        need.images.retain(|image| !own.surely_has(image));
        needs.push(need);
    }
    for layer in snapshot.layers.iter().filter(|layer| !reached.contains(layer.id.as_str())) {
        let parent = layer.parent.iter().filter(|parent| !own.layers.contains_key(parent.as_str()));
        let layers = parent.cloned().collect();
        needs.push(Need { by: format!("the layer {}", layer.id), layers, ..Need::default() });
    }
    needs.retain(|need| !need.is_nothing());
    needs
}

/// Who uses the store's own images and is not a container of its records: containers that only podman's
/// database knows (the records of a transient store are in its runroot), images that are mounted into
/// containers, and with vfs those that `podman image mount` has handed out, where no mount shows it.
#[must_use]
pub fn beside_records(snapshot: &Snapshot) -> Vec<Need> {
    let own = LazyCell::new(|| Own::new(snapshot));
    let mut needs: Vec<_> = Need::perhaps(&snapshot.inspection.engine).into_iter().collect();
    for (id, container) in snapshot.inspection.engine.containers() {
        needs.push(own.images_of_podman(id, container));
    }
    if snapshot.places.driver == "vfs" {
        let of_container =
            |layer: &String| snapshot.containers.iter().any(|one| one.layer.as_ref() == Some(layer));
        let mounted = mounted(&snapshot.places).into_iter();
        needs.extend(mounted.filter(|need| !need.layers.iter().any(of_container)));
    }
    needs.retain(|need| !need.is_nothing());
    needs
}

/// The same for the editor, which knows the records when it has the locks: a container of the records
/// keeps its image by itself.
#[must_use]
pub fn beside(places: &StorePlaces) -> Vec<Need> {
    let engine = engine::read(places);
    let mut needs: Vec<_> = Need::perhaps(&engine).into_iter().collect();
    needs.extend(engine.containers().map(|(_, container)| {
        let images = container.image.iter().chain(&container.image_volumes).cloned().collect();
        Need { by: by_podman(container), images, ..Need::default() }
    }));
    if places.driver == "vfs" {
        needs.extend(mounted(places));
    }
    needs
}

fn mounted(places: &StorePlaces) -> Vec<Need> {
    match mountpoints::counted(places) {
        Ok(counted) => counted.iter().map(|mounted| Need::of_mount(&mounted.layer)).collect(),
        Err(error) => {
            let by =
                format!("possibly a mount: which images are mounted is unknown (mountpoints.json: {error})");
            vec![Need { by, any_image: true, ..Need::default() }]
        }
    }
}

/// Whether all that uses images is known: the records are whole, and podman's database, if there is
/// one, was read.
#[must_use]
pub fn knows_all(snapshot: &Snapshot) -> bool {
    snapshot.consistency != Consistency::Damaged
        && !matches!(snapshot.inspection.engine, Engine::Unreadable(_))
}

/// Containers that podman's database knows and no record names: their layers are unknown.
pub(super) fn lost_containers(snapshot: &Snapshot) -> Vec<(&str, &PodmanContainer)> {
    // It is called for every unused layer.
    if snapshot.inspection.engine.containers().next().is_none() {
        return Vec::new();
    }
    let known: HashSet<&str> = snapshot.containers.iter().map(|one| one.id.as_str()).collect();
    snapshot.inspection.engine.containers().filter(|(id, _)| !known.contains(id)).collect()
}

fn by_podman(container: &PodmanContainer) -> String {
    format!("the podman container {}", container.name)
}

/// The store's own records, by id.
struct Own<'a> {
    layers: HashMap<&'a str, &'a LayerRecord>,
    image_ids: HashSet<&'a str>,
    images: &'a [ImageRecord],
    containers: HashSet<&'a str>,
}

impl<'a> Own<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            layers: snapshot.layers.iter().map(|layer| (layer.id.as_str(), layer)).collect(),
            image_ids: snapshot.images.iter().map(|image| image.id.as_str()).collect(),
            images: &snapshot.images,
            containers: snapshot.containers.iter().map(|container| container.id.as_str()).collect(),
        }
    }

    fn surely_has(&self, reference: &str) -> bool {
        // A digest or an id in full is no other image's; there may be very many of them.
        let id = bare_id(reference);
        if is_id(id) {
            return self.image_ids.contains(id);
        }
        self.images.iter().any(|image| is_surely(reference, &image.id, &image.names, &image.digests))
    }

    /// The images of a container in podman's database: its volumes, and what it was made from if no record
    /// names the container.
    fn images_of_podman(&self, id: &str, container: &PodmanContainer) -> Need {
        let made_from = container.image.iter().filter(|_| !self.containers.contains(id));
        let images = container.image_volumes.iter().chain(made_from).cloned().collect();
        Need { by: by_podman(container), images, ..Need::default() }
    }

    /// The first layer below `top`, itself included, that is not here; notes those that are.
    fn missing_below(&self, top: &str, reached: &mut HashSet<&'a str>) -> Option<String> {
        let mut seen = HashSet::new();
        let mut next = Some(top);
        while let Some(id) = next {
            let Some(layer) = self.layers.get(id) else { return Some(id.to_owned()) };
            if !seen.insert(id) {
                return None;
            }
            reached.insert(&layer.id);
            next = layer.parent.as_deref();
        }
        None
    }
}
