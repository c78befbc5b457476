//! One choice being generated: its sampler, grammar, detokenizer and the parser of its output.

use std::sync::Arc;

use crate::error::Failure;
use crate::error::are_finite;
use crate::text::detokenizer::Detokenizer;
use crate::text::grammar;
use crate::text::harmony::AllowedTokens;
use crate::text::logprobs;
use crate::text::model::TextModel;
use crate::text::output_parser::{Output, OutputParser};
use crate::text::request::{FinishReason, GenerationRequest, TextDelta, TextOptions, TokenInfo, TokenLogprob};
use crate::text::sampler::Sampler;

pub struct Sequence {
    model: Arc<TextModel>,
    choice: u32,
    /// The last sampled token.
    pub last_token: u32,
    sampler: Sampler,
    /// The state in the grammar of the requested output format.
    grammar: Option<grammar::GrammarState>,
    parser: OutputParser,
    text: Detokenizer,
    options: TextOptions,
    logprobs: Option<u8>,
    /// Reports log-probabilities of the end-of-sequence token, too.
    reports_all: bool,
    max_tokens: u32,
    generated: u32,
}

impl Sequence {
    pub fn new(model: &Arc<TextModel>, request: &GenerationRequest, choice: u32) -> Self {
        let (parser, grammar) = OutputParser::new(model, request);
        Self {
            model: Arc::clone(model),
            choice,
            last_token: 0,
            sampler: Sampler::new(request.sampling.clone(), request.prompt.ids(), choice),
            grammar,
            parser,
            text: Detokenizer::default(),
            options: request.text,
            logprobs: request.logprobs,
            reports_all: request.prompt_logprobs.is_some(),
            max_tokens: request.max_tokens,
            generated: 0,
        }
    }

    /// The only delta of a choice of which nothing is to be generated.
    pub fn end_at_prompt(&mut self) -> Option<TextDelta> {
        (self.max_tokens == 0).then(|| self.finish(Output::default(), Vec::new(), FinishReason::Length))
    }

    /// Samples the next token and returns what it adds to the choice. `logits` (`[vocabulary]`) are modified.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<TextDelta, Failure> {
        // The output layer may be padded beyond the vocabulary.
        let tokens = self.model.vocabulary().min(logits.len());
        let logits = &mut logits[..tokens];
        if !are_finite(logits) {
            return Err(Failure::not_finite(self.model.id()));
        }
        let (was_answer, is_governed) = (self.parser.is_answer(), self.parser.is_governed());
        let raw = self.logprobs.filter(|_| was_answer).map(|_| logits.to_vec());
        self.restrict(logits)?;
        let ends = self.model.vocabulary.eos_ids();
        let id = self.sampler.next(logits, ends).ok_or(Failure::NoToken)?;
        self.last_token = id;
        self.generated += 1;
        let is_last = self.sampler.ends_with(id, ends);
        let vocabulary = &self.model.vocabulary;
        let bytes = if self.options.keeps_special_tokens { vocabulary.bytes(id) } else { vocabulary.visible(id) };
        if is_last && (bytes.is_empty() || !self.options.keeps_stop) {
            let raw = raw.filter(|_| self.reports_all);
            let tokens = raw.map(|raw| self.token_info(id, &raw)).into_iter().collect();
            return Ok(self.finish(Output::default(), tokens, FinishReason::Stop));
        }
        let decoded = if self.parser.is_marker(id) { self.text.finish() } else { self.text.push(bytes) };
        if is_governed && !is_last {
            self.consume(id)?;
        }
        let output = self.parser.push(id, &decoded);
        let raw = raw.filter(|_| self.parser.is_answer());
        let tokens = raw.map(|raw| self.token_info(id, &raw)).into_iter().collect();
        if output.end.is_some() {
            return Ok(self.delta(output, tokens));
        }
        if is_last {
            return Ok(self.finish(output, tokens, FinishReason::Stop));
        }
        if self.parser.is_governed() && self.grammar.as_ref().is_some_and(grammar::GrammarState::is_complete) {
            return Ok(self.finish(output, tokens, FinishReason::Stop));
        }
        if self.generated >= self.max_tokens {
            return Ok(self.finish(output, tokens, FinishReason::Length));
        }
        Ok(self.delta(output, tokens))
    }

    /// Bans the tokens that cannot come next. The grammar of most models applies to the answer only; its first token may begin
    /// the reasoning instead.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        match self.parser.allowed() {
            AllowedTokens::All => {}
            AllowedTokens::Only(allowed) => {
                let others = (0..).zip(logits.iter_mut()).filter(|(id, _)| !allowed.contains(id));
                others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
            AllowedTokens::AllBut(banned) => {
                for id in banned {
                    logits.get_mut(*id as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
                }
            }
        }
        if !self.parser.is_governed() {
            return Ok(());
        }
        let Some(grammar) = &mut self.grammar else { return Ok(()) };
        let exempt = self.parser.exempt().map(|id| id as usize);
        let kept = exempt.and_then(|id| Some((id, *logits.get(id)?)));
        grammar.restrict(logits)?;
        if let Some((id, logit)) = kept
            && let Some(slot) = logits.get_mut(id)
        {
            *slot = logit;
        }
        Ok(())
    }

    /// Advances the grammar, if there is one, past a token that it governs.
    fn consume(&mut self, id: u32) -> Result<(), Failure> {
        let Some(grammar) = &mut self.grammar else { return Ok(()) };
        if self.parser.is_taken_by_grammar(id) { grammar.consume(id) } else { Ok(()) }
    }

    /// Ends the choice and flushes the text that was held back.
    fn finish(&mut self, output: Output, tokens: Vec<TokenInfo>, end: FinishReason) -> TextDelta {
        let rest = self.text.finish();
        let output = self.parser.finish(rest, output, end);
        self.delta(output, tokens)
    }

    fn delta(&self, output: Output, tokens: Vec<TokenInfo>) -> TextDelta {
        let Output { reasoning, text, calls, end } = output;
        let end = match end {
            Some(FinishReason::Stop) if self.parser.has_calls() => Some(FinishReason::ToolCalls),
            end => end,
        };
        // A choice that ends at its prompt has none.
        let has_token = self.options.has_token_ids && self.generated > 0;
        TextDelta {
            choice: self.choice,
            reasoning,
            text,
            calls,
            tokens,
            token_ids: if has_token { vec![self.last_token] } else { Vec::new() },
            prompt: None,
            generated: self.generated,
            reasoning_tokens: self.parser.reasoning_tokens(),
            cached: 0,
            end,
        }
    }

    fn token_info(&self, id: u32, raw: &[f32]) -> TokenInfo {
        let norm = logprobs::log_sum_exp(raw);
        let describe = |id: u32, logit: f32| TokenLogprob {
            id,
            bytes: self.model.token_bytes(id).to_vec(),
            logprob: logit - norm,
        };
        let top = logprobs::top_tokens(raw, usize::from(self.logprobs.unwrap_or(0)));
        let logit = raw.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        TokenInfo {
            token: describe(id, logit),
            is_control: !self.options.keeps_special_tokens && self.model.vocabulary.is_control(id),
            top: top.into_iter().map(|(id, logit)| describe(id, logit)).collect(),
        }
    }
}
