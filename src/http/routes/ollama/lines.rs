//! A response as lines of JSON. Calls are not split: a line has whole ones.
//!
//! A line without text keeps the connection alive: newline-delimited JSON has no comments, and Ollama's Python package
//! fails on blank lines. Ollama itself sends such lines while it parses calls.

use std::marker::PhantomData;

use actix_web::HttpResponse;
use actix_web::web::Bytes;

use super::response::{Content, Head, Parts, ToolCallBody};
use crate::calls::generation::RunningText;
use crate::calls::output_spec::{GeneratedCall, ToolCallIds};
use crate::engine::{FinishReason, TextDelta, ToolCallDelta};
use crate::error::{Error, Result};
use crate::http::error::ollama_in_stream;
use crate::http::ndjson;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::ids::RequestId;

/// The response with the lines of `running`. `call_ids`: of a response that may have calls.
pub fn respond<T: Content>(
    running: impl RunningText + 'static,
    head: Head,
    call_ids: Option<ToolCallIds>,
    request_id: Option<RequestId>,
) -> HttpResponse {
    let lines = Lines {
        running,
        head,
        call_ids,
        calls: WholeCalls::default(),
        ids: Vec::new(),
        ending: FinishReason::Stop,
        content: PhantomData::<fn() -> T>,
    };
    ndjson::response(generation_stream::events(lines, request_id))
}

struct Lines<C, T> {
    running: C,
    head: Head,
    call_ids: Option<ToolCallIds>,
    calls: WholeCalls,
    /// The tokens so far.
    ids: Vec<u32>,
    ending: FinishReason,
    content: PhantomData<fn() -> T>,
}

impl<C: RunningText + 'static, T: Content> EventSource for Lines<C, T> {
    type Call = C;

    fn call(&mut self) -> &mut C {
        &mut self.running
    }

    /// Clients read every line as a part of the response, so it is one without text.
    fn keep_alive(&self) -> Bytes {
        ndjson::line(&self.head.part::<T>(Parts::default(), &[]))
    }

    fn event(&mut self, delta: &TextDelta) -> Option<Bytes> {
        self.ending = delta.end.unwrap_or(self.ending);
        self.ids.extend(&delta.token_ids);
        let calls = self.calls.add(delta);
        if delta.reasoning.is_empty() && delta.text.is_empty() && calls.is_empty() && delta.tokens.is_empty() {
            return None;
        }
        let body = |ids| calls.into_iter().map(|(index, call)| ToolCallBody::new(ids, index, call)).collect();
        let calls = self.call_ids.map(body).unwrap_or_default();
        let parts = Parts { thinking: delta.reasoning.clone(), text: delta.text.clone(), calls, context: None };
        Some(ndjson::line(&self.head.part::<T>(parts, &delta.tokens)))
    }

    fn last_event(&mut self) -> Bytes {
        ndjson::line(&self.head.last::<T>(self.ending, &self.ids, &self.running))
    }

    fn error_event(&self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Bytes {
        ollama_in_stream(error, request_id, recorded)
    }
}

/// Puts calls together from deltas.
#[derive(Default)]
struct WholeCalls {
    /// The call that is being generated, with its index.
    open: Option<(u32, GeneratedCall)>,
}

impl WholeCalls {
    /// The calls that end with a delta, with their indices.
    fn add(&mut self, delta: &TextDelta) -> Vec<(u32, GeneratedCall)> {
        let mut ended = Vec::new();
        for ToolCallDelta { index, name, arguments } in &delta.calls {
            if let Some(name) = name {
                ended.extend(
                    self.open.replace((*index, GeneratedCall { name: name.clone(), ..GeneratedCall::default() })),
                );
            }
            if let Some((_, call)) = &mut self.open {
                call.arguments.push_str(arguments);
            }
        }
        if delta.end.is_some() {
            ended.extend(self.open.take());
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_returned_when_it_is_complete() {
        let part = |index, name: Option<&str>, arguments: &str| ToolCallDelta {
            index,
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        };
        let delta = |calls, end| TextDelta { calls, end, ..TextDelta::default() };
        let call =
            |name: &str, arguments: &str| GeneratedCall { name: name.to_owned(), arguments: arguments.to_owned() };
        let mut calls = WholeCalls::default();
        assert!(calls.add(&delta(vec![part(0, Some("a"), "{")], None)).is_empty());
        assert!(calls.add(&delta(vec![part(0, None, "}")], None)).is_empty());
        let both = calls.add(&delta(vec![part(1, Some("b"), "{}"), part(2, Some("c"), "[")], None));
        assert_eq!(both, [(0, call("a", "{}")), (1, call("b", "{}"))]);
        let last = calls.add(&delta(vec![part(2, None, "]")], Some(FinishReason::ToolCalls)));
        assert_eq!(last, [(2, call("c", "[]"))]);
        assert!(calls.add(&delta(Vec::new(), Some(FinishReason::Stop))).is_empty());
    }
}
