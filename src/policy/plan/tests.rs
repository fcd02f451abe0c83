use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::model::Pattern;
use crate::model::deletion::plan::Reason;
use crate::model::reference_set::ReferenceSet;
use crate::model::refs::Refs;
use crate::model::{
    Consistency, Container, ContainerState, Filesystem, Image, Inventory, Labels, NamedImage, Node, Origin,
    Owner, Size, Store, StoreKind, Use, samples,
};
use crate::policy::input::{
    Ages, BackOff, DeletionOrder, Facts, FullFilesystem, NotRepullable, Policy, Protect,
};
use crate::policy::plan::*;
use crate::policy::scenario::Scenario;
use crate::policy::space::{FreeFloor, Targets, Thresholds};

const HOUR: i64 = 3600;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000 * HOUR).unwrap()
}

fn failed(message: &str) -> Problem {
    Problem::new(None, Phase::RemoveImage, message)
}

fn node(filesystem: usize, bytes: u64, needs: &[usize]) -> Node {
    let layer = samples::layer(bytes, needs);
    let size = Size { inodes: bytes / 10 + 1, ..layer.size };
    Node { filesystem: filesystem.into(), size, ..layer }
}

fn image(id: &str, holds: &[usize]) -> Image {
    Image { names: vec![format!("quay.io/team/{id}:1")], ..samples::image(id, holds) }
}

fn container(image: usize, owner: Owner) -> Container {
    let container = samples::container("c", owner, ContainerState::Exited);
    Container { name: "web".into(), image: Some(image.into()), ..container }
}

fn store(read_only: bool) -> Store {
    Store { read_only, ..samples::store() }
}

fn filesystem(mount: &str) -> Filesystem {
    Filesystem {
        mount: mount.into(),
        device: "/dev/test".into(),
        fstype: "ext4".into(),
        capacity_bytes: 1000,
        used_bytes: 0,
        available_bytes: 0,
        inodes: 0,
        inodes_free: 0,
    }
}

fn inventory(nodes: Vec<Node>, images: Vec<Image>) -> Inventory {
    Inventory {
        filesystems: vec![filesystem("/store"), filesystem("/layers")],
        stores: vec![store(false), store(true)],
        nodes,
        images,
        ..Inventory::default()
    }
}

fn hours_ago(first: i64, last: Option<i64>) -> Ages {
    let last = last.map(|hours| now() - SignedDuration::from_hours(hours));
    Ages::new(now() - SignedDuration::from_hours(first), last, 0)
}

fn now_in_use(by: &str) -> Ruling {
    Ruling::keeps(Rule::InUse, format!("used by {by}"))
}

fn count(plan: &Plan, reason: Reason) -> usize {
    plan.steps.iter().filter(|step| step.cause.reason() == reason).count()
}

fn percent(high: u8, low: u8) -> Policy {
    Policy {
        targets: Targets { used: Some(Thresholds { high, low }), ..Targets::default() },
        ..Policy::default()
    }
}

fn space(available_bytes: u64) -> Measured {
    Ok(Space { capacity_bytes: 1000, available_bytes, owed_bytes: 0, inodes: 1000, inodes_free: 500 })
}

fn aged(ages: Ages) -> Facts {
    Facts { ages: Some(ages), ..Facts::default() }
}

/// Input of a test. Each image is older than the next.
#[derive(Debug)]
struct World {
    inventory: Inventory,
    facts: Vec<Facts>,
    full: Vec<FullFilesystem>,
    policy: Policy,
}

impl World {
    fn new(nodes: Vec<Node>, images: Vec<Image>, policy: Policy) -> Self {
        let facts = (0..images.len()).map(|position| aged(hours_ago(1000 - position as i64, None))).collect();
        Self { inventory: inventory(nodes, images), facts, full: Vec::new(), policy }
    }

    fn ages(&self, image_ix: ImageIx) -> Ages {
        self.facts[image_ix.get()].ages.unwrap()
    }

    fn last_used(&mut self, image: usize, last_used: Option<Timestamp>) {
        self.facts[image].ages.as_mut().unwrap().last_used = last_used;
    }

