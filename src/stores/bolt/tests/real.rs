//! The databases of three versions of containerd. The expected numbers were produced once by an independent reader (a
//! script that trusts the file). Versions 1.7 and 2.3 write no list of free pages.

use std::fs::File;
use std::path::Path;

use super::*;

/// File, transaction, buckets, values, FNV-1a of the result of [`flatten`].
const FILES: &[(&str, u64, usize, usize, u64)] = &[
    ("1.6.20/root/io.containerd.metadata.v1.bolt/meta.db", 636, 248, 543, 0x1417_ec1a_af60_5b83),
    ("1.7.34/root/io.containerd.metadata.v1.bolt/meta.db", 556, 248, 549, 0x8771_8bcc_02f6_014f),
    ("2.3.4/root/io.containerd.metadata.v1.bolt/meta.db", 655, 268, 599, 0xc159_1ebe_afd4_d22d),
    ("1.6.20/root/io.containerd.snapshotter.v1.native/metadata.db", 15, 10, 54, 0xbe4f_de52_c153_0193),
    ("1.6.20/root/io.containerd.snapshotter.v1.overlayfs/metadata.db", 42, 20, 116, 0x904a_7b7b_129b_389e),
    ("1.7.34/root/io.containerd.snapshotter.v1.native/metadata.db", 15, 10, 54, 0x8d7e_4201_5bd5_b247),
    ("1.7.34/root/io.containerd.snapshotter.v1.overlayfs/metadata.db", 44, 20, 116, 0xa541_e976_2d05_3d53),
    ("2.3.4/root/io.containerd.snapshotter.v1.native/metadata.db", 15, 10, 54, 0x6a76_20b1_eecf_36bb),
    ("2.3.4/root/io.containerd.snapshotter.v1.overlayfs/metadata.db", 44, 29, 141, 0x762e_632f_82c7_6532),
];

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/containerd").join(name)
}

fn count(bucket: &Bucket<'_>) -> (usize, usize) {
    let mut sum = (0, 0);
    for (_, entry) in bucket.entries() {
        match entry {
            BucketEntry::Value(_) => sum.1 += 1,
            BucketEntry::Bucket(inner) => {
                let below = count(&inner);
                sum = (sum.0 + 1 + below.0, sum.1 + below.1);
            }
        }
    }
    sum
}

#[test]
fn databases_match_an_independent_reader() {
    for &(name, txid, buckets, values, hash) in FILES {
        let file = File::open(fixture(name)).expect(name);
        let database = BoltDatabase::read(&file, &Limits::default()).expect(name);
        assert_eq!(database.txid(), txid, "{name}");
        assert_eq!(count(&database.root()), (buckets, values), "{name}");
        assert_eq!(fnv1a(&flatten(&database.root())), hash, "{name}");
        lookups_agree(&database.root());
        let length = file.metadata().expect(name).len();
        assert!(database.used_bytes() <= length, "{name}");
    }
}

/// The tree of the previous transaction is intact, but stale.
#[test]
fn damaged_newest_tree_is_an_error() {
    for (name, txid, ..) in FILES {
        let mut bytes = std::fs::read(fixture(name)).expect(name);
        let root = root_page(&bytes, *txid);
        bytes[root * 4096 + 8] ^= 0xff;
        let error = read(&bytes).expect_err(name);
        assert!(error.to_string().starts_with(&format!("damaged: page {root}: ")), "{name}: {error}");
    }
}

/// Returns the root page of transaction `txid`, in a file with this machine's byte order.
fn root_page(bytes: &[u8], txid: u64) -> usize {
    let offset = (txid % 2) as usize * 4096 + 32;
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes")) as usize
}
