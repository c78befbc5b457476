//! Why the compiler rejects a grammar.

use std::fmt;

/// Why the compiler rejects a grammar, in our words: its own texts name its options and quote the grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    Unsatisfiable,
    OverlappingAlternatives,
    TooComplex,
    Pattern,
    Keyword,
    Other,
}

impl Rejection {
    /// Reads the compiler's error. Only its first line counts, because the others quote names of the schema.
    pub fn of(error: &str) -> Self {
        if error.starts_with("panic:") {
            return Self::TooComplex;
        }
        let line = error.lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| error.lines().next());
        let line = line.unwrap_or_default();
        let has = |words: &[&str]| words.iter().any(|word| line.contains(word));
        if line.starts_with("Unsatisfiable schema") {
            Self::Unsatisfiable
        } else if has(&["oneOf"]) {
            Self::OverlappingAlternatives
        } else if has(&["too large", "too big", "too many", "fuel", "limit", "exceeded"]) {
            Self::TooComplex
        } else if has(&["regex", "Regex", "pattern"]) {
            Self::Pattern
        } else if has(&["Unimplemented", "not supported", "not implemented"]) {
            Self::Keyword
        } else {
            Self::Other
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsatisfiable => "it is unsatisfiable: no value meets all of its conditions",
            Self::OverlappingAlternatives => "alternatives of a 'oneOf' may overlap. Use 'anyOf'",
            Self::TooComplex => "it is too complex. Simplify it",
            Self::Pattern => "a 'pattern' has a part that this server cannot enforce. Simplify the pattern",
            Self::Keyword => "it has a keyword that this server cannot enforce",
            Self::Other => "it has a part that this server cannot enforce. Simplify it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Rejection;

    #[test]
    fn names_in_the_schema_do_not_change_the_reason() {
        for (error, reason) in [
            ("Invalid regex\n  while processing #/$defs/rate_limit", Rejection::Pattern),
            ("something new\n  while processing #/$defs/Unsatisfiable schema", Rejection::Other),
            ("Unsatisfiable schema: required property 'pattern' is unsatisfiable", Rejection::Unsatisfiable),
            ("panic: limit", Rejection::TooComplex),
        ] {
            assert_eq!(Rejection::of(error), reason, "{error}");
        }
    }
}
