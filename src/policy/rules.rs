//! The rules that keep an image, in a fixed order: the first that keeps it decides.
//! `docs/how-it-decides.md` describes each by its name.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::display::{shell_word, span};
use crate::model::reference;
use crate::model::rules::{Rule, Ruling};
use crate::model::{
    Consistency, Container, ContainerState, Image, ImageIx, Inventory, Labels, NamedImage, Store, UnreadUser,
};
use crate::policy::input::{Input, Quadlet};

/// The rules by which a manifest list stays and its members may go: one that only cannot be deleted here or now is not
/// wanted for that, and labels it has none.
const WITHOUT_MEMBERS: [Rule; 3] = [Rule::OutOfReach, Rule::BackingOff, Rule::ProtectedLabel];

/// Applies the rules to the images of one inventory.
#[derive(Debug)]
pub struct Judge<'a> {
    input: Input<'a>,
    /// Rules that keep nothing.
    waived: &'static [Rule],
    /// The containers of each image.
    users: Vec<Vec<usize>>,
    /// The manifest lists that each image is a member of.
    lists: Vec<Vec<ImageIx>>,
    /// For each image that is among the newest of a repository: which.
    newest: Vec<Option<String>>,
    /// What the lists of sandbox images, static pods and pulls name, an entry an image.
    sandboxes: Vec<Option<&'a NamedImage>>,
    static_pods: Vec<Option<&'a NamedImage>>,
    quadlets: Vec<Option<&'a NamedImage>>,
    pulling: Vec<Option<&'a NamedImage>>,
}

impl<'a> Judge<'a> {
    /// Prepares what the rules look up.
    #[must_use]
    pub fn new(input: Input<'a>) -> Self {
        let users = containers_by_image(input.inventory);
        let protect = &input.policy.protect;
        Self {
            input,
            waived: &[],
            users,
            lists: lists_by_member(input.inventory),
            newest: newest(&input, protect.keep_newest),
            sandboxes: named(&input, &protect.sandboxes),
            static_pods: named(&input, &protect.static_pods),
            quadlets: by_quadlets(&input, &protect.quadlets),
            pulling: named(&input, &protect.pulling),
        }
    }

    /// Skips these rules.
    #[must_use]
    pub fn waiving(self, waived: &'static [Rule]) -> Self {
        Self { waived, ..self }
    }

    /// The verdict of every rule, in order.
    #[must_use]
    pub fn rulings(&self, at: ImageIx) -> Vec<Ruling> {
        Rule::ALL.iter().filter_map(|rule| self.ruling(*rule, at)).collect()
    }

    /// The first rule that keeps the image; `None`: it is a candidate.
    #[must_use]
    pub fn kept(&self, at: ImageIx) -> Option<Ruling> {
        let asked = Rule::ALL.iter().filter(|rule| !self.waived.contains(rule));
        asked.filter_map(|rule| self.ruling(*rule, at)).find(|ruling| ruling.stays)
    }

    fn ruling(&self, rule: Rule, at: ImageIx) -> Option<Ruling> {
        let (stays, detail) = match self.ask(rule, at)? {
            Says::Stay(detail) => (true, detail),
            Says::Go(detail) => match self.keeps_a_list(rule, at) {
                Some(detail) => (true, detail),
                None => (false, detail),
            },
        };
        Some(Ruling { rule, stays, detail })
    }

    /// Whether the rule keeps a manifest list that the image is a member of. Lists of lists no tool makes.
    fn keeps_a_list(&self, rule: Rule, at: ImageIx) -> Option<String> {
        if WITHOUT_MEMBERS.contains(&rule) {
            return None;
        }
        self.lists[at.get()].iter().find_map(|list| match self.ask(rule, *list)? {
            Says::Stay(detail) => {
                let title = self.image(*list).title();
                Some(format!("a member of the manifest list {title}, which stays: {detail}"))
            }
            Says::Go(_) => None,
        })
    }

