//! Made-up nodes, the same every time: for the demo, the tests and the bench.

use jiff::{SignedDuration, Timestamp};

use layersweep::model::space::Space;
use layersweep::model::{
    Consistency, Container, ContainerState, Filesystem, Image, Inventory, Labels, LayerFacts, Node, NodeKind,
    Origin, Owner, Size, Store, StoreId, StoreKind,
};
use layersweep::policy::input::{Ages, Facts};
use layersweep::policy::kubelet::{ListedContainer, ListedImage, Listing};

const MIB: u64 = 1 << 20;

/// A node with one containers/storage store and a filesystem for it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Parent (always an earlier layer) and bytes of every layer.
    pub layers: Vec<(Option<usize>, u64)>,
    /// Every image.
    pub images: Vec<ScenarioImage>,
    /// Image of each container.
    pub containers: Vec<usize>,
    pub now: Timestamp,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Available bytes of the filesystem.
    pub available_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct ScenarioImage {
    pub name: String,
    /// Index of its top layer.
    pub top: usize,
    /// First detection and last use.
    pub ages: Ages,
}

impl Scenario {
    /// Returns the node that was the reason for this program, at one hundredth: 168 images in a sharing tree, 45
    /// containers on 30 of them, a disk that is 77 % full and whose collection starts at 74 and ends at 69. Sizes are
    /// chosen so that the kubelet does what it did there; the rest is arbitrary.
    #[must_use]
    pub fn article() -> Self {
        let mut made = Self::forest(&Shape {
            images: 168,
            bases: 6,
            runtimes: 24,
            base_bytes: 12 * MIB..=18 * MIB,
            runtime_bytes: 3 * MIB..=6 * MIB,
            runtime_layers: 2..=3,
            own_bytes: 3 * MIB / 2..=4 * MIB,
            own_layers: 2..=3,
            seed: 168,
        });
        // Every team runs something: each runtime has images in use.
        let used: Vec<usize> = (0..30).map(|number| number * 168 / 30).collect();
        made.use_images((0..45).map(|container| used[container % used.len()]));
        made.fill_to(77, 2400 * MIB);
        made
    }

    /// Returns a big node for the planner's tests: `images` images over `layers` layers, every tenth image in use.
    #[must_use]
    #[allow(dead_code)] // src/policy/plan/tests.rs includes this file
    pub fn big(images: usize, layers: usize) -> Self {
        let top_layers = (layers / images.max(1)).saturating_sub(1).max(1);
        let mut made = Self::forest(&Shape {
            images,
            bases: images / 100 + 1,
            runtimes: images / 10 + 1,
            base_bytes: 50 * MIB..=100 * MIB,
            runtime_bytes: MIB..=30 * MIB,
            runtime_layers: 3..=8,
            own_bytes: 0..=10 * MIB,
            own_layers: top_layers..=top_layers,
            seed: 10,
        });
        made.use_images((0..images).step_by(10));
        let sum: u64 = made.layers.iter().map(|(_, bytes)| bytes).sum();
        made.fill_to(90, sum + sum / 4);
        made
    }

    /// Returns what CRI-O would list of [`Self::inventory`]: every image with all its layers, shared or not, and its
    /// own containers.
    #[must_use]
    pub fn listing(inventory: &Inventory) -> Listing {
        let images = inventory.images.iter().map(|image| {
            let listed = ListedImage {
                id: image.id.to_string(),
                size_bytes: image.listed_bytes.unwrap_or_default(),
                ..ListedImage::default()
            };
            (listed, Some((StoreId::of(&inventory.stores[image.store.get()]), image.id.clone())))
        });
        let containers = inventory.containers.iter().filter(|container| container.owner == Owner::CriO);
        let containers = containers.map(|container| {
            let image_id = container.image_id.as_deref().unwrap_or_default().to_owned();
            ListedContainer { image_id, ..ListedContainer::default() }
        });
        Listing {
            store: StoreId::of(&inventory.stores[0]),
            images: images.collect(),
            containers: containers.collect(),
        }
    }

