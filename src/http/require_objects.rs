//! Deserializes structs only from JSON objects.
//!
//! A derived `Deserialize` also accepts an array for a struct, with the fields in order. So
//! `[null, null]` would rotate a key, and a new field would change what such an array means. This
//! layer around any deserializer requires a map for every struct, at every depth.
//! (It has no effect inside untagged enums, where serde deserializes from its own buffer.)

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};

/// A deserializer, a visitor, an access or a seed, wrapped so that everything inside is wrapped too.
pub struct RequireObjects<T>(pub T);

macro_rules! pass {
    ($($method:ident($($name:ident: $kind:ty),*);)+) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, Self::Error> {
            self.0.$method($($name,)* RequireObjects(visitor))
        }
    )+};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for RequireObjects<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_map(RequireObjects(visitor))
    }

    pass! {
        deserialize_any();
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
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($kind:ty);)+) => {$(
        fn $method<E: serde::de::Error>(self, value: $kind) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )+};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for RequireObjects<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_i128(i128);
        visit_u64(u64);
        visit_u128(u128);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(RequireObjects(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(RequireObjects(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(RequireObjects(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(RequireObjects(fields))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, variant: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(RequireObjects(variant))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for RequireObjects<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(RequireObjects(inner))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for RequireObjects<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(RequireObjects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for RequireObjects<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(RequireObjects(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(RequireObjects(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for RequireObjects<A> {
    type Error = A::Error;
    type Variant = RequireObjects<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        self.0.variant_seed(RequireObjects(seed)).map(|(value, variant)| (value, RequireObjects(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for RequireObjects<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(RequireObjects(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, RequireObjects(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, RequireObjects(visitor))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::RequireObjects;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        number: Option<i64>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        text: Option<String>,
        inner: Option<Inner>,
        list: Option<Vec<Inner>>,
    }

    fn read(text: &str) -> Option<Outer> {
        Outer::deserialize(RequireObjects(&mut serde_json::Deserializer::from_str(text))).ok()
    }

    #[test]
    fn arrays_are_rejected_as_objects_at_every_depth() {
        let whole = read(r#"{ "text": "a", "inner": { "number": 1 }, "list": [{ "number": 2 }, {}] }"#).unwrap();
        assert_eq!(whole.list.unwrap().len(), 2);
        assert_eq!(whole.inner, Some(Inner { number: Some(1) }));
        for text in ["[]", "[null, null, null]", r#"{ "inner": [1] }"#, r#"{ "list": [[2]] }"#] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
