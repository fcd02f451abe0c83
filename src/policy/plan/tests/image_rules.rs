use std::path::Path;

use super::*;
use crate::model::OriginKind;
use crate::policy::image_rules::ImageRule;

fn hours(hours: i64) -> SignedDuration {
    SignedDuration::from_hours(hours)
}

fn rule(pattern: &str, line: usize) -> ImageRule {
    ImageRule {
        pattern: Pattern::new(pattern).unwrap(),
        min_age: None,
        max_age: None,
        keep_newest: None,
        place: format!("c.toml:{line}"),
    }
}

/// Images are detected 1000, 999, ... hours ago.
fn world_with(rules: Vec<ImageRule>) -> World {
    let mut world = ten_images();
    world.policy.min_age = hours(1);
    world.policy.rules = rules;
    world
}

fn detail_of(world: &World, rule: Rule, image: usize) -> String {
    let rulings = world.with(|input| Judge::new(input).rulings(image.into()));
    rulings.into_iter().find(|ruling| ruling.rule == rule).unwrap().detail
}

#[test]
fn first_matching_rule_sets_ages() {
    let rules = vec![
        ImageRule { max_age: Some(None), ..rule("quay.io/team/db:*", 1) },
        ImageRule { min_age: Some(hours(5)), max_age: Some(Some(hours(9))), ..rule("quay.io/team/*", 4) },
        ImageRule { min_age: Some(hours(7)), ..rule("*", 9) },
    ];
    let policy = Policy { min_age: hours(1), max_age: Some(hours(20)), rules, ..Policy::default() };
    for (names, min_age, max_age, by) in [
        (&["quay.io/team/web:1"][..], 5, Some(9), Some("quay.io/team/* (c.toml:4)")),
        // The rule that matches first sets no minimum age: the policy's counts, not that of a later rule.
        (&["quay.io/team/db:1"], 1, None, None),
        (&["quay.io/other:1"], 7, Some(20), Some("* (c.toml:9)")),
        // Of several names the longest ages count.
        (&["quay.io/team/web:1", "quay.io/other:1"], 7, Some(20), Some("* (c.toml:9)")),
        (&["quay.io/team/web:1", "quay.io/team/db:1"], 5, None, Some("quay.io/team/* (c.toml:4)")),
        (&[], 7, Some(20), Some("* (c.toml:9)")),
    ] {
        let mut image = image("i", &[]);
        image.names = names.iter().map(ToString::to_string).collect();
        let min = policy.min_age_of(&image);
        assert_eq!(min.value, hours(min_age), "{names:?}");
        assert_eq!(min.rule.map(ImageRule::title).as_deref(), by, "{names:?}");
        assert_eq!(policy.max_age_of(&image).value, max_age.map(hours), "{names:?}");
    }
    // Digests and ids match, as for protected names.
    let rules = vec![ImageRule { min_age: Some(hours(3)), ..rule("sha256:aa", 1) }];
    let policy = Policy { rules, ..Policy::default() };
    let image = Image { names: vec![], digests: vec!["sha256:aa".into()], ..image("i", &[]) };
    assert_eq!(policy.min_age_of(&image).value, hours(3));
}

#[test]
fn age_pass_honours_rules_of_images() {
    let mut world = world_with(vec![
        ImageRule { max_age: Some(None), ..rule("quay.io/team/i0*", 1) },
        ImageRule { max_age: Some(Some(hours(10))), ..rule("quay.io/team/i[37]*", 4) },
        ImageRule { min_age: Some(hours(2000)), ..rule("quay.io/team/i1*", 7) },
    ]);
    let (deleted, ..) = world.plan(&[space(900)]);
    assert_eq!(deleted, ["i3", "i7"], "the first in the order has no maximum age");
    world.policy.max_age = Some(hours(997));
    let (deleted, kept, plan) = world.plan(&[space(900)]);
    assert_eq!(deleted, ["i2", "i3", "i7"]);
    assert_eq!(kept[..2], [("i0".to_owned(), Rule::NotNeeded), ("i1".to_owned(), Rule::MinAge)]);
    let detail = "first detected 41d15h ago, less than the minimum age of 83d8h by the rule quay.io/team/i1* (c.toml:7)";
    assert_eq!(plan.kept[1].detail, detail);
    assert_eq!(plan.kept[1].until, Some(now() - hours(999) + hours(2000)));
    // The minimum age of a rule holds in the space pass too.
    let (deleted, kept, _) = world.plan(&[space(0)]);
    assert!(deleted.contains(&"i0".to_owned()) && !deleted.contains(&"i1".to_owned()), "{deleted:?}");
    assert_eq!(kept, [("i1".to_owned(), Rule::MinAge)]);
    world.policy.disable_age_pass();
    assert_eq!(world.plan(&[space(900)]).0, [""; 0]);
}

