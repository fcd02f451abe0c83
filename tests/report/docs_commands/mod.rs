//! Runs the commands in README.md and docs/, and compares the output that they show with the program's. Markers of
//! blocks: CONTRIBUTING.md, "Pages".

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod blocks;
mod check;
mod links;
mod node;
mod registry;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::support;
use blocks::{Block, Rule, Run};
use support::{promises, store};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every page of the repository by its path.
fn pages() -> HashMap<PathBuf, String> {
    let entries = walkdir::WalkDir::new(top()).into_iter().filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() != 1 || !(name == "target" || name.starts_with('.'))
    });
    let pages = entries.map(|entry| entry.unwrap().into_path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages
        .map(|path| (path.strip_prefix(top()).unwrap().into(), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

/// Returns the pages for operators and developers, with their blocks.
fn documentation() -> Vec<(PathBuf, String, Vec<Block>)> {
    let mut found: Vec<_> = pages()
        .into_iter()
        .filter(|(path, _)| path.starts_with("docs") || path.components().count() == 1)
        .map(|(path, text)| {
            let blocks = blocks::of_page(&path, &text).unwrap_or_else(|why| panic!("{why}"));
            (path, text, blocks)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() > 10, "{}", found.len());
    found
}

#[track_caller]
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} things are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_block_and_command_has_a_rule() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text, blocks) in documentation() {
        wrong.extend(check::indented(&text).map(|line| {
            format!(
                "{}:{line}: commands that are only indented are not run: put them into a fence",
                page.display()
            )
        }));
        for block in blocks {
            count += 1;
            match block.rule() {
                Err(why) => wrong.push(format!("{}: {why}", block.place())),
                Ok(Rule::Run(_) | Rule::Screen(_) | Rule::Parse) => wrong.extend(check::form(&block)),
                Ok(Rule::Toml) => wrong.extend(check::toml(&block)),
                Ok(Rule::Data) => wrong.extend(check::data(&block)),
                Ok(Rule::Text) if block.text.lines().any(|line| line.starts_with("$ ")) => {
                    wrong.push(format!("{}: there are commands in it: call it console", block.place()));
                }
                Ok(Rule::Text) => {}
            }
        }
    }
    assert!(count > 12, "{count}");
    assert_none(&wrong);
}

#[test]
fn commands_in_the_running_text_are_understood() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text, _) in documentation() {
        for (line, span) in check::spans(&text) {
            for words in check::our_commands(&span).into_iter().filter(|_| span.starts_with("layersweep ")) {
                count += 1;
                wrong.extend(
                    check::understood(&words).err().map(|why| format!("{}:{line}: {why}", page.display())),
                );
            }
        }
    }
    assert!(count > 12, "{count}");
    assert_none(&wrong);
}

