//! Per store: can a deletion begin on its full disk yet? Which images make the room is chosen in `first`.

use std::collections::{BTreeMap, VecDeque};

use crate::model::plan::Failure;
use crate::model::refs::Root;
use crate::model::{FilesystemIx, ImageIx, NodeKind, StoreIx};
use crate::policy::input::{FullFilesystem, Input};

/// The stores in which no deletion can begin as long as the first has not freed what is needed.
///
/// A store that is not in here is `Free`: any deletion can begin.
///
/// | a store is | `decided` | `choose_anew` | `made_no_room` | `bar` | `removed` on its full filesystem |
/// |---|---|---|---|---|---|
/// | Free | | | Undecided | | |
/// | Undecided | MakesRoom, Impossible | | the image waits | | Free |
/// | MakesRoom | | Undecided | the image waits | | Free |
/// | Impossible | | | the image waits | Barred, its images wait | Free |
/// | Barred | | | | | Free |
///
/// Impossible is not decided anew when something stays: what stays makes no room for others. What waits is tried again
/// once its store is Free, and is chosen with no others before. It does not wait where more turned out to be needed than
/// was known: then the images are chosen anew. `Planner::answer` calls `choose_anew` for whatever was not deleted, before
/// `made_no_room` too: a store that was MakesRoom is Undecided by then.
#[derive(Debug, Default)]
pub(super) struct FirstDeletions {
    stores: BTreeMap<StoreIx, FirstDeletion>,
    /// Deleted along with the last image; each still gets its own step.
    pub(super) went_along: VecDeque<ImageIx>,
}

#[derive(Debug)]
struct FirstDeletion {
    full: FullFilesystem,
    state: State,
    /// Images that made too little room when it was their turn, and what was said of them.
    waiting: Vec<(ImageIx, Failure)>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Which images make the room has to be chosen (again).
    Undecided,
    /// These do, before anything is written.
    MakesRoom(Vec<ImageIx>),
    /// None do; why.
    Impossible(String),
    /// A deletion was wanted all the same; why there is none, which is a problem of the run unless another store makes the
    /// room.
    Barred(String),
}

impl FirstDeletion {
    fn of(full: FullFilesystem) -> Self {
        Self { full, state: State::Undecided, waiting: Vec::new() }
    }
}

impl FirstDeletions {
    /// Per store, only the first full filesystem that holds layers of its images is tracked.
    pub(super) fn new(input: &Input<'_>) -> Self {
        let with_layers = |one: &&FullFilesystem| {
            let images =
                input.inventory.images.iter().enumerate().filter(|(_, image)| image.store == one.store);
            images.map(|(at, _)| filesystem_of_layers(input, at.into())).any(|at| at == one.filesystem)
        };
        Self::of(input.full_filesystems.iter().filter(|one| with_layers(one)).copied())
    }

    fn of(full: impl Iterator<Item = FullFilesystem>) -> Self {
        let mut all = Self::default();
        for full in full {
            all.stores.entry(full.store).or_insert(FirstDeletion::of(full));
        }
        all
    }

    /// The stores for which it has to be chosen what makes the room.
    pub(super) fn undecided(&self) -> Vec<FullFilesystem> {
        let undecided = self.stores.values().filter(|one| one.state == State::Undecided);
        undecided.map(|one| one.full).collect()
    }

    /// The images that make the room in a store, and what has to be freed.
    pub(super) fn makes_room(&self, store: StoreIx) -> Option<(FullFilesystem, &[ImageIx])> {
        let one = self.stores.get(&store)?;
        if let State::MakesRoom(images) = &one.state { Some((one.full, images)) } else { None }
    }

    /// Whether this image makes room, alone or with others.
    pub(super) fn is_chosen(&self, image: ImageIx) -> bool {
        let has =
            |one: &FirstDeletion| matches!(&one.state, State::MakesRoom(images) if images.contains(&image));
        self.stores.values().any(has)
    }

    /// Which images make the room was chosen; `Err`: why none do.
    pub(super) fn decided(&mut self, store: StoreIx, chosen: Result<Vec<ImageIx>, String>) {
        if let Some(one) = self.stores.get_mut(&store).filter(|one| one.state == State::Undecided) {
            one.state = chosen.map_or_else(State::Impossible, State::MakesRoom);
        }
    }

