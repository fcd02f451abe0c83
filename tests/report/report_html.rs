//! `report --html`: the page as a reader uses it, in a real browser.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

mod large;

use crate::support;
use layersweep::report::html;
use support::browser::{self, Browser, Page, Window};
use support::program::{layersweep, list, number, text, texts};
use support::report_document::{self as made, ROOT};
use support::small;
use support::store::{self, Store};

/// Maximum number of elements of a page, however large the store.
const MOST_ELEMENTS: u64 = 12_000;

fn written(document: &Value) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, page_of(document)).unwrap();
    (dir, file)
}

fn page_of(document: &Value) -> String {
    let host = document["host"].as_str().unwrap_or_default();
    let plain = texts(document, "/verdict/sentences").join("\n");
    html::page_of(document, host, text(document, "/generated_at"), &plain).unwrap()
}

fn sum(values: &[Value], field: &str) -> u64 {
    values.iter().map(|value| value[field].as_u64().unwrap()).sum()
}

/// Returns the bytes that the cells of a picture represent.
fn drawn(page: &mut Page, picture: &str) -> u64 {
    page.number(&format!(
        "[...document.querySelectorAll('#{picture} .cell')].reduce((sum, cell) => sum + +cell.dataset.own, 0)"
    ))
}

/// Returns the bytes of leaks in no layer and no container, which have their own cells.
fn loose_leaks(scan: &Value) -> u64 {
    let objects = list(scan, "/layers").iter().chain(list(scan, "/containers"));
    let known: Vec<&str> = objects.map(|object| text(object, "/id")).collect();
    let loose = list(scan, "/leaks").iter().filter(|leak| !known.contains(&text(leak, "/id")));
    loose.map(|leak| number(leak, "/bytes")).sum()
}

/// Fails unless every figure on the page is the document's.
fn expect_sums(page: &mut Page, document: &Value) {
    let scan = &document["scan"];
    assert_eq!(drawn(page, "icicle"), sum(list(scan, "/layers"), "bytes") + loose_leaks(scan));
    assert_eq!(drawn(page, "treemap"), sum(list(scan, "/images"), "exclusive_bytes"));
    for (filesystem_ix, filesystem) in list(document, "/filesystems").iter().enumerate() {
        let segments = page.eval(&format!(
            "[...document.querySelectorAll('figure.filesystem')[{filesystem_ix}].querySelectorAll('.segment')]\
             .map(part => [part.dataset.kind, +part.dataset.bytes, part.querySelector('rect').getAttribute('width') * 1])"
        ));
        let segments = segments.as_array().unwrap();
        let parts = list(filesystem, "/parts");
        let drawn: Vec<_> =
            segments.iter().take(parts.len()).map(|segment| (&segment[0], &segment[1])).collect();
        let expected: Vec<_> = parts.iter().map(|part| (&part["kind"], &part["bytes"])).collect();
        assert_eq!(drawn, expected);
        let used: u64 = segments.iter().take(parts.len()).map(|segment| segment[1].as_u64().unwrap()).sum();
        assert_eq!(used, number(filesystem, "/used_bytes"));
        // The widths are in proportion, and fill the bar.
        let widths: f64 = segments.iter().map(|segment| segment[2].as_f64().unwrap()).sum();
        let capacity: u64 = segments.iter().map(|segment| segment[1].as_u64().unwrap()).sum();
        assert_eq!(capacity, number(filesystem, "/capacity_bytes"));
        for segment in segments {
            #[allow(clippy::cast_precision_loss)] // pixels
            let share = segment[1].as_u64().unwrap() as f64 / capacity as f64;
            assert!((segment[2].as_f64().unwrap() / widths - share).abs() < 0.001, "{segment}");
        }
    }
    for (table, field) in
        [("images", "exclusive_bytes"), ("layers", "bytes"), ("containers", "bytes"), ("leaks", "bytes")]
    {
        let rows = list(scan, &format!("/{table}"));
        let mut largest: Vec<u64> = rows.iter().map(|row| number(row, &format!("/{field}"))).collect();
        largest.sort_by(|a, b| b.cmp(a));
        largest.truncate(25);
        let shown = column(page, &format!("{table}-table"));
        assert_eq!(shown, largest, "{table}");
    }
}

