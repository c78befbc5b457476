//! Estimates the cost of all constraints on one value, wherever they are in the schema.
//!
//! The automaton of several constraints on one value can be as large as the product of theirs, and the compiler applies
//! its limits only after it is built. So the cost is estimated first, in the way the compiler merges constraints: if an
//! object or array must match several schemas, so must the values inside.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::references::resolve;
use super::schema_error::{SchemaError, unenforceable_schema};

/// Max schemas visited for one value.
const MAX_STEPS: u32 = 2_000;
/// Max schemas visited for nested values, counted per location, over all walks of one schema.
pub(super) const MAX_NESTED_STEPS: u32 = 200_000;

/// The cost of one kind of constraint.
pub(super) trait Cost: Copy + Default {
    /// The cost of a keyword, if it is of this kind.
    fn of(name: &str, value: &Value) -> Option<Self>;
    /// The cost if a value must match both.
    fn both(self, other: Self) -> Self;
    /// The cost if a value must match one of them.
    fn either(self, other: Self) -> Self;
}

/// The cost of a schema for a value, and for each value inside it for which several schemas are merged. Fails if that
/// takes too many steps; `left` are the steps left for nested values.
pub(super) fn costs<L: Cost>(
    root: &Value,
    schema: &Map<String, Value>,
    pointer: &str,
    left: &mut u32,
) -> Result<Vec<L>, SchemaError> {
    let mut own = MAX_STEPS;
    let mut costs = Vec::new();
    let constraint = Walk { root, left: &mut own }.constraint(schema);
    match constraint.and_then(|constraint| Walk { root, left }.visit(&constraint, &mut costs)) {
        Some(()) => Ok(costs),
        None => unenforceable_schema(
            pointer,
            "merges more schemas than can be checked for patterns, formats and multiples. Merge fewer schemas, or remove those keywords",
        ),
    }
}

