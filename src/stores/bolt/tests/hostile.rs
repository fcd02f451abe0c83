//! Random and damaged bytes: reading returns soon and does not panic.

use proptest::prelude::*;

use super::build::{Builder, sample};
use super::*;

/// Reads everything that can be read.
fn survives(bytes: &[u8]) {
    if let Ok(database) = read(bytes) {
        let flat = flatten(&database.root());
        // Nothing is returned twice: a flattened entry adds five bytes to its 16 or more.
        assert!(flat.len() <= bytes.len());
        lookups_agree(&database.root());
    }
}

fn small_file() -> Vec<u8> {
    let builder = Builder { page_size: 1024, fanout: 8 };
    let mut tree = sample();
    tree.remove(b"big".as_slice());
    builder.file(&tree)
}

/// Changes bytes in the headers and elements of pages, and anywhere else.
fn changes(length: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
    let page = 1024;
    let headers = (2..length / page, 0..256_usize).prop_map(move |(id, offset)| id * page + offset);
    let place = prop_oneof![3 => headers, 1 => 0..length];
    prop::collection::vec((place, any::<u8>()), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_do_not_panic(changes in changes(small_file().len())) {
        let mut file = small_file();
        for (offset, byte) in changes {
            file[offset] ^= byte;
        }
        survives(&file);
    }

    #[test]
    fn truncated_file_does_not_panic(length in 0..small_file().len()) {
        survives(&small_file()[..length]);
    }

    #[test]
    fn random_pages_do_not_panic(noise in prop::collection::vec(any::<u8>(), 4096..16_384)) {
        let builder = Builder { page_size: 1024, fanout: 8 };
        let mut file = vec![0; 2048];
        file.extend(noise);
        let pages = (file.len() / 1024) as u64;
        for (id, page) in file.chunks_exact_mut(1024).enumerate().skip(2) {
            page[..8].copy_from_slice(&(id as u64).to_ne_bytes());
            page[8] = 1 + page[8] % 2;
            page[9] = 0;
            page[11] = 0;
            page[12..16].fill(0);
        }
        builder.meta(&mut file, 1, 2, pages);
        builder.meta(&mut file, 2, 3, pages);
        survives(&file);
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..8192)) {
        survives(&bytes);
    }
}

/// Flips single bits of a real file: each tree is refused or read to its end.
#[test]
fn flipped_bits_do_not_panic() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/containerd/2.3.4/root/io.containerd.snapshotter.v1.native/metadata.db"
    );
    let good = std::fs::read(path).expect("fixture");
    for offset in (0..good.len().min(40_960)).step_by(97) {
        let mut broken = good.clone();
        broken[offset] ^= 1 << (offset % 8);
        survives(&broken);
    }
}
