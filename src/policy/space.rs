//! Targets for the free space of a filesystem, and the amounts that are missing to reach them. All numbers are
//! integers: nothing is rounded before a comparison.
//!
//! Used means *not available to an unprivileged user* (`f_blocks - f_bavail`), as the kubelet counts, so that the
//! thresholds of both mean the same. Unlike the kubelet, layersweep does not round: `high 75` is met from exactly
//! 75 hundredths of the capacity, while the kubelet's 75 is met by the first byte above 74 hundredths.

use std::fmt;

use crate::model::deletion::plan::FilesystemPlan;
use crate::model::space::{BytesAndInodes, InvalidStats, Space, Started};

/// Thresholds in percent used. Deletion starts at `high` and ends at `low`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Percentage at or above which deletion starts.
    pub high: u8,
    /// Percentage at or below which deletion ends.
    pub low: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeFloor {
    /// Number of available bytes below which deletion starts.
    pub start_below: u64,
    /// Number of available bytes at or above which deletion ends; at least `start_below`.
    pub until: u64,
}

/// Targets for every filesystem of a store. Each target starts and ends at its own two thresholds. A run ends when
/// all targets that started have ended, so that the target that needs most decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Percentage of the bytes used.
    pub used: Option<Thresholds>,
    /// Bytes available.
    pub free: Option<FreeFloor>,
    /// Percentage of the inodes used; no effect if the filesystem has no fixed number of inodes.
    pub inodes: Option<Thresholds>,
}

impl Targets {
    /// Returns the problem with a number of free bytes that exceeds the capacity. That target never starts; the
    /// others are not affected.
    #[must_use]
    pub fn impossible_floor(&self, space: &Space) -> Option<InvalidStats> {
        let capacity_bytes = space.capacity_bytes;
        let floor = self.free.filter(|floor| floor.until > capacity_bytes)?;
        Some(InvalidStats::FloorAboveCapacity { wanted_bytes: floor.until, capacity_bytes })
    }

    /// Returns the targets that start at these numbers.
    ///
    /// # Errors
    /// If a target cannot be judged by them.
    pub fn start(&self, space: &Space) -> Result<Started, InvalidStats> {
        if self.inodes.is_some() && space.inodes_free > space.inodes && space.inodes > 0 {
            return Err(InvalidStats::TooManyInodesFree { free: space.inodes_free, inodes: space.inodes });
        }
        let taken = space.capacity_bytes - space.available_bytes;
        let inodes_taken = space.inodes.saturating_sub(space.inodes_free);
        Ok(Started {
            used: self.used.is_some_and(|marks| at_or_above(taken, space.capacity_bytes, marks.high)),
            free: self.impossible_floor(space).is_none()
                && self.free.is_some_and(|floor| space.available_bytes < floor.start_below),
            inodes: space.inodes > 0
                && self.inodes.is_some_and(|marks| at_or_above(inodes_taken, space.inodes, marks.high)),
        })
    }

    /// Returns the bytes and inodes that are missing until the `started` targets have ended.
    #[must_use]
    pub fn wanted(&self, started: Started, space: &Space) -> BytesAndInodes {
        let marks = self.used.filter(|_| started.used);
        let by_share = marks.map_or(0, |marks| free_for(space.capacity_bytes, marks.low));
        let by_floor = self.free.filter(|_| started.free).map_or(0, |floor| floor.until);
        let inodes =
            self.inodes.filter(|_| started.inodes).map_or(0, |marks| free_for(space.inodes, marks.low));
        let missing = by_share.max(by_floor).saturating_sub(space.available_bytes);
        BytesAndInodes {
            bytes: if missing == 0 { 0 } else { missing.saturating_add(space.owed_bytes) },
            inodes: inodes.saturating_sub(space.inodes_free),
        }
    }
}

impl Targets {
    /// Returns the bytes and inodes that are missing after a plan; 0 if the last measurement is invalid.
    #[must_use]
    pub fn missing(&self, plan: &FilesystemPlan) -> BytesAndInodes {
        let after = plan.after.as_ref().and_then(|space| space.as_ref().ok());
        after.map_or_else(BytesAndInodes::default, |space| self.wanted(plan.started, space))
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(marks) = self.used {
            parts.push(format!("{} % used", marks.high));
        }
        if let Some(floor) = self.free {
            parts.push(format!("less than {} bytes available", floor.start_below));
        }
        if let Some(marks) = self.inodes {
            parts.push(format!("{} % of the inodes used", marks.high));
        }
        if parts.is_empty() {
            return f.write_str("no target is set");
        }
        f.write_str(&parts.join(", "))
    }
}

/// Returns whether images are worth deleting for inodes, if all images that may be deleted free `deletable` inodes
/// together: at least a tenth of the wanted ones. Fewer would not end the shortage, and the images would be missing
/// afterwards.
#[must_use]
pub fn helps(deletable: u64, wanted: u64) -> bool {
    /// Inverse of the minimum share.
    const SHARE: u64 = 10;
    deletable.saturating_mul(SHARE) >= wanted
}

