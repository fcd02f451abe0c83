use proptest::prelude::*;

use super::*;

#[test]
fn layers_of_every_version() {
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
    let of = |id: &str| parsed.records.iter().find(|layer| layer.id == id).unwrap();
    assert_eq!((of("a1").diff_size, of("a1").created), (Some(5632), None));
    assert_eq!((of("b2").diff_size, of("b2").diff_id.clone()), (Some(0), None));
    assert_eq!(of("b2").created.unwrap().to_string(), "2026-11-21T02:06:59.571650037Z");
    assert_eq!((of("c3").incomplete, of("d4").incomplete), (true, false));
    assert_eq!(of("d4").diff_size, Some(0), "an omitted size beside a digest is zero");
    assert_eq!((of("e5").parent.clone(), of("e5").created), (None, None));
}

#[test]
fn images_with_lists_names_and_digests() {
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
fn damage_is_named_and_the_rest_is_kept() {
    // content, records that survive, a word of the problem
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
        // Damaged is not absent: its layer would look unused.
        (br#"[{"id":"a"},{"id":"b","parent":"\ud800"}]"#, 1, "record 2 is ignored"),
        (deep.as_bytes(), 1, "EOF"),
        (field.as_bytes(), 2, ""),
    ];
    for (content, survive, word) in cases {
        let parsed = layers(content, false, &Allowance::default());
        let shown = String::from_utf8_lossy(&content[..content.len().min(40)]);
        assert_eq!(parsed.records.len(), *survive, "{shown}");
        assert_eq!(parsed.damaged, !word.is_empty(), "{shown}");
        assert!(parsed.problems.join("\n").contains(word), "{shown}: {:?}", parsed.problems);
    }
}

#[test]
fn many_bad_records_make_few_problems() {
    let content = format!("[{}{{\"id\":\"a\"}}]", "1,".repeat(100));
    let parsed = containers(content.as_bytes(), true, &Allowance::default());
    assert_eq!(parsed.records.len(), 1);
    assert_eq!(parsed.problems.len(), MOST_PROBLEMS + 1);
    assert!(parsed.problems[MOST_PROBLEMS].starts_with("92 more"));
}

#[test]
fn the_first_of_two_records_with_one_id_counts() {
    let mut all =
        layers(br#"[{"id":"a","parent":"x"},{"id":"b"},{"id":"a"}]"#, false, &Allowance::default()).records;
    assert_eq!(drop_repeated(&mut all, |layer| &layer.id), ["a"]);
    assert_eq!(all[0].parent.as_deref(), Some("x"));
    assert_eq!(all.len(), 2);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(content in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = (layers(&content, true, &Allowance::default()), images(&content, &Allowance::default()), containers(&content, false, &Allowance::default()));
    }

    #[test]
    fn no_broken_record_makes_it_panic(at in 0..600_usize, byte in any::<u8>(), cut in 0..600_usize) {
        let mut content = br#"[{"id":"i1","digest":"sha256:m1","names":["a:1","b:1"],"layer":"l1","mapped-layers":["l2"],"big-data-names":["manifest","sha256:i1"],"big-data-sizes":{"manifest":498},"big-data-digests":{"manifest":"sha256:m1"},"created":"2026-11-21T02:06:59Z","flags":{"incomplete":true},"metadata":"{\"pod-name\":1}"}]"#.to_vec();
        if let Some(place) = content.get_mut(at) { *place = byte; }
        content.truncate(cut.max(1));
        let _ = (layers(&content, true, &Allowance::default()), images(&content, &Allowance::default()), containers(&content, false, &Allowance::default()));
    }
}
