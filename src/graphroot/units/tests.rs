use super::*;

fn entry(name: &str, kind: Kind) -> Entry {
    Entry { name: name.into(), kind }
}
