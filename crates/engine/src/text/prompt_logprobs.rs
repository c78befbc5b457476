//! Log-probabilities of a prompt's tokens, from the logits of its prefill.
//!
//! Each step reduces the logits of its chunk of the prompt, so that they never exist for the whole prompt. The
//! positions are added in order. After a preemption, the scheduler continues with the first position that was not
//! added.
//!
//! The prefix cache holds keys and values but no logits, so such a prompt does not read it. A step computes the logits
//! of at most as many positions as scratch buffers are reserved for; a matrix of the whole prompt would take gigabytes.
//! These steps are not measured, so other prompts keep their chunk size.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Failure, are_finite};
use crate::text::logprobs::{log_sum_exp, rank, top_tokens};
use crate::text::model::TextModel;
use crate::text::request::{GenerationRequest, PromptLogprob, PromptToken, TokenLogprob};
use outpost_models::backend::Pool;

pub struct PromptScorer {
    model: Arc<TextModel>,
    prompt: Arc<[u32]>,
    /// How many of the most likely tokens are reported.
    top: usize,
    /// The tokens of the prompt so far.
    tokens: Vec<PromptToken>,
}

impl PromptScorer {
    /// `None`: the request does not ask for log-probabilities of its prompt.
    pub fn new(model: &Arc<TextModel>, request: &GenerationRequest) -> Option<Self> {
        let top = usize::from(request.prompt_logprobs?);
        let (model, prompt) = (Arc::clone(model), Arc::clone(request.prompt.ids()));
        let first = prompt.first().map(|id| token(&model, *id, None));
        Some(Self { model, prompt, top, tokens: first.into_iter().collect() })
    }

    /// Adds the tokens that the logits (`[vocabulary]` each) of the positions from `start` on predict.
    pub fn add(&mut self, start: usize, logits: &[&mut [f32]], pool: &Pool) -> Result<(), Failure> {
        let targets = self.prompt.get(start + 1..).unwrap_or_default();
        let tasks: Vec<_> = targets.iter().zip(logits).map(|(id, logits)| (*id, &**logits, Mutex::new(None))).collect();
        pool.run(tasks.len(), |index| {
            let Some((id, logits, done)) = tasks.get(index) else { return };
            let scored = self.score(*id, logits);
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(scored);
        });
        for (id, _, done) in tasks {
            let Some(scored) = done.into_inner().unwrap_or_else(PoisonError::into_inner) else { continue };
            self.tokens.push(token(&self.model, id, Some(scored?)));
        }
        Ok(())
    }

    /// The tokens of the prompt.
    pub fn finish(self) -> Arc<[PromptToken]> {
        self.tokens.into()
    }

    fn score(&self, id: u32, logits: &[f32]) -> Result<PromptLogprob, Failure> {
        // The output layer may be padded beyond the vocabulary.
        let logits = &logits[..self.model.vocabulary().min(logits.len())];
        if !are_finite(logits) {
            return Err(Failure::not_finite(self.model.id()));
        }
        let norm = log_sum_exp(logits);
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let describe = |(id, logit): (u32, f32)| TokenLogprob {
            id,
            bytes: self.model.token_bytes(id).to_vec(),
            logprob: logit - norm,
        };
        let top = top_tokens(logits, self.top).into_iter().map(describe).collect();
        Ok(PromptLogprob { logprob: logit - norm, rank: rank(logits, logit), top })
    }
}

fn token(model: &TextModel, id: u32, logprob: Option<PromptLogprob>) -> PromptToken {
    PromptToken { id, bytes: model.token_bytes(id).to_vec(), is_control: model.vocabulary.is_control(id), logprob }
}
