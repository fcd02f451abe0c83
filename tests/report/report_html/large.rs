//! The page of a large store.

use serde_json::{Value, json};

use super::support::browser::{self, Browser, Window};
use super::support::program::{list, number};
use super::support::report_document as made;
use super::{MOST_ELEMENTS, drawn, expect_sums, sum, written};

#[test]
fn huge_store_stays_small_on_page() {
    if !browser::require() {
        return;
    }
    let document = made::forest(2_000, 20_000);
    assert!(list(&document, "/scan/layers").len() >= 19_000);
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    let elements = page.number("document.querySelectorAll('*').length");
    assert!(elements < MOST_ELEMENTS, "{elements}");
    expect_sums(&mut page, &document);
    // Objects that were too small are shown after zooming in.
    let more = "#icicle .cell[data-kind=more]";
    let inside = page.number(&format!("+document.querySelector('{more}').dataset.own"));
    page.click(more);
    assert_eq!(drawn(&mut page, "icicle"), inside);
    assert!(page.number("document.querySelectorAll('#icicle .cell').length") > 1);
    let elements = page.number("document.querySelectorAll('*').length");
    assert!(elements < MOST_ELEMENTS, "{elements}");
    page.expect_quiet();
}

/// For a large store the page lists the largest objects, and its pictures and tables sum the others.
#[test]
fn omitted_rows_are_summed() {
    if !browser::require() {
        return;
    }
    let mut document = made::forest(60, 240);
    let layers = list(&document, "/scan/layers").to_vec();
    let images = list(&document, "/scan/images").to_vec();
    // The parent of a listed layer is omitted, and so are a top layer and an image.
    let is_parent = |layer: &Value| layers.iter().any(|other| other["parent"] == layer["id"]);
    let middle = layers.iter().find(|layer| !layer["parent"].is_null() && is_parent(layer)).unwrap();
    let top = layers.iter().find(|layer| layer["parent"] != middle["id"] && !is_parent(layer)).unwrap();
    let omitted_bytes = number(middle, "/bytes") + number(top, "/bytes");
    let listed = layers.iter().filter(|layer| ![&middle["id"], &top["id"]].contains(&&layer["id"]));
    document["scan"]["layers"] = listed.cloned().collect();
    document["scan"]["images"] = images[1..].to_vec().into();
    let exclusive = number(&images[0], "/exclusive_bytes");
    document["others"] = json!([
        { "kind": "images", "count": 1, "bytes": exclusive },
        { "kind": "layers", "count": 2, "bytes": omitted_bytes },
    ]);
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    assert_eq!(drawn(&mut page, "icicle"), sum(&layers, "bytes"));
    assert_eq!(drawn(&mut page, "treemap"), sum(&images, "exclusive_bytes"));
    for (table, count, held) in [("layers-table", 2, omitted_bytes), ("images-table", 1, exclusive)] {
        let foot = page.text(&format!("document.querySelector('#{table} tfoot').textContent"));
        assert!(foot.contains(&format!("… and {count} smaller")), "{foot}");
        assert_eq!(
            page.number(&format!("+document.querySelector('#{table} tfoot [data-value]').dataset.value")),
            held
        );
    }
    let text = page.text("document.querySelector('main').textContent");
    for said in [format!("Layers ({})", layers.len()), "Images (60)".into(), "The other 2 hold".into()] {
        assert!(text.contains(&said), "{said}");
    }
    page.expect_quiet();
}
