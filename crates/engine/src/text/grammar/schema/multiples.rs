//! Limits `multipleOf`: the automaton has a state for every remainder, and the compiler does not limit them. Bounds are moved
//! inwards to the next multiple, because the compiler fails if a bound is not a multiple itself.
//!
//! A `multipleOf` of 999,983 took 11 seconds, and one of 9,999,991 more than a minute and gigabytes.

use serde_json::{Map, Number, Value};

use super::merged_constraints::{self, Cost};
use super::schema_error::{SchemaError, invalid, unenforceable, unenforceable_schema};
use super::subschemas::{child, visit_schemas};

/// Max remainders of all multiples in a request. A hundred thousand take a second and 50 MB.
const MAX_REMAINDERS: u64 = 10_000;
/// Decimal places that the compiler's arithmetic can represent.
const MAX_DECIMAL_PLACES: u32 = 8;

/// Decimal places of a bound beside a multiple; one with more is left as it is.
const MAX_BOUND_PLACES: u32 = 15;

/// The sum of remainders over the multiples checked so far.
#[derive(Clone, Default)]
pub(in crate::text::grammar) struct Multiples(u64);

impl Multiples {
    /// Checks the multiples of one schema and adds them to the sum. `left`: see [`merged_constraints::costs`].
    pub fn check(
        &mut self,
        root: &Value,
        schema: &Map<String, Value>,
        pointer: &str,
        left: &mut u32,
    ) -> Result<(), SchemaError> {
        let own = schema.get("multipleOf");
        let keyword = child(pointer, "multipleOf");
        if let Some(value) = own {
            check_multiple(value, &keyword)?;
        }
        let unenforceable = |what: String| match own {
            Some(_) => unenforceable(&keyword, what),
            None => unenforceable_schema(pointer, what),
        };
        let costs: Vec<Remainders> = merged_constraints::costs(root, schema, pointer, left)?;
        if !costs.iter().all(Remainders::can_be_computed) {
            return unenforceable("combines more multiples on one number than can be enforced".to_owned());
        }
        // A single multiple of a nested schema is counted at that schema.
        let counted = costs.iter().enumerate().filter(|(at, cost)| cost.count > 1 || (*at == 0 && own.is_some()));
        self.0 = counted.fold(self.0, |sum, (_, cost)| sum.saturating_add(cost.states));
        match self.0 <= MAX_REMAINDERS {
            true => Ok(()),
            false => unenforceable(format!(
                "raises the sum of all 'multipleOf' values above {MAX_REMAINDERS}, the most that can be enforced (decimals count without their point, several on one number as their product)"
            )),
        }
    }
}

/// Moves bounds inwards to the next multiple, wherever a schema has both. If only one multiple is left, both bounds are that
/// number.
pub(super) fn tighten_bounds(schema: &mut Value) {
    visit_schemas(schema, "", &mut |schema, _| {
        if let Some(fields) = schema.as_object_mut() {
            let _ = tighten(fields);
        }
    });
}

/// `None` if it stops early because a number cannot be computed, or none is left.
fn tighten(fields: &mut Map<String, Value>) -> Option<()> {
    let multiple = Decimal::of(fields.get("multipleOf")?.as_f64()?).filter(|multiple| multiple.coefficient > 0)?;
    let lower = multiple.bound(fields, ["minimum", "exclusiveMinimum"], true)?;
    let upper = multiple.bound(fields, ["maximum", "exclusiveMaximum"], false)?;
    match (lower, upper) {
        (Some(lower), Some(upper)) if lower > upper => return None,
        (Some(lower), Some(upper)) if lower == upper => {
            let only = multiple.times(lower)?;
            for name in ["multipleOf", "exclusiveMinimum", "exclusiveMaximum"] {
                fields.remove(name);
            }
            fields.insert("minimum".to_owned(), only.clone());
            fields.insert("maximum".to_owned(), only);
            return Some(());
        }
        _ => (),
    }
    for (factor, inclusive, exclusive) in
        [(lower, "minimum", "exclusiveMinimum"), (upper, "maximum", "exclusiveMaximum")]
    {
        if let Some(factor) = factor {
            fields.insert(inclusive.to_owned(), multiple.times(factor)?);
            fields.remove(exclusive);
        }
    }
    Some(())
}

fn check_multiple(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    match value.as_f64() {
        Some(number) if number > 0. && Decimal::of(number).is_some() => Ok(()),
        Some(number) if number > 0. => {
            unenforceable(pointer, format!("is {value}, which has too many digits to be enforced"))
        }
        _ => invalid(pointer, "must be a number greater than 0"),
    }
}