    /// `None`: the rule is not asked of an image before a plan.
    fn ask(&self, rule: Rule, at: ImageIx) -> Option<Says> {
        Some(match rule {
            Rule::InUse => self.in_use(at),
            Rule::Pinned => self.pinned(at),
            Rule::SandboxImage => match self.sandboxes[at.get()] {
                Some(by) => Says::Stay(format!("used for pod sandboxes, according to {}", by.source)),
                None => Says::go("not a sandbox image"),
            },
            Rule::StaticPod => match self.static_pods[at.get()] {
                Some(by) => Says::Stay(format!("the static pod {} names it", by.source)),
                None => Says::go("no static pod names it"),
            },
            Rule::Quadlet => match self.quadlets[at.get()] {
                Some(by) => Says::Stay(format!("the quadlet {} names it", by.source)),
                None => Says::go("no quadlet names it"),
            },
            Rule::PullInProgress => match self.pulling[at.get()] {
                Some(by) => Says::Stay(format!("the kubelet is pulling it, according to {}", by.source)),
                None => Says::go("the kubelet is not pulling it"),
            },
            Rule::ProtectedName => self.protected_name(at),
            Rule::ProtectedLabel => self.protected_label(at),
            Rule::NewestOfRepository => match &self.newest[at.get()] {
                Some(repository) => Says::Stay(format!(
                    "among the newest {} of {repository}",
                    self.input.policy.protect.keep_newest
                )),
                None if self.input.policy.protect.keep_newest == 0 => {
                    Says::go("the newest of a repository are not kept (protect.keep_newest)")
                }
                None => Says::go("not among the newest of its repository"),
            },
            Rule::ReadOnlyStore if self.store(at).read_only => Says::Stay(read_only(self.store(at))),
            Rule::ReadOnlyStore => Says::go("not in an additional image store"),
            Rule::DamagedStore if self.store(at).consistency == Consistency::Damaged => {
                Says::stay("records of its store could not be read in full, so it may be in use")
            }
            Rule::DamagedStore => match self.unread_user(at) {
                Some(user) => Says::Stay(format!(
                    "whether another store uses it is unknown: {} could not be read in full",
                    user.path.display()
                )),
                None => Says::go("the records of its store were read in full"),
            },
            Rule::OutOfReach => match self.input.known(at).and_then(|known| known.out_of_reach.as_ref()) {
                Some(why) => Says::Stay(why.clone()),
                None => Says::go("deletable through the selected backend"),
            },
            Rule::AgeUnknown if self.input.ages(at).is_none() => {
                Says::stay("the time it was first detected is unknown")
            }
            Rule::AgeUnknown => Says::go("the time it was first detected is known"),
            Rule::MinAge => self.min_age(at),
            Rule::UsedJustNow => self.used_just_now(at),
            Rule::BackingOff => self.backing_off(at),
            // What a plan or a run finds out.
            Rule::NotNeeded
            | Rule::FreesNothing
            | Rule::Unmeasured
            | Rule::RemovalFailed
            | Rule::RunEnded
            | Rule::NotProven => return None,
            // Asked of containers, sandboxes and logs.
            Rule::Running
            | Rule::Starting
            | Rule::StateUnknown
            | Rule::WithinLimits
            | Rule::Needed
            | Rule::Ready
            | Rule::Newest
            | Rule::HasContainers
            | Rule::PodsUnknown
            | Rule::PodKnown
            | Rule::NotAPod
            | Rule::Open
            | Rule::Mounted
            | Rule::Unreadable
            | Rule::ContainerExists
            | Rule::LinkTargetExists
            | Rule::RuntimeUnknown => return None,
        })
    }

