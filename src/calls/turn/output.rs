//! The output of a turn, put together from deltas. Whole responses and streams come from the same items.
//!
//! Items grow one after another: only the last one does. Most APIs can express nothing else. The deltas of local models are
//! in this order, but some servers of upstream models interleave the arguments of several calls. So what follows a call is
//! held back until the arguments of that call are complete, or until the end of the choice.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::calls::output_format::custom_tools::InputDecoder;
use crate::engine::{FinishReason, JsonDepth, PromptToken, TextDelta, TokenInfo, ToolCallDelta};

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OutputItem {
    /// What the model wrote before its answer.
    Reasoning(String),
    /// A text and its tokens, if they are kept.
    Message { text: String, tokens: Vec<TokenInfo> },
    /// A tool call. `call`: its number among the calls, which gives its id.
    Call { call: u32, name: String, arguments: String },
    /// A call of a custom tool.
    CustomCall { call: u32, name: String, input: String },
}

/// A change of the items. Only the last item grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    /// An item is complete.
    End,
    /// An item starts, empty.
    Start(OutputItem),
    Reasoning(String),
    Text {
        text: String,
        tokens: Vec<TokenInfo>,
    },
    /// Text of the arguments of the last item, which is the call with this number. May be empty.
    Arguments {
        call: u32,
        text: String,
    },
    /// Text of a custom tool's input.
    Input(String),
}

/// What a delta adds to the output of a choice, with what was held back until now.
#[derive(Debug, Default)]
pub struct TurnEvent {
    pub choice: u32,
    /// How it changes the items, in order.
    pub steps: Vec<Step>,
    /// Tokens, if log-probabilities were requested. JSON can express them.
    pub tokens: Vec<TokenInfo>,
    /// All tokens, if token IDs were requested.
    pub token_ids: Vec<u32>,
    /// The tokens of the prompt, if their log-probabilities were requested. Only the first event of the choice has them.
    pub prompt: Option<Arc<[PromptToken]>>,
    /// How the choice ends. Only its last event has it.
    pub ending: Option<FinishReason>,
}

impl TurnEvent {
    /// The added reasoning.
    pub fn reasoning(&self) -> Cow<'_, str> {
        let parts = self.steps.iter();
        joined(parts.filter_map(|step| if let Step::Reasoning(text) = step { Some(text.as_str()) } else { None }))
    }

    /// The added text.
    pub fn text(&self) -> Cow<'_, str> {
        let parts = self.steps.iter();
        joined(parts.filter_map(|step| if let Step::Text { text, .. } = step { Some(text.as_str()) } else { None }))
    }
}

/// The parts as one text. A single part is not copied.
fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> Cow<'a, str> {
    parts.fold(Cow::default(), |text, part| text + part)
}

/// A tool call that the model generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratedCall<'a> {
    /// Its number among the calls.
    pub index: u32,
    pub name: &'a str,
    /// JSON, as text.
    pub arguments: &'a str,
}

impl GeneratedCall<'_> {
    /// The arguments as JSON; an empty object if they are cut off.
    pub fn arguments_json(self) -> Box<RawValue> {
        let empty = || RawValue::from_string("{}".to_owned());
        RawValue::from_string(self.arguments.to_owned()).or_else(|_| empty()).unwrap_or_default()
    }
}

/// Which tokens with log-probabilities an output keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptTokens {
    /// None: events have them.
    #[default]
    None,
    /// Those of texts, in their items.
    OfTexts,
    All,
}

/// The items so far, and what belongs to no item.
#[derive(Clone, Default)]
pub struct OutputItems {
    items: Vec<OutputItem>,
    /// The names of the custom tools.
    custom: Vec<String>,
    /// Finds the end of the arguments of the last item; `None` if it is not a call, or if they are complete.
    arguments: Option<JsonDepth>,
    /// Reads the input out of the arguments of the last item, if that is a call of a custom tool.
    decoder: InputDecoder,
    /// The arguments of the calls of custom tools, in the order of the calls, as the model wrote them.
    custom_arguments: Vec<String>,
    /// Parts of items, and calls without their arguments, that follow the last item while that is a call whose arguments are
    /// not complete.
    held: VecDeque<OutputItem>,
    /// The arguments of the calls in `held` so far, by number.
    held_arguments: HashMap<u32, String>,
    kept: KeptTokens,
    /// Tokens that have not added text yet.
    pending: Vec<TokenInfo>,
    /// All tokens so far, if they are kept.
    pub tokens: Vec<TokenInfo>,
    /// The IDs of all tokens so far, if they were requested.
    pub token_ids: Vec<u32>,
    /// The tokens of the prompt, if their log-probabilities were requested; `None` before the first delta.
    pub prompt: Option<Arc<[PromptToken]>>,
    /// How the choice ended; `None` until it has.
    pub ending: Option<FinishReason>,
    /// True if the choice may end without any item. Otherwise it then has an empty message.
    may_be_empty: bool,
}

