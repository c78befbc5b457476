//! Checks that patterns are regular expressions, and limits those that one string must match at the same time. A single
//! pattern is always cheap.

use regress::Flags;
use serde_json::{Map, Value};

use super::merged_constraints::{self, Cost};
use super::schema_error::{SchemaError, invalid, unenforceable, unenforceable_schema};
use super::subschemas::{child, visit_schemas};

/// Longer patterns are not enforced, and not checked.
pub(super) const MAX_PATTERN_BYTES: usize = 1_000;
/// Max patterns and formats on one string.
const MAX_PATTERNS: u32 = 3;
/// Max weight of several patterns together: their characters plus their repetition counts.
const MAX_WEIGHT: u64 = 400;
/// The weight of a format.
const FORMAT_WEIGHT: u64 = 100;

/// The patterns and formats on one string.
#[derive(Clone, Copy, Default)]
struct Patterns {
    count: u32,
    weight: u64,
}

/// Rejects a pattern that is no regular expression, wherever it is in the schema. Changes nothing.
pub(super) fn check_syntax(schema: &mut Value) -> Result<(), SchemaError> {
    let mut checked = Ok(());
    visit_schemas(schema, "", &mut |schema, pointer| {
        let own = schema.get("pattern").and_then(Value::as_str).map(|pattern| (pattern, child(pointer, "pattern")));
        let names = schema.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let names = names.map(|name| (name.as_str(), child(&child(pointer, "patternProperties"), name)));
        for (pattern, at) in own.into_iter().chain(names) {
            if checked.is_ok()
                && let Some(problem) = syntax_error(pattern)
            {
                checked = invalid(&at, format!("is not a regular expression: {problem}"));
            }
        }
    });
    checked
}

/// What is wrong with a pattern. Valid are those of JavaScript, with the flag `u` or without, as JSON Schema demands, and
/// those in the syntax of Rust, which has forms of other languages, such as `(?i)`.
fn syntax_error(pattern: &str) -> Option<String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return None;
    }
    let in_javascript = |unicode| {
        let flags = Flags { no_opt: true, unicode, ..Flags::default() };
        regress::Regex::with_flags(pattern, flags).map_err(|error| error.text)
    };
    let problem = in_javascript(true).err()?;
    (in_javascript(false).is_err() && regex_syntax::parse(pattern).is_err()).then_some(problem)
}

/// Rejects a schema with more patterns on one string than can be compiled. `left`: see [`merged_constraints::costs`].
pub(super) fn check(
    root: &Value,
    schema: &Map<String, Value>,
    pointer: &str,
    left: &mut u32,
) -> Result<(), SchemaError> {
    let too_complex = |cost: &Patterns| cost.count > MAX_PATTERNS || (cost.count > 1 && cost.weight > MAX_WEIGHT);
    let what = "combines more patterns and formats on one string than can be enforced";
    match merged_constraints::costs(root, schema, pointer, left)?.iter().any(too_complex) {
        // A format names the same strings more briefly.
        true if schema.contains_key("pattern") && schema.contains_key("format") => {
            unenforceable(&child(pointer, "pattern"), what)
        }
        true => unenforceable_schema(pointer, what),
        false => Ok(()),
    }
}

impl Cost for Patterns {
    fn of(name: &str, value: &Value) -> Option<Self> {
        match (name, value) {
            ("pattern", Value::String(text)) => Some(Self { count: 1, weight: weight_of(text) }),
            ("format", Value::String(_)) => Some(Self { count: 1, weight: FORMAT_WEIGHT }),
            _ => None,
        }
    }

    fn both(self, other: Self) -> Self {
        Self { count: self.count + other.count, weight: self.weight.saturating_add(other.weight) }
    }

    fn either(self, other: Self) -> Self {
        Self { count: self.count.max(other.count), weight: self.weight.max(other.weight) }
    }
}

/// The length of a pattern plus the numbers of its repetitions, such as `{2,8}`.
fn weight_of(pattern: &str) -> u64 {
    let braces = pattern.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let numbers = braces.flat_map(|(counts, _)| counts.split(',')).filter_map(|count| count.trim().parse::<u64>().ok());
    numbers.fold(pattern.len() as u64, u64::saturating_add)
}
