use super::super::lock::{LockError, RunLock};
use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn spool(dirs: &[&Path]) -> Spool {
    Spool::new(dirs.iter().map(|dir| dir.to_path_buf()).collect())
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn items(spool: &Spool) -> Vec<u32> {
    let (waiting, notes) = spool.take_all::<u32>();
    assert_eq!(notes, []);
    waiting.into_iter().map(|waiting| waiting.item).collect()
}

#[test]
fn what_is_put_waits_in_order_until_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("state/unsaved"), dir.path().join("run/unsaved"));
    let both = spool(&[&first, &second]);
    assert!(items(&both).is_empty());
    for item in 0..5 {
        let notes = both.put(&item);
        assert!(matches!(&notes[..], [Note::Kept { survives_reboot: true, .. }]), "{notes:?}");
    }
    assert_eq!(std::fs::metadata(&first).unwrap().mode() & 0o7777, 0o700);
    for name in names(&first) {
        assert_eq!(std::fs::metadata(first.join(name)).unwrap().mode() & 0o7777, 0o600);
    }
    assert_eq!(items(&both), [0, 1, 2, 3, 4]);
    let (waiting, _) = both.take_all::<u32>();
    let paths: Vec<_> = waiting.iter().map(|waiting| waiting.path.clone()).collect();
    assert_eq!(both.done(&paths[..2]), []);
    assert_eq!(both.done(&paths[..2]), [], "what is gone is done");
    assert_eq!(items(&both), [2, 3, 4]);
}

#[test]
fn nothing_empty_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("file/unsaved");
    std::fs::write(dir.path().join("file"), "no directory").unwrap();
    let (ours, theirs) = (dir.path().join("run/unsaved/1"), dir.path().join("run/unsaved/2"));
    let (both, other) = (spool(&[&state, &ours]), spool(&[&state, &theirs]));
    both.put(&1);
    both.put(&2);
    other.put(&3);
    let (waiting, notes) = both.take_all::<u32>();
    assert_eq!((waiting.len(), notes), (2, vec![]), "below a file nothing waits");
    let paths: Vec<_> = waiting.iter().map(|one| one.path.clone()).collect();
    both.done(&paths[..1]);
    assert_eq!(items(&both), [2], "one waits on");
    both.done(&paths);
    assert!(!ours.exists() && theirs.exists(), "what is another's stays");
    let (waiting, _) = other.take_all::<u32>();
    other.done(&[waiting[0].path.clone()]);
    assert!(dir.path().join("run").exists() && !dir.path().join("run/unsaved").exists());
    both.put(&4);
    assert_eq!(items(&both), [4], "made anew");
    // A run holds it as its lock; on a full disk without a file in it.
    let lock = RunLock::acquire(&ours).unwrap();
    std::fs::remove_file(ours.join("run.lock")).unwrap();
    let (waiting, _) = both.take_all::<u32>();
    let paths = [waiting[0].path.clone()];
    both.done(&paths);
    assert!(names(&ours).is_empty());
    assert!(RunLock::acquire(&ours).is_err(), "held");
    drop(lock);
    both.done(&paths);
    assert!(!ours.exists());
}

/// A directory that is the lock of a run is never one of two, however often it is removed.
#[test]
fn one_run_at_a_time_in_a_directory_that_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run/unsaved/1");
    let (inside, taken) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    match RunLock::acquire(&place) {
                        Ok(lock) => {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            taken.fetch_add(1, Ordering::SeqCst);
                            let _ = std::fs::remove_file(place.join("run.lock"));
                            std::thread::yield_now();
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                            drop(lock);
                        }
                        Err(LockError::Held { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    let spool = spool(&[&dir.path().join("none\0"), &place]);
                    spool.done(&[place.join("gone")]);
                }
            });
        }
    });
    assert!(taken.into_inner() > 3);
}

/// Many runs at once that make the directory and remove it again lose nothing.
#[test]
fn directories_that_come_and_go_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run/unsaved/1");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let spool = spool(&[&dir.path().join("none/unsaved").join("\0"), &place]);
                for item in 0..200_u32 {
                    let notes = spool.put(&item);
                    let [Note::Kept { path, .. }] = &notes[..] else { panic!("{notes:?}") };
                    spool.done(std::slice::from_ref(path));
                }
            });
        }
    });
    assert!(!dir.path().join("run/unsaved").exists());
}

