//! The imports between modules match docs/architecture.md, and there are no import cycles.
#![cfg(test)]

mod doc_paths;
mod family_page;
mod family_rows;
mod module_graph;
mod schema_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use module_graph::{Graph, Module, absolute, mentions, mentions_outside_tests, sources};

type Imports = BTreeMap<String, BTreeSet<String>>;

pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The names in backticks of a table cell.
fn code_names(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The rows of a table in docs/architecture.md, from top to bottom: names, and what they import. `subject` is the title of the first column.
fn documented(subject: &str) -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(repository("docs/architecture.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with(&format!("| {subject} |"))).skip(2);
    let mut actual = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let imports: BTreeSet<String> = code_names(cells[2]).collect();
        actual.extend(code_names(cells[1]).map(|name| (name, imports.clone())));
    }
    actual
}

/// The crates of the workspace: their names without the prefix `outpost-`, and their folders.
pub fn crates() -> Vec<(String, PathBuf)> {
    let folders = fs::read_dir(repository("crates")).unwrap().map(|entry| entry.unwrap().path());
    let named = folders.map(|folder| (folder.file_name().unwrap().to_str().unwrap().to_owned(), folder));
    named.chain([("outpost".to_owned(), repository(""))]).collect()
}

/// The crates of the workspace that a crate depends on, except in tests.
fn dependencies(folder: &Path) -> BTreeSet<String> {
    let manifest: toml::Table = fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
    let names = manifest["dependencies"].as_table().unwrap().keys();
    names.filter_map(|name| name.strip_prefix("outpost-")).map(str::to_owned).collect()
}

/// The imports of each module at the top of `src`, including its unit tests.
fn imported(sources: &BTreeMap<Module, String>) -> Imports {
    let mut actual = Imports::new();
    for (file, text) in sources {
        let targets = mentions(text).into_iter().filter_map(|mention| absolute(file, &mention.path, |_| false));
        let targets = targets.filter_map(|path| path.into_iter().next());
        let targets = targets.filter(|name| *name != file[0] && sources.keys().any(|other| other[0] == *name));
        actual.entry(file[0].clone()).or_default().extend(targets);
    }
    actual
}

/// Fails with the rows of a table that differ from what the sources say.
fn assert_same(documented: &Imports, actual: &Imports) {
    let rows = |imports: &Imports| -> BTreeSet<String> {
        imports.iter().map(|(name, imports)| format!("{name}: {imports:?}")).collect()
    };
    let (documented, actual) = (rows(documented), rows(actual));
    let wrong =
        (actual.difference(&documented).collect::<Vec<_>>(), documented.difference(&actual).collect::<Vec<_>>());
    assert!(documented == actual, "actual and documented rows of docs/architecture.md that differ: {wrong:#?}");
}

fn assert_only_rows_below(rows: &[(String, BTreeSet<String>)]) {
    for (at, (name, imports)) in rows.iter().enumerate() {
        let below: BTreeSet<_> = rows[at + 1..].iter().map(|(name, _)| name.clone()).collect();
        let not_below: Vec<_> = imports.difference(&below).collect();
        assert!(
            not_below.is_empty(),
            "'{name}' imports {not_below:?}, which are not in rows below it in docs/architecture.md"
        );
    }
}

#[test]
fn crates_depend_on_what_the_architecture_page_lists() {
    let rows = documented("crate");
    let actual = crates().into_iter().map(|(name, folder)| (name, dependencies(&folder))).collect();
    assert_same(&rows.iter().cloned().collect(), &actual);
    assert_only_rows_below(&rows);
}

#[test]
fn modules_import_what_the_architecture_page_lists() {
    let rows = documented("module");
    assert_same(&rows.iter().cloned().collect(), &imported(&sources(&repository("src"))));
    assert_only_rows_below(&rows);
}

#[test]
fn the_diagram_shows_only_imports_of_the_tables() {
    let text = fs::read_to_string(repository("docs/architecture.md")).unwrap();
    let mut imports: Imports = documented("crate").into_iter().collect();
    let dependencies = imports.remove("outpost").unwrap();
    imports.extend(documented("module").into_iter().map(|(name, imports)| (name, &imports | &dependencies)));
    let diagram = text.split("```").nth(1).unwrap();
    for line in diagram.lines() {
        let names: Vec<&str> = line.split('→').map(str::trim).collect();
        for pair in names.windows(2).filter(|pair| pair[0] != "main") {
            assert!(
                imports[pair[0]].contains(pair[1]),
                "{} → {} is in the diagram but not in the tables",
                pair[0],
                pair[1]
            );
        }
    }
}

#[test]
fn files_have_no_import_cycles() {
    let mut arrows = Vec::new();
    for (name, folder) in crates() {
        let graph = Graph::new(&sources(&folder.join("src")));
        let path = |module: &Module| format!("{name}/{}", module.join("/"));
        for group in graph.cycles() {
            for file in &group {
                let targets: Vec<_> = graph.arrows[file].intersection(&group).map(path).collect();
                arrows.push(format!("{} → {}", path(file), targets.join(", ")));
            }
            arrows.push(String::new());
        }
    }
    assert!(arrows.is_empty(), "import cycle between files:\n{}", arrows.join("\n"));
}

fn paths(code: &str) -> Vec<String> {
    mentions(code).iter().map(|mention| mention.path.join("::")).collect()
}

#[test]
fn imports_are_read_in_every_form() {
    let code =
        "use crate::a::b; use super::{c as other, d::{self, e::f}};\nlet x = crate::g::h(); child::i::<crate::J>();";
    assert_eq!(
        paths(code),
        ["crate::a::b", "super::c", "super::d", "super::d::e::f", "crate::g::h", "child::i", "crate::J"]
    );
    let reexports = mentions("pub use a::b as c; pub(in crate::x) use d::e; pub(in crate::x) fn f() {} use g::h;");
    let reexports: Vec<_> =
        reexports.iter().filter(|mention| mention.is_reexport).map(|mention| mention.name.as_str()).collect();
    assert_eq!(reexports, ["c", "e"]);
}

#[test]
fn comments_literals_and_tests_are_not_imports() {
    let code = r###"
        // use crate::a;
        /* use crate::b; */
        const TEXT: &str = "\" use crate::c; //"; const RAW: &str = r#" "use crate::d;" "#;
        fn quote<'a>(c: &'a char) -> bool { matches!(c, '"' | '\'' | '{') }
        #[cfg(test)]
        mod tests { use crate::e; fn nested() {} }
        #[cfg(test)]
        use crate::f;
        fn captures<'a>(x: &'a str) -> impl Iterator + use<'a> { x; x }
        use crate::g;
    "###;
    let actual = mentions_outside_tests(code);
    assert_eq!(actual.iter().map(|mention| mention.path.join("::")).collect::<Vec<_>>(), ["crate::g"]);
}

#[test]
fn cycles_are_found_through_reexports_and_supers() {
    let sources = |files: &[(&str, &str)]| -> BTreeMap<Module, String> {
        files.iter().map(|(path, text)| (path.split('/').map(str::to_owned).collect(), (*text).to_owned())).collect()
    };
    let tree = "mod one; pub mod two; pub use one::One;";
    let circle = sources(&[
        ("a", tree),
        ("a/one", "use super::two::Two; pub struct One;"),
        ("a/two", "fn f(_: crate::a::One) {} pub struct Two;"),
        ("b", "use crate::a::One;"),
    ]);
    let actual = Graph::new(&circle).cycles();
    let group = BTreeSet::from(["one", "two"].map(|name| vec!["a".to_owned(), name.to_owned()]));
    assert_eq!(actual, BTreeSet::from([group]));
    let line = sources(&[("a", tree), ("a/one", "pub struct One;"), ("a/two", "use crate::a::One;")]);
    assert!(Graph::new(&line).cycles().is_empty());
}
