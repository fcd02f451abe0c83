//! Each screen of a small saved scan, and the time of a key on a large one.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::app::waste::HiddenInLayer;
use crate::cli::explore::rows::rows_of_directory;
use crate::cli::explore::state::{DeletionProgress, Job};
use crate::model::space::BytesAndInodes;
use crate::stores::other_usage::SizedEntry;

const MIB: u64 = 1 << 20;

const LOOK: Look = Look { unicode: true, colour: false };

fn image(name: &str, sizes: [u64; 3], more: &str) -> String {
    let [fair, exclusive, frees] = sizes.map(|mebibytes| mebibytes * MIB);
    format!(
        r#"{{"id":"id-{name}","store":"/data/store","names":["quay.io/shop/{name}:1"],"in_use":false,"pinned":false,
            "total_bytes":{fair},"exclusive_bytes":{exclusive},"fair_bytes":{fair},"frees_bytes":{frees},
            "first_detected":"2026-11-27T10:00:00Z"{more}}}"#
    )
}

fn layer(id: &str, parent: &str, images: &[&str], mebibytes: u64, more: &str) -> String {
    let images: Vec<_> = images.iter().map(|name| format!("\"id-{name}\"")).collect();
    format!(
        r#"{{"id":"{id}","store":"/data/store","kind":"layer","refcount":{},"images":[{}],"parent":{parent},
            "path":"/data/store/overlay/{id}","inodes":100,"bytes":{}{more}}}"#,
        images.len(),
        images.join(","),
        mebibytes * MIB
    )
}

/// Returns a document with one filesystem of 1 GiB, of which 600 MiB are used.
fn document(images: &[String], layers: &[String], containers: &str) -> String {
    format!(
        r#"{{"schema_version":1,"kind":"scan","generated_at":"2026-11-28T10:00:00Z","complete":true,"node":"node-7",
            "filesystems":[{{"mount":"/data","fstype":"xfs","capacity_bytes":{},"used_bytes":{},"available_bytes":{},
            "inodes":0,"inodes_free":0}}],"images":[{}],"layers":[{}],"containers":[{containers}],"leaks":[],
            "stores":[{{"kind":"containers-storage","root":"/data/store","driver":"overlay","filesystem":"/data",
            "reclaimable_bytes":0,"bytes":{{"images":0,"containers":0,"build_cache":0,"leaks":0,"metadata":{MIB},
            "other":0}}}}],"totals":{{"images":0,"images_unused":0,"containers":0,"leaks":0,"bytes":0,
            "reclaimable_bytes":0}}}}"#,
        1024 * MIB,
        600 * MIB,
        424 * MIB,
        images.join(","),
        layers.join(",")
    )
}

/// Two shops on one base, and a database that a container uses.
fn shop() -> ExploreView {
    let used = r#","used_by":[{"kind":"container","name":"keeper"}]"#;
    let images =
        [image("web", [70, 50, 50], ""), image("api", [60, 40, 40], ""), image("db", [200, 200, 200], used)];
    let layers = [
        layer("base0000", "null", &["web", "api"], 40, ""),
        layer("web00000", "\"base0000\"", &["web"], 50, ""),
        layer("api00000", "\"base0000\"", &["api"], 40, ""),
        layer("db000000", "null", &["db"], 200, r#","containers":["c0"]"#),
        layer("run00000", "\"db000000\"", &[], 5, r#","read_write":true,"containers":["c0"]"#),
    ];
    let container = format!(
        r#"{{"id":"c0","store":"/data/store","name":"keeper","image_id":"id-db","owner":"podman","state":"running",
            "bytes":{}}}"#,
        5 * MIB
    );
    let mut view = ExploreView::new(None);
    view.set_facts(Explored::saved(document(&images, &layers, &container).as_bytes()).unwrap());
    view
}

/// Types characters, and `\r`, `\t` and Escape (`^`) as their keys.
fn keys(view: &mut ExploreView, keys: &str) -> Option<Job> {
    let mut job = None;
    for typed in keys.chars() {
        let code = match typed {
            '\r' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '^' => KeyCode::Esc,
            typed => KeyCode::Char(typed),
        };
        job = view.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    job
}

/// Returns the screen, each line without the spaces at its end.
fn screen(view: &mut ExploreView, look: Look, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, look, None)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut lines = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        writeln!(lines, "{}", line.trim_end()).unwrap();
    }
    lines
}

