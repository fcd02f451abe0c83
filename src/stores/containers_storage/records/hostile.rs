//! Tests with hostile records.

use super::*;

/// Returns the peak memory of this process in kB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn unused_field_takes_no_memory() {
    let unused = r#"{"HostID":1},"#.repeat((24 << 20) / 13);
    let content = format!(r#"[{{"id":"a"}},{{"uidset":[{unused}7],"id":"b"}}]"#);
    // Other tests may run in this process at the same time, but none of them needs as much memory.
    let before = peak();
    let parsed = layers(content.as_bytes(), false, &Allowance::default());
    assert_eq!(parsed.records.len(), 2);
    let grown = peak().saturating_sub(before);
    assert!(grown < 100 << 10, "{grown} kB");
}

#[test]
fn record_with_field_of_unexpected_type_is_kept() {
    let unexpected =
        ["null", "true", "7", "-7", "1.5", "\"x\"", "[]", "[{\"a\":[1]}]", "{}", "{\"a\":{\"b\":[null]}}"];
    let fields = [
        "parent",
        "created",
        "diff-digest",
        "diff-size",
        "toc-digest",
        "flags",
        "names",
        "digest",
        "big-data-digests",
        "layer",
        "mapped-layers",
        "big-data-names",
        "big-data-sizes",
        "image",
        "metadata",
    ];
    for field in fields {
        for value in unexpected {
            let content = format!(r#"[{{"id":"a","{field}":{value},"{field}":{value}}},{{"id":"b"}}]"#);
            let content = content.as_bytes();
            let layers = layers(content, false, &Allowance::default());
            let images = images(content, &Allowance::default());
            let containers = containers(content, false, &Allowance::default());
            let kept = [layers.records.len(), images.records.len(), containers.records.len()];
            assert_eq!(kept, [2, 2, 2], "{field}: {value}");
            assert!(!layers.damaged && !images.damaged && !containers.damaged, "{field}: {value}");
        }
    }
}

#[test]
fn record_with_too_many_members_is_skipped() {
    for (count, kept) in [(lenient::MOST_MEMBERS, 2), (lenient::MOST_MEMBERS + 1, 1)] {
        let texts = vec!["\"\""; count].join(",");
        let parsed = images(
            format!(r#"[{{"id":"a","mapped-layers":[{texts}]}},{{"id":"b"}}]"#).as_bytes(),
            &Allowance::default(),
        );
        assert_eq!(parsed.records.len(), kept);
        assert_eq!(parsed.damaged, kept == 1, "{:?}", parsed.problems);
    }
}
