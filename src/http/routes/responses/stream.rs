//! A response as the events of OpenAI's API. An item ends before the next one starts.
//!
//! A stream ends with `[DONE]`. OpenAI's own do not, but Open Responses requires it, and OpenAI's SDKs stop reading
//! there.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::reasoning::{PartIndex, ReasoningPart};
use super::response::{ItemBody, Part, TokenBody, logprobs, part};
use crate::calls::responses::item_format::ItemFormat;
use crate::calls::turn::output::{OutputItem, OutputItems, Step};
use crate::http::sse;

/// An event with its type and number.
#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: Fields<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Fields<'a> {
    Response {
        response: Box<RawValue>,
    },
    Item {
        output_index: usize,
        item: ItemBody,
    },
    Part {
        item_id: String,
        output_index: usize,
        content_index: usize,
        part: Part,
    },
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: &'a str,
        logprobs: Vec<TokenBody>,
    },
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: &'a str,
        logprobs: Vec<TokenBody>,
    },
    ReasoningPart {
        item_id: String,
        output_index: usize,
        #[serde(flatten)]
        index: PartIndex,
        part: ReasoningPart,
    },
    ReasoningDelta {
        item_id: String,
        output_index: usize,
        #[serde(flatten)]
        index: PartIndex,
        delta: &'a str,
    },
    ReasoningDone {
        item_id: String,
        output_index: usize,
        #[serde(flatten)]
        index: PartIndex,
        text: &'a str,
    },
    /// Of a function's arguments, or of a custom tool's input.
    CallDelta {
        item_id: String,
        output_index: usize,
        delta: &'a str,
    },
    ArgumentsDone {
        item_id: String,
        output_index: usize,
        name: &'a str,
        arguments: &'a str,
    },
    InputDone {
        item_id: String,
        output_index: usize,
        input: &'a str,
    },
    Error {
        code: &'a str,
        message: &'a str,
        param: Option<&'a str>,
    },
}

