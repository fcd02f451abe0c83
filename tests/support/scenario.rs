//! Made-up nodes, the same every time: for the demo, the tests and the bench.

use jiff::{SignedDuration, Timestamp};

use layersweep::model::space::Space;
use layersweep::model::{
    Consistency, Container, ContainerState, Filesystem, Image, Inventory, Labels, LayerFacts, Node, NodeIx,
    NodeKind, Owner, Size, Store, StoreId, StoreKind,
};
use layersweep::policy::input::Ages;
use layersweep::policy::kubelet::{ListedContainer, ListedImage, Listing};

const MIB: u64 = 1 << 20;

/// A node with one containers/storage store and a filesystem for it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Every layer: its parent, always an earlier one, and its bytes.
    pub layers: Vec<(Option<usize>, u64)>,
    /// Every image.
    pub images: Vec<ScenarioImage>,
    /// The image of each container.
    pub containers: Vec<usize>,
    pub now: Timestamp,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// What is available on it.
    pub available_bytes: u64,
}

/// An image of a [`Scenario`].
#[derive(Clone, Debug)]
pub struct ScenarioImage {
    pub name: String,
    /// Its top layer.
    pub top: usize,
    /// Since when it is there, and when it was last used.
    pub ages: Ages,
}

impl Scenario {
    /// The node that started it all, at one hundredth: 168 images in a sharing tree, 45 containers
    /// on 30 of them, a disk that is 77 % full where collection is to start at 74 and end at 69.
    /// Sizes are chosen so that the kubelet fares as it did there; nothing else is.
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
        let used: Vec<usize> = (0..30).map(|at| at * 168 / 30).collect();
        made.use_images((0..45).map(|container| used[container % used.len()]));
        made.fill_to(77, 2400 * MIB);
        made
    }

    /// A big node, for the planner's own tests: `images` images over `layers` layers, every tenth image in use.
    #[must_use]
    #[allow(dead_code)] // src/policy/plan/tests.rs takes this file in
    pub fn big(images: usize, layers: usize) -> Self {
        let own = (layers / images.max(1)).saturating_sub(1).max(1);
        let mut made = Self::forest(&Shape {
            images,
            bases: images / 100 + 1,
            runtimes: images / 10 + 1,
            base_bytes: 50 * MIB..=100 * MIB,
            runtime_bytes: MIB..=30 * MIB,
            runtime_layers: 3..=8,
            own_bytes: 0..=10 * MIB,
            own_layers: own..=own,
            seed: 10,
        });
        made.use_images((0..images).step_by(10));
        let sum: u64 = made.layers.iter().map(|(_, bytes)| bytes).sum();
        made.fill_to(90, sum + sum / 4);
        made
    }

    /// What CRI-O would list of [`Self::inventory`]: every image with all its layers, shared or not,
    /// and its own containers.
    #[must_use]
    pub fn listing(inventory: &Inventory) -> Listing {
        let image = |image: &Image| {
            let listed = ListedImage {
                id: image.id.to_string(),
                size_bytes: image.listed_bytes.unwrap_or_default(),
                ..ListedImage::default()
            };
            (listed, Some((StoreId::of(&inventory.stores[image.store.get()]), image.id.clone())))
        };
        let containers = inventory.containers.iter().filter(|container| container.owner == Owner::CriO);
        let container = |container: &Container| {
            let image_id = container.image_id.as_deref().unwrap_or_default().to_owned();
            ListedContainer { image_id, ..ListedContainer::default() }
        };
        Listing {
            store: StoreId::of(&inventory.stores[0]),
            images: inventory.images.iter().map(image).collect(),
            containers: containers.map(container).collect(),
        }
    }

    fn forest(shape: &Shape) -> Self {
        let mut random = Random(shape.seed);
        let mut layers: Vec<(Option<usize>, u64)> = Vec::new();
        let mut stack = |random: &mut Random, parent: Option<usize>, count: usize, bytes: &Bytes| {
            let mut top = parent;
            for _ in 0..count {
                layers.push((top, random.within(bytes)));
                top = Some(layers.len() - 1);
            }
            top.unwrap_or_default()
        };
        let bases: Vec<_> =
            (0..shape.bases.max(1)).map(|_| stack(&mut random, None, 1, &shape.base_bytes)).collect();
        let runtimes: Vec<_> = (0..shape.runtimes.max(1))
            .map(|at| {
                let count = random.count(&shape.runtime_layers);
                stack(&mut random, Some(bases[at % bases.len()]), count, &shape.runtime_bytes)
            })
            .collect();
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 20_000);
        let images = (0..shape.images).map(|at| {
            let count = random.count(&shape.own_layers);
            let top = stack(&mut random, Some(runtimes[at % runtimes.len()]), count, &shape.own_bytes);
            let hours = |random: &mut Random, most: u64| {
                SignedDuration::from_hours(i64::try_from(random.within(&(1..=most))).unwrap_or(1))
            };
            let first_detected = now - hours(&mut random, 24 * 90);
            // One in four was pulled and never run.
            let used = (random.within(&(0..=3)) > 0).then(|| hours(&mut random, 24 * 60));
            let last_used = used.map(|ago| (now - ago).max(first_detected));
            let name = format!("registry.example/team-{}/app-{at:03}:1", at % shape.runtimes.max(1));
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

    /// Whatever else is on the disk makes up the rest.
    fn fill_to(&mut self, used_percent: u64, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
        self.available_bytes = capacity_bytes / 100 * (100 - used_percent);
    }

    /// What the filesystem says.
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

    /// The ages, one an image.
    #[must_use]
    pub fn ages(&self) -> Vec<Ages> {
        self.images.iter().map(|image| image.ages).collect()
    }

    /// What a scan would find. Sizes are listed as CRI-O lists them: all layers of an image,
    /// shared or not.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let node = |kind, id: String, bytes, needs: Vec<NodeIx>| Node {
            kind,
            path: format!("/var/lib/containers/storage/{id}").into(),
            id,
            store: 0.into(),
            filesystem: 0.into(),
            size: Size { bytes, apparent_bytes: bytes, inodes: bytes / 16_384 + 4, frees_bytes: bytes },
            needs,
            layer: None,
        };
        let mut nodes = Vec::with_capacity(self.layers.len() + self.images.len());
        let mut listed: Vec<u64> = Vec::with_capacity(self.layers.len());
        for (at, (parent, bytes)) in self.layers.iter().enumerate() {
            let mut layer = node(NodeKind::Layer, format!("layer-{at:05}"), *bytes, vec![]);
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
        for (at, image) in self.images.iter().enumerate() {
            let metadata = node(NodeKind::ImageMetadata, format!("image-{at:05}"), 8192, vec![]);
            let holds = vec![image.top.into(), nodes.len().into()];
            nodes.push(metadata);
            images.push(Image {
                id: format!("{at:064x}").into(),
                store: 0.into(),
                names: vec![image.name.clone()],
                digests: vec![],
                created: None,
                evidence: vec![],
                is_list: false,
                pinned_by: vec![],
                labels: Labels::default(),
                layers: vec![],
                listed_bytes: Some(listed[image.top]),
                holds,
            });
        }
        let containers = self.containers.iter().enumerate().map(|(at, image)| Container {
            id: format!("c{at:063x}").into(),
            store: 0.into(),
            name: format!("pod-{at:02}"),
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

    fn count(&mut self, range: &Count) -> usize {
        let range = *range.start() as u64..=*range.end() as u64;
        usize::try_from(self.within(&range)).unwrap_or(1)
    }
}
