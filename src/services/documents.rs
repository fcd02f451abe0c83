//! Documents in files: one in a file, or many.
//!
//! A document begins at each line that begins with `{`. That is true for NDJSON, for documents as layersweep prints
//! them, whose inner lines are indented, and for both in one file. A broken document therefore ends where the next one
//! begins. A trace ([`crate::model::documents::trace`]) is several lines, of which only the first begins one. One
//! document at a time is in memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::model::documents::trace::begins_trace;
use crate::model::text::display::shell_word;

const DOCUMENT_MIB: u64 = 256;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const BUFFER: usize = 1 << 18;

/// Position of a document. The number of its file is that on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Position {
    pub(crate) file: usize,
    /// Line on which the document begins, from 1.
    pub(crate) line: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DocumentStart {
    Brace,
    TraceHeader,
}

#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    /// Copy of standard input or of a pipe, which can be read only once.
    copy: Option<File>,
}

impl Source {
    /// Copies standard input and pipes to a temporary file without a name.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let mut copy = None;
        if path == Path::new("-") {
            copy = Some(spool(io::stdin().lock())?);
        } else {
            let facts = std::fs::metadata(path)?;
            if facts.is_dir() {
                let files = shell_word(&path.join("").to_string_lossy());
                return Err(io::Error::other(format!("it is a directory: name its files, {files}*.json")));
            }
            if !facts.is_file() {
                copy = Some(spool(File::open(path)?)?);
            }
        }
        Ok(Self { path: path.to_path_buf(), copy })
    }

    fn open(&self) -> io::Result<File> {
        match &self.copy {
            Some(copy) => {
                let mut copy = copy.try_clone()?;
                copy.rewind()?;
                Ok(copy)
            }
            None => File::open(&self.path),
        }
    }
}

/// Document that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "UnreadDocumentDoc"))]
pub struct UnreadDocument {
    /// File that contains it, and the line on which it begins unless that is the first.
    pub place: String,
    /// Reason in words.
    pub reason: String,
}

/// Returns the file of a document, and its line unless that is the first.
pub(crate) fn place(files: &[PathBuf], position: Position) -> String {
    let file = files.get(position.file).map_or("".into(), |path| path.to_string_lossy());
    match (&*file, position.line) {
        ("-", 0 | 1) => "standard input".to_owned(),
        ("-", line) => format!("standard input, line {line}"),
        (file, 0 | 1) => file.to_owned(),
        (file, line) => format!("{file}:{line}"),
    }
}

fn spool(mut from: impl io::Read) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)?;
    let mut copy = File::from(copy);
    io::copy(&mut from, &mut copy)?;
    Ok(copy)
}

/// Iterates over the documents of all files. An error is in words.
#[derive(Debug)]
pub(crate) struct Documents<'a> {
    sources: std::iter::Enumerate<std::slice::Iter<'a, Result<Source, String>>>,
    open: Option<Open>,
    beginning: DocumentStart,
    max_bytes: u64,
}

#[derive(Debug)]
struct Open {
    file: usize,
    reader: BufReader<File>,
    /// First line of the next document, if it was read.
    next_line: Vec<u8>,
    /// Number of lines that were read.
    line: u64,
    has_document: bool,
}

impl<'a> Documents<'a> {
    pub(crate) fn new(sources: &'a [Result<Source, String>], beginning: DocumentStart) -> Self {
        Self { sources: sources.iter().enumerate(), open: None, beginning, max_bytes: DOCUMENT_MIB << 20 }
    }
}

impl Documents<'_> {
    fn command(&self) -> &'static str {
        match self.beginning {
            DocumentStart::Brace => "report --merge",
            DocumentStart::TraceHeader => "replay",
        }
    }
}

impl Iterator for Documents<'_> {
    type Item = (Position, Result<Vec<u8>, String>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(open) = &mut self.open {
                let file = open.file;
                match open.document(self.beginning, self.max_bytes) {
                    Ok(Some((line, text))) => {
                        open.has_document = true;
                        return Some((Position { file, line }, text));
                    }
                    // A node that did not answer leaves an empty file.
                    Ok(None) if !open.has_document => {
                        self.open = None;
                        return Some((Position { file, line: 1 }, Err("it holds no document".to_owned())));
                    }
                    Ok(None) => self.open = None,
                    Err(error) => {
                        let line = open.line + 1;
                        self.open = None;
                        return Some((Position { file, line }, Err(error.to_string())));
                    }
                }
                continue;
            }
            let (file, source) = self.sources.next()?;
            let opened = source.as_ref().map_err(String::clone);
            match opened.and_then(|source| source.open().map_err(|error| error.to_string())) {
                Ok(open) => {
                    let mut reader = BufReader::with_capacity(BUFFER, open);
                    if reader.fill_buf().is_ok_and(|start| start.starts_with(&GZIP)) {
                        let path = source.as_ref().map(|source| source.path.to_string_lossy());
                        let path = shell_word(&path.unwrap_or_default());
                        let advice =
                            format!("it is compressed: `zcat {path} | layersweep {} -`", self.command());
                        return Some((Position { file, line: 1 }, Err(advice)));
                    }
                    let next_line = Vec::new();
                    self.open = Some(Open { file, reader, next_line, line: 0, has_document: false });
                }
                Err(error) => return Some((Position { file, line: 1 }, Err(error))),
            }
        }
    }
}

