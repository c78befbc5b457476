//! Renders a model's own chat template, compatibly with Hugging Face's transformers.
//!
//! A template is untrusted code: it gets no files, bounded work (fuel), bounded output and filters with bounded
//! arguments. Its memory is bounded by the process that runs it: see [`crate::engine::preprocessor`].

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::{Deserialize, Serialize};

use crate::clock_rng::ClockRng;
use crate::engine::error::PreprocessError;

/// In template instructions; a conversation of a thousand messages takes about ten thousand.
const FUEL: u64 = 5_000_000;
const MAX_PROMPT_BYTES: usize = 16 << 20;
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
const MAX_INDENT: usize = 64;

/// Why a conversation could not be rendered to a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PromptError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template rejects this conversation, with a message for the caller.
    #[error("the model's chat template rejects these messages: {0}")]
    Refused(String),
    /// The template fails. This is the model's fault, not the caller's.
    #[error("the model's chat template fails: {0}")]
    Broken(String),
    /// The template or the tokenizer was stopped or crashed. This is the model's fault, too.
    #[error("the model's chat template or its tokenizer fails: {0}")]
    PreprocessError(PreprocessError),
}

pub struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// The argument of the template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Template {
    pub fn new(source: &str, bos: String, eos: String, clock: Arc<dyn ClockRng>) -> Result<Self, String> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(format!("the chat template has {} bytes; the maximum is {MAX_TEMPLATE_BYTES}", source.len()));
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_syntax(syntax()?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
        });
        environment.add_function("strftime_now", move |format: String| strftime(clock.as_ref(), &format));
        environment.add_filter("tojson", to_json);
        environment.add_filter("indent", indent);
        environment.remove_filter("format");
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(|error| format!("the chat template is invalid: {error}"))?;
        Ok(Self { environment, bos, eos })
    }

    /// `messages` is a list of `{role, content, name?, reasoning_content?, tool_calls?, tool_call_id?}`, `tools` a list of
    /// `{type, function}`. `variables`: further variables of the template. With `generation_prompt`, the output ends where
    /// the assistant's next message begins.
    pub fn render(
        &self,
        messages: Value,
        tools: Vec<Value>,
        variables: HashMap<String, Value>,
        generation_prompt: bool,
    ) -> Result<String, PromptError> {
        let template = self.environment.get_template("chat").map_err(|error| prompt_error(&error))?;
        let context = context! {
            messages,
            add_generation_prompt => generation_prompt,
            bos_token => &self.bos,
            eos_token => &self.eos,
            tools => Some(tools).filter(|tools| !tools.is_empty()),
            documents => (),
            ..Value::from(variables)
        };
        let mut out = BoundedWriter(Vec::new());
        template.render_captured_to(context, &mut out).map_err(|error| prompt_error(&error))?;
        String::from_utf8(out.0).map_err(|error| PromptError::Broken(error.to_string()))
    }
}

/// Hugging Face removes the lines that consist of block tags only; templates rely on it.
fn syntax() -> Result<SyntaxConfig, String> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|error| format!("the template syntax cannot be configured: {error}"))
}

/// Replaces `{% generation %}` … `{% endgeneration %}`, with which transformers marks what the assistant writes, by a block
/// without effect.
fn without_generation_tags(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some((before, (tag, after))) =
        rest.split_once("{%").and_then(|(before, rest)| Some((before, rest.split_once("%}")?)))
    {
        let tag = match tag.trim_matches(['-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        out.extend([before, "{%", &tag, "%}"]);
        rest = after;
    }
    out + rest
}

fn prompt_error(error: &Error) -> PromptError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(Raised(message)) = one.downcast_ref() {
            return PromptError::Refused(message.clone());
        }
        cause = one.source();
    }
    PromptError::Broken(error.to_string())
}

/// Stops a template whose output is too long.
struct BoundedWriter(Vec<u8>);

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::other(format!("its output exceeds {MAX_PROMPT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn invalid(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}

/// The date in UTC: the server does not know the user's time zone.
fn strftime(clock: &dyn ClockRng, format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::from_millisecond(clock.now().as_millis()).map_err(invalid)?;
    jiff::fmt::strtime::format(format, &now.to_zoned(jiff::tz::TimeZone::UTC)).map_err(invalid)
}

/// JSON as Python's `json.dumps(ensure_ascii=False)` writes it, which models were trained on.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut out = Vec::new();
    match indent {
        Some(width) if width > MAX_INDENT => return Err(invalid("tojson: the indent is too wide")),
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => {
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, SpacedFormatter))
        }
    }
    .map_err(invalid)?;
    String::from_utf8(out).map_err(invalid)
}

/// JSON in the same format, for a value from outside a template.
pub fn spaced_json(value: &serde_json::Value) -> serde_json::Result<String> {
    let mut out = Vec::new();
    serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, SpacedFormatter))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Writes `", "` and `": "` as separators.
struct SpacedFormatter;

impl serde_json::ser::Formatter for SpacedFormatter {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// Jinja's `indent`, up to a maximum width.
fn indent(text: &str, width: Option<usize>, first: Option<bool>) -> Result<String, Error> {
    let width = width.unwrap_or(4);
    if width > MAX_INDENT {
        return Err(invalid(format!("indent: {width} is too wide; the maximum is {MAX_INDENT}")));
    }
    let pad = " ".repeat(width);
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if !line.is_empty() && (index > 0 || first.unwrap_or(false)) {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(out)
}
