//! One answer being generated: its sampler, and what becomes of its tokens.

use std::sync::Arc;

use crate::engine::error::Failure;
use crate::engine::error::are_finite;
use crate::engine::text::detokenizer::Detokenizer;
use crate::engine::text::grammar;
use crate::engine::text::logprobs;
use crate::engine::text::model::TextModel;
use crate::engine::text::request::{FinishReason, GenerationRequest, TextDelta, TokenInfo, TokenLogprob};
use crate::engine::text::sampler::Sampler;
use crate::engine::text::stop::StopMatcher;
use crate::engine::text::tools::{CallParser, ToolCallDelta};

pub struct Sequence {
    model: Arc<TextModel>,
    choice: u32,
    /// The newest token.
    pub newest: u32,
    sampler: Sampler,
    /// Where the answer stands in the form that was demanded.
    grammar: Option<grammar::State>,
    calls: Option<CallParser>,
    text: Detokenizer,
    stop: StopMatcher,
    logprobs: Option<u8>,
    max_tokens: u32,
    generated: u32,
}

impl Sequence {
    pub fn new(model: &Arc<TextModel>, request: &GenerationRequest, choice: u32) -> Self {
        Self {
            model: Arc::clone(model),
            choice,
            newest: 0,
            sampler: Sampler::new(request.sampling.clone(), &request.prompt, choice),
            grammar: request.form.as_ref().map(|form| form.state()),
            calls: request.form.as_ref().and_then(|form| form.syntax.clone()).map(CallParser::new),
            text: Detokenizer::default(),
            stop: StopMatcher::new(request.stop.clone()),
            logprobs: request.logprobs,
            max_tokens: request.max_tokens,
            generated: 0,
        }
    }

    /// Chooses the next token and says what it adds to the answer. The logits are changed on the way.
    pub fn accept(&mut self, logits: &mut [f32]) -> Result<TextDelta, Failure> {
        // Rows that pad the embedding stand for no token.
        let tokens = self.model.vocabulary().min(logits.len());
        let logits = logits.get_mut(..tokens).unwrap_or_default();
        if !are_finite(logits) {
            return Err(Failure::not_finite(self.model.id()));
        }
        let raw = self.logprobs.map(|_| logits.to_vec());
        if let Some(grammar) = &mut self.grammar {
            grammar.restrict(logits)?;
        }
        let ends = self.model.vocabulary.ends();
        let id = self.sampler.next(logits, ends).ok_or_else(banned)?;
        self.newest = id;
        self.generated += 1;
        if ends.contains(&id) {
            return Ok(self.finish(Shown::default(), Vec::new(), FinishReason::Stop));
        }
        if let Some(grammar) = &mut self.grammar {
            grammar.take(id)?;
        }
        let tokens = raw.map(|raw| self.explain(id, &raw)).into_iter().collect();
        let decoded = self.text.push(self.model.vocabulary.visible(id));
        let (shown, stopped) = self.show(id, &decoded);
        if stopped {
            return Ok(self.last(shown, tokens, FinishReason::Stop));
        }
        if self.grammar.as_ref().is_some_and(grammar::State::is_complete) {
            return Ok(self.finish(shown, tokens, FinishReason::Stop));
        }
        if self.generated >= self.max_tokens {
            return Ok(self.finish(shown, tokens, FinishReason::Length));
        }
        Ok(self.piece(shown, tokens, None))
    }

    /// What a token adds to text and calls, and whether the answer ends with it.
    fn show(&mut self, id: u32, decoded: &str) -> (Shown, bool) {
        let Some(parser) = &mut self.calls else {
            let (text, stopped) = self.stop.push(decoded);
            return (Shown { text, calls: Vec::new() }, stopped);
        };
        let parsed = parser.push(id, decoded);
        let (mut text, stopped) = self.stop.push(&parsed.text);
        if stopped {
            return (Shown { text, calls: Vec::new() }, true);
        }
        if parser.is_calling() {
            text.push_str(&self.stop.finish());
        }
        (Shown { text, calls: parsed.calls }, parsed.over)
    }

    /// The answer ends here, with whatever was held back.
    fn finish(&mut self, mut shown: Shown, tokens: Vec<TokenInfo>, end: FinishReason) -> TextDelta {
        let mut rest = self.text.finish();
        if let Some(parser) = &mut self.calls {
            // An incomplete character inside of a call is no text.
            rest = if parser.is_calling() { String::new() } else { parser.finish() + &rest };
        }
        let (more, stopped) = self.stop.push(&rest);
        shown.text.push_str(&more);
        if stopped {
            return self.last(shown, tokens, FinishReason::Stop);
        }
        shown.text.push_str(&self.stop.finish());
        self.last(shown, tokens, end)
    }

    fn last(&self, shown: Shown, tokens: Vec<TokenInfo>, end: FinishReason) -> TextDelta {
        let called = self.calls.as_ref().is_some_and(CallParser::called);
        let end = if called && end == FinishReason::Stop { FinishReason::Calls } else { end };
        self.piece(shown, tokens, Some(end))
    }

    fn piece(&self, shown: Shown, tokens: Vec<TokenInfo>, end: Option<FinishReason>) -> TextDelta {
        let Shown { text, calls } = shown;
        TextDelta { choice: self.choice, text, calls, tokens, generated: self.generated, cached: 0, end }
    }

    fn explain(&self, id: u32, raw: &[f32]) -> TokenInfo {
        let norm = logprobs::normalizer(raw);
        let describe = |id: u32, logit: f32| TokenLogprob {
            id,
            bytes: self.model.token_bytes(id).to_vec(),
            logprob: logit - norm,
        };
        let top = logprobs::likeliest(raw, usize::from(self.logprobs.unwrap_or(0)));
        let logit = raw.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        TokenInfo { token: describe(id, logit), top: top.into_iter().map(|(id, logit)| describe(id, logit)).collect() }
    }
}

/// What a step adds to what a caller sees.
#[derive(Default)]
struct Shown {
    text: String,
    calls: Vec<ToolCallDelta>,
}

/// The failure where nothing can be chosen.
fn banned() -> Failure {
    Failure::Grammar("logit_bias bans every token that could come next".to_owned())
}