/// Line on which a document begins, and the document or the reason why it is not read.
type Document = (u64, Result<Vec<u8>, String>);

impl Open {
    fn document(&mut self, beginning: DocumentStart, max_bytes: u64) -> io::Result<Option<Document>> {
        let mut text = Vec::new();
        let mut first_line = 0;
        let mut is_too_long = false;
        loop {
            let is_empty = first_line == 0;
            let start = text.len();
            if self.next_line.is_empty() {
                match self.reader.fill_buf()?.first() {
                    None => break,
                    Some(b'{') if !is_empty && beginning == DocumentStart::Brace => break,
                    Some(_) => {}
                }
                let room = (max_bytes + 1).saturating_sub(start as u64);
                (&mut self.reader).take(room).read_until(b'\n', &mut text)?;
                self.line += 1;
            } else {
                text.append(&mut self.next_line);
            }
            if !is_empty && beginning == DocumentStart::TraceHeader && begins_trace(&text[start..]) {
                self.next_line = text.split_off(start);
                break;
            }
            if text.len() as u64 > max_bytes || is_too_long {
                is_too_long = true;
                if text.last() != Some(&b'\n') {
                    self.reader.skip_until(b'\n')?;
                }
                text.clear();
                first_line = first_line.max(1);
            }
            if is_empty && text.trim_ascii_start().is_empty() && !is_too_long {
                text.clear();
            } else if is_empty {
                first_line = self.line;
            }
        }
        let text = if is_too_long { Err(format!("longer than {} MiB", max_bytes >> 20)) } else { Ok(text) };
        Ok((first_line > 0).then_some((first_line, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first lines of the documents in a text, and their texts.
    fn read(text: &str, beginning: DocumentStart, max_bytes: u64) -> Vec<(u64, Result<String, String>)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("documents");
        std::fs::write(&path, text).unwrap();
        let sources = [Source::new(&path).map_err(|error| error.to_string())];
        let documents = Documents { max_bytes, ..Documents::new(&sources, beginning) };
        let found = documents.map(|(position, text)| {
            (position.line, text.map(|text| String::from_utf8(text).unwrap().trim().replace('\n', "/")))
        });
        found.collect()
    }

    #[test]
    fn document_begins_at_each_line_with_a_brace() {
        fn ok(line: u64, text: &str) -> (u64, Result<String, String>) {
            (line, Ok(text.into()))
        }
        for (text, expected) in [
            ("", vec![(1, Err("it holds no document".into()))]),
            ("\n \n", vec![(1, Err("it holds no document".into()))]),
            ("{}", vec![ok(1, "{}")]),
            ("{}\n{}\n", vec![ok(1, "{}"), ok(2, "{}")]),
            ("\n{\n  \"a\": {\n  }\n}\n\n{\n}", vec![ok(2, "{/  \"a\": {/  }/}"), ok(7, "{/}")]),
            // A broken document does not take the next one with it.
            ("{\"a\n{}\nxx\n{}", vec![ok(1, "{\"a"), ok(2, "{}/xx"), ok(4, "{}")]),
            ("xx\n{}", vec![ok(1, "xx"), ok(2, "{}")]),
        ] {
            assert_eq!(read(text, DocumentStart::Brace, 1 << 20), expected, "{text:?}");
        }
    }

    #[test]
    fn trace_ends_where_the_next_header_begins() {
        let header = r#"{"kind":"trace"}"#;
        let text = format!("{header}\n{{\"event\":1}}\n{{}}\n{{\"kind\": \"trace\"}}\n{header}");
        let found = read(&text, DocumentStart::TraceHeader, 1 << 20);
        let lines: Vec<_> = found.iter().map(|(line, text)| (*line, text.as_ref().unwrap().len())).collect();
        assert_eq!(lines, [(1, 31), (4, 17), (5, 16)]);
        assert!(found[0].1.as_ref().unwrap().ends_with("/{}"));
    }

    #[test]
    fn long_document_is_skipped_without_the_next() {
        let long = "x".repeat(3 << 20);
        let found = read(&format!("{{\"{long}\n{long}\n{{}}\n"), DocumentStart::Brace, 1 << 20);
        assert_eq!(found, [(1, Err("longer than 1 MiB".into())), (3, Ok("{}".into()))]);
    }

    #[test]
    fn missing_file_is_one_error() {
        assert!(Source::new(Path::new("/nonexistent/file")).is_err());
        let sources = [Err("no such file".to_owned())];
        let found: Vec<_> = Documents::new(&sources, DocumentStart::Brace).collect();
        assert_eq!(found, [(Position { file: 0, line: 1 }, Err("no such file".into()))]);
    }
}
