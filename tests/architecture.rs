//! House rules that the compiler does not check: modules import only downwards and files in no circles, files stay
//! small, and no test is forgotten.

#![allow(clippy::unwrap_used)] // a test talks to its reader

#[path = "architecture/house.rs"]
mod house;
#[path = "architecture/words.rs"]
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use house::{House, Tie};
use words::{Habits, Voice};

/// The levels of the modules, from the top: a module imports only from levels below it.
const FLOORS: [&[&str]; 9] = [
    &["cli"],
    &["report"],
    &["app"],
    &["services"],
    &["config", "execute"],
    &["policy", "history", "cri", "editor"],
    &["stores"],
    &["disk", "node"],
    &["model", "sys"],
];

/// True if the level of `module` is above that of `other`; `None` if `module` is unknown.
fn may_know(module: &str, other: &str) -> Option<bool> {
    fn floor(name: &str) -> Option<usize> {
        FLOORS.iter().position(|floor| floor.contains(&name))
    }
    Some(floor(module)? < floor(other).unwrap_or(0))
}

/// The length limit of a source file, in lines.
const LONGEST: usize = 800;

#[test]
fn modules_import_downwards_only() {
    let wrong = upward_imports(&house(true));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A file must not need a file that needs it: shared items belong in a file below both.
#[test]
fn files_import_in_no_circle() {
    let told = circles(&house(false));
    assert!(told.is_empty(), "{} import circles\n{}", told.len(), told.join("\n"));
}

/// The files and folders in a folder import from each other in one direction, and none takes a name from the file above
/// it that only re-exports the name: the file that defines it can be named.
#[test]
fn folders_import_downwards_only() {
    let house = house(false);
    let mut told = circles_of_rooms(&house);
    // The files of this one share documents through the head of their folder.
    let above = house.imports_from_above().into_iter();
    let above = above.filter(|(file, _)| !file.starts_with("report/"));
    told.extend(above.map(|(file, path)| format!("src/{file}: {path} is only re-exported there")));
    assert!(told.is_empty(), "{}", told.join("\n"));
}

/// Code above the stores asks for facts of a kind, never for the kind: adding a kind touches no file there.
#[test]
fn kind_of_store_is_only_named_above() {
    // The name is written to the database and to documents.
    const BY_NAME: [&str; 2] = ["history/values.rs", "report/json/parts.rs"];
    let ties = house(false).ties();
    let asking = ties.iter().filter(|tie| tie.name == "StoreKind");
    let above = asking.filter(|tie| {
        !["stores/", "editor/", "model/store.rs"].iter().any(|below| tie.from.starts_with(below))
    });
    let above: Vec<_> = above.map(|tie| tie.from.as_str()).collect();
    assert_eq!(above, BY_NAME);
}

#[test]
fn planted_circle_of_folders_is_found() {
    let files = [
        ("a/mod.rs", "mod b; mod c; pub mod d; pub use d::Dee;"),
        ("a/b/mod.rs", "pub mod x; pub mod y;"),
        ("a/b/x.rs", "use crate::a::c::See; pub struct Ex;"),
        ("a/b/y.rs", "pub struct Why;"),
        ("a/c.rs", "use super::b::y::Why; use super::Dee; pub struct See;"),
        ("a/d.rs", "pub struct Dee;"),
    ];
    let house = House::read(files, false);
    assert!(circles(&house).is_empty());
    let told = circles_of_rooms(&house);
    assert_eq!(told, ["src/a: 2 rooms:\n  b -> c: See (a/b/x.rs)\n  c -> b: Why (a/c.rs)"]);
    assert_eq!(house.imports_from_above(), [("a/c.rs".to_owned(), "super::Dee".to_owned())]);
}

#[test]
fn every_module_has_a_place() {
    let root = std::fs::read_to_string(manifest_dir().join("src/lib.rs")).unwrap();
    for line in root.lines() {
        let Some(name) = line.strip_prefix("pub mod ").or(line.strip_prefix("mod ")) else {
            continue;
        };
        let name = name.trim_end_matches(';');
        let known = FLOORS.iter().any(|floor| floor.contains(&name));
        assert!(known, "src/lib.rs has `{name}`; say above on which floor it is");
    }
}

#[test]
fn planted_violations_are_found() {
    for (file, text, offence) in [
        ("model/mod.rs", "use crate::sys::Path;", "sys"),
        ("disk/walk.rs", "use crate::{model::Size, report};", "report"),
        ("sys/mod.rs", "fn f() { crate::cli::main(); }", "cli"),
        ("stores/a/b.rs", "use crate::{\n  sys::{a, b::{c}},\n  app::X,\n};", "app"),
        ("disk/mod.rs", "pub use crate :: stores :: units;", "stores"),
        ("disk/mod.rs", "use crate::*;", "*"),
        ("model/refs.rs", "use super::super::disk::Tally;", "disk"),
        ("report/a.rs", "use layersweep::cli::X;", "cli"),
        ("disk/mod.rs", "#[cfg(test)]\nmod tests { use crate::stores::x; }", "stores"),
        ("disk/mod.rs", "fn f() -> u8 { assert_eq!(crate::stores::x(), 1) }", "stores"),
    ] {
        let found = upward_imports(&House::read([(file, text)], true));
        assert_eq!(found.len(), 1, "{file}: {text}: {found:?}");
        assert!(found[0].contains(&format!("`{offence}`")), "{found:?}");
    }
    for (file, text) in [
        ("disk/walk.rs", "use crate::{model::{Size, cli}, sys, disk::x};"),
        ("model/mod.rs", "//! [`crate::report`]\n/* crate::cli */ use crate::model::refs;"),
        ("model/mod.rs", "const S: &str = \"crate::cli\";"),
        ("model/refs/mod.rs", "use super::super::model::Size; use super::Size;"),
        ("disk/mod.rs", "#[cfg(test)]\nuse crate::disk::x;"),
        ("disk/mod.rs", "mod tests { use super::*; }"),
        ("main.rs", "fn main() { layersweep::cli::main() }"),
        ("lib.rs", "pub mod cli;"),
    ] {
        let found = upward_imports(&House::read([(file, text)], true));
        assert!(found.is_empty(), "{file}: {text}: {found:?}");
    }
}

#[test]
fn planted_circles_are_found() {
    const LEAF: (&str, &str) = ("a/leaf.rs", "pub struct Leaf; pub fn grow() {}");
    for (up, down, names) in [
        // A name in an import, and a name in code.
        ("mod b; use b::Bee; pub struct Ay;", "use super::Ay; pub struct Bee;", "Ay Bee"),
        ("mod b; fn f() { b::bee() } pub fn ay() {}", "pub fn bee() { super::ay() }", "ay bee"),
        ("mod b; fn f() { self::b::bee() } pub fn ay() {}", "pub fn bee() { crate::a::ay() }", "ay bee"),
        (
            "use crate::a::{b::{self, Bee}, leaf}; pub enum Ay { A }",
            "use crate::{a::{Ay as A}}; pub enum Bee {}",
            "Ay Bee",
        ),
        // Through a re-export, which is a tie only by its use.
        ("mod b; pub use b::Bee; pub struct Ay(Bee);", "use super::Ay; pub struct Bee;", "Ay Bee"),
        ("pub mod b; use crate::c::Bee; pub struct Ay;", "use super::*; pub struct Bee(Ay);", "Ay Bee"),
        // In the arguments of a macro, and in the definitions of a macro.
        ("mod b; made! { pub struct Ay; }", "pub fn bee() { vec![super::Ay] } use super::b;", ""),
        (
            "mod b; made! { pub struct Ay; } const B: u8 = b::BEE;",
            "fn f() { vec![super::Ay] } pub const BEE: u8 = 1;",
            "Ay BEE",
        ),
        // No circle: a declaration, a leaf that both need, tests, words in comments and texts.
        ("pub mod b; pub use b::Bee; pub struct Ay;", "use super::Ay; pub struct Bee;", ""),
        (
            "pub mod b; pub use b::{Bee, leaf::{Leaf as L}}; pub struct Ay;",
            "pub use super::leaf; use super::Ay; pub struct Bee;",
            "",
        ),
        (
            "mod b; pub use leaf::Leaf; fn f() { b::bee() }",
            "use super::Leaf; pub fn bee() { super::leaf::grow() }",
            "",
        ),
        (
            "mod b; use b::Bee; pub struct Ay;",
            "pub struct Bee; #[cfg(test)] mod tests { use crate::a::Ay; }",
            "",
        ),
        (
            "mod b; use b::Bee; pub struct Ay;",
            "pub struct Bee; impl Bee { #[cfg(test)] fn f<A, B>() -> super::Ay {} }",
            "",
        ),
        (
            "mod b; use b::Bee; pub struct Ay;",
            "pub struct Bee; /* super::Ay */ const B: &str = \"super::Ay\";",
            "",
        ),
        ("mod b; fn ay() { b::bee() }", "pub fn bee(ay: u8) { x.ay(); ay::y() }", ""),
    ] {
        let files = [("a/mod.rs", up), ("a/b.rs", down), LEAF, ("c.rs", "pub use crate::a::b::Bee;")];
        let found = circles(&House::read(files, false));
        let told = found.join("\n");
        let expected = match names.split_once(' ') {
            Some((ay, bee)) => {
                format!("2 files:\n  src/a/b.rs -> src/a/mod.rs: {ay}\n  src/a/mod.rs -> src/a/b.rs: {bee}")
            }
            None => String::new(),
        };
        assert_eq!(told, expected, "{up}\n{down}");
    }
    // A long circle, and a file of tests.
    let files = [
        ("a.rs", "use crate::b::b;"),
        ("b.rs", "use crate::c; fn b() { c::d::x() }"),
        ("c/mod.rs", "mod d; #[cfg(test)] mod tests;"),
        ("c/d.rs", "use crate::a; use crate::e::E; pub fn x() { a::a() }"),
        ("c/tests/mod.rs", "use crate::c::d;"),
        ("e.rs", "pub struct E; #[cfg(test)] use crate::c::tests::X;"),
    ];
    let told = circles(&House::read(files, false)).join("\n");
    assert!(told.starts_with("3 files:\n  src/a.rs -> src/b.rs: b\n"), "{told}");
    assert!(!told.contains("src/e.rs") && !told.contains("tests"), "{told}");
}

#[test]
fn source_files_stay_short() {
    let mut long = Vec::new();
    for top in ["src", "tests", "benches"] {
        for file in rust_files(&manifest_dir().join(top)) {
            let lines = std::fs::read_to_string(&file).unwrap().lines().count();
            if lines > LONGEST {
                long.push(format!("{}: {lines} lines", file.display()));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The limits are those of well-read Rust projects, with room for the few places where a mark is the right word.
#[test]
fn comments_and_names_are_plain() {
    let mut voice = Voice::default();
    for top in ["src", "tests", "benches"] {
        for file in rust_files(&manifest_dir().join(top)) {
            // Its tables contain what it looks for.
            if file.ends_with("architecture/words.rs") || file.ends_with("tests/architecture.rs") {
                continue;
            }
            let name = file.strip_prefix(manifest_dir()).unwrap().to_str().unwrap();
            voice.add(name, &std::fs::read_to_string(&file).unwrap());
        }
    }
    let counts = [
        ("comments that begin with a relative clause", &voice.relative, voice.comments, 1.0),
        ("docs that repeat a name", &voice.repeated, voice.comments, 0.0),
        ("closures with a name", &voice.closures, voice.lines, 3.0),
    ];
    let banned = voice.banned.iter().map(|(word, places)| (*word, places, voice.words, 0.02));
    let vague = voice.vague.iter().map(|(name, places)| (*name, places, voice.lines, 0.4));
    let mut above = Vec::new();
    for (what, places, all, limit) in counts.into_iter().chain(banned).chain(vague) {
        let in_thousand = 1000.0 * places.len() as f64 / all as f64;
        println!("{what}: {} of {all}, {in_thousand:.2} in 1,000 (at most {limit})", places.len());
        if in_thousand > limit {
            let first: Vec<_> = places.iter().take(20).map(String::as_str).collect();
            above.push(format!(
                "{what}: {in_thousand:.2} in 1,000, at most {limit}\n  {}",
                first.join("\n  ")
            ));
        }
    }
    assert!(above.is_empty(), "{}", above.join("\n"));
}

/// The limits are what was reached: they may only be lowered.
#[test]
fn captions_and_second_meanings_stay_few() {
    let mut habits = Habits::default();
    let source = manifest_dir().join("src");
    for file in rust_files(&source) {
        let name = file.strip_prefix(&source).unwrap().to_str().unwrap();
        if !name.contains("/tests") && !name.ends_with("tests.rs") {
            habits.add(name, &std::fs::read_to_string(&file).unwrap());
        }
    }
    let Habits { lines, blocks, captions, rebound, types } = habits;
    let share = 100.0 * captions.len() as f64 / blocks as f64;
    assert!(
        share <= 81.0,
        "{share:.1} % of {blocks} comments have one line: delete those that say the signature"
    );
    let in_thousand = 1000.0 * rebound.len() as f64 / lines as f64;
    assert!(in_thousand <= 2.0, "{in_thousand:.2} second bindings in 1,000 lines:\n{}", rebound.join("\n"));
    let twice: Vec<_> = types.iter().filter(|(_, places)| places.len() > 1).collect();
    assert!(twice.len() <= 33, "{} names of several types: {twice:#?}", twice.len());
}

#[test]
fn habits_are_counted() {
    let mut habits = Habits::default();
    habits.add(
        "a.rs",
        "/// A path.\nstruct Path;\n// Two\n// lines\npub(crate) fn f() {\n    let x = g();\n    let mut x = &x.h();\n\
         }\nfn g() {\n    let x = x.h();\n    let (x, y) = (x, 1);\n}\n#[cfg(test)]\nmod tests {\n    struct Path;\n}\n",
    );
    assert_eq!(habits.captions, ["a.rs:1"]);
    assert_eq!((habits.lines, habits.blocks), (9, 2));
    assert_eq!(habits.rebound, ["a.rs:7"]);
    assert_eq!(habits.types["Path"], ["a.rs:2"]);
}

#[test]
fn marks_of_unclear_words_are_counted() {
    let mut voice = Voice::default();
    voice.add(
        "a.rs",
        "/// What it is.\n/// Nobody knows.\nfn f(at: u8) { let one = |own| \"whoever 'x\"; }\n\
         struct S {\n    /// The path.\n    path: u8,\n    at: u8,\n}\n\
         fn g<'a>(s: &'a S) { s.at; at(); let d = '\"'; r#\"lies // no\"#; } // stands here\n\
         /// Path of a file.\nfn path() {}\n/// A note about what is there.\nfn asked_twice() {}\n",
    );
    assert_eq!(voice.relative, ["a.rs:1: What it is."]);
    assert_eq!(voice.banned.keys().copied().collect::<Vec<_>>(), ["lies", "nobody", "stands", "whoever"]);
    let vague: Vec<_> = voice.vague.iter().map(|(name, places)| (*name, places.len())).collect();
    assert_eq!(vague, [("at", 2), ("one", 1), ("own", 1)]);
    assert_eq!(voice.closures, ["a.rs:3"]);
    assert_eq!(voice.repeated, ["a.rs:5: The path."]);
    assert_eq!(voice.comments, 5);
}

/// Cargo runs each `tests/*.rs`; a file in a subdirectory runs if the file above it declares it, and `tests/support` is
/// for the others.
#[test]
fn no_test_file_is_empty_or_forgotten() {
    let tests = manifest_dir().join("tests");
    for file in rust_files(&tests) {
        let text = std::fs::read_to_string(&file).unwrap();
        let has_tests = text.contains("#[test]") || text.contains("proptest!");
        let directory = file.parent().unwrap();
        if directory == tests {
            assert!(has_tests || file.ends_with("main.rs"), "{} tests nothing", file.display());
            continue;
        }
        let helper = directory.ends_with("support");
        assert!(!helper || !has_tests, "{} has tests", file.display());
        let (name, beside) = if file.ends_with("mod.rs") {
            (directory.file_name().unwrap(), directory.parent().unwrap())
        } else {
            (file.file_stem().unwrap(), directory)
        };
        let above = ["mod.rs", "main.rs"].map(|name| beside.join(name));
        let above: Vec<_> = above.into_iter().chain([beside.with_extension("rs")]).collect();
        let above = above.iter().find(|above| above.exists());
        let above = above.unwrap_or_else(|| panic!("nothing names {}", file.display()));
        let name = name.to_str().unwrap();
        let known = std::fs::read_to_string(above).unwrap().contains(&format!("mod {name};"));
        assert!(known, "{} does not name {name}", above.display());
    }
}

/// Reads the modules of `src`, those for tests only on request.
fn house(with_tests: bool) -> House {
    let source = manifest_dir().join("src");
    let texts: Vec<_> = rust_files(&source)
        .into_iter()
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            (file.strip_prefix(&source).unwrap().to_str().unwrap().to_owned(), text)
        })
        .collect();
    House::read(texts.iter().map(|(file, text)| (file.as_str(), text.as_str())), with_tests)
}

/// Returns one line for each module that a file names and must not import.
fn upward_imports(house: &House) -> Vec<String> {
    // `crate::Name` is an item of the root itself; lib.rs and main.rs may import everything.
    fn is_module(name: &str) -> bool {
        name == "*" || name.starts_with(|c: char| c.is_ascii_lowercase())
    }
    house
        .tops()
        .into_iter()
        .filter(|(_, module, name)| {
            name != module && is_module(name) && may_know(module, name) == Some(false)
        })
        .map(|(file, module, name)| format!("src/{file}: `{module}` may not know `{name}`"))
        .collect()
}

/// Returns each circle with the names that tie its files.
fn circles(house: &House) -> Vec<String> {
    let ties = house.ties();
    let told = house::circles(&ties).into_iter().map(|files| {
        let mut lines = vec![format!("{} files:", files.len())];
        let within: BTreeSet<&Tie> = ties
            .iter()
            .filter(|tie| files.contains(tie.from.as_str()) && files.contains(tie.to.as_str()))
            .collect();
        for (from, to) in within.iter().map(|tie| (&tie.from, &tie.to)).collect::<BTreeSet<_>>() {
            let names = within.iter().filter(|tie| (&tie.from, &tie.to) == (from, to));
            let names: Vec<_> = names.map(|tie| tie.name.as_str()).collect();
            lines.push(format!("  src/{from} -> src/{to}: {}", names.join(", ")));
        }
        lines.join("\n")
    });
    told.collect()
}

/// Returns each circle between the files and folders of one folder.
fn circles_of_rooms(house: &House) -> Vec<String> {
    let mut told = Vec::new();
    for (folder, ties) in house.rooms() {
        for rooms in house::circles(&ties) {
            let within: Vec<_> = ties
                .iter()
                .filter(|tie| rooms.contains(tie.from.as_str()) && rooms.contains(tie.to.as_str()))
                .map(|tie| format!("  {} -> {}: {}", tie.from, tie.to, tie.name))
                .collect();
            told.push(format!("src/{folder}: {} rooms:\n{}", rooms.len(), within.join("\n")));
        }
    }
    told
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns all `.rs` files below `top`; none if the directory does not exist.
fn rust_files(top: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(top) else {
        return Vec::new();
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}
