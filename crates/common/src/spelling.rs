//! Finds what a misspelled name was probably meant to be.

use strsim::damerau_levenshtein;

/// More known fields are not listed in a message.
const MAX_LISTED: usize = 10;
/// Shorter names are not taken for the beginning of another.
const MIN_PREFIX_BYTES: usize = 4;
/// Longer names are not compared.
const MAX_COMPARED_BYTES: usize = 100;

/// The candidate that is spelled like `name`, or the only one that begins with it.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str, IntoIter: Clone>) -> Option<&'a str> {
    let candidates = candidates.into_iter();
    let near = |candidate: &'a str| Some((distance(name, candidate)?, candidate));
    let nearest = candidates.clone().filter_map(near).min_by_key(|(distance, _)| *distance);
    if let Some((_, candidate)) = nearest {
        return Some(candidate);
    }
    let mut longer = candidates.filter(|candidate| name.len() >= MIN_PREFIX_BYTES && candidate.starts_with(name));
    longer.next().filter(|_| longer.next().is_none())
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

/// The error for a field that is not in `known`: a predicate with a full stop or question mark.
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
    fn misspelled_names_are_recognized() {
        let known = ["temperature", "top_p", "max_tokens", "n", "stop"];
        for (name, meant) in [
            ("temprature", Some("temperature")),
            ("maxTokens", Some("max_tokens")),
            ("max-token", Some("max_tokens")),
            ("stpo", Some("stop")),
            ("topp", Some("top_p")),
            ("temp", Some("temperature")),
            ("max_", Some("max_tokens")),
            ("k", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), known), None);
    }
}
