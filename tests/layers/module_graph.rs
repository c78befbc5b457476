//! The imports between the files of a crate, read from its sources.
//!
//! Both `use` trees and paths in code are imports. `pub use` is a re-export, not an import. An import through re-exports
//! is resolved to the file that defines the item. Code under `#[cfg(test)]` and files named `tests` are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

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

/// Every path in the source `text`, including its tests.
pub fn mentions(text: &str) -> Vec<Mention> {
    let tokens = tokens(text);
    mentions_in(&tokens.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Every path in the source `text` outside items under `#[cfg(test)]`.
pub fn mentions_outside_tests(text: &str) -> Vec<Mention> {
    let tokens = tokens(text);
    mentions_in(&without_tests(&tokens.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// The names, `::` and other characters of Rust source, without comments and literals.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    flatten(text.parse().unwrap(), &mut found);
    found
}

fn flatten(stream: TokenStream, found: &mut Vec<String>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                found.push(open.to_owned());
                flatten(group.stream(), found);
                found.push(close.to_owned());
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' && found.last().is_some_and(|last| last == ":+") => {
                *found.last_mut().unwrap() = "::".to_owned();
            }
            // The first of two that stand together.
            TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint => {
                found.push(":+".to_owned());
            }
            TokenTree::Punct(punct) => found.push(punct.to_string()),
            TokenTree::Ident(name) => found.push(name.to_string()),
            TokenTree::Literal(_) => {}
        }
    }
}

/// Removes every item under `#[cfg(test)]`: up to its `;`, or the end of its block.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
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

fn mentions_in(tokens: &[&str]) -> Vec<Mention> {
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
        let files: Vec<_> = files.map(|(module, text)| (module.clone(), mentions_outside_tests(text))).collect();
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
