//! The imports between modules match docs/architecture.md, and there are no import cycles.
#![cfg(test)]

mod module_graph;
mod schema_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use module_graph::{Graph, Module, absolute, mentions, sources, tokens, without_tests};

type Imports = BTreeMap<String, BTreeSet<String>>;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The names in backticks of a table cell.
fn code_names(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The rows of the module table in docs/architecture.md, from top to bottom: modules and their imports.
fn documented() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(folder("docs/architecture.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| module |")).skip(2);
    let mut actual = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let imports: BTreeSet<String> = code_names(cells[2]).collect();
        actual.extend(code_names(cells[1]).filter(|name| !name.ends_with('/')).map(|name| (name, imports.clone())));
    }
    actual
}

/// The imports of each top-level module, including its unit tests.
fn imported(sources: &BTreeMap<Module, String>) -> Imports {
    let mut actual = Imports::new();
    for (file, text) in sources {
        let targets =
            mentions(&tokens(text)).into_iter().filter_map(|mention| absolute(file, &mention.path, |_| false));
        let targets = targets.filter_map(|path| path.into_iter().next());
        let targets = targets.filter(|name| *name != file[0] && sources.keys().any(|other| other[0] == *name));
        actual.entry(file[0].clone()).or_default().extend(targets);
    }
    actual
}

#[test]
fn modules_import_exactly_what_the_architecture_page_lists() {
    let documented: Imports = documented().into_iter().collect();
    let imported = imported(&sources(&folder("src")));
    let rows = |imports: &Imports| -> BTreeSet<String> {
        imports.iter().map(|(module, imports)| format!("{module}: {imports:?}")).collect()
    };
    let (documented_imports, actual) = (rows(&documented), rows(&imported));
    let wrong = (
        actual.difference(&documented_imports).collect::<Vec<_>>(),
        documented_imports.difference(&actual).collect::<Vec<_>>(),
    );
    assert!(documented_imports == actual, "imports that differ from docs/architecture.md: {wrong:#?}");
}

#[test]
fn modules_import_only_from_rows_below_them() {
    let rows = documented();
    for (at, (module, imports)) in rows.iter().enumerate() {
        let below: BTreeSet<_> = rows[at + 1..].iter().map(|(name, _)| name.clone()).collect();
        let not_below: Vec<_> = imports.difference(&below).collect();
        assert!(
            not_below.is_empty(),
            "'{module}' imports {not_below:?}, which are not in rows below it in docs/architecture.md"
        );
    }
}

#[test]
fn the_diagram_shows_only_imports_of_the_table() {
    let text = fs::read_to_string(folder("docs/architecture.md")).unwrap();
    let imports: Imports = documented().into_iter().collect();
    let diagram = text.split("```").nth(1).unwrap();
    for line in diagram.lines() {
        let names: Vec<&str> = line.split('→').map(str::trim).collect();
        for pair in names.windows(2).filter(|pair| pair[0] != "main" && pair[1] != "kernels") {
            assert!(
                imports[pair[0]].contains(pair[1]),
                "{} → {} is in the diagram but not in the table",
                pair[0],
                pair[1]
            );
        }
    }
}

#[test]
fn files_have_no_import_cycles() {
    let graph = Graph::new(&sources(&folder("src")));
    let name = |module: &Module| module.join("/");
    let mut arrows = Vec::new();
    for group in graph.cycles() {
        for file in &group {
            let targets: Vec<_> = graph.arrows[file].intersection(&group).map(name).collect();
            arrows.push(format!("{} → {}", name(file), targets.join(", ")));
        }
        arrows.push(String::new());
    }
    assert!(arrows.is_empty(), "import cycle between files:\n{}", arrows.join("\n"));
}

fn paths(code: &str) -> Vec<String> {
    mentions(&tokens(code)).iter().map(|mention| mention.path.join("::")).collect()
}

#[test]
fn imports_are_read_in_every_form() {
    let code =
        "use crate::a::b; use super::{c as other, d::{self, e::f}};\nlet x = crate::g::h(); child::i::<crate::J>();";
    assert_eq!(
        paths(code),
        ["crate::a::b", "super::c", "super::d", "super::d::e::f", "crate::g::h", "child::i", "crate::J"]
    );
    let reexports =
        mentions(&tokens("pub use a::b as c; pub(in crate::x) use d::e; pub(in crate::x) fn f() {} use g::h;"));
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
    let actual = mentions(&without_tests(&tokens(code)));
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
