//! Requested log-probabilities of a prompt's tokens.
//!
//! Upstream models refuse the option, because servers report prompts in different forms.

use crate::engine::MAX_TOP_LOGPROBS;
use crate::error::{Error, Result};

/// Max log-probabilities of the prompts of a response. Each takes up to 100 bytes of it.
const MAX_ENTRIES: usize = 1 << 19;

/// The requested log-probabilities.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::calls) struct PromptLogprobsRequest {
    /// The number of top alternatives per token if the prompt is echoed with log-probabilities.
    pub echoed: Option<u8>,
    /// The number of top alternatives per token in a list of their own.
    pub separate: Option<u8>,
}

impl PromptLogprobsRequest {
    /// The number of top alternatives that the engine computes.
    pub fn top(self) -> Option<u8> {
        self.echoed.max(self.separate)
    }

    /// The field that asks for them.
    fn field(self) -> &'static str {
        if self.separate.is_some() { "prompt_logprobs" } else { "logprobs" }
    }

    /// Refuses a request whose response would be too large. `prompts`: their numbers of tokens.
    pub fn check_size(self, prompts: impl Iterator<Item = usize>, choices: u32) -> Result<()> {
        let per_token = |top: Option<u8>| top.map_or(0, |top| usize::from(top.min(MAX_TOP_LOGPROBS)) + 1);
        let per_token = per_token(self.echoed) + per_token(self.separate);
        let entries = prompts.sum::<usize>().saturating_mul(per_token).saturating_mul(choices as usize);
        if entries <= MAX_ENTRIES {
            return Ok(());
        }
        let field = self.field();
        let text = format!(
            "'{field}' asks for {entries} log-probabilities of prompt tokens; at most {MAX_ENTRIES} are allowed in a response. Lower '{field}' or 'n', or send fewer or shorter prompts in one request."
        );
        Err(Error::invalid(field, text))
    }

    /// Refuses them for an upstream model: targets do not report them in one form.
    pub fn refuse_upstream(self, model: &str) -> Result<()> {
        if self.top().is_none() {
            return Ok(());
        }
        let (field, other) = match self.field() {
            "logprobs" => ("logprobs", "'logprobs' with echo: true"),
            field => (field, "'prompt_logprobs'"),
        };
        let text = format!(
            "{other} asks for log-probabilities of the prompt, which the upstream model '{model}' does not report. Leave it out, or use a model of this server."
        );
        Err(Error::invalid(field, text))
    }
}
