//! The node that was the reason for this program, as a real store: 168 images in a sharing tree, 45 containers on 30
//! of them, a disk that is 77 % full where collection starts at 74 and ends at 69. There the kubelet needed three runs
//! and the disk was still far above the threshold.
//!
//! The store is podman's, on XFS; the test CRI server imitates CRI-O (a fake, see there).

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use crate::support;
use crate::support::cri_server;
use cri_server::article::ArticleNode;
use cri_server::gc_node::{assert_exact, deleted};
use layersweep::policy::compare::Prediction;
use serde_json::Value;
use support::program::{list, number, text, texts};

const GC: [&str; 5] = ["gc", "--high", "74", "--low", "69"];
const DRY: [&str; 1] = ["--dry-run"];
const KUBELET: [&str; 2] = ["--policy", "kubelet"];

/// Divisor of the scenario's sizes, which are one hundredth of the node's: about 2 GiB of images.
/// `LAYERSWEEP_ARTICLE_DIVISOR=5` makes the node on the smallest XFS there is.
fn divisor() -> u64 {
    std::env::var("LAYERSWEEP_ARTICLE_DIVISOR").map_or(1, |text| text.parse().unwrap())
}

#[test]
fn article_node_reaches_low_threshold() {
    let Some(article) = ArticleNode::new(divisor()) else { return };
    let node = &article.node;

    // Both policies in one table, as an operator sees it.
    let screen = node.run(&[&GC[..], &DRY, &KUBELET].concat()).expect_code(4);
    println!("{}", screen.stdout);
    let dry = node.json(4, &[&GC[..], &DRY, &KUBELET].concat());
    let both = &dry["comparison"][0];
    let [kubelet, exact, cheapest] = list(both, "/policies") else { panic!("{both:#}") };
    assert_eq!(list(kubelet, "/runs").len(), 3, "{both:#}");
    assert_eq!(kubelet["reached"], false);
    for run in list(kubelet, "/runs") {
        assert!(run["believed_bytes"].as_u64() >= run["wanted_bytes"].as_u64(), "it believes: {run:#}");
        assert!(run["freed_bytes"].as_u64() < run["wanted_bytes"].as_u64(), "and is wrong: {run:#}");
        assert_eq!(run["failure"], Value::Null);
    }
    assert_eq!(list(exact, "/runs").len(), 1, "{both:#}");
    assert_eq!(exact["reached"], true);
    assert_eq!(cheapest["reached"], true);
    assert!(number(cheapest, "/pulls/bytes") <= number(exact, "/pulls/bytes"), "{both:#}");

    // Both match the plans that the planner makes from the numbers alone.
    let model = article.model(74, 69);
    let names: HashMap<String, String> = list(&node.json(0, &["images"]), "/images")
        .iter()
        .map(|image| (text(image, "/id").to_owned(), texts(image, "/names").remove(0)))
        .collect();
    assert_same_deletions(&article, &model.policies[0], kubelet, &names);
    assert_same_deletions(&article, &model.policies[1], exact, &names);

    // Policy exact: one run reaches the threshold, and deletes no image more than needed.
    let planned = node.json(0, &[&GC[..], &DRY].concat());
    let real = node.json(0, &GC);
    assert_eq!(text(&real, "/outcome"), "reached", "{real:#}");
    assert_eq!(deleted(&planned), deleted(&real), "what the dry run said");
    assert_eq!(deleted(&real).len(), usize::try_from(exact["deleted"].as_u64().unwrap()).unwrap());
    assert_exact(&real);
    assert!(node.used_percent() <= 69.0, "{}", node.used_percent());
    let before_last = list(&real, "/deleted").iter().rev().nth(1).unwrap();
    assert!(before_last["usage_after_percent"].as_f64().unwrap() > 69.0, "{real:#}");
    let left = node.names();
    assert_eq!(left.len(), article.made.images.len() - deleted(&real).len());
    for image in &article.made.containers {
        assert!(left.contains(&article.made.images[*image].name));
    }
    assert_eq!(text(&node.json(0, &GC), "/outcome"), "not_needed");
}

/// Checks that the same images are deleted in the same order. Records and directories, which the model ignores, take
/// a larger share the smaller the layers are: then fewer images suffice.
fn assert_same_deletions(
    article: &ArticleNode,
    model: &Prediction,
    told: &Value,
    names: &HashMap<String, String>,
) {
    let expected = model.runs.iter().flat_map(|run| &run.deleted);
    let expected: Vec<_> = expected
        .map(|id| {
            // The model's ids are numbers.
            let image_ix = usize::from_str_radix(id, 16).unwrap();
            article.made.images[image_ix].name.as_str()
        })
        .collect();
    let ids = list(told, "/runs").iter().flat_map(|run| list(run, "/deleted"));
    let told_names: Vec<_> = ids.map(|id| names[id.as_str().unwrap()].as_str()).collect();
    let common = expected.len().min(told_names.len());
    assert_eq!(expected[..common], told_names[..common]);
    let off = expected.len().abs_diff(told_names.len());
    assert!(off <= expected.len() / 10, "{expected:?} {told_names:?}");
    let used = told["usage_after_percent"].as_f64().unwrap();
    assert!(
        (used - model.usage_after_percent).abs() < 0.5,
        "{used}, {} in the model",
        model.usage_after_percent
    );
}
