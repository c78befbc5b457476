//! The wrapper around deserializers, visitors, accesses and seeds: everything inside is wrapped too.
//!
//! A parser reports a visitor's error as its own type, which keeps only the text. So a wrapped visitor leaves its
//! [`Fault`] in a slot, and the wrapped deserializer around the parser takes it out again. Most types are read through
//! `deserialize_any`, because the parser would otherwise compare the types itself.
//!
//! Structs are read only from objects. A derived `Deserialize` also accepts an array, with the fields in order: then
//! `[null, null]` would rotate a key. (This has no effect inside untagged enums, where serde deserializes from its own
//! buffer.)
//!
//! A check of the first byte of the body would not cover nested objects; the wrapper requires a map for a struct at
//! every depth.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::fault::Fault;
use super::numbers;
use crate::display::{one_of, shorten};

/// Holds the fault on its way through the parser.
pub struct Slot<'t> {
    fault: Cell<Option<Fault>>,
    /// The input of the parser.
    text: &'t str,
    /// The numbers of the text that the parser changes, by the bits of what it reads; searched when the first float appears
    /// where any value may be.
    changed: OnceCell<HashMap<u64, String>>,
}

impl<'t> Slot<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { fault: Cell::default(), text, changed: OnceCell::new() }
    }

    /// Fails if the text has another number for which the parser has read this one.
    fn check_unchanged(&self, number: f64) -> Result<(), Fault> {
        let changed = self.changed.get_or_init(|| {
            let found = numbers::changed(self.text).into_iter();
            found.map(|(read, written)| (bits(read), shorten(written))).collect()
        });
        match changed.get(&bits(number)) {
            None => Ok(()),
            Some(written) => Err(Fault::custom(format!(
                "is {written}, which has more digits than a number can keep here. Send it as a string, or with fewer digits"
            ))),
        }
    }

    /// Replaces a fault with an error of the parser.
    fn put<T, E: Error>(&self, result: Result<T, Fault>) -> Result<T, E> {
        result.map_err(|fault| {
            self.fault.set(Some(fault));
            E::custom("")
        })
    }

    /// Replaces an error of the parser with the fault.
    fn take<T, E>(&self, result: Result<T, E>) -> Result<T, Fault> {
        result.map_err(|_| self.fault.take().unwrap_or(Fault::Syntax))
    }
}

/// Equal for equal numbers, also for both zeros.
fn bits(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

pub struct Wrapped<'s, T> {
    inner: T,
    slot: &'s Slot<'s>,
    /// For a visitor: whether it takes a value of any type, which it may keep.
    takes_any: bool,
}

impl<'s, T> Wrapped<'s, T> {
    pub fn new(inner: T, slot: &'s Slot<'s>) -> Self {
        Self { inner, slot, takes_any: false }
    }
}

impl<'de, D: Deserializer<'de>> Wrapped<'_, D> {
    /// Reads a value whose type the visitor checks.
    fn read<V: Visitor<'de>>(self, visitor: V, takes_any: bool) -> Result<V::Value, Fault> {
        let visitor = Wrapped { takes_any, ..Wrapped::new(visitor, self.slot) };
        self.slot.take(self.inner.deserialize_any(visitor))
    }
}

macro_rules! by_any {
    ($($method:ident($($name:ident: $kind:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, Fault> {
            self.read(visitor, false)
        }
    )+};
}

macro_rules! pass {
    ($($method:ident($($name:ident: $kind:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, Fault> {
            self.slot.take(self.inner.$method($($name,)* Wrapped::new(visitor, self.slot)))
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Wrapped<'_, D> {
    type Error = Fault;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.read(ObjectVisitor(visitor), false)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.read(EnumVisitor { visitor, variants }, false)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.read(F32Visitor(visitor), false)
    }

    by_any! {
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_unit();
        deserialize_unit_struct(_name: &'static str);
        deserialize_seq();
        deserialize_tuple(_length: usize);
        deserialize_tuple_struct(_name: &'static str, _length: usize);
        deserialize_map();
        deserialize_identifier();
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.read(visitor, true)
    }

    pass! {
        deserialize_option();
        deserialize_newtype_struct(name: &'static str);
        deserialize_ignored_any();
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($kind:ty);)+) => {$(
        fn $method<E: Error>(self, value: $kind) -> Result<V::Value, E> {
            self.slot.put(self.inner.$method(value))
        }
    )+};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Wrapped<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_i128(i128);
        visit_u64(u64);
        visit_u128(u128);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<V::Value, E> {
        let checked = if self.takes_any { self.slot.check_unchanged(number) } else { Ok(()) };
        self.slot.put(checked.and_then(|()| self.inner.visit_f64(number)))
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.slot.put(self.inner.visit_none())
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.slot.put(self.inner.visit_unit())
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.slot.put(self.inner.visit_some(Wrapped::new(inner, self.slot)))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.slot.put(self.inner.visit_newtype_struct(Wrapped::new(inner, self.slot)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.slot.put(self.inner.visit_seq(Wrapped::new(items, self.slot)))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.slot.put(self.inner.visit_map(Wrapped::new(fields, self.slot)))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Wrapped<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.slot.put(self.inner.deserialize(Wrapped::new(inner, self.slot)))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Wrapped<'_, A> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        self.slot.take(self.inner.next_element_seed(Wrapped::new(seed, self.slot)))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Wrapped<'_, A> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        self.slot.take(self.inner.next_key_seed(Wrapped::new(seed, self.slot)))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        self.slot.take(self.inner.next_value_seed(Wrapped::new(seed, self.slot)))
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// Accepts only an object.
struct ObjectVisitor<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(fields)
    }
}

/// Accepts the name of a variant, or an object with it.
struct EnumVisitor<V> {
    visitor: V,
    variants: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for EnumVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_of(self.variants))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        self.visitor.visit_enum(StrDeserializer::new(name))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(MapAccessDeserializer::new(fields))
    }
}

/// Accepts only numbers that are finite in single precision.
struct F32Visitor<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for F32Visitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<V::Value, E> {
        self.0.visit_i64(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V::Value, E> {
        self.0.visit_u64(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<V::Value, E> {
        match (number as f32).is_finite() {
            true => self.0.visit_f64(number),
            false => Err(E::custom(format!("is {number:?}, which is too large"))),
        }
    }
}
