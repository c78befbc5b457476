//! Dates and times that exist.
//!
//! The compiler's own `format`s let through the 29th of February of any year and the 61st second,
//! which the libraries that read an answer refuse (RFC 3339 as most of them have it).

use serde_json::{Map, Value, json};

const YEAR: &str = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
/// Years that 4 divides and 100 does not, or 400 does.
const LEAP: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Writes patterns for the formats in a schema that was checked.
pub(super) fn expand_formats(schema: &mut Value) {
    match schema {
        Value::Array(all) => all.iter_mut().for_each(expand_formats),
        Value::Object(fields) => {
            // Constants are no schemas.
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

/// Beside a pattern of its own the format's goes into an `allOf`.
fn replace(fields: &mut Map<String, Value>, pattern: String) {
    fields.shift_remove("format");
    if !fields.contains_key("pattern") {
        fields.insert("pattern".to_owned(), pattern.into());
    } else if let Value::Array(all) = fields.entry("allOf").or_insert_with(|| json!([])) {
        all.push(json!({ "pattern": pattern }));
    }
}
