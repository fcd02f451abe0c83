//! Rules that keep an image, in a fixed order: the first rule that keeps it decides. `docs/how-it-decides.md`
//! describes each by its name.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::model::rules::{Rule, Ruling};
use crate::model::text::display::{shell_word, span};
use crate::model::text::reference;
use crate::model::{
    Consistency, Container, ContainerState, Image, ImageIx, Inventory, Labels, NamedImage, Store, UnreadUser,
};
use crate::policy::image_rules::Limit;
use crate::policy::input::{Input, NotRepullable, Protect, Quadlet};

/// Rules that keep a manifest list without keeping its members. A list that cannot be deleted here or now is not
/// thereby wanted, and a list has no labels.
const NOT_FOR_MEMBERS: [Rule; 3] = [Rule::OutOfReach, Rule::BackingOff, Rule::ProtectedLabel];

/// Applies the rules to the images of an inventory.
#[derive(Debug)]
pub struct Judge<'a> {
    input: Input<'a>,
    waived: &'static [Rule],
    /// By image: positions of its containers.
    users: Vec<Vec<usize>>,
    /// By image: the manifest lists that contain it.
    lists: Vec<Vec<ImageIx>>,
    /// By image: the clause about the repository of which it is among the newest, if any.
    newest: Vec<Option<String>>,
    /// By image: the entry of the list of sandbox images that names it. The next fields are alike.
    sandboxes: Vec<Option<&'a NamedImage>>,
    static_pods: Vec<Option<&'a NamedImage>>,
    quadlets: Vec<Option<&'a NamedImage>>,
    pulling: Vec<Option<&'a NamedImage>>,
    never_pulled: NeverPulled,
}

impl<'a> Judge<'a> {
    #[must_use]
    pub fn new(input: Input<'a>) -> Self {
        let users = containers_by_image(input.inventory);
        let protect = &input.policy.protect;
        Self {
            input,
            waived: &[],
            users,
            lists: lists_by_member(input.inventory),
            newest: newest(&input),
            sandboxes: named(&input, &protect.sandboxes),
            static_pods: named(&input, &protect.static_pods),
            quadlets: by_quadlets(&input, &protect.quadlets),
            pulling: named(&input, &protect.pulling),
            never_pulled: NeverPulled::new(input.inventory, protect),
        }
    }

    #[must_use]
    pub fn waiving(self, waived: &'static [Rule]) -> Self {
        Self { waived, ..self }
    }

    /// Returns the rulings of all rules, in order.
    #[must_use]
    pub fn rulings(&self, image_ix: ImageIx) -> Vec<Ruling> {
        Rule::ALL.iter().filter_map(|rule| self.ruling(*rule, image_ix)).collect()
    }

    /// Returns the ruling of the first rule that keeps the image; `None` if it is a candidate.
    #[must_use]
    pub fn kept(&self, image_ix: ImageIx) -> Option<Ruling> {
        let rules = Rule::ALL.iter().filter(|rule| !self.waived.contains(rule));
        rules.filter_map(|rule| self.ruling(*rule, image_ix)).find(|ruling| ruling.keeps)
    }

    fn ruling(&self, rule: Rule, image_ix: ImageIx) -> Option<Ruling> {
        let (keeps, detail) = match self.apply(rule, image_ix)? {
            RuleAnswer::Keep(detail) => (true, detail),
            RuleAnswer::Pass(_) if self.input.policy.protect.unread.contains(&rule) => {
                (true, "unknown, since a file of the node cannot be read (see pinned)".to_owned())
            }
            RuleAnswer::Pass(detail) => match self.ruling_of_list(rule, image_ix) {
                Some(detail) => (true, detail),
                None => (false, detail),
            },
        };
        Some(Ruling { rule, keeps, detail, since_run_began: false })
    }

    /// Returns the detail of the rule if it keeps a manifest list that contains the image, itself or in another list.
    fn ruling_of_list(&self, rule: Rule, image_ix: ImageIx) -> Option<String> {
        if NOT_FOR_MEMBERS.contains(&rule) {
            return None;
        }
        self.lists[image_ix.get()].iter().find_map(|list| match self.apply(rule, *list)? {
            RuleAnswer::Keep(detail) => {
                let title = self.image(*list).title();
                Some(format!("a member of the manifest list {title}, which stays: {detail}"))
            }
            RuleAnswer::Pass(_) => None,
        })
    }

