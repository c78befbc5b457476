//! A response as lines of JSON. Calls are not split: a line has whole ones.

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
    let lines =
        Lines { running, head, call_ids, call: None, ending: FinishReason::Stop, content: PhantomData::<fn() -> T> };
    ndjson::response(generation_stream::events(lines, request_id))
}

struct Lines<C, T> {
    running: C,
    head: Head,
    call_ids: Option<ToolCallIds>,
    /// The call that is being generated, with its index.
    call: Option<(u32, GeneratedCall)>,
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
        let mut calls = Vec::new();
        for part in &delta.calls {
            calls.extend(self.add(part));
        }
        if delta.end.is_some() {
            calls.extend(self.take_call());
        }
        if delta.text.is_empty() && calls.is_empty() && delta.tokens.is_empty() {
            return None;
        }
        let parts = Parts { text: delta.text.clone(), calls };
        Some(ndjson::line(&self.head.part::<T>(parts, &delta.tokens)))
    }

    fn last_event(&mut self) -> Bytes {
        ndjson::line(&self.head.last::<T>(self.ending, &self.running))
    }

    fn error_event(&self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Bytes {
        ollama_in_stream(error, request_id, recorded)
    }
}

impl<C, T> Lines<C, T> {
    /// Adds a part of a call. Returns the call before it, if that has ended.
    fn add(&mut self, part: &ToolCallDelta) -> Option<ToolCallBody> {
        let ended = if part.name.is_some() { self.take_call() } else { None };
        if let Some(name) = &part.name {
            self.call = Some((part.index, GeneratedCall { name: name.clone(), arguments: String::new() }));
        }
        if let Some((_, call)) = &mut self.call {
            call.arguments.push_str(&part.arguments);
        }
        ended
    }

    fn take_call(&mut self) -> Option<ToolCallBody> {
        let ids = self.call_ids?;
        let (index, call) = self.call.take()?;
        Some(ToolCallBody::new(ids, index, call))
    }
}
