//! Manifests of all shapes; none of it from a real cluster.

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
fn every_image_of_a_pod() {
    assert_eq!(images(POD), POD_IMAGES);
    assert_eq!(images(&POD.replace('\n', "\r\n")), POD_IMAGES, "Windows line ends");
    assert_eq!(images(&format!("\u{FEFF}{POD}")), POD_IMAGES, "byte order mark");
    assert_eq!(images(&format!("# x\n---\n{POD}...\n")), POD_IMAGES, "marks of a document");
    for of in [u16::to_le_bytes, u16::to_be_bytes] {
        let text = format!("\u{FEFF}{POD}");
        let bytes: Vec<u8> = text.encode_utf16().flat_map(of).collect();
        assert_eq!(read(&bytes), Manifest { images: POD_IMAGES.map(str::to_owned).into(), problem: None });
    }
}

#[test]
fn shapes() {
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
        // What the kubelet would not run, but somebody keeps there.
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
        // No reference at all.
        (
            "spec:\n  containers:\n  - image:\n  - image: ''\n  - image: 1\n  - image: {a: b}\n  - name: x\n",
            &[],
        ),
        ("spec: {containers: {image: a:1}, volumes: {image: {reference: a:1}}}", &[]),
        ("spec: {volumes: [{image: a:1}, {reference: a:1}]}", &[]),
        // Not those of Pods, but nobody's harm.
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

#[test]
fn what_is_no_yaml_is_searched() {
    for (text, expected) in [
        ("a: [\nspec:\n  containers:\n  - image: a:1\n  - name: b\n    image: \"b:1\n", &["a:1", "b:1"][..]),
        ("\tspec:\n\t- image: 'a:1' # why\n\t-  image : b:1\n", &["a:1", "b:1"]),
        ("{\"a\": {\"image\":\"a:1\",\"reference\": \"reg\\/b:1\"},{image: c:1,", &["a:1", "c:1", "reg/b:1"]),
        ("x: &one a:1\ny: *two\nspec:\n- image: *one\n- image: &three b:1\n", &["a:1", "b:1"]),
        ("- [\nimage: >-\n\n   a:1\nimage:\n  b:1\nimage: # later\n  c:1", &["a:1", "b:1", "c:1"]),
        ("{{ template }}\nimage: {{ .Values.image }}\nimage: a:1\n", &["a:1"]),
        ("<<<<<<< mine\nimage: a:1\n=======\nimage: b:1\n>>>>>>> theirs\n: [", &["a:1", "b:1"]),
        // Neither a key nor a reference.
        ("- [\nimagePullPolicy: Always\nmyimage: x:1\nimage:x\nimage: 'a b'\nimage: ]\nimage:", &[]),
        // The zeroes of a power cut.
        ("spec:\n- image: a:1\n\0\0\0\0", &["a:1"]),
    ] {
        let manifest = read(text.as_bytes());
        assert!(manifest.problem.is_some(), "{text}");
        assert_eq!(manifest.images, expected, "{text}");
        assert!(!manifest.problem.unwrap().contains('\n'), "one line");
    }
    let mut bytes = POD.as_bytes().to_vec();
    bytes.push(0xFF);
    let manifest = read(&bytes);
    assert!(manifest.problem.is_some_and(|why| why.contains("not valid UTF-8")));
    for image in POD_IMAGES {
        assert!(manifest.images.iter().any(|one| one == image), "{image}");
    }
}

/// Each level names the one before ten times: 10^9 texts if they were all written out.
#[test]
fn a_bomb_of_aliases_is_small() {
    let mut text =
        "spec: {containers: [{image: reg.local/a:1}]}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = vec![format!("*a{}", level - 1); 10].join(", ");
        let _ = writeln!(text, "a{level}: &a{level} [{before}]");
    }
    let began = std::time::Instant::now();
    let manifest = read(text.as_bytes());
    assert!(manifest.problem.is_some());
    assert!(manifest.images.iter().any(|image| image == "reg.local/a:1"), "{:?}", manifest.images);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn deep_nesting_ends_no_program() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", ""), ("{\"a\":", "}")] {
        let text = format!("{}1{}\nimage: reg.local/a:1", open.repeat(100_000), close.repeat(100_000));
        assert_eq!(read(text.as_bytes()).images, ["reg.local/a:1"], "{open}");
    }
}

/// Another process may be writing the file when we read it: whatever stands there in full counts.
#[test]
fn a_file_that_breaks_off_names_what_it_has() {
    let json = serde_json::json!({"spec": {
        "containers": [{"image": "reg.local/app:1"}, {"name": "b", "image": "reg.local/b:1"}],
        "volumes": [{"image": {"reference": "quay.io/data:2"}}],
    }});
    for text in [POD.to_owned(), serde_json::to_string_pretty(&json).unwrap(), json.to_string()] {
        let whole = images(&text);
        for cut in 0..=text.len() {
            let found = read(&text.as_bytes()[..cut]).images;
            for image in &whole {
                // With the character behind it, since it may go on.
                let ends = text.find(image.as_str()).unwrap() + image.len();
                assert!(cut <= ends || found.contains(image), "{image} of {:?}: {found:?}", &text[..cut]);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_text(text in "[-a:&*!|>\"'{}\\[\\],#? \n\t]{0,200}") {
        let _ = read(text.as_bytes());
    }

    /// A manifest with one byte changed never names less than the lines that were not touched.
    #[test]
    fn one_byte_changed(at in 0..POD.len(), byte: u8) {
        let mut bytes = POD.as_bytes().to_vec();
        bytes[at] = byte;
        let found = read(&bytes);
        if found.problem.is_some() {
            let line = POD[..at].matches('\n').count();
            for (number, text) in POD.lines().enumerate() {
                for image in POD_IMAGES {
                    let named = text.contains(&format!("{image}\"")) || text.trim_end_matches(['\'', '}']).ends_with(image);
                    prop_assert!(number == line || !named || found.images.iter().any(|one| one == image), "{image}");
                }
            }
        }
    }
}