#[test]
fn newest_are_counted_within_a_rule() {
    let mut world = world_with(vec![
        ImageRule { keep_newest: Some(2), ..rule("quay.io/web:rel-*", 1) },
        ImageRule { keep_newest: Some(0), ..rule("quay.io/web:tmp-*", 4) },
    ]);
    world.policy.protect.keep_newest = 1;
    let tags = ["rel-1", "rel-2", "rel-3", "dev-1", "dev-2", "tmp-1", "tmp-2"];
    for (image, tag) in world.inventory.images.iter_mut().zip(tags) {
        image.names = vec![format!("quay.io/web:{tag}")];
    }
    // An image is kept if one of its names is.
    world.inventory.images[5].names.push("quay.io/web:rel-9".into());
    let (deleted, ..) = world.plan(&[space(0)]);
    assert_eq!(deleted, ["i0", "i1", "i3", "i6"]);
    let by_rule = "among the newest 2 of quay.io/web by the rule quay.io/web:rel-* (c.toml:1)";
    assert_eq!(detail_of(&world, Rule::NewestOfRepository, 2), by_rule);
    assert_eq!(detail_of(&world, Rule::NewestOfRepository, 4), "among the newest 1 of quay.io/web");
    assert_eq!(detail_of(&world, Rule::NewestOfRepository, 3), "not among the newest of its repository");
    // The rule for its name keeps none.
    let none = "the newest of a repository are not kept (protect.keep_newest)";
    assert_eq!(detail_of(&world, Rule::NewestOfRepository, 6), none);
}

#[test]
fn rule_with_unread_file_passes_nothing() {
    let mut world = world_with(vec![]);
    assert_eq!(detail_of(&world, Rule::ProtectedName, 4), "no protected name matches");
    world.policy.protect.unread = vec![Rule::ProtectedName];
    assert!(detail_of(&world, Rule::ProtectedName, 4).starts_with("unknown, since a file"));
    assert_eq!(detail_of(&world, Rule::StaticPod, 4), "no static pod names it");
}

#[test]
fn referenced_image_is_kept_with_its_line() {
    let mut world = world_with(vec![]);
    world.policy.protect.references =
        ReferenceSet::new(Path::new("/expected.txt"), [(7, "quay.io/team/i4:1")]);
    let (deleted, kept, plan) = world.plan(&[space(0)]);
    assert_eq!((deleted.len(), kept), (9, vec![("i4".to_owned(), Rule::ProtectedName)]));
    assert_eq!(plan.kept[0].detail, "named in /expected.txt, line 7");
}

#[test]
fn removal_by_hand_is_printed_only_if_harmless() {
    let mut world = ten_images();
    world.inventory.record_names.insert(0.into(), vec!["quay.io/a:1".into()]);
    let removal = "`ctr -n k8s.io images rm quay.io/a:1` removes it";
    world.facts[0].out_of_reach = Some("not listed".into());
    world.facts[0].removal = Some(removal.into());
    let detail = |world: &World| {
        let rulings = world.with(|input| Judge::new(input).rulings(0.into()));
        rulings.into_iter().find(|ruling| ruling.rule == Rule::OutOfReach).unwrap().detail
    };
    assert_eq!(detail(&world), format!("not listed; {removal}"));
    world.inventory.images[0].origin = Origin::new(OriginKind::Loaded, "loaded");
    world.policy.protect.not_repullable = NotRepullable::Always;
    let shown = detail(&world);
    assert!(shown.starts_with("not listed; `ctr -n k8s.io images ls name==quay.io/a:1` shows it"), "{shown}");
    world.policy.protect.not_repullable = NotRepullable::Never;
    assert_eq!(detail(&world), format!("not listed; {removal}"));
    world.facts[0].used_by = vec!["the container web".into()];
    assert_eq!(detail(&world), "not listed");
}