/// Returns the exact bytes of the sorted column of a table.
fn column(page: &mut Page, table: &str) -> Vec<u64> {
    let shown = page.eval(&format!(
        "(() => {{ const table = document.querySelector('#{table} table'); if (!table) return []; \
         const at = [...table.querySelectorAll('th')].findIndex(head => /ending/.test(head.getAttribute('aria-sort'))); \
         return [...table.querySelectorAll('tbody tr')].map(row => row.cells[at]?.dataset.value * 1); }})()"
    ));
    shown.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

#[test]
fn real_store_is_shown_to_the_byte() {
    if !store::require_tools() || !browser::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let store = small::still(&root);
    let orphan = root.join("overlay").join("f".repeat(64)).join("diff");
    std::fs::create_dir_all(&orphan).unwrap();
    std::fs::write(orphan.join("file"), vec![7; 300_000]).unwrap();
    let file = dir.path().join("report.html");
    let run = layersweep([
        "report".as_ref(),
        "--html".as_ref(),
        file.as_os_str(),
        "--graphroot".as_ref(),
        root.as_os_str(),
        "--runroot".as_ref(),
        store.runroot().as_os_str(),
    ])
    .expect_code(0);
    assert!(run.stdout.is_empty() && run.stderr.contains("report.html"), "{run:?}");
    let scan = support::program::json_of("scan", &root, &store.runroot());
    let page = std::fs::read_to_string(&file).unwrap();
    let document = made::in_page(&page);
    for part in ["/layers", "/images", "/leaks"] {
        let [on_page, expected] = [&document["scan"], &scan].map(|scan| {
            list(scan, part)
                .iter()
                .map(|row| format!("{} {}", row["id"], row.get("bytes").unwrap_or(&Value::Null)))
                .collect::<Vec<_>>()
        });
        assert_eq!(on_page, expected, "{part}");
    }
    assert!(loose_leaks(&scan) >= 300_000);

    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    expect_sums(&mut page, &document);
    assert!(page.number("document.querySelectorAll('#icicle .cell [fill*=hatch-leak]').length") >= 1);
    page.expect_quiet();
}

#[test]
fn zoom_hover_keys_and_search() {
    if !browser::require() {
        return;
    }
    let (_dir, file) = written(&made::forest(60, 240));
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    for picture in ["icicle", "treemap"] {
        fn cells(picture: &str, page: &mut Page) -> u64 {
            page.number(&format!("document.querySelectorAll('#{picture} .cell').length"))
        }
        fn root(picture: &str, page: &mut Page) -> String {
            page.text(&format!("document.querySelector('#{picture} .cell').getAttribute('aria-label')"))
        }
        fn panel(picture: &str, page: &mut Page) -> String {
            page.text(&format!("document.querySelector('#{picture} .details').textContent"))
        }
        let whole = (root(picture, &mut page), cells(picture, &mut page));
        // The pointer: details on hover, zoom on click, and back with the breadcrumb.
        let before = panel(picture, &mut page);
        page.hover(&format!("#{picture} .cell[data-at='1']"));
        assert_ne!(panel(picture, &mut page), before, "{picture}");
        let name = page.text(&format!(
            "document.querySelector('#{picture} .cell[data-at=\"1\"]').getAttribute('aria-label')"
        ));
        page.click(&format!("#{picture} .cell[data-at='1']"));
        assert_eq!(root(picture, &mut page), name);
        assert!(cells(picture, &mut page) < whole.1, "{picture}");
        page.click(&format!("#{picture} .crumbs li:first-child button"));
        assert_eq!((root(picture, &mut page), cells(picture, &mut page)), whole);
        // The keyboard: one tab stop, arrows, Enter, Escape.
        assert_eq!(
            page.number(&format!("document.querySelectorAll('#{picture} [tabindex=\"0\"].cell').length")),
            1
        );
        page.focus(&format!("#{picture} .cell[tabindex='0']"));
        page.key("ArrowDown");
        fn focused(page: &mut Page) -> String {
            page.text("document.activeElement.getAttribute('aria-label')")
        }
        let first = focused(&mut page);
        assert_ne!(first, whole.0);
        page.key("ArrowRight");
        let second = focused(&mut page);
        assert_ne!(first, second);
        page.key("ArrowLeft");
        assert_eq!(focused(&mut page), first);
        page.key("Enter");
        assert_eq!(root(picture, &mut page), first, "{picture}: Enter zooms in");
        assert!(
            page.eval(&format!("document.querySelector('#{picture}').contains(document.activeElement)"))
                .as_bool()
                .unwrap()
        );
        page.key("Escape");
        assert_eq!(root(picture, &mut page), whole.0, "{picture}: Escape zooms out");
        // Search dims the cells that do not match, and Enter selects the largest match.
        page.focus(&format!("#{picture}-search"));
        page.write("service-7:7.7");
        let dim = page.number(&format!("document.querySelectorAll('#{picture} .cell.dim').length"));
        assert!(dim > 0 && dim < whole.1, "{picture}: {dim}");
        assert!(
            page.text(&format!("document.querySelector('#{picture} output').textContent")).contains("match")
        );
        page.key("Enter");
        assert!(!page.eval("document.activeElement.classList.contains('dim')").as_bool().unwrap());
        page.eval(&format!(
            "(() => {{ const field = document.querySelector('#{picture}-search'); field.value = ''; \
             field.dispatchEvent(new Event('input')); }})()"
        ));
        assert_eq!(page.number(&format!("document.querySelectorAll('#{picture} .cell.dim').length")), 0);
    }
    // The curve shows the reading under the pointer and under the arrow keys.
    let readout = "document.querySelector('.series .readout').textContent";
    let shown = page.text(readout);
    assert!(shown.contains("48 readings"), "{shown}");
    page.focus(".series svg[role=slider]");
    page.key("Home");
    assert!(page.text(readout).starts_with("2026-11-19 00:00: "), "{}", page.text(readout));
    page.key("ArrowRight");
    assert!(page.text(readout).starts_with("2026-11-19 01:00: "));
    assert_eq!(page.number("document.querySelectorAll('.series line.run').length"), 1);
    // The axis has one unit, and the marks of its filesystem.
    let ticks = page.eval("[...document.querySelectorAll('.series .tick text[text-anchor=end]')].map(tick => tick.textContent.split(' ')[1])");
    let units: std::collections::BTreeSet<_> =
        ticks.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(units.len(), 1, "{ticks}");
    assert_eq!(page.number("document.querySelectorAll('.series line.mark').length"), 5);
    page.expect_quiet();
}

#[test]
fn tables_sort_filter_and_turn() {
    if !browser::require() {
        return;
    }
    let document = made::forest(60, 240);
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    let table = "#layers-table";
    let first = format!("document.querySelector('{table} tbody tr td').textContent");
    let status = format!("document.querySelector('{table} .pager output').textContent");
    assert!(page.text(&status).starts_with("1–25 of "), "{}", page.text(&status));
    let top = page.text(&first);
    page.click(&format!("{table} .pager button:nth-child(2)"));
    assert!(page.text(&status).starts_with("26–50 of "));
    assert_ne!(page.text(&first), top);
    // Sorted by the same column the other way, then by a text.
    page.click(&format!("{table} th[aria-sort=descending] button"));
    let mut smallest: Vec<u64> =
        list(&document, "/scan/layers").iter().map(|layer| number(layer, "/bytes")).collect();
    smallest.sort_unstable();
    smallest.truncate(25);
    assert_eq!(column(&mut page, "layers-table"), smallest);
    page.click("#images-table th:first-child button");
    let shown = page.eval(
        "[...document.querySelectorAll('#images-table tbody tr')].map(row => row.cells[0].textContent)",
    );
    let mut names: Vec<&str> =
        list(&document, "/scan/images").iter().map(|image| text(image, "/names/0")).collect();
    names.sort_unstable();
    assert_eq!(shown, json!(names[..25]));
    page.focus("#images-table-filter");
    page.write("SERVICE-7:");
    let found = page.number("document.querySelectorAll('#images-table tbody tr').length");
    assert_eq!(found, names.iter().filter(|name| name.contains("service-7:")).count() as u64);
    page.write("no such thing");
    assert!(
        page.text("document.querySelector('#images-table tbody').textContent").contains("Nothing matches")
    );
    // Whole ids can be copied.
    page.click(&format!("{table} tbody button.copy"));
    page.until(&format!("document.querySelector('{table} tbody button.copy').textContent === 'copied'"));
    page.expect_quiet();
}

#[test]
fn theme_print_and_data() {
    if !browser::require() {
        return;
    }
    let document = made::forest(60, 240);
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window { dark: true, ..Window::default() });
    let ground = "getComputedStyle(document.body).backgroundColor";
    let dark = page.text(ground);
    page.click("#theme");
    let light = page.text(ground);
    assert_ne!(dark, light, "the button turns the theme over");
    // Inodes have their own line and mark, which is not in the bar of bytes.
    let facts = page.text("document.querySelector('figure.filesystem .facts').textContent");
    assert!(facts.contains("Of 1,000,000 inodes, 100,000 used: 10.0%."), "{facts}");
    let marks = page.text("document.querySelector('figure.filesystem details').textContent");
    assert!(marks.contains("imagefs.inodesFree)95% of inodes"), "{marks}");
    assert!(
        !page.text("document.querySelector('figure.filesystem .canvas').textContent").contains("inodesFree")
    );
    page.click("#theme");
    assert_eq!(page.text(ground), dark);
    // On paper the page is light and unfolded, and the screen is the same afterwards.
    page.eval(
        "addEventListener('beforeprint', () => { window.paper = { ground: getComputedStyle(document.body).backgroundColor, \
         folded: document.querySelectorAll('details:not([open]):not(.no-print)').length, \
         rows: document.querySelectorAll('#layers-table tbody tr').length } })",
    );
    let pdf = page.pdf();
    assert!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000);
    let paper = page.eval("window.paper");
    assert_eq!(paper, json!({ "ground": light, "folded": 0, "rows": 100 }));
    assert_eq!(page.text(ground), dark);
    assert_eq!(page.number("document.querySelectorAll('#layers-table tbody tr').length"), 25);
    // The data can be saved by the page itself, and without a browser.
    page.eval("URL.createObjectURL = blob => { window.saved = blob; return 'about:blank#'; }; HTMLAnchorElement.prototype.click = () => {}");
    page.click("#footer button");
    let saved = page.text("window.saved.text()");
    assert!(serde_json::from_str::<Value>(&saved).unwrap() == document, "what is saved is the document");
    page.expect_quiet();
    let said = page.text("[...document.querySelectorAll('#footer code')].pop().textContent");
    let command = said.strip_suffix(" | jq .").unwrap().replace("report.html", file.to_str().unwrap());
    let out = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(serde_json::from_slice::<Value>(&out.stdout).unwrap() == document, "{command}");
}