/// Compares a screen of 80 by 24 without its empty lines.
#[track_caller]
fn shows(view: &mut ExploreView, expected: &str) {
    compare(&screen(view, LOOK, 80, 24), expected);
}

#[track_caller]
fn compare(screen: &str, expected: &str) {
    let lines: Vec<_> = screen.lines().filter(|line| !line.is_empty()).collect();
    let expected: Vec<_> = expected.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, expected, "\n{}", lines.join("\n"));
}

#[test]
fn disks_and_usage_are_drawn() {
    let mut view = shop();
    shows(
        &mut view,
        "
filesystems of node-7 › /data
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
   264.0 MiB  █████·······  everythi…se, and overhead  a saved report divides it
   200.0 MiB  ████········  Images in use                                      1
   130.0 MiB  ██··········  Images not in use                                  2
     5.0 MiB  ············  Containers running                                 1
     1.0 MiB  ············  Store metadata
   335.0 MiB                All layers of /data/store                   overlaps
   330.0 MiB                All images                                  overlaps
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "h");
    shows(
        &mut view,
        "
filesystems of node-7
saved 2026-11-28 10:00 UTC
        SIZE                NAME    (by size)
   600.0 MiB                /data                               58.6% of 1.0 GiB
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "?");
    shows(
        &mut view,
        "
Keys
saved 2026-11-28 10:00 UTC
j k, arrows    down, up            g G, Home End   first, last row
Enter, l       into the row        h, Esc          back
Space          mark the image      a               mark all shown, or none
s              sort by size, exclusive, frees, age
n              sort by name        /               show only rows with this text
i              explain the row     w               wasted bytes of the image
Tab            the marked images   E               list them for rm --file
D              in the marked pane: delete them, after a typed yes
r              scan again          q               quit
*              the image is marked
~              layers above this one hide it, or a part of it
FAIR is an image's share: layers are divided equally among all that use them.
EXCLUSIVE is what it alone has, FREES what its deletion alone frees. The line at
the bottom says what all marked images free together.
The same in plain text: layersweep usage
No image is marked.
j k scroll   any other key closes",
    );
}

#[test]
fn marked_images_are_drawn_with_their_sum() {
    let mut view = shop();
    keys(&mut view, "/all im\r\r");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size)
   200.0 MiB  200.0 MiB  200.0 MiB  quay.io/shop/db:1           in use by keeper
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1      never used, here 24h
    60.0 MiB   40.0 MiB   40.0 MiB  quay.io/shop/api:1      never used, here 24h
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "a");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size)
*  200.0 MiB  200.0 MiB  200.0 MiB  quay.io/shop/db:1           in use by keeper
*   70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1      never used, here 24h
*   60.0 MiB   40.0 MiB   40.0 MiB  quay.io/shop/api:1      never used, here 24h
3 images marked free 130.0 MiB, 58.6% to 45.9% of /data
1 stays: quay.io/shop/db:1: in use by keeper
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "/nothing");
    shows(
        &mut view,
        r#"
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size; only "nothing")
no row has this text
3 images marked free 130.0 MiB, 58.6% to 45.9% of /data
1 stays: quay.io/shop/db:1: in use by keeper
/nothing"#,
    );
    keys(&mut view, "^\tD");
    keys(&mut view, "ye");
    shows(
        &mut view,
        "
marked images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
       FREES  IMAGE
*   50.0 MiB  quay.io/shop/web:1
*   40.0 MiB  quay.io/shop/api:1
*      stays  quay.io/shop/db:1: in use by keeper
3 images marked free 130.0 MiB, 58.6% to 45.9% of /data
1 stays: quay.io/shop/db:1: in use by keeper
Delete 2 images, as `layersweep rm` would? Type yes and Enter, or Esc: ye",
    );
    assert!(matches!(keys(&mut view, "s\r"), Some(Job::Delete)));
}

