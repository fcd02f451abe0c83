use super::*;
use crate::model::samples;

fn image(names: &[&str], digests: &[&str]) -> Image {
    let [names, digests] = [names, digests].map(|all| all.iter().map(ToString::to_string).collect());
    Image { names, digests, ..samples::image(&"1".repeat(64), &[]) }
}

#[test]
fn references_name_images_by_any_form() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let other = format!("sha256:{}", "b".repeat(64));
    let id = "1".repeat(64);
    let web = ["quay.io/team/web:1", "localhost/app:latest"];
    for (reference, names, is_named) in [
        ("quay.io/team/web:1", &web[..], true),
        ("quay.io/team/web:2", &web, false),
        ("quay.io/team/web", &web, false),
        ("quay.io/web:1", &web, false),
        ("docker.io/team/web:1", &web, false),
        ("team/web:1", &web, true),
        ("web:1", &web, true),
        ("eb:1", &web, false),
        ("app", &web, true),
        ("localhost/app", &web, true),
        ("nginx", &["docker.io/library/nginx:latest"], true),
        ("docker.io/nginx", &["docker.io/library/nginx:latest"], true),
        ("index.docker.io/library/nginx", &["docker.io/library/nginx:latest"], true),
        (&format!("quay.io/team/web@{digest}"), &web, true),
        (&format!("quay.io/team/web:9@{digest}"), &web, true),
        (&format!("web@{digest}"), &web, true),
        (&format!("quay.io/team/web:1@{other}"), &web, false),
        (&format!("quay.io/other@{digest}"), &web, true),
        (&format!("quay.io/other@{other}"), &web, false),
        (&format!("quay.io/other@{digest}"), &[], true),
        (&format!("quay.io/other@{other}"), &[], false),
        (&digest, &web, true),
        (&other, &web, false),
        (&id, &web, true),
        (&format!("sha256:{id}"), &[], true),
    ] {
        let set = ReferenceSet::new(Path::new("/f"), [(3, reference)]);
        let place = set.place_of(&image(names, &[&digest]));
        assert_eq!(place.as_deref(), is_named.then_some("/f, line 3"), "{reference}");
    }
    assert_eq!(ReferenceSet::default().place_of(&image(&web, &[])), None);
}

#[test]
fn known_references_are_left_out() {
    let known = ReferenceSet::new(Path::new("/f"), [(1, "a:1")]);
    let now = ReferenceSet::new(Path::new("/f"), [(1, "b:1"), (2, "a:1")]).without(&known);
    assert_eq!(now.place_of(&image(&["docker.io/library/a:1"], &[])), None);
    assert_eq!(now.place_of(&image(&["docker.io/library/b:1"], &[])), Some("/f, line 1".into()));
}

#[test]
fn references_without_an_image_are_found() {
    let digest = format!("sha256:{}", "a".repeat(64));
    let absent = format!("quay.io/team/web@sha256:{}", "b".repeat(64));
    let images = [
        image(&["quay.io/team/web:1"], &[&digest]),
        image(&["127.0.0.1:5037/other/solo:1"], &[]),
        image(&["quay.io/team/db:1"], &[]),
    ];
    let lines = [
        ("team/web:1", None),
        ("quay.io/team/db:1", None),
        (
            "127.0.0.1:5037/other/solo",
            Some(
                ", means :latest and names no image, although 127.0.0.1:5037/other/solo:1 is here: gc may delete it",
            ),
        ),
        ("solo:2", Some(", names no image, although 127.0.0.1:5037/other/solo:1 is here: gc may delete it")),
        // The tag that is here is named by another line.
        ("quay.io/team/db:2", Some(", names no image")),
        ("quay.io/team/other", Some(", means :latest and names no image")),
        (&absent, Some(", names no image")),
        (&digest, None),
    ];
    let set = ReferenceSet::new(Path::new("/f"), (1..).zip(lines.map(|(reference, _)| reference)));
    let found: Vec<_> = set.unmatched(&images).iter().map(ToString::to_string).collect();
    let expected = (1..)
        .zip(lines)
        .filter_map(|(line, (reference, text))| Some(format!("line {line}, {reference}{}", text?)));
    assert_eq!(found, expected.collect::<Vec<_>>());
}
