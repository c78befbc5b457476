//! What chats and completions have in common: fields that both have, and how a response is sent.
//!
//! `keep_alive` has no effect, except that an admin's request with 0 and no prompt unloads the model. Ollama lets each
//! request decide how long a model stays loaded. Here several projects share a model, and Home Assistant sends -1 with
//! every request, so one client would control the memory of all. Ollama's clients expect success, so the response has
//! it, and a header says that nothing happened.

use std::sync::Arc;

use actix_web::HttpResponse;
use serde_json::{Map, Value};

use super::encoder::LineEncoder;
use super::options;
use super::response::{Content, Head};
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems};
use crate::engine::{MAX_TOP_LOGPROBS, TemplateVariable};
use crate::error::{Error, Result};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::prompt_fields;
use crate::http::routes::sampling_fields::within;
use crate::http::routes::turn_response::Delivery;
use crate::http::unknown_fields::unknown_names;
use crate::http::{Api, authentication::Caller};
use crate::ids::RequestId;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = [KEEP_ALIVE];

/// How long a model stays loaded after a request.
const KEEP_ALIVE: &str = "keep_alive";

const LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// What a request says about its response.
pub struct ResponseFields {
    pub is_streamed: bool,
    pub includes_logprobs: bool,
    /// The fields and options that are left out.
    pub ignored: Vec<String>,
    /// The context that the client wants.
    pub context: Option<u32>,
}

impl ResponseFields {
    /// Responds with what `running` generates.
    pub async fn respond<T: Content>(
        mut self,
        running: impl RunningText + 'static,
        head: Head,
        (caller, request_id): (&Caller, Option<RequestId>),
    ) -> ApiResult {
        let window = running.generation().context_window();
        if self.context.is_some_and(|context| context > window) {
            self.ignored.push(options::NUM_CTX.to_owned());
        }
        let kept = if self.is_streamed || !self.includes_logprobs { KeptTokens::None } else { KeptTokens::All };
        let turn = Turn::new(running, OutputItems::or_empty(kept), Arc::clone(&head.clock_rng));
        let delivery = Delivery { caller, request_id, is_streamed: self.is_streamed, ignored: self.ignored };
        delivery.send(LineEncoder::<_, T>::new(turn, head)).await
    }
}

/// The fields of a request that have no effect and could have one.
pub fn unknown(rest: &Map<String, Value>) -> Vec<String> {
    unknown_names(rest, |name, value| *value == Value::Bool(false) || IGNORED.contains(&name))
}

/// The variables of the chat template for `think`: true, false or a level.
pub fn think(think: Option<&Value>) -> Result<Vec<TemplateVariable>> {
    match think {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Bool(enabled)) => Ok(prompt_fields::thinking(*enabled).into()),
        Some(Value::String(level)) if LEVELS.contains(&level.as_str()) => prompt_fields::effort("think", level.clone()),
        Some(_) => Err(Error::invalid("think", "'think' must be true, false, 'low', 'medium', 'high' or 'max'.")),
    }
}

/// The number of alternatives of each token. Without `logprobs`, Ollama ignores it.
pub fn logprobs(logprobs: Option<bool>, top: Option<u32>) -> Result<Option<u8>> {
    let top = within("top_logprobs", top.unwrap_or(0), 0, MAX_TOP_LOGPROBS.into())?;
    Ok(logprobs.unwrap_or(false).then(|| u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS)))
}

/// The response to a request without a prompt: its model is loaded, or with `keep_alive: 0` unloaded. If the model stays
/// loaded all the same, a header names the field. `rest`: the further fields of the request.
pub async fn load<T: Content>(
    caller: &Caller,
    api: &Api,
    id: &str,
    rest: &Map<String, Value>,
    head: &Head,
) -> ApiResult {
    let mut ignored = Vec::new();
    let reason = match is_zero(rest.get(KEEP_ALIVE)) {
        false => {
            api.chat.load(&caller.access, id, &caller.recorder).await?;
            "load"
        }
        true => {
            let unloaded = api.models.release(&caller.access, id).await?;
            ignored.extend((!unloaded).then(|| KEEP_ALIVE.to_owned()));
            "unload"
        }
    };
    Ok(with_lists(HttpResponse::Ok().json(head.without_text::<T>(reason)), &ignored, &[]))
}

/// Whether a duration is zero: seconds, or a text such as `0s`.
fn is_zero(duration: Option<&Value>) -> bool {
    match duration {
        Some(Value::Number(seconds)) => seconds.as_f64() == Some(0.),
        Some(Value::String(text)) => {
            text.starts_with('0') && text.trim_end_matches(char::is_alphabetic).chars().all(|digit| digit == '0')
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_zero_unloads() {
        for zero in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("00m")] {
            assert!(is_zero(Some(&zero)), "{zero}");
        }
        for other in [json!(null), json!(5), json!(-1), json!("5m"), json!("0.5s"), json!(""), json!("m")] {
            assert!(!is_zero(Some(&other)), "{other}");
        }
        assert!(!is_zero(None));
    }

    #[test]
    fn fields_that_ask_for_nothing_are_not_named() {
        let rest = json!({ "keep_alive": "5m", "shift": true, "raw": false, "width": null, "x\n": 1 });
        let named = unknown(rest.as_object().unwrap());
        assert_eq!(named[0], "shift");
        assert_eq!(named.len(), 2);
    }
}
