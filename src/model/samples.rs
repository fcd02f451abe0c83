//! The smallest parts of an inventory, for unit tests. A test names only what it is about, as in
//! `Image { pinned_by, ..samples::image("a", &[0]) }`.

use super::{
    Consistency, Container, ContainerState, Image, Labels, Leak, LeakClass, Node, NodeIx, NodeKind, Origin,
    Owner, Size, Store, StoreKind, Verdict,
};

/// A graphroot with driver overlay on the first filesystem.
pub fn store() -> Store {
    Store {
        kind: StoreKind::ContainersStorage,
        root: "/store".into(),
        driver: "overlay".into(),
        filesystem: 0.into(),
        read_only: false,
        origin: "test".into(),
        consistency: Consistency::Consistent,
    }
}

/// A layer of the first store, which needs these nodes and frees all of its bytes.
pub fn layer(bytes: u64, needs: &[usize]) -> Node {
    Node {
        kind: NodeKind::Layer,
        id: String::new(),
        store: 0.into(),
        filesystem: 0.into(),
        path: "/store/x".into(),
        size: Size { bytes, apparent_bytes: bytes, inodes: 1, frees_bytes: bytes },
        needs: nodes(needs),
        layer: None,
    }
}

/// An image of the first store, without a name, that holds these nodes.
pub fn image(id: &str, holds: &[usize]) -> Image {
    Image {
        id: id.into(),
        store: 0.into(),
        names: Vec::new(),
        digests: Vec::new(),
        created: None,
        evidence: Vec::new(),
        origin: Origin::default(),
        blobs: Vec::new(),
        is_list: false,
        pinned_by: Vec::new(),
        labels: Labels::default(),
        layers: Vec::new(),
        listed_bytes: None,
        holds: nodes(holds),
    }
}

/// A container of the first store, without an image.
pub fn container(id: &str, owner: Owner, state: ContainerState) -> Container {
    Container {
        id: id.into(),
        store: 0.into(),
        name: id.into(),
        owner,
        image_id: None,
        image: None,
        created: None,
        state,
        sandbox: false,
        sandbox_id: None,
        namespace: None,
        volumes: Vec::new(),
        listed_bytes: None,
        log: None,
        holds: Vec::new(),
    }
}

/// A leak of the first store that holds these nodes.
pub fn leak(class: LeakClass, verdict: Verdict, holds: &[usize]) -> Leak {
    Leak {
        class,
        store: 0.into(),
        path: "/store/x".into(),
        id: "x".into(),
        since: None,
        verdict,
        evidence: String::new(),
        holds: nodes(holds),
    }
}

pub fn nodes(positions: &[usize]) -> Vec<NodeIx> {
    positions.iter().map(|ix| (*ix).into()).collect()
}
