//! Directories still to be read. Each thread has its own stack; idle threads get work from the oldest end of another
//! thread's stack.
//!
//! Each thread works depth first, so that the number of waiting directories stays small. A stack keeps only a few
//! directory descriptors open, so that the walk needs a few hundred of them for trees of any depth and width.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::extents::Reflinks;
use super::tree_directory::TreeDirectory;

#[derive(Clone, Copy, Debug)]
pub struct TreeOrigin {
    pub tree: usize,
    /// The tree's filesystem if files on it are asked for their extents.
    pub reflinks: Option<Reflinks>,
    /// `st_dev` of the tree's XFS if its inodes are counted by chunk.
    pub xfs: Option<u64>,
}

/// A directory that has been read, with its subdirectories that have not.
#[derive(Debug)]
pub struct Frame {
    pub origin: TreeOrigin,
    pub place: Arc<TreeDirectory>,
    /// Device and inode number, to recognize the directory when it is reopened.
    pub identity: (u64, u64),
    /// Descriptor of the directory, unless it was closed to save descriptors.
    pub fd: Option<Arc<OwnedFd>>,
    /// Subdirectories still to be read, the next one last.
    pub children: Vec<Child>,
}

/// A subdirectory still to be read.
#[derive(Debug)]
pub struct Child {
    pub name: Box<CStr>,
    /// Inode number in its directory: that of a directory which a mount may cover.
    pub ino: u64,
}

impl Frame {
    /// Splits off the half of the subdirectories that would be read last; `None` if there is only one.
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

/// Directories of one thread, the deepest last.
#[derive(Debug)]
pub struct Stack {
    frames: VecDeque<Frame>,
    /// Maximum number of frames with an open descriptor.
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
        // Close the shallowest: they are needed last, and the path to reopen them is the shortest.
        if let Some(index) = self.frames.len().checked_sub(self.open_limit + 1) {
            self.frames[index].fd = None;
        }
    }

    /// Returns the deepest directory, to read one of its subdirectories.
    pub fn pop(&mut self) -> Option<Frame> {
        self.frames.pop_back()
    }

    /// Returns work for an idle thread: the oldest directory, or half of the only one.
    pub fn give(&mut self) -> Option<Frame> {
        if self.frames.len() > 1 { self.frames.pop_front() } else { self.frames.front_mut()?.split() }
    }
}

/// Passes directories from busy threads to idle ones.
#[derive(Debug, Default)]
pub struct Exchange {
    state: Mutex<QueueState>,
    changed: Condvar,
    ended: Condvar,
    /// Number of waiting threads minus the frames available for them. Only a hint.
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
    /// Adds a thread, which must call [`Self::take`] until it returns `None`. Returns false if the work is
    /// finished.
    pub fn admit(&self) -> bool {
        let mut state = self.lock();
        state.threads += usize::from(!state.over);
        !state.over
    }

    /// Removes an added thread that could not be started.
    pub fn dismiss(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 && state.waiting >= state.threads {
            self.end(&mut state);
        }
    }

    /// Waits until the work is finished, at most for this time.
    pub fn await_end(&self, at_most: Duration) {
        let state = self.lock();
        drop(self.ended.wait_timeout_while(state, at_most, |state| !state.over));
    }

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

    /// Waits for a frame. Returns `None` when all threads wait and no work is left.
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

    /// Discards the remaining frames, so that each thread ends when its own stack is empty.
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
        Frame {
            origin: TreeOrigin { tree, reflinks: None, xfs: None },
            place: TreeDirectory::start(),
            identity: (0, 0),
            fd: Some(Arc::new(fd)),
            children: (0..children as u64).map(|ino| Child { name: c"x".into(), ino }).collect(),
        }
    }

    #[test]
    fn deep_stack_keeps_few_directories_open() {
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
    fn frame_without_children_is_dropped() {
        let mut stack = Stack::new(3);
        stack.push(frame(1, 0));
        assert!(stack.pop().is_none());
    }

    #[test]
    fn only_directory_is_split_and_keeps_next_child() {
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
    fn all_threads_end_when_no_work_is_left() {
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
    fn missing_thread_is_not_waited_for() {
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
