//! One line of a batch's input: a request.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::display::shorten;
use crate::storage::batches::BatchEndpoint;

/// Max characters of a `custom_id`.
const MAX_ID_CHARS: usize = 512;

/// A valid request. Its text is part of the line.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// As JSON.
    custom_id: &'a RawValue,
    /// A JSON object.
    pub body: &'a RawValue,
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
pub struct LineProblem {
    pub code: &'static str,
    pub message: String,
    pub param: Option<&'static str>,
}

impl<'a> RequestLine<'a> {
    pub fn parse(line: &'a [u8], endpoint: BatchEndpoint) -> Result<Self, LineProblem> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(line).map_err(|error| {
            let place = match error.column() {
                0 => String::new(),
                column => format!(" The error is at byte {column}."),
            };
            let message = format!("The line is not a JSON object in UTF-8.{place}");
            LineProblem { code: "invalid_json_line", message, param: None }
        })?;
        let field = |name: &'static str, what: &str| {
            let missing =
                || problem("missing_required_parameter", name, format!("'{name}' is missing. It must be {what}."));
            fields.get(name).copied().ok_or_else(missing)
        };
        let text = |name: &'static str, what: &str| {
            let wrong = |_| problem("invalid_parameter", name, format!("'{name}' must be {what}."));
            serde_json::from_str::<String>(field(name, what)?.get()).map_err(wrong)
        };
        let custom_id = text("custom_id", "a text that no other line has")?;
        if !(1..=MAX_ID_CHARS).contains(&custom_id.chars().count()) {
            let message = format!("'custom_id' must have 1 to {MAX_ID_CHARS} characters.");
            return Err(problem("invalid_parameter", "custom_id", message));
        }
        let method = text("method", "'POST'")?;
        if method != "POST" {
            let message = format!("'method' is '{}'; it must be 'POST'.", shorten(&method));
            return Err(problem("invalid_method", "method", message));
        }
        let (url, path) = (text("url", "the batch's endpoint")?, endpoint.path());
        if url != path {
            let message =
                format!("'url' is '{}', but the batch's endpoint is '{path}'. They must be equal.", shorten(&url));
            return Err(problem("mismatched_url", "url", message));
        }
        let body = field("body", "the body of the request, an object")?;
        check_body(body)?;
        Ok(Self { custom_id: field("custom_id", "a text")?, body })
    }

    /// The `custom_id` as text.
    pub fn custom_id(&self) -> String {
        serde_json::from_str(self.custom_id.get()).unwrap_or_default()
    }
}

/// Refuses what no request of a batch may ask for.
fn check_body(body: &RawValue) -> Result<(), LineProblem> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(body.get()).map_err(|_| {
        problem("invalid_parameter", "body", "'body' must be an object: the body of the request.".into())
    })?;
    if fields.get("stream").is_some_and(|stream| stream.get() == "true") {
        let message = "'body.stream' is true, but requests of a batch cannot be streamed. Leave it out.";
        return Err(problem("invalid_parameter", "body.stream", message.into()));
    }
    for (name, field) in [("conversation_id", "body.conversation_id"), ("conversation", "body.conversation")] {
        if fields.get(name).is_some_and(|id| id.get() != "null") {
            let message = format!(
                "'{field}' is not supported in a batch: a conversation has one turn at a time. Send the messages."
            );
            return Err(problem("invalid_parameter", field, message));
        }
    }
    Ok(())
}

fn problem(code: &'static str, param: &'static str, message: String) -> LineProblem {
    LineProblem { code, message, param: Some(param) }
}

#[cfg(test)]
mod tests {
    use super::{BatchEndpoint, RequestLine};

    fn problem(line: &str) -> (&'static str, Option<&'static str>) {
        let problem = RequestLine::parse(line.as_bytes(), BatchEndpoint::Embeddings).unwrap_err();
        assert!(problem.message.ends_with('.'), "{}", problem.message);
        (problem.code, problem.param)
    }

    #[test]
    fn a_request_needs_an_id_a_method_the_endpoint_and_a_body() {
        let line = r#"{"custom_id": "a\"b", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}"#;
        let parsed = RequestLine::parse(line.as_bytes(), BatchEndpoint::Embeddings).unwrap();
        assert_eq!((parsed.custom_id().as_str(), parsed.body.get()), ("a\"b", r#"{"input": "x"}"#));
        assert_eq!(problem("[]"), ("invalid_json_line", None));
        assert_eq!(problem(&line.replace("custom_id", "id")), ("missing_required_parameter", Some("custom_id")));
        assert_eq!(problem(&line.replace(r#""a\"b""#, "1")), ("invalid_parameter", Some("custom_id")));
        assert_eq!(problem(&line.replace(r#""a\"b""#, "\"\"")), ("invalid_parameter", Some("custom_id")));
        assert_eq!(problem(&line.replace("POST", "GET")), ("invalid_method", Some("method")));
        assert_eq!(problem(&line.replace("embeddings", "completions")), ("mismatched_url", Some("url")));
        assert_eq!(problem(&line.replace(r#"{"input": "x"}"#, "[]")), ("invalid_parameter", Some("body")));
        let streamed = line.replace(r#""input": "x""#, r#""stream": true"#);
        assert_eq!(problem(&streamed), ("invalid_parameter", Some("body.stream")));
        for (name, field) in [("conversation", "body.conversation"), ("conversation_id", "body.conversation_id")] {
            let continued = line.replace(r#""input": "x""#, &format!("\"{name}\": \"conv_1\""));
            assert_eq!(problem(&continued), ("invalid_parameter", Some(field)));
        }
    }
}
