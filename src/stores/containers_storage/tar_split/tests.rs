use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use hashbrown::HashSet;
use serde_json::json;
use tar::{Builder, Header};

use super::*;
use crate::model::waste::layer_files::PathSeed;
use crate::model::waste::view::{Hidden, HiddenHow, LayerView};

/// Writes a tar-split as the library does: the bytes before each file, then the file.
#[derive(Default)]
struct Split {
    lines: Vec<u8>,
    padding: Vec<u8>,
}

impl Split {
    fn add(mut self, kind: EntryType, path: &[u8], target: &str, content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        let mut tar = Builder::new(Vec::new());
        let path_of = Path::new(OsStr::from_bytes(path));
        if target.is_empty() {
            tar.append_data(&mut header, path_of, content).unwrap();
        } else {
            tar.append_link(&mut header, path_of, target).unwrap();
        }
        let headers = &tar.get_ref()[..tar.get_ref().len() - content.len().next_multiple_of(512)];
        let bytes = [&self.padding[..], headers].concat();
        self.line(&json!({"type": 2, "payload": STANDARD.encode(bytes), "position": 0}));
        let checksum = content.iter().fold(7_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
        let checksum = (!content.is_empty()).then(|| STANDARD.encode(checksum.to_be_bytes()));
        let name = match std::str::from_utf8(path) {
            Ok(name) => json!({"type": 1, "name": name, "size": content.len(), "payload": checksum}),
            Err(_) => {
                json!({"type": 1, "name_raw": STANDARD.encode(path), "size": content.len(), "payload": checksum})
            }
        };
        self.line(&name);
        self.padding = vec![0; content.len().next_multiple_of(512) - content.len()];
        self
    }

    fn line(&mut self, line: &serde_json::Value) {
        writeln!(self.lines, "{line}").unwrap();
    }

    fn packed(&self) -> Vec<u8> {
        packed(&self.lines)
    }
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

fn read_into(packed: &[u8], seed: &PathSeed) -> io::Result<LayerFiles> {
    let mut files = LayerFiles::new(seed, HashSet::new());
    read(packed, 4096, &Allowance::default(), &mut files).map(|()| files)
}

#[test]
fn headers_tell_links_and_directories_from_files() {
    let long = "a".repeat(150) + "/b";
    let base = Split::default()
        .add(EntryType::Directory, b"d/", "", b"")
        .add(EntryType::Regular, b"d/file", "", b"content")
        .add(EntryType::Regular, b"d/\xff", "", &[7; 5000])
        .add(EntryType::Regular, b"empty", "", b"")
        .add(EntryType::Symlink, b"soft", "d", b"")
        .add(EntryType::Regular, long.as_bytes(), "", b"long")
        .add(EntryType::Link, b"hard", &long, b"")
        .add(EntryType::Fifo, b"fifo", "", b"");
    let upper = Split::default()
        .add(EntryType::Regular, b"d/.wh.\xff", "", b"")
        .add(EntryType::Regular, b"d/file", "", b"content")
        .add(EntryType::Regular, format!("{}/.wh.b", "a".repeat(150)).as_bytes(), "", b"")
        .add(EntryType::Directory, b"empty", "", b"")
        .add(EntryType::Directory, b"soft/", "", b"");
    let seed = PathSeed::default();
    let base = read_into(&base.packed(), &seed).unwrap();
    let sizes: Vec<_> = base.files().map(|file| (file.apparent_bytes, file.bytes)).collect();
    assert_eq!(sizes, [(7, 4096), (5000, 8192), (0, 0), (4, 4096)]);
    let mut view = LayerView::default();
    view.enter(&base, 1);
    let mut expected = Hidden::default();
    expected.add(8192, HiddenHow::Deleted);
    expected.add(4096, HiddenHow::Copied);
    expected.add(0, HiddenHow::Overwritten);
    // `hard` still shows the long name's file.
    assert_eq!(view.enter(&read_into(&upper.packed(), &seed).unwrap(), 1), expected);
    let last = Split::default().add(EntryType::Regular, b".wh.hard", "", b"");
    assert_eq!(view.enter(&read_into(&last.packed(), &seed).unwrap(), 1).bytes, 4096);
}

#[test]
fn damaged_tar_splits_are_errors() {
    let seed = PathSeed::default();
    let whole = Split::default().add(EntryType::Regular, b"file", "", &[7; 5000]).packed();
    assert!(read_into(&whole, &seed).is_ok());
    let bomb = packed(&vec![b' '; usize::try_from(MOST_LINE).unwrap() + 1]);
    let long = format!("{{\"type\":1,\"name\":\"{}\"}}", "a/".repeat(MOST_PATH));
    let texts: [&[u8]; 7] = [
        long.as_bytes(),
        b"{\"type\":1,\"size\":-1}",
        b"[]",
        b"{\"type\":3}",
        b"\xff\n",
        b"{\"type\":1,\"name_raw\":\"?\"}",
        b"[[[[",
    ];
    let damaged = texts.map(packed);
    let damaged = damaged.iter().map(Vec::as_slice).chain([&whole[..whole.len() / 2], b"no gzip", &bomb]);
    for packed in damaged {
        assert!(read_into(packed, &seed).is_err());
    }
    // Wrong headers change the kind of what has no content, and nothing else.
    let lines = b"{\"type\":2,\"payload\":\"????\"}\n{\"type\":1,\"name\":\"a/\"}\n{\"type\":1,\"name\":\"b\"}\n{\"type\":1}";
    assert_eq!(read_into(&packed(lines), &seed).unwrap().names(), 3);
    let allowance = Allowance::limited(20);
    let mut files = LayerFiles::new(&seed, HashSet::new());
    assert!(read(&whole[..], 4096, &allowance, &mut files).is_err() && allowance.is_exceeded());
}
