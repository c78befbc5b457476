//! One answer being generated: its sampler, and what becomes of its tokens.

use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::logprobs;
use super::request::{Ending, Failure, Generation, Piece, TokenInfo, TokenLogprob};
use super::sampler::Sampler;
use super::stop::StopMatcher;
use super::text::TextModel;

pub(super) struct Sequence {
    model: Arc<TextModel>,
    choice: u32,
    /// The newest token.
    pub newest: u32,
    sampler: Sampler,
    text: Detokenizer,
    stop: StopMatcher,
    logprobs: Option<u8>,
    max_tokens: u32,
    generated: u32,
}

impl Sequence {
    pub fn new(model: &Arc<TextModel>, request: &Generation, choice: u32) -> Self {
        Self {
            model: Arc::clone(model),
            choice,
            newest: 0,
            sampler: Sampler::new(request.sampling.clone(), &request.prompt, choice),
            text: Detokenizer::default(),
            stop: StopMatcher::new(request.stop.clone()),
            logprobs: request.logprobs,
            max_tokens: request.max_tokens,
            generated: 0,
        }
    }

    /// Chooses the next token and says what it adds to the answer.
    pub fn accept(&mut self, mut logits: Vec<f32>) -> Result<Piece, Failure> {
        // Rows that pad the embedding stand for no token.
        logits.truncate(self.model.vocabulary());
        let raw = self.logprobs.map(|_| logits.clone());
        let ends = self.model.tokens.ends();
        let id = self
            .sampler
            .next(logits, ends)
            .ok_or_else(|| Failure::Broken("the logits leave no token to choose".to_owned()))?;
        self.newest = id;
        self.generated += 1;
        if ends.contains(&id) {
            return Ok(self.finish(String::new(), Vec::new(), Ending::Stop));
        }
        let tokens = raw.map(|raw| self.explain(id, &raw)).into_iter().collect();
        let decoded = self.text.push(self.model.tokens.visible(id));
        let (text, stopped) = self.stop.push(&decoded);
        if stopped {
            return Ok(self.last(text, tokens, Ending::Stop));
        }
        if self.generated >= self.max_tokens {
            return Ok(self.finish(text, tokens, Ending::Length));
        }
        Ok(self.piece(text, tokens, None))
    }

    /// The answer ends here, with whatever was held back.
    fn finish(&mut self, mut text: String, tokens: Vec<TokenInfo>, end: Ending) -> Piece {
        let (more, stopped) = self.stop.push(&self.text.finish());
        text.push_str(&more);
        if stopped {
            return self.last(text, tokens, Ending::Stop);
        }
        text.push_str(&self.stop.finish());
        self.last(text, tokens, end)
    }

    fn last(&self, text: String, tokens: Vec<TokenInfo>, end: Ending) -> Piece {
        self.piece(text, tokens, Some(end))
    }

    fn piece(&self, text: String, tokens: Vec<TokenInfo>, end: Option<Ending>) -> Piece {
        Piece { choice: self.choice, text, tokens, generated: self.generated, cached: 0, end }
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
