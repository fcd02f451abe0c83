//! Deletions on a filesystem without a free block, or without a free inode.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

use std::io::Write;
use std::path::Path;

use jiff::SignedDuration;
use layersweep::editor::{Error, Options, OrphanAt, Refusal, ReserveFile};
use layersweep::model::Orphan;
use serde_json::Value;

use crate::support;
use support::archive::{ImageSpec, LayerSpec};
use support::loopfs::{Fs, LoopFs, MIB};
use support::program;
use support::store::{self, Store};
use support::{edit, small};

/// A store with one image of 12 MiB among small ones.
fn store_with_bulk(loopfs: &LoopFs) -> Store {
    let store = small::still(&loopfs.path().join("root"));
    let bulk = LayerSpec { files: vec![12 << 20], ..LayerSpec::new("bulk") };
    store.load(&[ImageSpec { names: vec![small::name("bulk")], layers: vec![bulk], label: "bulk".into() }]);
    store.unmount();
    store
}

fn named(images: &[Value], name: &str) -> Value {
    let name = small::name(name);
    let found = images.iter().find(|image| program::texts(image, "/names").contains(&name));
    found.unwrap().clone()
}

/// Writes until nothing more fits, in ever smaller pieces.
fn fill(loopfs: &LoopFs) {
    fill_at(loopfs.path());
}

fn fill_at(top: &Path) {
    fn sync(top: &Path) -> String {
        store::succeed(std::process::Command::new("sync").arg("-f").arg(top))
    }
    let mut noise = support::archive::Noise::new("filler");
    for (number, size) in [1 << 20, 64 << 10, 4096, 512].into_iter().enumerate() {
        for round in 0.. {
            let path = top.join(format!("filler-{number}-{round}"));
            let Ok(mut file) = std::fs::File::create(path) else { break };
            let block: Vec<u8> = (0..size / 8).flat_map(|_| noise.next().to_le_bytes()).collect();
            let mut written = 0;
            while written < 64 << 20 && file.write_all(&block).is_ok() {
                written += size;
            }
            // Delayed allocation reports the error at the end.
            let synced = file.sync_all().is_ok();
            if written == 0 || !synced {
                break;
            }
        }
        sync(top);
    }
    for number in 0..64 {
        if std::fs::write(top.join(format!("last-{number}")), [7; 3000]).is_err() {
            break;
        }
    }
    sync(top);
}

fn is_full(loopfs: &LoopFs) -> bool {
    let probe = loopfs.path().join("probe");
    let full = std::fs::File::create(&probe)
        .and_then(|mut file| file.write_all(&[1; 8192]).and_then(|()| file.sync_all()))
        .is_err();
    let _ = std::fs::remove_file(probe);
    full
}

/// `gc_direct.rs` empties full disks of all three filesystems with the command.
#[test]
fn image_is_deleted_with_reserve_file() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 96 * MIB);
    let store = store_with_bulk(&loopfs);
    let state = tempfile::tempdir().unwrap();
    let reserve_file = ReserveFile::of_store(&edit::places(&store), state.path()).unwrap();
    assert_eq!(reserve_file.len(), 1);
    assert!(reserve_file[0].path().starts_with(store.root()), "beside the records: {reserve_file:?}");
    assert!(reserve_file[0].prepare().unwrap());
    let orphan = orphan(&store);
    let bulk = named(&store.images(), "bulk");
    // A file of a killed process: it is empty, and its removal is not part of a deletion.
    let left = store.root().join("overlay-images/.tmp-images.json123");
    std::fs::write(&left, []).unwrap();
    fill(&loopfs);
    println!("{} bytes free", free(loopfs.path()));
    assert!(is_full(&loopfs), "{} bytes free", free(loopfs.path()));
    // Without the reserve file, an image that frees no space is refused with a reason, and nothing is changed.
    let other = named(&store.images(), "other");
    let editor = edit::with(&store, Options::default());
    let error = editor.delete_image(&edit::planned(&other)).unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::MakesNoRoom { .. })), "{error}");
    assert!(!left.exists());
    assert_eq!(store.images().len(), 6);
    let editor = edit::with(&store, Options { reserve_files: reserve_file.clone(), ..Options::default() });
    let deleted = edit::delete(&editor, &bulk);
    assert!(deleted.reserve_file_released, "{deleted:?}");
    loopfs.sync();
    println!("{} bytes free afterwards, {deleted:?}", free(loopfs.path()));
    assert!(free(loopfs.path()) > 10 << 20);
    let kind = Orphan::LayerDirectory;
    edit::reclaim(&editor, &OrphanAt { kind, path: orphan }, SignedDuration::ZERO).unwrap();
    assert_eq!(edit::podman_ids(&store), edit::whole(&store));
    store.podman(["create", "--name", "after", "--network", "none", &small::name("b"), "/x"]);
    store.podman(["rm", "after"]);
    store.unmount();
    edit::whole(&store);
}

