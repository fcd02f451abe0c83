//! Tests with records that are made to be expensive.

use super::*;

/// Peak of this process's memory in kB, since it was last reset.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn what_is_not_needed_takes_no_memory() {
    let unused = r#"{"HostID":1},"#.repeat((24 << 20) / 13);
    let content = format!(r#"[{{"id":"a"}},{{"uidset":[{unused}7],"id":"b"}}]"#);
    // Other tests run beside this one, but none takes so much.
    let before = peak();
    let parsed = layers(content.as_bytes(), false, &Allowance::default());
    assert_eq!(parsed.records.len(), 2);
    let grown = peak().saturating_sub(before);
    assert!(grown < 100 << 10, "{grown} kB");
}

#[test]
fn fields_of_any_type_lose_no_record() {
    let odd =
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
        for value in odd {
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
fn a_record_with_too_many_texts_is_left_out() {
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
