//! What one value must fulfil all at once, wherever in a schema it is said.
//!
//! The automaton of several demands on one value can be as large as the product of theirs, and the
//! compiler's limits act only after it is built. So what they come to is reckoned before, as the
//! compiler will merge them: where an object or array must fulfil several schemas, so must what is
//! inside of it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{SchemaError, target, wrong};

/// Schemas looked at for one value.
const MOST_STEPS: u32 = 2_000;
/// Schemas looked at for what is inside of values, each for each place, all walks through one schema together.
pub(super) const MOST_STEPS_INSIDE: u32 = 200_000;

/// What demands of one kind come to.
pub(super) trait Load: Copy + Default {
    /// That of a single keyword, where it is of this kind.
    fn of(name: &str, value: &Value) -> Option<Self>;
    /// Of a value that must fulfil both.
    fn both(self, other: Self) -> Self;
    /// Of a value that must fulfil one of them.
    fn either(self, other: Self) -> Self;
}

/// What a schema puts on a value, and then on each value inside of it for which several schemas are
/// merged. Refuses what takes too long to tell: `left` are the steps left for what is inside.
pub(super) fn loads<L: Load>(
    root: &Value,
    schema: &Map<String, Value>,
    path: &str,
    left: &mut u32,
) -> Result<Vec<L>, SchemaError> {
    let mut own = MOST_STEPS;
    let mut loads = Vec::new();
    let demand = Walk { root, left: &mut own }.demand(schema);
    match demand.and_then(|demand| Walk { root, left }.visit(&demand, &mut loads)) {
        Some(()) => Ok(loads),
        None => wrong(
            path,
            "merges more schemas than can be followed to their patterns, formats and multiples. Merge fewer, or leave those out",
        ),
    }
}

/// What one value must fulfil.
enum Demand<'a> {
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

impl<'a> Demand<'a> {
    const NOTHING: Self = Self::All(Vec::new());

    /// What fulfils all of them.
    fn all(demands: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Vec::new();
        for demand in demands {
            match demand {
                Self::All(more) => all.extend(more),
                Self::Any(any) if any.iter().all(Self::is_nothing) => {}
                other => all.push(other),
            }
        }
        Self::All(all)
    }

    fn is_nothing(&self) -> bool {
        matches!(self, Self::All(all) if all.is_empty())
    }

    fn load<L: Load>(&self) -> L {
        match self {
            Self::One(fields) => {
                fields.iter().filter_map(|(name, value)| L::of(name, value)).fold(L::default(), L::both)
            }
            Self::All(all) => all.iter().map(Self::load).fold(L::default(), L::both),
            Self::Any(any) => any.iter().map(Self::load).reduce(L::either).unwrap_or_default(),
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
    fn demand(&mut self, schema: &'a Map<String, Value>) -> Option<Demand<'a>> {
        *self.left = self.left.checked_sub(1)?;
        let mut all = vec![Demand::One(schema)];
        for (name, value) in schema {
            match (name.as_str(), value) {
                ("$ref", Value::String(name)) => all.extend(self.demands(target(self.root, name))?),
                ("allOf", Value::Array(list)) => all.extend(self.demands(list)?),
                ("anyOf" | "oneOf", Value::Array(list)) => all.push(Demand::Any(self.demands(list)?)),
                _ => {}
            }
        }
        Some(Demand::all(all))
    }

    /// Those of several schemas. One that is no object demands nothing.
    fn demands(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> Option<Vec<Demand<'a>>> {
        schemas.into_iter().map(|one| one.as_object().map_or(Some(Demand::NOTHING), |one| self.demand(one))).collect()
    }

    fn visit<L: Load>(&mut self, demand: &Demand<'a>, loads: &mut Vec<L>) -> Option<()> {
        loads.push(demand.load());
        // A schema inside of a single one is looked at by itself.
        if demand.layers() < 2 {
            return Some(());
        }
        let mut places = BTreeSet::new();
        demand.places(&mut places);
        places.into_iter().try_for_each(|place| {
            let inside = self.inside(demand, place)?;
            self.visit(&inside, loads)
        })
    }

    /// What the value at a place must fulfil.
    fn inside(&mut self, demand: &Demand<'a>, place: Place<'a>) -> Option<Demand<'a>> {
        *self.left = self.left.checked_sub(1)?;
        let mut each = |all: &[Demand<'a>]| all.iter().map(|one| self.inside(one, place)).collect::<Option<Vec<_>>>();
        match demand {
            Demand::All(all) => each(all).map(Demand::all),
            Demand::Any(any) => each(any).map(Demand::Any),
            Demand::One(fields) => self.told(fields, place),
        }
    }

    /// What a single schema tells of a place.
    fn told(&mut self, fields: &'a Map<String, Value>, place: Place<'a>) -> Option<Demand<'a>> {
        let named = |keyword, name| fields.get(keyword).and_then(|all: &Value| all.get(name));
        let other = |keyword| fields.get(keyword);
        match place {
            Place::Property(name) => {
                let own = named("properties", name);
                // At most one pattern matches a name: the compiler takes only those that exclude each other.
                let matching = object(fields, "patternProperties").map(|(_, schema)| schema);
                let unnamed = own.is_none().then(|| other("additionalProperties")).flatten();
                let any = Demand::Any(self.demands(matching.chain(unnamed))?);
                Some(Demand::all(self.demands(own)?.into_iter().chain([any])))
            }
            Place::Pattern(pattern) => self
                .demands(named("patternProperties", pattern).or_else(|| other("additionalProperties")))
                .map(Demand::all),
            Place::OtherProperty => self.demands(other("additionalProperties")).map(Demand::all),
            Place::Item(at) => match first_items(fields).get(at) {
                Some(own) => self.demands([own]).map(Demand::all),
                None => self.told(fields, Place::OtherItem),
            },
            Place::OtherItem => {
                let items = other("items").filter(|items| !items.is_array());
                self.demands(items.or_else(|| other("additionalItems"))).map(Demand::all)
            }
        }
    }
}
