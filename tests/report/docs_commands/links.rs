//! Links between pages.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::check::without_blocks;

/// Returns every broken link. Pages are given by their path below the repository.
pub fn broken(pages: &HashMap<PathBuf, String>, top: &Path) -> Vec<String> {
    static LINK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"!?\[[^\]]*\]\(([^)\s]+)(?: "[^"]*")?\)|(?:src|href)="([^"]+)""#).expect("a pattern")
    });
    let mut broken = Vec::new();
    for (page, text) in pages {
        let text = without_code(&without_blocks(text));
        for found in LINK.captures_iter(&text) {
            let target = found.get(1).or(found.get(2)).expect("one of both").as_str();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let place = match file {
                "" => page.clone(),
                file => normal(&page.parent().unwrap_or(Path::new("")).join(file)),
            };
            if !pages.contains_key(&place) && !top.join(&place).exists() {
                broken.push(format!("{}: {target}: there is no {}", page.display(), place.display()));
            } else if let Some(text) = pages.get(&place)
                && !anchor.is_empty()
                && !anchors(text).iter().any(|other| other == anchor)
            {
                broken.push(format!(
                    "{}: {target}: {} has no such headline",
                    page.display(),
                    place.display()
                ));
            }
        }
    }
    broken.sort();
    broken
}

fn without_code(text: &str) -> String {
    static SPAN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"`[^`\n]*`").expect("a pattern"));
    // The text of a link may be code; its target is not.
    SPAN.replace_all(text, "code").into_owned()
}

/// Resolves `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Returns the anchors that GitHub gives to the headlines of a page.
pub fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in without_blocks(text).lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = anchors
            .iter()
            .filter(|other| other.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()) == anchor);
        match again.count() {
            0 => anchors.push(anchor),
            times => anchors.push(format!("{anchor}-{times}")),
        }
    }
    anchors
}
