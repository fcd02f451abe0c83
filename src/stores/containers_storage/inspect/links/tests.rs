use super::*;

fn id(letter: char) -> String {
    letter.to_string().repeat(64)
}

/// `names` are in `l/`; each directory comes with the content of its `link` file.
fn area(names: &[&str], directories: &[(char, Option<&str>)]) -> Area<'static> {
    let names: HashMap<_, _> = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
    let name = |name: Option<&str>| Name::new(name.unwrap_or_default().to_owned(), &names);
    Area {
        driver: "/g/overlay".into(),
        within: Within::new([]),
        device: 0,
        directories: directories.iter().map(|(letter, link)| (&*id(*letter).leak(), name(*link))).collect(),
        stamps: vec![None; directories.len()],
        names,
    }
}

/// Layers `a` and `b` are recorded; `e` is not.
fn found(area: &Area<'_>, targets: &[(&str, char)], lowers: &[&str]) -> Vec<Fault> {
    let layer = |name: &str| [id('a'), id('b')].iter().position(|id| id == name);
    let targets: HashMap<_, _> = targets
        .iter()
        .map(|(name, letter)| ((*name).to_owned(), format!("../{}/diff", id(*letter)).into()))
        .collect();
    // A name in lower case stands for one that only newer layers have in their `lower`.
    let used = |name: &str| {
        let known = lowers.iter().find(|lower| lower.eq_ignore_ascii_case(name))?;
        Some(User { id: "child".into(), needs_name: *known == name })
    };
    judge(area, layer, &targets, used)
}

fn missing(needed_by: Option<&str>) -> Fault {
    let path = "/g/overlay/l/B".into();
    Fault { of: FaultOf::Layer(1), path, judged: missing_name("B", needed_by) }
}

#[test]
fn every_fault_of_a_short_name() {
    let whole = [('a', Some("A")), ('b', Some("B"))];
    assert_eq!(found(&area(&["A", "B"], &whole), &[], &[]), []);
    assert_eq!(found(&area(&["A"], &whole), &[], &[]), [missing(None)]);
    assert_eq!(found(&area(&["A"], &whole), &[], &["B"]), [missing(Some("child"))]);
    assert_eq!(found(&area(&["A"], &whole), &[], &["b"]), [missing(None)]);
    let blank = [('a', Some("A")), ('b', None)];
    let link: PathBuf = format!("/g/overlay/{}/link", id('b')).into();
    assert_eq!(
        found(&area(&["A", "B"], &blank), &[("B", 'b')], &[]),
        [Fault { of: FaultOf::Layer(1), path: link.clone(), judged: blank_link(Some("B")) }]
    );
    // The owner of the name is unknown, so nothing is said of it.
    assert_eq!(
        found(&area(&["A", "B"], &blank), &[], &[]),
        [Fault { of: FaultOf::Layer(1), path: link, judged: blank_link(None) }]
    );
}

#[test]
fn directories_without_a_record_claim_their_names() {
    let orphan = [('a', Some("A")), ('b', Some("B")), ('e', Some("X"))];
    assert_eq!(found(&area(&["A", "B", "X"], &orphan), &[], &[]), []);
    // Its own name may be missing: it is only rubbish.
    assert_eq!(found(&area(&["A", "B"], &orphan), &[], &[]), []);
    let partial = [('a', Some("A")), ('b', Some("B")), ('e', None)];
    assert_eq!(found(&area(&["A", "B", "X"], &partial), &[("X", 'e')], &[]), []);
}

#[test]
fn targets_that_are_no_layers() {
    for target in ["../../etc/diff", "/etc", "../abc/diff", "", "../diff"] {
        assert_eq!(layer_of(OsStr::new(target)), None, "{target}");
    }
    assert_eq!(layer_of(OsStr::new(&format!("../{}/diff", id('a')))), Some(id('a').as_str()));
}
