//! Lists in a target's response, whose lengths are checked while they are read. An entry of two bytes in JSON may take hundreds in
//! memory.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A list of at most `MAX` entries.
pub struct AtMost<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for AtMost<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData)).map(Self)
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "a list of at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(entry) = entries.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(entry);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::AtMost;

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let read = |text| serde_json::from_str::<AtMost<u8, 2>>(text).map(|list| list.0);
        assert_eq!(read("[1,2]").unwrap(), [1, 2]);
        // It ends before the syntax error.
        let refused = read("[1,2,3,x").err().unwrap();
        assert!(refused.to_string().contains("at most 2 entries"), "{refused}");
    }
}
