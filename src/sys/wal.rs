//! SQLite's write-ahead log (<https://www.sqlite.org/fileformat2.html#walformat>), for reading a database
//! that others have open: SQLite itself would take locks and write files beside it. Pure; all of it is
//! foreign data.

const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// The database as a reader would see it who has the log too: `database` with the
/// committed frames of `wal` put over it. Frames after the last valid commit do not count,
/// as for SQLite itself: they were never committed, or are left from before a checkpoint.
#[must_use]
pub fn with_wal(mut database: Vec<u8>, wal: &[u8]) -> Vec<u8> {
    let Some(log) = Log::parse(wal) else {
        return database;
    };
    let Some((committed, pages)) = log.committed() else {
        return database;
    };
    // The frames are as many as `pages` at least once over, so this cannot be absurdly long,
    // unless the page count itself is forged: a database has no page without bytes.
    let most = database.len() / log.page_size + committed;
    if pages > most {
        return database;
    }
    database.resize(pages * log.page_size, 0);
    for (number, page) in log.frames().take(committed) {
        let start = (number as usize).saturating_sub(1).saturating_mul(log.page_size);
        if let Some(place) = database.get_mut(start..start.saturating_add(log.page_size)) {
            place.copy_from_slice(page);
        }
    }
    database
}

/// The newest committed first page in `wal`.
#[must_use]
pub fn first_page(wal: &[u8]) -> Option<&[u8]> {
    let log = Log::parse(wal)?;
    let (committed, _) = log.committed()?;
    log.frames().take(committed).filter(|(number, _)| *number == 1).map(|(_, page)| page).last()
}

/// A write-ahead log.
struct Log<'a> {
    bytes: &'a [u8],
    page_size: usize,
    big_endian: bool,
    checksum: (u32, u32),
}

impl<'a> Log<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head = bytes.get(..WAL_HEADER)?;
        let magic = big(head, 0)?;
        if magic & !1 != 0x377f_0682 || big(head, 4)? != 3_007_000 {
            return None;
        }
        let page_size = big(head, 8)? as usize;
        if !(512..=65536).contains(&page_size) || !page_size.is_power_of_two() {
            return None;
        }
        let big_endian = magic & 1 == 1;
        let checksum = sum((0, 0), &head[..24], big_endian);
        let log = Self { bytes, page_size, big_endian, checksum };
        (checksum == (big(head, 24)?, big(head, 28)?)).then_some(log)
    }

    /// How many frames count, and how many pages the database has after them.
    fn committed(&self) -> Option<(usize, usize)> {
        let salts = &self.bytes[16..24];
        let mut checksum = self.checksum;
        let mut last = None;
        let frames = self.bytes[WAL_HEADER..].chunks_exact(FRAME_HEADER + self.page_size);
        for (at, frame) in frames.enumerate() {
            let (head, page) = frame.split_at(FRAME_HEADER);
            checksum = sum(sum(checksum, &head[..8], self.big_endian), page, self.big_endian);
            let valid =
                &head[8..16] == salts && big(head, 0)? != 0 && (big(head, 16)?, big(head, 20)?) == checksum;
            if !valid {
                break;
            }
            let pages = big(head, 4)? as usize;
            if pages > 0 {
                last = Some((at + 1, pages));
            }
        }
        last
    }

    /// Page numbers and pages of all frames, valid or not.
    fn frames(&self) -> impl Iterator<Item = (u32, &'a [u8])> {
        self.bytes[WAL_HEADER..].chunks_exact(FRAME_HEADER + self.page_size).filter_map(|frame| {
            let (head, page) = frame.split_at(FRAME_HEADER);
            Some((big(head, 0)?, page))
        })
    }
}

fn sum(start: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |bytes: &[u8]| {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    bytes.chunks_exact(8).fold(start, |(first, second), pair| {
        let first = first.wrapping_add(word(&pair[..4])).wrapping_add(second);
        (first, second.wrapping_add(word(&pair[4..])).wrapping_add(first))
    })
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rusqlite::Connection;

    /// What SQLite itself makes of database and log is the judge.
    #[test]
    fn a_log_counts_up_to_its_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let wal = dir.path().join("db-wal");
        let writer = Connection::open(&path).unwrap();
        writer.pragma_update(None, "journal_mode", "WAL").unwrap();
        writer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        writer.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (randomblob(9000));").unwrap();
        writer.execute_batch("PRAGMA wal_checkpoint; INSERT INTO t VALUES (1);").unwrap();
        writer.execute_batch("INSERT INTO t VALUES (randomblob(20000)); DELETE FROM t WHERE a = 1;").unwrap();
        writer.pragma_update(None, "user_version", 5).unwrap();
        let (database, log) = (std::fs::read(&path).unwrap(), std::fs::read(&wal).unwrap());
        assert_eq!(big(first_page(&log).unwrap(), 60), Some(5));
        let mine = with_wal(database.clone(), &log);
        drop(writer);
        let theirs = std::fs::read(&path).unwrap();
        assert_eq!(mine.len(), theirs.len());
        assert!(mine == theirs, "differs from what SQLite checkpoints");
        // Without its last frame, the last commit is gone, and the one before counts.
        let cut = with_wal(database.clone(), &log[..log.len() - 1]);
        assert_eq!(big(&cut, 60), Some(0));
        // A frame that is not what its checksum says ends the log.
        let mut garbled = log.clone();
        garbled[WAL_HEADER + FRAME_HEADER + 100] ^= 1;
        assert!(with_wal(database.clone(), &garbled) == database);
        assert_eq!(first_page(&garbled), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..2000), flip in 0usize..2000) {
            let mut log = vec![0x37, 0x7f, 6, 0x82, 0, 0x2d, 0xe2, 0x18, 0, 0, 2, 0];
            log.extend(&bytes);
            if log.len() >= WAL_HEADER {
                let checksum = sum((0, 0), &log[..24], false);
                log[24..28].copy_from_slice(&checksum.0.to_be_bytes());
                log[28..32].copy_from_slice(&checksum.1.to_be_bytes());
                prop_assert!(Log::parse(&log).is_some());
            }
            let _ = with_wal(bytes.clone(), &log);
            let at = flip % log.len();
            log[at] ^= 0x55;
            let _ = (with_wal(bytes, &log), first_page(&log).is_some());
        }
    }
}
