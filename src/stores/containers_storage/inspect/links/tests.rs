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
        device: 0,
        directories: directories.iter().map(|(letter, link)| (&*id(*letter).leak(), name(*link))).collect(),
        stamps: vec![None; directories.len()],
    }
}

/// Layers `a` and `b` are recorded; `e` is not.
#[test]
fn recorded_layers_without_a_short_name_are_found() {
    let blank = format!("/g/overlay/{}/link", id('b'));
    for (names, directories, expected) in [
        (&["A", "B"][..], &[('a', Some("A")), ('b', Some("B"))][..], None),
        (&["A", "B", "C"], &[('a', Some("A")), ('b', Some("B"))], None),
        (&["A"], &[('a', Some("A")), ('b', Some("B"))], Some("/g/overlay/l/B")),
        (&["A", "B"], &[('a', Some("A")), ('b', None)], Some(blank.as_str())),
        (&["A"], &[('a', Some("A")), ('b', Some("x/y"))], None),
        (&["A", "B"], &[('a', Some("A")), ('b', Some("B")), ('e', Some("X"))], None),
        (&["A", "B"], &[('a', Some("A")), ('b', Some("B")), ('e', None)], None),
    ] {
        let layer = |name: &str| [id('a'), id('b')].iter().position(|id| id == name);
        let found = judge(&area(names, directories), layer);
        let found: Vec<_> = found.iter().map(|fault| (fault.of, fault.path.to_str().unwrap())).collect();
        let expected: Vec<_> = expected.into_iter().map(|path| (FaultOf::Layer(1), path)).collect();
        assert_eq!(found, expected, "{names:?} {directories:?}");
    }
}