#[test]
fn hostile_names_are_text() {
    if !browser::require() {
        return;
    }
    let hostile = "</script><script>window.pwned=1</script><img src=x onerror=\"window.pwned=2\"><!--\u{202e}\u{7}'\"&amp;{{script}}`";
    let shown = "<img src=x onerror=\"window.pwned=2\"><!--\\u{202e}\\u{7}'\"&amp;{{script}}";
    let mut document = made::forest(3, 9);
    document["host"] = hostile.into();
    document["verdict"]["sentences"] = json!([hostile, hostile, hostile]);
    document["verdict"]["headline"] = hostile.into();
    document["verdict"]["steps"] =
        json!([{ "command": { "deletes": hostile }, "text": hostile, "bytes": 1, "needs_decision": false }]);
    document["verdict"]["causes"] = json!([{ "kind": hostile, "title": hostile, "text": hostile, "remedy": hostile,
        "command": { "shows": hostile }, "frees_bytes": 1, "frees_inodes": 1, "keeps_bytes": 0, "used_after_percent": 1.0, "reaches_low": true,
        "bytes": 1, "filesystem": hostile, "id": hostile, "path": hostile, "group": "only-you-can-judge" }]);
    document["filesystems"][0]["parts"][1]["label"] = hostile.into();
    document["filesystems"][0]["parts"][1]["path"] = hostile.into();
    document["filesystems"][0]["thresholds"][0]["name"] = hostile.into();
    document["filesystems"][0]["mount"] = hostile.into();
    document["usage"][0]["mount"] = hostile.into();
    document["runs"][0]["deleted"][0]["names"] = json!([hostile]);
    document["measured"]["warnings"] = json!([{ "path": hostile, "message": hostile, "incomplete": false }]);
    let scan = &mut document["scan"];
    for image in scan["images"].as_array_mut().unwrap() {
        image["names"] = json!([hostile, hostile]);
        image["pinned_by"] = json!([hostile]);
    }
    for layer in scan["layers"].as_array_mut().unwrap() {
        layer["diff_id"] = hostile.into();
    }
    scan["containers"] = json!([{ "id": hostile, "name": hostile, "store": ROOT, "image": hostile, "image_id": hostile,
        "owner": "podman", "state": "unknown", "sandbox": false, "created_at": hostile, "bytes": 5, "listed_bytes": null }]);
    scan["leaks"] = json!([{ "class": "orphan-dir", "store": ROOT, "path": hostile, "id": hostile, "bytes": 5,
        "age_seconds": 5, "verdict": "reclaim", "evidence": hostile }]);
    let (_dir, file) = written(&document);
    let harmless = written(&made::forest(3, 9));
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    assert!(page.text("document.body.textContent").matches(shown).count() > 20);
    assert!(page.text("document.title").contains(shown));
    // Also the details of every cell.
    page.eval("for (const cell of document.querySelectorAll('.cell')) cell.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))");
    assert_eq!(page.eval("typeof window.pwned"), "undefined");
    let texts = page.text("document.querySelector('main').textContent + document.title");
    assert!(!texts.contains(['\u{202e}', '\u{7}']));
    expect_sums(&mut page, &document);
    page.expect_quiet();
    fn elements(page: &mut Page) -> u64 {
        page.number("document.querySelectorAll('script, img, iframe, object, link, base').length")
    }
    let here = elements(&mut page);
    assert_eq!(here, elements(&mut browser.open(&harmless.1, Window::default())));
}