    /// An image was not deleted, or not by us: one that was to make room, or that shares layers with those that were. Or
    /// no image goes by space any more, which may have been why it was chosen.
    pub(super) fn choose_anew(&mut self) {
        for one in self.stores.values_mut().filter(|one| matches!(one.state, State::MakesRoom(_))) {
            one.state = State::Undecided;
        }
    }

    /// An image was not deleted since its store lacks so much, and it has too little; whether it waits for others. Where
    /// less was known to be needed, it may have enough together with others.
    pub(super) fn made_no_room(&mut self, full: FullFilesystem, image: ImageIx, why: &Failure) -> bool {
        let known = self.stores.get(&full.store).map(|one| one.full.to_free);
        let one = self.stores.entry(full.store).or_insert(FirstDeletion::of(full));
        one.full.to_free = one.full.to_free.max(full.to_free);
        let waits = known == Some(one.full.to_free);
        one.waiting.extend(waits.then(|| (image, why.clone())));
        waits
    }

    /// A deletion is wanted in this store: where none can begin it is barred, and its images wait; why.
    pub(super) fn bar(&mut self, store: StoreIx, images: impl Iterator<Item = ImageIx>) -> Option<String> {
        let one = self.stores.get_mut(&store)?;
        let State::Impossible(why) = &one.state else { return None };
        let why = why.clone();
        one.waiting.extend(images.map(|image| (image, why.as_str().into())));
        one.state = State::Barred(why.clone());
        Some(why)
    }

    /// An image was deleted on this filesystem, and these along with it. `Some`: there is room now for stores that had
    /// none, and these images have waited for it.
    pub(super) fn removed(&mut self, on: FilesystemIx, along: Vec<ImageIx>) -> Option<Vec<ImageIx>> {
        self.went_along.extend(along);
        let mut waited: Option<Vec<_>> = None;
        self.stores.retain(|_, one| {
            if one.full.filesystem == on {
                waited.get_or_insert_default().extend(one.waiting.iter().map(|(image, _)| *image));
            }
            one.full.filesystem != on
        });
        waited
    }

    /// On which filesystems no deletion could begin to the end, and why.
    pub(super) fn barred(&self) -> impl Iterator<Item = (FilesystemIx, &str)> {
        self.stores.values().filter_map(|one| match &one.state {
            State::Barred(why) => Some((one.full.filesystem, why.as_str())),
            _ => None,
        })
    }

    /// An image that waits at the end, for room that nothing made.
    pub(super) fn still_waits(&self) -> Option<&(ImageIx, Failure)> {
        self.stores.values().rev().find_map(|one| one.waiting.last())
    }
}

