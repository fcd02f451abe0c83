use super::*;

fn id(letter: char) -> String {
    letter.to_string().repeat(64)
}

/// Returns an area with these names in `l/`, and with directories that have this content in their `link` files.
fn area(names: &[&str], directories: &[(char, Option<&str>)]) -> LinkArea<'static> {
    let names: HashMap<_, _> = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
    let stamps = vec![None; directories.len()];
    let directories = directories.iter().map(|(letter, link)| {
        (&*id(*letter).leak(), LinkName::new(link.unwrap_or_default().to_owned(), &names))
    });
    LinkArea { driver: "/g/overlay".into(), device: 0, directories: directories.collect(), stamps }
}

#[test]
fn recorded_layer_without_short_name_is_found() {
    // Layers `a` and `b` are recorded; `e` is not.
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
        let found =
            judge(&area(names, directories), |name| [id('a'), id('b')].iter().position(|id| id == name));
        let found: Vec<_> = found.iter().map(|fault| (fault.of, fault.path.to_str().unwrap())).collect();
        let expected: Vec<_> = expected.into_iter().map(|path| (FaultOf::Layer(1), path)).collect();
        assert_eq!(found, expected, "{names:?} {directories:?}");
    }
}