/// Records may be inconsistent: parents in a ring, a very long chain, parents that do not exist.
#[test]
fn broken_records_are_still_drawn() {
    if !browser::require() {
        return;
    }
    fn id(number: usize) -> String {
        made::id("layer", number)
    }
    let mut layers = vec![
        made::layer(0, Some(id(1)), 1000, vec![]),
        made::layer(1, Some(id(0)), 2000, vec![]),
        made::layer(2, Some(id(2)), 4000, vec![]),
        made::layer(3, Some(id(1)), 8000, vec![]),
        made::layer(4, Some("missing".into()), 16_000, vec![]),
        made::layer(5, None, 0, vec![]),
    ];
    for deep in 6..3000 {
        layers.push(made::layer(deep, Some(id(deep - 1)), 32, vec![]));
    }
    let document = made::document(vec![made::image(0, &[], vec!["gone".into()], [0, 0])], layers);
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    let total: u64 = sum(list(&document, "/scan/layers"), "bytes");
    assert_eq!(drawn(&mut page, "icicle"), total);
    assert!(page.text("document.querySelector('#images').textContent").contains("shared"));
    page.expect_quiet();
}

/// Two stores may contain objects with the same id, and blobs belong to no chain.
#[test]
fn stores_and_blobs_are_told_apart() {
    if !browser::require() {
        return;
    }
    let mut document = made::forest(20, 80);
    let other = "/var/lib/containerd";
    let mut store = document["scan"]["stores"][0].clone();
    store["root"] = other.into();
    store["kind"] = "containerd".into();
    document["scan"]["stores"].as_array_mut().unwrap().push(store);
    for field in ["layers", "images"] {
        let all = document["scan"][field].as_array_mut().unwrap();
        for mut row in all.clone() {
            row["store"] = other.into();
            if field == "layers" && row["parent"].is_null() {
                row["kind"] = "blob".into();
            }
            all.push(row);
        }
    }
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window::default());
    expect_sums(&mut page, &document);
    let labels = page.eval(
        "[...document.querySelectorAll('#icicle .cell')].map(cell => cell.getAttribute('aria-label').split(',')[0])",
    );
    let labels: Vec<&str> = labels.as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
    for label in ["All stores", ROOT, other, "Content blobs"] {
        assert_eq!(labels.iter().filter(|found| **found == label).count(), 1, "{label}: {labels:?}");
    }
    assert!(page.text("document.querySelector('#layers-table').textContent").contains(other));
    page.expect_quiet();
}

