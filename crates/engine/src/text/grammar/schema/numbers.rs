//! Numbers that the compiler cannot enforce: it computes with floats of double precision, so of integers above 2^53 it may
//! allow only a neighbour.
//!
//! A number that the compiler would change is named or, if strict, refused.

use serde_json::{Map, Number, Value};

use super::schema_error::{SchemaError, unenforceable};

/// Up to 2^53, every integer is a float.
const MAX_EXACT: f64 = 9_007_199_254_740_992.;
/// 2^63: the compiler's integers end below.
const INTEGERS_END: f64 = 9_223_372_036_854_775_808.;
/// The compiler cannot write an interval without an end that begins here.
const MAX_OPEN_START: f64 = 1e18;

/// Checks the values of a `const` or an `enum`.
pub(super) fn check_values(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    match find(value, &|number| !is_exact(number)) {
        None => Ok(()),
        Some(number) => unenforceable(
            pointer,
            format!(
                "has the number {number}, which this server cannot enforce exactly. Use a string for large numbers"
            ),
        ),
    }
}

/// The first number that is `wanted`.
fn find<'a>(value: &'a Value, wanted: &impl Fn(&Number) -> bool) -> Option<&'a Number> {
    match value {
        Value::Number(number) => Some(number).filter(|number| wanted(number)),
        Value::Array(items) => items.iter().find_map(|item| find(item, wanted)),
        Value::Object(fields) => fields.values().find_map(|field| find(field, wanted)),
        _ => None,
    }
}

/// Checks a bound of numbers: `name` is `minimum`, `maximum` or an exclusive form of them.
pub(super) fn check_bound(
    fields: &Map<String, Value>,
    name: &str,
    number: &Number,
    pointer: &str,
) -> Result<(), SchemaError> {
    let is_lower = matches!(name, "minimum" | "exclusiveMinimum");
    let (exclusive, opposite) = match is_lower {
        true => ("exclusiveMinimum", ["maximum", "exclusiveMaximum"]),
        false => ("exclusiveMaximum", ["minimum", "exclusiveMinimum"]),
    };
    // A flag in drafts up to the fourth.
    let is_exclusive = name == exclusive || fields.get(exclusive) == Some(&Value::Bool(true));
    let is_integer = fields.get("type").is_some_and(|kind| kind == "integer");
    let is_open = opposite.iter().all(|other| !fields.get(*other).is_some_and(Value::is_number));
    let float = number.as_f64().unwrap_or(f64::INFINITY);
    let outward = if is_lower { float } else { -float };
    let is_enforced = is_exact(number)
        && (float.abs() < MAX_EXACT || !is_exclusive)
        && (is_integer || float.abs() <= MAX_EXACT || is_written_exactly(number, float))
        && !(is_open && outward >= MAX_OPEN_START);
    if is_enforced {
        return Ok(());
    }
    unenforceable(pointer, format!("is {number}, which is too large to be enforced exactly"))
}

/// True if the compiler writes exactly this number as a constant.
fn is_exact(number: &Number) -> bool {
    let Some(float) = number.as_f64() else { return false };
    if float.abs() < MAX_EXACT {
        return true;
    }
    match number.as_i64() {
        // The conversion ends at the largest integer, as the compiler's does.
        Some(integer) => to_integer(float) == integer && integer > i64::MIN,
        None => float.abs() < INTEGERS_END && is_written_exactly(number, float),
    }
}

/// Whether the shortest decimal digits of the float are those of the integer.
fn is_written_exactly(number: &Number, float: f64) -> bool {
    let integer = number.as_i64().unwrap_or_else(|| to_integer(float));
    format!("{float}") == integer.to_string()
}

#[expect(clippy::cast_possible_truncation, reason = "saturates; the callers compare the result")]
fn to_integer(float: f64) -> i64 {
    float as i64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{check_bound, check_values};

    #[test]
    fn constants_must_be_written_exactly() {
        for value in [
            json!([0, -1, 1.5, 1e15, { "a": 9_007_199_254_740_992_i64 }]),
            json!([1_i64 << 60, i64::MAX, 9_007_199_254_740_994_i64, 1e16]),
        ] {
            assert!(check_values(&value, "/enum").is_ok(), "{value}");
        }
        for value in [
            json!(9_007_199_254_740_993_i64),
            json!({ "a": [-9_007_199_254_740_993_i64] }),
            json!(i64::MAX - 1),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(1e300),
        ] {
            assert_eq!(check_values(&value, "/const").unwrap_err().pointer, "/const", "{value}");
        }
    }

    #[test]
    fn bounds_must_be_computed_exactly() {
        let check = |schema: Value| {
            let fields = schema.as_object().unwrap().clone();
            let bounds = fields.iter().filter_map(|(name, value)| match value {
                Value::Number(number) => Some(check_bound(&fields, name, number, name).is_ok()),
                _ => None,
            });
            bounds.collect::<Vec<_>>()
        };
        let cases = [
            (json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }), vec![true, true]),
            (json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX }), vec![false, false]),
            (json!({ "type": "integer", "minimum": 9_007_199_254_740_993_i64 }), vec![false]),
            (json!({ "type": "integer", "exclusiveMaximum": 9_007_199_254_740_992_i64 }), vec![false]),
            (json!({ "exclusiveMinimum": true, "minimum": 9_007_199_254_740_992_i64 }), vec![false]),
            (json!({ "exclusiveMaximum": 9_007_199_254_740_991_i64 }), vec![true]),
            (json!({ "type": "number", "maximum": 1_i64 << 60 }), vec![false]),
            (json!({ "type": "integer", "maximum": 1_i64 << 60 }), vec![true]),
            (json!({ "type": "integer", "minimum": 1_i64 << 60 }), vec![false]),
            (json!({ "type": "integer", "maximum": 1e300 }), vec![false]),
            (json!({ "minimum": -0.5, "maximum": 1e16 }), vec![true, true]),
        ];
        for (schema, expected) in cases {
            assert_eq!(check(schema.clone()), expected, "{schema}");
        }
    }
}
