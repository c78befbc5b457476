//! The names of models in Ollama's API: `NAME:TAG`.

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

#[cfg(test)]
mod tests {
    use super::model_id;

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
}
