use serde_json::{Value, json};

use super::*;

const HOSTILE: &str = "</script><!--<script>alert(1)</script>\u{2028}\u{202e}&amp;{{script}}'\"\u{7}<img src=x onerror=alert(1)>";

fn sample() -> Value {
    json!({
        "kind": "report", "generated_at": "2026-11-21T20:00:00Z", "host": HOSTILE,
        "scan": { "images": [{ "names": [HOSTILE] }] },
    })
}

fn page(document: &Value) -> String {
    page_of(document, HOSTILE, "2026-11-21T20:00:00Z", &format!("{HOSTILE}\nline\n")).unwrap()
}

#[test]
fn the_document_comes_back_as_it_was() {
    let page = page(&sample());
    let (_, after) = page.split_once("<script type=\"application/json\" id=\"report\">\n").unwrap();
    let document: Value = serde_json::from_str(after.lines().next().unwrap()).unwrap();
    assert_eq!(document, sample());
}

#[test]
fn the_document_is_in_the_page_once() {
    let page = page(&json!({ "host": "a", "scan": { "images": ["only-once-in-here"] } }));
    assert_eq!(page.matches("only-once-in-here").count(), 1);
}

#[test]
fn hostile_strings_are_no_markup() {
    let page = page(&sample());
    let harmless = page_of(&json!({ "kind": "report" }), "", "", "").unwrap();
    for sign in ["<script", "</script", "<!--", "<img", "<style", "</style", "</title"] {
        assert_eq!(page.matches(sign).count(), harmless.matches(sign).count(), "{sign}");
    }
    assert!(!page.contains(['\u{202e}', '\u{2028}', '\u{7}']));
    assert_eq!(page.matches("&lt;img src=x").count(), 3, "title twice, text");
    assert!(page.contains("alert(1)&gt;\nline\n</pre>"), "lines of the text stay lines");
}

#[test]
fn the_policy_names_what_is_in_the_page() {
    let page = page(&sample());
    let policy = page.split_once("Content-Security-Policy\" content=\"").unwrap().1;
    let policy = policy.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for unsafe_source in ["unsafe", "http", "data:", "*"] {
        assert!(!policy.contains(unsafe_source), "{policy}");
    }
    let between = |start: &str, end: &str| {
        let (_, after) = page.split_once(start).unwrap();
        digest(after.split_once(end).unwrap().0)
    };
    assert!(policy.contains(&format!("style-src {};", between("<style>", "</style>"))), "{policy}");
    let scripts: Vec<&str> = page.split("<script>").skip(1).collect();
    assert_eq!(scripts.len(), 2);
    for script in scripts {
        assert!(policy.contains(&digest(script.split_once("</script>").unwrap().0)), "{policy}");
    }
}

#[test]
fn nothing_in_the_page_leads_elsewhere() {
    let page = page_of(&json!({}), "", "", "").unwrap();
    for sign in ["src=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("] {
        for (at, _) in page.match_indices(sign) {
            let found = &page[at..page.len().min(at + 12)];
            assert!(found.starts_with("url(#"), "{sign}: {found}");
        }
    }
    // The name of SVG's namespace and the library's home in its licence line are the only addresses.
    let addresses = page.matches("http").count();
    assert_eq!(
        page.matches("http://www.w3.org/2000/svg").count() + page.matches("// https://d3js.org/").count() + 1,
        addresses,
        "and http-equiv"
    );
}

#[test]
fn only_names_are_filled_in() {
    let filled = fill("a{{x}}b{{y}}c{{", |name| format!("<{name}{{{{x}}}}>").into());
    assert_eq!(filled, "a<x{{x}}>b<y{{x}}>c{{");
}