    /// Applies a rule to an image; `None` if the rule does not apply to images before a plan.
    fn apply(&self, rule: Rule, image_ix: ImageIx) -> Option<RuleAnswer> {
        Some(match rule {
            Rule::InUse => self.in_use(image_ix),
            Rule::Pinned => self.pinned(image_ix),
            Rule::SandboxImage => match self.sandboxes[image_ix.get()] {
                Some(by) => RuleAnswer::Keep(format!("used for pod sandboxes, according to {}", by.source)),
                None => RuleAnswer::pass("not a sandbox image"),
            },
            Rule::StaticPod => match self.static_pods[image_ix.get()] {
                Some(by) => RuleAnswer::Keep(format!("the static pod {} names it", by.source)),
                None => RuleAnswer::pass("no static pod names it"),
            },
            Rule::Quadlet => match self.quadlets[image_ix.get()] {
                Some(by) => RuleAnswer::Keep(format!("the quadlet {} names it", by.source)),
                None => RuleAnswer::pass("no quadlet names it"),
            },
            Rule::PullInProgress => match self.pulling[image_ix.get()] {
                Some(by) => {
                    RuleAnswer::Keep(format!("the kubelet is pulling it, according to {}", by.source))
                }
                None => RuleAnswer::pass("the kubelet is not pulling it"),
            },
            Rule::ProtectedName => self.protected_name(image_ix),
            Rule::ProtectedLabel => self.protected_label(image_ix),
            Rule::NewestOfRepository => match &self.newest[image_ix.get()] {
                Some(detail) => RuleAnswer::Keep(detail.clone()),
                None if !self.input.policy.keeps_newest_of(self.image(image_ix)) => {
                    RuleAnswer::pass("the newest of a repository are not kept (protect.keep_newest)")
                }
                None => RuleAnswer::pass("not among the newest of its repository"),
            },
            Rule::NotRepullable => self.not_repullable(image_ix),
            Rule::ReadOnlyStore if self.store(image_ix).read_only => {
                RuleAnswer::Keep(read_only(self.store(image_ix)))
            }
            Rule::ReadOnlyStore => RuleAnswer::pass("not in an additional image store"),
            Rule::DamagedStore if self.store(image_ix).consistency == Consistency::Damaged => {
                RuleAnswer::keep("records of its store could not be read in full, so it may be in use")
            }
            Rule::DamagedStore => match self.unread_user(image_ix) {
                Some(user) => RuleAnswer::Keep(format!(
                    "whether another store uses it is unknown: {} could not be read in full",
                    user.path.display()
                )),
                None => RuleAnswer::pass("the records of its store were read in full"),
            },
            Rule::OutOfReach => {
                let facts = self.input.facts(image_ix);
                match facts.and_then(|facts| facts.out_of_reach.as_ref()) {
                    Some(why) => match self.removal_by_hand(image_ix) {
                        Some(removal) => RuleAnswer::Keep(format!("{why}; {removal}")),
                        None => RuleAnswer::Keep(why.clone()),
                    },
                    None => RuleAnswer::pass("removable"),
                }
            }
            Rule::AgeUnknown if self.input.ages(image_ix).is_none() => {
                RuleAnswer::keep("the time it was first detected is unknown")
            }
            Rule::AgeUnknown => RuleAnswer::pass("the time it was first detected is known"),
            Rule::MinAge => self.min_age(image_ix),
            Rule::UsedJustNow => self.used_just_now(image_ix),
            Rule::BackingOff => self.backing_off(image_ix),
            // Results of a plan or a run.
            Rule::NotNeeded
            | Rule::FreesNothing
            | Rule::Unmeasured
            | Rule::RemovalFailed
            | Rule::RunEnded
            | Rule::NotProven => return None,
            // Rules for containers, sandboxes and logs.
            Rule::Running
            | Rule::Starting
            | Rule::StateUnknown
            | Rule::WithinLimits
            | Rule::Needed
            | Rule::Ready
            | Rule::Newest
            | Rule::HasContainers
            | Rule::PodsUnknown
            | Rule::PodExists
            | Rule::NotAPod
            | Rule::Open
            | Rule::Mounted
            | Rule::Unreadable
            | Rule::ContainerExists
            | Rule::LinkTargetExists
            | Rule::RuntimeUnknown => return None,
        })
    }