    fn with<T>(&self, work: impl FnOnce(Input<'_>) -> T) -> T {
        let refs = Refs::new(&self.inventory);
        work(Input {
            inventory: &self.inventory,
            refs: &refs,
            facts: &self.facts,
            full_filesystems: &self.full,
            policy: &self.policy,
            now: now(),
            scanned: now() - SignedDuration::from_mins(10),
        })
    }

    fn image_ix(&self, target: &Target) -> ImageIx {
        let found = self.inventory.images.iter().position(|image| image.id == target.id);
        found.unwrap().into()
    }

    fn plan(&self, measured: &[Measured]) -> (Vec<String>, Vec<(String, Rule)>, Plan) {
        let plan = self.with(|input| plan(input, Task::Policy, measured));
        let deleted = plan.steps.iter().map(|step| step.target.id.clone()).collect();
        let kept = plan.kept.iter().map(|kept| (kept.target.id.clone(), kept.rule)).collect();
        (deleted, kept, plan)
    }

    /// Simulates a run in which `outcome` decides each step by id. A removal frees what was predicted. Returns the
    /// ids of the steps, and the plan.
    fn run(&self, mut available: u64, outcome: impl Fn(&str) -> Answer) -> (Vec<String>, Plan) {
        self.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut tried = Vec::new();
            while let Some(step) = planner.next(&[space(available), space(1000)]) {
                let id = step.target.id.clone();
                let outcome = outcome(&id);
                if outcome.is_gone() {
                    available += step.predicted_bytes();
                }
                tried.push(id);
                planner.answer(outcome);
            }
            (tried, planner.finish(&[space(available), space(1000)]))
        })
    }
}

fn ten_images() -> World {
    let nodes = (0..10).map(|_| node(0, 30, &[])).collect();
    let images = (0..10).map(|ix| image(&format!("i{ix}"), &[ix])).collect();
    World::new(nodes, images, percent(75, 70))
}

#[test]
fn run_stops_at_the_low_threshold() {
    let (deleted, kept, plan) = ten_images().plan(&[space(200)]);
    assert_eq!(deleted, ["i0", "i1", "i2", "i3"], "100 bytes are wanted");
    assert_eq!(plan.outcome, OutcomeKind::Reached);
    assert_eq!(kept[0], ("i4".into(), Rule::NotNeeded));
    assert_eq!(plan.kept[0].detail, "enough was free before its turn, at 68.00 % used");
    let after: Vec<_> = plan.steps.iter().map(|step| step.expected.unwrap().available_bytes).collect();
    assert_eq!(after, [230, 260, 290, 320]);
    assert_eq!(plan.filesystems[0].wanted.bytes, 100);

    let (deleted, _, plan) = ten_images().plan(&[space(251)]);
    assert_eq!((deleted.len(), plan.outcome), (0, OutcomeKind::NotNeeded));
    let detail = &plan.kept[0].detail;
    assert_eq!(detail, "deleting starts at 75 % used; 74.90 % are used");
}

#[test]
fn measurements_override_predictions() {
    // Another process frees a lot after the first deletion, or writes a lot all the time.
    for (available, expected) in [(vec![200, 400], 1), (vec![200; 20], 10)] {
        let world = ten_images();
        let (steps, verdict) = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            let mut steps = 0;
            for now in &available {
                if planner.next(&[space(*now)]).is_none() {
                    break;
                }
                steps += 1;
                planner.answer(Answer::Removed);
            }
            (steps, planner.finish(&[space(*available.last().unwrap())]).outcome)
        });
        assert_eq!(steps, expected);
        assert_eq!(verdict, if expected == 1 { OutcomeKind::Reached } else { OutcomeKind::NotReached });
    }
}

