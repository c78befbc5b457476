//! The imports between the files of a crate, read from its sources.
//!
//! Both `use` trees and paths in code are imports. `pub use` is a re-export, not an import. An import through re-exports
//! is resolved to the file that defines the item. Code under `#[cfg(test)]` and files named `tests` are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The path of a module from the crate's root, such as `storage/writer`.
pub type Module = Vec<String>;

/// A path in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Mention {
    pub path: Vec<String>,
    /// The name that the `use` item introduces.
    pub name: String,
    pub is_reexport: bool,
}

/// Every `.rs` file below `root` except the crate's own roots.
pub fn sources(root: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    collect(root, &mut Vec::new(), &mut found);
    found.retain(|module, _| !["lib", "main"].contains(&module[0].as_str()));
    found
}

fn collect(folder: &Path, module: &mut Module, found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_rust = path.extension().is_some_and(|ending| ending == "rs");
        module.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
        if path.is_dir() {
            collect(&path, module, found);
        } else if is_rust {
            let end = module.len() - usize::from(module.last().unwrap() == "mod");
            found.insert(module[..end].to_vec(), fs::read_to_string(&path).unwrap());
        }
        module.pop();
    }
}

/// The names, `::` and other characters of Rust source, without comments and literals.
pub fn tokens(mut text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    while let Some(first) = text.chars().next() {
        let name = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let after_name = text[name..].trim_start_matches('#');
        let mut length = first.len_utf8();
        if text.starts_with("//") {
            length = text.find('\n').unwrap_or(text.len());
        } else if text.starts_with("/*") {
            length = text.find("*/").map_or(text.len(), |end| end + 2);
        } else if ["r", "br"].contains(&&text[..name]) && after_name.starts_with('"') {
            let hashes = text.len() - name - after_name.len();
            let end = format!("\"{}", "#".repeat(hashes));
            length = text.len() - after_name.len() + 1 + after_name[1..].find(&end).unwrap() + end.len();
        } else if first == '"' {
            length = literal_end(text, '"');
        } else if text.starts_with("'\\") || first == '\'' && text.chars().nth(2) == Some('\'') {
            length = literal_end(text, '\'');
        } else if name > 0 {
            length = name;
            found.push(&text[..name]);
        } else if text.starts_with("::") {
            length = 2;
            found.push("::");
        } else if !first.is_whitespace() {
            found.push(&text[..length]);
        }
        text = &text[length..];
    }
    found
}

/// The length of the literal at the start of `text`, which ends with an unescaped `quote`.
fn literal_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text[1..].find(|c| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Removes every item under `#[cfg(test)]`: up to its `;`, or the end of its block.
pub fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    let mut code_tokens = Vec::new();
    let mut rest = tokens;
    while let Some((first, following)) = rest.split_first() {
        let Some(item) = rest.strip_prefix(&["#", "[", "cfg", "(", "test", ")", "]"]) else {
            code_tokens.push(*first);
            rest = following;
            continue;
        };
        let mut depth = 0;
        let end = item.iter().position(|token| {
            depth += i32::from(*token == "{") - i32::from(*token == "}");
            depth == 0 && ["}", ";"].contains(token)
        });
        rest = &item[end.map_or(item.len(), |end| end + 1)..];
    }
    code_tokens
}

fn is_name(token: &str) -> bool {
    token.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Every path in the code.
pub fn mentions(tokens: &[&str]) -> Vec<Mention> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(token) = tokens.get(at) {
        at += 1;
        match *token {
            // `use<'a>` in a type is not an import.
            "use" if tokens.get(at) != Some(&"<") => {
                let visibility = &tokens[..at - 1];
                let is_reexport = match visibility {
                    [.., "pub"] => true,
                    [.., ")"] => visibility.rsplit(|token| *token == "(").nth(1).and_then(<[_]>::last) == Some(&"pub"),
                    _ => false,
                };
                let mut items = Vec::new();
                use_tree(tokens, &mut at, Vec::new(), &mut items);
                found.extend(items.into_iter().map(|(path, name)| Mention { path, name, is_reexport }));
            }
            name if is_name(name) && tokens.get(at) == Some(&"::") && !tokens[..at - 1].ends_with(&["::"]) => {
                let is_visibility = tokens[..at - 1].ends_with(&["(", "in"]);
                let mut path = vec![name.to_owned()];
                while let Some(["::", next]) = tokens.get(at..at + 2).filter(|pair| is_name(pair[1])) {
                    path.push((*next).to_owned());
                    at += 2;
                }
                if !is_visibility {
                    found.push(Mention { name: path.last().unwrap().clone(), path, is_reexport: false });
                }
            }
            _ => {}
        }
    }
    found
}