    fn image(&self, image_ix: ImageIx) -> &'a Image {
        &self.input.inventory[image_ix]
    }

    fn store(&self, image_ix: ImageIx) -> &'a Store {
        &self.input.inventory[self.image(image_ix).store]
    }

    fn unread_user(&self, image_ix: ImageIx) -> Option<&'a UnreadUser> {
        let store = self.image(image_ix).store;
        self.input.inventory.unread_users.iter().find(|user| user.store == store)
    }

    fn in_use(&self, image_ix: ImageIx) -> RuleAnswer {
        let containers =
            self.users[image_ix.get()].iter().map(|user| &self.input.inventory.containers[*user]);
        let mut users: Vec<_> = containers.map(|container| describe_use(container, image_ix)).collect();
        let inventory = self.input.inventory;
        if self.input.refs.is_named(image_ix) {
            users.extend(inventory.uses_of(image_ix).map(|user| user.by.clone()));
        }
        users.extend(self.input.facts(image_ix).into_iter().flat_map(|known| known.used_by.iter().cloned()));
        match users.len() {
            0 => match self.input.refs.needed_elsewhere(inventory, image_ix) {
                Some(user) => RuleAnswer::Keep(needed_by(&user.by)),
                None => RuleAnswer::pass("no container was made from it"),
            },
            1 => RuleAnswer::Keep(format!("used by {}", users[0])),
            count => RuleAnswer::Keep(format!("used by {count}: {}", first_few(&users))),
        }
    }

    fn pinned(&self, image_ix: ImageIx) -> RuleAnswer {
        let known = self.input.facts(image_ix);
        let mut pins = self.image(image_ix).pin_texts();
        pins.extend(known.filter(|known| known.runtime_pins).map(|_| "the runtime's list of images".into()));
        pins.extend(known.into_iter().flat_map(|known| known.pinned_by.iter().cloned()));
        match pins.as_slice() {
            [] => RuleAnswer::pass("nothing pins it"),
            pins => RuleAnswer::Keep(format!("pinned: {}", first_few(pins))),
        }
    }

    fn protected_name(&self, image_ix: ImageIx) -> RuleAnswer {
        let patterns = &self.input.policy.protect.names;
        let Image { names, digests, id, .. } = self.image(image_ix);
        for name in names {
            if let Some(pattern) = patterns.iter().find(|pattern| pattern.matches(name)) {
                return RuleAnswer::Keep(format!("{name} matches the protected name {}", pattern.text()));
            }
        }
        if let Some(place) = self.input.policy.protect.references.place_of(self.image(image_ix)) {
            return RuleAnswer::Keep(format!("named in {place}"));
        }
        // A repository without a tag, a digest, or an id, as in the keep-list.
        match patterns.iter().find(|pattern| pattern.covers(names, digests, id.as_str())) {
            Some(pattern) => RuleAnswer::Keep(format!("the protected name {} covers it", pattern.text())),
            None => RuleAnswer::pass("no protected name matches"),
        }
    }

    fn protected_label(&self, image_ix: ImageIx) -> RuleAnswer {
        let protected = &self.input.policy.protect.labels;
        if protected.is_empty() {
            return RuleAnswer::pass("no label is protected");
        }
        let labels = match &self.image(image_ix).labels {
            Labels::Known(labels) => labels,
            Labels::Unknown(why) => {
                return RuleAnswer::Keep(format!(
                    "it may have a protected label: its labels are unknown ({why})"
                ));
            }
            Labels::NotRead => {
                return RuleAnswer::keep("it may have a protected label: its labels were not read");
            }
        };
        for (key, value) in protected {
            let mut labels =
                labels.iter().filter(|(k, v)| k == key && value.as_ref().is_none_or(|value| value == v));
            if let Some((key, value)) = labels.next() {
                return RuleAnswer::Keep(format!("it has the protected label {key}={value}"));
            }
        }
        RuleAnswer::pass("it has no protected label")
    }

    /// Returns a clause about the command that removes an image that is out of reach. The command itself refuses
    /// nothing, so that there is none for an image that something uses or pins, and for one that perhaps no registry
    /// has only a command that shows it.
    fn removal_by_hand(&self, image_ix: ImageIx) -> Option<String> {
        let removal = self.input.facts(image_ix)?.removal.as_ref()?;
        if self.in_use(image_ix).keeps() || self.pinned(image_ix).keeps() {
            None
        } else if self.not_repullable(image_ix).keeps() {
            self.input.inventory.listing_by_ctr(image_ix)
        } else {
            Some(removal.clone())
        }
    }

    /// Dangling leftovers of builds are not kept: nothing can start from them by a name.
    fn not_repullable(&self, image_ix: ImageIx) -> RuleAnswer {
        let image = self.image(image_ix);
        let origin = &image.origin;
        if !origin.may_lack_a_registry() {
            return RuleAnswer::Pass(match &origin.registry {
                Some(registry) => format!("pulled from {registry}"),
                None => format!("{}: {}", origin.kind, origin.evidence),
            });
        }
        let history = if origin.is_doubtful {
            format!("origin unknown ({}), perhaps never pulled", origin.evidence)
        } else {
            format!("{} here and never pulled ({})", origin.kind, origin.evidence)
        };
        if image.names.is_empty() {
            RuleAnswer::Pass(format!("{history}, but it has no name"))
        } else if self.never_pulled.are_kept(image) {
            RuleAnswer::Keep(format!(
                "{history}, so no registry may have it: protect.not_repullable keeps it"
            ))
        } else {
            RuleAnswer::Pass(format!("{history}; protect.not_repullable does not keep such images here"))
        }
    }

    fn min_age(&self, image_ix: ImageIx) -> RuleAnswer {
        let Some(ages) = self.input.ages(image_ix) else {
            return RuleAnswer::pass("its age is unknown");
        };
        let age = self.input.now.duration_since(ages.first_detected);
        let minimum = self.input.policy.min_age_of(self.image(image_ix));
        let age_text = span(age.max(SignedDuration::ZERO));
        let minimum_text = format!("{}{}", span(minimum.value), minimum.origin());
        if age < minimum.value {
            RuleAnswer::Keep(format!(
                "first detected {age_text} ago, less than the minimum age of {minimum_text}"
            ))
        } else {
            RuleAnswer::Pass(format!("first detected {age_text} ago, the minimum age is {minimum_text}"))
        }
    }

    /// Guards against a use that only the scan of this run has seen. The use is compared with the start of the scan
    /// and not with the present, since ages are always read before the present.
    fn used_just_now(&self, image_ix: ImageIx) -> RuleAnswer {
        match self.input.ages(image_ix).and_then(|ages| ages.last_used) {
            Some(used) if used >= self.input.scanned => RuleAnswer::keep("it was in use when this run began"),
            Some(used) => {
                RuleAnswer::Pass(format!("last used {} ago", span(self.input.now.duration_since(used))))
            }
            None => RuleAnswer::pass("never seen in use"),
        }
    }

    fn backing_off(&self, image_ix: ImageIx) -> RuleAnswer {
        match self.input.facts(image_ix).and_then(|known| known.back_off.as_ref()) {
            Some(back_off) if back_off.next_try > self.input.now => RuleAnswer::Keep(format!(
                "{} to remove it, the last with: {}; not again before {}",
                if back_off.failures == 1 {
                    "an attempt failed".to_owned()
                } else {
                    format!("{} attempts failed", back_off.failures)
                },
                back_off.last_error,
                whole_second(back_off.next_try),
            )),
            Some(_) => RuleAnswer::pass("the wait after the last failed attempt is over"),
            None => RuleAnswer::pass("no attempt to remove it has failed"),
        }
    }
}