/// The urgency and the first command are visible, and a wide table scrolls, on the narrowest screen.
#[test]
fn first_screen_says_what_to_do() {
    if !browser::require() {
        return;
    }
    let (_dir, file) = written(&made::forest(20, 80));
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window { width: 390, height: 844, ..Window::default() });
    for (selector, said) in [
        (".urgency-critical .badge", "Critical"),
        (".headline", "past hard eviction"),
        (".answers .first .command", "layersweep gc"),
    ] {
        assert!(page.text(&format!("document.querySelector('{selector}').textContent")).contains(said));
        let end = page.number(&format!(
            "Math.round(document.querySelector('{selector}').getBoundingClientRect().bottom)"
        ));
        assert!(end < 844, "{selector} ends at {end}");
    }
    let cue = "document.querySelector('#layers-table .cue')";
    page.until(&format!("!{cue}.hidden"));
    page.eval("document.querySelector('#layers-table .scroll').scrollLeft = 10000");
    page.until(&format!("{cue}.hidden"));
    page.resize(Window { width: 1600, ..Window::default() });
    page.until(&format!("{cue}.hidden"));
    page.expect_quiet();
}

#[test]
fn small_stores_and_any_width() {
    if !browser::require() {
        return;
    }
    let mut without = made::empty();
    without["filesystems"] = json!([]);
    without["usage"] = json!([]);
    without["runs"] = json!([]);
    without["host"] = Value::Null;
    without["scan"]["stores"] = json!([]);
    without["complete"] = json!(false);
    let documents = [
        ("empty", made::empty()),
        ("nothing", without),
        ("one", made::one()),
        ("some", made::forest(60, 240)),
    ];
    let mut browser = Browser::start();
    for (name, document) in documents {
        let (_dir, file) = written(&document);
        for width in [390, 800, 1600] {
            let mut page = browser.open(&file, Window { width, ..Window::default() });
            let wide = page.number("document.documentElement.scrollWidth");
            assert!(wide <= u64::from(width), "{name} at {width}: {wide}");
            assert!(page.text("document.querySelector('h1').textContent").starts_with("Disk usage of"));
            if name == "one" {
                expect_sums(&mut page, &document);
            }
            page.expect_quiet();
            let text = page.text("document.querySelector('main').textContent");
            for sign in ["undefined", "NaN", "[object", "null", "Infinity"] {
                assert!(!text.contains(sign), "{name}: {sign}: {text}");
            }
        }
    }
}

