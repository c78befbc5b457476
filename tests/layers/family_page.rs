//! The table of families in docs/models.md is generated from the table in code.
//!
//! Architectures, model types and the modules of adapters are read from the families that the decoder supports. [`ROWS`] has the rest.

use std::collections::BTreeSet;
use std::{env, fs};

use outpost::models::decoder_family::{DecoderFamily, FAMILIES};
use outpost::models::peft::Module;
use outpost::models::safetensors::MULTIMODAL_TYPES;

use crate::family_rows::{CHANNELS, FamilyRow, ROWS};
use crate::repository;

const PAGE: &str = "docs/models.md";

/// The table is between these lines of the page.
const BEGIN: &str = "<!-- The table of families is generated: OUTPOST_UPDATE_DOCS=1 cargo test --test layers -->";
const END: &str = "<!-- End of the table of families -->";

/// With this variable, the test writes the table instead of comparing it.
const UPDATE: &str = "OUTPOST_UPDATE_DOCS";

const HEADER: &str = "\
| family | GGUF (`general.architecture`) | safetensors (`model_type`) | tool calls | reasoning | adapters and training | not supported |
|---|---|---|---|---|---|---|
";

/// Modules that the page names together: what they are called, their names, and the names of those that are fused in some families.
const MODULE_GROUPS: [(&str, &[&str], &str); 2] = [
    ("attention", &["q_proj", "k_proj", "v_proj", "o_proj"], "qkv_proj"),
    ("feed-forward", &["gate_proj", "up_proj", "down_proj"], "gate_up_proj"),
];

/// The name of a family's entry in [`FamilyRow::entries`].
fn entry_name(family: &DecoderFamily) -> &'static str {
    family.model_types.first().copied().unwrap_or(family.name)
}

fn families(row: &FamilyRow) -> Vec<&'static DecoderFamily> {
    let family = |name: &&str| {
        let found = FAMILIES.iter().find(|family| entry_name(family) == *name);
        found.unwrap_or_else(|| panic!("{name} in tests/layers/family_rows.rs is not an entry of FAMILIES"))
    };
    row.entries.iter().map(family).collect()
}

/// Whether the text model of this multimodal model type belongs to the family.
fn is_text_part(family: &DecoderFamily, multimodal_type: &str) -> bool {
    let is_named = multimodal_type.strip_suffix("_vision") == Some(family.name) || family.name == multimodal_type;
    is_named || family.model_types.contains(&format!("{multimodal_type}_text").as_str())
}

/// Whether every feed-forward network is a mixture of experts, which adapters do not change.
fn has_only_experts(family: &DecoderFamily) -> bool {
    let has_others = family.experts_beside_dense
        || family.experts.is_none_or(|rules| rules.shared.is_some() || rules.leading_dense_layers > 0);
    !has_others
}

fn is_adaptable(family: &DecoderFamily, module: &Module) -> bool {
    let is_feed_forward = module.stems.iter().any(|stem| stem.starts_with("ffn_"));
    !(is_feed_forward && has_only_experts(family))
}