/// Reads the `use` tree that starts at `at`: each path, and the name that it introduces.
fn use_tree(tokens: &[&str], at: &mut usize, mut path: Vec<String>, found: &mut Vec<(Vec<String>, String)>) {
    let mut alias = None;
    while let Some(token) = tokens.get(*at).filter(|token| ![",", "}", ";"].contains(token)) {
        *at += 1;
        match *token {
            "::" => {}
            "{" => {
                while tokens[*at] != "}" {
                    use_tree(tokens, at, path.clone(), found);
                    *at += usize::from(tokens[*at] == ",");
                }
                *at += 1;
                return;
            }
            "as" => {
                alias = Some(tokens[*at].to_owned());
                *at += 1;
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
    }
    let name = alias.or_else(|| path.last().cloned()).unwrap_or_default();
    found.push((path, name));
}

/// The path from the crate's root. `None` for a path of another crate. `is_child` tells whether a name is a child module.
pub fn absolute(module: &[String], path: &[String], is_child: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (0, &path[1..]),
        "self" => (module.len(), &path[1..]),
        "super" => (module.len().checked_sub(supers)?, &path[supers..]),
        name if is_child(name) => (module.len(), path),
        _ => return None,
    };
    Some([&module[..base], rest].concat())
}

/// The imports between files.
pub struct Graph {
    reexports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    pub arrows: BTreeMap<Module, BTreeSet<Module>>,
}

impl Graph {
    pub fn new(sources: &BTreeMap<Module, String>) -> Self {
        let files = sources.iter().filter(|(module, _)| !module.iter().any(|name| name == "tests"));
        let files: Vec<_> =
            files.map(|(module, text)| (module.clone(), mentions(&without_tests(&tokens(text))))).collect();
        let reexports = files.iter().map(|(module, mentions)| {
            let reexports = mentions.iter().filter(|mention| mention.is_reexport);
            (module.clone(), reexports.map(|mention| (mention.name.clone(), mention.path.clone())).collect())
        });
        let mut graph = Self { reexports: reexports.collect(), arrows: BTreeMap::new() };
        for (module, mentions) in files {
            let imports = mentions.iter().filter(|mention| !mention.is_reexport);
            let targets = imports.filter_map(|mention| graph.defining_file(&module, &mention.path));
            let targets = targets.filter(|target| *target != module).collect();
            graph.arrows.insert(module, targets);
        }
        graph
    }

    /// The file that defines the item that `module` refers to as `path`.
    fn defining_file(&self, module: &Module, path: &[String]) -> Option<Module> {
        let path = absolute(module, path, |name| self.has(&[module, [name.to_owned()].as_slice()].concat()))?;
        let depth = (0..=path.len()).rev().find(|depth| self.has(&path[..*depth]))?;
        let (file, rest) = path.split_at(depth);
        let file = file.to_vec();
        let reexport = rest.first().and_then(|name| self.reexports[&file].get(name));
        let target = reexport.and_then(|target| self.defining_file(&file, &[target, &rest[1..]].concat()));
        Some(target.unwrap_or(file))
    }

    fn has(&self, module: &[String]) -> bool {
        self.reexports.contains_key(module)
    }

    /// The groups of files that import each other directly or indirectly.
    pub fn cycles(&self) -> BTreeSet<BTreeSet<Module>> {
        let reachable: BTreeMap<&Module, BTreeSet<&Module>> =
            self.arrows.keys().map(|module| (module, self.reachable(module))).collect();
        let groups = reachable.iter().map(|(module, below)| {
            let group = below.iter().filter(|other| reachable[*other].contains(module));
            group.map(|other| (*other).clone()).collect::<BTreeSet<_>>()
        });
        groups.filter(|group| !group.is_empty()).collect()
    }

    fn reachable<'g>(&'g self, start: &'g Module) -> BTreeSet<&'g Module> {
        let (mut visited, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(module) = open.pop() {
            open.extend(self.arrows[module].iter().filter(|target| visited.insert(*target)));
        }
        visited
    }
}