fn free(path: &Path) -> u64 {
    let facts = nix::sys::statvfs::statvfs(path).unwrap();
    facts.blocks_available() * facts.fragment_size()
}

fn orphan(store: &Store) -> std::path::PathBuf {
    let orphan = store.root().join("overlay").join("0b".repeat(32));
    std::fs::create_dir_all(orphan.join("diff")).unwrap();
    std::fs::write(orphan.join("diff/file"), [9; 20000]).unwrap();
    orphan
}

#[test]
fn orphan_is_deleted_without_reserve_file() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = store_with_bulk(&loopfs);
    let path = orphan(&store);
    fill(&loopfs);
    assert!(is_full(&loopfs));
    let kind = Orphan::LayerDirectory;
    let done = edit::reclaim(&edit::editor(&store), &OrphanAt { kind, path }, SignedDuration::ZERO).unwrap();
    assert!(done.in_place);
    edit::whole(&store);
}

/// The disk runs full between the deletion of the image's record and of its layers: the layers make the room. Layers
/// that are already in the trash are deleted by the next run.
#[test]
fn disk_that_fills_during_deletion_is_emptied() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Ext4, 64 * MIB);
    let store = store_with_bulk(&loopfs);
    for (step, ends) in [("image directory removed", true), ("layer data removed", false)] {
        let top = loopfs.path().to_path_buf();
        let editor = edit::with(
            &store,
            Options {
                on_step: Some(Box::new(move |name: &'static str| {
                    if name == step {
                        fill_at(&top);
                    }
                })),
                ..Options::default()
            },
        );
        let planned = named(&store.images(), "bulk");
        let begun = edit::begun(&store, &planned);
        let result = editor.delete_image(&edit::planned(&planned));
        let resumed = || {
            for entry in std::fs::read_dir(loopfs.path()).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    std::fs::remove_file(path).unwrap();
                }
            }
            edit::with(&store, Options::default())
                .resume(std::slice::from_ref(&begun), &|_, _, _| false)
                .unwrap()
        };
        if ends {
            let done = result.unwrap();
            assert_eq!((done.images.len(), done.layers.len(), done.in_place), (1, 1, true), "{step}");
            assert!(resumed().layers.is_empty(), "{step}");
        } else {
            let error = result.unwrap_err();
            assert!(error.is_no_space(), "{step}: {error}");
            let Error::Stopped { done, .. } = &error else { panic!("{error}") };
            assert_eq!((done.images.len(), done.layers.len()), (1, 0), "{step}");
            assert_eq!(resumed().layers.len(), 1, "{step}");
        }
        edit::whole(&store);
        let again = LayerSpec { files: vec![12 << 20], ..LayerSpec::new("bulk") };
        store.load(&[ImageSpec {
            names: vec![small::name("bulk")],
            layers: vec![again],
            label: "bulk".into(),
        }]);
        store.unmount();
    }
}

#[test]
fn ext4_without_inodes() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 96 * MIB, &["-N", "1500"], &[]);
    let store = store_with_bulk(&loopfs);
    let state = tempfile::tempdir().unwrap();
    let reserve_file = ReserveFile::of_store(&edit::places(&store), state.path()).unwrap();
    assert!(reserve_file[0].prepare().unwrap());
    let bulk = named(&store.images(), "bulk");
    for number in 0.. {
        if std::fs::File::create(loopfs.path().join(format!("inode-{number}"))).is_err() {
            break;
        }
    }
    let editor = edit::with(&store, Options { reserve_files: reserve_file, ..Options::default() });
    assert!(edit::delete(&editor, &bulk).reserve_file_released);
    edit::whole(&store);
}