impl OutputItems {
    /// The items of a response of the Responses API, which has at least one. `custom`: the names of its custom tools.
    pub fn new(custom: Vec<String>) -> Self {
        Self { custom, kept: KeptTokens::OfTexts, ..Self::default() }
    }

    /// The items of a choice of any other API. They have no custom tools, and a choice may have no item.
    pub fn or_empty(kept: KeptTokens) -> Self {
        Self { kept, may_be_empty: true, ..Self::default() }
    }

    /// Adds a delta; returns what it changes.
    pub fn add(&mut self, delta: TextDelta) -> TurnEvent {
        let TextDelta { choice, reasoning, text, calls, tokens, prompt, token_ids, end, .. } = delta;
        let tokens: Vec<TokenInfo> = tokens.into_iter().map(finite).collect();
        match self.kept {
            KeptTokens::None => {}
            KeptTokens::OfTexts => self.pending.extend_from_slice(&tokens),
            KeptTokens::All => self.tokens.extend_from_slice(&tokens),
        }
        self.token_ids.extend_from_slice(&token_ids);
        self.prompt = prompt.clone().or(self.prompt.take());
        let mut steps = Vec::new();
        if !reasoning.is_empty() {
            self.add_part(OutputItem::Reasoning(reasoning), &mut steps);
        }
        if !text.is_empty() {
            let tokens = std::mem::take(&mut self.pending);
            self.add_part(OutputItem::Message { text, tokens }, &mut steps);
        }
        for call in calls {
            self.add_call(call, &mut steps);
        }
        self.ending = end.or(self.ending);
        self.add_held(&mut steps);
        if self.ending.is_some() && self.items.is_empty() && !self.may_be_empty {
            // A response without any item has an empty message.
            self.start(OutputItem::Message { text: String::new(), tokens: Vec::new() }, &mut steps);
        }
        TurnEvent { choice, steps, tokens, token_ids, prompt, ending: end }
    }

    /// Does what a step says.
    pub fn apply(&mut self, step: &Step) {
        match (step, self.items.last_mut()) {
            (Step::Start(item), _) => self.items.push(item.clone()),
            (Step::Reasoning(added), Some(OutputItem::Reasoning(text))) => text.push_str(added),
            (Step::Text { text: added, tokens: new }, Some(OutputItem::Message { text, tokens })) => {
                text.push_str(added);
                tokens.extend_from_slice(new);
            }
            (Step::Arguments { text, .. }, Some(OutputItem::Call { arguments, .. })) => arguments.push_str(text),
            (Step::Input(added), Some(OutputItem::CustomCall { input, .. })) => input.push_str(added),
            _ => {}
        }
    }

    fn push(&mut self, step: Step, steps: &mut Vec<Step>) {
        self.apply(&step);
        steps.push(step);
    }

    /// Adds a part of an item, or a call without its arguments, unless it has to wait.
    fn add_part(&mut self, part: OutputItem, steps: &mut Vec<Step>) {
        self.held.push_back(part);
        self.add_held(steps);
    }

    /// Adds what was held back, up to the next call whose arguments are not complete.
    fn add_held(&mut self, steps: &mut Vec<Step>) {
        while self.arguments.is_none() || self.ending.is_some() {
            let Some(part) = self.held.pop_front() else { return };
            match part {
                OutputItem::Reasoning(text) => self.add_reasoning(text, steps),
                OutputItem::Message { text, tokens } => self.add_text(text, tokens, steps),
                OutputItem::Call { call, .. } => self.start_call(call, part, steps),
                OutputItem::CustomCall { call, .. } => {
                    self.custom_arguments.push(String::new());
                    self.decoder = InputDecoder::default();
                    self.start_call(call, part, steps);
                }
            }
        }
    }

    fn add_reasoning(&mut self, added: String, steps: &mut Vec<Step>) {
        if !matches!(self.items.last(), Some(OutputItem::Reasoning(_))) {
            self.start(OutputItem::Reasoning(String::new()), steps);
        }
        self.push(Step::Reasoning(added), steps);
    }

