//! The records on faulty filesystems: full, read-only, with a failing disk, and with another process at work. Each
//! test checks what a scan can still do, and that the next one without the fault is recorded.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use layersweep::history::journal::RunRecord;
use layersweep::history::pins;
use layersweep::history::runs::{self, Start};
use layersweep::history::{
    Access, DATABASE, Degraded, Opened, Queue, Records, SaveWarning, Saved, StateDirectory, save,
};
use layersweep::model::{StoreId, StoreKind};
use support::loopfs::{Fs, LoopFs, MIB};
use support::scan_records::{self, Seen, image, scan_at, store};

/// A state directory on a filesystem that will fail, and a queue on another one.
struct Node {
    place: StateDirectory,
    _elsewhere: tempfile::TempDir,
}

impl Node {
    fn on(filesystem: &Path) -> Self {
        let elsewhere = tempfile::tempdir().unwrap();
        let mut place = StateDirectory::local(&filesystem.join("state"));
        place.pending = Some(elsewhere.path().join("pending"));
        Self { place, _elsewhere: elsewhere }
    }

    fn open(&self, access: Access) -> Opened {
        Records::open(&self.place, access, Duration::from_millis(100)).unwrap()
    }

    fn queue(&self) -> Queue {
        Queue::of(&self.place)
    }

    fn save(&self, records: &mut Records, root: &str) -> Saved {
        let seen = seen(root);
        let run_id = seen.record_time.to_string();
        seen.with_run(&run_id, |run| save(records, &self.queue(), run).unwrap())
    }

    /// A run without a fault: saves `root` and checks that there was no problem.
    fn good_run(&self, root: &str, caught_up: usize) {
        let mut opened = self.open(Access::Write);
        assert_eq!(opened.degraded, []);
        let saved = self.save(&mut opened.records, root);
        assert!(saved.recorded.is_some() && saved.warnings.is_empty(), "{saved:?}");
        assert_eq!(saved.caught_up, caught_up);
    }

    fn stores(&self) -> Vec<String> {
        roots(&self.open(Access::Read).records)
    }

    /// Returns the bytes of all files in the state directory except locks.
    fn bytes(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = std::fs::read_dir(&self.place.dir).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.is_file() && !path.ends_with("write.lock"));
        files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
    }

    fn database(&self) -> PathBuf {
        self.place.dir.join(DATABASE)
    }
}

/// A scan that found a store at `root`, with an image with a long name. Each scan is later than the previous one.
fn seen(root: &str) -> Seen {
    static SCANS: AtomicI64 = AtomicI64::new(0);
    let number = SCANS.fetch_add(1, Ordering::Relaxed);
    let mut seen = scan_at(number);
    seen.stores[0] = store(&StoreId::new(StoreKind::ContainersStorage, root.into(), "overlay".into()));
    seen.images = vec![image(number.cast_unsigned(), 0)];
    seen.images[0].names = vec!["n".repeat(8000)];
    seen
}

/// A deleting run, for the queue.
fn run(id: &str) -> RunRecord {
    RunRecord::of(Start { run_id: id.into(), ..Start::of(runs::Command::Gc, scan_records::at(0)) })
}

fn run_ids(records: &Records) -> Vec<String> {
    let query = runs::Query { quiet: true, ..runs::Query::default() };
    let (runs, _) = records.read(|connection| runs::list(connection, &query)).unwrap();
    let gc = runs.into_iter().filter(|run| run.start.command == runs::Command::Gc);
    gc.map(|run| run.start.run_id).collect()
}

