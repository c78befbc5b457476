//! What one value must fulfil all at once, wherever in a schema it is said.
//!
//! The automaton of several constraints on one value can be as large as the product of theirs, and the
//! compiler's limits act only after it is built. So what they come to is reckoned before, as the
//! compiler will merge them: where an object or array must fulfil several schemas, so must what is
//! inside of it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::common::{SchemaError, invalid, target};

/// Schemas looked at for one value.
const MAX_STEPS: u32 = 2_000;
/// Schemas looked at for what is inside of values, each for each place, all walks through one schema together.
pub(super) const MAX_NESTED_STEPS: u32 = 200_000;

/// What constraints of one kind come to.
pub(super) trait Cost: Copy + Default {
    /// That of a single keyword, where it is of this kind.
    fn of(name: &str, value: &Value) -> Option<Self>;
    /// Of a value that must fulfil both.
    fn both(self, other: Self) -> Self;
    /// Of a value that must fulfil one of them.
    fn either(self, other: Self) -> Self;
}

/// What a schema puts on a value, and then on each value inside of it for which several schemas are
/// merged. Refuses what takes too long to tell: `left` are the steps left for what is inside.
pub(super) fn costs<L: Cost>(
    root: &Value,
    schema: &Map<String, Value>,
    path: &str,
    left: &mut u32,
) -> Result<Vec<L>, SchemaError> {
    let mut own = MAX_STEPS;
    let mut costs = Vec::new();
    let constraint = Walk { root, left: &mut own }.constraint(schema);
    match constraint.and_then(|constraint| Walk { root, left }.visit(&constraint, &mut costs)) {
        Some(()) => Ok(costs),
        None => invalid(
            path,
            "merges more schemas than can be followed to their patterns, formats and multiples. Merge fewer, or leave those out",
        ),
    }
}

/// What one value must fulfil.
enum Constraint<'a> {
    /// The keywords of one schema, but for those that lead to other schemas for the same value.
    One(&'a Map<String, Value>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// A place inside of a value. What a schema does not name, its `additionalProperties` or `items` tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place<'a> {
    Property(&'a str),
    /// A property whose name matches.
    Pattern(&'a str),
    OtherProperty,
    Item(usize),
    OtherItem,
}

impl<'a> Constraint<'a> {
    const NONE: Self = Self::All(Vec::new());

    /// What fulfils all of them.
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

    /// How many schemas tell of what is inside of one value.
    fn layers(&self) -> usize {
        match self {
            Self::One(fields) => {
                let named = places(fields).next().is_some();
                let twice = fields.contains_key("properties") && fields.contains_key("patternProperties");
                usize::from(named) + usize::from(twice)
            }
            Self::All(all) => all.iter().map(Self::layers).sum(),
            Self::Any(any) => any.iter().map(Self::layers).max().unwrap_or_default(),
        }
    }

    fn places(&self, found: &mut BTreeSet<Place<'a>>) {
        match self {
            Self::One(fields) => found.extend(places(fields)),
            Self::All(all) | Self::Any(all) => all.iter().for_each(|one| one.places(found)),
        }
    }
}

/// The places that a schema tells of.
fn places(fields: &Map<String, Value>) -> impl Iterator<Item = Place<'_>> {
    let names = |keyword| object(fields, keyword).map(|(name, _)| name.as_str());
    let other = |keyword, place| fields.contains_key(keyword).then_some(place);
    names("properties")
        .map(Place::Property)
        .chain(names("patternProperties").map(Place::Pattern))
        .chain(other("additionalProperties", Place::OtherProperty))
        .chain((0..first_items(fields).len()).map(Place::Item))
        .chain(other("items", Place::OtherItem))
}

fn object<'a>(fields: &'a Map<String, Value>, keyword: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    fields.get(keyword).and_then(Value::as_object).into_iter().flatten()
}

/// The schemas of the items that have one each: as they are written now, and as they once were.
fn first_items(fields: &Map<String, Value>) -> &[Value] {
    let listed = |keyword| fields.get(keyword).and_then(Value::as_array);
    listed("prefixItems").or_else(|| listed("items")).map_or(&[], Vec::as_slice)
}

/// A walk's methods give `None` once its steps are used up.
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
                ("$ref", Value::String(name)) => all.extend(self.constraints(target(self.root, name))?),
                ("allOf", Value::Array(list)) => all.extend(self.constraints(list)?),
                ("anyOf" | "oneOf", Value::Array(list)) => all.push(Constraint::Any(self.constraints(list)?)),
                _ => {}
            }
        }
        Some(Constraint::all(all))
    }

    /// Those of several schemas. One that is no object constraints nothing.
    fn constraints(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Option<Vec<Constraint<'a>>> {
        schemas
            .into_iter()
            .map(|one| one.as_object().map_or(Some(Constraint::NONE), |one| self.constraint(one)))
            .collect()
    }

    fn visit<L: Cost>(&mut self, constraint: &Constraint<'a>, costs: &mut Vec<L>) -> Option<()> {
        costs.push(constraint.cost());
        // A schema inside of a single one is looked at by itself.
        if constraint.layers() < 2 {
            return Some(());
        }
        let mut places = BTreeSet::new();
        constraint.places(&mut places);
        places.into_iter().try_for_each(|place| {
            let inside = self.inside(constraint, place)?;
            self.visit(&inside, costs)
        })
    }

    /// What the value at a place must fulfil.
    fn inside(&mut self, constraint: &Constraint<'a>, place: Place<'a>) -> Option<Constraint<'a>> {
        *self.left = self.left.checked_sub(1)?;
        let mut each =
            |all: &[Constraint<'a>]| all.iter().map(|one| self.inside(one, place)).collect::<Option<Vec<_>>>();
        match constraint {
            Constraint::All(all) => each(all).map(Constraint::all),
            Constraint::Any(any) => each(any).map(Constraint::Any),
            Constraint::One(fields) => self.at_place(fields, place),
        }
    }

    /// What a single schema tells of a place.
    fn at_place(&mut self, fields: &'a Map<String, Value>, place: Place<'a>) -> Option<Constraint<'a>> {
        let named = |keyword, name| fields.get(keyword).and_then(|all: &Value| all.get(name));
        let other = |keyword| fields.get(keyword);
        match place {
            Place::Property(name) => {
                let own = named("properties", name);
                // At most one pattern matches a name: the compiler takes only those that exclude each other.
                let matching = object(fields, "patternProperties").map(|(_, schema)| schema);
                let unnamed = own.is_none().then(|| other("additionalProperties")).flatten();
                let any = Constraint::Any(self.constraints(matching.chain(unnamed))?);
                Some(Constraint::all(self.constraints(own)?.into_iter().chain([any])))
            }
            Place::Pattern(pattern) => self
                .constraints(named("patternProperties", pattern).or_else(|| other("additionalProperties")))
                .map(Constraint::all),
            Place::OtherProperty => self.constraints(other("additionalProperties")).map(Constraint::all),
            Place::Item(at) => match first_items(fields).get(at) {
                Some(own) => self.constraints([own]).map(Constraint::all),
                None => self.at_place(fields, Place::OtherItem),
            },
            Place::OtherItem => {
                let items = other("items").filter(|items| !items.is_array());
                self.constraints(items.or_else(|| other("additionalItems"))).map(Constraint::all)
            }
        }
    }
}
