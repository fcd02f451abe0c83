//! Files that change while they are read, and files that break the format.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use super::super::BoltError;
use super::build::{Builder, Value, sample};
use super::*;

const BUILDER: Builder = Builder { page_size: 4096, fanout: 3 };

/// A file that changes while it is copied: right before each of the next `changes` reads of the whole file, a
/// transaction is committed. Reads of a meta page alone (at most 100 bytes) change nothing.
struct Changing {
    now: RefCell<Vec<u8>>,
    txid: Cell<u64>,
    changes: Cell<u32>,
}

impl PageSource for Changing {
    fn length(&self) -> io::Result<u64> {
        Still(&self.now.borrow()).length()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let pages = into.len() > 100;
        if pages && self.changes.get() > 0 {
            self.changes.set(self.changes.get() - 1);
            self.txid.set(self.txid.get() + 1);
            commit(&mut self.now.borrow_mut(), self.txid.get());
        }
        Still(&self.now.borrow()).read_at(offset, into)
    }
}

/// Simulates a commit: overwrites the older meta page with a new transaction id, and keeps that page's root. No other
/// page changes.
fn commit(file: &mut [u8], txid: u64) {
    let high_water = (file.len() / 4096) as u64;
    let root = u64::from_le_bytes(file[32..40].try_into().expect("8 bytes"));
    let newest = u64::from_le_bytes(file[4096 + 32..4096 + 40].try_into().expect("8 bytes"));
    BUILDER.meta(file, txid, if txid.is_multiple_of(2) { root } else { newest }, high_water);
}

fn changing(changes: u32) -> Changing {
    Changing { now: RefCell::new(BUILDER.file(&sample())), txid: Cell::new(7), changes: Cell::new(changes) }
}

#[test]
fn commit_during_copy_restarts_it() {
    let source = changing(3);
    let database = BoltDatabase::read_from(&source, &Limits::default()).expect("reads");
    assert_eq!(database.txid(), 10, "the transaction after the last commit");
    assert_eq!(source.changes.get(), 0);
}

#[test]
fn endless_writer_makes_read_fail() {
    let limits = Limits { attempts: 5, ..Limits::default() };
    match BoltDatabase::read_from(&changing(u32::MAX), &limits) {
        Err(BoltError::Busy { attempts: 5 }) => {}
        other => panic!("{other:?}"),
    }
    let limits = Limits { patience: Duration::ZERO, ..Limits::default() };
    match BoltDatabase::read_from(&changing(u32::MAX), &limits) {
        Err(BoltError::Busy { attempts: 1 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn unusable_files_are_refused() {
    let good = BUILDER.file(&sample());
    let limits = Limits { bytes: 8192, ..Limits::default() };
    let table: Vec<(&str, &[u8], Limits)> = vec![
        (
            "not a bolt database: neither of its first two pages is a meta page (it is too short)",
            &[],
            Limits::default(),
        ),
        (
            "not a bolt database: neither of its first two pages is a meta page (wrong magic number)",
            &[b'x'; 5000],
            Limits::default(),
        ),
        ("truncated: 8192 bytes, at least ", &good[..8192], Limits::default()),
        ("too large: ", &good, limits),
    ];
    for (message, bytes, limits) in table {
        let error = BoltDatabase::read_from(&Still(bytes), &limits).expect_err(message);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[test]
fn damaged_trees_are_refused() {
    // Four keys on two leaves: the second transaction's pages are 5 and 6, its root 7.
    let values = ["a", "b", "c", "d"].map(|key| (key.as_bytes().to_vec(), Value::Bytes(vec![1])));
    let file = BUILDER.file(&values.into());
    let table: &[(&str, usize, u8)] = &[
        ("page 5: its header has another page number", 5 * 4096, 9),
        ("page 5: it is neither a branch nor a leaf", 5 * 4096 + 8, 16),
        ("page 5: it has more elements than fit", 5 * 4096 + 11, 2),
        ("page 5: it extends past the end of the file", 5 * 4096 + 12, 7),
        ("page 5: two elements overlap", element(5, 0) + 4, 46),
        ("page 5: an element points outside the page", element(5, 2) + 13, 16),
        ("page 5: keys do not ascend", element(5, 2) + 32 - 16 + 2, b'a'),
        ("page 7: keys do not ascend", 7 * 4096 + 16 + 32 + 1, b'a'),
        ("page 5: it is used twice", element(7, 1) + 8, 5),
        ("page 9: it is outside the file", element(7, 1) + 8, 9),
        ("page 7: it is an empty branch", 7 * 4096 + 10, 0),
        ("page 5: a bucket is truncated", element(5, 0), 1),
        ("page 6: a key is outside its branch", element(6, 0) + 16, b'c'),
    ];
    for &(message, offset, byte) in table {
        let mut broken = file.clone();
        broken[offset] = byte;
        let error = read(&broken).expect_err(message);
        assert_eq!(error.to_string(), format!("damaged: {message}"));
    }
}

/// Offset of an element in a file of 4 KiB pages.
fn element(page: usize, index: usize) -> usize {
    page * 4096 + 16 + index * 16
}

#[test]
fn bucket_in_inline_bucket_is_refused() {
    let inner = Value::Bucket([(b"x".to_vec(), Value::Bucket([].into(), true))].into(), true);
    let file = BUILDER.file(&[(b"outer".to_vec(), inner)].into());
    let error = read(&file).expect_err("refused");
    assert_eq!(error.to_string(), "damaged: page 3: an inline bucket contains a bucket");
}

#[test]
fn too_deep_tree_is_refused() {
    let mut tree = [].into();
    for _ in 0..70 {
        tree = [(b"deeper".to_vec(), Value::Bucket(tree, false))].into();
    }
    let error = read(&BUILDER.file(&tree)).expect_err("refused");
    assert!(error.to_string().contains("the tree is too deep"), "{error}");
}

#[test]
fn reading_is_reused_until_a_commit() {
    let source = changing(0);
    let first = Arc::new(BoltDatabase::read_from(&source, &Limits::default()).expect("reads"));
    let bytes = first.bytes.as_ptr();
    let again = BoltDatabase::read_again(Arc::clone(&first), &source, &Limits::default()).expect("reads");
    assert!(Arc::ptr_eq(&first, &again));
    commit(&mut source.now.borrow_mut(), 8);
    drop(first);
    let after = BoltDatabase::read_again(again, &source, &Limits::default()).expect("reads");
    assert_eq!(after.txid(), 8, "the transaction after the last commit");
    assert_eq!(after.bytes.as_ptr(), bytes, "in the memory of the one before");
}
