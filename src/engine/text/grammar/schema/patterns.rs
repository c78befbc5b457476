//! Patterns that a string must match all at once: one is cheap whatever it looks like.

use serde_json::{Map, Value};

use super::common::{SchemaError, invalid};
use super::merged_constraints::{self, Cost};

/// Patterns and formats that one string may have to match.
const MAX_PATTERNS: u32 = 3;
/// Letters and counted repetitions of those, where there is more than one.
const MAX_WEIGHT: u64 = 400;
/// What a format counts as.
const FORMAT_WEIGHT: u64 = 100;

/// What one string must match.
#[derive(Clone, Copy, Default)]
struct Patterns {
    count: u32,
    weight: u64,
}

/// Refuses a schema that puts more on a string than can be compiled. `left`: see [`merged_constraints::costs`].
pub(super) fn check(root: &Value, schema: &Map<String, Value>, path: &str, left: &mut u32) -> Result<(), SchemaError> {
    let too_complex = |cost: &Patterns| cost.count > MAX_PATTERNS || (cost.count > 1 && cost.weight > MAX_WEIGHT);
    match merged_constraints::costs(root, schema, path, left)?.iter().any(too_complex) {
        true => invalid(path, "puts more patterns and formats on one string than can be enforced together"),
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

/// The length of a pattern with every number in it added.
fn weight_of(pattern: &str) -> u64 {
    let numbers = pattern.split(|ch: char| !ch.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
    numbers.fold(pattern.len() as u64, u64::saturating_add)
}
