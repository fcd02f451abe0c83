//! Single settings of the kubelet's and crictl's files, without a YAML parser: only keys at
//! the top level with a text on the same line, which is how those tools write them. What
//! is written in another way is said not to be understood, never guessed.

/// The text of a key at the top level of a YAML (or JSON) document; `None` where it is absent
/// or empty.
///
/// # Errors
/// A line for people, if the key is there but its value is not a text on its line.
pub(super) fn top_level(text: &str, key: &str) -> Result<Option<String>, String> {
    if text.trim_start().starts_with('{') {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        return match value.get(key) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(serde_json::Value::String(text)) => Ok(some(text)),
            Some(_) => Err(format!("{key} is to be a text")),
        };
    }
    for (at, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix(key).or_else(|| quoted_key(line, key)) else { continue };
        let Some(value) = rest.trim_start().strip_prefix(':') else { continue };
        // Without a space behind the colon it is another key (`a:b`).
        if !value.is_empty() && !value.starts_with([' ', '\t']) {
            continue;
        }
        return scalar(value.trim()).map_err(|why| format!("line {}: {key}: {why}", at + 1));
    }
    Ok(None)
}

/// The rest of a line that begins with the key in quotes.
fn quoted_key<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    ['"', '\''].iter().find_map(|quote| line.strip_prefix(*quote)?.strip_prefix(key)?.strip_prefix(*quote))
}

fn scalar(value: &str) -> Result<Option<String>, String> {
    let unquoted = match value.chars().next() {
        None | Some('#') => return Ok(None),
        Some(quote @ ('"' | '\'')) => {
            let rest = &value[1..];
            let Some(end) = rest.find(quote) else { return Err("its quotes are not closed".into()) };
            let (inside, after) = (&rest[..end], rest[end + 1..].trim_start());
            // An escape or a doubled quote: nothing that the path of a socket needs.
            if inside.contains('\\') || !(after.is_empty() || after.starts_with('#')) {
                return Err("not understood".into());
            }
            inside
        }
        Some('|' | '>' | '&' | '*' | '!' | '[' | '{' | '@' | '`' | '%') => {
            return Err("is to be a text on the same line".into());
        }
        Some(_) => value.split(" #").next().unwrap_or(value).trim_end(),
    };
    Ok(some(unquoted).filter(|text| text != "null" && text != "~"))
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The value of a long flag on a command line in a file of shell variables, as in
/// `KUBELET_KUBEADM_ARGS="--a=b --c d"`. Of several the last counts, as for the kubelet.
pub(super) fn flag(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut found = None;
    for line in lines {
        let separator = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\');
        // The name of the variable stands before the first word.
        let mut words = line.split(separator).filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            let Some(rest) = word.find(name).map(|at| &word[at..]).and_then(|word| word.strip_prefix(name))
            else {
                continue;
            };
            found = match rest.strip_prefix('=') {
                Some(value) => some(value),
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
    fn texts_at_the_top_level() {
        let of = |text: &str| top_level(text, "runtime-endpoint");
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
            assert_eq!(of(text), socket(), "{text}");
        }
        for text in [
            "",
            "runtime-endpoint:",
            "runtime-endpoint: \"\"",
            "runtime-endpoint: ~",
            "runtime-endpoint: # none",
            "#runtime-endpoint: unix:///run/b.sock",
            "  runtime-endpoint: unix:///run/b.sock",
            "runtime-endpoint-x: unix:///run/b.sock",
            "runtime-endpoint:unix:///run/b.sock",
            "{\"x\": {\"runtime-endpoint\": \"unix:///run/b.sock\"}}",
        ] {
            assert_eq!(of(text), Ok(None), "{text}");
        }
        for text in [
            "a: b\nruntime-endpoint: |\n  unix:///run/a.sock",
            "runtime-endpoint: [unix:///run/a.sock]",
            "runtime-endpoint: *anchor",
            "runtime-endpoint: \"unix:///run/a.sock",
            "runtime-endpoint: \"unix:///run/\\u0061.sock\"",
            "{\"runtime-endpoint\": 1}",
            "{\"runtime-endpoint\": ",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!(of("a: b\nruntime-endpoint: !x").unwrap_err().starts_with("line 2: runtime-endpoint"));
    }

    #[test]
    fn flags_in_files_of_variables() {
        let of = |text: &str| flag(text, "--container-runtime-endpoint");
        let socket = || Some("unix:///run/a.sock".to_owned());
        for text in [
            "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/a.sock --node-ip=1\"",
            "KUBELET_KUBEADM_ARGS=--container-runtime-endpoint=unix:///run/a.sock",
            "A='--x --container-runtime-endpoint unix:///run/a.sock'",
            "A=\"--container-runtime-endpoint=unix:///run/b.sock --container-runtime-endpoint=unix:///run/a.sock\"",
            "# A=\"--container-runtime-endpoint=unix:///run/b.sock\"\nA=\"--container-runtime-endpoint=unix:///run/a.sock\"",
        ] {
            assert_eq!(of(text), socket(), "{text}");
        }
        for text in ["", "A=\"--container-runtime-endpoint=\"", "A=--container-runtime-endpoint-x=1", "A=b"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
