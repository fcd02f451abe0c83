//! The names that each file takes from each other file, read from the tokens of the source.
//!
//! Every path in `use` and in code is followed, through modules, imports and re-exports, to the file that defines the
//! name. A `mod` or `pub use` declaration alone is no tie: it only makes a name reachable. Macros are read as tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names of a module, from the crate's root.
type Module = Vec<String>;

/// Files by their path below `src`, with the definitions and names in each of their modules.
pub struct House {
    modules: HashMap<Module, Contents>,
}

#[derive(Default)]
struct Contents {
    file: String,
    items: BTreeSet<String>,
    uses: Vec<Use>,
    /// Paths in code, also those of only one name.
    named: BTreeSet<Vec<String>>,
    /// Children that are only for tests.
    tests: Vec<String>,
}

struct Use {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// One name of `file` that `from` needs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tie {
    pub from: String,
    pub to: String,
    pub name: String,
}

/// The target of a path, and the modules below the root that the path passes.
struct Found {
    file: String,
    /// The item's name; `None` for a module.
    item: Option<String>,
    tops: Vec<String>,
    is_certain: bool,
}

impl House {
    /// `files` are paths below `src` with their text; code for tests counts only if `with_tests`.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, with_tests: bool) -> House {
        let mut modules = HashMap::new();
        for (file, text) in files {
            let tokens: TokenStream = text.parse().unwrap_or_else(|why| panic!("{file}: {why}"));
            let mut reading = Reading { modules: &mut modules, file, with_tests };
            reading.module(&module_of(file), tokens);
        }
        let tests: Vec<Module> = modules
            .iter()
            .flat_map(|(module, contents)| contents.tests.iter().map(|name| child(module, name)))
            .collect();
        modules.retain(|module: &Module, _| !tests.iter().any(|test| module.starts_with(test)));
        House { modules }
    }

    /// The modules below the root that each file names, with the file's module below the root.
    pub fn tops(&self) -> BTreeSet<(String, String, String)> {
        let mut tops = BTreeSet::new();
        for (module, contents) in &self.modules {
            let top_module = module.first().cloned().unwrap_or_default();
            let paths = contents.uses.iter().map(|import| &import.path).chain(&contents.named);
            for found in paths.filter_map(|path| self.resolve(module, path, &mut vec![])) {
                for top in found.tops {
                    tops.insert((contents.file.clone(), top_module.clone(), top));
                }
            }
        }
        tops
    }

    /// Every name that a file takes from another file.
    pub fn ties(&self) -> BTreeSet<Tie> {
        let mut ties = BTreeSet::new();
        for (module, contents) in &self.modules {
            // For `*`, only the names that the code uses count.
            let imports = contents.uses.iter().filter(|import| !import.is_public && import.name != "*");
            for path in imports.map(|import| &import.path).chain(&contents.named) {
                let found = self.resolve(module, path, &mut vec![]);
                if let Some(Found { file, item: Some(name), .. }) = found
                    && file != contents.file
                    && !file.is_empty()
                {
                    ties.insert(Tie { from: contents.file.clone(), to: file, name });
                }
            }
        }
        ties
    }

    /// Imports of a name from a module above the file that only re-exports it: the file and the path. The file that
    /// defines the name is below, too, and can be named.
    pub fn imports_from_above(&self) -> Vec<(String, String)> {
        let mut found = vec![];
        for (module, contents) in &self.modules {
            for import in contents.uses.iter().filter(|import| import.name != "*") {
                let Some((name, path)) = import.path.split_last() else { continue };
                let above = match path.first().map(String::as_str) {
                    Some("crate") => path[1..].to_vec(),
                    Some("super") => {
                        let up = path.iter().take_while(|name| *name == "super").count();
                        let up_to = &module[..module.len().saturating_sub(up)];
                        up_to.iter().chain(&path[up..]).cloned().collect()
                    }
                    _ => continue,
                };
                let is_above = module.len() > above.len() && module.starts_with(&above) && !above.is_empty();
                let facade = self.modules.get(&above).filter(|facade| facade.file != contents.file);
                let Some(facade) = facade.filter(|_| is_above) else { continue };
                let is_defined =
                    facade.items.contains(name) || self.modules.contains_key(&child(&above, name));
                if !is_defined && facade.uses.iter().any(|import| import.name == *name) {
                    found.push((contents.file.clone(), import.path.join("::")));
                }
            }
        }
        found.sort();
        found
    }

    /// Ties between the rooms of each folder, which are its files and folders. A file with a folder of the same name
    /// is the head of that folder.
    pub fn rooms(&self) -> BTreeMap<String, BTreeSet<Tie>> {
        let files: BTreeSet<&str> = self.modules.values().map(|contents| contents.file.as_str()).collect();
        let place = |file: &str| -> Vec<String> {
            let stem = file.trim_end_matches(".rs");
            let is_head = files.iter().any(|other| other.starts_with(&format!("{stem}/")));
            let stem = if is_head { format!("{stem}/mod") } else { stem.to_owned() };
            stem.split('/').map(str::to_owned).collect()
        };
        let mut folders: BTreeMap<String, BTreeSet<Tie>> = BTreeMap::new();
        for tie in self.ties() {
            let (from, to) = (place(&tie.from), place(&tie.to));
            let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            let rooms = (from[common].clone(), to[common].clone());
            let room = Tie { from: rooms.0, to: rooms.1, name: format!("{} ({})", tie.name, tie.from) };
            folders.entry(from[..common].join("/")).or_default().insert(room);
        }
        folders
    }

    fn resolve(&self, from: &Module, path: &[String], seen: &mut Vec<(Module, String)>) -> Option<Found> {
        let (mut module, rest) = match path.first()?.as_str() {
            "crate" | "layersweep" => (vec![], &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (parent(from), &path[1..]),
            _ => (from.clone(), path),
        };
        let is_rooted = rest.len() < path.len();
        let mut tops = vec![];
        for (place, name) in rest.iter().enumerate() {
            if name == "super" {
                module = parent(&module);
                continue;
            }
            if module.is_empty() && is_rooted {
                tops.push(name.clone());
            }
            let is_last = place + 1 == rest.len();
            let contents = self.modules.get(&module);
            let is_item = contents.is_some_and(|contents| contents.items.contains(name));
            let below = child(&module, name);
            if self.modules.contains_key(&below) && !(is_last && is_item) {
                module = below;
                continue;
            }
            let item = |is_certain| Found {
                file: contents.map(|contents| contents.file.clone()).unwrap_or_default(),
                item: Some(name.clone()),
                tops: vec![],
                is_certain,
            };
            let mut imported = || {
                let step = (module.clone(), name.clone());
                if seen.contains(&step) {
                    return None;
                }
                seen.push(step);
                self.imported(&module, name, &rest[place + 1..], seen)
            };
            let found = if is_item { Some(item(true)) } else { imported() };
            // In a known module: a name that is not defined there comes from a macro.
            let mut found = found.or_else(|| (is_rooted || place > 0).then(|| item(false)))?;
            found.tops.splice(0..0, tops);
            return Some(found);
        }
        let file = self.modules.get(&module).map(|contents| contents.file.clone()).unwrap_or_default();
        Some(Found { file, item: None, tops, is_certain: true })
    }

    /// Resolves `name` and the names after it by the imports of `module`.
    fn imported(
        &self,
        module: &Module,
        name: &String,
        after: &[String],
        seen: &mut Vec<(Module, String)>,
    ) -> Option<Found> {
        let uses = &self.modules.get(module)?.uses;
        if let Some(import) = uses.iter().find(|import| import.name == *name) {
            let path: Vec<String> = import.path.iter().chain(after).cloned().collect();
            return self.resolve(module, &path, seen);
        }
        uses.iter().filter(|import| import.name == "*").find_map(|import| {
            let (_, prefix) = import.path.split_last()?;
            let path: Vec<String> = prefix.iter().chain([name]).chain(after).cloned().collect();
            self.resolve(module, &path, seen).filter(|found| found.is_certain)
        })
    }
}

