//! The header of an SQLite file, which must be known before SQLite may open it:
//! <https://www.sqlite.org/fileformat2.html>. Pure; all of it is foreign data.

use crate::sys::sqlite::HEADER;

/// "lswp", in the header of every database of ours.
pub(super) const APPLICATION_ID: u32 = 0x6c73_7770;

/// What the first page of a database says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Whether it is written through a write-ahead log.
    pub(super) wal: bool,
    /// `PRAGMA user_version`: how many migrations were applied.
    pub(super) user_version: u32,
}

impl Header {
    /// Reads the first bytes of a file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.is_empty() {
            return Err("it is empty");
        }
        let (Some(head), Some(user_version), Some(application)) =
            (bytes.get(..HEADER), big(bytes, 60), big(bytes, 68))
        else {
            return Err("it is shorter than a header");
        };
        if !head.starts_with(b"SQLite format 3\0") {
            return Err("it is not an SQLite database");
        }
        if !matches!((head[18], head[19]), (1, 1) | (2, 2)) {
            return Err("its format version is unknown");
        }
        if application != APPLICATION_ID {
            return Err("it is not a database of layersweep");
        }
        if user_version == 0 {
            return Err("its schema has no version");
        }
        Ok(Self { wal: head[19] == 2, user_version })
    }
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(edit: impl FnOnce(&mut [u8])) -> Result<Header, &'static str> {
        let mut bytes = vec![0; HEADER];
        bytes[..16].copy_from_slice(b"SQLite format 3\0");
        bytes[18..20].copy_from_slice(&[2, 2]);
        bytes[60..64].copy_from_slice(&7u32.to_be_bytes());
        bytes[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        edit(&mut bytes);
        Header::parse(&bytes)
    }

    #[test]
    fn headers() {
        let good = Header { wal: true, user_version: 7 };
        assert_eq!(header(|_| ()), Ok(good));
        assert_eq!(header(|b| b[18..20].fill(1)), Ok(Header { wal: false, ..good }));
        let newer = Header { user_version: u32::MAX, ..good };
        assert_eq!(header(|b| b[60..64].fill(0xff)), Ok(newer));
        for (edit, why) in [
            ((|b| b.fill(0)) as fn(&mut [u8]), "not an SQLite database"),
            (|b| b[18] = 3, "format version"),
            (|b| b[68] = 0, "not a database of layersweep"),
            (|b| b[60..64].fill(0), "no version"),
        ] {
            assert!(header(edit).unwrap_err().contains(why), "{why}");
        }
        assert!(Header::parse(b"").unwrap_err().contains("empty"));
        assert!(Header::parse(b"SQLite format 3\0").unwrap_err().contains("shorter"));
    }
}