    fn image(&self, at: ImageIx) -> &'a Image {
        &self.input.inventory[at]
    }

    fn store(&self, at: ImageIx) -> &'a Store {
        &self.input.inventory[self.image(at).store]
    }

    fn unread_user(&self, at: ImageIx) -> Option<&'a UnreadUser> {
        let store = self.image(at).store;
        self.input.inventory.unread_users.iter().find(|user| user.store == store)
    }

    fn in_use(&self, at: ImageIx) -> Says {
        let containers = self.users[at.get()].iter().map(|user| &self.input.inventory.containers[*user]);
        let mut users: Vec<_> = containers.map(|container| describe_use(container, at)).collect();
        let inventory = self.input.inventory;
        if self.input.refs.is_named(at) {
            users.extend(inventory.uses_of(at).map(|one| one.by.clone()));
        }
        users.extend(self.input.known(at).into_iter().flat_map(|known| known.used_by.iter().cloned()));
        match users.len() {
            0 => match self.input.refs.needed_elsewhere(inventory, at) {
                Some(user) => Says::Stay(needed_by(&user.by)),
                None => Says::go("no container was made from it"),
            },
            1 => Says::Stay(format!("used by {}", users[0])),
            count => Says::Stay(format!("used by {count}: {}", first_few(&users))),
        }
    }

    fn pinned(&self, at: ImageIx) -> Says {
        let known = self.input.known(at);
        let mut pins = self.image(at).pin_texts();
        pins.extend(known.filter(|known| known.runtime_pins).map(|_| "the runtime's list of images".into()));
        pins.extend(known.into_iter().flat_map(|known| known.pinned_by.iter().cloned()));
        match pins.as_slice() {
            [] => Says::go("nothing pins it"),
            pins => Says::Stay(format!("pinned by {}", first_few(pins))),
        }
    }

    fn protected_name(&self, at: ImageIx) -> Says {
        let patterns = &self.input.policy.protect.names;
        for name in &self.image(at).names {
            if let Some(pattern) = patterns.iter().find(|pattern| pattern.matches(name)) {
                return Says::Stay(format!("{name} matches the protected name {}", pattern.text()));
            }
        }
        Says::go("no protected name matches")
    }

    fn protected_label(&self, at: ImageIx) -> Says {
        let protected = &self.input.policy.protect.labels;
        if protected.is_empty() {
            return Says::go("no label is protected");
        }
        let labels = match &self.image(at).labels {
            Labels::Known(labels) => labels,
            Labels::Unknown(why) => {
                return Says::Stay(format!("it may have a protected label: its labels are unknown ({why})"));
            }
            Labels::NotRead => return Says::stay("it may have a protected label: its labels were not read"),
        };
        for (key, value) in protected {
            let same = |(k, v): &&(String, String)| k == key && value.as_ref().is_none_or(|value| value == v);
            if let Some((key, value)) = labels.iter().find(same) {
                return Says::Stay(format!("it has the protected label {key}={value}"));
            }
        }
        Says::go("it has no protected label")
    }

    fn min_age(&self, at: ImageIx) -> Says {
        let Some(ages) = self.input.ages(at) else {
            return Says::go("its age is unknown");
        };
        let age = self.input.now.duration_since(ages.first_detected);
        let least = self.input.policy.min_age;
        let age_text = span(age.max(SignedDuration::ZERO));
        if age < least {
            Says::Stay(format!("first detected {age_text} ago, less than the minimum age of {}", span(least)))
        } else {
            Says::Go(format!("first detected {age_text} ago, the minimum age is {}", span(least)))
        }
    }

    /// A guard against a use that only the scan of this run has seen. It is compared with the
    /// start of the scan, not with now: ages are always read before now.
    fn used_just_now(&self, at: ImageIx) -> Says {
        match self.input.ages(at).and_then(|ages| ages.last_used) {
            Some(used) if used >= self.input.scanned => Says::stay("it was in use when this run began"),
            Some(used) => Says::Go(format!("last used {} ago", span(self.input.now.duration_since(used)))),
            None => Says::go("never seen in use"),
        }
    }

    fn backing_off(&self, at: ImageIx) -> Says {
        match self.input.known(at).and_then(|known| known.back_off.as_ref()) {
            Some(back_off) if back_off.next_try > self.input.now => Says::Stay(format!(
                "{} to remove it, the last with: {}; not again before {}",
                if back_off.failures == 1 {
                    "an attempt failed".to_owned()
                } else {
                    format!("{} attempts failed", back_off.failures)
                },
                back_off.last_error,
                whole_second(back_off.next_try),
            )),
            Some(_) => Says::go("the wait after the last failed attempt is over"),
            None => Says::go("no attempt to remove it has failed"),
        }
    }
}

enum Says {
    Stay(String),
    Go(String),
}

impl Says {
    fn stay(detail: &str) -> Self {
        Self::Stay(detail.to_owned())
    }

    fn go(detail: &str) -> Self {
        Self::Go(detail.to_owned())
    }
}

