//! Patterns that a string must match all at once: one is cheap whatever it looks like.

use serde_json::{Map, Value};

use super::together::{self, Load};
use super::{SchemaError, wrong};

/// Patterns and formats that one string may have to match.
const MOST: u32 = 3;
/// Letters and counted repetitions of those, where there is more than one.
const HEAVIEST: u64 = 400;
/// What a format counts as.
const FORMAT: u64 = 100;

/// What one string must match.
#[derive(Clone, Copy, Default)]
struct Patterns {
    count: u32,
    weight: u64,
}

/// Refuses a schema that puts more on a string than can be compiled. `left`: see [`together::loads`].
pub(super) fn check(root: &Value, schema: &Map<String, Value>, path: &str, left: &mut u32) -> Result<(), SchemaError> {
    let heavy = |load: &Patterns| load.count > MOST || (load.count > 1 && load.weight > HEAVIEST);
    match together::loads(root, schema, path, left)?.iter().any(heavy) {
        true => wrong(path, "puts more patterns and formats on one string than can be enforced together"),
        false => Ok(()),
    }
}

impl Load for Patterns {
    fn of(name: &str, value: &Value) -> Option<Self> {
        match (name, value) {
            ("pattern", Value::String(text)) => Some(Self { count: 1, weight: weigh(text) }),
            ("format", Value::String(_)) => Some(Self { count: 1, weight: FORMAT }),
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
fn weigh(pattern: &str) -> u64 {
    let numbers =
        pattern.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
    numbers.fold(pattern.len() as u64, u64::saturating_add)
}