#[test]
fn the_next_directory_takes_what_the_first_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("state/unsaved"), dir.path().join("run/unsaved"));
    std::fs::create_dir(dir.path().join("state")).unwrap();
    std::fs::write(&first, "a file is in the way").unwrap();
    let both = spool(&[&first, &second]);
    let notes = both.put(&7);
    let [note @ Note::Kept { path, survives_reboot: false }] = &notes[..] else { panic!("{notes:?}") };
    assert!(path.starts_with(&second) && note.to_string().contains("reboot"), "{note}");
    let (waiting, notes) = both.take_all::<u32>();
    assert_eq!((waiting.len(), waiting[0].item), (1, 7));
    assert!(matches!(&notes[..], [Note::Unreachable { .. }]), "{notes:?}");
    std::fs::create_dir(dir.path().join("file")).unwrap();
    let nowhere = spool(&[&first]);
    let notes = nowhere.put(&8);
    assert!(notes[0].to_string().contains("LOST"), "{notes:?}");
    assert!(spool(&[]).put(&8)[0].to_string().contains("LOST"));
}

#[test]
fn a_directory_that_others_could_have_planted_is_refused() {
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
        let theirs = dir.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12345), None).unwrap();
        refused.push(theirs);
    }
    for path in refused {
        let spool = spool(&[&path]);
        let notes = spool.put(&1);
        assert!(matches!(&notes[..], [Note::Lost(_)]), "{notes:?}");
        let (waiting, notes) = spool.take_all::<u32>();
        assert!(waiting.is_empty() && matches!(&notes[..], [Note::Unreachable { .. }]), "{notes:?}");
    }
    assert_eq!(names(&elsewhere), Vec::<String>::new());
}

#[test]
fn the_oldest_is_dropped_with_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unsaved");
    let few = spool(&[&path]).with_limits(Limits { files: 3, bytes: 1000 });
    for item in 0..3 {
        assert_eq!(few.put(&item).len(), 1);
    }
    let notes = few.put(&3);
    assert!(matches!(&notes[..], [Note::Dropped(_), Note::Kept { .. }]), "{notes:?}");
    assert_eq!(items(&few), [1, 2, 3]);
    let short = spool(&[&path]).with_limits(Limits { files: 10, bytes: 3 });
    assert_eq!(short.put(&4).len(), 2, "one byte each");
    assert_eq!(items(&short), [2, 3, 4]);
    assert!(matches!(&short.put(&12345)[..], [Note::Lost(_)]));
    assert_eq!(items(&short), [2, 3, 4], "nothing goes for what cannot be kept anyway");
}

#[test]
fn what_makes_no_sense_is_kept_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unsaved");
    let spool = spool(&[&path]);
    spool.put(&"text");
    spool.put(&5);
    std::fs::write(path.join("00000000000000000001-1-1.json"), "{").unwrap();
    std::fs::write(path.join("00000000000000000002-1-1.json.unfinished"), "{").unwrap();
    let (waiting, notes) = spool.take_all::<u32>();
    assert_eq!(waiting.len(), 1);
    assert_eq!(notes.len(), 2, "{notes:?}");
    for note in &notes {
        let Note::Unreadable { kept, .. } = note else { panic!("{note}") };
        assert!(kept.exists());
    }
    assert_eq!(items(&spool), [5]);
    assert!(spool.refuse(&waiting[0], "no such store").to_string().contains("no such store"));
    assert!(items(&spool).is_empty());
    assert_eq!(names(&path).len(), 4, "nothing is removed");
}

#[test]
fn a_clock_that_goes_back_does_not_change_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unsaved");
    let spool = spool(&[&path]);
    spool.put(&1);
    let name = names(&path).remove(0);
    let later = Timestamp::now().as_microsecond() + 3_600_000_000;
    std::fs::rename(path.join(name), path.join(format!("{later:020}-1-1.json"))).unwrap();
    spool.put(&2);
    assert_eq!(items(&spool), [1, 2]);
}
