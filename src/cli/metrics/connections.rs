//! The connections at a time: when there are too many, who has not said anything for longest goes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Whether a connection has sent its request.
pub(super) type Heard = Rc<Cell<bool>>;

/// Connections in the order in which they came.
#[derive(Default)]
pub(super) struct Connections {
    open: VecDeque<(AbortHandle, Heard)>,
}

impl Connections {
    /// Makes room, so that with another one there are at most `most`: the oldest goes that has not sent
    /// its request, or else the oldest.
    pub(super) fn make_room(&mut self, most: usize) {
        self.open.retain(|(task, _)| !task.is_finished());
        while self.open.len() >= most.max(1) {
            let silent = self.open.iter().position(|(_, heard)| !heard.get());
            if let Some((task, _)) = self.open.remove(silent.unwrap_or(0)) {
                task.abort();
            }
        }
    }

    /// Takes up a connection.
    pub(super) fn add(&mut self, task: AbortHandle, heard: Heard) {
        self.open.push_back((task, heard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_silent_goes_first() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut connections = Connections::default();
            let mut tasks: Vec<_> = [true, false, false, true]
                .into_iter()
                .map(|heard| {
                    let task = tokio::task::spawn_local(std::future::pending::<()>());
                    connections.add(task.abort_handle(), Rc::new(Cell::new(heard)));
                    task
                })
                .collect();
            connections.make_room(4);
            assert!(tasks.remove(1).await.unwrap_err().is_cancelled());
            connections.make_room(3);
            assert!(tasks.remove(1).await.unwrap_err().is_cancelled());
            connections.make_room(2);
            assert!(tasks.remove(0).await.unwrap_err().is_cancelled(), "somebody has to");
            assert!(!tasks[0].is_finished());
            tasks[0].abort();
            let _ = tasks.remove(0).await;
            connections.make_room(1);
            assert!(connections.open.is_empty());
        });
    }
}