/// Detail of the rule `read-only-store`: the way to delete from it all the same.
fn read_only(store: &Store) -> String {
    let root = shell_word(&store.root.to_string_lossy());
    match store.origin.as_str() {
        "bootc" => "in the image store of bootc, which prunes it itself".to_owned(),
        _ if store.is_of_artifacts() => {
            "in an additional artifact store, which is never deleted from".to_owned()
        }
        _ => format!("in an additional image store, which is only deleted from by name: --graphroot {root}"),
    }
}

/// What the rule `in-use` says of an image whose layers another store needs.
pub(crate) fn needed_by(user: &str) -> String {
    format!("{user} needs its layers, and no other image of its store holds them")
}

/// The containers of each image, in its own store and in those that may take images from it. An image
/// that only has the same id is another one.
pub(crate) fn containers_by_image(inventory: &Inventory) -> Vec<Vec<usize>> {
    let mut users = vec![Vec::new(); inventory.images.len()];
    for (at, container) in inventory.containers.iter().enumerate() {
        for volume in container.images().filter(|image| container.image != Some(*image)) {
            users[volume.get()].push(at);
        }
        if let Some(image) = container.image {
            users[image.get()].push(at);
        }
    }
    users
}

fn lists_by_member(inventory: &Inventory) -> Vec<Vec<ImageIx>> {
    let mut lists = vec![Vec::new(); inventory.images.len()];
    for list in &inventory.lists {
        for member in &list.members {
            lists[member.get()].push(list.image);
        }
    }
    lists
}

/// A container for people: `cri-o nginx (running)`.
pub(crate) fn describe_container(container: &Container) -> String {
    let owner = container.owner.as_str();
    let state = match container.state {
        ContainerState::Unknown => String::new(),
        state => format!(" ({})", state.as_str()),
    };
    format!("the {owner} container {}{state}", container.name)
}

/// The container, and how it uses the image.
fn describe_use(container: &Container, image: ImageIx) -> String {
    let volume = container.image != Some(image) && container.uses(image);
    format!(
        "{}{}",
        describe_container(container),
        if volume { ", which has it mounted as a volume" } else { "" }
    )
}

/// The first few, and how many more.
fn first_few(texts: &[String]) -> String {
    const MOST: usize = 5;
    let shown = texts[..texts.len().min(MOST)].join(", ");
    match texts.len().checked_sub(MOST) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

fn whole_second(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The images that lists of references mean.
fn named<'a>(input: &Input<'a>, list: &'a [NamedImage]) -> Vec<Option<&'a NamedImage>> {
    let images = input.inventory.images.iter();
    images
        .map(|image| list.iter().find(|by| reference::means(&by.reference, &image.names, &image.digests)))
        .collect()
}

fn by_quadlets<'a>(input: &Input<'a>, list: &'a [Quadlet]) -> Vec<Option<&'a NamedImage>> {
    let stores = &input.inventory.stores;
    let by = |image: &Image| {
        list.iter().find(|one| one.means(&stores[image.store.get()], image)).map(|one| &one.named)
    };
    input.inventory.images.iter().map(by).collect()
}

/// The newest `count` images of each repository in each store, whatever else keeps them. Newest means
/// first detected last on this node: build dates are often equal or long past.
fn newest(input: &Input<'_>, count: usize) -> Vec<Option<String>> {
    let images = &input.inventory.images;
    let mut newest = vec![None; images.len()];
    if count == 0 {
        return newest;
    }
    let mut repositories: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, image) in images.iter().enumerate() {
        for name in &image.names {
            let members = repositories.entry((image.store, reference::repository(name))).or_default();
            if members.last() != Some(&at) {
                members.push(at);
            }
        }
    }
    for ((_, repository), mut members) in repositories {
        let came = |at: &usize| input.ages.get(*at).map(|ages| ages.first_detected);
        // An image whose first detection is unknown counts as newest.
        members.sort_by(|a, b| {
            let unknown_first = (came(b).is_none(), came(b)).cmp(&(came(a).is_none(), came(a)));
            let built = images[*b].created.cmp(&images[*a].created);
            unknown_first.then(built).then_with(|| images[*a].id.cmp(&images[*b].id))
        });
        for at in members.into_iter().take(count) {
            newest[at].get_or_insert_with(|| repository.to_owned());
        }
    }
    newest
}
