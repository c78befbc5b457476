//! The chat template that a model carries, rendered as the model's makers meant it.
//!
//! A template is a program from a stranger: it gets no files, bounded work (fuel), bounded output,
//! and filters that cannot be asked for a gigabyte. What it makes on its way is not bounded here, but by the
//! process that it runs in: see [`crate::engine::preprocessor`].

use std::io::{self, Write};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::{Deserialize, Serialize};

use crate::clock_rng::ClockRng;
use crate::engine::error::PreprocessError;

/// Instructions; a conversation of a thousand messages takes some ten thousand.
const FUEL: u64 = 5_000_000;
const LONGEST_PROMPT: usize = 16 << 20;
const LONGEST_TEMPLATE: usize = 1 << 20;
const WIDEST_INDENT: usize = 64;

/// Why a conversation has no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PromptError {
    /// The template itself refuses this conversation, with a message for the caller.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template fails: the model's fault, not the caller's.
    #[error("the model's chat template fails: {0}")]
    Broken(String),
    /// It was stopped, or what tokenises its prompt: the model's fault, too.
    #[error("the model's chat template or its tokenizer fails: {0}")]
    PreprocessError(PreprocessError),
}

pub struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Template {
    pub fn new(source: &str, bos: String, eos: String, clock: Arc<dyn ClockRng>) -> Result<Self, String> {
        if source.len() > LONGEST_TEMPLATE {
            return Err(format!("the chat template has {} bytes, {LONGEST_TEMPLATE} are the most", source.len()));
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
        environment
            .add_template_owned("chat", source.to_owned())
            .map_err(|error| format!("the chat template is damaged: {error}"))?;
        Ok(Self { environment, bos, eos })
    }

    /// `messages` is a list of `{role, content, name?, tool_calls?, tool_call_id?}`, `tools` one of
    /// `{type, function}`.
    pub fn render(&self, messages: Value, tools: Vec<Value>) -> Result<String, PromptError> {
        let template = self.environment.get_template("chat").map_err(|error| failure(&error))?;
        let context = context! {
            messages,
            add_generation_prompt => true,
            bos_token => &self.bos,
            eos_token => &self.eos,
            tools => Some(tools).filter(|tools| !tools.is_empty()),
            documents => (),
        };
        let mut out = Bounded(Vec::new());
        template.render_captured_to(context, &mut out).map_err(|error| failure(&error))?;
        String::from_utf8(out.0).map_err(|error| PromptError::Broken(error.to_string()))
    }
}

/// Hugging Face renders with blocks' own lines removed; templates count on it.
fn syntax() -> Result<SyntaxConfig, String> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|error| format!("the template syntax cannot be set up: {error}"))
}

fn failure(error: &Error) -> PromptError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(Raised(message)) = one.downcast_ref() {
            return PromptError::Refused(message.clone());
        }
        cause = one.source();
    }
    PromptError::Broken(error.to_string())
}

/// Stops a template that never stops writing.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LONGEST_PROMPT {
            return Err(io::Error::other(format!("its output exceeds {LONGEST_PROMPT} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wrong(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_string())
}

/// The date in UTC: a server has no better idea of the user's place.
fn strftime(clock: &dyn ClockRng, format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::from_millisecond(clock.now().as_millis()).map_err(wrong)?;
    jiff::fmt::strtime::format(format, &now.to_zoned(jiff::tz::TimeZone::UTC)).map_err(wrong)
}

/// As Python's `json.dumps(ensure_ascii=False)` writes it, which is what models were trained on.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut out = Vec::new();
    match indent {
        Some(width) if width > WIDEST_INDENT => return Err(wrong("tojson: the indent is too wide")),
        Some(width) => {
            let spaces = " ".repeat(width);
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    }
    .map_err(wrong)?;
    String::from_utf8(out).map_err(wrong)
}

/// The same of a value that is no template's.
pub fn json(value: &serde_json::Value) -> serde_json::Result<String> {
    let mut out = Vec::new();
    serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, Spaced))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// `", "` and `": "` between items.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
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

/// Jinja's `indent` for the widths that a prompt can want.
fn indent(text: &str, width: Option<usize>, first: Option<bool>) -> Result<String, Error> {
    let width = width.unwrap_or(4);
    if width > WIDEST_INDENT {
        return Err(wrong(format!("indent: {width} is too wide, {WIDEST_INDENT} is the most")));
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
