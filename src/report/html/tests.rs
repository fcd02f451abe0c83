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
fn document_can_be_extracted_unchanged() {
    let page = page(&sample());
    let (_, after) = page.split_once("<script type=\"application/json\" id=\"report\">\n").unwrap();
    let document: Value = serde_json::from_str(after.lines().next().unwrap()).unwrap();
    assert_eq!(document, sample());
}

#[test]
fn document_is_in_the_page_once() {
    let page = page(&json!({ "host": "a", "scan": { "images": ["only-once-in-here"] } }));
    assert_eq!(page.matches("only-once-in-here").count(), 1);
}

#[test]
fn hostile_strings_are_not_markup() {
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
fn policy_allows_only_content_of_the_page() {
    let page = page(&sample());
    let policy = page.split_once("Content-Security-Policy\" content=\"").unwrap().1;
    let policy = policy.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for unsafe_source in ["unsafe", "http", "data:", "*"] {
        assert!(!policy.contains(unsafe_source), "{policy}");
    }
    let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    assert!(policy.contains(&format!("style-src {};", digest(style))), "{policy}");
    let scripts: Vec<&str> = page.split("<script>").skip(1).collect();
    assert_eq!(scripts.len(), 2);
    for script in scripts {
        assert!(policy.contains(&digest(script.split_once("</script>").unwrap().0)), "{policy}");
    }
}

#[test]
fn page_loads_nothing() {
    let page = page_of(&json!({}), "", "", "").unwrap();
    for sign in ["src=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("] {
        for (position, _) in page.match_indices(sign) {
            let found = &page[position..page.len().min(position + 12)];
            assert!(found.starts_with("url(#"), "{sign}: {found}");
        }
    }
    // The only addresses are the name of SVG's namespace and the library's home page in its licence line.
    let addresses = page.matches("http").count();
    assert_eq!(
        page.matches("http://www.w3.org/2000/svg").count() + page.matches("// https://d3js.org/").count() + 1,
        addresses,
        "and http-equiv"
    );
}

#[test]
fn filled_values_are_not_searched_for_names() {
    let filled = fill("a{{x}}b{{y}}c{{", |name| format!("<{name}{{{{x}}}}>").into());
    assert_eq!(filled, "a<x{{x}}>b<y{{x}}>c{{");
}