/// The pages print no command that deletes what cannot be made again.
#[test]
fn pages_have_no_destroying_command() {
    let wrong = documentation().into_iter().flat_map(|(page, text, _)| {
        let found = promises::destroying_commands(&text).into_iter();
        found.map(move |line| format!("{}: {line}", page.display())).collect::<Vec<_>>()
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

/// Settings of other programs that the pages mention and layersweep does not read.
const OF_OTHERS: [&str; 1] = ["use_hard_links"];

/// Checks fields of documents, keys of the configuration, and names of other programs.
#[test]
fn names_in_the_running_text_exist() {
    let known = check::known_words();
    let name = regex::Regex::new(r"^[a-z0-9]+(?:_[a-z0-9]+)+(?:\[\])?$").unwrap();
    let path =
        regex::Regex::new(r"^(?:docs|src|tests|benches|fixtures|migrations|packaging)/[\w./-]+$").unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text, _) in documentation() {
        for (line, span) in check::spans(&text) {
            let parts = span.split('.').map(|part| part.trim_end_matches("[]"));
            for part in parts.filter(|part| name.is_match(part)) {
                count += 1;
                if !known.contains(part) && !OF_OTHERS.contains(&part) {
                    wrong.push(format!(
                        "{}:{line}: `{part}` is in no schema and nowhere in the sources",
                        page.display()
                    ));
                }
            }
            if path.is_match(&span) && !span.contains("NNNN") && !top().join(&span).exists() {
                wrong.push(format!("{}:{line}: there is no {span}", page.display()));
            }
        }
    }
    assert!(count > 30, "{count}");
    assert_none(&wrong);
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    assert_none(&links::broken(&pages, top()));
    let planted = "# A page\n\n[a](none.md) [b](README.md#none) [c](#a-page) `[d](none2.md)`\n";
    let mut planted: HashMap<_, _> = [(PathBuf::from("x.md"), planted.to_owned())].into();
    planted.extend(pages);
    let broken = links::broken(&planted, top());
    assert_eq!(broken.len(), 2, "{broken:#?}");
}

#[test]
fn planted_mistakes_are_found() {
    fn block(text: &str) -> blocks::Block {
        blocks::of_page(Path::new("x.md"), text).unwrap().remove(0)
    }
    let screen = block(
        "1. In a list:\n   ```console\n   $ layersweep usage \\\n     -q\n   THE HEAD  OF IT\n   ```\n",
    );
    assert_eq!(
        screen.steps(),
        [("layersweep usage \\\n  -q".to_owned(), vec!["THE HEAD  OF IT".to_owned()])]
    );
    for (text, rule) in [
        ("```sh\nlayersweep usage\n```\n", Rule::Run(Run::default())),
        ("```\nlayersweep usage\n\nlayersweep images\n```\n", Rule::Run(Run::default())),
        ("```\n$ layersweep usage\n```\n", Rule::Screen(Run::default())),
        ("```sh\nsystemctl stop crio\nlayersweep usage\n```\n", Rule::Parse),
        ("```console\n$ oc debug node/a\n```\n", Rule::Parse),
        ("```\n# mount /dev/sdb /mnt\n```\n", Rule::Parse),
        ("```\n# layersweep usage\nStore\n```\n", Rule::Screen(Run::default())),
        ("```sh\n# layersweep is a program\nlayersweep usage\n```\n", Rule::Run(Run::default())),
        ("```sh\nlayersweep usage --sysroot /mnt\n```\n", Rule::Parse),
        ("<!-- test: parse since it takes long -->\n\n```sh\nlayersweep usage\n```\n", Rule::Parse),
        (
            "<!-- test: run exit=4 A=b -->\n```sh\nlayersweep A\n```\n",
            Rule::Run(Run { exit: 4, replace: vec![("A".into(), "b".into())], ..Run::default() }),
        ),
        ("```toml\n[images]\n```\n", Rule::Toml),
        ("```ini\n[Unit]\n```\n", Rule::Text),
    ] {
        assert_eq!(block(text).rule(), Ok(rule), "{text}");
    }
    for (text, why) in [
        ("```\nsrc/\n```\n", "no rule"),
        ("```c++\nint main;\n```\n", "c++"),
        ("<!-- test: parse -->\n```sh\nx\n```\n", "say why"),
        ("<!-- test: maybe -->\n```sh\nx\n```\n", "maybe"),
        ("<!-- test: run slowly -->\n```sh\nx\n```\n", "slowly"),
    ] {
        assert!(block(text).rule().unwrap_err().contains(why), "{text}");
    }
    let indented =
        "Text.\n\n    layersweep usage\n\n```sh\n    layersweep usage\n```\n1. Text of\n    $ a list\n";
    assert_eq!(check::indented(indented).collect::<Vec<_>>(), [3, 9]);
    for text in ["```sh\nlayersweep usage\n", "<!-- test: run -->\nNo block.\n"] {
        assert!(blocks::of_page(Path::new("x.md"), text).is_err(), "{text}");
    }
    for (text, wrong) in [
        ("layersweep gc --hihg 80", 1),
        ("layersweep collect", 1),
        ("sudo layersweep images --sort=nothing | head", 1),
        ("if true; then layersweep usage", 1),
        ("make coffee", 1),
        (
            "layersweep explain IMAGE   # --no-such-flag\nlayersweep usage | grep --no-such x && layersweep sweep",
            0,
        ),
        ("oc debug node/<name of it> -- layersweep usage", 0),
    ] {
        let found = check::form(&block(&format!("```sh\n{text}\n```\n")));
        assert_eq!(found.len(), wrong, "{text}: {found:?}");
    }
    for (language, text, fits) in [
        ("toml", "[images]\nhigh_percent = 70\n", true),
        ("toml", "[images]\nhihg_percent = 70\n", false),
        ("toml", "[images]\nhigh_percent = 170\n", false),
        ("json", "{\"a\": 1}\n", true),
        ("json", "{\"a\": …}\n", false),
        ("json", "{\"schema_version\": 1, \"kind\": \"usage\"}\n", false),
        ("yaml", "a: [1, 2]\n---\nb: 1\n", true),
        ("yaml", "a: [1, 2\n", false),
    ] {
        let block = block(&format!("```{language}\n{text}```\n"));
        let found = if language == "toml" { check::toml(&block) } else { check::data(&block) };
        assert_eq!(found.is_none(), fits, "{text}: {found:?}");
    }
    let printed = "IMAGE  ID  SIZE\na  0123456789ab  1.5 MiB\nDone: 1 image.\n";
    for (page, exact, same) in [
        ("IMAGE ID   SIZE\nanother row of another store", false, true),
        ("IMAGE ID BYTES\n", false, false),
        ("IMAGE  ID  SIZE\na  ba9876543210  12 KiB\n\nDone: 3 image.", true, true),
        ("IMAGE  ID  SIZE\na  ba9876543210  12 KiB\nDone: 3 images.", true, false),
    ] {
        let shown: Vec<_> = page.lines().map(str::to_owned).collect();
        assert_eq!(check::differences(&shown, printed, exact).is_empty(), same, "{page}");
    }
}

#[test]
fn every_page_is_in_the_index() {
    let index = std::fs::read_to_string(top().join("docs/README.md")).unwrap();
    let missing = documentation().into_iter().filter_map(|(page, _, _)| {
        let name = page.strip_prefix("docs").ok()?.to_str()?.to_owned();
        (name != "README.md" && !index.contains(&format!("({name}")))
            .then(|| format!("docs/README.md lacks {name}"))
    });
    assert_none(&missing.collect::<Vec<_>>());
}

#[test]
fn documented_commands_work() {
    if !store::require_tools() || !support::require_program("unshare") {
        return;
    }
    node::inside("report::docs_commands::documented_commands_work", || {
        let pages = documentation();
        let node = node::Prepared::new();
        let mut wrong = Vec::new();
        let mut count = 0;
        let only = std::env::var_os("LAYERSWEEP_PAGE");
        for (name, _, blocks) in pages {
            if only.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            let mut page = None;
            for block in blocks {
                let (screen, run) = match block.rule() {
                    Ok(Rule::Run(run)) => (false, run),
                    Ok(Rule::Screen(run)) => (true, run),
                    _ => continue,
                };
                count += 1;
                if run.fresh {
                    // The earlier page is removed before another one is made.
                    drop(page.take());
                }
                let page = page.get_or_insert_with(|| match run.bare {
                    Some(bare) => node.bare(bare),
                    None => node.fresh(),
                });
                wrong.extend(carry_out(page, &block, screen, &run));
            }
        }
        assert!(count > 5 || only.is_some(), "{count}");
        assert_none(&wrong);
    });
}

/// Runs a block; returns what is wrong with it.
fn carry_out(page: &mut node::Page<'_>, block: &Block, screen: bool, run: &Run) -> Vec<String> {
    if run.full_disk {
        page.fill();
    }
    if run.no_inodes {
        page.fill_inodes();
    }
    let mut wrong = Vec::new();
    let steps = if screen { block.steps() } else { vec![(block.text.clone(), Vec::new())] };
    let last = steps.len();
    let mut printed = String::new();
    for (step, (command, mut shown)) in steps.into_iter().enumerate() {
        let mut expected = if step + 1 == last { run.exit } else { 0 };
        shown.retain(|line| {
            let code = line.strip_prefix("[exit code ").and_then(|rest| rest.strip_suffix(']'));
            expected = code.and_then(|code| code.parse().ok()).unwrap_or(expected);
            code.is_none()
        });
        let replaced = run.replace.iter().fold(command.clone(), |text, (word, by)| text.replace(&**word, by));
        let done = page.sh(&replaced, !run.no_runtime);
        if std::env::var_os("LAYERSWEEP_PRINT").is_some() {
            println!(
                "{}:\n$ {}\n{}[exit code {}]",
                block.place(),
                command.trim_end(),
                done.stdout,
                done.code
            );
        }
        let destroying = promises::destroying_commands(&done.stdout).into_iter();
        wrong.extend(destroying.map(|line| format!("{}: $ {command}\n{line}", block.place())));
        printed.push_str(format!("{}{command}\n{}", block.prompt(), done.stdout.trim_end()).trim_end());
        printed.push('\n');
        if done.code != 0 {
            printed.push_str(&format!("[exit code {}]\n", done.code));
        }
        if screen && run.exact && std::env::var_os("LAYERSWEEP_WRITE_SCREENS").is_some() {
            continue;
        }
        if done.code != expected {
            wrong.push(format!(
                "{}: exit code {} instead of {expected}:\n$ {}\n{}",
                block.place(),
                done.code,
                command.trim_end(),
                done.stdout
            ));
        } else if screen {
            let differences = check::differences(&shown, &done.stdout, run.exact);
            wrong.extend(
                differences
                    .into_iter()
                    .map(|difference| format!("{}: $ {command}\n{difference}", block.place())),
            );
        }
    }
    if run.works {
        page.works();
    }
    if screen && run.exact && std::env::var_os("LAYERSWEEP_WRITE_SCREENS").is_some() {
        let page = top().join(&block.page);
        let text = std::fs::read_to_string(&page).unwrap();
        let (old, new) = (format!("\n{}```", block.text), format!("\n{printed}```"));
        assert!(text.contains(&old), "{}", block.place());
        std::fs::write(page, text.replacen(&old, &new, 1)).unwrap();
    }
    wrong
}
