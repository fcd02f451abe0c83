use super::super::runs::{Command, Start};
use super::*;
use jiff::Timestamp;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn queue(dirs: &[&Path]) -> Queue {
    Queue { dirs: dirs.iter().map(|dir| dir.to_path_buf()).collect() }
}

/// A run, by its number.
fn run(number: u32) -> Pending {
    let at = Timestamp::from_second(1_800_000_000 + i64::from(number)).unwrap();
    let start = Start { run_id: format!("{number:05}"), ..Start::of(Command::Gc, at) };
    Pending::Run(Box::new(RunRecord::of(start)))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn items(queue: &Queue) -> Vec<u32> {
    let (waiting, warnings) = queue.all();
    assert_eq!(warnings, []);
    waiting.into_iter().map(|waiting| waiting.item.run_id().parse().unwrap()).collect()
}

#[test]
fn what_is_put_waits_in_order_until_it_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("state/pending"), dir.path().join("run/pending"));
    let both = queue(&[&first, &second]);
    assert!(items(&both).is_empty());
    for item in 0..5 {
        let warnings = both.put(&run(item));
        assert!(matches!(&warnings[..], [SaveWarning::Kept { survives_reboot: true, .. }]), "{warnings:?}");
    }
    assert_eq!(std::fs::metadata(&first).unwrap().mode() & 0o7777, 0o700);
    for name in names(&first) {
        assert_eq!(std::fs::metadata(first.join(name)).unwrap().mode() & 0o7777, 0o600);
    }
    assert_eq!(items(&both), [0, 1, 2, 3, 4]);
    let (waiting, _) = both.all();
    let paths: Vec<_> = waiting.iter().map(|waiting| waiting.path.clone()).collect();
    assert_eq!(both.done(&paths[..2]), []);
    assert_eq!(both.done(&paths[..2]), [], "what is gone is done");
    assert_eq!(items(&both), [2, 3, 4]);
}

#[test]
fn only_what_is_saved_is_removed_and_below_a_file_nothing_waits() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("file/pending");
    std::fs::write(dir.path().join("file"), "no directory").unwrap();
    let (ours, theirs) = (dir.path().join("run/pending/1"), dir.path().join("run/pending/2"));
    let (both, other) = (queue(&[&state, &ours]), queue(&[&state, &theirs]));
    both.put(&run(1));
    both.put(&run(2));
    other.put(&run(3));
    let (waiting, warnings) = both.all();
    assert_eq!((waiting.len(), warnings), (2, vec![]), "below a file nothing waits");
    let paths: Vec<_> = waiting.iter().map(|one| one.path.clone()).collect();
    both.done(&paths[..1]);
    assert_eq!(items(&both), [2], "one waits on");
    both.done(&paths);
    assert!(names(&ours).is_empty());
    assert_eq!(items(&other), [3], "what is another's stays");
}

/// Many runs at once that make the directory and what waits in it lose nothing.
#[test]
fn many_runs_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run/pending/1");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let place = &place;
            let dir = &dir;
            scope.spawn(move || {
                let queue = queue(&[&dir.path().join("none/pending").join("\0"), place]);
                for item in 0..200_u32 {
                    let warnings = queue.put(&run(thread * 1000 + item));
                    let [SaveWarning::Kept { path, .. }] = &warnings[..] else { panic!("{warnings:?}") };
                    queue.done(std::slice::from_ref(path));
                }
            });
        }
    });
    assert!(names(&place).is_empty());
}

#[test]
fn the_next_directory_takes_what_the_first_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("state/pending"), dir.path().join("run/pending"));
    std::fs::create_dir(dir.path().join("state")).unwrap();
    std::fs::write(&first, "a file is in the way").unwrap();
    let both = queue(&[&first, &second]);
    let warnings = both.put(&run(7));
    let [warning @ SaveWarning::Kept { path, survives_reboot: false }] = &warnings[..] else {
        panic!("{warnings:?}")
    };
    assert!(path.starts_with(&second) && warning.to_string().contains("reboot"), "{warning}");
    let (waiting, warnings) = both.all();
    assert_eq!((waiting.len(), &waiting[0].item), (1, &run(7)));
    assert!(matches!(&warnings[..], [SaveWarning::Unreachable { .. }]), "{warnings:?}");
    std::fs::create_dir(dir.path().join("file")).unwrap();
    let nowhere = queue(&[&first]);
    let warnings = nowhere.put(&run(8));
    assert!(warnings[0].to_string().contains("LOST"), "{warnings:?}");
    assert!(queue(&[]).put(&run(8))[0].to_string().contains("LOST"));
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
        let queue = queue(&[&path]);
        let warnings = queue.put(&run(1));
        assert!(matches!(&warnings[..], [SaveWarning::Lost(_)]), "{warnings:?}");
        let (waiting, warnings) = queue.all();
        assert!(
            waiting.is_empty() && matches!(&warnings[..], [SaveWarning::Unreachable { .. }]),
            "{warnings:?}"
        );
    }
    assert_eq!(names(&elsewhere), Vec::<String>::new());
}

#[test]
fn the_oldest_is_dropped_with_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pending");
    let queue = queue(&[&path]);
    let few = |number: u32| queue.put_at_most(&run(number), 3, 100_000);
    for item in 0..3 {
        assert_eq!(few(item).len(), 1);
    }
    assert_eq!(few(2).len(), 1, "in place of what it was before");
    let warnings = few(3);
    assert!(matches!(&warnings[..], [SaveWarning::Dropped(_), SaveWarning::Kept { .. }]), "{warnings:?}");
    assert_eq!(items(&queue), [1, 2, 3]);
    let length = std::fs::metadata(path.join("00003.json")).unwrap().len();
    assert_eq!(queue.put_at_most(&run(4), 10, 3 * length).len(), 2);
    assert_eq!(items(&queue), [2, 3, 4]);
    assert!(matches!(&queue.put_at_most(&run(5), 10, length - 1)[..], [SaveWarning::Lost(_)]));
    assert_eq!(items(&queue), [2, 3, 4], "nothing goes for what cannot be kept anyway");
}

#[test]
fn a_later_state_is_in_one_place() {
    let dir = tempfile::tempdir().unwrap();
    let (state, memory) = (dir.path().join("state"), dir.path().join("run/pending/1"));
    queue(&[&memory]).put(&run(1));
    queue(&[&state, &memory]).put(&run(1));
    assert_eq!(items(&queue(&[&state, &memory])), [1]);
    assert!(names(&memory).is_empty());
}

#[test]
fn what_makes_no_sense_is_kept_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pending");
    let queue = queue(&[&path]);
    queue.put(&run(5));
    std::fs::write(path.join("00001.json"), "{").unwrap();
    std::fs::write(path.join("00002.json"), r#"{"run": 7}"#).unwrap();
    std::fs::write(path.join("00003.json.unfinished"), "{").unwrap();
    let (waiting, warnings) = queue.all();
    assert_eq!(waiting.len(), 1);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in &warnings {
        let SaveWarning::Unreadable { kept, .. } = warning else { panic!("{warning}") };
        assert!(kept.exists());
    }
    assert_eq!(items(&queue), [5]);
    assert!(queue.refuse(&waiting[0], "no such store").to_string().contains("no such store"));
    assert!(items(&queue).is_empty());
    assert_eq!(names(&path).len(), 4, "nothing is removed");
}
