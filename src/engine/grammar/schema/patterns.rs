//! Patterns that a string must match all at once.
//!
//! One pattern is cheap whatever it looks like; the automaton of several together can be as large as
//! the product of theirs, which no limit of the compiler's catches early enough.

use serde_json::{Map, Value};

use super::target;

/// Patterns and formats that one string may have to match.
const MOST: u32 = 3;
/// Letters and counted repetitions of those, where there is more than one.
const HEAVIEST: u64 = 400;
/// What a format counts as.
const FORMAT: u64 = 100;
/// Schemas looked at for one string.
const MOST_STEPS: u32 = 2_000;

/// What one string must match.
#[derive(Clone, Copy, Default)]
struct Load {
    count: u32,
    weight: u64,
}

/// Whether this schema puts more on a string than can be compiled.
pub(super) fn too_many(root: &Value, schema: &Map<String, Value>) -> bool {
    let mut steps = 0;
    let load = measure(root, schema, &mut steps);
    steps > MOST_STEPS || load.count > MOST || (load.count > 1 && load.weight > HEAVIEST)
}

fn measure(root: &Value, schema: &Map<String, Value>, steps: &mut u32) -> Load {
    *steps += 1;
    let mut sum = Load::default();
    for (name, value) in schema {
        if *steps > MOST_STEPS {
            break;
        }
        let more = match (name.as_str(), value) {
            ("pattern", Value::String(text)) => Load { count: 1, weight: weigh(text) },
            ("format", Value::String(_)) => Load { count: 1, weight: FORMAT },
            ("$ref", Value::String(name)) => target(root, name).map_or_else(Load::default, |one| of(root, one, steps)),
            ("allOf", Value::Array(all)) => all.iter().map(|one| of(root, one, steps)).fold(Load::default(), both),
            ("anyOf" | "oneOf", Value::Array(all)) => {
                all.iter().map(|one| of(root, one, steps)).fold(Load::default(), heavier)
            }
            _ => continue,
        };
        sum = both(sum, more);
    }
    sum
}

fn of(root: &Value, schema: &Value, steps: &mut u32) -> Load {
    schema
        .as_object()
        .filter(|_| *steps <= MOST_STEPS)
        .map_or_else(Load::default, |fields| measure(root, fields, steps))
}

fn both(one: Load, other: Load) -> Load {
    Load { count: one.count + other.count, weight: one.weight.saturating_add(other.weight) }
}

fn heavier(one: Load, other: Load) -> Load {
    Load { count: one.count.max(other.count), weight: one.weight.max(other.weight) }
}

/// The length of a pattern with every number in it added.
fn weigh(pattern: &str) -> u64 {
    let numbers =
        pattern.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
    numbers.fold(pattern.len() as u64, u64::saturating_add)
}
