//! What a PATCH does to an optional field.

/// Keep it, clear it, or set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<T> {
    Keep,
    Clear,
    Set(T),
}

impl<T> Change<T> {
    /// The field after the change.
    pub(super) fn applied(self, old: Option<T>) -> Option<T> {
        match self {
            Change::Keep => old,
            Change::Clear => None,
            Change::Set(new) => Some(new),
        }
    }

    /// The same change of something made from the value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Change::Keep => Change::Keep,
            Change::Clear => Change::Clear,
            Change::Set(value) => Change::Set(f(value)),
        }
    }
}

impl<T> From<Option<Option<T>>> for Change<T> {
    /// A field of a PATCH: absent, null, or a value.
    fn from(field: Option<Option<T>>) -> Self {
        field.map_or(Change::Keep, |value| value.map_or(Change::Clear, Change::Set))
    }
}
