//! What a use case says while it works.

use std::fmt;
use std::sync::Arc;

use crate::disk::Progress;
use crate::history::runs::Event;
use crate::model::Finding;
use crate::model::plan::Target;

/// Who has to see a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Whoever did not ask for quiet.
    Usual,
    /// Everybody: a timer runs quietly, yet somebody must learn of it.
    Always,
}

/// A deletion that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct Deleting<'a> {
    /// Its place among those that are planned.
    pub number: usize,
    pub planned: usize,
    pub target: &'a Target,
    /// Bytes freed so far.
    pub freed_bytes: u64,
}

/// Receives what a use case says while it works, and shows it, logs it or drops it.
pub trait Observer: fmt::Debug {
    /// Something worth knowing that is neither a result nor a problem.
    fn note(&self, message: &str);

    /// Something is wrong, and the use case goes on. An empty `hint` is none.
    fn warn(&self, audience: Audience, message: &str, hint: &str);

    /// Something in a store or a file of the node is wrong or could not be read.
    fn finding(&self, audience: Audience, finding: &Finding);

    /// Several findings.
    fn findings(&self, audience: Audience, findings: &[Finding]) {
        findings.iter().for_each(|finding| self.finding(audience, finding));
    }

    /// Something is about to be deleted.
    fn deleting(&self, deleting: &Deleting<'_>) {
        let _ = deleting;
    }

    /// What the kubelet would tell its node.
    fn event(&self, event: &Event) {
        let _ = event;
    }

    /// A measurement has begun; `progress` is current until the returned value is dropped.
    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        let _ = progress;
        Shown::default()
    }
}

/// Something that is shown until this is dropped.
#[derive(Default)]
pub struct Shown(Option<Box<dyn FnOnce()>>);

impl Shown {
    /// `end` takes it away again.
    pub fn until(end: impl FnOnce() + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shown").field(&self.0.is_some()).finish()
    }
}
