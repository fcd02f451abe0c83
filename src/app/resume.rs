//! Finishing what killed runs began.

use crate::execute::editors::Editors;
use crate::model::plan::{Phase, Problem};

/// Finishes it: how many images, layers and temporary files, and what could not be finished.
pub(super) fn resume(editors: &Editors) -> (usize, Vec<Problem>) {
    let (mut resumed, mut problems) = (0, Vec::new());
    for (store, result) in editors.resume() {
        match result {
            Ok(done) => {
                resumed += done.images.len() + done.layers.len() + done.orphans.len();
                resumed += done.containers.len();
                resumed += usize::from(done.removed > 0 && done.is_unnamed());
            }
            Err(error) => {
                let root = store.root().to_string_lossy().into_owned();
                problems.push(Problem::new(Some(root), Phase::Resume, error.to_string()));
            }
        }
    }
    (resumed, problems)
}
