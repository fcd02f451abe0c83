//! Replay: what a policy would have done to the past of a node.
//!
//! A [`Trace`] says which images came, when containers used them, and how full the disk was otherwise. A replay plays it
//! to one collector, which decides alone what is deleted: the deletions of layersweep in the trace are left out, those of
//! other programs happen. An image that the collector deleted and that the trace wants again (it arrives again, or a
//! container uses it) is pulled again, and counted. Example: a node deletes `web:1` by age after a week, and a release is
//! rolled back after eight days. The replay with `max_age = "7d"` pulls `web:1` again, the one with `"14d"` does not.
//!
//! The planner and the rules are those of `gc` ([`crate::policy::plan`]). A run takes place at each period of the timer
//! and whenever a pull has no room; then it sees the disk as if the pull were on it. If there is no room afterwards
//! either, the pull waits for the next run.
//!
//! Two collectors are for comparison. The clairvoyant one deletes what is wanted last: the same planner, whose ages say
//! the future, so that no order of deletion pulls less if all images are equally large. It deletes nothing by age. The
//! kubelet's is [`crate::policy::kubelet`].

mod node;
mod sums;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use jiff::{SignedDuration, Timestamp};

use crate::model::deletion::plan;
use crate::model::documents::trace::{DepartedBy, Trace, TracedChange};
use crate::model::refs::Refs;
use crate::model::space::Space;
use crate::model::{Answer, ImageIx, StoreId};
use crate::policy::input::{Ages, Facts, Input, Policy};
use crate::policy::kubelet::{KubeletPolicy, ListedContainer, ListedImage, Listing, SimulatedNode};
use crate::policy::plan::{Planner, Task};
use crate::policy::space::Thresholds;

use node::ReplayedNode;
pub use sums::{Quantiles, ReplayFigures, ReplaySums, ReplayedSums};

#[derive(Clone, Copy, Debug)]
pub enum Collector<'a> {
    /// The deletions of layersweep in the trace, and no others.
    Recorded,
    Exact(&'a Policy),
    /// Policy `exact` with knowledge of the future.
    Clairvoyant(&'a Policy),
    Kubelet(KubeletPolicy),
}

/// Deletion of a replay; the image is a position in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedDeletion {
    pub time: Timestamp,
    pub image: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    pub deletions: Vec<ReplayedDeletion>,
    pub figures: ReplayFigures,
}

/// Plays a trace to a collector that runs every `period`. `marks`: thresholds above which the time is counted.
#[must_use]
pub fn replay(
    trace: &Trace,
    collector: Collector<'_>,
    period: SignedDuration,
    marks: Option<Thresholds>,
) -> Replayed {
    let mut replay = Replay::new(trace, collector, (period.max(SignedDuration::from_secs(1)), marks));
    let begun = trace.changes.partition_point(|(time, _)| *time < trace.header.from);
    for (time, change) in &trace.changes[..begun] {
        replay.node.begin_with(*time, *change);
    }
    for (time, change) in &trace.changes[begun..] {
        replay.run_until(*time);
        replay.advance(*time);
        replay.change(*time, *change);
    }
    replay.run_until(trace.header.to);
    replay.finish()
}

/// Returns the bytes of the images at these ascending times, if they come and go as the trace says.
#[must_use]
pub fn recorded_bytes(trace: &Trace, times: impl IntoIterator<Item = Timestamp>) -> Vec<u64> {
    let mut node = ReplayedNode::new(trace);
    let mut changes = trace.changes.iter().peekable();
    let bytes = times.into_iter().map(|until| {
        while let Some((time, change)) = changes.next_if(|(time, _)| *time <= until) {
            node.begin_with(*time, *change);
        }
        node.stored_bytes()
    });
    bytes.collect()
}

#[derive(Debug)]
struct Replay<'a> {
    trace: &'a Trace,
    collector: Collector<'a>,
    policy: Cow<'a, Policy>,
    period: SignedDuration,
    ticked: Timestamp,
    marks: Option<Thresholds>,
    node: ReplayedNode<'a>,
    /// By image: the times at which the trace wants it, from the last to the first; only for the clairvoyant.
    wanted: Vec<Vec<Timestamp>>,
    /// Images whose pulls wait, with the beginning of the wait.
    waiting: Vec<(usize, Timestamp)>,
    /// Until this time a run decides nothing new unless something changes.
    settled_until: Option<Timestamp>,
    now: Timestamp,
    area: f64,
    deletions: Vec<ReplayedDeletion>,
    figures: ReplayFigures,
}