fn roots(records: &Records) -> Vec<String> {
    records
        .read(|connection: &rusqlite::Connection| {
            let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
            assert_eq!(integrity, "ok");
            connection
                .prepare("SELECT root FROM stores ORDER BY id")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
        .unwrap()
}

fn code(saved: &Saved) -> Vec<&'static str> {
    saved.degraded.iter().map(Degraded::code).collect()
}

/// Writes until the filesystem is full, and returns the file.
fn fill(filesystem: &Path) -> PathBuf {
    let path = filesystem.join("filler");
    let mut file = File::create(&path).unwrap();
    for size in [1 << 20, 4096, 512, 1] {
        let block = vec![0x5a; size];
        while file.write_all(&block).and_then(|()| if size > 1 { Ok(()) } else { file.sync_all() }).is_ok() {}
        let _ = file.sync_all();
    }
    path
}

fn disks() -> impl Iterator<Item = LoopFs> {
    let root = support::require_root();
    Fs::ALL.into_iter().filter(move |fs| root && fs.require()).map(|fs| {
        // A btrfs of this size has no space left for metadata once data has used all of it.
        let flags: &[&str] = if fs == Fs::Btrfs { &["--mixed"] } else { &[] };
        LoopFs::with(fs, 16 * MIB, flags, &[])
    })
}

#[test]
fn scan_on_full_disk_is_not_recorded() {
    for disk in disks() {
        let fs = disk.fs();
        let node = Node::on(disk.path());
        node.good_run("/before", 0);
        let filler = fill(disk.path());
        let database = std::fs::read(node.database()).unwrap();

        let reader = node.open(Access::Read);
        assert!(reader.found && reader.degraded.is_empty(), "{fs:?}: reading needs no space");
        assert_eq!(roots(&reader.records), ["/before"]);

        // More than the space that a full filesystem still finds: dozens of pages.
        let mut opened = node.open(Access::Write);
        let mut unrecorded = Vec::new();
        for number in 0..40 {
            let root = format!("/full/{number}");
            let saved = node.save(&mut opened.records, &root);
            if saved.recorded.is_none() {
                unrecorded.push(root);
                if unrecorded.len() == 1 {
                    let all: Vec<_> = opened.degraded.iter().chain(&saved.degraded).collect();
                    assert!(matches!(all[..], [Degraded::DiskFull { .. }]), "{fs:?}: {all:?}");
                }
                assert_eq!(saved.warnings, []);
            }
        }
        assert!(unrecorded.len() > 20, "{fs:?}: only {} of 40 did not fit", unrecorded.len());
        assert!(!opened.records.is_kept());
        assert_eq!(roots(&opened.records).len(), 41, "{fs:?}: this run knows them all the same");
        drop(opened);
        assert!(std::fs::read(node.database()).unwrap().len() >= database.len());

        std::fs::remove_file(filler).unwrap();
        disk.remount(); // btrfs frees space late
        node.good_run("/after", 0);
        let mut expected = vec!["/before".to_owned()];
        expected.extend((0..40).map(|number| format!("/full/{number}")));
        expected.retain(|root| !unrecorded.contains(root));
        expected.push("/after".to_owned());
        assert_eq!(node.stores(), expected, "{fs:?}: what fitted, once, in order");
    }
}

#[test]
fn full_disk_gets_no_partial_database() {
    for disk in disks() {
        let node = Node::on(disk.path());
        std::fs::create_dir(&node.place.dir).unwrap();
        let filler = fill(disk.path());
        let mut opened = node.open(Access::Write);
        assert!(!opened.found);
        let saved = node.save(&mut opened.records, "/first");
        assert!(saved.recorded.is_none(), "{:?}", disk.fs());
        let codes: Vec<_> = opened.degraded.iter().chain(&saved.degraded).map(Degraded::code).collect();
        assert_eq!(codes, ["disk-full"], "{:?}", disk.fs());
        assert_eq!(roots(&opened.records), ["/first"]);
        drop(opened);
        assert!(node.bytes().is_empty(), "{:?}", node.bytes().keys());
        std::fs::remove_file(filler).unwrap();
        disk.remount(); // btrfs frees space late
        node.good_run("/second", 0);
        assert_eq!(node.stores(), ["/second"]);
    }
}

#[test]
fn read_only_database_is_read_with_its_log() {
    for mut disk in disks() {
        let fs = disk.fs();
        let node = Node::on(disk.path());
        node.good_run("/in the file", 0);
        // As after a killed process: some data is only in the log.
        let mut opened = node.open(Access::Write);
        node.save(&mut opened.records, "/in the log");
        let unclosed = node.bytes();
        drop(opened);
        for (path, content) in &unclosed {
            std::fs::write(path, content).unwrap();
        }
        disk.remount_with("ro");
        let mut opened = node.open(Access::Write);
        assert_eq!(opened.degraded.iter().map(Degraded::code).collect::<Vec<_>>(), ["read-only"], "{fs:?}");
        assert_eq!(roots(&opened.records), ["/in the file", "/in the log"]);
        let saved = node.save(&mut opened.records, "/unsaved");
        assert!(saved.recorded.is_none(), "{saved:?}");
        assert_eq!(roots(&opened.records).len(), 3);
        assert_eq!(node.stores().len(), 2);
        drop(opened);
        assert!(node.bytes() == unclosed, "{fs:?}");
        disk.remount_with("rw");
        node.good_run("/later", 0);
        assert_eq!(node.stores(), ["/in the file", "/in the log", "/later"]);
    }
}

/// The filesystem shuts down, as after a disk failure in its journal: from then on every call fails with EIO, also on
/// open files.
#[test]
fn shut_down_filesystem_does_not_end_run() {
    if !support::require_root() || !Fs::Xfs.require() || !support::require_program("xfs_io") {
        return;
    }
    let disk = LoopFs::new(Fs::Xfs, 0);
    let node = Node::on(disk.path());
    node.good_run("/before", 0);
    let mut opened = node.open(Access::Write);
    node.save(&mut opened.records, "/while it worked");
    let shutdown = Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(disk.path()).status();
    assert!(shutdown.unwrap().success());

    let saved = node.save(&mut opened.records, "/in the middle");
    assert_eq!(code(&saved)[0], "io-error", "{:?}", saved.degraded);
    drop(opened);
    let mut opened = node.open(Access::Write);
    assert_eq!(opened.degraded.iter().map(Degraded::code).collect::<Vec<_>>(), ["io-error"]);
    assert!(!opened.found);
    let saved = node.save(&mut opened.records, "/after it");
    assert!(saved.recorded.is_none());
    let reader = node.open(Access::Read);
    assert!(matches!(&reader.degraded[..], [Degraded::Io { .. }]), "{:?}", reader.degraded);
    drop((opened, reader));

    disk.remount();
    node.good_run("/mended", 0);
    assert_eq!(node.stores(), ["/before", "/while it worked", "/mended"]);
}

/// A file that cannot be written, not even through open descriptors.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: &Path) -> Self {
        let made = Command::new("chattr").arg("+i").arg(path).status().unwrap();
        assert!(made.success());
        Self(path.to_path_buf())
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Command::new("chattr").arg("-i").arg(&self.0).status().unwrap();
    }
}