/// An imagestore may be on another filesystem than its graphroot.
pub(super) fn filesystem_of_layers(input: &Input<'_>, image: ImageIx) -> FilesystemIx {
    let inventory = input.inventory;
    let store = inventory[image].store;
    let mut reached = input.refs.reach(Root::Image(image)).iter().map(|node| &inventory[*node]);
    let layer = reached.find(|node| node.store == store && node.kind == NodeKind::Layer);
    layer.map_or(inventory[store].filesystem, |layer| layer.filesystem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::space::BytesAndInodes;

    fn full(store: usize, filesystem: usize) -> FullFilesystem {
        let to_free = BytesAndInodes { bytes: 60, inodes: 0 };
        FullFilesystem { store: store.into(), filesystem: filesystem.into(), to_free }
    }

    /// Store 0, whose filesystem is 1, in a state that it comes to by the transitions.
    fn in_state(state: &str) -> FirstDeletions {
        let mut all = FirstDeletions::of(std::iter::once(full(0, 1)).filter(|_| state != "Free"));
        match state {
            "MakesRoom" => all.decided(0.into(), Ok(vec![3.into()])),
            "Impossible" | "Barred" => all.decided(0.into(), Err("too little".into())),
            _ => {}
        }
        if state == "Barred" {
            assert_eq!(all.bar(0.into(), [8.into()].into_iter()), Some("too little".into()));
        }
        assert_eq!(state_of(&all), state);
        all
    }

    fn state_of(all: &FirstDeletions) -> &'static str {
        match all.stores.get(&0.into()).map(|one| &one.state) {
            None => "Free",
            Some(State::Undecided) => "Undecided",
            Some(State::MakesRoom(_)) => "MakesRoom",
            Some(State::Impossible(_)) => "Impossible",
            Some(State::Barred(_)) => "Barred",
        }
    }

    /// The table of [`FirstDeletions`], row by row: the state, and where each event leads.
    #[test]
    fn every_state_and_event() {
        let rows = [
            ("Free", ["Free", "Free", "Free", "Undecided", "Free", "Free"]),
            ("Undecided", ["MakesRoom", "Impossible", "Undecided", "Undecided", "Undecided", "Free"]),
            ("MakesRoom", ["MakesRoom", "MakesRoom", "Undecided", "Undecided", "MakesRoom", "Free"]),
            ("Impossible", ["Impossible", "Impossible", "Impossible", "Impossible", "Barred", "Free"]),
            ("Barred", ["Barred", "Barred", "Barred", "Barred", "Barred", "Free"]),
        ];
        for (from, expected) in rows {
            let events: [fn(&mut FirstDeletions); 6] = [
                |all| all.decided(0.into(), Ok(vec![4.into()])),
                |all| all.decided(0.into(), Err("too little".into())),
                FirstDeletions::choose_anew,
                |all| {
                    all.choose_anew();
                    all.made_no_room(full(0, 1), 7.into(), &"too little".into());
                },
                |all| drop(all.bar(0.into(), std::iter::empty())),
                |all| drop(all.removed(1.into(), vec![])),
            ];
            for ((at, event), to) in events.into_iter().enumerate().zip(expected) {
                let mut all = in_state(from);
                event(&mut all);
                assert_eq!(state_of(&all), to, "{from}, event {at}");
                // What others in the store or elsewhere do.
                let mut all = in_state(from);
                assert_eq!(all.bar(1.into(), std::iter::empty()), None);
                assert_eq!(all.removed(0.into(), vec![]), None, "another filesystem");
                let barred: Vec<_> = all.barred().collect();
                let expected = [(1.into(), "too little")];
                assert_eq!((state_of(&all), &barred[..]), (from, &expected[..usize::from(from == "Barred")]));
                assert_eq!(all.undecided().len(), usize::from(from == "Undecided"));
                assert_eq!(all.is_chosen(3.into()), from == "MakesRoom");
                assert_eq!(all.makes_room(0.into()).is_some(), from == "MakesRoom");
            }
        }
    }

    /// What waits does so until its store is free, whatever made the room.
    #[test]
    fn what_waits_is_tried_again() {
        let why = Failure::from("too little");
        let mut all = FirstDeletions::of([full(0, 1), full(0, 0), full(1, 1)].into_iter());
        assert_eq!(all.undecided(), [full(0, 1), full(1, 1)], "one a store");
        all.decided(0.into(), Ok(vec![3.into()]));
        assert!(all.made_no_room(full(0, 1), 7.into(), &why));
        all.decided(0.into(), Ok(vec![4.into()]));
        all.choose_anew();
        assert_eq!(all.still_waits(), Some(&(7.into(), why.clone())));
        assert_eq!(all.removed(1.into(), vec![5.into()]), Some(vec![7.into()]));
        assert_eq!(all.still_waits(), None);
        assert_eq!(all.went_along, [5.into()]);
        // Where none was known to be needed, or less, it may have enough with others.
        assert!(!all.made_no_room(full(0, 1), 7.into(), &why));
        assert_eq!(all.undecided(), [full(0, 1)]);
        for (bytes, inodes, known, waits) in
            [(50, 0, (60, 0), true), (50, 4, (60, 4), false), (70, 2, (70, 4), false)]
        {
            let of =
                |(bytes, inodes)| FullFilesystem { to_free: BytesAndInodes { bytes, inodes }, ..full(0, 1) };
            assert_eq!(all.made_no_room(of((bytes, inodes)), 7.into(), &why), waits, "{bytes} {inodes}");
            assert_eq!(all.undecided(), [of(known)]);
        }
        // So do those of a store that was barred.
        let mut all = in_state("Barred");
        assert_eq!(all.removed(1.into(), vec![]), Some(vec![8.into()]));
    }
}