/// `coefficient` / 10 ^ `places`.
struct Decimal {
    coefficient: u64,
    places: u32,
}

impl Decimal {
    /// Reads a number as the compiler does: the error of binary fractions counts as digits.
    fn of(number: f64) -> Option<Self> {
        let mut scaled = number;
        for places in 0..=MAX_DECIMAL_PLACES {
            if scaled.fract() == 0. {
                return (scaled <= f64::from(u32::MAX)).then_some(Self { coefficient: scaled as u64, places });
            }
            scaled *= 10.;
        }
        None
    }

    /// Reads a number by its shortest decimal digits.
    fn written(number: f64) -> Option<Self> {
        let text = number.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let places = u32::try_from(fraction.len()).ok().filter(|places| *places <= MAX_BOUND_PLACES)?;
        Some(Self { coefficient: format!("{whole}{fraction}").parse().ok()?, places })
    }

    /// The first multiple within the bound that these two keywords set, as a factor; `is_lower`: whether it is a lower bound.
    /// Inner `None` if there is no bound; `None` if a bound cannot be computed.
    fn bound(&self, fields: &Map<String, Value>, names: [&str; 2], is_lower: bool) -> Option<Option<i64>> {
        let factor = |(name, is_exclusive): (&str, bool)| {
            let bound = fields.get(name).filter(|value| !value.is_null())?;
            Some(self.factor(bound, is_lower, is_exclusive))
        };
        let [inclusive, exclusive] = names;
        let factors = [(inclusive, false), (exclusive, true)].into_iter().filter_map(factor);
        let factors: Vec<i64> = factors.collect::<Option<_>>()?;
        Some(if is_lower { factors.into_iter().max() } else { factors.into_iter().min() })
    }

    /// The first multiple within one bound, as a factor.
    fn factor(&self, bound: &Value, is_lower: bool, is_exclusive: bool) -> Option<i64> {
        let number = bound.as_f64()?;
        let size = Self::written(number.abs())?;
        // Both numbers as integers of the same scale.
        let places = size.places.max(self.places);
        let scaled =
            |decimal: &Self| i64::try_from(decimal.coefficient).ok()?.checked_mul(10_i64.pow(places - decimal.places));
        let (multiple, size) = (scaled(self)?, scaled(&size)?);
        let bound = if number < 0. { -size } else { size };
        let (below, is_multiple) = (bound.div_euclid(multiple), bound.rem_euclid(multiple) == 0);
        Some(match (is_lower, is_multiple, is_exclusive) {
            (_, true, false) | (false, false, _) => below,
            (true, true, true) | (true, false, _) => below + 1,
            (false, true, true) => below - 1,
        })
    }

    /// A multiple as the nearest number.
    #[expect(clippy::cast_precision_loss, reason = "larger numbers are left as they are")]
    fn times(&self, factor: i64) -> Option<Value> {
        let scaled = i64::try_from(self.coefficient).ok()?.checked_mul(factor)?;
        let scale = 10_i64.pow(self.places);
        if scaled % scale == 0 {
            return Some(Value::from(scaled / scale));
        }
        Number::from_f64(scaled as f64 / scale as f64).filter(|_| scaled.unsigned_abs() < 1 << 53).map(Value::Number)
    }
}

/// The `multipleOf` constraints on one number.
#[derive(Clone, Copy)]
struct Remainders {
    count: u32,
    /// An upper bound; the least common multiple may have fewer.
    states: u64,
    places: u32,
}

impl Remainders {
    /// False if the least common multiple overflows the compiler's arithmetic.
    fn can_be_computed(&self) -> bool {
        let scaled = 10_u64.checked_pow(self.places).and_then(|scale| scale.checked_mul(self.states));
        self.count < 2 || scaled.is_some_and(|scaled| u32::try_from(scaled).is_ok())
    }
}

impl Default for Remainders {
    fn default() -> Self {
        Self { count: 0, states: 1, places: 0 }
    }
}

impl Cost for Remainders {
    fn of(name: &str, value: &Value) -> Option<Self> {
        let number = value.as_f64().filter(|_| name == "multipleOf")?;
        // Unreadable values are rejected at their own schema.
        let Decimal { coefficient, places } = Decimal::of(number)?;
        Some(Self { count: 1, states: coefficient, places })
    }

    fn both(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            states: self.states.saturating_mul(other.states),
            places: self.places + other.places,
        }
    }

    /// The alternatives share no states.
    fn either(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            states: self.states.saturating_add(other.states),
            places: self.places.max(other.places),
        }
    }
}