/// Returns the circles: sets of files in which each file needs all others, directly or through them.
pub fn circles(ties: &BTreeSet<Tie>) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for tie in ties {
        next.entry(&tie.from).or_default().insert(&tie.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next
        .keys()
        .map(|file| {
            let mut reached = BTreeSet::new();
            let mut open = vec![*file];
            while let Some(file) = open.pop() {
                for to in next.get(file).into_iter().flatten() {
                    if reached.insert(*to) {
                        open.push(to);
                    }
                }
            }
            (*file, reached)
        })
        .collect();
    let mut circles: Vec<BTreeSet<&str>> = vec![];
    for (file, all) in &reached {
        if all.contains(file) && !circles.iter().any(|circle| circle.contains(file)) {
            circles.push(
                all.iter()
                    .filter(|to| reached.get(**to).is_some_and(|back| back.contains(file)))
                    .copied()
                    .collect(),
            );
        }
    }
    circles
}

fn module_of(file: &str) -> Module {
    let mut names: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if names.len() == 1 && names[0] == "lib" || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

fn child(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn parent(module: &Module) -> Module {
    module[..module.len().saturating_sub(1)].to_vec()
}

struct Reading<'a> {
    modules: &'a mut HashMap<Module, Contents>,
    file: &'a str,
    with_tests: bool,
}

impl Reading<'_> {
    fn module(&mut self, path: &Module, tokens: TokenStream) {
        let mut contents = Contents { file: self.file.to_owned(), ..Contents::default() };
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let item = Item::first(rest);
            rest = &rest[item.len..];
            if item.is_test && !self.with_tests {
                if item.keyword == "mod" {
                    contents.tests.extend(item.name);
                }
                continue;
            }
            match (item.keyword.as_str(), item.name) {
                ("use", _) => {}
                ("mod", Some(name)) => {
                    if let Some(TokenTree::Group(body)) = item.tokens.last() {
                        self.module(&child(path, &name), body.stream());
                    }
                    continue;
                }
                // The definitions in a macro's arguments, as far as they are written out.
                ("", _) => {
                    for group in item.tokens.iter().filter_map(group) {
                        let inner: Vec<TokenTree> = group.clone().into_iter().collect();
                        contents.items.extend(defined(&inner));
                    }
                }
                (_, name) => contents.items.extend(name),
            }
            self.code(item.tokens, &mut contents);
        }
        self.modules.insert(path.clone(), contents);
    }

    /// The paths and imports among `tokens`, at any depth.
    fn code(&self, tokens: &[TokenTree], contents: &mut Contents) {
        let mut position = 0;
        while position < tokens.len() {
            if is_test(&tokens[position..]) && !self.with_tests {
                position += Item::first(&tokens[position..]).len;
                continue;
            }
            match &tokens[position] {
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    self.code(&inner, contents);
                    position += 1;
                }
                TokenTree::Ident(ident) if ident == "use" && !punct(tokens.get(position + 1), '<') => {
                    let end = position
                        + tokens[position..].iter().take_while(|token| !punct(Some(token), ';')).count();
                    let is_public = tokens[..position].iter().rev().find_map(|token| match token {
                        TokenTree::Ident(ident) => Some(ident == "pub"),
                        TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis => None,
                        _ => Some(false),
                    });
                    let is_public = is_public.unwrap_or_default();
                    tree(&tokens[position + 1..end], &[], is_public, &mut contents.uses);
                    position = end;
                }
                TokenTree::Ident(_) => {
                    let (path, len) = path(&tokens[position..]);
                    let before = position.checked_sub(1).and_then(|before| tokens.get(before));
                    let called = tokens.get(position + len).and_then(group).is_some();
                    // A field, a method, or a local value is not the name of an item.
                    let is_item = path.len() > 1 || called || !path[0].starts_with(char::is_lowercase);
                    if is_item && !punct(before, '.') {
                        contents.named.insert(path);
                    }
                    position += len;
                }
                _ => position += 1,
            }
        }
    }
}