    fn add_text(&mut self, text: String, tokens: Vec<TokenInfo>, steps: &mut Vec<Step>) {
        if !matches!(self.items.last(), Some(OutputItem::Message { .. })) {
            self.start(OutputItem::Message { text: String::new(), tokens: Vec::new() }, steps);
        }
        self.push(Step::Text { text, tokens }, steps);
    }

    fn start_call(&mut self, call: u32, item: OutputItem, steps: &mut Vec<Step>) {
        self.arguments = Some(JsonDepth::default());
        self.start(item, steps);
        let held = self.held_arguments.remove(&call).unwrap_or_default();
        if !held.is_empty() {
            self.add_arguments(call, held, steps);
        }
    }

    fn add_call(&mut self, delta: ToolCallDelta, steps: &mut Vec<Step>) {
        let ToolCallDelta { index: call, name, arguments } = delta;
        let is_start = name.is_some();
        if let Some(name) = name {
            // The tokens of calls are not part of any text.
            self.pending.clear();
            self.held_arguments.insert(call, String::new());
            let item = match self.custom.contains(&name) {
                true => OutputItem::CustomCall { call, name, input: String::new() },
                false => OutputItem::Call { call, name, arguments: String::new() },
            };
            self.add_part(item, steps);
        }
        if let Some(held) = self.held_arguments.get_mut(&call) {
            held.push_str(&arguments);
        } else if self.items.last().and_then(OutputItem::call_number) == Some(call)
            && (!is_start || !arguments.is_empty())
        {
            self.add_arguments(call, arguments, steps);
            self.add_held(steps);
        }
    }

    /// Adds a part of the arguments of the last item.
    fn add_arguments(&mut self, call: u32, text: String, steps: &mut Vec<Step>) {
        if self.arguments.as_mut().is_some_and(|depth| text.chars().any(|ch| depth.push(ch))) {
            self.arguments = None;
        }
        match (self.items.last(), self.custom_arguments.last_mut()) {
            (Some(OutputItem::CustomCall { .. }), Some(arguments)) => {
                arguments.push_str(&text);
                let added = self.decoder.push(&text);
                if !added.is_empty() {
                    self.push(Step::Input(added), steps);
                }
            }
            _ => self.push(Step::Arguments { call, text }, steps),
        }
    }

    fn start(&mut self, item: OutputItem, steps: &mut Vec<Step>) {
        if !self.items.is_empty() {
            self.push(Step::End, steps);
        }
        self.push(Step::Start(item), steps);
    }

    pub fn items(&self) -> &[OutputItem] {
        &self.items
    }

    /// The whole reasoning.
    pub fn reasoning(&self) -> String {
        self.items
            .iter()
            .filter_map(|item| if let OutputItem::Reasoning(text) = item { Some(text.as_str()) } else { None })
            .collect()
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.items
            .iter()
            .filter_map(|item| if let OutputItem::Message { text, .. } = item { Some(text.as_str()) } else { None })
            .collect()
    }

    /// The calls as the model wrote them.
    pub fn calls(&self) -> impl Iterator<Item = GeneratedCall<'_>> {
        let mut custom = self.custom_arguments.iter();
        self.items.iter().filter_map(move |item| {
            let (index, name, arguments) = match item {
                OutputItem::Call { call, name, arguments } => (*call, name, arguments),
                OutputItem::CustomCall { call, name, .. } => (*call, name, custom.next()?),
                OutputItem::Reasoning(_) | OutputItem::Message { .. } => return None,
            };
            Some(GeneratedCall { index, name, arguments })
        })
    }

    /// How the choice ended, once it has.
    pub fn finish_reason(&self) -> FinishReason {
        self.ending.unwrap_or(FinishReason::Stop)
    }

    /// Whether generation ended at the limit of tokens.
    pub fn is_cut_off(&self) -> bool {
        self.ending == Some(FinishReason::Length)
    }
}

impl OutputItem {
    /// The number of a call among the calls.
    fn call_number(&self) -> Option<u32> {
        match self {
            Self::Call { call, .. } | Self::CustomCall { call, .. } => Some(*call),
            Self::Reasoning(_) | Self::Message { .. } => None,
        }
    }
}

/// The token with log-probabilities that JSON can express.
fn finite(mut token: TokenInfo) -> TokenInfo {
    for token in token.top.iter_mut().chain([&mut token.token]) {
        token.logprob = finite_logprob(token.logprob);
    }
    token
}

