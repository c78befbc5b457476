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
