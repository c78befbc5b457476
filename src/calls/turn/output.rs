//! The output of a turn, put together from deltas. Whole responses and streams come from the same items.

use serde::{Deserialize, Serialize};

use crate::calls::custom_tools::InputDecoder;
use crate::calls::generation::finite_logprob;
use crate::engine::{FinishReason, TextDelta, TokenInfo, ToolCallDelta};

/// An item of the output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OutputItem {
    /// What the model wrote before its answer.
    Reasoning(String),
    /// A text and its tokens, if log-probabilities were requested.
    Message { text: String, tokens: Vec<TokenInfo> },
    /// A tool call. `call`: its number among the calls, which gives its id.
    Call { call: u32, name: String, arguments: String },
    /// A call of a custom tool.
    CustomCall { call: u32, name: String, input: String },
}

/// What a delta adds to the items. The last item is the one that grows.
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
    Arguments(String),
    /// Text of a custom tool's input.
    Input(String),
}

/// The items so far.
#[derive(Default)]
pub struct OutputItems {
    items: Vec<OutputItem>,
    /// The names of the custom tools.
    custom: Vec<String>,
    /// Reads the input of the last call, if it is of a custom tool.
    decoder: InputDecoder,
    /// Tokens that have not added text yet.
    pending: Vec<TokenInfo>,
    pub ending: Option<FinishReason>,
    /// Whether there may be no items at the end.
    may_be_empty: bool,
}

impl OutputItems {
    /// The items of a response whose custom tools have these names.
    pub fn new(custom: Vec<String>) -> Self {
        Self { custom, ..Self::default() }
    }

    /// The items of an API in which an output may have none.
    pub fn or_empty() -> Self {
        Self { may_be_empty: true, ..Self::default() }
    }

