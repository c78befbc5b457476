//! The names of models in Ollama's API: `NAME:TAG`.
//!
//! Clients of Ollama compare `NAME:latest` with the list, and some send the listed name to `/v1`. So `/api` lists the
//! tag, and every API accepts it. Clients of OpenAI compare IDs, so the lists of the other APIs have no tags.

use crate::service::fine_tuning::TUNED_PREFIX;

/// The tag of every model name that has none.
const LATEST: &str = ":latest";

/// The ID of the model that a client names: `NAME:latest` is `NAME`. The names of tuned models have colons of their own.
pub fn model_id(name: &str) -> &str {
    match name.strip_suffix(LATEST) {
        Some(id) if !name.starts_with(TUNED_PREFIX) => id,
        _ => name,
    }
}

/// The name under which Ollama's API lists a model. It always has a tag, with which clients compare their own names.
pub fn tagged_name(id: &str) -> String {
    let last = id.rsplit('/').next().unwrap_or(id);
    if last.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}

#[cfg(test)]
mod tests {
    use super::{model_id, tagged_name};

    #[test]
    fn the_tag_latest_is_left_out() {
        for (name, id) in [
            ("tiny", "tiny"),
            ("tiny:latest", "tiny"),
            ("qwen:0.5b", "qwen:0.5b"),
            ("ft:tiny:acme::abc", "ft:tiny:acme::abc"),
            ("ft:tiny:latest", "ft:tiny:latest"),
        ] {
            assert_eq!(model_id(name), id);
        }
    }

    #[test]
    fn a_name_without_a_tag_gets_one() {
        for (id, name) in
            [("tiny", "tiny:latest"), ("a/b", "a/b:latest"), ("qwen:0.5b", "qwen:0.5b"), ("ft:a:b::c", "ft:a:b::c")]
        {
            assert_eq!(tagged_name(id), name);
            assert_eq!(model_id(name), id);
        }
    }
}