fn encode(kind: &'static str, sequence_number: u64, fields: Fields<'_>) -> sse::Event {
    sse::named(kind, &Event { r#type: kind, sequence_number, fields })
}

/// An event with a response.
fn with_response(kind: &'static str, number: u64, response: &impl Serialize) -> sse::Event {
    // A response can always be encoded.
    let response = to_raw_value(response).unwrap_or_else(|_| RawValue::NULL.to_owned());
    encode(kind, number, Fields::Response { response })
}

/// The number of events before the first delta.
const FIRST_EVENTS: u64 = 2;

/// The events before the first delta. `started`: the response without output.
pub fn first_events(started: &impl Serialize) -> sse::Event {
    let event = |kind, number| with_response(kind, number, started);
    sse::join(event("response.created", 0), event("response.in_progress", 1))
}

/// Numbers events and encodes the steps of an output.
pub struct EventEncoder {
    /// The number of the next event.
    next: u64,
    /// Events up to this number are left out.
    after: Option<u64>,
    /// Items that have started.
    started: usize,
    encoded: Vec<sse::Event>,
}

/// The items so far, and how they are encoded.
type Output<'a> = (&'a OutputItems, ItemFormat);

impl EventEncoder {
    /// Encodes what follows [`first_events`].
    pub fn after_first() -> Self {
        Self::new(FIRST_EVENTS, None)
    }

    /// `next`: the number of the first event. `after`: those up to this number are left out.
    pub fn new(next: u64, after: Option<u64>) -> Self {
        Self { next, after, started: 0, encoded: Vec::new() }
    }

    fn push(&mut self, kind: &'static str, fields: Fields<'_>) {
        if self.after.is_none_or(|after| self.next > after) {
            self.encoded.push(encode(kind, self.next, fields));
        }
        self.next += 1;
    }

    /// Adds an event with a response.
    pub fn add_response(&mut self, kind: &'static str, response: &impl Serialize) {
        if self.after.is_none_or(|after| self.next > after) {
            self.encoded.push(with_response(kind, self.next, response));
        }
        self.next += 1;
    }

    /// What was added.
    pub fn take(&mut self) -> Option<sse::Event> {
        let events = std::mem::take(&mut self.encoded);
        (!events.is_empty()).then(|| events.concat().into())
    }

    /// The last event, which is never left out, and the end of the stream. `status`: the response's own.
    pub fn end(&mut self, status: &str, response: &impl Serialize) -> sse::Event {
        let kind = match status {
            "completed" => "response.completed",
            "incomplete" => "response.incomplete",
            _ => "response.failed",
        };
        self.stop_skipping();
        self.add_response(kind, response);
        sse::join(self.take().unwrap_or_default(), sse::done())
    }

    /// The events that end a stream after an error.
    pub fn failed(&mut self, code: &str, message: &str, param: Option<&str>, response: &impl Serialize) -> sse::Event {
        self.stop_skipping();
        self.push("error", Fields::Error { code, message, param });
        self.end("failed", response)
    }

    fn stop_skipping(&mut self) {
        self.next = self.next.max(self.after.take().map_or(0, |after| after.saturating_add(1)));
    }

    /// Adds the events of a step. `output`: already with the step.
    pub fn add_step(&mut self, step: &Step, output: Output<'_>) {
        match step {
            Step::Start(_) => {
                self.started += 1;
                self.start_item(output);
            }
            Step::End => self.end_item(output, false),
            Step::Reasoning(delta) => {
                let Some((output_index, item_id)) = self.open(output) else { return };
                let names = output.1.reasoning.events();
                let fields = Fields::ReasoningDelta { item_id, output_index, index: names.index, delta };
                self.push(names.delta, fields);
            }
            Step::Text { text, tokens } => {
                let Some((output_index, item_id)) = self.open(output) else { return };
                let logprobs = logprobs(tokens);
                let fields = Fields::TextDelta { item_id, output_index, content_index: 0, delta: text, logprobs };
                self.push("response.output_text.delta", fields);
            }
            Step::Arguments { text, .. } if text.is_empty() => {}
            Step::Arguments { text: delta, .. } => {
                let Some((output_index, item_id)) = self.open(output) else { return };
                let fields = Fields::CallDelta { item_id, output_index, delta };
                self.push("response.function_call_arguments.delta", fields);
            }
            Step::Input(delta) => {
                let Some((output_index, item_id)) = self.open(output) else { return };
                let fields = Fields::CallDelta { item_id, output_index, delta };
                self.push("response.custom_tool_call_input.delta", fields);
            }
        }
    }

    /// Index and id of the item that grows.
    fn open(&self, (items, format): Output<'_>) -> Option<(usize, String)> {
        let index = self.started.checked_sub(1)?;
        let item = items.items().get(index)?;
        Some((index, format.id(index, item)))
    }

    fn start_item(&mut self, output: Output<'_>) {
        let (items, format) = output;
        let Some((output_index, item_id)) = self.open(output) else { return };
        let Some(item) = items.items().get(output_index) else { return };
        let body = format.started(output_index, item);
        self.push("response.output_item.added", Fields::Item { output_index, item: body });
        match item {
            OutputItem::Reasoning(_) => {
                let names = format.reasoning.events();
                let part = format.reasoning.part("");
                let fields = Fields::ReasoningPart { item_id, output_index, index: names.index, part };
                self.push(names.part_added, fields);
            }
            OutputItem::Message { .. } => {
                let fields = Fields::Part { item_id, output_index, content_index: 0, part: part("", &[]) };
                self.push("response.content_part.added", fields);
            }
            OutputItem::Call { .. } | OutputItem::CustomCall { .. } => {}
        }
    }

    /// Adds the events of the end of the last item. `is_cut_off`: whether it is incomplete.
    pub fn end_item(&mut self, output: Output<'_>, is_cut_off: bool) {
        let (items, format) = output;
        let Some((output_index, item_id)) = self.open(output) else { return };
        let Some(item) = items.items().get(output_index) else { return };
        match item {
            OutputItem::Reasoning(text) => {
                let names = format.reasoning.events();
                let index = names.index;
                let done = Fields::ReasoningDone { item_id: item_id.clone(), output_index, index, text };
                self.push(names.done, done);
                let part = Fields::ReasoningPart { item_id, output_index, index, part: format.reasoning.part(text) };
                self.push(names.part_done, part);
            }
            OutputItem::Message { text, tokens } => {
                let logprobs = logprobs(tokens);
                let done =
                    Fields::TextDone { item_id: item_id.clone(), output_index, content_index: 0, text, logprobs };
                self.push("response.output_text.done", done);
                let fields = Fields::Part { item_id, output_index, content_index: 0, part: part(text, tokens) };
                self.push("response.content_part.done", fields);
            }
            OutputItem::Call { name, arguments, .. } => {
                let fields = Fields::ArgumentsDone { item_id, output_index, name, arguments };
                self.push("response.function_call_arguments.done", fields);
            }
            OutputItem::CustomCall { input, .. } => {
                let fields = Fields::InputDone { item_id, output_index, input };
                self.push("response.custom_tool_call_input.done", fields);
            }
        }
        let status = if is_cut_off { "incomplete" } else { "completed" };
        let body = format.body(output_index, item, status);
        self.push("response.output_item.done", Fields::Item { output_index, item: body });
    }
}
