//! Manifests of all shapes, written for these tests.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

fn images(text: &str) -> Vec<String> {
    let manifest = read(text.as_bytes());
    assert_eq!(manifest.problem, None, "{text}");
    manifest.images
}

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {image: not/an:image}}
spec:
  initContainers:
  - name: first
    image: reg.local/init:1
  containers:
  - name: app
    image: \"reg.local/app@sha256:0\" # why
    env: [{name: image, value: not/an:image}]
  - image: 'busybox'
    name: side
  ephemeralContainers:
  - {name: debug, image: reg.local:5000/debug}
  volumes:
  - name: data
    image:
      reference: quay.io/data:2
      pullPolicy: Never
  - name: other
    hostPath: {path: /image}
";

const POD_IMAGES: [&str; 5] =
    ["busybox", "quay.io/data:2", "reg.local/app@sha256:0", "reg.local/init:1", "reg.local:5000/debug"];

#[test]
fn all_images_of_a_pod_are_found() {
    assert_eq!(images(POD), POD_IMAGES);
    assert_eq!(images(&POD.replace('\n', "\r\n")), POD_IMAGES, "Windows line ends");
    assert_eq!(images(&format!("\u{FEFF}{POD}")), POD_IMAGES, "byte order mark");
    assert_eq!(images(&format!("# x\n---\n{POD}...\n")), POD_IMAGES, "marks of a document");
}

#[test]
fn images_are_found_in_every_syntax() {
    for (text, expected) in [
        // Several documents, empty ones among them.
        (
            "---\nspec: {containers: [{image: a:1}]}\n---\n---\nspec: {containers: [{image: b:1}]}\n",
            &["a:1", "b:1"][..],
        ),
        // Lists, and lists of lists.
        (
            "kind: PodList\nitems:\n- spec: {containers: [{image: a:1}]}\n- spec:\n    containers:\n    - image: b:1\n",
            &["a:1", "b:1"],
        ),
        ("kind: List\nitems: [{kind: List, items: [{spec: {containers: [{image: a:1}]}}]}]", &["a:1"]),
        // A kind that the kubelet does not run.
        ("kind: Deployment\nspec: {template: {spec: {containers: [{image: a:1}]}}}", &["a:1"]),
        // Anchors, aliases, merged mappings.
        (
            "x: &image reg.local/a:1\nspec: {containers: [{image: *image}, {image: b:1}]}",
            &["b:1", "reg.local/a:1"],
        ),
        (
            "spec:\n  containers:\n  - &base\n    image: a:1\n    name: a\n  - <<: *base\n    name: b\n  - <<: *base\n    image: c:1\n",
            &["a:1", "c:1"],
        ),
        ("spec:\n  initContainers: &all\n  - image: a:1\n  containers: *all\n", &["a:1"]),
        // Scalars of every style.
        ("spec:\n  containers:\n  - image: |\n      a:1\n  - image: >-\n      b:1\n", &["a:1", "b:1"]),
        ("spec:\n  containers:\n  - image:\n      a:1\n  - image: !!str b:1\n", &["a:1", "b:1"]),
        ("spec: {containers: [{\"image\":\"a:1\"},{image: 'b:1'}]}", &["a:1", "b:1"]),
        ("spec:\n  containers:\n  - \"image\" : \"a\\u003a1\"\n", &["a:1"]),
        ("? spec\n: containers:\n  - image: a:1\n", &["a:1"]),
        // Repeated keys and tabs between tokens, which the kubelet's parser accepts.
        ("spec:\n  containers:\n  - image: a:1\n    image: b:1\n", &["b:1"]),
        (
            "spec:\n  containers:\n  - image:\ta:1\t# x\n\t\n  - {image: b:1,\n   \tname: x}\n",
            &["a:1", "b:1"],
        ),
        // Values that are not references.
        (
            "spec:\n  containers:\n  - image:\n  - image: ''\n  - image: 1\n  - image: {a: b}\n  - name: x\n",
            &[],
        ),
        ("spec: {containers: {image: a:1}, volumes: {image: {reference: a:1}}}", &[]),
        ("spec: {volumes: [{image: a:1}, {reference: a:1}]}", &[]),
        // Documents that are not pods.
        ("", &[]),
        ("# only a remark", &[]),
        ("plain text", &[]),
        ("[1, 2]", &[]),
        // JSON, with tabs, with escapes, several in one file.
        ("{\"spec\": {\n\t\"containers\": [{\"image\": \"reg.local\\/a:1\"}]}}", &["reg.local/a:1"]),
        (
            "{\"spec\": {\"containers\": [{\"image\": \"a:1\"}]}}\n{\"spec\": {\"containers\": [{\"image\": \"b:1\"}]}}",
            &["a:1", "b:1"],
        ),
        ("{spec: {containers: [{image: a:1}]}}", &["a:1"]),
    ] {
        assert_eq!(images(text), expected, "{text}");
    }
}

/// A parse error is reported in one line, and only documents before it count.
#[test]
fn document_with_parse_error_names_nothing() {
    for text in [
        "spec:\n  containers:\n  - image: a:1\n  - name: \"b",
        "\tspec:\n\t- image: a:1\n",
        "{\"spec\": {\"containers\": [{\"image\":\"a:1\"},",
        "{{ template }}\nspec: {containers: [{image: a:1}]}",
        "spec: {containers: [{image: a:1}, {image: *unknown}]}",
        "spec: {containers: [{image: a:1}]}\n\0\0\0\0",
    ] {
        let manifest = read(text.as_bytes());
        assert!(manifest.problem.is_some_and(|why| !why.contains('\n')), "{text}");
        assert_eq!(manifest.images, [""; 0], "{text}");
    }
    let manifest = read(format!("{POD}---\n{{{{ template }}}}: [").as_bytes());
    assert!(manifest.problem.is_some());
    assert_eq!(manifest.images, POD_IMAGES, "the kubelet reads the first document");
    let mut bytes = POD.as_bytes().to_vec();
    bytes.push(0xFF);
    assert!(read(&bytes).problem.is_some_and(|why| why.contains("not valid UTF-8")));
}

/// Each level contains the previous one ten times: written out, these would be 10^9 strings.
#[test]
fn expansion_of_aliases_is_limited() {
    let mut text =
        "spec: {containers: [{image: reg.local/a:1}]}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = vec![format!("*a{}", level - 1); 10].join(", ");
        let _ = writeln!(text, "a{level}: &a{level} [{before}]");
    }
    let began = std::time::Instant::now();
    let manifest = read(text.as_bytes());
    assert!(manifest.problem.is_some());
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn deep_nesting_is_an_error() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("{\"a\":", "}")] {
        let text = format!("{}1{}\nimage: reg.local/a:1", open.repeat(100_000), close.repeat(100_000));
        assert!(read(text.as_bytes()).problem.is_some(), "{open}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_text_is_accepted(text in "[-a:&*!|>\"'{}\\[\\],#? \n\t]{0,200}") {
        let _ = read(text.as_bytes());
    }
}
