use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::model::{EvidenceKind, StoreKind};

fn time() -> impl Strategy<Value = Timestamp> {
    (-62_000_000_000_i64..250_000_000_000, 0..1_000_000_000)
        .prop_map(|(second, nanos)| Timestamp::new(second, nanos).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn path() -> impl Strategy<Value = PathBuf> {
    vec(1..=u8::MAX, 0..20).prop_map(|bytes| PathBuf::from(OsString::from_vec(bytes)))
}

fn evidence() -> impl Strategy<Value = Evidence> {
    let kinds = [
        EvidenceKind::ImageRecord,
        EvidenceKind::TopLayer,
        EvidenceKind::MetadataDirectory,
        EvidenceKind::Container,
    ];
    (select(kinds.to_vec()), time()).prop_map(|(what, at)| Evidence { what, at })
}

prop_compose! {
    fn filesystem()(
        mount in path(), device in ".*", fstype in ".*", bytes in any::<[u64; 5]>()
    ) -> Filesystem {
        Filesystem {
            mount, device, fstype,
            capacity_bytes: bytes[0], used_bytes: bytes[1], available_bytes: bytes[2],
            inodes: bytes[3], inodes_free: bytes[4],
        }
    }
}

prop_compose! {
    fn store()(
        kind in select(vec![StoreKind::ContainersStorage, StoreKind::Containerd]),
        root in path(), driver in ".*",
        consistency in select(vec![
            Consistency::Consistent, Consistency::WriterActive, Consistency::Damaged
        ]),
    ) -> SeenStore {
        SeenStore { key: StoreId::new(kind, root, driver), consistency }
    }
}

prop_compose! {
    fn image_strategy()(
        store in any::<usize>(), id in ".*", names in vec(".*", 0..4),
        evidence in vec(evidence(), 0..4), pinned in any::<bool>(), bytes in any::<[u64; 3]>(),
        listed_bytes in option::of(any::<u64>()),
    ) -> SeenImage {
        SeenImage {
            store, id, names, evidence, pinned, in_use: false, listed_bytes,
            total_bytes: bytes[0], exclusive_bytes: bytes[1], frees_bytes: bytes[2],
        }
    }
}

prop_compose! {
    fn container()(
        store in any::<usize>(), id in ".*", name in ".*",
        owner in select(vec![
            Owner::CriO, Owner::Podman, Owner::Buildah, Owner::Containerd, Owner::Docker, Owner::Unknown
        ]),
        image in option::of(any::<usize>()), image_id in option::of(".*"), created in option::of(time()),
        state in select(vec![
            ContainerState::Created, ContainerState::Running, ContainerState::Exited,
            ContainerState::Unknown
        ]),
        sandbox in any::<bool>(), bytes in any::<u64>(),
    ) -> SeenContainer {
        SeenContainer { store, id, name, owner, image, volumes: vec![], image_id, created, state, sandbox, bytes }
    }
}

prop_compose! {
    fn scan_record()(
        taken_at in time(), record_time in time(), wall in time(), boot_id in ".*",
        since_boot in any::<i64>(), synchronised in any::<bool>(),
        filesystems in vec(filesystem(), 0..3), stores in vec(store(), 0..3),
        images in vec(image_strategy(), 0..4), containers in vec(container(), 0..4),
    ) -> ScanRecord {
        ScanRecord {
            taken_at, record_time,
            clock: ClockReading { wall, boot_id, since_boot, synchronised },
            filesystems, stores, images, containers,
        }
    }
}

proptest! {
    #[test]
    fn comes_back_from_json(scan_record in scan_record()) {
        let json = serde_json::to_string(&scan_record).unwrap();
        let back: ScanRecord = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(back, scan_record);
    }
}

#[test]
fn words_in_json_are_those_of_the_documents() {
    for kind in [StoreKind::ContainersStorage, StoreKind::Containerd] {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
    }
    for owner in
        [Owner::CriO, Owner::Podman, Owner::Buildah, Owner::Containerd, Owner::Docker, Owner::Unknown]
    {
        assert_eq!(serde_json::to_value(owner).unwrap(), owner.as_str());
    }
    for state in
        [ContainerState::Created, ContainerState::Running, ContainerState::Exited, ContainerState::Unknown]
    {
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
}
