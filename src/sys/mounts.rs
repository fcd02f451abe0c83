//! The mount table, `/proc/self/mountinfo`. `proc_pid_mountinfo(5)` describes its format.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount, as `statx` reports it.
    pub id: u64,
    /// Number of the mount that it is on.
    pub parent: u64,
    /// Major and minor number of the filesystem's device. On btrfs they are those of the whole filesystem, unlike
    /// `st_dev` in a subvolume.
    pub device: (u32, u32),
    /// Part of the filesystem that is mounted; `/` for all of it.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Type, for example `xfs`.
    pub fstype: String,
    /// Source, for example `/dev/vda4`.
    pub source: String,
}

/// Returns the mounts that this process sees, in the kernel's order.
pub fn read() -> io::Result<Vec<Mount>> {
    std::fs::read("/proc/self/mountinfo").map(|text| parse(&text))
}

/// Returns the mount with the number `id`, or the mount that it only repeats. A directory that is mounted on itself
/// is the same place on the same filesystem as without that mount. The sandbox of a systemd unit mounts writable
/// directories in this way, and storage drivers mount their own directory.
#[must_use]
pub fn underlying(all: &[Mount], id: u64) -> Option<&Mount> {
    let mut mount = all.iter().find(|mount| mount.id == id)?;
    // Limited to the number of mounts, in case the table contains a cycle.
    for _ in all {
        let parent = all.iter().find(|parent| parent.id == mount.parent && parent.id != mount.id);
        match parent.filter(|parent| mount.repeats(parent)) {
            Some(parent) => mount = parent,
            None => break,
        }
    }
    Some(mount)
}

impl Mount {
    /// Returns whether it shows at its mount point what `below` shows there.
    pub fn repeats(&self, below: &Self) -> bool {
        let inside = self.mount_point.strip_prefix(&below.mount_point);
        self.device == below.device && inside.is_ok_and(|inside| below.root.join(inside) == self.root)
    }
}

/// Directory on a filesystem: the same in every namespace and through every mount that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Major and minor number, as in the mount table.
    pub device: (u32, u32),
    /// Path from the root of that filesystem.
    pub path: PathBuf,
}

impl Location {
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// Returns the location of `path` (absolute, without symlinks) according to these mounts.
#[must_use]
pub fn location(all: &[Mount], path: &Path) -> Option<Location> {
    let mut best: Option<&Mount> = None;
    for mount in all {
        let is_deeper = best.is_none_or(|best| mount.mount_point.starts_with(&best.mount_point));
        // If two mounts have the same mount point, the later one is on top.
        if path.starts_with(&mount.mount_point) && is_deeper {
            best = Some(mount);
        }
    }
    shown(best?, path)
}

/// Returns the location of `path` on the filesystem of `mount`, if it is below its mount point.
pub(super) fn shown(mount: &Mount, path: &Path) -> Option<Location> {
    let below = path.strip_prefix(&mount.mount_point).ok()?;
    // `join` with an empty path adds a slash at the end; comparisons by component ignore it.
    Some(Location { device: mount.device, path: mount.root.join(below) })
}

/// Returns the directory that shows the largest part of the filesystem of `path`: a bind mount or a subvolume shows
/// a part of a filesystem that may be mounted elsewhere as a whole. Only mounts below `within` count. Returns
/// `path` itself if none of them shows more.
#[must_use]
pub fn widest<'m>(all: &'m [Mount], path: &'m Path, within: &Path) -> &'m Path {
    let Some(here) = location(all, path) else { return path };
    let wider = all.iter().filter(|mount| {
        let part = Location { device: mount.device, path: mount.root.clone() };
        mount.mount_point.starts_with(within)
            && part != here
            && here.is_within(&part)
            // Another mount may hide it.
            && location(all, &mount.mount_point) == shown(mount, &mount.mount_point)
    });
    let widest = wider.min_by_key(|mount| mount.root.components().count());
    widest.map_or(path, |mount| &mount.mount_point)
}

/// Parses the text of a mount table. Lines with another format, which the kernel does not write, are skipped and
/// logged.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mount> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .filter_map(|line| {
            let mount = parse_line(line);
            if mount.is_none() {
                tracing::warn!(line = %line.escape_ascii(), "not a mount table line");
            }
            mount
        })
        .collect()
}

