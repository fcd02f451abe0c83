//! Directories still to be read: each thread has its own stack, and idle threads get work
//! from its oldest end.
//!
//! Depth first, so that what waits stays small; and each stack keeps only a few directory
//! descriptors open, so that the walk needs a few hundred however deep or wide the trees.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::tree_directory::TreeDirectory;

/// Where a directory comes from.
#[derive(Clone, Copy, Debug)]
pub struct TreeOrigin {
    /// Position of the tree.
    pub tree: usize,
    /// The tree's filesystem, where extents are collected; else 0.
    pub filesystem: u64,
    /// `st_dev` of the tree's XFS, where inodes are counted by chunks.
    pub xfs: Option<u64>,
}

/// A directory that has been read, with the subdirectories that have not.
#[derive(Debug)]
pub struct Frame {
    /// The tree that it belongs to.
    pub origin: TreeOrigin,
    /// The location of the directory.
    pub place: Arc<TreeDirectory>,
    /// Device and inode number: it is the same one when it is opened again.
    pub identity: (u64, u64),
    /// The directory, unless it was closed to save descriptors.
    pub fd: Option<Arc<OwnedFd>>,
    /// Subdirectories to read, the next one last.
    pub children: Vec<Child>,
}

/// A subdirectory to read.
#[derive(Debug)]
pub struct Child {
    pub name: Box<CStr>,
    /// The inode number that its directory gives: what a mount may lie over.
    pub ino: u64,
}

impl Frame {
    /// Half of the subdirectories, those that would come last; `None` if there is only one.
    fn split(&mut self) -> Option<Self> {
        let half = self.children.len() / 2;
        if half == 0 {
            return None;
        }
        let rest = self.children.split_off(half);
        let children = std::mem::replace(&mut self.children, rest);
        Some(Self {
            origin: self.origin,
            place: Arc::clone(&self.place),
            identity: self.identity,
            fd: self.fd.clone(),
            children,
        })
    }
}

/// One thread's directories, the deepest last.
#[derive(Debug)]
pub struct Stack {
    frames: VecDeque<Frame>,
    /// How many frames may keep their directory open.
    open_limit: usize,
}

impl Stack {
    pub fn new(open_limit: usize) -> Self {
        Self { frames: VecDeque::new(), open_limit: open_limit.max(1) }
    }

    pub fn push(&mut self, frame: Frame) {
        if frame.children.is_empty() {
            return;
        }
        self.frames.push_back(frame);
        // The shallow ones are closed: they are needed last and found again with the
        // shortest way.
        if let Some(at) = self.frames.len().checked_sub(self.open_limit + 1) {
            self.frames[at].fd = None;
        }
    }

    /// The deepest directory, to take a child from.
    pub fn pop(&mut self) -> Option<Frame> {
        self.frames.pop_back()
    }

    /// Something for a thread that has nothing: the oldest directory, or half of the only
    /// one.
    pub fn give(&mut self) -> Option<Frame> {
        if self.frames.len() > 1 { self.frames.pop_front() } else { self.frames.front_mut()?.split() }
    }
}

/// Where threads meet that have nothing to do, and those that have too much.
#[derive(Debug, Default)]
pub struct Exchange {
    state: Mutex<QueueState>,
    changed: Condvar,
    ended: Condvar,
    /// Threads that wait, less the frames that lie ready for them. Only a hint.
    hungry: AtomicUsize,
}

#[derive(Debug, Default)]
struct QueueState {
    frames: Vec<Frame>,
    threads: usize,
    waiting: usize,
    over: bool,
}

impl Exchange {
    /// Lets one more thread in, which has to call [`Self::take`] until it gives `None`; `false` where the work is
    /// over.
    pub fn admit(&self) -> bool {
        let mut state = self.lock();
        state.threads += usize::from(!state.over);
        !state.over
    }

    /// A thread that was let in has not come.
    pub fn dismiss(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 && state.waiting >= state.threads {
            self.end(&mut state);
        }
    }

    /// Waits for the end of the work, but no longer than this.
    pub fn await_end(&self, at_most: Duration) {
        let state = self.lock();
        drop(self.ended.wait_timeout_while(state, at_most, |state| !state.over));
    }

    /// Whether a [`Self::give`] would find a taker.
    pub fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Relaxed) > 0
    }

    pub fn give(&self, frame: Frame) {
        let mut state = self.lock();
        state.frames.push(frame);
        self.count(&state);
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a frame; `None` when all threads wait and nothing is left.
    pub fn take(&self) -> Option<Frame> {
        let mut state = self.lock();
        state.waiting += 1;
        loop {
            if let Some(frame) = state.frames.pop() {
                state.waiting -= 1;
                self.count(&state);
                return Some(frame);
            }
            if state.over || state.waiting >= state.threads {
                self.end(&mut state);
                return None;
            }
            self.count(&state);
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives out nothing more: each thread ends with what it has.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.frames.clear();
        self.end(&mut state);
    }

    fn end(&self, state: &mut QueueState) {
        state.over = true;
        self.hungry.store(0, Ordering::Relaxed);
        self.changed.notify_all();
        self.ended.notify_all();
    }

    fn count(&self, state: &QueueState) {
        let hungry = state.waiting.saturating_sub(state.frames.len());
        self.hungry.store(hungry, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tree: usize, children: usize) -> Frame {
        let fd = std::fs::File::open("/").unwrap().into();
        let child = |ino| Child { name: c"x".into(), ino };
        Frame {
            origin: TreeOrigin { tree, filesystem: 0, xfs: None },
            place: TreeDirectory::start(),
            identity: (0, 0),
            fd: Some(Arc::new(fd)),
            children: (0..children as u64).map(child).collect(),
        }
    }

    #[test]
    fn a_deep_stack_keeps_few_directories_open() {
        let mut stack = Stack::new(3);
        for depth in 0..1000 {
            stack.push(frame(depth, 1));
        }
        assert_eq!(stack.frames.iter().filter(|frame| frame.fd.is_some()).count(), 3);
        assert!(stack.frames.iter().rev().take(3).all(|frame| frame.fd.is_some()));
        assert_eq!(stack.pop().unwrap().origin.tree, 999);
        assert_eq!(stack.give().unwrap().origin.tree, 0);
    }

    #[test]
    fn what_has_no_children_is_not_kept() {
        let mut stack = Stack::new(3);
        stack.push(frame(1, 0));
        assert!(stack.pop().is_none());
    }

    #[test]
    fn the_only_directory_is_halved_and_the_next_child_stays() {
        let mut stack = Stack::new(3);
        stack.push(frame(1, 5));
        let given = stack.give().unwrap();
        let kept = stack.pop().unwrap();
        assert_eq!((given.children.len(), kept.children.len()), (2, 3));
        assert_eq!(kept.children.last().unwrap().ino, 4);
        stack.push(frame(1, 1));
        assert!(stack.give().is_none());
    }

    #[test]
    fn all_threads_go_home_when_nothing_is_left() {
        let exchange = Exchange::default();
        assert!((0..4).all(|_| exchange.admit()));
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (exchange, taken) = (&exchange, &taken);
                scope.spawn(move || {
                    if thread == 0 {
                        (0..100).for_each(|tree| exchange.give(frame(tree, 1)));
                    }
                    while exchange.take().is_some() {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 100);
        assert!(!exchange.admit(), "the work is over");
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_not_come() {
        let exchange = Exchange::default();
        assert!(exchange.admit() && exchange.admit());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| exchange.take().is_none());
            exchange.await_end(Duration::from_millis(20));
            exchange.dismiss();
            assert!(waits.join().unwrap());
        });
    }
}
