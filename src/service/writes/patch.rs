//! A PATCH of an optional field.

/// Keeps, clears or sets the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Patch<T> {
    /// The field after the patch.
    pub(in crate::service) fn apply_to(self, old: Option<T>) -> Option<T> {
        match self {
            Patch::Keep => old,
            Patch::Clear => None,
            Patch::Set(new) => Some(new),
        }
    }

    /// Maps the value to be set.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Patch<U> {
        match self {
            Patch::Keep => Patch::Keep,
            Patch::Clear => Patch::Clear,
            Patch::Set(value) => Patch::Set(f(value)),
        }
    }
}

impl<T> From<Option<Option<T>>> for Patch<T> {
    /// A field of a PATCH: absent, null, or a value.
    fn from(field: Option<Option<T>>) -> Self {
        field.map_or(Patch::Keep, |value| value.map_or(Patch::Clear, Patch::Set))
    }
}