/// Unreadable sectors, and no writable one: the image of the loop device is cut below the last part of the database,
/// and is immutable. Reads behind its end then fail with EIO, and so does every write.
#[test]
fn failing_disk_keeps_run_and_database() {
    let programs = ["filefrag", "chattr"];
    if !support::require_root() || !Fs::Ext4.require() || !programs.into_iter().all(support::require_program)
    {
        return;
    }
    let disk = LoopFs::new(Fs::Ext4, 16 * MIB);
    let node = Node::on(disk.path());
    node.good_run("/before", 0);
    disk.sync();
    let layout = Command::new("filefrag").args(["-b512", "-v"]).arg(node.database()).output().unwrap();
    let layout = String::from_utf8(layout.stdout).unwrap();
    let sector = layout
        .lines()
        .filter_map(|line| {
            let mut columns = line.split(':').map(str::trim);
            columns.next()?.parse::<u64>().ok()?; // the extent's number
            columns.nth(1)?.split('.').next()?.parse::<u64>().ok()
        })
        .max()
        .unwrap_or_else(|| panic!("{layout}"));
    let image = File::options().read(true).write(true).open(disk.image()).unwrap();
    disk.remount(); // empties the page cache
    let whole = std::fs::read(disk.image()).unwrap();
    image.set_len(sector * 512).unwrap();
    let immutable = Immutable::new(disk.image());

    let error = std::fs::read(node.database()).err().and_then(|error| error.raw_os_error());
    assert_eq!(error, Some(5), "this is EIO");
    let reader = node.open(Access::Read);
    assert!(matches!(&reader.degraded[..], [Degraded::Io { .. }]), "{:?}", reader.degraded);
    let mut opened = node.open(Access::Write);
    let saved = node.save(&mut opened.records, "/unsaved");
    let codes: Vec<_> = opened.degraded.iter().chain(&saved.degraded).map(Degraded::code).collect();
    assert!(saved.recorded.is_none() && codes.contains(&"io-error"), "{codes:?}");
    drop(opened);
    let names: Vec<_> = node.place.dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let aside = names.iter().any(|name| name.to_string_lossy().contains("corrupt"));
    assert!(!aside, "a disk that fails is no damaged database: {names:?}");

    drop(immutable);
    std::os::unix::fs::FileExt::write_all_at(&image, &whole, 0).unwrap();
    disk.remount();
    node.good_run("/after", 0);
    assert_eq!(node.stores(), ["/before", "/after"]);
}

