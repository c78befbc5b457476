//! Ollama's API: <https://docs.ollama.com/api>. The same calls as those of the other APIs, below `/api`.

mod body;
mod chat;
mod content;
mod delivery;
mod embed;
mod generate;
mod installation;
mod lines;
mod models;
mod options;
mod output;
mod response;

use utoipa_actix_web::service_config::ServiceConfig;

use crate::service::fine_tuning::TUNED_PREFIX;

/// The version of Ollama's API that is implemented. Clients require a minimum: VS Code 0.6.4. 0.12.11 is the first with
/// `logprobs`; from 0.13.4 on, Codex expects OpenAI's Responses API.
const VERSION: &str = "0.12.11";

/// The tag of every model name that has none.
const LATEST: &str = ":latest";

/// The routes below `/api`.
pub fn mount(config: &mut ServiceConfig) {
    config
        .configure(models::routes)
        .configure(chat::routes)
        .configure(generate::routes)
        .configure(embed::routes)
        .configure(installation::routes);
}

/// The ID of the model that a client names: `NAME:latest` is `NAME`. The names of tuned models have colons of their own.
fn model_id(name: &str) -> &str {
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
