use super::super::runs::{Command, Start};
use super::*;
use jiff::Timestamp;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn queue(dir: &Path) -> Queue {
    Queue { dir: Some(dir.to_path_buf()) }
}

fn run(number: u32) -> RunRecord {
    let started = Timestamp::from_second(1_800_000_000 + i64::from(number)).unwrap();
    RunRecord::of(Start { run_id: format!("{number:05}"), ..Start::of(Command::Gc, started) })
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn runs(queue: &Queue) -> Vec<u32> {
    let (waiting, warnings) = queue.all();
    assert_eq!(warnings, []);
    waiting.into_iter().map(|waiting| waiting.run.start.run_id.parse().unwrap()).collect()
}

#[test]
fn queued_runs_stay_in_order_until_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/pending");
    let queue = queue(&path);
    assert!(runs(&queue).is_empty());
    for number in 0..5 {
        let put = queue.put(&run(number));
        assert!(matches!(&put, SaveWarning::Kept(file) if file.exists()), "{put}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
    for name in names(&path) {
        assert_eq!(std::fs::metadata(path.join(name)).unwrap().mode() & 0o7777, 0o600);
    }
    assert_eq!(runs(&queue), [0, 1, 2, 3, 4]);
    let (waiting, _) = queue.all();
    let paths: Vec<_> = waiting.iter().map(|waiting| waiting.path.clone()).collect();
    assert_eq!(queue.done(&paths[..2]), []);
    assert_eq!(queue.done(&paths[..2]), [], "a missing file is not an error");
    assert_eq!(runs(&queue), [2, 3, 4]);
}

#[test]
fn queue_below_a_file_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "no directory").unwrap();
    let (waiting, warnings) = queue(&dir.path().join("file/pending")).all();
    assert_eq!((waiting.len(), warnings), (0, vec![]));
}

#[test]
fn concurrent_runs_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/pending/1");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let queue = queue(path);
                for number in 0..200_u32 {
                    let put = queue.put(&run(thread * 1000 + number));
                    let SaveWarning::Kept(path) = &put else { panic!("{put}") };
                    queue.done(std::slice::from_ref(path));
                }
            });
        }
    });
    assert!(names(&path).is_empty());
}

#[test]
fn run_without_queue_directory_is_reported_as_lost() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pending");
    std::fs::write(&file, "a file is in the way").unwrap();
    let blocked = queue(&file);
    let (waiting, warnings) = blocked.all();
    assert!(waiting.is_empty() && matches!(&warnings[..], [SaveWarning::Unusable { .. }]), "{warnings:?}");
    for queue in [blocked, Queue { dir: None }] {
        assert!(queue.put(&run(8)).to_string().contains("LOST"));
    }
}

#[test]
fn directory_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let link = dir.path().join("link");
    symlink(&elsewhere, &link).unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let mut refused = vec![link, open];
    if rustix::process::geteuid().is_root() {
        let foreign = dir.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::os::unix::fs::chown(&foreign, Some(12345), None).unwrap();
        refused.push(foreign);
    }
    for path in refused {
        let queue = queue(&path);
        let put = queue.put(&run(1));
        assert!(matches!(put, SaveWarning::Lost(_)), "{put}");
        let (waiting, warnings) = queue.all();
        assert!(
            waiting.is_empty() && matches!(&warnings[..], [SaveWarning::Unusable { .. }]),
            "{warnings:?}"
        );
    }
    assert_eq!(names(&elsewhere), Vec::<String>::new());
}

#[test]
fn full_queue_refuses_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pending");
    let queue = queue(&path);
    for number in [0, 1, 2, 2] {
        let put = queue.put_at_most(&run(number), 3, 100_000);
        assert!(matches!(put, SaveWarning::Kept(_)), "a later state replaces the earlier one: {put}");
    }
    let length = std::fs::metadata(path.join("00002.json")).unwrap().len();
    for (files, bytes) in [(3, 100_000), (10, 4 * length - 1)] {
        let put = queue.put_at_most(&run(3), files, bytes);
        assert!(matches!(&put, SaveWarning::Lost(why) if why.contains("full")), "{put}");
    }
    assert_eq!(runs(&queue), [0, 1, 2]);
}

#[test]
fn every_kind_of_file_fills_the_queue() {
    for name in ["1.uses", "1.json.unreadable", "1.json.unfinished"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pending");
        let queue = queue(&path);
        queue.put(&run(0));
        std::fs::write(path.join(name), vec![b'x'; 100_000]).unwrap();
        for (files, bytes) in [(2, 1_000_000), (10, 100_000)] {
            let put = queue.put_at_most(&run(1), files, bytes);
            assert!(matches!(&put, SaveWarning::Lost(why) if why.contains("full")), "{name}: {put}");
        }
        let put = queue.put_at_most(&run(1), 3, 200_000);
        assert!(matches!(put, SaveWarning::Kept(_)), "{name}: {put}");
    }
}

#[test]
fn unreadable_file_is_kept_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pending");
    let queue = queue(&path);
    queue.put(&run(5));
    std::fs::write(path.join("00001.json"), "{").unwrap();
    std::fs::write(path.join("00002.json"), r#"{"run": 7}"#).unwrap();
    std::fs::write(path.join("00003.json.unfinished"), "{").unwrap();
    let (waiting, warnings) = queue.all();
    assert_eq!(waiting.len(), 1);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in &warnings {
        let SaveWarning::Unusable { path, .. } = warning else { panic!("{warning}") };
        assert!(path.exists() && path.extension().is_some_and(|end| end == "unreadable"), "{warning}");
    }
    assert_eq!(runs(&queue), [5]);
    assert!(queue.refuse(&waiting[0], "no such store").to_string().contains("no such store"));
    assert!(runs(&queue).is_empty());
    assert_eq!(names(&path).len(), 4, "nothing is removed");
}