#[test]
fn layers_are_drawn_down_to_hidden_files() {
    let mut view = shop();
    keys(&mut view, "/all la\r\r");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › base layers
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
   200.0 MiB  ██████████··  layer db000000                             held by 2
    40.0 MiB  ██··········  layer base0000                             held by 2
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "h^/all im\r\r/web\r\r");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › images › quay.io/shop/web:1
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
    50.0 MiB  ██████······  layer web00000                             held by 1
    40.0 MiB  █████·······  layer base0000                             held by 2
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "G\r");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › images › quay.io/shop/web:1 › layer base0000
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size)
    40.0 MiB                        its files             /data/s…erlay/base0000
    90.0 MiB                        2 layers on it
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1      never used, here 24h
    60.0 MiB   40.0 MiB   40.0 MiB  quay.io/shop/api:1      never used, here 24h
No image is marked.
its files: /data/store/overlay/base0000
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    assert!(keys(&mut view, "\r").is_none());
    assert!(view.message.starts_with("A saved scan has no directories"), "{}", view.message);
    view.facts.as_mut().unwrap().is_saved = false;
    let Some(Job::Directory(directory)) = keys(&mut view, "\r") else { panic!("a directory to measure") };
    assert_eq!(directory, PathBuf::from("/data/store/overlay/base0000"));
    view.set_directory(&directory, Ok(entries(&directory, &[("diff", true, 40), ("link", false, 0)])));
    let Some(Job::Hidden(scan, layer)) = view.unmarked_layer() else { panic!("a layer to mark") };
    let Some(Job::Directory(directory)) = keys(&mut view, "\r") else { panic!("a directory to measure") };
    let files = [("usr", true, 21), ("old.tar", false, 10), ("app.jar", false, 8), ("notes", false, 1)];
    view.set_directory(&directory, Ok(entries(&directory, &files)));
    assert!(view.unmarked_layer().is_none(), "it is searched once");
    let files = [("usr/bin/a", 20, 2), ("old.tar", 10, 2), ("app.jar", 8, 1)];
    let files = files.map(|(path, mebibytes, viewers)| (path.into(), (mebibytes * MIB, viewers)));
    view.set_hidden(&scan, layer, Ok(HiddenInLayer { viewers: 2, files: files.into(), is_partial: false }));
    shows(
        &mut view,
        "
filesystems › /data › imag…/overlay/base0000 › /data/store/overlay/base0000/diff
58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
~   21.0 MiB  ██████······  usr/                                 20.0 MiB hidden
~   10.0 MiB  ███·········  old.tar                       hidden by upper layers
~    8.0 MiB  ██··········  app.jar                      hidden for 1 of 2 users
     1.0 MiB  ············  notes
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "h");
    shows(
        &mut view,
        "
filesystems › /data › imag…web:1 › layer base0000 › /data/store/overlay/base0000
58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
~   40.0 MiB  ████████████  diff/                                30.0 MiB hidden
         0 B  ············  link
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
}

const STORES: [&str; 3] = ["/data/store", "/data/other", "/data/docker"];

/// Moves a document or a part of it to another store.
fn moved(text: &str, store: &str) -> String {
    text.replace(STORES[0], store)
}