/// Decides whether named images that were never pulled are kept.
#[derive(Debug)]
pub struct NeverPulled {
    setting: NotRepullable,
    /// By store: a Kubernetes runtime pulls into it.
    is_of_kubernetes: Vec<bool>,
}

impl NeverPulled {
    /// Any containerd is of Kubernetes (then only the namespace of CRI counts), and so is a graphroot that has
    /// containers of CRI-O, or that CRI-O or its configuration names.
    #[must_use]
    pub fn new(inventory: &Inventory, protect: &Protect) -> Self {
        let is_of_kubernetes = inventory.stores.iter().enumerate().map(|(position, store)| {
            protect.crio_stores.contains(&store.root) || inventory.is_of_runtime(position.into())
        });
        Self { setting: protect.not_repullable, is_of_kubernetes: is_of_kubernetes.collect() }
    }

    #[must_use]
    pub fn are_kept(&self, image: &Image) -> bool {
        match self.setting {
            NotRepullable::Always => true,
            NotRepullable::Never => false,
            NotRepullable::Kubernetes => {
                self.is_of_kubernetes[image.store.get()] && !image.id.as_str().contains('/')
            }
        }
    }
}

enum RuleAnswer {
    Keep(String),
    Pass(String),
}

impl RuleAnswer {
    fn keep(detail: &str) -> Self {
        Self::Keep(detail.to_owned())
    }

