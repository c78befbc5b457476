//! A response in Ollama's format, whole or as lines of JSON. Calls are not split: a line has whole ones.
//!
//! A line without text keeps the connection alive: newline-delimited JSON has no comments, and Ollama's Python package
//! fails on blank lines. Ollama itself sends such lines while it parses calls.

use std::marker::PhantomData;

use actix_web::HttpResponse;
use actix_web::web::Bytes;
use futures_util::Stream;

use super::api_format::in_stream;
use super::response::{Content, Head, Parts, call_bodies};
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{GeneratedCall, OutputItems, TurnEvent};
use crate::error::{Error, Result};
use crate::http::authentication::Caller;
use crate::http::ndjson;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::TurnEncoder;
use crate::ids::RequestId;

pub struct LineEncoder<C, T> {
    turn: Turn<C>,
    head: Head,
    calls: WholeCalls,
    content: PhantomData<fn() -> T>,
}

impl<C, T> LineEncoder<C, T> {
    pub fn new(turn: Turn<C>, head: Head) -> Self {
        Self { turn, head, calls: WholeCalls::default(), content: PhantomData }
    }
}

impl<C: RunningText + 'static, T: Content> TurnEncoder for LineEncoder<C, T> {
    type Call = C;

    fn turn(&mut self) -> &mut Turn<C> {
        &mut self.turn
    }

    fn whole(self, _caller: &Caller) -> ApiResult {
        Ok(HttpResponse::Ok().json(self.head.whole::<T>(&self.turn)))
    }

    fn streamed(lines: impl Stream<Item = Bytes> + 'static) -> HttpResponse {
        ndjson::response(lines)
    }

    /// Clients read every line as a part of the response, so it is one without text.
    fn keep_alive(&self) -> Bytes {
        ndjson::line(&self.head.part::<T>(Parts::default(), &[]))
    }

    fn event(&mut self, event: &TurnEvent) -> Option<Bytes> {
        let calls = self.calls.next(self.turn.output());
        let (thinking, text) = (event.reasoning().into_owned(), event.text().into_owned());
        if thinking.is_empty() && text.is_empty() && calls.is_empty() && event.tokens.is_empty() {
            return None;
        }
        let calls = call_bodies(self.turn.call.call_ids(), calls.into_iter());
        Some(ndjson::line(&self.head.part::<T>(Parts { thinking, text, calls, context: None }, &event.tokens)))
    }

    fn last_event(&mut self) -> Bytes {
        ndjson::line(&self.head.last::<T>(&self.turn))
    }

    fn error_event(&mut self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Bytes {
        in_stream(error, request_id, recorded)
    }
}

/// Counts the calls that were returned.
#[derive(Default)]
struct WholeCalls(usize);

impl WholeCalls {
    /// The calls that have become whole: the last one of an output is, once the output has ended.
    fn next<'a>(&mut self, output: &'a OutputItems) -> Vec<GeneratedCall<'a>> {
        let calls: Vec<GeneratedCall<'a>> = output.calls().collect();
        let whole = calls.len().saturating_sub(usize::from(output.ending.is_none()));
        let returned = std::mem::replace(&mut self.0, whole);
        calls.get(returned..whole).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::turn::output::KeptTokens;
    use crate::engine::{FinishReason, TextDelta, ToolCallDelta};

    #[test]
    fn a_call_is_returned_when_it_is_complete() {
        let part = |index, name: Option<&str>, arguments: &str| ToolCallDelta {
            index,
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        };
        let (mut calls, mut output) = (WholeCalls::default(), OutputItems::or_empty(KeptTokens::None));
        let mut add = |parts, end| -> Vec<String> {
            output.add(TextDelta { calls: parts, end, ..TextDelta::default() });
            let whole = calls.next(&output).into_iter();
            whole.map(|GeneratedCall { index, name, arguments }| format!("{index} {name} {arguments}")).collect()
        };
        assert!(add(vec![part(0, Some("a"), "{")], None).is_empty());
        assert!(add(vec![part(0, None, "}")], None).is_empty());
        assert_eq!(add(vec![part(1, Some("b"), "{}"), part(2, Some("c"), "[")], None), ["0 a {}", "1 b {}"]);
        assert_eq!(add(vec![part(2, None, "]")], Some(FinishReason::ToolCalls)), ["2 c []"]);
        assert!(add(Vec::new(), Some(FinishReason::Stop)).is_empty());
    }
}