/// One image in three stores, of which only Docker deletes in the last; a second image is in that alone.
fn three_stores() -> ExploreView {
    let (web, api) = (image("web", [70, 50, 50], ""), image("api", [60, 40, 40], ""));
    let of_images =
        [layer("web00000", "null", &["web"], 50, ""), layer("api00000", "null", &["api"], 40, "")];
    let images = [&STORES.map(|store| moved(&web, store))[..], &[moved(&api, STORES[2])]].concat();
    let layers =
        [&STORES.map(|store| moved(&of_images[0], store))[..], &[moved(&of_images[1], STORES[2])]].concat();
    let text = document(&images, &layers, "");
    let (before, rest) = text.split_once(r#""stores":["#).unwrap();
    let (store, after) = rest.split_once("],").unwrap();
    let docker = moved(store, STORES[2]).replace("containers-storage", "docker");
    let stores = [store.to_owned(), moved(store, STORES[1]), docker].join(",");
    let mut view = ExploreView::new(None);
    let text = format!(r#"{before}"stores":[{stores}],{after}"#);
    view.set_facts(Explored::saved(text.as_bytes()).unwrap());
    view
}

#[test]
fn image_of_several_stores_has_its_store() {
    let mut view = three_stores();
    keys(&mut view, "/all im\r\r/web\r");
    shows(
        &mut view,
        r#"
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size; only "web")
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1               /data/store
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1               /data/other
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1              /data/docker
No image is marked.
quay.io/shop/web:1 in /data/store: never used, here 24h
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help"#,
    );
    let wide = screen(&mut view, LOOK, 120, 24);
    assert!(wide.contains("  /data/docker: docker rmi only\n"), "{wide}");
    keys(&mut view, "a\tD");
    shows(
        &mut view,
        "
marked images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
       FREES  IMAGE
*   50.0 MiB  quay.io/shop/web:1 in /data/store
*   50.0 MiB  quay.io/shop/web:1 in /data/other
*      stays  quay.io/shop/web:1 in /data/docker: only `docker rmi` deletes here
3 images marked free 100.0 MiB, 58.6% to 48.8% of /data
1 stays: `docker rmi` frees 50.0 MiB with 1 image
Delete 2 images in 2 stores? Type yes and Enter, or Esc:",
    );
    keys(&mut view, "^ D");
    let question = "Delete 1 image in /data/other? Type yes and Enter, or Esc:";
    let screen = screen(&mut view, LOOK, 80, 24);
    assert!(screen.ends_with(&format!("{question}\n")), "{screen}");
}

#[test]
fn images_of_docker_have_their_own_sum() {
    let mut view = three_stores();
    keys(&mut view, "/all im\r\r/api\r ");
    shows(
        &mut view,
        r#"
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size; only "api")
*   60.0 MiB   40.0 MiB   40.0 MiB  quay.io/shop/api:1           docker rmi only
1 image marked frees 40.0 MiB, by docker rmi only
1 stays: quay.io/shop/api:1: only `docker rmi` deletes here
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help"#,
    );
    assert!(keys(&mut view, "E").is_none());
    assert_eq!(view.message, "No list: `rm` would refuse all of it, only `docker rmi` deletes here.");
    keys(&mut view, "^/web\ra");
    let screen = screen(&mut view, LOOK, 80, 24);
    let sums = "4 images marked free 100.0 MiB, 58.6% to 48.8% of /data\n2 stay: `docker rmi` frees 90.0 MiB with 2 images\n";
    assert!(screen.contains(sums), "{screen}");
    assert!(matches!(keys(&mut view, "E"), Some(Job::Export)));
}

#[test]
fn mounts_and_unread_parts_are_drawn() {
    let mut view = shop();
    view.facts.as_mut().unwrap().is_saved = false;
    keys(&mut view, "/all la\r\r\r");
    let Some(Job::Directory(directory)) = keys(&mut view, "/files\r\r") else { panic!("a directory") };
    let entries = [("merged", 0, false, true), ("diff", 30, true, false), ("work", 1, false, false)];
    let entries = entries.map(|(name, mebibytes, is_partial, is_mount)| SizedEntry {
        name: name.into(),
        is_directory: true,
        size: BytesAndInodes { bytes: mebibytes * MIB, inodes: 5 },
        is_partial,
        is_mount,
    });
    view.set_directory(&directory, Ok(rows_of_directory(&directory, &entries)));
    shows(
        &mut view,
        "
filesystems › /data › base…ayers › layer db000000 › /data/store/overlay/db000000
58.6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
    30.0 MiB  ███████████·  diff/                     or more:…rt cannot be read
     1.0 MiB  ············  work/                                       5 inodes
         0 B  ············  merged                          a mount: not entered
No image is marked.
diff/: or more: a part cannot be read
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
    assert!(keys(&mut view, "G\r").is_none());
    assert_eq!(view.message, "There is nothing below this row.");
}

#[test]
fn fair_shares_that_differ_from_usage_are_explained() {
    let mut view = shop();
    let used = r#","used_by":[{"kind":"external","name":"another store"}]"#;
    let images = [image("web", [70, 50, 50], ""), image("api", [60, 40, 40], used)];
    let layers = [
        layer("base0000", "null", &["web", "api"], 40, ""),
        layer("web00000", "\"base0000\"", &["web"], 50, ""),
        layer("api00000", "\"base0000\"", &["api"], 40, ""),
    ];
    view.set_facts(Explored::saved(document(&images, &layers, "").as_bytes()).unwrap());
    keys(&mut view, "/not in\r\r");
    shows(
        &mut view,
        "
filesystems of node-7 › /data › images not in use
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
50.0 MiB in usage: it counts shared layers in one row only, FAIR divides them
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size)
    70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1      never used, here 24h
No image is marked.
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help",
    );
}

