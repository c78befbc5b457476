//! The permissions of keys.

use std::fmt;

use outpost_common::display::shorten;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// One permission of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Operate the installation: access every project and create projects.
    Admin,
    /// Manage the key's own project.
    Project,
    /// Call models.
    Inference,
}

impl Scope {
    pub const ALL: [Scope; 3] = [Scope::Admin, Scope::Project, Scope::Inference];

    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::Project => "project",
            Scope::Inference => "inference",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Scope::Admin => 1,
            Scope::Project => 2,
            Scope::Inference => 4,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// The default scopes of a new key.
    pub const DEFAULT: Scopes = Scopes(2 | 4);
    pub const ALL: Scopes = Scopes(1 | 2 | 4);

    pub fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: Scopes) -> Scopes {
        Scopes(self.0 & other.0)
    }

    /// Parses scope names; errors refer to the field `scopes`.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Scopes> {
        if names.is_empty() {
            return Err(Error::invalid(
                "scopes",
                "'scopes' must name at least one of admin, project, inference; leave it out for the default.",
            ));
        }
        names.iter().enumerate().try_fold(Scopes::default(), |found, (index, name)| {
            let scope = Scope::ALL.into_iter().find(|scope| scope.as_str() == name.as_ref());
            let scope = scope.ok_or_else(|| {
                Error::invalid(
                    format!("scopes[{index}]"),
                    format!(
                        "'scopes[{index}]' is '{}'; the scopes are admin, project and inference.",
                        shorten(name.as_ref())
                    ),
                )
            })?;
            Ok(Scopes(found.0 | scope.bit()))
        })
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Scope::as_str).collect();
        f.write_str(&names.join(", "))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// As names for clients, as bits in records.
impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_seq(self.iter()),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.is_human_readable() {
            true => Scopes::from_names(&Vec::<String>::deserialize(deserializer)?).map_err(serde::de::Error::custom),
            // Unknown bits grant nothing.
            false => u8::deserialize(deserializer).map(|bits| Scopes(bits & Self::ALL.0)),
        }
    }
}
