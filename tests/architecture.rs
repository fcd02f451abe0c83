//! The house rules that a compiler does not know: modules import downwards only, files
//! stay small, and no test is forgotten.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::path::{Path, PathBuf};

/// The floors of the house, from the top: a module imports only from floors below its own.
const FLOORS: [&[&str]; 8] = [
    &["cli"],
    &["report"],
    &["app"],
    &["config", "execute"],
    &["policy", "history", "cri"],
    &["stores"],
    &["disk", "node"],
    &["model", "sys"],
];

/// Whether `module` is a floor above `other`; `None` for what is no module of ours.
fn may_know(module: &str, other: &str) -> Option<bool> {
    let floor = |name: &str| FLOORS.iter().position(|floor| floor.contains(&name));
    Some(floor(module)? < floor(other).unwrap_or(0))
}

/// Longest source file, in lines.
const LONGEST: usize = 800;

#[test]
fn modules_import_downwards_only() {
    let mut wrong = Vec::new();
    for file in rust_files(&manifest_dir().join("src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let relative = file.strip_prefix(manifest_dir().join("src")).unwrap();
        wrong.extend(upward_imports(relative, &text));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
    ] {
        let found = upward_imports(Path::new(file), text);
        assert_eq!(found.len(), 1, "{file}: {text}: {found:?}");
        assert!(found[0].contains(&format!("`{offence}`")), "{found:?}");
    }
    for (file, text) in [
        ("disk/walk.rs", "use crate::{model::{Size, cli}, sys, disk::x};"),
        ("model/mod.rs", "//! [`crate::report`]\n/* crate::cli */ use crate::model::refs;"),
        ("model/mod.rs", "let s = \"crate::cli\";"),
        ("model/refs/mod.rs", "use super::super::model::Size; use super::Size;"),
        ("disk/mod.rs", "#[cfg(test)]\nuse crate::disk::x;"),
        ("disk/mod.rs", "mod tests { use super::*; }"),
        ("main.rs", "layersweep::cli::main()"),
        ("lib.rs", "pub mod cli;"),
    ] {
        let found = upward_imports(Path::new(file), text);
        assert!(found.is_empty(), "{file}: {text}: {found:?}");
    }
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

/// Cargo runs each `tests/*.rs`; a file further down runs where the file above it names it,
/// and a test in `tests/support` would run with every program that uses that.
#[test]
fn no_test_file_is_empty_or_forgotten() {
    let tests = manifest_dir().join("tests");
    for file in rust_files(&tests) {
        let text = std::fs::read_to_string(&file).unwrap();
        let has_tests = text.contains("#[test]") || text.contains("proptest!");
        let directory = file.parent().unwrap();
        if directory == tests {
            assert!(has_tests, "{} tests nothing", file.display());
            continue;
        }
        let helper = directory.ends_with("support");
        assert!(!helper || !has_tests, "{} has tests", file.display());
        if file.ends_with("mod.rs") || file.ends_with("main.rs") {
            continue;
        }
        let above = ["mod.rs", "main.rs"].map(|name| directory.join(name));
        let above = above.into_iter().chain([directory.with_extension("rs")]);
        let above: Vec<_> = above.collect();
        let above = above.iter().find(|above| above.exists());
        let above = above.unwrap_or_else(|| panic!("nothing names {}", file.display()));
        let name = file.file_stem().unwrap().to_str().unwrap();
        let names = std::fs::read_to_string(above).unwrap();
        let known = names.contains(&format!("mod {name};"));
        assert!(known, "{} does not name {name}", above.display());
    }
}

/// One line for each place of `text` that names a module its file may not know.
fn upward_imports(file: &Path, text: &str) -> Vec<String> {
    let own = module_of(file);
    let depth = module_depth(file);
    named_modules(&without_comments_and_texts(text), depth)
        .into_iter()
        .filter(|name| *name != own && may_know(&own, name) == Some(false)) // lib.rs and main.rs know everything
        .map(|name| format!("src/{}: `{own}` may not know `{name}`", file.display()))
        .collect()
}

/// `disk` for `disk/walk/mod.rs` and for `disk.rs`.
fn module_of(file: &Path) -> String {
    let first = file.components().next().expect("a path below src");
    let name = first.as_os_str().to_str().expect("a path in UTF-8");
    name.trim_end_matches(".rs").to_owned()
}

/// How many `super` lead from the file's module to the crate's root.
fn module_depth(file: &Path) -> usize {
    let parts = file.components().count();
    parts - usize::from(file.ends_with("mod.rs"))
}

/// The first names after `crate::`, `layersweep::` and enough `super::`, in groups too.
fn named_modules(code: &str, depth: usize) -> Vec<String> {
    // Without space around `::`, every path is one word.
    let mut code = code.replace("::", " :: ");
    code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = code.replace(" :: ", "::").replace(":: ", "::");
    let up = "super::".repeat(depth);
    let mut names = Vec::new();
    for root in ["crate::", "layersweep::", up.as_str()] {
        let mut found = Vec::new();
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group_heads(group)),
                None => found.push(head(rest)),
            }
        }
        if root == up {
            // From a module inside the file, the same words lead only to the file's own.
            found.retain(|name| FLOORS.iter().any(|floor| floor.contains(&name.as_str())));
        }
        names.extend(found);
    }
    // `crate::Name` is an item of the root itself.
    names.retain(|name| name == "*" || name.starts_with(|c: char| c.is_ascii_lowercase()));
    names
}

/// The first names of the paths in a `{…}` group, without those of nested groups.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut start = true;
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            ' ' => {}
            _ if start => {
                heads.push(head(&group[at..]));
                start = false;
            }
            _ => {}
        }
    }
    heads
}

fn head(path: &str) -> String {
    if path.starts_with('*') {
        return "*".into();
    }
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
    path[..end.unwrap_or(path.len())].to_owned()
}

/// `text` with comments and the content of string literals taken out.
fn without_comments_and_texts(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else if let Some(hashes) = raw_string(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = hashes + 2;
            rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len())
        } else if character == '"' {
            plain_string(rest)
        } else {
            code.push(character);
            rest = &rest[character.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// The number of `#` of a raw string that starts here.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// The length of the string literal that starts here.
fn plain_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All `.rs` files below `top`; none where there is no such directory.
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
