//! Single settings from the files of the kubelet and crictl.

use serde_json::Value;

use super::yaml;

/// Returns the string at a key at the top level of a YAML or JSON file; `None` if it is missing or empty.
///
/// # Errors
/// A message, if the file is not YAML or the value is not a string.
pub fn top_level(text: &str, key: &str) -> Result<Option<String>, String> {
    let documents = yaml::documents(text)?;
    match documents.iter().find_map(|document| document.get(key)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(non_empty(text)),
        Some(_) => Err(format!("{key} must be a string")),
    }
}

/// Returns the value at a key at the top level of a YAML or JSON file, of any type; `None` if it is missing.
///
/// # Errors
/// A message, if the file is not YAML.
pub(super) fn value(text: &str, key: &str) -> Result<Option<Value>, String> {
    let documents = yaml::documents(text)?;
    let found = documents.iter().find_map(|document| document.get(key));
    Ok(found.filter(|value| !value.is_null()).cloned())
}

/// Converts a list of flags without dashes, `["eviction-hard=x<5%"]`, into flags. k3s accepts a string in place of a
/// list of one element, and a `+` after the key in a drop-in that extends the list of the main file.
///
/// # Errors
/// A message, if the file is not YAML or the list contains a value that is not a string.
pub(super) fn arguments(text: &str, key: &str) -> Result<Vec<String>, String> {
    let mut flags = Vec::new();
    for key in [key.to_owned(), format!("{key}+")] {
        let words = match value(text, &key)? {
            None => continue,
            Some(Value::Array(words)) => words,
            Some(word) => vec![word],
        };
        for word in words {
            let word = word.as_str().ok_or_else(|| format!("{key} must be a list of strings"))?;
            flags.push(format!("--{}", word.trim_start_matches('-')));
        }
    }
    Ok(flags)
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns the value of a long flag on a command line in a file of shell variables, as in
/// `KUBELET_KUBEADM_ARGS="--a=b --c d"`. The last occurrence counts, as for the kubelet.
pub(super) fn flag(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut found = None;
    for line in lines {
        let mut words = line
            .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\'))
            .filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            // The first word may begin with the name of the variable, so the flag need not be at its start.
            let Some(start) = word.find(name) else { continue };
            let rest = &word[start + name.len()..];
            found = match rest.strip_prefix('=') {
                Some(value) => non_empty(value),
                None if rest.is_empty() => words.next().map(str::to_owned),
                None => found,
            };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_at_the_top_level_are_read() {
        let socket = || Ok(Some("unix:///run/a.sock".to_owned()));
        for text in [
            "runtime-endpoint: unix:///run/a.sock\n",
            "# x\n---\ntimeout: 2\nruntime-endpoint:   unix:///run/a.sock   # why\n",
            "runtime-endpoint : \"unix:///run/a.sock\" # why\r\n",
            "'runtime-endpoint': 'unix:///run/a.sock'",
            "\"runtime-endpoint\": unix:///run/a.sock",
            "{\"timeout\": 2, \"runtime-endpoint\": \"unix:///run/a.sock\"}",
            "other:\n  runtime-endpoint: unix:///run/b.sock\nruntime-endpoint: unix:///run/a.sock",
        ] {
            assert_eq!(top_level(text, "runtime-endpoint"), socket(), "{text}");
        }
        for text in [
            "",
            "runtime-endpoint:",
            "runtime-endpoint: \"\"",
            "runtime-endpoint: ~",
            "runtime-endpoint: # none",
            "#runtime-endpoint: unix:///run/b.sock",
            "x:\n  runtime-endpoint: unix:///run/b.sock",
            "runtime-endpoint-x: unix:///run/b.sock",
            "runtime-endpoint:unix:///run/b.sock",
            "{\"x\": {\"runtime-endpoint\": \"unix:///run/b.sock\"}}",
        ] {
            assert_eq!(top_level(text, "runtime-endpoint"), Ok(None), "{text}");
        }
        for text in [
            "a: b\nruntime-endpoint: >-\n  unix:///run/a.sock",
            "a: &s unix:///run/a.sock\nruntime-endpoint: *s\n",
            "runtime-endpoint: \"unix:///run/\\u0061.sock\"",
        ] {
            assert_eq!(top_level(text, "runtime-endpoint"), socket(), "{text}");
        }
        for text in [
            "runtime-endpoint: [unix:///run/a.sock]",
            "runtime-endpoint: *anchor",
            "runtime-endpoint: \"unix:///run/a.sock",
            "{\"runtime-endpoint\": 1}",
            "{\"runtime-endpoint\": ",
        ] {
            assert!(top_level(text, "runtime-endpoint").is_err(), "{text}");
        }
    }

    #[test]
    fn list_of_flags_gets_dashes() {
        for (text, expected) in [
            ("", vec![]),
            ("node-name: a", vec![]),
            ("kubelet-arg: eviction-hard=x<5%", vec!["--eviction-hard=x<5%"]),
            ("kubelet-arg:\n- a=1\n- --b=2\n", vec!["--a=1", "--b=2"]),
            ("kubelet-arg+: [\"a=1\"]", vec!["--a=1"]),
        ] {
            assert_eq!(arguments(text, "kubelet-arg").unwrap(), expected, "{text}");
        }
        for text in ["kubelet-arg: [1]", "kubelet-arg: {a: b}", "kubelet-arg: ["] {
            assert!(arguments(text, "kubelet-arg").is_err(), "{text}");
        }
    }

    #[test]
    fn flag_in_shell_variable_is_found() {
        const NAME: &str = "--container-runtime-endpoint";
        for text in [
            "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/a.sock --node-ip=1\"",
            "KUBELET_KUBEADM_ARGS=--container-runtime-endpoint=unix:///run/a.sock",
            "A='--x --container-runtime-endpoint unix:///run/a.sock'",
            "A=\"--container-runtime-endpoint=unix:///run/b.sock --container-runtime-endpoint=unix:///run/a.sock\"",
            "# A=\"--container-runtime-endpoint=unix:///run/b.sock\"\nA=\"--container-runtime-endpoint=unix:///run/a.sock\"",
        ] {
            assert_eq!(flag(text, NAME).as_deref(), Some("unix:///run/a.sock"), "{text}");
        }
        for text in ["", "A=\"--container-runtime-endpoint=\"", "A=--container-runtime-endpoint-x=1", "A=b"] {
            assert_eq!(flag(text, NAME), None, "{text}");
        }
    }
}