/// A log-probability as JSON has it: impossible tokens get the smallest number, because JSON has no infinity.
pub fn finite_logprob(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TokenLogprob;

    fn delta(text: &str, calls: Vec<ToolCallDelta>, end: Option<FinishReason>) -> TextDelta {
        TextDelta { text: text.to_owned(), calls, generated: 1, end, ..TextDelta::default() }
    }

    fn call(index: u32, name: Option<&str>, arguments: &str) -> ToolCallDelta {
        ToolCallDelta { index, name: name.map(str::to_owned), arguments: arguments.to_owned() }
    }

    fn message(text: &str) -> OutputItem {
        OutputItem::Message { text: text.to_owned(), tokens: Vec::new() }
    }

    fn called(call: u32, name: &str, arguments: &str) -> OutputItem {
        OutputItem::Call { call, name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn arguments(call: u32, text: &str) -> Step {
        Step::Arguments { call, text: text.to_owned() }
    }

    #[test]
    fn an_item_ends_before_the_next_starts() {
        let mut output = OutputItems::default();
        let text = |text: &str| Step::Text { text: text.to_owned(), tokens: Vec::new() };
        assert_eq!(output.add(delta("a", vec![], None)).steps, [Step::Start(message("")), text("a")]);
        assert_eq!(
            output.add(delta("b", vec![call(0, Some("f"), "{")], None)).steps,
            [text("b"), Step::End, Step::Start(called(0, "f", "")), arguments(0, "{")]
        );
        let last = delta("", vec![call(0, None, "}"), call(1, Some("g"), "")], Some(FinishReason::ToolCalls));
        assert_eq!(output.add(last).steps, [arguments(0, "}"), Step::End, Step::Start(called(1, "g", ""))]);
        assert_eq!(output.items(), [message("ab"), called(0, "f", "{}"), called(1, "g", "")]);
        assert!(!output.is_cut_off());
    }

    #[test]
    fn the_input_of_a_custom_tool_is_decoded() {
        let mut output = OutputItems::new(vec!["patch".to_owned()]);
        let started = delta("", vec![call(0, Some("patch"), "{\"input\": \"a\\")], None);
        let custom =
            |call, input: &str| OutputItem::CustomCall { call, name: "patch".to_owned(), input: input.to_owned() };
        assert_eq!(output.add(started).steps, [Step::Start(custom(0, "")), Step::Input("a".to_owned())]);
        assert_eq!(output.add(delta("", vec![call(0, None, "n")], None)).steps, [Step::Input("\n".to_owned())]);
        let next = vec![call(0, None, "\"}"), call(1, Some("patch"), "{\"input\": \"b\"}"), call(2, Some("f"), "{}")];
        let input = |text: &str| Step::Input(text.to_owned());
        let arguments = arguments(2, "{}");
        let (patch, f) = (Step::Start(custom(1, "")), Step::Start(called(2, "f", "")));
        let steps = [Step::End, patch, input("b"), Step::End, f, arguments];
        assert_eq!(output.add(delta("", next, Some(FinishReason::ToolCalls))).steps, steps);
        assert_eq!(output.items()[..2], [custom(0, "a\n"), custom(1, "b")]);
        let calls: Vec<&str> = output.calls().map(|call| call.arguments).collect();
        assert_eq!(calls, [r#"{"input": "a\n"}"#, r#"{"input": "b"}"#, "{}"]);
    }

    #[test]
    fn reasoning_is_an_item_before_the_message() {
        let mut output = OutputItems::default();
        let thinks = |text: &str| TextDelta { reasoning: text.to_owned(), ..TextDelta::default() };
        assert_eq!(
            output.add(thinks("a")).steps,
            [Step::Start(OutputItem::Reasoning(String::new())), Step::Reasoning("a".to_owned())]
        );
        let both = TextDelta { text: "c".to_owned(), ..thinks("b") };
        let text = Step::Text { text: "c".to_owned(), tokens: Vec::new() };
        assert_eq!(
            output.add(both).steps,
            [Step::Reasoning("b".to_owned()), Step::End, Step::Start(message("")), text]
        );
        assert_eq!(output.items(), [OutputItem::Reasoning("ab".to_owned()), message("c")]);
    }

    #[test]
    fn a_response_without_text_is_an_empty_message() {
        let mut output = OutputItems::default();
        assert_eq!(output.add(delta("", vec![], Some(FinishReason::Length))).steps, [Step::Start(message(""))]);
        assert_eq!(output.items(), [message("")]);
        assert!(output.is_cut_off());
    }

    #[test]
    fn what_interleaves_is_put_in_order() {
        let mut output = OutputItems::default();
        let text = |text: &str| Step::Text { text: text.to_owned(), tokens: Vec::new() };
        let started = |call, name| Step::Start(called(call, name, ""));
        let begin = vec![call(0, Some("f"), "{"), call(1, Some("g"), "{")];
        assert_eq!(output.add(delta("", begin, None)).steps, [started(0, "f"), arguments(0, "{")]);
        assert_eq!(
            output.add(delta("a", vec![call(1, None, "\"}"), call(0, None, "")], None)).steps,
            [arguments(0, "")]
        );
        assert_eq!(output.items(), [called(0, "f", "{")]);
        let more = vec![call(0, None, "}"), call(1, None, "\""), call(0, None, " ")];
        let g = [arguments(0, "}"), Step::End, started(1, "g"), arguments(1, "{\"}"), arguments(1, "\"")];
        assert_eq!(output.add(delta("b", more, None)).steps, g);
        let event = output.add(delta("", vec![call(1, None, "}")], Some(FinishReason::ToolCalls)));
        let last = [arguments(1, "}"), Step::End, Step::Start(message("")), text("a"), text("b")];
        assert_eq!((event.text(), event.steps.as_slice()), ("ab".into(), last.as_slice()));
        assert_eq!(output.items(), [called(0, "f", "{}"), called(1, "g", "{\"}\"}"), message("ab")]);
    }

    #[test]
    fn calls_of_custom_tools_may_be_interleaved() {
        let mut output = OutputItems::new(vec!["patch".to_owned()]);
        let begin = vec![call(0, Some("patch"), "{\"input\": \"a"), call(1, Some("patch"), "{\"input\": \"")];
        output.add(delta("", begin, None));
        output.add(delta("", vec![call(0, None, "b\"}"), call(1, None, "c\"}")], Some(FinishReason::ToolCalls)));
        let custom =
            |call, input: &str| OutputItem::CustomCall { call, name: "patch".to_owned(), input: input.to_owned() };
        assert_eq!(output.items(), [custom(0, "ab"), custom(1, "c")]);
        let calls: Vec<&str> = output.calls().map(|call| call.arguments).collect();
        assert_eq!(calls, [r#"{"input": "ab"}"#, r#"{"input": "c"}"#]);
    }

    #[test]
    fn what_follows_incomplete_arguments_comes_at_the_end() {
        let mut output = OutputItems::default();
        output.add(delta("", vec![call(0, Some("f"), ""), call(1, Some("g"), "{")], None));
        output.add(delta("", vec![call(2, Some("h"), "{}"), call(1, None, "1")], None));
        assert_eq!(output.items(), [called(0, "f", "")]);
        output.add(delta("a", vec![call(0, None, "{")], Some(FinishReason::Length)));
        let items = [called(0, "f", "{"), called(1, "g", "{1"), called(2, "h", "{}"), message("a")];
        assert_eq!(output.items(), items);
    }

    #[test]
    fn arguments_that_are_cut_off_are_empty() {
        let json = |arguments| GeneratedCall { index: 0, name: "f", arguments }.arguments_json();
        assert_eq!(json("{\"z\": 1}").get(), "{\"z\": 1}");
        assert_eq!(json("{\"a\": ").get(), "{}");
    }

    #[test]
    fn only_the_tokens_that_are_needed_are_kept() {
        let token = |logprob| TokenLogprob { id: 1, bytes: b"a".to_vec(), logprob };
        let info = |logprob| TokenInfo { token: token(logprob), is_control: false, top: vec![token(logprob)] };
        for (kept, all, of_texts) in [(KeptTokens::None, 0, 0), (KeptTokens::OfTexts, 0, 1), (KeptTokens::All, 1, 0)] {
            let mut output = OutputItems::or_empty(kept);
            let event = output.add(TextDelta { tokens: vec![info(f32::NEG_INFINITY)], ..delta("a", vec![], None) });
            assert_eq!(event.tokens, [info(-9999.0)]);
            let [OutputItem::Message { tokens, .. }] = output.items() else { panic!("{:?}", output.items()) };
            assert_eq!((output.tokens.len(), tokens.len()), (all, of_texts), "{kept:?}");
        }
    }
}