fn entries(directory: &std::path::Path, entries: &[(&str, bool, u64)]) -> Vec<PlaceRow> {
    let entries = entries.iter().map(|(name, is_directory, mebibytes)| SizedEntry {
        name: name.into(),
        is_directory: *is_directory,
        size: BytesAndInodes { bytes: mebibytes * MIB, inodes: 5 },
        is_partial: false,
        is_mount: false,
    });
    rows_of_directory(directory, &entries.collect::<Vec<_>>())
}

#[test]
fn deletion_is_drawn_image_by_image() {
    let mut view = shop();
    keys(&mut view, "/all im\r\ra");
    let mut progress = DeletionProgress::new(&view);
    view.deleting = Some(Arc::new(Mutex::new(DeletionProgress::new(&view))));
    shows(
        &mut view,
        "
deleting
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
Planning: the node is scanned again, and each image is proven to be unused.
····························································
0 B freed, 130.0 MiB predicted; /data 58.6% used
3 images marked free 130.0 MiB, 58.6% to 45.9% of /data
1 stays: quay.io/shop/db:1: in use by keeper
deleting; Ctrl-C stops",
    );
    progress.number = 2;
    progress.freed_bytes = 50 * MIB;
    progress.begun = vec!["quay.io/shop/web:1".into(), "quay.io/shop/api:1".into()];
    progress.disks[0].1 = Some(53.7);
    view.deleting = Some(Arc::new(Mutex::new(progress)));
    shows(
        &mut view,
        "
deleting
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
Image 2 of 2
██████████████████████████████······························
50.0 MiB freed, 130.0 MiB predicted; /data 53.7% used
done  quay.io/shop/web:1
now   quay.io/shop/api:1
3 images marked free 130.0 MiB, 58.6% to 45.9% of /data
1 stays: quay.io/shop/db:1: in use by keeper
deleting; Ctrl-C stops",
    );
    assert!(keys(&mut view, "q").is_none(), "a deletion is not left by a key");
    let suspend = view.key(KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL));
    assert!(matches!(suspend, Some(Job::Suspend)));
    assert!(during_deletion(true).contains("suspends after this deletion"));
    let interrupt = view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(matches!(interrupt, Some(Job::Stop)));
}

#[test]
fn narrow_screen_in_ascii_has_the_same_facts() {
    let mut view = shop();
    let ascii = Look { unicode: false, ..LOOK };
    keys(&mut view, "/all im\r\r ");
    compare(
        &screen(&mut view, ascii, 60, 12),
        "
filesystems of node-7 > /data > images
saved 2026-11-28 10..6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by size)
*  200.0 MiB  200.0 MiB  200.0 MiB  ..hop/db:1  in .. keeper
    70.0 MiB   50.0 MiB   50.0 MiB  ..op/web:1  nev..ere 24h
    60.0 MiB   40.0 MiB   40.0 MiB  ..op/api:1  nev..ere 24h
1 image marked frees nothing
1 stays: quay.io/shop/db:1: in use by keeper
Enter into  h back ..ed  s sort  / filter  i explain  ? help",
    );
    keys(&mut view, "h^g");
    compare(
        &screen(&mut view, ascii, 60, 12),
        "
filesystems of node-7 > /data
saved 2026-11-28 10..6% of 1.0 GiB used, 424.0 MiB available
        SIZE                NAME    (by size)
   264.0 MiB  #####.......  ever..overhead  a sa..divides it
   200.0 MiB  ####........  Images in use                  1
   130.0 MiB  ##..........  Images not in use              2
     5.0 MiB  ............  Containers running             1
     1.0 MiB  ............  Store metadata
   335.0 MiB                All la..of /data/store  overlaps
1 image marked frees nothing
1 stays: quay.io/shop/db:1: in use by keeper
Enter into  h back ..ed  s sort  / filter  i explain  ? help",
    );
}