/// One item, statement, field or arm at the start of some tokens.
struct Item<'a> {
    tokens: &'a [TokenTree],
    keyword: String,
    name: Option<String>,
    is_test: bool,
    len: usize,
}

impl<'a> Item<'a> {
    fn first(tokens: &'a [TokenTree]) -> Item<'a> {
        let is_test = is_test(tokens);
        let mut start = 0;
        while punct(tokens.get(start), '#') {
            start += if punct(tokens.get(start + 1), '!') { 3 } else { 2 };
        }
        let start = start.min(tokens.len());
        let keyword = tokens[start..]
            .iter()
            .take_while(|token| {
                matches!(token, TokenTree::Ident(_) | TokenTree::Group(_) | TokenTree::Literal(_))
            })
            .filter_map(ident)
            .find(|word| KEYWORDS.contains(&word.as_str()))
            .unwrap_or_default();
        let by_comma = keyword.is_empty();
        let by_braces = !["use", "const", "static", "type", "let"].contains(&keyword.as_str());
        let end = tokens[start..].iter().position(|token| match token {
            TokenTree::Group(group) => by_braces && group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';' || by_comma && punct.as_char() == ',',
            _ => false,
        });
        let len = end.map_or(tokens.len(), |end| start + end + 1);
        let tokens = &tokens[..len];
        Item { name: defined(tokens).next(), tokens, keyword, is_test, len }
    }
}

const KEYWORDS: [&str; 14] = [
    "use",
    "mod",
    "fn",
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "static",
    "impl",
    "macro_rules",
    "const",
    "let",
    "extern",
];

/// Returns the names after the keywords that define them.
fn defined(tokens: &[TokenTree]) -> impl Iterator<Item = String> {
    let defines = ["mod", "fn", "struct", "enum", "union", "trait", "type", "static", "const", "macro_rules"];
    tokens.iter().enumerate().filter_map(move |(position, token)| {
        if !defines.contains(&ident(token)?.as_str()) {
            return None;
        }
        let after = tokens[position + 1..].iter().find(|token| !punct(Some(token), '!'))?;
        ident(after).filter(|word| !["fn", "unsafe", "extern", "mut"].contains(&word.as_str()))
    })
}

/// True if an attribute at the start limits the following item to tests.
fn is_test(tokens: &[TokenTree]) -> bool {
    let mut position = 0;
    while punct(tokens.get(position), '#') {
        position += if punct(tokens.get(position + 1), '!') { 2 } else { 1 };
        let Some(attribute) = tokens.get(position).and_then(group) else {
            return false;
        };
        let text = attribute.to_string().replace(' ', "");
        if text.starts_with("cfg(test)") || text.starts_with("cfg(all(test") {
            return true;
        }
        position += 1;
    }
    false
}

/// Returns the names of the path at the start, and the number of its tokens.
fn path(tokens: &[TokenTree]) -> (Vec<String>, usize) {
    let mut names: Vec<String> = tokens.first().and_then(ident).into_iter().collect();
    let mut len = 1;
    while punct(tokens.get(len), ':') && punct(tokens.get(len + 1), ':') {
        let Some(name) = tokens.get(len + 2).and_then(ident) else {
            break;
        };
        names.push(name);
        len += 3;
    }
    (names, len)
}

/// The imports of one `use`, with its groups expanded.
fn tree(tokens: &[TokenTree], above: &[String], is_public: bool, uses: &mut Vec<Use>) {
    for tokens in tokens.split(|token| punct(Some(token), ',')) {
        let mut names = above.to_vec();
        let mut alias = None;
        let mut is_group = false;
        let mut tokens = tokens.iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => alias = tokens.next().and_then(ident),
                TokenTree::Ident(word) if word == "self" && !names.is_empty() => {}
                TokenTree::Ident(word) => names.push(word.to_string()),
                TokenTree::Punct(punct) if punct.as_char() == '*' => names.push("*".into()),
                TokenTree::Group(group) => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    tree(&inner, &names, is_public, uses);
                    is_group = true;
                }
                _ => {}
            }
        }
        if let (false, Some(last)) = (is_group, names.last()) {
            uses.push(Use { name: alias.unwrap_or(last.clone()), path: names, is_public });
        }
    }
}

fn punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn ident(token: &TokenTree) -> Option<String> {
    match token {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

fn group(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    }
}