/// Returns whether `part / whole >= percent / 100`, exactly.
fn at_or_above(part: u64, whole: u64, percent: u8) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// Returns the smallest number that must be free so that at most `low` percent of `whole` is used.
fn free_for(whole: u64, low: u8) -> u64 {
    let free = (u128::from(whole) * u128::from(100_u8.saturating_sub(low))).div_ceil(100);
    u64::try_from(free).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::space::Stat;

    fn space(capacity: u64, available: u64) -> Space {
        Space {
            capacity_bytes: capacity,
            available_bytes: available,
            owed_bytes: 0,
            inodes: 0,
            inodes_free: 0,
        }
    }

    fn percent(high: u8, low: u8) -> Targets {
        Targets { used: Some(Thresholds { high, low }), ..Targets::default() }
    }

    #[test]
    fn thresholds_are_exact() {
        for (capacity, available, starts, wanted) in [
            (1000, 251, false, 0),
            (1000, 250, true, 50),
            (1000, 249, true, 51),
            // 75 % of 999 is 749.25: 749 used is below, 750 above; low wants 299.7, so 300.
            (999, 250, false, 0),
            (999, 249, true, 51),
            (u64::MAX, u64::MAX / 4 + 1, false, 0),
            (u64::MAX, u64::MAX / 4, true, 922_337_203_685_477_582),
        ] {
            let targets = percent(75, 70);
            let space = space(capacity, available);
            let started = targets.start(&space).unwrap();
            assert_eq!(started.used, starts, "{space:?}");
            assert_eq!(targets.wanted(started, &space).bytes, wanted, "{space:?}");
        }
    }

    #[test]
    fn target_that_needs_most_decides() {
        let free = Some(FreeFloor { start_below: 300, until: 400 });
        let targets = Targets { free, ..percent(75, 70) };
        let both = Started { used: true, free: true, inodes: false };
        assert_eq!(targets.start(&space(1000, 250)).unwrap(), both);
        assert_eq!(targets.wanted(both, &space(1000, 250)).bytes, 150);
        let floor = Started { free: true, ..Started::default() };
        assert_eq!(targets.start(&space(1000, 299)).unwrap(), floor, "the share has not started");
        assert!(!targets.start(&space(1000, 300)).unwrap().any());
    }

    #[test]
    fn inodes_have_their_own_thresholds() {
        let targets = Targets { inodes: Some(Thresholds { high: 90, low: 85 }), ..Targets::default() };
        fn space(inodes: u64, inodes_free: u64) -> Space {
            Space { inodes, inodes_free, ..super::tests::space(1000, 500) }
        }
        let started = targets.start(&space(100, 10)).unwrap();
        assert_eq!(started, Started { inodes: true, ..Started::default() });
        assert_eq!(targets.wanted(started, &space(100, 10)), BytesAndInodes { bytes: 0, inodes: 5 });
        assert!(!targets.start(&space(100, 11)).unwrap().any());
        assert!(!targets.start(&space(0, 0)).unwrap().any(), "btrfs has no fixed number");
        assert_eq!(targets.start(&space(5, 6)), Err(InvalidStats::TooManyInodesFree { free: 6, inodes: 5 }));
        assert!(percent(75, 70).start(&space(5, 6)).is_ok(), "inodes have no target");
    }

    #[test]
    fn images_with_few_inodes_are_not_worth_deleting() {
        for (deletable, wanted, expected) in [
            (99, 29_289, false),
            (306, 29_289, false),
            (2_928, 29_289, false),
            (2_929, 29_289, true),
            (29_289, 29_289, true),
            (0, 1, false),
            (1, 1, true),
        ] {
            assert_eq!(helps(deletable, wanted), expected, "{deletable} of {wanted}");
        }
    }

    #[test]
    fn impossible_numbers_are_rejected() {
        assert_eq!(Space::checked(None, Some(1), None), Err(InvalidStats::Missing(Stat::Capacity)));
        assert_eq!(Space::checked(Some(1), None, None), Err(InvalidStats::Missing(Stat::Available)));
        assert_eq!(Space::checked(Some(0), Some(0), None), Err(InvalidStats::NoCapacity));
        assert!(matches!(Space::checked(Some(5), Some(6), None), Err(InvalidStats::TooMuchAvailable { .. })));
        let free = Some(FreeFloor { start_below: 10, until: 2000 });
        let targets = Targets { free, ..percent(40, 30) };
        let impossible = targets.impossible_floor(&space(1000, 500));
        assert!(matches!(impossible, Some(InvalidStats::FloorAboveCapacity { .. })), "{impossible:?}");
        let others = Started { used: true, ..Started::default() };
        assert_eq!(targets.start(&space(1000, 500)), Ok(others), "the other targets apply");
    }

    fn is_at_or_below(space: &Space, percent: u8) -> bool {
        let taken = space.capacity_bytes - space.available_bytes;
        u128::from(taken) * 100 <= u128::from(space.capacity_bytes) * u128::from(percent)
    }

    proptest! {
        /// Freeing exactly the wanted bytes ends the run; one byte less does not.
        #[test]
        fn wanted_is_exact(
            capacity in 1..=u64::MAX, taken in any::<u64>(), high in 1..=100_u8, below in 0..=100_u8,
        ) {
            let low = high.saturating_sub(below);
            let targets = percent(high, low);
            let before = space(capacity, capacity - taken % capacity);
            let started = targets.start(&before).unwrap();
            let wanted = targets.wanted(started, &before).bytes;
            prop_assert!(wanted <= capacity);
            if started.used {
                prop_assert!(is_at_or_below(&before.gained(wanted, 0), low));
                if wanted > 0 { prop_assert!(!is_at_or_below(&before.gained(wanted - 1, 0), low)); }
            }
        }
    }
}