#[test]
fn colours_only_repeat_signs() {
    let mut view = shop();
    keys(&mut view, "/all im\r\r ");
    let [plain, coloured] = [false, true].map(|colour| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut view, Look { colour, ..LOOK }, None)).unwrap();
        terminal.backend().buffer().clone()
    });
    let symbols = |cells: &[ratatui::buffer::Cell]| {
        cells.iter().map(|cell| cell.symbol().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(symbols(&plain.content), symbols(&coloured.content));
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let used: std::collections::HashSet<_> = coloured.content.iter().map(|cell| cell.fg).collect();
    assert_eq!(used, [Color::Reset, Color::Red, Color::Yellow, Color::Green].into());
}

#[test]
fn new_scan_keeps_the_place() {
    let mut view = shop();
    keys(&mut view, "/all im\r\rnj/quay\r ");
    let again = shop().facts.unwrap();
    assert!(view.set_facts(again).is_none());
    shows(
        &mut view,
        r#"
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by name; only "quay")
    60.0 MiB   40.0 MiB   40.0 MiB  quay.io/shop/api:1      never used, here 24h
   200.0 MiB  200.0 MiB  200.0 MiB  quay.io/shop/db:1           in use by keeper
*   70.0 MiB   50.0 MiB   50.0 MiB  quay.io/shop/web:1      never used, here 24h
1 image marked frees 50.0 MiB, 58.6% to 53.7% of /data
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help"#,
    );
    // A deleted image is left with its layers.
    keys(&mut view, "g\r");
    let images = [image("web", [90, 90, 90], "")];
    let layers =
        [layer("base0000", "null", &["web"], 40, ""), layer("web00000", "\"base0000\"", &["web"], 50, "")];
    view.set_facts(Explored::saved(document(&images, &layers, "").as_bytes()).unwrap());
    shows(
        &mut view,
        r#"
filesystems of node-7 › /data › images
saved 2026-11-28 10:00 UTC; 58.6% of 1.0 GiB used, 424.0 MiB available
        FAIR  EXCLUSIVE      FREES  IMAGE   (by name; only "quay")
*   90.0 MiB   90.0 MiB   90.0 MiB  quay.io/shop/web:1      never used, here 24h
1 image marked frees 90.0 MiB, 58.6% to 49.8% of /data
Enter into  h back  Space mark  Tab marked  s sort  / filter  i explain  ? help"#,
    );
}

/// 10,000 images, of which a hundred each share ten layers.
fn large() -> Explored {
    let name = |position: usize| format!("app-{position}");
    let images: Vec<_> = (0..10_000).map(|position| image(&name(position), [2, 1, 1], "")).collect();
    let mut layers = Vec::new();
    for base in 0..100 {
        let on_base: Vec<_> = (0..100).map(|image| name(base * 100 + image)).collect();
        let on_base: Vec<_> = on_base.iter().map(String::as_str).collect();
        let mut parent = "null".to_owned();
        for step in 0..10 {
            let id = format!("base-{base}-{step}");
            layers.push(layer(&id, &parent, &on_base, 10, ""));
            parent = format!("\"{id}\"");
        }
        layers.extend(on_base.iter().map(|image| layer(&format!("of-{image}"), &parent, &[image], 1, "")));
    }
    Explored::saved(document(&images, &layers, "").as_bytes()).unwrap()
}

/// A person does not notice 50 ms. The limit of the test is that of this build on a busy machine.
#[test]
fn keys_are_answered_at_once_with_10000_images() {
    const LIMIT: Duration = Duration::from_millis(500);
    let mut view = ExploreView::new(None);
    view.set_facts(large());
    let mut slowest = Duration::ZERO;
    for typed in "/all im\r\rjG asssn/app-77^ \tjj j\tajk\r\rhh?^h^/all la\r\rjk\rq".chars() {
        let began = Instant::now();
        keys(&mut view, &typed.to_string());
        screen(&mut view, LOOK, 200, 60);
        let took = began.elapsed();
        println!("{typed:?} {took:?}");
        slowest = slowest.max(took);
    }
    assert!(slowest < LIMIT, "{slowest:?}");
    assert_eq!(view.marked.len(), 10_000);
}