#[test]
fn page_is_accessible() {
    if !browser::require() {
        return;
    }
    let mut document = made::forest(200, 800);
    let parts = [
        "images",
        "images-pinned",
        "images-unused",
        "containers",
        "leaks",
        "metadata",
        "logs",
        "journal",
        "kubelet-volumes",
        "var-tmp",
        "swap",
        "directory",
        "other",
    ];
    let each = number(&document, "/filesystems/0/used_bytes") / parts.len() as u64;
    document["filesystems"][0]["parts"] = parts
        .map(|kind| json!({ "kind": kind, "label": kind, "path": null, "bytes": each, "measured_bytes": each, "store": null }))
        .to_vec()
        .into();
    for (number, layer) in document["scan"]["layers"].as_array_mut().unwrap().iter_mut().enumerate() {
        layer["refcount"] = json!([0, 1, 2, 5, 9, 20][number % 6]);
    }
    let (_dir, file) = written(&document);
    let mut browser = Browser::start();
    let mut page = browser.open(&file, Window { width: 1600, ..Window::default() });
    let nodes = page.accessible();
    let mut roles: BTreeMap<&str, usize> = BTreeMap::new();
    for (role, name) in &nodes {
        *roles.entry(role).or_default() += 1;
        if [
            "button",
            "searchbox",
            "link",
            "heading",
            "treeitem",
            "tree",
            "slider",
            "navigation",
            "region",
            "columnheader",
        ]
        .contains(&role.as_str())
        {
            assert!(!name.trim().is_empty(), "a {role} without a name");
        }
    }
    for (role, least) in [
        ("banner", 1),
        ("main", 1),
        ("contentinfo", 1),
        ("navigation", 3),
        ("heading", 8),
        ("tree", 2),
        ("treeitem", 20),
        ("slider", 1),
        ("table", 4),
        ("searchbox", 4),
        ("region", 5),
    ] {
        assert!(roles.get(role).copied().unwrap_or(0) >= least, "{role}: {roles:?}");
    }
    // Headings in order, one of the first level.
    let levels = page.eval("[...document.querySelectorAll('h1,h2,h3,h4')].map(head => +head.tagName[1])");
    let levels: Vec<u64> = levels.as_array().unwrap().iter().map(|level| level.as_u64().unwrap()).collect();
    assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1);
    assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{levels:?}");
    assert_eq!(page.text("document.documentElement.lang"), "en");
    // Tab reaches everything from the top, and each picture is one stop.
    page.key("Tab");
    assert_eq!(page.text("document.activeElement.className"), "skip");
    for (dark, width) in [(false, 1600), (true, 1600), (false, 390), (true, 390)] {
        page.resize(Window { width, dark, ..Window::default() });
        let theme = if dark { "dark" } else { "light" };
        page.until(&format!("document.documentElement.dataset.theme === '{theme}'"));
        let weak = page.eval(CONTRAST);
        assert!(weak["pairs"].as_u64().unwrap() > 100, "{weak}");
        assert_eq!(weak["weak"], json!([]), "{theme} at {width}");
    }
    page.expect_quiet();
}