    fn pass(detail: &str) -> Self {
        Self::Pass(detail.to_owned())
    }

    fn keeps(&self) -> bool {
        matches!(self, Self::Keep(_))
    }
}

/// Returns the detail of the rule `read-only-store`, with the way to delete from the store all the same.
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

/// Returns the detail of the rule `in-use` for an image whose layers another store needs.
pub(crate) fn needed_by(user: &str) -> String {
    format!("{user} needs its layers, and no other image of its store holds them")
}

/// Returns the containers of each image, in its own store and in stores that may use its images. An image with the
/// same id in another store is a different image.
pub(crate) fn containers_by_image(inventory: &Inventory) -> Vec<Vec<usize>> {
    let mut users = vec![Vec::new(); inventory.images.len()];
    for (position, container) in inventory.containers.iter().enumerate() {
        for volume in container.images().filter(|image| container.image != Some(*image)) {
            users[volume.get()].push(position);
        }
        if let Some(image) = container.image {
            users[image.get()].push(position);
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

/// Describes a container for people: `cri-o nginx (running)`.
pub(crate) fn describe_container(container: &Container) -> String {
    let owner = container.owner.as_str();
    let state = match container.state {
        ContainerState::Unknown => String::new(),
        state => format!(" ({})", state.as_str()),
    };
    format!("the {owner} container {}{state}", container.name)
}

fn describe_use(container: &Container, image: ImageIx) -> String {
    let is_volume = container.image != Some(image) && container.uses(image);
    format!(
        "{}{}",
        describe_container(container),
        if is_volume { ", which has it mounted as a volume" } else { "" }
    )
}

fn first_few(texts: &[String]) -> String {
    const MAX: usize = 5;
    let shown = texts[..texts.len().min(MAX)].join(", ");
    match texts.len().checked_sub(MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

fn whole_second(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// Returns for each image the reference in `list` that means it, if any.
fn named<'a>(input: &Input<'a>, list: &'a [NamedImage]) -> Vec<Option<&'a NamedImage>> {
    let images = input.inventory.images.iter();
    images
        .map(|image| {
            list.iter().find(|named| reference::means(&named.reference, &image.names, &image.digests))
        })
        .collect()
}

fn by_quadlets<'a>(input: &Input<'a>, list: &'a [Quadlet]) -> Vec<Option<&'a NamedImage>> {
    let stores = &input.inventory.stores;
    let named_by = input.inventory.images.iter().map(|image| {
        let store = &stores[image.store.get()];
        list.iter().find(|quadlet| quadlet.means(store, image)).map(|quadlet| &quadlet.named)
    });
    named_by.collect()
}

/// Returns a clause about each image that is among the newest of a repository in its store, whatever other rules keep.
/// Newest means first detected last on this node: build dates are often equal or long past. The names that a rule with
/// a number of its own matches are counted by themselves.
fn newest(input: &Input<'_>) -> Vec<Option<String>> {
    let images = &input.inventory.images;
    let policy = input.policy;
    let mut newest = vec![None; images.len()];
    if !policy.keeps_newest() {
        return newest;
    }
    let mut repositories: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (position, image) in images.iter().enumerate() {
        for name in &image.names {
            let rule =
                policy.rule_for(image, Some(name)).filter(|rule| policy.rules[*rule].keep_newest.is_some());
            let members = repositories.entry((image.store, reference::repository(name), rule)).or_default();
            if members.last() != Some(&position) {
                members.push(position);
            }
        }
    }
    for ((_, repository, rule), mut members) in repositories {
        let rule = rule.map(|rule| &policy.rules[rule]);
        let count = rule.and_then(|rule| rule.keep_newest).unwrap_or(policy.protect.keep_newest);
        let first_detected =
            |ix: &usize| input.facts.get(*ix).and_then(|facts| facts.ages).map(|ages| ages.first_detected);
        // An image whose first detection is unknown counts as newest.
        members.sort_by(|a, b| {
            let (detected_a, detected_b) = (first_detected(a), first_detected(b));
            let unknown_first = (detected_b.is_none(), detected_b).cmp(&(detected_a.is_none(), detected_a));
            let built = images[*b].created.cmp(&images[*a].created);
            unknown_first.then(built).then_with(|| images[*a].id.cmp(&images[*b].id))
        });
        let origin = Limit { value: count, rule }.origin();
        for position in members.into_iter().take(count) {
            newest[position]
                .get_or_insert_with(|| format!("among the newest {count} of {repository}{origin}"));
        }
    }
    newest
}
