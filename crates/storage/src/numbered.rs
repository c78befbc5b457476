//! Enumerations that are numbers in records.

/// Declares an enumeration whose values are numbers in records and names in JSON. `else`: the value that is read if a later
/// version wrote another number.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident else $unknown:ident { $($(#[$doc:meta])* $value:ident = $number:literal $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    return serializer.serialize_str(self.as_str());
                }
                serializer.serialize_u8(match self {
                    $(Self::$value => $number,)+
                })
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                    let found = Self::ALL.iter().find(|value| value.as_str() == name).copied();
                    return found.ok_or_else(|| serde::de::Error::unknown_variant(&name, &[$($text),+]));
                }
                Ok(match <u8 as serde::Deserialize>::deserialize(deserializer)? {
                    $($number => Self::$value,)+
                    _ => Self::$unknown,
                })
            }
        }
    };
}

pub(crate) use numbered;

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, StrDeserializer};
    use serde::{Deserialize, Serialize};

    use crate::codec::{Record, decode, encode};
    use crate::pepper::Pepper;
    use crate::tables::{MESSAGES, Table};

    numbered! {
        State else Ended {
            Running = 3 "running",
            Ended = 5 "ended",
        }
    }

    /// Either of a state or of its number.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Row<T>(T);

    impl<T: Serialize + for<'a> Deserialize<'a>> Record for Row<T> {
        const TABLE: Table = MESSAGES;
        const VERSION: u8 = 1;
    }

    #[test]
    fn a_value_is_its_number_in_records_and_its_name_in_json() {
        let pepper = Pepper::from_bytes([7; 32]);
        let stored = |number: u8| encode(&pepper, b"key", &Row(number)).unwrap();
        let named = |name| State::deserialize(StrDeserializer::<Error>::new(name));
        for (state, number) in [(State::Running, 3), (State::Ended, 5)] {
            assert_eq!(encode(&pepper, b"key", &Row(state)).unwrap(), stored(number));
            assert_eq!(decode::<Row<State>>(&pepper, b"key", &stored(number)).unwrap().0, state);
            assert_eq!(named(state.as_str()).unwrap(), state);
        }
        assert_eq!(decode::<Row<State>>(&pepper, b"key", &stored(9)).unwrap().0, State::Ended);
        assert!(named("paused").is_err());
    }
}
