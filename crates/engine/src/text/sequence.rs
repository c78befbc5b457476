//! One choice being generated: its sampler, grammar, detokenizer and stop strings.

use std::sync::Arc;

use crate::error::Failure;
use crate::error::are_finite;
use crate::text::detokenizer::Detokenizer;
use crate::text::grammar;
use crate::text::logprobs;
use crate::text::model::TextModel;
use crate::text::reasoning::{ReasoningParser, Split};
use crate::text::request::{FinishReason, GenerationRequest, TextDelta, TextOptions, TokenInfo, TokenLogprob};
use crate::text::sampler::Sampler;
use crate::text::stop::StopMatcher;
use crate::text::tools::{CallParser, ToolCallDelta};

pub struct Sequence {
    model: Arc<TextModel>,
    choice: u32,
    /// The last sampled token.
    pub last_token: u32,
    sampler: Sampler,
    /// The state in the grammar of the requested output format.
    grammar: Option<grammar::GrammarState>,
    reasoning: Option<ReasoningParser>,
    calls: Option<CallParser>,
    text: Detokenizer,
    stop: StopMatcher,
    options: TextOptions,
    logprobs: Option<u8>,
    /// Reports log-probabilities of the end-of-sequence token, too.
    reports_all: bool,
    max_tokens: u32,
    generated: u32,
}

impl Sequence {
    pub fn new(model: &Arc<TextModel>, request: &GenerationRequest, choice: u32) -> Self {
        Self {
            model: Arc::clone(model),
            choice,
            last_token: 0,
            sampler: Sampler::new(request.sampling.clone(), request.prompt.ids(), choice),
            grammar: request.grammar.as_ref().map(|grammar| grammar.state()),
            calls: request.grammar.as_ref().and_then(|grammar| grammar.syntax.clone()).map(CallParser::new),
            reasoning: request.reasoning.and_then(|reasoning| model.reasoning_parser(reasoning)),
            text: Detokenizer::default(),
            stop: StopMatcher::new(request.stop.clone()).keeping_stop(request.text.keeps_stop),
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
        let was_reasoning = self.is_reasoning();
        let raw = self.logprobs.filter(|_| !was_reasoning).map(|_| logits.to_vec());
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
        let decoded = self.text.push(bytes);
        if !was_reasoning && !is_last {
            self.consume(id)?;
        }
        let (output, end) = self.parse(id, &decoded);
        let raw = raw.filter(|_| !self.is_reasoning());
        let tokens = raw.map(|raw| self.token_info(id, &raw)).into_iter().collect();
        if let Some(end) = end {
            return Ok(self.final_delta(output, tokens, end));
        }
        if is_last {
            return Ok(self.finish(output, tokens, FinishReason::Stop));
        }
        if !self.is_reasoning() && self.grammar.as_ref().is_some_and(grammar::GrammarState::is_complete) {
            return Ok(self.finish(output, tokens, FinishReason::Stop));
        }
        if self.generated >= self.max_tokens {
            return Ok(self.finish(output, tokens, FinishReason::Length));
        }
        Ok(self.delta(output, tokens, None))
    }

    fn is_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(ReasoningParser::is_open)
    }

    /// Bans the tokens that cannot come next. The grammar applies to the answer only; its first token may begin the
    /// reasoning instead.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), Failure> {
        let forced = self.reasoning.as_ref().and_then(ReasoningParser::forced);
        if let Some(forced) = forced {
            let others = logits.iter_mut().enumerate().filter(|(id, _)| *id != forced as usize);
            others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        // A token is forced only within the reasoning.
        if self.is_reasoning() {
            return Ok(());
        }
        let Some(grammar) = &mut self.grammar else { return Ok(()) };
        let opening = self.reasoning.as_ref().and_then(ReasoningParser::opening_id).map(|id| id as usize);
        let kept = opening.and_then(|id| Some((id, *logits.get(id)?)));
        grammar.restrict(logits)?;
        if let Some((id, logit)) = kept
            && let Some(slot) = logits.get_mut(id)
        {
            *slot = logit;
        }
        Ok(())
    }

    /// Advances the grammar, if there is one, past a token that does not begin the reasoning.
    fn consume(&mut self, id: u32) -> Result<(), Failure> {
        let Some(grammar) = &mut self.grammar else { return Ok(()) };
        if let Some(reasoning) = &mut self.reasoning {
            if reasoning.opening_id() == Some(id) {
                return Ok(());
            }
            reasoning.skip();
        }
        grammar.consume(id)
    }

    /// Splits a token's text into reasoning, text and tool calls. Also returns the reason if the choice ends with it.
    fn parse(&mut self, id: u32, decoded: &str) -> (Output, Option<FinishReason>) {
        let Some(parser) = &mut self.reasoning else { return self.parse_answer(id, decoded) };
        let Split { reasoning, answer } = parser.push(id, decoded);
        if parser.is_open() {
            return (Output { reasoning, ..Output::default() }, None);
        }
        let (output, end) = self.parse_answer(id, &answer);
        (Output { reasoning, ..output }, end)
    }

    fn parse_answer(&mut self, id: u32, decoded: &str) -> (Output, Option<FinishReason>) {
        let Some(parser) = &mut self.calls else {
            let (text, stopped) = self.stop.push(decoded);
            return (Output { text, ..Output::default() }, stopped.map(FinishReason::StopString));
        };
        let parsed = parser.push(id, decoded);
        let (mut text, stopped) = self.stop.push(&parsed.text);
        if let Some(index) = stopped {
            return (Output { text, ..Output::default() }, Some(FinishReason::StopString(index)));
        }
        if parser.is_calling() {
            text.push_str(&self.stop.finish());
        }
        (Output { text, calls: parsed.calls, ..Output::default() }, parsed.done.then_some(FinishReason::Stop))
    }

    /// Ends the choice and flushes the text that was held back.
    fn finish(&mut self, mut output: Output, tokens: Vec<TokenInfo>, end: FinishReason) -> TextDelta {
        let mut rest = self.text.finish();
        if let Some(parser) = &mut self.reasoning {
            let Split { reasoning, answer } = parser.finish(&rest);
            output.reasoning.push_str(&reasoning);
            rest = answer;
        }
        if let Some(parser) = &mut self.calls {
            // An incomplete character inside a call is not text.
            rest = if parser.is_calling() { String::new() } else { parser.finish() + &rest };
        }
        let (more, stopped) = self.stop.push(&rest);
        output.text.push_str(&more);
        if let Some(index) = stopped {
            return self.final_delta(output, tokens, FinishReason::StopString(index));
        }
        output.text.push_str(&self.stop.finish());
        self.final_delta(output, tokens, end)
    }

    fn final_delta(&self, output: Output, tokens: Vec<TokenInfo>, end: FinishReason) -> TextDelta {
        let called = self.calls.as_ref().is_some_and(CallParser::has_calls);
        let end = if called && end == FinishReason::Stop { FinishReason::ToolCalls } else { end };
        self.delta(output, tokens, Some(end))
    }

    fn delta(&self, output: Output, tokens: Vec<TokenInfo>, end: Option<FinishReason>) -> TextDelta {
        let Output { reasoning, text, calls } = output;
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
            reasoning_tokens: self.reasoning.as_ref().map_or(0, ReasoningParser::tokens),
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

/// The output that a step adds for the client.
#[derive(Default)]
struct Output {
    reasoning: String,
    text: String,
    calls: Vec<ToolCallDelta>,
}