#[test]
fn every_rule_keeps_and_gives_its_reason() {
    let mut world = ten_images();
    let images = &mut world.inventory.images;
    images[1].pinned_by = vec!["crio.conf".into()];
    images[6].names = vec!["quay.io/keep/a:1".into(), "quay.io/keep/a:2".into()];
    images[7].store = 1.into();
    images[9].names = vec![];
    world.inventory.containers = vec![container(0, Owner::Podman), container(0, Owner::CriO)];
    world.facts[1].pinned_by = vec!["layersweep pin quay.io/*".into()];
    world.facts[1].runtime_pins = true;
    for image in images.iter_mut() {
        image.labels = Labels::Known(vec![]);
    }
    images[5].labels = Labels::Known(vec![("keep".into(), "yes".into())]);
    world.facts[9].back_off =
        Some(BackOff::after(None, now() - SignedDuration::from_mins(1), "image is in use"));
    world.facts[8].ages = Some(hours_ago(0, None));
    fn named(reference: &str, source: &str) -> NamedImage {
        NamedImage { reference: reference.into(), source: source.into() }
    }
    world.policy.min_age = SignedDuration::from_mins(2);
    world.policy.protect = Protect {
        names: vec![Pattern::new("quay.io/team/i4*").unwrap()],
        labels: vec![("keep".into(), None)],
        references: ReferenceSet::default(),
        keep_newest: 1,
        not_repullable: NotRepullable::Kubernetes,
        crio_stores: Vec::new(),
        static_pods: vec![named("quay.io/team/i3:1", "etcd.yaml")],
        quadlets: vec![],
        sandboxes: vec![named("quay.io/team/i2:1", "crio.conf")],
        pulling: vec![named("quay.io/team/i8:1", "pulling/sha256-0")],
        unread: vec![],
    };
    // Each image has its own repository: the rule decides where no earlier rule keeps the image.
    let (deleted, kept, plan) = world.plan(&[space(0)]);
    let rules: Vec<_> = kept.iter().map(|(_, rule)| *rule).collect();
    assert_eq!(deleted, [""; 0]);
    assert_eq!(
        rules,
        [
            Rule::InUse,
            Rule::Pinned,
            Rule::SandboxImage,
            Rule::StaticPod,
            Rule::ProtectedName,
            Rule::ProtectedLabel,
            Rule::NewestOfRepository,
            Rule::NewestOfRepository,
            Rule::PullInProgress,
            Rule::BackingOff
        ]
    );
    for (position, words) in [
        (0, "used by 2: the podman container web (exited), the cri-o container web (exited)"),
        (1, "pinned: crio.conf, the runtime's list of images, layersweep pin quay.io/*"),
        (2, "used for pod sandboxes, according to crio.conf"),
        (3, "the static pod etcd.yaml names it"),
        (4, "quay.io/team/i4:1 matches the protected name quay.io/team/i4*"),
        (5, "it has the protected label keep=yes"),
        (6, "among the newest 1 of quay.io/keep/a"),
        (8, "the kubelet is pulling it, according to pulling/sha256-0"),
        (9, "an attempt failed to remove it, the last with: image is in use; not again before"),
    ] {
        assert!(plan.kept[position].detail.starts_with(words), "{}", plan.kept[position].detail);
    }
    world.policy.protect.keep_newest = 0;
    world.policy.protect.pulling.clear();
    world.facts[9].ages = None;
    world.facts[6].used_by = vec!["cri-o pod/app".into()];
    // Used while it was scanned, ten minutes ago.
    world.last_used(5, Some(now() - SignedDuration::from_mins(10)));
    world.inventory.images[5].labels = Labels::Known(vec![("keepnot".into(), "yes".into())]);
    let (_, kept, _) = world.plan(&[space(0)]);
    let rules: Vec<_> = kept[5..].iter().map(|(_, rule)| *rule).collect();
    assert_eq!(rules, [Rule::UsedJustNow, Rule::InUse, Rule::ReadOnlyStore, Rule::MinAge, Rule::AgeUnknown]);
    world.last_used(5, Some(now() - SignedDuration::from_mins(11)));
    assert_eq!(world.plan(&[space(0)]).0, ["i5"], "before it was scanned");
    world.last_used(5, Some(now()));
    // The container only has the id of i8: it is in a store that cannot use images of this one.
    world.inventory.containers.push(Container {
        image: None,
        image_id: Some("i8".into()),
        ..container(0, Owner::Buildah)
    });
    assert_eq!(world.plan(&[space(0)]).1[8].1, Rule::MinAge);
    // A container of another store was made from it.
    let by = "the podman container web in the store /other".to_owned();
    world.inventory.uses.push(Use { by, images: vec![8.into()], ..Use::default() });
    assert_eq!(world.plan(&[space(0)]).1[8].1, Rule::InUse);
    world.inventory.stores[0].consistency = Consistency::Damaged;
    assert_eq!(world.plan(&[space(0)]).1[9].1, Rule::DamagedStore);
    world.with(|input| {
        let judge = Judge::new(input);
        let names: Vec<_> = judge.rulings(0.into()).iter().map(|ruling| ruling.rule).collect();
        assert_eq!(names, documented_rules()[..names.len()], "explain shows them all");
        let later =
            [Rule::NotNeeded, Rule::FreesNothing, Rule::Unmeasured, Rule::RemovalFailed, Rule::RunEnded];
        assert_eq!(documented_rules()[names.len()..], later);
    });
}