/// Pairs of text and background that differ by less than 4.5 to 1 (WCAG AA).
const CONTRAST: &str = r"(() => {
  const parse = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
  const light = rgb => { const [r, g, b] = rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const ground = node => { for (let at = node; at; at = at.parentElement) { const color = parse(getComputedStyle(at).backgroundColor); if (color[3] === 1) return color.slice(0, 3); } return [255, 255, 255]; };
  const weak = []; let pairs = 0;
  const check = (node, text, back) => { pairs += 1; const found = ratio(text, back); if (found < 4.5) weak.push(found.toFixed(2) + ' ' + (node.getAttribute('class') || node.tagName) + ' ' + node.textContent.slice(0, 30) + ' ' + text + ' on ' + back); };
  for (const node of document.querySelectorAll('svg text')) {
    const beside = node.parentElement.tagName === 'svg' ? null : node.parentElement.querySelector(':scope > rect');
    let back = null;
    if (beside && !node.closest('.tick')) {
      const fill = getComputedStyle(beside).fill;
      const pattern = fill.match(/#([\w-]+)/);
      back = parse(pattern && fill.startsWith('url') ? getComputedStyle(document.getElementById(pattern[1]).querySelector('rect')).fill : fill);
    }
    check(node, parse(getComputedStyle(node).fill).slice(0, 3), (back || ground(node.closest('svg').parentElement)).slice(0, 3));
  }
  for (const node of document.querySelectorAll('main *, header *, footer *')) {
    if (node instanceof SVGElement || !node.getClientRects().length || node.disabled || node.closest('noscript')) continue;
    if (![...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())) continue;
    check(node, parse(getComputedStyle(node).color).slice(0, 3), ground(node));
  }
  for (const node of document.querySelectorAll('input')) check(node, parse(getComputedStyle(node, '::placeholder').color).slice(0, 3), ground(node));
  return { pairs, weak: weak.slice(0, 10) };
})()";