/// Another process in the middle of a transaction.
struct Other(Child);

impl Other {
    fn writing(dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            // The lock's description has only the start of the command line.
            .arg0("another-process")
            .args(["--exact", "history::records_faults::another_process", "--ignored", "--nocapture"])
            .env("LAYERSWEEP_TEST_STATE_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("in the middle")), "it writes");
        Self(child)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "other tests start it as a process of its own"]
fn another_process() {
    let Some(dir) = std::env::var_os("LAYERSWEEP_TEST_STATE_DIR") else {
        return;
    };
    let mut records = scan_records::open(Path::new(&dir));
    let written = records.write(|transaction| {
        transaction.execute("DELETE FROM stores", [])?;
        println!("in the middle");
        let _ = std::io::stdin().read_line(&mut String::new());
        Ok(())
    });
    written.unwrap();
}

#[test]
fn writing_process_blocks_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    node.good_run("/before", 0);
    let other = Other::writing(&node.place.dir);
    let start = Instant::now();
    assert_eq!(node.stores(), ["/before"]);
    let mut opened = node.open(Access::Write);
    assert!((100..2000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    let [Degraded::Locked { holder, .. }] = &opened.degraded[..] else { panic!("{:?}", opened.degraded) };
    assert_eq!(holder.pid, Some(other.0.id()));
    assert!(holder.command.starts_with("another-process "), "{holder}");
    let saved = node.save(&mut opened.records, "/meanwhile");
    assert!(saved.recorded.is_none(), "{saved:?}");
    assert_eq!(roots(&opened.records), ["/before", "/meanwhile"]);
    drop(other);
    node.good_run("/after", 0);
    assert_eq!(node.stores(), ["/after"]);
}

#[test]
fn killed_writer_leaves_no_partial_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    node.good_run("/before", 0);
    let mut other = Other::writing(&node.place.dir);
    other.0.kill().unwrap();
    other.0.wait().unwrap();
    node.good_run("/after", 0);
    assert_eq!(node.stores(), ["/before", "/after"]);
}

#[test]
fn kill_after_commit_saves_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    node.good_run("/before", 0);
    let queue = node.queue();
    queue.put(&run("waiting"));
    let (waiting, _) = queue.all();
    let content = std::fs::read(&waiting[0].path).unwrap();
    node.good_run("/first", 1);
    assert!(!waiting[0].path.exists());
    std::fs::write(&waiting[0].path, content).unwrap();
    node.good_run("/second", 1);
    assert_eq!(node.stores(), ["/before", "/first", "/second"]);
    assert_eq!(run_ids(&node.open(Access::Read).records), ["waiting"]);
    assert!(!waiting[0].path.exists());
}

#[test]
fn refused_rows_do_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    node.good_run("/before", 0);
    let queue = node.queue();
    queue.put(&run("bad"));
    queue.put(&run("good"));
    let mut opened = node.open(Access::Write);
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN NEW.run_id = 'bad'
                   BEGIN SELECT RAISE(ABORT, 'a bad run'); END";
    opened.records.write(|tx| tx.execute_batch(trigger)).unwrap();
    let saved = node.save(&mut opened.records, "/new");
    assert!(saved.recorded.is_some() && saved.caught_up == 1, "{saved:?}");
    let [SaveWarning::Unusable { path, cause }] = &saved.warnings[..] else { panic!("{:?}", saved.warnings) };
    assert!(path.exists() && cause.contains("a bad run"), "{cause}");
    assert_eq!(roots(&opened.records), ["/before", "/new"]);
    assert_eq!(run_ids(&opened.records), ["good"]);
}