impl<'a> Replay<'a> {
    fn new(
        trace: &'a Trace,
        collector: Collector<'a>,
        (period, marks): (SignedDuration, Option<Thresholds>),
    ) -> Self {
        let mut node = ReplayedNode::new(trace);
        let mut wanted = Vec::new();
        let policy = match collector {
            Collector::Recorded | Collector::Kubelet(_) => Cow::Owned(Policy::default()),
            Collector::Exact(policy) => Cow::Borrowed(policy),
            Collector::Clairvoyant(policy) => {
                let mut policy = policy.clone();
                policy.disable_age_pass();
                wanted = times_wanted(trace);
                Cow::Owned(policy)
            }
        };
        match collector {
            Collector::Kubelet(kubelet) => {
                let max_age = Some(kubelet.max_age).filter(|age| !age.is_zero());
                node.set_limits(|_| (kubelet.min_age, max_age));
            }
            _ => node.set_limits(|image| (policy.min_age_of(image).value, policy.max_age_of(image).value)),
        }
        let now = trace.header.from;
        Self {
            trace,
            collector,
            policy,
            period,
            ticked: now,
            marks,
            node,
            wanted,
            waiting: Vec::new(),
            settled_until: None,
            now,
            area: 0.0,
            deletions: Vec::new(),
            figures: ReplayFigures::default(),
        }
    }

    /// Runs the timer as often as it is due until a time.
    fn run_until(&mut self, time: Timestamp) {
        while let Ok(next) = self.ticked.checked_add(self.period)
            && next <= time
        {
            self.ticked = next;
            self.timer(next);
        }
    }

    /// Counts the time since the last change.
    #[allow(clippy::cast_precision_loss)] // shown with two decimals
    fn advance(&mut self, to: Timestamp) {
        let space = self.node.space(0);
        let percent = space.used_percent();
        self.figures.peak_percent = self.figures.peak_percent.max(percent);
        let passed = to.duration_since(self.now);
        self.now = to;
        let seconds = passed.as_secs_f64();
        self.area += percent * seconds;
        if let Some(marks) = self.marks {
            let whole = u64::try_from(passed.as_secs()).unwrap_or(0);
            self.figures.above_high_seconds += if percent >= f64::from(marks.high) { whole } else { 0 };
            self.figures.above_low_seconds += if percent > f64::from(marks.low) { whole } else { 0 };
        }
    }

    fn finish(mut self) -> Replayed {
        self.advance(self.trace.header.to);
        let end = self.now;
        for (_, since) in std::mem::take(&mut self.waiting) {
            self.figures.waited_seconds += seconds(end.duration_since(since));
        }
        let whole = end.duration_since(self.trace.header.from);
        self.figures.seconds = seconds(whole);
        let divisor = whole.as_secs_f64();
        self.figures.mean_percent =
            if divisor > 0.0 { self.area / divisor } else { self.figures.peak_percent };
        Replayed { deletions: self.deletions, figures: self.figures }
    }

    fn change(&mut self, now: Timestamp, change: TracedChange) {
        self.settled_until = None;
        match change {
            TracedChange::Others(bytes) => self.node.others_bytes = bytes,
            TracedChange::Arrives(image) => self.want(image, now),
            TracedChange::UseBegins(image) => {
                self.want(image, now);
                self.node.begin_use(image, now);
            }
            TracedChange::UseEnds(image) => {
                if self.node.end_use(image, now) == 0 {
                    self.stop_waiting(image, now);
                }
            }
            TracedChange::Departs(image, DepartedBy::Other) => {
                self.node.delete(image);
                self.node.images[image].was_collected = false;
                self.stop_waiting(image, now);
            }
            TracedChange::Departs(image, DepartedBy::Layersweep) => {
                if matches!(self.collector, Collector::Recorded) {
                    self.collected(image, now);
                }
            }
        }
    }

    fn stop_waiting(&mut self, image: usize, now: Timestamp) {
        if let Some(position) = self.waiting.iter().position(|(waiting, _)| *waiting == image) {
            let (_, since) = self.waiting.remove(position);
            self.figures.waited_seconds += seconds(now.duration_since(since));
        }
    }

