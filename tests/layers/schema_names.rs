//! Every type has its own name in `/openapi.json`: the schema of a second one would replace that of the first.

use std::collections::BTreeMap;

use crate::module_graph::sources;
use crate::repository;

/// The names under which the types of a file are in the document.
fn schema_names(text: &str) -> Vec<String> {
    let (mut names, mut is_schema, mut renamed) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[derive(") {
            (is_schema, renamed) = (line.contains("ToSchema"), None);
        } else if let Some((_, rest)) = line.split_once("schema(as = ") {
            renamed = rest.split([',', ')']).next().map(str::to_owned);
        } else if let Some(name) = type_name(line)
            && std::mem::take(&mut is_schema)
        {
            names.push(renamed.take().unwrap_or(name));
        }
    }
    names
}

/// The name of the type that a line defines.
fn type_name(line: &str) -> Option<String> {
    let line = line.trim_start_matches("pub ");
    let rest = line.strip_prefix("struct ").or_else(|| line.strip_prefix("enum "))?;
    rest.split(|next: char| !next.is_alphanumeric()).next().map(str::to_owned)
}

#[test]
fn types_have_different_names_in_the_openapi_document() {
    let mut files = BTreeMap::<String, Vec<String>>::new();
    for (module, text) in sources(&repository("src")) {
        for name in schema_names(&text) {
            files.entry(name).or_default().push(module.join("/"));
        }
    }
    assert!(files.len() > 100, "the types are found");
    files.retain(|_, files| files.len() > 1);
    assert!(files.is_empty(), "rename one of each with #[schema(as = …)]: {files:#?}");
}

#[test]
fn names_are_read_from_attributes() {
    let text = "#[derive(Serialize, utoipa::ToSchema)]\n#[schema(as = Other, title = \"x\")]\npub struct One<T> {\n}\n\
        #[derive(Debug)]\nstruct Two;\n#[derive(ToSchema)]\n#[serde(untagged)]\nenum Three {\n}\n";
    assert_eq!(schema_names(text), ["Other", "Three"]);
}
