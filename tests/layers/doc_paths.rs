//! Every file and every module that the documentation names exists.

use std::collections::BTreeMap;
use std::fs;

use crate::module_graph::{Module, sources};
use crate::{crates, repository};

/// The folders whose files the documentation names by their path from the repository's root.
const FOLDERS: [&str; 10] =
    [".ci/", ".github/", "assets/", "benches/", "crates/", "fuzz/", "packaging/", "src/", "tests/", "tools/"];

/// The code that pages invent as an example.
const EXAMPLE: &str = "widgets";

/// The pages, and what stands in backticks in each, outside of code blocks.
fn code_spans() -> Vec<(String, String)> {
    let docs = fs::read_dir(repository("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain(["README.md", "CONTRIBUTING.md"].map(repository));
    let mut spans = Vec::new();
    for page in pages.filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let name = page.file_name().unwrap().to_str().unwrap().to_owned();
        for prose in fs::read_to_string(&page).unwrap().split("```").step_by(2) {
            spans.extend(prose.split('`').skip(1).step_by(2).map(|span| (name.clone(), span.to_owned())));
        }
    }
    spans
}

/// The source of each module of all crates. A module of a crate in `crates/` begins with the name of the crate, and also stands
/// without it if the program re-exports it under its own name.
fn modules() -> BTreeMap<Module, String> {
    let mut modules = BTreeMap::new();
    for (name, folder) in crates() {
        let root = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        modules.insert(vec![name.clone()], root);
        for (module, text) in sources(&folder.join("src")) {
            modules.insert([vec![name.clone()], module].concat(), text);
        }
    }
    modules
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|found| found == word)
}

/// True if the first names of the path are a module, and the sources of that module or of those below it have the other names.
/// A path that begins with a type needs one file with all its names.
fn resolves(modules: &BTreeMap<Module, String>, path: &[String]) -> bool {
    if path[0].starts_with(char::is_uppercase) {
        return modules.values().any(|text| path.iter().all(|name| has_word(text, name)));
    }
    (1..=path.len()).rev().any(|length| {
        let (module, items) = path.split_at(length);
        modules.keys().filter(|known| known.ends_with(module)).any(|known| {
            let below = || modules.iter().filter(|(other, _)| other.starts_with(known));
            items.iter().all(|item| below().any(|(_, text)| has_word(text, item)))
        })
    })
}

/// The names of a path such as `service::usage::Meter`, or of an item such as `Meter::commit()`.
fn rust_path(span: &str) -> Option<Vec<String>> {
    let path: Vec<String> = span.trim_end_matches("()").split("::").map(str::to_owned).collect();
    let is_name =
        |name: &String| !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    (path.len() > 1 && path.iter().all(is_name)).then_some(path)
}

#[test]
fn files_that_the_documentation_names_exist() {
    let spans = code_spans();
    let is_path = |span: &str| FOLDERS.iter().any(|folder| span.starts_with(folder) && span != *folder);
    let paths: Vec<_> = spans.iter().filter(|(_, span)| is_path(span)).collect();
    assert!(paths.len() > 50, "the pages are read");
    let is_pattern = |span: &str| span.contains(EXAMPLE) || span.contains(['*', '<', ' ', '…']);
    let missing: Vec<_> = paths.iter().filter(|(_, span)| !is_pattern(span) && !repository(span).exists()).collect();
    assert!(missing.is_empty(), "these files do not exist: {missing:#?}");
}

#[test]
fn modules_and_items_that_the_documentation_names_exist() {
    let modules = modules();
    let spans = code_spans();
    let paths: Vec<_> = spans.iter().filter_map(|(page, span)| Some((page, rust_path(span)?))).collect();
    assert!(paths.len() > 100, "the pages are read");
    let is_other = |path: &[String]| ["serde", "std"].contains(&&*path[0]);
    let missing: Vec<_> = paths.iter().filter(|(_, path)| !is_other(path) && !resolves(&modules, path)).collect();
    let missing: Vec<_> = missing.iter().map(|(page, path)| format!("{page}: {}", path.join("::"))).collect();
    assert!(missing.is_empty(), "these modules or items do not exist: {missing:#?}");
}

#[test]
fn a_path_resolves_only_to_names_in_its_module() {
    let module = |path: &str, text: &str| (path.split('/').map(str::to_owned).collect::<Module>(), text.to_owned());
    let modules = BTreeMap::from([
        module("engine", ""),
        module("engine/text", ""),
        module("engine/text/stop", "fn ends()"),
        module("hub", ""),
    ]);
    for (path, expected) in [
        ("text::stop", true),
        ("engine::text::ends", true),
        ("stop::ends", true),
        ("hub::stop", false),
        ("stop::end", false),
        ("other::ends", false),
    ] {
        assert_eq!(resolves(&modules, &rust_path(path).unwrap()), expected, "{path}");
    }
}