    fn forest(shape: &Shape) -> Self {
        let mut random = Random(shape.seed);
        let mut layers: Vec<(Option<usize>, u64)> = Vec::new();
        let bases: Vec<_> = (0..shape.bases.max(1))
            .map(|_| stack(&mut layers, &mut random, None, 1, &shape.base_bytes))
            .collect();
        let runtimes: Vec<_> = (0..shape.runtimes.max(1))
            .map(|number| {
                let count = random.count(&shape.runtime_layers);
                let base = Some(bases[number % bases.len()]);
                stack(&mut layers, &mut random, base, count, &shape.runtime_bytes)
            })
            .collect();
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 20_000);
        let images = (0..shape.images).map(|number| {
            let count = random.count(&shape.own_layers);
            let runtime = Some(runtimes[number % runtimes.len()]);
            let top = stack(&mut layers, &mut random, runtime, count, &shape.own_bytes);
            let first_detected = now - random.hours(24 * 90);
            // One in four was pulled and never run.
            let used = (random.within(&(0..=3)) > 0).then(|| random.hours(24 * 60));
            let last_used = used.map(|ago| (now - ago).max(first_detected));
            let name = format!("registry.example/team-{}/app-{number:03}:1", number % shape.runtimes.max(1));
            let ages = Ages::new(first_detected, last_used, u64::from(last_used.is_some()));
            ScenarioImage { name, top, ages }
        });
        let images = images.collect();
        Self { layers, images, containers: Vec::new(), now, capacity_bytes: 0, available_bytes: 0 }
    }

    fn use_images(&mut self, containers: impl Iterator<Item = usize>) {
        self.containers = containers.collect();
        for image in &self.containers {
            let ages = &mut self.images[*image].ages;
            *ages = Ages::new(ages.first_detected, Some(self.now), ages.use_count + 1);
        }
    }

    /// Sets the size of the filesystem, and fills it up to `used_percent` with other files.
    fn fill_to(&mut self, used_percent: u64, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        self.available_bytes = capacity_bytes / 100 * (100 - used_percent);
    }

    /// Returns the space of the filesystem.
    #[must_use]
    pub fn space(&self) -> Space {
        Space {
            capacity_bytes: self.capacity_bytes,
            available_bytes: self.available_bytes,
            owed_bytes: 0,
            inodes: 0,
            inodes_free: 0,
        }
    }

    /// Facts of the images: their ages alone.
    #[must_use]
    pub fn facts(&self) -> Vec<Facts> {
        self.images.iter().map(|image| Facts { ages: Some(image.ages), ..Facts::default() }).collect()
    }

    /// Returns what a scan would find. Sizes are listed as CRI-O lists them: all layers of an image, shared or not.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let mut nodes = Vec::with_capacity(self.layers.len() + self.images.len());
        let mut listed: Vec<u64> = Vec::with_capacity(self.layers.len());
        for (number, (parent, bytes)) in self.layers.iter().enumerate() {
            let mut layer = node(NodeKind::Layer, format!("layer-{number:05}"), *bytes);
            layer.needs = parent.iter().map(|parent| (*parent).into()).collect();
            let parent_id = parent.map(|parent| format!("layer-{parent:05}"));
            layer.layer = Some(Box::new(LayerFacts {
                parent: parent_id,
                listed_bytes: Some(*bytes),
                ..LayerFacts::default()
            }));
            nodes.push(layer);
            listed.push(bytes + parent.map_or(0, |parent| listed[parent]));
        }
        let mut images = Vec::with_capacity(self.images.len());
        for (number, image) in self.images.iter().enumerate() {
            let metadata = node(NodeKind::ImageMetadata, format!("image-{number:05}"), 8192);
            let holds = vec![image.top.into(), nodes.len().into()];
            nodes.push(metadata);
            images.push(Image {
                id: format!("{number:064x}").into(),
                store: 0.into(),
                names: vec![image.name.clone()],
                digests: vec![],
                created: None,
                evidence: vec![],
                origin: Origin::default(),
                blobs: Vec::new(),
                is_list: false,
                pinned_by: vec![],
                labels: Labels::default(),
                layers: vec![],
                listed_bytes: Some(listed[image.top]),
                holds,
            });
        }
        let containers = self.containers.iter().enumerate().map(|(number, image)| Container {
            id: format!("c{number:063x}").into(),
            store: 0.into(),
            name: format!("pod-{number:02}"),
            owner: Owner::CriO,
            image_id: Some(images[*image].id.clone()),
            image: Some((*image).into()),
            created: None,
            state: ContainerState::Running,
            sandbox: false,
            sandbox_id: None,
            namespace: None,
            volumes: Vec::new(),
            listed_bytes: None,
            log: None,
            holds: vec![self.images[*image].top.into()],
        });
        let containers = containers.collect();
        Inventory {
            filesystems: vec![Filesystem {
                mount: "/var/lib/containers".into(),
                device: "/dev/scenario".into(),
                fstype: "xfs".into(),
                capacity_bytes: self.capacity_bytes,
                used_bytes: self.capacity_bytes - self.available_bytes,
                available_bytes: self.available_bytes,
                inodes: 0,
                inodes_free: 0,
            }],
            stores: vec![Store {
                kind: StoreKind::ContainersStorage,
                root: "/var/lib/containers/storage".into(),
                driver: "overlay".into(),
                filesystem: 0.into(),
                read_only: false,
                origin: "scenario".into(),
                consistency: Consistency::Consistent,
            }],
            nodes,
            images,
            containers,
            ..Inventory::default()
        }
    }
}

type Bytes = std::ops::RangeInclusive<u64>;
type Count = std::ops::RangeInclusive<usize>;

struct Shape {
    images: usize,
    bases: usize,
    runtimes: usize,
    base_bytes: Bytes,
    runtime_bytes: Bytes,
    runtime_layers: Count,
    own_bytes: Bytes,
    own_layers: Count,
    seed: u64,
}

/// Puts `count` layers on `parent`; returns the index of the top.
fn stack(
    layers: &mut Vec<(Option<usize>, u64)>,
    random: &mut Random,
    parent: Option<usize>,
    count: usize,
    bytes: &Bytes,
) -> usize {
    let mut top = parent;
    for _ in 0..count {
        layers.push((top, random.within(bytes)));
        top = Some(layers.len() - 1);
    }
    top.unwrap_or_default()
}

fn node(kind: NodeKind, id: String, bytes: u64) -> Node {
    Node {
        kind,
        path: format!("/var/lib/containers/storage/{id}").into(),
        id,
        store: 0.into(),
        filesystem: 0.into(),
        size: Size { bytes, apparent_bytes: bytes, inodes: bytes / 16_384 + 4, frees_bytes: bytes },
        needs: Vec::new(),
        layer: None,
    }
}

/// SplitMix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, range: &Bytes) -> u64 {
        range.start() + self.next() % (range.end() - range.start() + 1)
    }

    /// A duration from one hour to `most` hours.
    fn hours(&mut self, most: u64) -> SignedDuration {
        SignedDuration::from_hours(i64::try_from(self.within(&(1..=most))).unwrap_or(1))
    }

    fn count(&mut self, range: &Count) -> usize {
        let range = *range.start() as u64..=*range.end() as u64;
        usize::try_from(self.within(&range)).unwrap_or(1)
    }
}
