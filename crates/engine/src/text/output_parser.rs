//! Splits what a model generates into reasoning, text and tool calls, in the way in which the model writes them.

use std::sync::Arc;

use crate::text::grammar::GrammarState;
use crate::text::harmony::{AllowedTokens, HarmonyParser};
use crate::text::model::TextModel;
use crate::text::reasoning::{ReasoningParser, Split};
use crate::text::request::{FinishReason, GenerationRequest};
use crate::text::stop::StopMatcher;
use crate::text::tools::{CallParser, ToolCallDelta};

/// The parser of one choice. Stop strings are searched for in its text.
pub struct OutputParser {
    format: Format,
    stop: StopMatcher,
}

#[expect(clippy::large_enum_variant, reason = "there is one for each choice")]
enum Format {
    /// Reasoning between two markers, then text, then calls.
    Marked { reasoning: Option<ReasoningParser>, calls: Option<CallParser> },
    /// Messages in channels.
    Harmony(HarmonyParser),
}

/// What one step adds.
#[derive(Debug, Default)]
pub struct Output {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<ToolCallDelta>,
    /// Set if the choice ends with it.
    pub end: Option<FinishReason>,
}

impl OutputParser {
    /// The parser of a request, and the state of its grammar.
    pub fn new(model: &TextModel, request: &GenerationRequest) -> (Self, Option<GrammarState>) {
        let stop = StopMatcher::new(request.stop.clone()).keeping_stop(request.text.keeps_stop);
        let grammar = request.grammar.as_ref();
        let syntax = grammar.and_then(|grammar| grammar.syntax.clone());
        if let (Some(reasoning), Some(harmony)) = (request.reasoning, model.harmony()) {
            let (functions, parallel) = match &syntax {
                None => (Vec::new(), true),
                Some(syntax) => {
                    let names = syntax.callable.iter().map(|(_, tool)| tool.name.clone());
                    (names.collect(), syntax.parallel)
                }
            };
            let prompt = request.prompt.ids();
            let grammar = grammar.map(|grammar| {
                let mut state = grammar.state();
                // A prompt that ends in another message than the grammar requires: the model begins a new one.
                match harmony.open_header(prompt).iter().try_for_each(|id| state.consume(*id)) {
                    Ok(()) => state,
                    Err(_) => grammar.state(),
                }
            });
            let max_tokens = reasoning.max_tokens;
            let context = (&**prompt, &model.vocabulary);
            let parser = HarmonyParser::new(Arc::clone(harmony), functions, parallel, max_tokens, context);
            return (Self { format: Format::Harmony(parser), stop }, grammar);
        }
        let reasoning = request.reasoning.and_then(|reasoning| model.reasoning_parser(reasoning));
        let calls = syntax.map(CallParser::new);
        (Self { format: Format::Marked { reasoning, calls }, stop }, grammar.map(|grammar| grammar.state()))
    }

    /// True while the next token belongs to the answer, and not to reasoning or to a header.
    pub fn is_answer(&self) -> bool {
        match &self.format {
            Format::Marked { reasoning, .. } => !reasoning.as_ref().is_some_and(ReasoningParser::is_open),
            Format::Harmony(parser) => parser.is_answer(),
        }
    }

    /// True if the grammar governs the next token.
    pub fn is_governed(&self) -> bool {
        match &self.format {
            Format::Marked { .. } => self.is_answer(),
            Format::Harmony(_) => true,
        }
    }

    /// The token that may come next although the grammar does not allow it.
    pub fn exempt(&self) -> Option<u32> {
        match &self.format {
            Format::Marked { reasoning, .. } => reasoning.as_ref().and_then(ReasoningParser::opening_id),
            Format::Harmony(_) => None,
        }
    }

