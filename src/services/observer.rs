//! Messages of a use case while it works.

use std::fmt;
use std::sync::Arc;

use crate::disk::Progress;
use crate::history::runs::Event;
use crate::model::Finding;
use crate::model::deletion::plan::Target;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The message is not shown with `--quiet`.
    Usual,
    /// The message is always shown. A timer runs with `--quiet`, and the operator must learn of it nevertheless.
    Always,
}

#[derive(Clone, Copy, Debug)]
pub struct Deleting<'a> {
    /// Position among the planned deletions, from 1.
    pub number: usize,
    pub planned: usize,
    pub target: &'a Target,
    pub freed_bytes: u64,
}

/// Receives the messages of a use case, and shows, logs or drops them.
pub trait Observer: fmt::Debug {
    /// Receives information that is neither a result nor a problem.
    fn note(&self, message: &str);

    /// Receives a problem that does not end the use case. An empty `hint` is not shown.
    fn warn(&self, audience: Audience, message: &str, hint: &str);

    fn finding(&self, audience: Audience, finding: &Finding);

    fn findings(&self, audience: Audience, findings: &[Finding]) {
        findings.iter().for_each(|finding| self.finding(audience, finding));
    }

    fn deleting(&self, deleting: &Deleting<'_>) {
        let _ = deleting;
    }

    /// Receives an event that the kubelet would emit for its node.
    fn event(&self, event: &Event) {
        let _ = event;
    }

    /// A long operation has begun; `message` says how far it is, until the returned value is dropped.
    fn working(&self, message: Box<dyn Fn() -> String + Send>) -> Shown {
        let _ = message;
        Shown::default()
    }

    /// A measurement has begun; `progress` is current until the returned value is dropped.
    fn measuring(&self, progress: &Arc<Progress>) -> Shown {
        let _ = progress;
        Shown::default()
    }
}

/// Guard of a display, for example a progress bar: dropping it ends the display.
#[derive(Default)]
pub struct Shown(Option<Box<dyn FnOnce()>>);

impl Shown {
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
