//! Holds the arrows of the house: which module may use which.
#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Every top-level module and what it may import. A leaf imports nothing of ours.
const ALLOWED: &[(&str, &[&str])] = &[
    ("clock_rng", &[]),
    ("error", &[]),
    ("ids", &["clock_rng"]),
    ("file_lock", &[]),
    ("ip_network", &[]),
    ("display", &[]),
    ("config", &["ip_network"]),
    ("logging", &["config"]),
    ("storage", &["clock_rng", "error", "ids", "file_lock"]),
    ("service", &["clock_rng", "error", "ids", "ip_network", "display", "storage"]),
    ("models", &["clock_rng"]),
    ("engine", &["clock_rng", "models", "display"]),
    ("catalog", &["clock_rng", "file_lock", "models", "display"]),
    ("calls", &["clock_rng", "catalog", "engine", "error", "ids", "display", "service"]),
    ("http", &["clock_rng", "calls", "engine", "error", "ids", "ip_network", "display", "service", "storage"]),
    ("control_socket", &["service", "storage"]),
    ("app", &["clock_rng", "calls", "config", "control_socket", "engine", "error", "http", "service", "storage"]),
    (
        "cli",
        &["clock_rng", "app", "catalog", "config", "control_socket", "ids", "display", "service", "storage", "logging"],
    ),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Names after `crate::`, braces included: `use crate::{a, b::c}` names `a` and `b`.
fn imports(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => names.extend(top_names(group)),
            None => names.extend(first_name(rest)),
        }
    }
    names
}

fn first_name(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// The first name of each entry at the outermost level of a `{…}` group.
fn top_names(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut entries = vec![String::new()];
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => entries.push(String::new()),
            c if depth == 0 => entries.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    entries.iter().filter_map(|entry| first_name(entry.trim())).collect()
}

#[test]
fn modules_import_only_what_lies_below_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let inside = file.strip_prefix(&root).unwrap();
        let module = inside.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if matches!(module, "lib" | "main") {
            continue;
        }
        let (_, allowed) = ALLOWED
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("give '{module}' a row in ALLOWED"));
        for name in imports(&fs::read_to_string(&file).unwrap()) {
            if name != module && !allowed.contains(&name.as_str()) {
                wrong.push(format!("{}: {module} must not import {name}", inside.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point the wrong way:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_has_no_cycle() {
    let mut done: Vec<&str> = Vec::new();
    while done.len() < ALLOWED.len() {
        let next = ALLOWED.iter().find(|(name, below)| !done.contains(name) && below.iter().all(|b| done.contains(b)));
        done.push(next.expect("a cycle among the rows that are left").0);
    }
}

#[test]
fn imports_are_read_in_every_form() {
    let text = "use crate::a::b;\nuse crate::{c, d::{e, f}, g};\n// crate::not\nlet x = crate::h::i();";
    let found = imports(text);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "c", "d", "g", "h"]);
}
