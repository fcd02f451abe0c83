//! `TMPDIR` in the systemd units of the tools: the directory of their temporary files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::storage_conf::is_conf;

const DIRECTORIES: [&str; 2] = ["/usr/lib/systemd/system", "/etc/systemd/system"];
const UNITS: [&str; 3] = ["crio.service", "podman.service", "buildah.service"];

/// Returns the directories that units and their drop-ins set as `TMPDIR`.
///
/// systemd uses the last value. Earlier values are returned as well, because a tool may have left files there before.
pub(super) fn temporary_directories(files: &Files<'_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (directory, unit) in DIRECTORIES.iter().flat_map(|directory| UNITS.map(|unit| (directory, unit))) {
        let unit = Path::new(directory).join(unit);
        let drop_ins = unit.with_extension("service.d");
        let listed = files.list(&drop_ins);
        let drop_ins = listed
            .iter()
            .flatten()
            .filter(|entry| is_conf(entry))
            .map(|entry| unit.with_extension("service.d").join(&entry.name));
        for file in std::iter::once(unit.clone()).chain(drop_ins).filter(|file| files.exists(file)) {
            if let Ok(text) = &*files.text(&file) {
                found.extend(text.lines().flat_map(values));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the absolute values of `TMPDIR` in a line `Environment="A=b c" TMPDIR=/c`.
fn values(line: &str) -> impl Iterator<Item = PathBuf> {
    let assignments = line.trim_start().strip_prefix("Environment=").map(words).unwrap_or_default();
    let values = assignments.into_iter().filter_map(|word| word.strip_prefix("TMPDIR=").map(PathBuf::from));
    values.filter(|path| path.is_absolute() && path.as_os_str() != OsStr::new("/"))
}

/// Splits a value into words as `systemd.syntax(7)` does: quotes of both kinds keep blanks together, and a backslash
/// takes the next character as it is. Escapes like `\x20` and specifiers are not expanded.
fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => word.extend(characters.next()),
            (end, Some(begin)) if end == begin => quote = None,
            ('"' | '\'', None) => quote = Some(character),
            (blank, None) if blank.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpdir_of_unit_line_is_parsed() {
        for (line, expected) in [
            ("Environment=TMPDIR=/a", &["/a"][..]),
            (" Environment=\"A=b\" \"TMPDIR=/a/b\"", &["/a/b"]),
            ("Environment='TMPDIR=/a' TMPDIR=/b", &["/a", "/b"]),
            ("Environment=\"A=x TMPDIR=/no\" \"TMPDIR=/with blank\"", &["/with blank"]),
            ("Environment=TMPDIR=\"/a b\" 'B=\"' TMPDIR=/c\\ d", &["/a b", "/c d"]),
            ("#Environment=TMPDIR=/a", &[]),
            ("Environment=MYTMPDIR=/a TMPDIR=relative TMPDIR=/", &[]),
            ("ExecStart=/usr/bin/crio TMPDIR=/a", &[]),
        ] {
            let found: Vec<_> = values(line).collect();
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{line}");
        }
    }
}
