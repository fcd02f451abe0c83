use std::ffi::OsStr;

use super::*;
use crate::disk::sharing::SharedExtents;
use crate::disk::{Measured, SharedInodes, Tally};

fn tally(bytes: u64) -> Tally {
    Tally { bytes, inodes: 1, ..Tally::default() }
}

#[test]
fn shared_bytes_count_once_and_not_outside_stores() {
    let measured = Measured {
        units: vec![tally(10), tally(20), tally(300)],
        shared_inodes: vec![
            SharedInodes { units: vec![0, 1], outside: false, tally: tally(4) },
            SharedInodes { units: vec![1], outside: true, tally: tally(1000) },
        ],
        ..Measured::default()
    };
    let extents = [
        SharedExtents { counted: vec![(1, 8), (2, 8)], outside: false, physical_bytes: 8 },
        SharedExtents { counted: vec![(2, 100)], outside: true, physical_bytes: 100 },
    ];
    fn sizes(measured: &Measured, extents: &[SharedExtents], units: usize) -> Vec<(u64, u64)> {
        by_unit(measured, extents, units).into_iter().map(|size| (size.bytes, size.inodes)).collect()
    }
    assert_eq!(sizes(&measured, &extents, 3), [(14, 2), (20, 1), (300 - 8 - 100, 1)]);
    assert_eq!(sizes(&Measured::default(), &[], 2), [(0, 0), (0, 0)]);
}

#[test]
fn pods_are_named_by_log_directories() {
    for (directory, expected) in [
        ("shop_cart-0_1111-22", "shop/cart-0"),
        ("1111-22", "1111-22"),
        ("_x_y", "_x_y"),
        ("a_b_c_d", "a_b_c_d"),
    ] {
        assert_eq!(places::pod_name(OsStr::new(directory)), expected);
    }
    fn pod(kind: OtherUserKind, name: &str, path: &str) -> PodShare {
        let filesystem = FilesystemIx::from(0);
        PodShare { kind, filesystem, pod: name.into(), path: path.into(), bytes: 1, inodes: 1, is_gone: None }
    }
    let mut pods = [
        pod(OtherUserKind::PodLogs, "shop/cart-0", "/var/log/pods/shop_cart-0_1111-22"),
        pod(OtherUserKind::KubeletVolumes, "1111-22", "/var/lib/kubelet/pods/1111-22"),
        pod(OtherUserKind::KubeletVolumes, "3333-44", "/var/lib/kubelet/pods/3333-44"),
    ];
    places::name_by_uid(&mut pods);
    let names: Vec<_> = pods.iter().map(|pod| pod.pod.as_str()).collect();
    assert_eq!(names, ["shop/cart-0", "shop/cart-0", "3333-44"]);
}

#[test]
fn records_of_another_user_are_recognised() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    for name in ["reserve-fe01", "reserve-", "reserve-old", "dump"] {
        std::fs::write(file(name), "").unwrap();
    }
    assert_eq!(places::records_around(&file("reserve-fe01")), None, "no database is there");
    std::fs::write(file("layersweep.db"), "").unwrap();
    for (name, is_own) in
        [("reserve-fe01", true), ("reserve-", false), ("reserve-old", false), ("dump", false)]
    {
        let expected = is_own.then(|| dir.path().to_path_buf());
        assert_eq!(places::records_around(&file(name)), expected, "{name}");
    }
}
