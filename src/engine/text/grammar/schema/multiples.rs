//! Limits `multipleOf`: the automaton has a state for every remainder, and the compiler does not limit them.

use serde_json::{Map, Value};

use super::merged_constraints::{self, Cost};
use super::schema_error::{SchemaError, invalid, unenforceable, unenforceable_schema};
use super::subschemas::child;

/// Max remainders of all multiples in a request. A hundred thousand take a second and 50 MB.
const MAX_REMAINDERS: u64 = 10_000;
/// Decimal places that the compiler's arithmetic can represent.
const MAX_DECIMAL_PLACES: u32 = 8;

/// The sum of remainders over the multiples checked so far.
#[derive(Clone, Default)]
pub(in crate::engine::text::grammar) struct Multiples(u64);

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
    /// Whether the compiler's arithmetic can represent the least common multiple.
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