    /// The tokens that may come next, apart from the grammar.
    pub fn allowed(&self) -> AllowedTokens<'_> {
        match &self.format {
            Format::Marked { reasoning, .. } => {
                let forced = reasoning.as_ref().and_then(ReasoningParser::forced);
                forced.map_or(AllowedTokens::All, |id| AllowedTokens::Only(vec![id]))
            }
            Format::Harmony(parser) => parser.allowed(),
        }
    }

    /// Tells that the next token is this one, which the grammar governs. False: it begins the reasoning, and the grammar does
    /// not take it.
    pub fn is_taken_by_grammar(&mut self, id: u32) -> bool {
        if self.exempt() == Some(id) {
            return false;
        }
        if let Format::Marked { reasoning: Some(reasoning), .. } = &mut self.format {
            reasoning.skip();
        }
        true
    }

    /// True for a token that is no text. An incomplete character before it stays incomplete.
    pub fn is_marker(&self, id: u32) -> bool {
        matches!(&self.format, Format::Harmony(parser) if parser.is_marker(id))
    }

    /// Takes a token and the text that it completes.
    pub fn push(&mut self, id: u32, decoded: &str) -> Output {
        match &mut self.format {
            Format::Marked { reasoning, calls } => {
                let Split { reasoning, answer } = match reasoning {
                    None => Split { answer: decoded.to_owned(), ..Split::default() },
                    Some(parser) => {
                        let split = parser.push(id, decoded);
                        if parser.is_open() {
                            return Output { reasoning: split.reasoning, ..Output::default() };
                        }
                        split
                    }
                };
                let output = Output { reasoning, ..Output::default() };
                let Some(parser) = calls else { return self.stopped(answer, output, false) };
                let parsed = parser.push(id, &answer);
                let (calls, is_text) = (parsed.calls, !parser.is_calling());
                let end = parsed.done.then_some(FinishReason::Stop);
                self.stopped(parsed.text, Output { calls, end, ..output }, !is_text)
            }
            Format::Harmony(parser) => {
                let piece = parser.push(id, decoded);
                let end = piece.done.then_some(FinishReason::Stop);
                let output = Output { reasoning: piece.reasoning, calls: piece.calls, end, ..Output::default() };
                let is_complete = !parser.is_text();
                self.stopped(piece.text, output, is_complete)
            }
        }
    }

    /// Adds text to an output, up to a stop string. `is_complete`: the text ends here.
    fn stopped(&mut self, text: String, output: Output, is_complete: bool) -> Output {
        let (mut text, stopped) = self.stop.push(&text);
        if let Some(index) = stopped {
            let end = Some(FinishReason::StopString(index));
            return Output { text, calls: Vec::new(), end, ..output };
        }
        if is_complete {
            text.push_str(&self.stop.finish());
        }
        Output { text, ..output }
    }

    /// Ends the choice, after the text `rest`. Adds what was held back to `output`.
    pub fn finish(&mut self, rest: String, output: Output, end: FinishReason) -> Output {
        let (reasoning, calls, rest) = match &mut self.format {
            Format::Marked { reasoning, calls } => {
                let Split { reasoning, answer } = match reasoning {
                    None => Split { answer: rest, ..Split::default() },
                    Some(parser) => parser.finish(&rest),
                };
                let rest = match calls {
                    None => answer,
                    // An incomplete character inside a call is not text.
                    Some(parser) if parser.is_calling() => String::new(),
                    Some(parser) => parser.finish() + &answer,
                };
                (reasoning, Vec::new(), rest)
            }
            Format::Harmony(parser) => {
                let piece = parser.finish(&rest, end == FinishReason::Length);
                (piece.reasoning, piece.calls, piece.text)
            }
        };
        let (more, stopped) = self.stop.push(&rest);
        let text = output.text + &more;
        let (reasoning, calls) = (output.reasoning + &reasoning, [output.calls, calls].concat());
        match stopped {
            Some(index) => Output { reasoning, text, calls, end: Some(FinishReason::StopString(index)) },
            None => Output { reasoning, text: text + &self.stop.finish(), calls, end: Some(end) },
        }
    }

    /// Tokens of the reasoning so far, with its markers.
    pub fn reasoning_tokens(&self) -> u32 {
        match &self.format {
            Format::Marked { reasoning, .. } => reasoning.as_ref().map_or(0, ReasoningParser::tokens),
            Format::Harmony(parser) => parser.reasoning_tokens(),
        }
    }

    pub fn has_calls(&self) -> bool {
        match &self.format {
            Format::Marked { calls, .. } => calls.as_ref().is_some_and(CallParser::has_calls),
            Format::Harmony(parser) => parser.has_calls(),
        }
    }
}