/// Returns the rules of images in `docs/how-it-decides.md`, in its order.
fn documented_rules() -> Vec<Rule> {
    let text = include_str!("../../../docs/how-it-decides.md");
    // The rules of containers and logs are in a later chapter.
    let images = text.split("\n## Dead containers").next().unwrap();
    let rows = images.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| *Rule::ALL.iter().find(|rule| rule.as_str() == name).expect(name)).collect()
}

#[test]
fn unknown_labels_keep_while_labels_are_protected() {
    let mut world = ten_images();
    fn known(pairs: &[(&str, &str)]) -> Labels {
        Labels::Known(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
    }
    let images = &mut world.inventory.images;
    for (position, labels) in [
        Labels::NotRead,
        Labels::Unknown("reading its manifest: not there".into()),
        known(&[]),
        known(&[("team", "a")]),
        known(&[("team", "b")]),
        known(&[("team", "b"), ("team", "a")]),
        known(&[("keep", "")]),
        known(&[("keep", "no")]),
        known(&[("Keep", "yes")]),
    ]
    .into_iter()
    .enumerate()
    {
        images[position].labels = labels;
    }
    images.truncate(9);
    fn rulings(world: &World) -> Vec<String> {
        world.with(|input| {
            let judge = Judge::new(input);
            let rulings = (0..9_usize).flat_map(|ix| judge.rulings(ix.into()));
            let rulings = rulings.filter(|ruling| ruling.rule == Rule::ProtectedLabel);
            rulings.map(|ruling| if ruling.keeps { ruling.detail } else { String::new() }).collect()
        })
    }
    assert_eq!(rulings(&world), [""; 9], "no label is protected");
    world.policy.protect.labels = vec![("team".into(), Some("a".into())), ("keep".into(), None)];

    assert_eq!(
        rulings(&world),
        [
            "it may have a protected label: its labels were not read".into(),
            "it may have a protected label: its labels are unknown (reading its manifest: not there)".into(),
            String::new(),
            "it has the protected label team=a".into(),
            String::new(),
            "it has the protected label team=a".into(),
            "it has the protected label keep=".into(),
            "it has the protected label keep=no".into(),
            String::new(),
        ]
    );
}

#[test]
fn newest_of_a_repository_was_detected_last() {
    let mut world = ten_images();
    for (ix, image) in world.inventory.images.iter_mut().enumerate() {
        image.names = vec![format!("quay.io/app:{ix}"), format!("quay.io/app@sha256:{ix}")];
    }
    world.policy.protect.keep_newest = 3;
    let (deleted, kept, _) = world.plan(&[space(0)]);
    assert_eq!(deleted.len(), 7);
    assert_eq!(kept.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["i7", "i8", "i9"]);
}

/// a and b share 100 bytes that no other image reaches; c has 200 of its own.
fn a_pair() -> World {
    let nodes = vec![node(0, 100, &[]), node(0, 200, &[]), node(0, 500, &[])];
    let images = vec![image("a", &[0]), image("b", &[0]), image("c", &[1]), image("none", &[2])];
    let mut world = World::new(nodes, images, percent(75, 70));
    world.inventory.anchored = vec![2.into()];
    world
}

#[test]
fn shared_bytes_are_freed_with_the_last() {
    let (deleted, kept, plan) = a_pair().plan(&[space(200)]);
    assert_eq!(deleted, ["a", "b"]);
    assert_eq!(plan.steps.iter().map(Step::predicted_bytes).collect::<Vec<_>>(), [0, 100]);
    assert_eq!(plan.steps.iter().map(|step| step.group).collect::<Vec<_>>(), [Some(2), None]);
    assert_eq!(kept[0].1, Rule::NotNeeded);

    // If b is newer than c, no image is deleted before its turn because of a.
    let mut world = a_pair();
    world.facts[1].ages = Some(hours_ago(1, None));
    assert_eq!(world.plan(&[space(200)]).0, ["c"]);
    let (deleted, kept, plan) = world.plan(&[space(10)]);
    assert_eq!(deleted, ["c", "a", "b"]);
    assert_eq!(kept, [("none".into(), Rule::FreesNothing)]);
    assert_eq!(plan.kept[0].detail, "its deletion would free 0 bytes on /store now");
}

#[test]
fn group_without_a_member_is_given_up() {
    for lost in ["a", "b"] {
        let (tried, plan) = a_pair().run(200, |id| {
            if id == lost { Answer::Failed(failed("busy"), Aftermath::Untouched) } else { Answer::Removed }
        });
        assert_eq!(tried, if lost == "a" { vec!["a", "c"] } else { vec!["a", "b", "c"] });
        assert_eq!(plan.outcome, OutcomeKind::Reached);
        assert_eq!(plan.problems.len(), 1);
        assert_eq!(plan.problems[0].message, "busy");
    }
    let (tried, plan) = a_pair().run(200, |_| Answer::Kept(now_in_use("cri-o pod/app")));
    assert_eq!(tried, ["a", "c"], "without a, b would free nothing");
    assert!(plan.problems.is_empty());
    assert_eq!(plan.kept[0].rule, Rule::InUse);
    let (tried, plan) = a_pair().run(200, |_| Answer::AlreadyGone);
    assert_eq!(tried, ["a", "b"]);
    assert_eq!((plan.steps.len(), plan.kept.len()), (0, 2), "images that others removed are not in the plan");
}

#[test]
fn passed_over_image_is_deleted_after_its_sharer() {
    // "old" shares 300 bytes with "new", which also has bytes of its own.
    let nodes = vec![node(0, 300, &[]), node(0, 50, &[]), node(0, 400, &[])];
    let images = vec![image("old", &[0]), image("new", &[0, 1]), image("last", &[2])];
    let world = World::new(nodes, images, percent(75, 70));
    assert_eq!(world.plan(&[space(100)]).0, ["new", "old"], "before the turn of last");
}

#[test]
fn small_gains_are_used_if_they_suffice() {
    let nodes: Vec<_> = (0..200).map(|_| node(0, 900, &[])).collect();
    let images = (0..200).map(|ix| image(&format!("i{ix:03}"), &[ix])).collect();
    let world = World::new(nodes, images, percent(75, 70));
    fn space(available_bytes: u64) -> Measured {
        Ok(Space { capacity_bytes: 20_000_000, available_bytes, owed_bytes: 0, inodes: 0, inodes_free: 0 })
    }
    // 1,000,000 are wanted, and 180,000 are possible, 900 at a time.
    let (deleted, kept, plan) = world.plan(&[space(5_000_000)]);
    assert_eq!((deleted.len(), plan.outcome), (0, OutcomeKind::NotReached));
    assert!(kept.iter().all(|(_, rule)| *rule == Rule::FreesNothing));
    // Another process frees most of it during the first deletion.
    let mut world = world;
    world.inventory.nodes.push(node(0, 100_000, &[]));
    world.inventory.images.push(image("big", &[200]));
    world.facts.push(aged(hours_ago(5000, None)));
    let (steps, verdict) = world.with(|input| {
        let mut planner = Planner::new(input, Task::Policy);
        let mut available = 5_000_000;
        let mut steps = 0;
        while let Some(step) = planner.next(&[space(available)]) {
            steps += 1;
            available = if steps == 1 { 5_990_000 } else { available + step.predicted_bytes() };
            planner.answer(Answer::Removed);
        }
        (steps, planner.finish(&[space(available)]).outcome)
    });
    assert_eq!((steps, verdict), (1 + 12, OutcomeKind::Reached), "10,000 bytes, 900 at a time");
}

#[test]
fn each_filesystem_is_judged_alone() {
    // Layers on the second filesystem, metadata on the first.
    let nodes = vec![node(0, 10, &[]), node(1, 300, &[]), node(0, 400, &[]), node(1, 5, &[])];
    let images = vec![image("layers", &[0, 1]), image("here", &[2, 3])];
    let world = World::new(nodes, images, percent(75, 70));
    let (deleted, _, plan) = world.plan(&[space(500), space(100)]);
    assert_eq!(deleted, ["layers"]);
    assert_eq!(plan.steps[0].filesystem, Some(1.into()));
    assert_eq!(plan.steps[0].predicted_on(1.into()), 300);
    assert_eq!(plan.steps[0].predicted_bytes(), 310);
    let (deleted, _, plan) = world.plan(&[space(0), space(100)]);
    assert_eq!(deleted, ["layers", "here"], "one is enough for the second, both for the first");
    assert_eq!(plan.outcome, OutcomeKind::Reached);
    let (deleted, kept, plan) = world.plan(&[Err(InvalidStats::NoCapacity), space(100)]);
    assert_eq!(deleted, ["layers"], "the other filesystem is judged all the same");
    assert_eq!(kept, [("here".into(), Rule::Unmeasured)]);
    assert_eq!((plan.outcome, plan.problems.len()), (OutcomeKind::Failed, 1));
    // A filesystem with only a read-only store is not judged.
    let mut world = ten_images();
    world.inventory.stores[1].filesystem = 1.into();
    assert_eq!(world.plan(&[space(500), space(0)]).2.outcome, OutcomeKind::NotNeeded);
}

/// A rootless store on its own full filesystem: root deletes nothing there, but must not call that done.
#[test]
fn only_filesystems_with_deletable_images_are_judged() {
    let nodes = vec![node(0, 300, &[]), node(1, 300, &[])];
    let mut world = World::new(nodes, vec![image("system", &[0]), image("rootless", &[1])], percent(75, 70));
    world.inventory.stores[1].read_only = false;
    world.inventory.stores[1].filesystem = 1.into();
    world.inventory.images[1].store = 1.into();
    world.inventory.nodes[1].store = 1.into();
    world.facts[1].out_of_reach = Some("it is not in the store of the runtime".into());
    fn judged(plan: &Plan) -> Vec<usize> {
        plan.filesystems.iter().map(|part| part.filesystem.get()).collect()
    }
    let (deleted, kept, plan) = world.plan(&[space(200), space(0)]);
    assert_eq!(
        (deleted.as_slice(), judged(&plan), plan.outcome),
        (&["system".to_owned()][..], vec![0, 1], OutcomeKind::NotReached)
    );
    assert_eq!(kept, [("rootless".into(), Rule::OutOfReach)]);
    assert_eq!(world.plan(&[space(200), space(900)]).2.outcome, OutcomeKind::Reached);
    // Its user cannot delete an image in use either.
    world.facts[1].used_by = vec!["a container".into()];
    let (_, _, plan) = world.plan(&[space(200), space(0)]);
    assert_eq!((judged(&plan), plan.outcome), (vec![0], OutcomeKind::Reached));
    // A rule may release its images tomorrow: their filesystem is short all the same.
    world.facts[0].pinned_by = vec!["a pin".into()];
    assert_eq!(world.plan(&[space(200), space(0)]).2.outcome, OutcomeKind::NotReached);
    // If no image is in reach, the filesystem of the first store is judged.
    world.facts[0].out_of_reach = world.facts[1].out_of_reach.clone();
    let (_, _, plan) = world.plan(&[space(900), space(0)]);
    assert_eq!((judged(&plan), plan.outcome), (vec![0], OutcomeKind::NotNeeded));
    // Layers in an additional store do not make its filesystem judged.
    world.facts[0] = Facts::default();
    world.inventory.stores[1].read_only = true;
    world.inventory.nodes[0].needs = vec![1.into()];
    assert_eq!(judged(&world.plan(&[space(900), space(0)]).2), [0]);
}

#[test]
fn age_pass_is_first_and_space_follows() {
    let mut world = ten_images();
    world.policy.max_age = Some(SignedDuration::from_hours(997));
    world.facts[0].ages = Some(hours_ago(1000, Some(3)));
    let (tried, plan) = world.run(200, |id| match id {
        "i1" => Answer::Failed(failed("held"), Aftermath::Untouched),
        _ => Answer::Removed,
    });
    assert_eq!(tried, ["i1", "i2", "i3", "i4", "i5"], "i0 was used lately, i3 has just the limit");
    assert_eq!(count(&plan, Reason::Age), 1);
    assert_eq!(count(&plan, Reason::Space), 3);
    assert_eq!(plan.outcome, OutcomeKind::Reached);
    assert_eq!(plan.trigger, Trigger { space: true, age: true });
}

#[test]
fn unanswered_step_is_not_done() {
    let world = ten_images();
    let plan = world.with(|input| {
        let mut planner = Planner::new(input, Task::Policy);
        assert!(planner.next(&[space(200)]).is_some());
        planner.finish(&[space(200)])
    });
    assert_eq!((plan.steps.len(), plan.kept.len()), (0, 10));
    assert_eq!(plan.kept[0].rule, Rule::RemovalFailed);
    assert_eq!(plan.outcome, OutcomeKind::NotReached);
}

/// Plans for 10,000 images over 100,000 layers, and prints the duration without a limit for it.
#[test]
#[ignore = "prints how long planning takes; run it with --release"]
fn planning_a_big_node() {
    let made = Scenario::big(10_000, 100_000);
    let inventory = made.inventory();
    let refs = Refs::new(&inventory);
    let facts = made.facts();
    for (case, policy, measured) in [
        ("90 to 60 %", percent(75, 60), made.space()),
        ("everything", percent(1, 0), made.space()),
        ("cheapest, 90 to 60 %", Policy { order: DeletionOrder::Cheapest, ..percent(75, 60) }, made.space()),
        (
            "all by age",
            Policy { max_age: Some(SignedDuration::from_secs(1)), ..percent(99, 98) },
            made.space(),
        ),
    ] {
        let input = Input {
            inventory: &inventory,
            refs: &refs,
            facts: &facts,
            full_filesystems: &[],
            policy: &policy,
            now: made.now,
            scanned: made.now,
        };
        let begin = std::time::Instant::now();
        let plan = plan(input, Task::Policy, &[Ok(measured)]);
        println!(
            "{case}: {} images, {} nodes: {} steps in {:?}",
            inventory.images.len(),
            inventory.nodes.len(),
            plan.steps.len(),
            begin.elapsed()
        );
        assert!(!plan.steps.is_empty());
    }
}

mod cheapest;
mod full_disk;
mod image_rules;
mod inodes;
mod lists;
mod not_repullable;
mod properties;
mod shared_bytes;

fn named(world: &World, named: &[usize], end_after: usize) -> (Vec<String>, Plan) {
    let named: Vec<_> = named.iter().map(|ix| ImageIx::from(*ix)).collect();
    world.with(|input| {
        let spaces = [space(900), space(900)];
        let mut planner = Planner::new(input, Task::Named(&named));
        let mut tried = Vec::new();
        while tried.len() < end_after
            && let Some(step) = planner.next(&spaces)
        {
            assert_eq!((step.cause, step.filesystem), (Cause::Request, Some(0.into())));
            tried.push(step.target.id.clone());
            planner.answer(Answer::Removed);
        }
        (tried, planner.finish(&spaces))
    })
}

/// Named images are deleted in the given order and once, whatever thresholds and ages are, and only they are in the
/// plan.
#[test]
fn named_images_are_deleted_in_order() {
    let world = ten_images();
    let (tried, plan) = named(&world, &[7, 2, 7, 99, 4], 9);
    assert_eq!(tried, ["i7", "i2", "i4"]);
    assert_eq!((plan.outcome, plan.kept.len(), count(&plan, Reason::Request)), (OutcomeKind::Reached, 0, 3));
    assert_eq!(plan.trigger, Trigger::default());
    assert_eq!(named(&world, &[], 9).1.outcome, OutcomeKind::NotNeeded);
    let dry = world.with(|input| plan_of(input, &[7.into(), 2.into(), 4.into()]));
    assert_eq!(
        dry.steps.iter().map(|step| world.image_ix(&step.target).get()).collect::<Vec<_>>(),
        [7, 2, 4]
    );
    assert_eq!(dry.outcome, OutcomeKind::Reached);
}

fn plan_of(input: Input<'_>, named: &[ImageIx]) -> Plan {
    plan(input, Task::Named(named), &[space(900), space(900)])
}

/// Every rule protects named images, except for the wait after a failed attempt.
#[test]
fn named_images_are_protected() {
    let mut world = ten_images();
    let back_off = BackOff::after(None, now(), "busy");
    world.facts[1].back_off = Some(back_off);
    world.inventory.containers = vec![container(2, Owner::Podman)];
    world.facts[3].ages = Some(Ages::new(now(), None, 0));
    world.policy.min_age = SignedDuration::from_mins(2);
    world.facts[4].pinned_by = vec!["a pin".into()];
    let (tried, plan) = named(&world, &[1, 2, 3, 4], 9);
    assert_eq!(tried, ["i1"]);
    let kept: Vec<_> = plan.kept.iter().map(|kept| (world.image_ix(&kept.target).get(), kept.rule)).collect();
    assert_eq!(kept, [(2, Rule::InUse), (3, Rule::MinAge), (4, Rule::Pinned)]);
    assert_eq!(plan.outcome, OutcomeKind::Refused);
}

/// Images that the run did not reach are not reported as "not needed".
#[test]
fn ended_run_reports_what_it_did_not_reach() {
    let world = ten_images();
    let (tried, plan) = named(&world, &[7, 2, 4], 1);
    assert_eq!(tried, ["i7"]);
    let kept: Vec<_> = plan.kept.iter().map(|kept| (world.image_ix(&kept.target).get(), kept.rule)).collect();
    assert_eq!(
        (kept.as_slice(), plan.outcome),
        (&[(2, Rule::RunEnded), (4, Rule::RunEnded)][..], OutcomeKind::Refused)
    );

    // In the space pass, above and below the low threshold; in the age pass.
    fn ended(world: &World, available: u64) -> (OutcomeKind, Vec<Rule>) {
        let plan = world.with(|input| {
            let mut planner = Planner::new(input, Task::Policy);
            assert!(planner.next(&[space(200), space(1000)]).is_some());
            planner.answer(Answer::Removed);
            planner.finish(&[space(available), space(1000)])
        });
        (plan.outcome, plan.kept.iter().map(|kept| kept.rule).collect())
    }
    let mut world = ten_images();
    assert_eq!(ended(&world, 230), (OutcomeKind::NotReached, vec![Rule::RunEnded; 9]));
    assert_eq!(ended(&world, 300), (OutcomeKind::Reached, vec![Rule::NotNeeded; 9]));
    world.policy.max_age = Some(SignedDuration::from_hours(995));
    let expected = [vec![Rule::RunEnded; 4], vec![Rule::NotNeeded; 5]].concat();
    assert_eq!(ended(&world, 1000), (OutcomeKind::NotReached, expected));
}

/// Nothing could be proven: the image was not touched, and no attempt failed.
#[test]
fn untried_step_is_not_a_failure() {
    let world = ten_images();
    let plan = world.with(|input| {
        let mut planner = Planner::new(input, Task::Policy);
        assert!(planner.next(&[space(200), space(1000)]).is_some());
        planner.answer(Answer::StopRun("ended".into()));
        planner.finish(&[space(200), space(1000)])
    });
    assert!(plan.problems.is_empty() && plan.steps.is_empty());
    assert!(plan.kept.iter().all(|kept| kept.rule == Rule::RunEnded), "{:?}", plan.kept);
}

/// Layers that another store needs keep the last image that reaches them, and only that.
#[test]
fn last_holder_of_needed_layers_is_kept() {
    let nodes = vec![node(0, 100, &[]), node(0, 50, &[]), node(0, 50, &[])];
    let images = vec![image("i0", &[0, 1]), image("i1", &[0, 2]), image("i2", &[2])];
    let policy = Policy { max_age: Some(SignedDuration::from_hours(1)), ..percent(90, 80) };
    let mut world = World::new(nodes, images, policy);
    let by = "the image x in the store /other".to_owned();
    world.inventory.uses = vec![Use { by, holds: vec![0.into()], ..Use::default() }];
    for measured in [space(500), space(0)] {
        let (deleted, kept, plan) = world.plan(&[measured]);
        assert_eq!(deleted, ["i0", "i2"], "{plan:?}");
        assert_eq!(kept, [("i1".to_owned(), Rule::InUse)]);
        // The bytes that are needed elsewhere are not freed.
        assert_eq!(plan.predicted_bytes(), 50);
    }
    // Taken alone, none of them is the last.
    world.with(|input| {
        let judge = Judge::new(input);
        assert_eq!(judge.kept(0.into()), None);
        assert_eq!(judge.kept(1.into()), None);
    });
    // Uses by an image or container of the inventory count in the same way.
    world.inventory.uses[0].is_listed = true;
    assert_eq!(world.plan(&[space(500)]).0, ["i0", "i2"]);
    // If only one image of the store reaches them, it is kept from the beginning.
    world.inventory.images[0].holds = vec![1.into()];
    world.with(|input| assert_eq!(Judge::new(input).kept(1.into()).unwrap().rule, Rule::InUse));
}
