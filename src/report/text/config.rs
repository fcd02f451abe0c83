//! Text of `config`: the effective values, or the problems.

use serde_json::Value;

use super::format::safe;
use super::screen::Screen;
use super::table::Table;
use crate::config::ConfigProblem;
use crate::report::json::ConfigDoc;

/// Formats a row for each key, with its value as in a file, and one for each rule.
pub fn config_show(document: &ConfigDoc, screen: &Screen) -> String {
    let mut table = Table::new(screen, &["KEY", "VALUE", "FROM"]);
    for setting in &document.settings {
        let rules: Vec<_> = setting
            .value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .zip(&setting.origins)
            .collect();
        for (values, origin) in &rules {
            table.row(vec![setting.key.into(), safe(&rule(values)), safe(&origin.short())]);
        }
        if !rules.is_empty() {
            continue;
        }
        let value = match &setting.value {
            Value::Null => "(found)".into(),
            value => safe(&value.to_string()),
        };
        let origin = screen.list(&setting.origins, "", |origin| safe(&origin.short()));
        table.row(vec![setting.key.into(), value, origin]);
    }
    table.fit(&[], &[(1, 12), (2, 12)]);
    table.render()
}

/// Formats a rule as in a file, its pattern first.
fn rule(values: &serde_json::Map<String, Value>) -> String {
    let (pattern, others): (Vec<_>, Vec<_>) = values.iter().partition(|(key, _)| *key == "match");
    let values = pattern.into_iter().chain(others).map(|(key, value)| format!("{key} = {value}"));
    format!("{{ {} }}", values.collect::<Vec<_>>().join(", "))
}

/// Formats a line for each problem; without problems, a line for each warning, and the files that were read.
pub fn config_check(document: &ConfigDoc, quiet: bool) -> String {
    if !document.problems.is_empty() {
        return document.problems.iter().map(problem).collect();
    }
    let warnings = document.warnings.iter().map(|warning| format!("warning: {}", problem(warning)));
    let valid = match document.files.as_slice() {
        _ if quiet => String::new(),
        [] => "The configuration is valid: there is no file, and the built-in defaults apply.\n".into(),
        files => format!("The configuration is valid: {}\n", safe(&files.join(", "))),
    };
    warnings.chain([valid]).collect()
}

fn problem(problem: &ConfigProblem) -> String {
    let key = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
    let remedy = if problem.remedy.is_empty() { String::new() } else { format!("; {}", problem.remedy) };
    format!("{}: {key}{}{remedy}\n", safe(&problem.origin.short()), safe(&problem.message))
}
