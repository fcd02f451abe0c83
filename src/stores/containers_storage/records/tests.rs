use proptest::prelude::*;

use super::*;

#[test]
fn layer_records_of_all_versions_are_parsed() {
    let content = br#"[
      {"id":"a1","created":"0001-01-01T00:00:00Z","diff-digest":"sha256:aa","diff-size":5632},
      {"id":"b2","parent":"a1","created":"2026-11-21T02:06:59.571650037Z","toc-digest":"sha256:bb","diff-size":-1,"new":{"x":1}},
      {"id":"c3","parent":"b2","flags":{"incomplete":true}},
      {"id":"d4","parent":"b2","diff-digest":"sha256:dd","flags":{"incomplete":false}},
      {"id":"e5","created":7,"flags":"odd","parent":""}
    ]"#;
    let parsed = layers(content, false, &Allowance::default());
    assert_eq!(parsed.problems, Vec::<String>::new());
    assert!(!parsed.damaged);
    let [a1, b2, c3, d4, e5] = parsed.records.as_slice() else { panic!("{parsed:?}") };
    assert_eq!((a1.diff_size, a1.created), (Some(5632), None));
    assert_eq!((b2.diff_size, b2.diff_id.clone()), (Some(0), None));
    assert_eq!(b2.created.unwrap().to_string(), "2026-11-21T02:06:59.571650037Z");
    assert_eq!((c3.incomplete, d4.incomplete), (true, false));
    assert_eq!(d4.diff_size, Some(0), "an omitted size beside a digest is zero");
    assert_eq!((e5.parent.clone(), e5.created), (None, None));
}

#[test]
fn image_records_are_parsed() {
    let content = br#"[
      {"id":"i1","digest":"sha256:m1","names":["a:1","b:1"],"layer":"l1","mapped-layers":["l2"],
       "big-data-names":["manifest","sha256:i1"],"big-data-sizes":{"manifest":498,"sha256:i1":364},
       "big-data-digests":{"manifest":"sha256:m1","manifest-sha256:m2":"sha256:m2","sha256:i1":"sha256:i1"}},
      {"id":"i2","names":null}
    ]"#;
    let parsed = images(content, &Allowance::default());
    assert_eq!(parsed.records[0].digests, ["sha256:m1", "sha256:m2"]);
    assert_eq!(parsed.records[0].mapped_layers, ["l2"]);
    assert_eq!(parsed.records[0].big_data, [("manifest".into(), Some(498)), ("sha256:i1".into(), Some(364))]);
    assert_eq!((parsed.records[1].layer.clone(), parsed.records[1].names.len()), (None, 0));
}

#[test]
fn damaged_record_is_reported_and_others_are_kept() {
    // Content, number of valid records, text of the problem.
    let deep = format!("[{{\"id\":\"a\"}},{}", "[".repeat(5000));
    let field = format!(r#"[{{"id":"a"}},{{"id":"b","flags":{}{}}}]"#, "[".repeat(5000), "]".repeat(5000));
    let cases: &[(&[u8], usize, &str)] = &[
        (b"", 0, ""),
        (b"null", 0, ""),
        (b"[]", 0, ""),
        (b"\0\0\0\0", 0, "4 NUL bytes"),
        (br#"[{"id":"a"},{"id":"b","par"#, 1, "1 records before that are used"),
        (br#"[{"id":"a"}"#, 1, "EOF"),
        (br#"[{"id":"a"}] x"#, 1, "text after the array"),
        (br#"{"id":"a"}"#, 0, "an array of records"),
        (br#"[{"id":"a"},7,{"id":"b"}]"#, 2, "record 2 is ignored: it is not an object"),
        (br#"[{"names":["x"]},{"id":"b"}]"#, 1, "record 1 is ignored: it has no id"),
        (br#"[{"id":"../../etc"},{"id":"b"}]"#, 1, "cannot be a directory name"),
        (b"[{\"id\":\"a\"},{\"id\":\"\xff\"}]", 1, "is not valid"),
        // A damaged parent must not count as absent: the parent layer would look unused.
        (br#"[{"id":"a"},{"id":"b","parent":"\ud800"}]"#, 1, "record 2 is ignored"),
        (deep.as_bytes(), 1, "EOF"),
        (field.as_bytes(), 2, ""),
    ];
    for (content, valid, problem) in cases {
        let parsed = layers(content, false, &Allowance::default());
        let shown = String::from_utf8_lossy(&content[..content.len().min(40)]);
        assert_eq!(parsed.records.len(), *valid, "{shown}");
        assert_eq!(parsed.damaged, !problem.is_empty(), "{shown}");
        assert!(parsed.problems.join("\n").contains(problem), "{shown}: {:?}", parsed.problems);
    }
}

#[test]
fn problems_of_many_bad_records_are_counted() {
    let content = format!("[{}{{\"id\":\"a\"}}]", "1,".repeat(100));
    let parsed = containers(content.as_bytes(), true, &Allowance::default());
    assert_eq!(parsed.records.len(), 1);
    assert_eq!(parsed.problems.len(), MOST_PROBLEMS + 1);
    assert!(parsed.problems[MOST_PROBLEMS].starts_with("92 more"));
}

#[test]
fn first_or_last_of_repeated_records_is_kept() {
    let read = || {
        let text = br#"[{"id":"a","parent":"x"},{"id":"b"},{"id":"a"}]"#;
        layers(text, false, &Allowance::default()).records
    };
    let parents = |records: &[LayerRecord]| -> Vec<_> {
        records.iter().map(|layer| (layer.id.clone(), layer.parent.clone())).collect()
    };
    let [first, second, last] =
        [("a".to_owned(), Some("x".to_owned())), ("b".to_owned(), None), ("a".to_owned(), None)];
    let mut records = read();
    assert_eq!(parents(&drop_repeated(&mut records, |layer| &layer.id)), std::slice::from_ref(&last));
    assert_eq!(parents(&records), [first.clone(), second.clone()]);
    let mut records = read();
    assert_eq!(parents(&drop_superseded(&mut records, |layer| &layer.id)), [first]);
    assert_eq!(parents(&records), [second, last]);
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(content in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = (layers(&content, true, &Allowance::default()), images(&content, &Allowance::default()), containers(&content, false, &Allowance::default()));
    }

    #[test]
    fn corrupted_record_does_not_panic(position in 0..600_usize, value in any::<u8>(), cut in 0..600_usize) {
        let mut content = br#"[{"id":"i1","digest":"sha256:m1","names":["a:1","b:1"],"layer":"l1","mapped-layers":["l2"],"big-data-names":["manifest","sha256:i1"],"big-data-sizes":{"manifest":498},"big-data-digests":{"manifest":"sha256:m1"},"created":"2026-11-21T02:06:59Z","flags":{"incomplete":true},"metadata":"{\"pod-name\":1}"}]"#.to_vec();
        if let Some(byte) = content.get_mut(position) { *byte = value; }
        content.truncate(cut.max(1));
        let _ = (layers(&content, true, &Allowance::default()), images(&content, &Allowance::default()), containers(&content, false, &Allowance::default()));
    }
}