/// The constraints on one value.
enum Constraint<'a> {
    /// The keywords of one schema, except those that apply other schemas to the same value.
    One(&'a Map<String, Value>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// A location inside a value. `additionalProperties` or `items` apply to locations that a schema does not name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Location<'a> {
    Property(&'a str),
    /// A property whose name matches.
    Pattern(&'a str),
    OtherProperty,
    Item(usize),
    OtherItem,
}

impl<'a> Constraint<'a> {
    const NONE: Self = Self::All(Vec::new());

    /// The conjunction of several constraints.
    fn all(constraints: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for constraint in constraints {
            match constraint {
                Self::All(more) => all.extend(more),
                Self::Any(any) if any.iter().all(Self::is_none) => {}
                other => all.push(other),
            }
        }
        Self::All(all)
    }

    fn is_none(&self) -> bool {
        matches!(self, Self::All(all) if all.is_empty())
    }

    fn cost<L: Cost>(&self) -> L {
        match self {
            Self::One(fields) => {
                fields.iter().filter_map(|(name, value)| L::of(name, value)).fold(L::default(), L::both)
            }
            Self::All(all) => all.iter().map(Self::cost).fold(L::default(), L::both),
            Self::Any(any) => any.iter().map(Self::cost).reduce(L::either).unwrap_or_default(),
        }
    }

    /// Number of schemas that constrain the values inside this one.
    fn layers(&self) -> usize {
        match self {
            Self::One(fields) => {
                let named = locations(fields).next().is_some();
                let twice = fields.contains_key("properties") && fields.contains_key("patternProperties");
                usize::from(named) + usize::from(twice)
            }
            Self::All(all) => all.iter().map(Self::layers).sum(),
            Self::Any(any) => any.iter().map(Self::layers).max().unwrap_or_default(),
        }
    }

    fn locations(&self, found: &mut BTreeSet<Location<'a>>) {
        match self {
            Self::One(fields) => found.extend(locations(fields)),
            Self::All(all) | Self::Any(all) => all.iter().for_each(|one| one.locations(found)),
        }
    }
}

/// The locations that a schema constrains.
fn locations(fields: &Map<String, Value>) -> impl Iterator<Item = Location<'_>> {
    let names = |keyword| object(fields, keyword).map(|(name, _)| name.as_str());
    let other = |keyword, location| fields.contains_key(keyword).then_some(location);
    names("properties")
        .map(Location::Property)
        .chain(names("patternProperties").map(Location::Pattern))
        .chain(other("additionalProperties", Location::OtherProperty))
        .chain((0..first_items(fields).len()).map(Location::Item))
        .chain(other("items", Location::OtherItem))
}

fn object<'a>(fields: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    fields.get(keyword).and_then(Value::as_object).into_iter().flatten()
}

/// The schemas of leading items: `prefixItems`, or an array in `items` as in older drafts.
fn first_items(fields: &Map<String, Value>) -> &[Value] {
    let listed = |keyword| fields.get(keyword).and_then(Value::as_array);
    listed("prefixItems").or_else(|| listed("items")).map_or(&[], Vec::as_slice)
}

/// Walks a schema. Methods return `None` once the steps are used up.
struct Walk<'a, 'b> {
    root: &'a Value,
    /// Steps.
    left: &'b mut u32,
}

impl<'a> Walk<'a, '_> {
    fn constraint(&mut self, schema: &'a Map<String, Value>) -> Option<Constraint<'a>> {
        *self.left = self.left.checked_sub(1)?;
        let mut all = vec![Constraint::One(schema)];
        for (name, value) in schema {
            match (name.as_str(), value) {
                ("$ref", Value::String(name)) => all.extend(self.constraints(resolve(self.root, name))?),
                ("allOf", Value::Array(list)) => all.extend(self.constraints(list)?),
                ("anyOf" | "oneOf", Value::Array(list)) => all.push(Constraint::Any(self.constraints(list)?)),
                _ => {}
            }
        }
        Some(Constraint::all(all))
    }

    /// The constraints of several schemas. A schema that is not an object constrains nothing.
    fn constraints(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Option<Vec<Constraint<'a>>> {
        schemas
            .into_iter()
            .map(|one| one.as_object().map_or(Some(Constraint::NONE), |one| self.constraint(one)))
            .collect()
    }

    fn visit<L: Cost>(&mut self, constraint: &Constraint<'a>, costs: &mut Vec<L>) -> Option<()> {
        costs.push(constraint.cost());
        // A value that only one schema constrains is checked at that nested schema.
        if constraint.layers() < 2 {
            return Some(());
        }
        let mut locations = BTreeSet::new();
        constraint.locations(&mut locations);
        locations.into_iter().try_for_each(|location| {
            let inside = self.inside(constraint, location)?;
            self.visit(&inside, costs)
        })
    }

    /// The constraints on the value at a location.
    fn inside(&mut self, constraint: &Constraint<'a>, location: Location<'a>) -> Option<Constraint<'a>> {
        *self.left = self.left.checked_sub(1)?;
        let mut each =
            |all: &[Constraint<'a>]| all.iter().map(|one| self.inside(one, location)).collect::<Option<Vec<_>>>();
        match constraint {
            Constraint::All(all) => each(all).map(Constraint::all),
            Constraint::Any(any) => each(any).map(Constraint::Any),
            Constraint::One(fields) => self.at_location(fields, location),
        }
    }

    /// The constraints of one schema on a location.
    fn at_location(&mut self, fields: &'a Map<String, Value>, location: Location<'a>) -> Option<Constraint<'a>> {
        let named = |keyword, name| fields.get(keyword).and_then(|all: &Value| all.get(name));
        let other = |keyword| fields.get(keyword);
        match location {
            Location::Property(name) => {
                let own = named("properties", name);
                // At most one pattern matches a name: the compiler requires them to be disjoint.
                let matching = object(fields, "patternProperties").map(|(_, schema)| schema);
                let unnamed = own.is_none().then(|| other("additionalProperties")).flatten();
                let any = Constraint::Any(self.constraints(matching.chain(unnamed))?);
                Some(Constraint::all(self.constraints(own)?.into_iter().chain([any])))
            }
            Location::Pattern(pattern) => self
                .constraints(named("patternProperties", pattern).or_else(|| other("additionalProperties")))
                .map(Constraint::all),
            Location::OtherProperty => self.constraints(other("additionalProperties")).map(Constraint::all),
            Location::Item(at) => match first_items(fields).get(at) {
                Some(own) => self.constraints([own]).map(Constraint::all),
                None => self.at_location(fields, Location::OtherItem),
            },
            Location::OtherItem => {
                let items = other("items").filter(|items| !items.is_array());
                self.constraints(items.or_else(|| other("additionalItems"))).map(Constraint::all)
            }
        }
    }
}
