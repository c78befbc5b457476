//! Regular expressions that only a few strings match.
//!
//! Patterns of property names with few possible values become `properties`, because the compiler generates further
//! properties from a pattern without counting the names that are left. If all of them are there, it would still allow a
//! comma, and generation would fail after it.

use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Hir, HirKind, Look};

/// Patterns with more matches are left as they are.
const MAX_NAMES: usize = 100;

/// All strings that match `pattern`, in its order; `None` if there are too many, or if it may match a part of a string.
pub(super) fn matching_names(pattern: &str) -> Option<Vec<String>> {
    let expression = regex_syntax::parse(pattern).ok()?;
    let edges = expression.properties();
    let is_anchored = edges.look_set_prefix().contains(Look::Start) && edges.look_set_suffix().contains(Look::End);
    // The extraction below ignores assertions, so there may be no others.
    if !is_anchored || count_assertions(&expression) != 2 {
        return None;
    }
    let matches = Extractor::new().limit_total(MAX_NAMES).extract(&expression);
    if !matches.is_exact() {
        return None;
    }
    let mut names = Vec::new();
    for literal in matches.literals()? {
        let name = String::from_utf8(literal.as_bytes().to_vec()).ok()?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names)
}

fn count_assertions(expression: &Hir) -> usize {
    match expression.kind() {
        HirKind::Look(_) => 1,
        HirKind::Repetition(repetition) => count_assertions(&repetition.sub),
        HirKind::Capture(capture) => count_assertions(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().map(count_assertions).sum(),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::matching_names;

    #[test]
    fn patterns_with_few_matches_are_listed() {
        for (pattern, names) in [
            ("^(a|b)$", Some(vec!["a", "b"])),
            ("^(?:left|right)$", Some(vec!["left", "right"])),
            ("^x$", Some(vec!["x"])),
            ("^x_[0-2]$", Some(vec!["x_0", "x_1", "x_2"])),
            ("^(ab?|ab)$", Some(vec!["ab", "a"])),
            ("^a|b$", None),
            ("^(a^b)$", None),
            ("a|b", None),
            ("^x_", None),
            ("^[a-z]+$", None),
            ("^[0-9]{8}$", None),
            ("^(", None),
        ] {
            let found = matching_names(pattern);
            assert_eq!(
                found.as_deref().map(|found| found.iter().map(String::as_str).collect::<Vec<_>>()),
                names,
                "{pattern}"
            );
        }
    }
}
