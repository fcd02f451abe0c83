//! Misbehaviour of the server, which can change while it runs.

use std::time::Duration;

/// Errors of the server, and objects that it lists besides the store. The default is an honest server.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Names whose images are pinned.
    pub pinned: Vec<String>,
    /// Delay of every answer.
    pub delay: Option<Duration>,
    /// Misbehaviour of `ListImages`; an error or a missing answer also of `ImageStatus`.
    pub images: Listing,
    /// Names whose images `ListImages` omits without a sign, and `ImageStatus` does not know.
    pub unlisted: Vec<String>,
    /// Misbehaviour of `ListContainers`.
    pub containers: Listing,
    /// Misbehaviour of `ListPodSandbox`.
    pub sandboxes: Listing,
    /// Results of removals: of images by name or id, and of containers and sandboxes by id; `*` matches everything. The
    /// first match counts.
    pub removals: Vec<(String, Removal)>,
    /// Number of further images in the listing that no store contains.
    pub extra_images: usize,
    /// States that `ListContainers` reports for these containers, whatever their real state.
    pub listed_states: Vec<(String, &'static str)>,
    /// States that `ContainerStatus` reports.
    pub told_states: Vec<(String, &'static str)>,
    /// Containers and sandboxes that cannot be stopped.
    pub unstoppable: Vec<String>,
    /// Images that containers have mounted as volumes: the container's id, and the name of the image in its status.
    pub image_volumes: Vec<(String, String)>,
    /// Misbehaviour of `ContainerStatus`.
    pub statuses: Answers,
    /// True if containers name their image by repo digest, as with CRI-O before 1.30.
    pub old_image_ref: bool,
}

/// Answer to a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// The real listing.
    #[default]
    Honest,
    /// This error message.
    Error(&'static str),
    /// No answer.
    Hang,
    /// The real listing without its first entries, and without a sign that they are missing.
    LeaveOut(usize),
    /// Ids whose first digit is another than in the store.
    WrongIds,
    /// The first entry's id on the second as well.
    SameId,
    /// An empty id on the first entry.
    EmptyId,
}

/// Answer to a request for one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// The real answer.
    #[default]
    Honest,
    /// This error message.
    Error(&'static str),
    /// The object does not exist (any more).
    Gone,
}

/// Result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The object is removed.
    Honest,
    /// The removal is refused: in use.
    Refuse,
    /// The removal fails, and nothing is removed.
    Fail,
    /// One name is removed, then the removal fails.
    HalfFail,
    /// The answer is success, but nothing is removed.
    Lie,
    /// The answer is success, and the object is removed after this time (as containerd may do).
    Late(Duration),
    /// The removal takes this time.
    Slow(Duration),
    /// The server is killed before anything is removed.
    DieBefore,
    /// The server is killed after the removal, before it answers.
    DieAfter,
    /// No answer, and nothing is removed.
    Hang,
}

impl Behaviour {
    /// Returns the result of the removal of an image.
    pub fn removal(&self, id: &str, names: &[String]) -> Removal {
        let mut removals = self.removals.iter();
        let found = removals.find(|(object, _)| object == "*" || object == id || names.contains(object));
        found.map_or(Removal::Honest, |(_, removal)| removal.clone())
    }

    /// Sets the same result for every removal.
    pub fn remove_all(&mut self, removal: Removal) {
        self.removals = vec![("*".into(), removal)];
    }
}
