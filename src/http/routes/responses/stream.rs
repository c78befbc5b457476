//! A response as the events of OpenAI's API. An item ends before the next one starts.

use actix_web::HttpResponse;
use serde::Serialize;

use super::output_items::{OutputItem, Step};
use super::reasoning::{PartIndex, ReasoningPart};
use super::response::{Failure, ItemBody, Part, ResponseBody, TokenBody, logprobs, part, status_of};
use super::running::RunningResponse;
use crate::engine::TextDelta;
use crate::error::{Error, Result};
use crate::http::error::responses_in_stream;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::sse;
use crate::ids::RequestId;

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
        response: Box<ResponseBody>,
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
        code: &'static str,
        message: &'a str,
        param: Option<&'a str>,
    },
}

fn encode(kind: &'static str, sequence_number: u64, fields: Fields<'_>) -> sse::Event {
    sse::named(kind, &Event { r#type: kind, sequence_number, fields })
}

pub fn respond(running: RunningResponse, request_id: Option<RequestId>) -> HttpResponse {
    let source = ResponseEvents { running, started: 0, events: Events { next: FIRST_EVENTS, encoded: Vec::new() } };
    generation_stream::respond(source, request_id)
}

/// The number of events before the first delta.
const FIRST_EVENTS: u64 = 2;

struct ResponseEvents {
    running: RunningResponse,
    /// Items that have started.
    started: usize,
    events: Events,
}

/// Numbers events.
struct Events {
    next: u64,
    encoded: Vec<sse::Event>,
}

impl Events {
    fn push(&mut self, kind: &'static str, fields: Fields<'_>) {
        self.encoded.push(encode(kind, self.next, fields));
        self.next += 1;
    }

    /// What was pushed.
    fn take(&mut self) -> Option<sse::Event> {
        let events = std::mem::take(&mut self.encoded);
        (!events.is_empty()).then(|| events.concat().into())
    }
}

impl EventSource for ResponseEvents {
    type Call = RunningResponse;

    fn call(&mut self) -> &mut RunningResponse {
        &mut self.running
    }

    fn first_event(&self) -> Option<sse::Event> {
        let event =
            |kind, number| encode(kind, number, Fields::Response { response: Box::new(self.running.started()) });
        Some(sse::join(event("response.created", 0), event("response.in_progress", 1)))
    }

    fn event(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        for step in self.running.add(delta) {
            self.encode_step(&step);
        }
        self.events.take()
    }

    fn last_event(&mut self) -> sse::Event {
        self.end_item();
        let response = self.running.complete();
        let kind = if response.status == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.events.push(kind, Fields::Response { response: Box::new(response) });
        self.events.take().unwrap_or_default()
    }

    fn error_event(&self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        let (code, message) = responses_in_stream(error, request_id, recorded);
        let fields = Fields::Error { code, message: &message, param: error.param_name() };
        let response = self.running.failed(Failure { code, message: message.to_string() });
        let failed = encode("response.failed", self.events.next + 1, Fields::Response { response: Box::new(response) });
        sse::join(encode("error", self.events.next, fields), failed)
    }
}

impl ResponseEvents {
    fn encode_step(&mut self, step: &Step) {
        match step {
            Step::Start => {
                self.started += 1;
                self.start_item();
            }
            Step::End => self.end_item(),
            Step::Reasoning(delta) => {
                let Some((output_index, item_id)) = self.open() else { return };
                let names = self.running.encoder().reasoning.events();
                let fields = Fields::ReasoningDelta { item_id, output_index, index: names.index, delta };
                self.events.push(names.delta, fields);
            }
            Step::Text { text, tokens } => {
                let Some((output_index, item_id)) = self.open() else { return };
                let logprobs = logprobs(tokens);
                let fields = Fields::TextDelta { item_id, output_index, content_index: 0, delta: text, logprobs };
                self.events.push("response.output_text.delta", fields);
            }
            Step::Arguments(delta) => {
                let Some((output_index, item_id)) = self.open() else { return };
                let fields = Fields::CallDelta { item_id, output_index, delta };
                self.events.push("response.function_call_arguments.delta", fields);
            }
            Step::Input(delta) => {
                let Some((output_index, item_id)) = self.open() else { return };
                let fields = Fields::CallDelta { item_id, output_index, delta };
                self.events.push("response.custom_tool_call_input.delta", fields);
            }
        }
    }

    /// Index and id of the item that grows.
    fn open(&self) -> Option<(usize, String)> {
        let index = self.started.checked_sub(1)?;
        let item = self.running.output.items().get(index)?;
        Some((index, self.running.encoder().id(index, item)))
    }

    fn start_item(&mut self) {
        let Some((output_index, item_id)) = self.open() else { return };
        let Some(item) = self.running.output.items().get(output_index) else { return };
        let body = self.running.encoder().started(output_index, item);
        self.events.push("response.output_item.added", Fields::Item { output_index, item: body });
        match item {
            OutputItem::Reasoning(_) => {
                let format = self.running.encoder().reasoning;
                let names = format.events();
                let part = format.part("");
                let fields = Fields::ReasoningPart { item_id, output_index, index: names.index, part };
                self.events.push(names.part_added, fields);
            }
            OutputItem::Message { .. } => {
                let fields = Fields::Part { item_id, output_index, content_index: 0, part: part("", &[]) };
                self.events.push("response.content_part.added", fields);
            }
            OutputItem::Call { .. } | OutputItem::CustomCall { .. } => {}
        }
    }

    fn end_item(&mut self) {
        let Some((output_index, item_id)) = self.open() else { return };
        let output = &self.running.output;
        let Some(item) = output.items().get(output_index) else { return };
        match item {
            OutputItem::Reasoning(text) => {
                let format = self.running.encoder().reasoning;
                let names = format.events();
                let index = names.index;
                let done = Fields::ReasoningDone { item_id: item_id.clone(), output_index, index, text };
                self.events.push(names.done, done);
                let part = Fields::ReasoningPart { item_id, output_index, index, part: format.part(text) };
                self.events.push(names.part_done, part);
            }
            OutputItem::Message { text, tokens } => {
                let logprobs = logprobs(tokens);
                let done =
                    Fields::TextDone { item_id: item_id.clone(), output_index, content_index: 0, text, logprobs };
                self.events.push("response.output_text.done", done);
                let fields = Fields::Part { item_id, output_index, content_index: 0, part: part(text, tokens) };
                self.events.push("response.content_part.done", fields);
            }
            OutputItem::Call { name, arguments, .. } => {
                let fields = Fields::ArgumentsDone { item_id, output_index, name, arguments };
                self.events.push("response.function_call_arguments.done", fields);
            }
            OutputItem::CustomCall { input, .. } => {
                let fields = Fields::InputDone { item_id, output_index, input };
                self.events.push("response.custom_tool_call_input.done", fields);
            }
        }
        let status = status_of(output_index, output.items().len(), output.is_cut_off());
        let body = self.running.encoder().body(output_index, item, status);
        self.events.push("response.output_item.done", Fields::Item { output_index, item: body });
    }
}