    fn want(&mut self, image: usize, now: Timestamp) {
        if let Some(wanted) = self.wanted.get_mut(image) {
            while wanted.last().is_some_and(|time| *time <= now) {
                wanted.pop();
            }
        }
        let is_waiting = self.waiting.iter().any(|(waiting, _)| *waiting == image);
        if self.node.images[image].is_present() || is_waiting || self.pull(image, now) {
            return;
        }
        self.figures.waited += 1;
        self.collect(now, self.node.missing(image).stored_bytes);
        if !self.pull(image, now) {
            self.waiting.push((image, now));
        }
    }

    fn pull(&mut self, image: usize, now: Timestamp) -> bool {
        let missing = self.node.missing(image);
        let has_room = self.node.space(missing.stored_bytes).owed_bytes == 0;
        if !has_room && !matches!(self.collector, Collector::Recorded) {
            return false;
        }
        let figures = &mut self.figures;
        figures.pulled_bytes = figures.pulled_bytes.saturating_add(missing.pulled_bytes);
        if self.node.images[image].was_collected {
            figures.pulled_again += 1;
            figures.pulled_again_bytes = figures.pulled_again_bytes.saturating_add(missing.pulled_bytes);
            let origin = self.trace.images[image].origin;
            figures.lost += u64::from(crate::model::Origin::new(origin, "").was_never_pulled());
        }
        self.node.arrive(image, now);
        true
    }

