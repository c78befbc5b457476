//! Finds what a misspelt name was probably meant to be.

use strsim::damerau_levenshtein;

/// More known fields are not listed in a message.
const MAX_LISTED: usize = 10;
/// Longer names are not compared.
const MAX_COMPARED_BYTES: usize = 100;

/// The candidate that is spelt like `name`.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |candidate: &'a str| Some((distance(name, candidate)?, candidate));
    candidates.into_iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// The number of edits from `name` to `candidate`, if at most one of three characters differs. Case, hyphens and
/// underscores do not count.
pub fn distance(name: &str, candidate: &str) -> Option<usize> {
    if name.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let name = folded(name);
    let distance = damerau_levenshtein(&name, &folded(candidate));
    (distance <= name.chars().count() / 3).then_some(distance)
}

fn folded(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// What to say about a field that is not in `known`: a predicate with a full stop or question mark.
pub fn unknown_field(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(meant) => format!("is unknown. Did you mean '{meant}'?"),
        None if known.is_empty() => "is unknown. No field is accepted here.".to_owned(),
        None if known.len() <= MAX_LISTED => format!("is unknown. The fields are {}.", known.join(", ")),
        None => "is unknown. Leave it out.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn misspelt_names_are_recognized() {
        let known = ["temperature", "top_p", "max_tokens", "n", "stop"];
        for (name, meant) in [
            ("temprature", Some("temperature")),
            ("maxTokens", Some("max_tokens")),
            ("max-token", Some("max_tokens")),
            ("stpo", Some("stop")),
            ("topp", Some("top_p")),
            ("k", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), known), None);
    }
}