/// Damage that is found only while the database is in use.
#[test]
fn damage_during_write_costs_only_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    let mut records = node.open(Access::Write).records;
    let pattern = pins::parse("quay.io/kept").unwrap();
    records.write(|tx| pins::add(tx, &pattern, None, jiff::Timestamp::now())).unwrap();
    drop(records);
    for number in 0..300 {
        node.good_run(&format!("/{number}"), 0);
    }
    let length = std::fs::metadata(node.database()).unwrap().len();
    let file = File::options().write(true).open(node.database()).unwrap();
    // The whole second half, with the last pages of the table and of its index.
    let rubbish = vec![0xa5; usize::try_from(length / 2).unwrap() / 4096 * 4096];
    std::os::unix::fs::FileExt::write_all_at(&file, &rubbish, length - rubbish.len() as u64).unwrap();
    let mut opened = node.open(Access::Write);
    let saved = node.save(&mut opened.records, "/new");
    assert!(saved.recorded.is_some(), "{saved:?}");
    let all: Vec<_> = opened.degraded.iter().chain(&saved.degraded).collect();
    let [Degraded::Corrupt { quarantined: Some(aside), keep_list_lost, .. }] = all[..] else {
        panic!("{all:?}")
    };
    assert_eq!(std::fs::metadata(aside).unwrap().len(), length);
    assert_eq!(roots(&opened.records), ["/new"]);
    let pins = opened.records.read(pins::list).unwrap();
    let kept: Vec<_> = pins.iter().map(|pin| pin.pattern.as_str()).collect();
    assert_eq!(kept, if *keep_list_lost { ["*"] } else { ["quay.io/kept"] });
}

#[test]
fn scan_without_permission_is_not_recorded() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::on(dir.path());
    node.good_run("/before", 0);
    let user = 54321;
    let before = node.bytes();
    let codes = |mode: u32, access: Access| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&node.place.dir, PermissionsExt::from_mode(mode)).unwrap();
        std::fs::set_permissions(node.database(), PermissionsExt::from_mode(0o644)).unwrap();
        // Only this thread changes its user.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let id = rustix::thread::Uid::from_raw(user);
                    rustix::thread::set_thread_res_uid(None, Some(id), None).unwrap();
                    let mut opened = node.open(access);
                    let saved = node.save(&mut opened.records, "/user");
                    assert!(saved.recorded.is_none(), "{saved:?}");
                    let codes: Vec<_> = opened.degraded.iter().map(Degraded::code).collect();
                    (codes, opened.found)
                })
                .join()
                .unwrap()
        })
    };
    assert_eq!(codes(0o700, Access::Read), (vec!["not-readable"], false));
    assert_eq!(codes(0o700, Access::Write), (vec!["not-writable", "not-readable"], false));
    assert_eq!(codes(0o755, Access::Read), (vec![], true));
    assert_eq!(codes(0o755, Access::Write), (vec!["not-writable"], true));
    assert!(node.bytes() == before);
}

/// A foreign disk: no byte and no time on it changes.
#[test]
fn foreign_disk_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::on(dir.path());
    node.good_run("/before", 0);
    node.place.foreign = true;
    fn times(node: &Node) -> Vec<(PathBuf, i64, i64, i64, i64, i64)> {
        let inside = node.place.dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
        inside
            .chain([node.place.dir.clone()])
            .map(|path| {
                let facts = std::fs::symlink_metadata(&path).unwrap();
                (
                    path,
                    facts.atime(),
                    facts.atime_nsec(),
                    facts.ctime(),
                    facts.ctime_nsec(),
                    facts.mtime_nsec(),
                )
            })
            .collect::<Vec<_>>()
    }
    let before = times(&node);
    for access in [Access::Read, Access::Write] {
        let opened = node.open(access);
        assert!(opened.found && opened.degraded.is_empty() && !opened.records.is_kept());
        assert_eq!(roots(&opened.records), ["/before"]);
    }
    assert_eq!(times(&node), before);
}