    fn timer(&mut self, now: Timestamp) {
        let is_settled = self.settled_until.is_some_and(|until| now < until);
        if is_settled || matches!(self.collector, Collector::Recorded) {
            return;
        }
        self.advance(now);
        let before = (self.deletions.len(), self.waiting.len());
        if self.is_due(now) {
            let needed = self.waiting.first().map_or(0, |(image, _)| self.node.missing(*image).stored_bytes);
            self.collect(now, needed);
            for (image, _) in self.waiting.clone() {
                if self.pull(image, now) {
                    self.stop_waiting(image, now);
                }
            }
        }
        if before == (self.deletions.len(), self.waiting.len()) {
            self.settled_until = Some(self.next_expiry(now));
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let space = self.node.space(0);
        let is_space_due = match self.collector {
            Collector::Kubelet(kubelet) => kubelet_starts(&space, &kubelet),
            _ => self.policy.targets.start(&space).is_ok_and(|started| started.any()),
        };
        is_space_due || !self.waiting.is_empty() || self.has_aged(now)
    }

    fn has_aged(&self, now: Timestamp) -> bool {
        let mut unused = self.node.present().filter(|(_, image)| image.uses == 0);
        unused.any(|(image, _)| self.age_limit(image).is_some_and(|limit| now > limit))
    }

    /// Returns the end of the maximum idle time of an image. For the kubelet, an image that was never used is infinitely
    /// old.
    fn age_limit(&self, image: usize) -> Option<Timestamp> {
        let image = &self.node.images[image];
        let max_age = image.max_age?;
        let since = match self.collector {
            Collector::Kubelet(_) => image.last_used.unwrap_or(Timestamp::MIN),
            _ => image.idle_since(),
        };
        Some(since.saturating_add(max_age).unwrap_or(Timestamp::MAX))
    }

    /// Returns the next time at which an image becomes old enough for something.
    fn next_expiry(&self, now: Timestamp) -> Timestamp {
        let times = self.node.present().filter(|(_, image)| image.uses == 0).flat_map(|(traced, image)| {
            let old_enough = image.first_detected.saturating_add(image.min_age).unwrap_or(Timestamp::MAX);
            [Some(old_enough), self.age_limit(traced)]
        });
        // An image is too old only after its limit, so that a limit that is now counts.
        times.flatten().filter(|time| *time >= now).min().unwrap_or(Timestamp::MAX)
    }

    /// Runs the collector once, as if `needed` more bytes were on the disk.
    fn collect(&mut self, now: Timestamp, needed: u64) {
        let refs = Refs::new(&self.node.inventory);
        let facts: Vec<_> = self.node.present().map(|(traced, _)| self.facts(traced)).collect();
        let input = Input {
            inventory: &self.node.inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &self.policy,
            now,
            scanned: now,
        };
        let space = self.node.space(needed);
        let doomed = match self.collector {
            Collector::Recorded => Vec::new(),
            Collector::Exact(_) | Collector::Clairvoyant(_) => planned(input, space),
            Collector::Kubelet(policy) => by_kubelet(input, space, policy),
        };
        let doomed: Vec<_> = doomed.into_iter().map(|image| self.node.traced(image)).collect();
        for image in doomed {
            self.collected(image, now);
        }
    }

    fn facts(&self, traced: usize) -> Facts {
        let image = &self.node.images[traced];
        let ages = Ages::new(image.first_detected, image.last_used, image.use_count);
        // Idle for the longest time is what is wanted last.
        let counted_from = match self.wanted.get(traced) {
            Some(wanted) => wanted.last().map_or(Timestamp::MIN, |next| mirrored(*next)),
            None => ages.counted_from,
        };
        let used_by = if image.uses > 0 { vec!["a container".to_owned()] } else { Vec::new() };
        Facts { ages: Some(Ages { counted_from, ..ages }), used_by, ..Facts::default() }
    }

    fn collected(&mut self, image: usize, now: Timestamp) {
        if !self.node.images[image].is_present() {
            return;
        }
        let freed = self.node.delete(image);
        self.node.images[image].was_collected = true;
        self.figures.deleted_bytes = self.figures.deleted_bytes.saturating_add(freed);
        self.deletions.push(ReplayedDeletion { time: now, image });
        self.settled_until = None;
    }
}

fn planned(input: Input<'_>, space: Space) -> Vec<ImageIx> {
    let mut planner = Planner::new(input, Task::Policy);
    let mut spaces = vec![Ok(space)];
    let mut ids = Vec::new();
    while let Some(step) = planner.next(&spaces) {
        plan::apply(&step.gains, &mut spaces);
        planner.answer(Answer::Removed);
        ids.push(step.target.id);
    }
    ids.iter().filter_map(|id| input.inventory.find_image(0.into(), id)).collect()
}

/// Returns the images that the kubelet would delete. It remembers all uses, as one that never restarts.
fn by_kubelet(input: Input<'_>, space: Space, policy: KubeletPolicy) -> Vec<ImageIx> {
    let inventory = input.inventory;
    let store = StoreId::of(&inventory.stores[0]);
    let images = inventory.images.iter().map(|image| {
        let listed = ListedImage {
            id: image.id.to_string(),
            size_bytes: image.listed_bytes.unwrap_or_default(),
            pinned: !image.pinned_by.is_empty(),
            ..ListedImage::default()
        };
        (listed, Some((store.clone(), image.id.clone())))
    });
    let used = inventory.images.iter().zip(input.facts).filter(|(_, facts)| !facts.used_by.is_empty());
    let containers = used
        .map(|(image, _)| ListedContainer { image_id: image.id.to_string(), ..ListedContainer::default() });
    let listing =
        Listing { images: images.collect(), containers: containers.collect(), store: store.clone() };
    let mut node = SimulatedNode::new(inventory, input.refs, &listing, vec![Ok(space)]);
    let mut manager = node.manager(policy, &input);
    manager.garbage_collect(&mut node, input.now);
    node.steps.into_iter().map(|(image, _)| image).collect()
}

/// Returns whether the kubelet's space pass starts; it rounds the usage up.
fn kubelet_starts(space: &Space, policy: &KubeletPolicy) -> bool {
    let capacity = i128::from(space.capacity_bytes);
    let used = 100 - i128::from(space.available_bytes) * 100 / capacity;
    used >= i128::from(policy.high_percent)
}

/// By image: the times at which it arrives or a use of it begins, from the last to the first.
fn times_wanted(trace: &Trace) -> Vec<Vec<Timestamp>> {
    let mut wanted = vec![Vec::new(); trace.images.len()];
    for (time, change) in trace.changes.iter().rev() {
        if let TracedChange::Arrives(image) | TracedChange::UseBegins(image) = change {
            wanted[*image].push(*time);
        }
    }
    wanted
}

/// Returns a time that is the earlier, the later `time` is.
fn mirrored(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(-time.as_microsecond()).unwrap_or(Timestamp::MIN)
}

fn seconds(duration: SignedDuration) -> u64 {
    u64::try_from(duration.as_secs()).unwrap_or(0)
}