pub(super) fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let mut device = fields.next()?.splitn(2, |&byte| byte == b':');
    let device = (number(device.next()?)?, number(device.next()?)?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let _options = fields.next()?;
    // Any number of optional fields, ended by a single hyphen.
    fields.by_ref().find(|&field| field == b"-")?;
    let fstype = text(fields.next()?);
    let source = text(fields.next()?);
    Some(Mount { id, parent, device, root, mount_point, fstype, source })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// Decodes a field. Space, tab, newline and backslash are written as a backslash and three octal digits.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match octal(rest) {
            Some(decoded) => {
                plain.push(decoded);
                rest = &rest[4..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] = text else {
        return None;
    };
    Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
}

/// Parses a line of a mount table. The second value is the upper directory (as bytes) if the mount is an overlay.
pub(super) fn with_upper(line: &[u8]) -> Option<(Mount, Option<Vec<u8>>)> {
    let mount = parse_line(line)?;
    let options = line.rsplit(|byte| *byte == b' ').next()?;
    let upper = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"upperdir="));
    Some((mount, upper.map(unescape)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_parsed() {
        type Fields<'a> = (u64, (u32, u32), &'a str, &'a str, &'a str, &'a str);
        let cases: [(&[u8], Option<Fields<'_>>); 9] = [
            (
                b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
                Some((36, (98, 0), "/mnt1", "/mnt2", "ext3", "/dev/root")),
            ),
            // No optional field, and two of them.
            (b"1 0 8:1 / / rw - xfs /dev/sda1 rw", Some((1, (8, 1), "/", "/", "xfs", "/dev/sda1"))),
            (
                b"1 0 8:1 / / rw shared:5 master:2 - xfs /dev/sda1 rw",
                Some((1, (8, 1), "/", "/", "xfs", "/dev/sda1")),
            ),
            (
                br"7 1 0:40 /a\040b /c\011d\012e\134f rw - btrfs /dev/x\040y rw",
                Some((7, (0, 40), "/a b", "/c\td\ne\\f", "btrfs", "/dev/x y")),
            ),
            // Text that is not an escape is kept.
            (br"7 1 0:40 /\9 /\04 rw - t \777 rw", Some((7, (0, 40), "/\\9", "/\\04", "t", "\\777"))),
            (b"7 1 0:40 / / rw shared:1", None),
            (b"7 1 0-40 / / rw - t s rw", None),
            (b"x 1 0:40 / / rw - t s rw", None),
            (b"", None),
        ];
        for (line, expected) in cases {
            let mount = parse_line(line);
            let seen = mount.as_ref().map(|mount| {
                (
                    mount.id,
                    mount.device,
                    mount.root.to_str().unwrap(),
                    mount.mount_point.to_str().unwrap(),
                    mount.fstype.as_str(),
                    mount.source.as_str(),
                )
            });
            assert_eq!(seen, expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn bad_line_does_not_hide_others() {
        let text = b"1 0 8:1 / / rw - xfs /dev/a rw\nnonsense\n2 1 8:2 / /b rw - xfs /dev/b rw\n";
        assert_eq!(parse(text).iter().map(|mount| mount.id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn directory_mounted_on_itself_is_the_same_place() {
        let text = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 8:1 /var/lib/containers /var/lib/containers rw - ext4 /dev/a rw\n\
            3 2 8:1 /var/lib/containers/storage/overlay /var/lib/containers/storage/overlay rw - ext4 /dev/a rw\n\
            4 1 8:2 /sub /data rw - btrfs /dev/b rw\n\
            5 4 8:2 /sub/x /data/x rw - btrfs /dev/b rw\n\
            6 4 8:2 /other /data/y rw - btrfs /dev/b rw\n\
            7 1 8:1 /srv /mnt rw - ext4 /dev/a rw\n\
            8 4 8:1 /data/z /data/z rw - ext4 /dev/a rw\n\
            9 1 8:1 / / rw - ext4 /dev/a rw\n";
        let all = parse(text);
        for (id, expected) in [
            (1, "/"),
            (2, "/"),
            (3, "/"),
            (4, "/data"),
            (5, "/data"),
            (6, "/data/y"),
            (7, "/mnt"),
            // The mount below it is on another filesystem.
            (8, "/data/z"),
            (9, "/"),
        ] {
            assert_eq!(underlying(&all, id).unwrap().mount_point, Path::new(expected), "{id}");
        }
        assert_eq!(underlying(&all, 99), None);
        let circle = parse(b"1 2 8:1 / / rw - t s rw\n2 1 8:1 / / rw - t s rw\n");
        assert!(underlying(&circle, 1).is_some());
    }

    #[test]
    fn location_is_the_same_through_every_mount() {
        let text = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 8:2 / /data rw - ext4 /dev/b rw\n\
            3 1 8:2 /x /var/lib/store rw - ext4 /dev/b rw\n\
            4 1 8:3 /@ /srv rw - btrfs /dev/c rw\n\
            5 4 8:3 /@store /srv/store rw - btrfs /dev/c rw\n\
            6 1 8:4 / /hidden rw - ext4 /dev/d rw\n\
            7 6 8:5 / /hidden rw - tmpfs none rw\n\
            8 1 8:4 /y /y rw - ext4 /dev/d rw\n";
        let all = parse(text);
        let [bind, store, subvolume, other] =
            ["/var/lib/store/overlay", "/data/x/overlay", "/srv/store", "/srv/@store"]
                .map(|path| location(&all, Path::new(path)).unwrap());
        assert_eq!(bind, store);
        assert_ne!(subvolume, other);
        for (path, within, expected) in [
            ("/var/lib/store", "/", "/data"),
            ("/var/lib/store", "/var", "/var/lib/store"),
            ("/data", "/", "/data"),
            ("/srv/store", "/", "/srv/store"),
            ("/y", "/", "/y"),
        ] {
            assert_eq!(widest(&all, Path::new(path), Path::new(within)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn reads_this_machines_table() {
        let mounts = read().unwrap();
        assert!(mounts.iter().any(|mount| mount.mount_point == Path::new("/proc")));
    }

    proptest! {
        #[test]
        fn never_panics(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&text);
        }

        #[test]
        fn never_panics_on_near_lines(line in r"[0-9]{0,25} [0-9]{1,3} [0-9:]{0,9} [ /\\0-9a-]{0,30} - t \\[0-9]{0,4} rw") {
            let _ = parse(line.as_bytes());
        }

        #[test]
        fn escapes_are_decoded(name in proptest::collection::vec(any::<u8>(), 0..40)) {
            let escaped: Vec<u8> = name
                .iter()
                .flat_map(|&byte| match byte {
                    b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
                    _ => vec![byte],
                })
                .collect();
            prop_assert_eq!(unescape(&escaped), name);
        }
    }

    #[test]
    fn upper_directory_of_an_overlay_is_parsed() {
        let line = br"123 29 0:52 / /merged rw,relatime - overlay overlay rw,lowerdir=l/A:l/B,upperdir=/var/lib/a\040b/diff,workdir=/w";
        let (mount, upper) = with_upper(line).unwrap();
        assert_eq!((mount.fstype.as_str(), upper.as_deref()), ("overlay", Some(&b"/var/lib/a b/diff"[..])));
        let (mount, upper) = with_upper(b"124 29 0:53 / /data rw - btrfs /dev/vdb rw,subvol=/x").unwrap();
        assert_eq!((mount.source.as_str(), upper), ("/dev/vdb", None));
        assert!(with_upper(b"nonsense").is_none());
    }
}