    /// Adds a delta; returns what it changes, in order.
    pub fn add(&mut self, delta: &TextDelta) -> Vec<Step> {
        let mut steps = Vec::new();
        self.ending = delta.end.or(self.ending);
        self.pending.extend(delta.tokens.iter().cloned().map(finite));
        if !delta.reasoning.is_empty() {
            self.add_reasoning(&delta.reasoning, &mut steps);
        }
        if !delta.text.is_empty() {
            self.add_text(&delta.text, &mut steps);
        }
        for call in &delta.calls {
            self.add_call(call, &mut steps);
        }
        if self.ending.is_some() && self.items.is_empty() && !self.may_be_empty {
            // A response without any item has an empty message.
            self.start(OutputItem::Message { text: String::new(), tokens: Vec::new() }, &mut steps);
        }
        steps
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
            (Step::Arguments(added), Some(OutputItem::Call { arguments, .. })) => arguments.push_str(added),
            (Step::Input(added), Some(OutputItem::CustomCall { input, .. })) => input.push_str(added),
            _ => {}
        }
    }

    fn push(&mut self, step: Step, steps: &mut Vec<Step>) {
        self.apply(&step);
        steps.push(step);
    }

    fn add_reasoning(&mut self, added: &str, steps: &mut Vec<Step>) {
        if !matches!(self.items.last(), Some(OutputItem::Reasoning(_))) {
            self.start(OutputItem::Reasoning(String::new()), steps);
        }
        self.push(Step::Reasoning(added.to_owned()), steps);
    }

    fn add_text(&mut self, added: &str, steps: &mut Vec<Step>) {
        if !matches!(self.items.last(), Some(OutputItem::Message { .. })) {
            self.start(OutputItem::Message { text: String::new(), tokens: Vec::new() }, steps);
        }
        let tokens = std::mem::take(&mut self.pending);
        self.push(Step::Text { text: added.to_owned(), tokens }, steps);
    }

    fn add_call(&mut self, delta: &ToolCallDelta, steps: &mut Vec<Step>) {
        if let Some(name) = &delta.name {
            // The tokens of calls are not part of any text.
            self.pending.clear();
            let (call, name) = (delta.index, name.clone());
            let item = match self.custom.contains(&name) {
                true => OutputItem::CustomCall { call, name, input: String::new() },
                false => OutputItem::Call { call, name, arguments: String::new() },
            };
            self.decoder = InputDecoder::default();
            self.start(item, steps);
        }
        match self.items.last() {
            Some(OutputItem::CustomCall { .. }) => {
                let added = self.decoder.push(&delta.arguments);
                if !added.is_empty() {
                    self.push(Step::Input(added), steps);
                }
            }
            Some(OutputItem::Call { .. }) if !delta.arguments.is_empty() => {
                self.push(Step::Arguments(delta.arguments.clone()), steps);
            }
            _ => {}
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

    /// Whether generation ended at the limit of tokens.
    pub fn is_cut_off(&self) -> bool {
        self.ending == Some(FinishReason::Length)
    }
}

/// The token with log-probabilities that JSON can express.
fn finite(mut token: TokenInfo) -> TokenInfo {
    for token in token.top.iter_mut().chain([&mut token.token]) {
        token.logprob = finite_logprob(token.logprob);
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn an_item_ends_before_the_next_starts() {
        let mut output = OutputItems::default();
        let text = |text: &str| Step::Text { text: text.to_owned(), tokens: Vec::new() };
        assert_eq!(output.add(&delta("a", vec![], None)), [Step::Start(message("")), text("a")]);
        assert_eq!(
            output.add(&delta("b", vec![call(0, Some("f"), "{")], None)),
            [text("b"), Step::End, Step::Start(called(0, "f", "")), Step::Arguments("{".to_owned())]
        );
        let last = delta("", vec![call(0, None, "}"), call(1, Some("g"), "")], Some(FinishReason::ToolCalls));
        assert_eq!(output.add(&last), [Step::Arguments("}".to_owned()), Step::End, Step::Start(called(1, "g", ""))]);
        assert_eq!(output.items(), [message("ab"), called(0, "f", "{}"), called(1, "g", "")]);
        assert!(!output.is_cut_off());
    }

    #[test]
    fn the_input_of_a_custom_tool_is_decoded() {
        let mut output = OutputItems::new(vec!["patch".to_owned()]);
        let started = delta("", vec![call(0, Some("patch"), "{\"input\": \"a\\")], None);
        let custom =
            |call, input: &str| OutputItem::CustomCall { call, name: "patch".to_owned(), input: input.to_owned() };
        assert_eq!(output.add(&started), [Step::Start(custom(0, "")), Step::Input("a".to_owned())]);
        assert_eq!(output.add(&delta("", vec![call(0, None, "n")], None)), [Step::Input("\n".to_owned())]);
        let next = vec![call(0, None, "\"}"), call(1, Some("patch"), "{\"input\": \"b\"}"), call(2, Some("f"), "{}")];
        let input = |text: &str| Step::Input(text.to_owned());
        let arguments = Step::Arguments("{}".to_owned());
        let (patch, f) = (Step::Start(custom(1, "")), Step::Start(called(2, "f", "")));
        let steps = [Step::End, patch, input("b"), Step::End, f, arguments];
        assert_eq!(output.add(&delta("", next, Some(FinishReason::ToolCalls))), steps);
        assert_eq!(output.items()[..2], [custom(0, "a\n"), custom(1, "b")]);
    }

    #[test]
    fn reasoning_is_an_item_before_the_message() {
        let mut output = OutputItems::default();
        let thinks = |text: &str| TextDelta { reasoning: text.to_owned(), ..TextDelta::default() };
        assert_eq!(
            output.add(&thinks("a")),
            [Step::Start(OutputItem::Reasoning(String::new())), Step::Reasoning("a".to_owned())]
        );
        let both = TextDelta { text: "c".to_owned(), ..thinks("b") };
        let text = Step::Text { text: "c".to_owned(), tokens: Vec::new() };
        assert_eq!(output.add(&both), [Step::Reasoning("b".to_owned()), Step::End, Step::Start(message("")), text]);
        assert_eq!(output.items(), [OutputItem::Reasoning("ab".to_owned()), message("c")]);
    }

    #[test]
    fn a_response_without_text_is_an_empty_message() {
        let mut output = OutputItems::default();
        assert_eq!(output.add(&delta("", vec![], Some(FinishReason::Length))), [Step::Start(message(""))]);
        assert_eq!(output.items(), [message("")]);
        assert!(output.is_cut_off());
    }
}
