//! The pictures of the documentation: `make pictures` runs this on the node that it makes.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};

use crate::support;
use support::browser::{Browser, Window};
use support::pty::Terminal;

fn save(name: &str, picture: &[u8]) {
    assert!(picture.len() < 300_000, "{name}: {} bytes", picture.len());
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join(name), picture).unwrap();
}

#[test]
#[ignore = "writes docs/pictures"]
fn report_is_shown_in_light_and_dark() {
    let page = std::env::var_os("LAYERSWEEP_PICTURE_OF").expect("a page made by report --html");
    let page = PathBuf::from(page);
    let mut browser = Browser::start();
    for (name, dark, part, height) in
        [("report-light.png", false, "main", 1250), ("report-dark.png", true, "#filesystems", 2260)]
    {
        let mut page = browser.open(&page, Window { width: 1160, height, dark, ..Window::default() });
        page.eval(&format!(
            "scrollTo({{ top: document.querySelector('{part}').offsetTop - 60, behavior: 'instant' }})"
        ));
        page.expect_quiet();
        save(name, &page.picture());
    }
}

#[test]
#[ignore = "writes docs/pictures"]
fn explore_is_shown_with_marked_images() {
    let flags = std::env::var("LAYERSWEEP_PICTURE_FLAGS").expect("the flags of a store");
    let args: Vec<_> = ["explore"].into_iter().chain(flags.split_whitespace()).collect();
    let mut terminal = Terminal::start(&args);
    let directory = tempfile::tempdir().unwrap();
    let mut browser = Browser::start();
    for (name, keys, shown) in [
        ("explore-disk.png", "", "All images"),
        ("explore-marked.png", "/not in use\r\r   ", "3 images marked"),
    ] {
        terminal.keys(keys);
        terminal.shows(shown);
        let file = directory.path().join("screen.html");
        std::fs::write(&file, terminal.page()).unwrap();
        let mut page = browser.open(&file, Window { width: 1000, height: 616, ..Window::default() });
        page.expect_quiet();
        save(name, &page.picture());
    }
}
