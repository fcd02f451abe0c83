//! Parallel walker: like `du` over many trees at once, with each byte attributed to one unit.
//!
//! After a short start it uses many more threads than cores, because a walk of a cold tree mostly waits for the disk.
//! Each directory is one piece of work: a thread opens it relative to its parent (so names may contain any bytes, and
//! paths may have any length), reads it, and examines its entries one after the other.

mod counters;
mod directory;
mod extents;
mod links;
mod queue;
mod refused;
mod shared;
mod start;
mod tree_directory;
mod types;
mod worker;

use std::num::NonZero;
use std::path::PathBuf;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

pub(super) use extents::{Reflinks, ask_held};
pub use types::{
    ExtentOptions, Measured, Progress, SharedInodes, Tally, Tree, TreeScope, UnitExtents, WalkError,
    WalkOptions,
};

use crate::disk::inode_chunks::Holding;
use crate::disk::sharing::{self, SharedExtents, UnitRuns};
use queue::Exchange;
use shared::Walk;
use worker::{Findings, Worker};

/// Default number of threads. On cold disks 32 threads needed half the time of 2.
const DEFAULT_THREADS: usize = 32;

/// Time after which more threads than cores are started. A small store in the page cache has been read by then; on a
/// cold disk the delay does not matter.
const MORE_THREADS_AFTER: Duration = Duration::from_millis(2);

/// Stack size of each thread, in bytes.
const STACK: usize = 256 << 10;

/// Directories that all threads together keep open; below the usual limit of 1024 files.
const OPEN_DIRECTORIES: usize = 384;

/// Measures trees. Errors are in [`Measured::errors`].
#[must_use]
pub fn measure(roots: &[PathBuf], trees: &[Tree<'_>], options: &WalkOptions<'_>) -> Measured {
    Walk::new(roots, trees, options).run(options.threads)
}

impl Walk<'_> {
    fn run(self, threads: usize) -> Measured {
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let threads = if threads == 0 { DEFAULT_THREADS } else { threads };
        let threads = threads.clamp(1, (open_files / 8).clamp(1, 128));
        let open_each = OPEN_DIRECTORIES.min(open_files / 3) / threads;
        let mut findings = Findings::default();
        for found in self.in_threads(threads, open_each) {
            findings.append(found);
        }
        self.conclude(findings)
    }

    /// Runs the workers, on fewer threads if the system refuses some.
    fn in_threads(&self, threads: usize, open_each: usize) -> Vec<Findings> {
        let exchange = Exchange::default();
        thread::scope(|scope| {
            let cores = thread::available_parallelism().map_or(1, NonZero::get);
            let mut running = Vec::new();
            self.start_workers(scope, &exchange, open_each, threads.min(cores), &mut running);
            if running.is_empty() && exchange.admit() {
                return vec![Worker::new(self, &exchange, open_each).run()];
            }
            exchange.await_end(MORE_THREADS_AFTER);
            self.start_workers(scope, &exchange, open_each, threads, &mut running);
            let joined = running.into_iter().map(ScopedJoinHandle::join);
            joined.map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// Starts workers until `threads` of them run, the system refuses another thread, or no work is left.
    fn start_workers<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        exchange: &'scope Exchange,
        open_each: usize,
        threads: usize,
        running: &mut Vec<ScopedJoinHandle<'scope, Findings>>,
    ) {
        while running.len() < threads && exchange.admit() {
            let number = running.len();
            let builder = thread::Builder::new().name(format!("walk-{number}")).stack_size(STACK);
            match builder.spawn_scoped(scope, move || Worker::new(self, exchange, open_each).run()) {
                Ok(handle) => running.push(handle),
                Err(error) => {
                    exchange.dismiss();
                    tracing::debug!(%error, number, "cannot start that many threads");
                    return;
                }
            }
        }
    }

    fn conclude(self, findings: Findings) -> Measured {
        let Self { counters, links, xfs, .. } = self;
        let Findings { mut errors, mut mounts, mut inodes, mut extents } = findings;
        let shared_inodes = links.finish(|settled| {
            if let Some(unit) = settled.unit {
                counters.add(unit, settled.tally, i64::MIN);
            }
            if let Some((device, inode)) = settled.outside.filter(|(device, _)| xfs.contains(&Some(*device)))
            {
                inodes.add(Holding::of(device, inode, None));
            }
            if let Some((filesystem, runs)) = settled.extents {
                extents.add(filesystem, settled.unit, &runs);
            }
        });
        errors.sort_unstable_by(|a, b| (a.unit, &a.path).cmp(&(b.unit, &b.path)));
        mounts.sort_unstable();
        let (units, newest) = counters.into_tallies();
        Measured {
            units,
            newest,
            shared_inodes,
            has_estimates: extents.has_estimates,
            extents: extents.into_units(),
            inodes: inodes.into_holdings(),
            errors,
            mounts,
        }
    }
}

impl Measured {
    /// Returns the extents that do not belong to a single file of these trees.
    #[must_use]
    pub fn shared_extents(&self) -> Vec<SharedExtents> {
        let units = self.extents.iter().flat_map(|(unit, extents)| {
            extents.runs.iter().map(|runs| UnitRuns { unit: *unit, runs, is_fresh: true })
        });
        sharing::find(&units.collect::<Vec<_>>(), Vec::new()).groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::beneath::Opener;
    use std::fs;
    use std::path::Path;

    #[test]
    fn both_openers_find_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..100 {
            let sub = dir.path().join(format!("{}/{}/{number}", number % 3, number % 7));
            fs::create_dir_all(&sub).unwrap();
            fs::write(sub.join("file"), vec![1; number * 100]).unwrap();
            std::os::unix::fs::symlink("/", sub.join("link")).unwrap();
        }
        let roots = [dir.path().to_path_buf(), PathBuf::from("/")];
        fn tree(root: usize, path: &'static str, unit: usize, scope: TreeScope) -> Tree<'static> {
            Tree { root, path: Path::new(path).into(), unit, scope }
        }
        let trees = [
            tree(0, "", 0, TreeScope::Whole),
            tree(0, "1/1", 1, TreeScope::Whole),
            tree(0, "2/2/2/file", 2, TreeScope::Whole),
            tree(0, "2/2/2/link", 3, TreeScope::Whole),
            tree(0, "2/2/2/link/x", 4, TreeScope::Whole),
            tree(1, "proc", 5, TreeScope::EntryOnly),
        ];
        let [kernel, steps] = [Opener::Openat2, Opener::Steps].map(|opener| {
            let walk = Walk { opener, ..Walk::new(&roots, &trees, &WalkOptions::default()) };
            walk.run(2)
        });
        assert_eq!(kernel.units, steps.units);
        assert_eq!(kernel.units[0].inodes, 1 + 3 + 21 + 100 * 3);
        assert_eq!((kernel.errors.len(), steps.errors.len()), (1, 1));
        assert_eq!(kernel.errors[0].path, steps.errors[0].path);
    }

    #[test]
    fn missing_trees_and_roots_do_not_panic() {
        let options = WalkOptions::default();
        assert!(measure(&[], &[], &options).units.is_empty());
        let tree = Tree { root: 3, path: Path::new("x").into(), unit: 1, scope: TreeScope::Whole };
        let measured = measure(&[], &[tree], &options);
        assert_eq!((measured.units.len(), measured.errors.len()), (2, 1));
    }
}
