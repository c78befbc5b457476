//! Patterns for `date`, `time` and `date-time` that allow only dates and times that exist.
//!
//! The compiler's own `format`s accept 29 February in any year and leap seconds, which most RFC 3339 parsers refuse.

use serde_json::{Map, Value, json};

const YEAR: &str = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
/// 29 February of years divisible by 4 but not by 100, or by 400.
const LEAP: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Replaces date formats with patterns in a checked schema.
pub(super) fn expand_formats(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(expand_formats),
        Value::Object(fields) => {
            // Constants are not schemas.
            let inner = fields
                .iter_mut()
                .filter(|(name, _)| !matches!(name.as_str(), "const" | "enum" | "default" | "examples"));
            inner.for_each(|(_, value)| expand_formats(value));
            if let Some(pattern) = fields.get("format").and_then(Value::as_str).and_then(pattern) {
                replace(fields, pattern);
            }
        }
        _ => {}
    }
}

fn pattern(format: &str) -> Option<String> {
    let date = format!("(?:{YEAR}-{DAY}|{LEAP})");
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{date}T{TIME}$")),
        _ => None,
    }
}

/// Sets the pattern; if the schema has one already, adds it as an `allOf`.
fn replace(fields: &mut Map<String, Value>, pattern: String) {
    fields.shift_remove("format");
    if !fields.contains_key("pattern") {
        fields.insert("pattern".to_owned(), pattern.into());
    } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({ "pattern": pattern }));
    }
}
