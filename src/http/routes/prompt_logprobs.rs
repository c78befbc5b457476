//! The field `prompt_logprobs` of requests and responses, in the format of vLLM.

use serde::{Serialize, Serializer};

use super::completion_body::token_text;
use super::sampling_fields::within;
use crate::calls::turn::output::finite_logprob;
use crate::engine::{MAX_TOP_LOGPROBS, PromptToken, TokenLogprob};
use crate::error::{Error, Result};

/// The number of alternatives. `is_streamed`: whether the response is a stream, which does not have them.
pub fn check(given: Option<i64>, is_streamed: bool) -> Result<Option<u8>> {
    let Some(top) = given else { return Ok(None) };
    if is_streamed {
        let text = "'prompt_logprobs' is not available with stream: true. Leave one of them out.";
        return Err(Error::invalid("prompt_logprobs", text));
    }
    let top = within("prompt_logprobs", top, 0, MAX_TOP_LOGPROBS.into())?;
    Ok(Some(u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS)))
}

/// One entry for each token of the prompt.
pub fn body(tokens: &[PromptToken], top: u8) -> PromptLogprobs {
    let entry = |token: &PromptToken| {
        let found = token.logprob.as_ref()?;
        let own = Alternative::new(&token.bytes, found.logprob, found.rank);
        let top = (1..).zip(&found.top).take(top.into()).filter(|(_, other)| other.id != token.id);
        let top = top.map(|(rank, TokenLogprob { id, bytes, logprob })| (*id, Alternative::new(bytes, *logprob, rank)));
        Some(Alternatives([(token.id, own)].into_iter().chain(top).collect()))
    };
    PromptLogprobs(tokens.iter().map(entry).collect())
}

/// One entry for each token of the prompt, by token id. The first is null, because nothing precedes that token.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(value_type = Vec<Option<BTreeMap<String, Alternative>>>)]
pub struct PromptLogprobs(Vec<Option<Alternatives>>);

/// The token of the prompt, and the most likely ones in order, by their ids.
struct Alternatives(Vec<(u32, Alternative)>);

impl Serialize for Alternatives {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, one)| (id, one)))
    }
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = PromptTokenLogprob)]
struct Alternative {
    logprob: f32,
    /// 1 for the most likely token.
    rank: u32,
    /// The token's text; bytes that are no text as `bytes:\xf0\x9f`.
    decoded_token: String,
}

impl Alternative {
    fn new(bytes: &[u8], logprob: f32, rank: u32) -> Self {
        Self { logprob: finite_logprob(logprob), rank, decoded_token: token_text(bytes) }
    }
}