/// A mail program or a ticket may forbid scripts: the report is also in the page as text.
#[test]
fn verdict_is_visible_without_scripts() {
    if !browser::require() {
        return;
    }
    let (_dir, file) = written(&made::one());
    let mut browser = Browser::start();
    let mut page = browser.visit(&file, Window { script: false, ..Window::default() });
    // The browser evaluates this, not a script of the page.
    page.until("document.readyState === 'complete' && document.querySelector('footer')");
    let text = page.text("document.body.innerText");
    for sign in ["Second, of `layersweep gc`.\n", "application/json"] {
        assert!(text.contains(sign), "{sign}: {text}");
    }
}

/// Planted faults show that `expect_quiet` finds them.
#[test]
fn planted_faults_are_found() {
    if !browser::require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("planted.html");
    let good = page_of(&made::one());
    let mut browser = Browser::start();
    for (what, fault, sign) in [
        (
            "a script that the policy does not know",
            "<script>window.planted = 1</script>",
            "Content Security Policy",
        ),
        (
            "a handler in markup",
            "<b onclick='1'>x</b><script></script><p style='color:red'>y</p>",
            "Content Security Policy",
        ),
        ("a picture from elsewhere", "<img src='http://127.0.0.1:9/x.png'>", "127.0.0.1"),
        ("a file beside it", "<iframe src='other.html'></iframe>", "other.html"),
    ] {
        std::fs::write(&file, good.replace("</main>", &format!("{fault}</main>"))).unwrap();
        let mut page = browser.open(&file, Window::default());
        assert!(
            page.complaints().iter().any(|complaint| complaint.contains(sign)),
            "{what}: {:?}",
            page.complaints()
        );
        assert_eq!(page.eval("typeof window.planted"), "undefined");
    }
    std::fs::write(&file, &good).unwrap();
    let mut page = browser.open(&file, Window::default());
    page.eval("console.error('planted')");
    assert!(page.complaints().iter().any(|complaint| complaint.contains("planted")));
}

#[test]
fn file_is_written_atomically() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let store = Store::at(&root, "overlay");
    store.podman(["images"]);
    fn report(root: &Path, store: &Store, target: &Path, more: &[&str]) -> crate::support::program::Run {
        let mut args: Vec<std::ffi::OsString> = vec!["report".into(), "--html".into(), target.into()];
        args.extend(["--graphroot".into(), root.into(), "--runroot".into(), store.runroot().into()]);
        args.extend(more.iter().map(Into::into));
        layersweep(args)
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let target = out.join("report.html");
    report(&root, &store, &target, &["-q"]).expect_code(0);
    made::in_page(&std::fs::read_to_string(&target).unwrap());
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
    // With the document on standard output, the page contains the same document.
    let run = report(&root, &store, &target, &["--format", "json"]).expect_code(0);
    let page = made::in_page(&std::fs::read_to_string(&target).unwrap());
    assert!(page == run.json(), "the page contains the printed document");
    // Without its script the page shows the text report.
    let page = std::fs::read_to_string(&target).unwrap();
    let plain = page.split_once("<pre>").unwrap().1.split_once("</pre>").unwrap().0.replace("&#39;", "'");
    for sign in [text(&run.json(), "/verdict/headline"), "What happened"] {
        assert!(plain.contains(sign), "{sign}: {plain}");
    }
    // To standard output, which contains nothing else.
    let run = report(&root, &store, Path::new("-"), &[]).expect_code(0);
    assert!(run.stdout.starts_with("<!DOCTYPE html>") && run.stdout.ends_with("</html>\n"));
    report(&root, &store, Path::new("-"), &["--format", "json"]).expect_code(2);
    for (wrong, sign) in [
        (out.as_path(), "is a directory"),
        (Path::new("/dev/null"), "not a regular file"),
        (&dir.path().join("none/report.html"), "directory"),
        (&root.join("report.html"), "store"),
        (&store.runroot().join("report.html"), "store"),
    ] {
        let run = report(&root, &store, wrong, &[]).expect_code(2);
        assert!(run.stderr.contains(sign) && run.stdout.is_empty(), "{run:?}");
    }
    assert!(!root.join("report.html").exists());
}
