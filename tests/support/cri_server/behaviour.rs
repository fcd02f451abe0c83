//! Configurable misbehaviour of the server. All of it can change while it runs.

use std::time::Duration;

/// What it does wrong, and what it lists besides the store. The default is an honest server.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Names whose images it calls pinned.
    pub pinned: Vec<String>,
    /// Waits before every answer.
    pub delay: Option<Duration>,
    /// `ListImages`.
    pub images: Listing,
    /// Names whose images `ListImages` leaves out, which nothing in the answer shows.
    pub unlisted: Vec<String>,
    /// `ListContainers`.
    pub containers: Listing,
    /// `ListPodSandbox`.
    pub sandboxes: Listing,
    /// What happens to the removal of images with that name or id, and of containers and sandboxes
    /// with that id; `*` is everything. The first that fits counts.
    pub removals: Vec<(String, Removal)>,
    /// So many images more in the listing, that no store has.
    pub extra_images: usize,
    /// States that `ListContainers` tells of these containers, whatever they are doing.
    pub listed_states: Vec<(String, &'static str)>,
    /// Likewise for `ContainerStatus`.
    pub told_states: Vec<(String, &'static str)>,
    /// Containers and sandboxes that cannot be stopped.
    pub unstoppable: Vec<String>,
    /// Images that containers have mounted as volumes: the container's id, and what its status
    /// calls the image.
    pub image_volumes: Vec<(String, String)>,
    /// `ContainerStatus`.
    pub statuses: Answers,
    /// Containers tell their image by repo digest, as with CRI-O before 1.30.
    pub old_image_ref: bool,
}

/// How a listing is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// As it is.
    #[default]
    Honest,
    /// With an error.
    Error(&'static str),
    /// Never.
    Hang,
    /// Without the first so many entries, which nothing in the answer shows.
    LeaveOut(usize),
    /// With ids that are not the store's: every first digit is another.
    WrongIds,
    /// With the first entry's id on the second as well.
    SameId,
    /// With the first entry's id empty.
    EmptyId,
}

/// How the question about one thing is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// As it is.
    #[default]
    Honest,
    /// With an error.
    Error(&'static str),
    /// That there is no such thing (any more).
    Gone,
}

/// How a removal goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// As it should.
    Honest,
    /// Refused: in use.
    Refuse,
    /// Fails, and nothing has happened.
    Fail,
    /// Takes one name away, then fails.
    HalfFail,
    /// Says that it has happened, and does nothing.
    Lie,
    /// Says that it has happened, and does it so much later (as containerd may).
    Late(Duration),
    /// Takes so long.
    Slow(Duration),
    /// The server is killed before anything has happened.
    DieBefore,
    /// The server is killed when it has happened, before it can answer.
    DieAfter,
    /// Never answers, and does nothing.
    Hang,
}

impl Behaviour {
    /// What happens to the removal of an image.
    pub fn removal(&self, id: &str, names: &[String]) -> Removal {
        let fits = |what: &String| what == "*" || what == id || names.contains(what);
        let found = self.removals.iter().find(|(what, _)| fits(what));
        found.map_or(Removal::Honest, |(_, removal)| removal.clone())
    }

    /// The same removal for every image.
    pub fn remove_all(&mut self, removal: Removal) {
        self.removals = vec![("*".into(), removal)];
    }
}