/// The modules that adapters of these families may target, by the last part of their names.
fn modules(families: &[&DecoderFamily]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for family in families {
        for module in family.adapter_modules.iter().filter(|module| is_adaptable(family, module)) {
            let name = module.path.rsplit('.').next().unwrap();
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let mut cell = Vec::new();
    for (title, members, fused) in MODULE_GROUPS {
        if members.iter().all(|member| names.contains(member)) {
            names.retain(|name| !members.contains(name) && *name != fused);
            cell.push(title.to_owned());
        }
    }
    cell.extend(names.into_iter().map(code));
    cell.join(", ")
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// Different names as code, in their order.
fn code_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut seen = BTreeSet::new();
    let names: Vec<String> = names.filter(|name| seen.insert(*name)).map(code).collect();
    names.join(", ")
}

/// What the models of a row have, with the models if these are not all.
fn qualified(items: &[(&str, &str)], format: impl Fn(&str) -> String) -> String {
    let item = |(name, models): &(&str, &str)| match *models {
        "" => format(name),
        models => format!("{} ({models})", format(name)),
    };
    items.iter().map(item).collect::<Vec<_>>().join(", ")
}

fn reasoning(marker: &str) -> String {
    match marker {
        CHANNELS => format!("[{CHANNELS}](reasoning.md#channels-of-gpt-oss)"),
        marker => code(marker),
    }
}

fn line(row: &FamilyRow) -> String {
    let families = families(row);
    let multimodal =
        MULTIMODAL_TYPES.into_iter().filter(|kind| families.iter().any(|family| is_text_part(family, kind)));
    let model_types = families.iter().flat_map(|family| family.model_types).copied().chain(multimodal);
    let cells = [
        row.models.to_owned(),
        code_list(families.iter().map(|family| family.name)),
        code_list(model_types),
        qualified(row.calls, str::to_owned),
        qualified(row.reasoning, reasoning),
        modules(&families),
        row.not_supported.to_owned(),
    ];
    let cells = cells.map(|cell| if cell.is_empty() { "—".to_owned() } else { cell });
    format!("| {} |\n", cells.join(" | "))
}

/// The page with the table generated anew.
fn updated(page: &str) -> String {
    let (before, rest) = page.split_once(BEGIN).expect("the line before the table is in docs/models.md");
    let (_, after) = rest.split_once(END).expect("the line after the table is in docs/models.md");
    let table: String = ROWS.iter().map(line).collect();
    format!("{before}{BEGIN}\n\n{HEADER}{table}\n{END}{after}")
}

/// The first cells of the rows below a header, with their pipes as they are shown.
fn first_cells(page: &str, header: &str) -> Vec<String> {
    let text = fs::read_to_string(repository(page)).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with(header)).skip(2);
    let cell = |row: &str| row.replace("\\|", "\0").split('|').nth(1).unwrap().trim().replace('\0', "|");
    let cells: Vec<String> = rows.take_while(|row| row.starts_with('|')).map(cell).collect();
    assert!(!cells.is_empty(), "{page} has a table that begins with {header}");
    cells
}

#[test]
fn the_table_of_families_is_that_of_the_code() {
    let path = repository(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let expected = updated(&page);
    if env::var_os(UPDATE).is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    let is_missing = |line: &&str| !page.lines().any(|other| other == *line);
    let missing: Vec<&str> = expected.lines().filter(is_missing).collect();
    assert!(
        page == expected,
        "the table in {PAGE} is out of date; run {UPDATE}=1 cargo test --test layers to write it. These lines are missing: {missing:#?}"
    );
}

#[test]
fn every_family_is_in_one_row_of_the_table() {
    let mut documented: Vec<&str> = ROWS.iter().flat_map(|row| row.entries).copied().collect();
    let mut supported: Vec<&str> = FAMILIES.iter().map(entry_name).collect();
    documented.sort_unstable();
    supported.sort_unstable();
    assert_eq!(documented, supported, "the rows of tests/layers/family_rows.rs, and the entries of FAMILIES");
    for kind in MULTIMODAL_TYPES {
        let rows = ROWS.iter().filter(|row| families(row).into_iter().any(|family| is_text_part(family, kind)));
        assert_eq!(rows.count(), 1, "rows with the family of the part for texts of {kind}");
    }
}

#[test]
fn formats_and_markers_of_families_are_those_of_their_pages() {
    let formats = first_cells("docs/structured-output.md", "| format | detected by |");
    let formats: BTreeSet<&str> = formats.iter().flat_map(|cell| cell.split(", ")).collect();
    let markers = first_cells("docs/reasoning.md", "| markers | families |");
    for row in ROWS {
        for (format, _) in row.calls {
            assert!(formats.contains(format), "{format} of {}", row.models);
        }
        for (marker, _) in row.reasoning {
            let start = if *marker == CHANNELS { CHANNELS.to_owned() } else { format!("`{marker}`") };
            assert!(markers.iter().any(|cell| cell.starts_with(&start)), "{marker} of {}", row.models);
        }
    }
}

#[test]
fn experts_are_not_among_the_modules_of_adapters() {
    let cell = |name: &str| {
        let family = FAMILIES.iter().find(|family| entry_name(family) == name).unwrap();
        modules(&[family])
    };
    assert_eq!(cell("llama"), "attention, feed-forward");
    assert_eq!(cell("gpt_oss"), "attention");
    assert_eq!(cell("deepseek_v3"), "feed-forward, `q_a_proj`, `o_proj`");
    assert_eq!(cell("lfm2"), "`q_proj`, `k_proj`, `v_proj`, `out_proj`, `in_proj`, `w1`, `w3`, `w2`");
}
