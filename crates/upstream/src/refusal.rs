//! A target's reason to refuse a request, in a form that clients may see.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::config::TargetConfig;

/// Max characters of a message that is passed on.
const MAX_MESSAGE: usize = 400;
/// Max characters from which these are taken: names are replaced, and spaces are joined.
const MAX_EXAMINED: usize = 10 * MAX_MESSAGE;

/// A target's reason to refuse a request. It names neither the target nor its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status: 400, 413 or 422.
    pub status: u16,
    /// `None` if there is none that a client may see.
    pub message: Option<String>,
    /// The field at fault.
    pub param: Option<String>,
    pub code: Option<String>,
}

/// The body of an error response, or the error in it. Values are read as far as they are needed: a value of any JSON takes
/// many times the memory of its text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    param: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
}

impl Refusal {
    /// Reads the body of an error response, in the formats of OpenAI, vLLM, FastAPI and TEI. `id`: the model's name here.
    pub fn parse(status: u16, body: &[u8], target: &TargetConfig, id: &str) -> Self {
        let body: Body<'_> = serde_json::from_slice(body).unwrap_or_default();
        let inner: Option<Body<'_>> = body.error.and_then(|error| serde_json::from_str(error.get()).ok());
        let error = inner.as_ref().unwrap_or(&body);
        let message = text(error.message).or_else(|| text(body.error)).or_else(|| body.detail.and_then(detail));
        let code = text(error.code).filter(|code| is_name(code));
        let param = text(error.param).filter(|param| is_name(param));
        Self { status, message: message.and_then(|message| public(&message, target, id)), param, code }
    }
}

fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

/// FastAPI's description of an error.
fn detail(detail: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Problem {
        msg: String,
    }
    let first = || serde_json::from_str::<Vec<Problem>>(detail.get()).ok()?.into_iter().next();
    text(Some(detail)).or_else(|| Some(first()?.msg))
}

/// True for texts that can be the name of a field or a code.
fn is_name(text: &str) -> bool {
    let may_have = |character: char| character.is_ascii_alphanumeric() || "_-.[]".contains(character);
    (1..=100).contains(&text.len()) && text.chars().all(may_have)
}

/// The message in one line; `None` if it names the target.
fn public(message: &str, target: &TargetConfig, id: &str) -> Option<String> {
    let lower = message.to_lowercase();
    let host = target.address.host().to_lowercase();
    let names_target = lower.contains(&host) || lower.contains("://");
    let has_key = target.key.as_ref().is_some_and(|key| key.is_in(message));
    let has_text = message.chars().any(char::is_alphanumeric);
    if names_target || has_key || !has_text {
        return None;
    }
    let message: String = message.chars().take(MAX_EXAMINED).collect();
    let message = if target.model == id { message } else { message.replace(&target.model, id) };
    let spaced: String = message.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let line = spaced.split_whitespace().collect::<Vec<&str>>().join(" ");
    let short: String = line.chars().take(MAX_MESSAGE).collect();
    Some(if short.len() < line.len() { format!("{short}…") } else { short })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::UpstreamModel;

    fn parsed(body: &str) -> Refusal {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), "sk-secret").unwrap();
        let path = folder.path().join("upstream.toml");
        let text = "kind = \"chat\"\n[[target]]\nurl = \"http://gpu1.internal:80/v1\"\nmodel = \"Qwen/Q3\"\nkey_file = \"key\"";
        fs::write(&path, text).unwrap();
        let model = UpstreamModel::read("mine", &path).unwrap();
        Refusal::parse(400, body.as_bytes(), &model.targets[0], "mine")
    }

    #[test]
    fn the_formats_of_several_servers_are_read() {
        let openai = parsed(r#"{"error":{"message":"Qwen/Q3 is\n small","param":"max_tokens","code":"too_long"}}"#);
        assert_eq!(openai.message.as_deref(), Some("mine is small"));
        assert_eq!((openai.param.as_deref(), openai.code.as_deref()), (Some("max_tokens"), Some("too_long")));
        for body in [
            r#"{"object":"error","message":"bad","param":null,"code":400}"#,
            r#"{"error":"bad","error_type":"Validation"}"#,
            r#"{"detail":"bad"}"#,
            r#"{"detail":[{"loc":["body"],"msg":"bad"}]}"#,
        ] {
            assert_eq!(parsed(body).message.as_deref(), Some("bad"), "{body}");
        }
        for body in ["", "<html>", "[]", r#"{"error":{"message":7}}"#, r#"{"error":{"message":" "}}"#] {
            assert_eq!(parsed(body).message, None, "{body}");
        }
        assert_eq!(parsed(r#"{"error":{"message":"x","param":"a b"}}"#).param, None);
    }

    #[test]
    fn messages_that_name_the_target_are_left_out() {
        for message in ["see GPU1.internal", "at http://x/", "key sk-secret is wrong"] {
            let body = serde_json::json!({ "error": { "message": message } }).to_string();
            assert_eq!(parsed(&body).message, None, "{message}");
        }
        let long = serde_json::json!({ "detail": "é".repeat(1000) }).to_string();
        assert_eq!(parsed(&long).message.unwrap().chars().count(), MAX_MESSAGE + 1);
    }
}
