//! Renders a model's own chat template, compatibly with Hugging Face's transformers.
//!
//! A template is untrusted code: it gets no files, bounded work (fuel), bounded output and filters with bounded
//! arguments. Its memory is bounded by the process that runs it: see [`crate::preprocessor`].
//!
//! A script makes templates at random from a fixed seed and stores what Jinja2 renders them to, and a test renders the
//! same templates here. Templates that are known to differ are in the same file, with the reason, and must differ, so
//! that a difference that goes away is noticed. minijinja stays unpatched: filters and methods in which it differs are
//! replaced, and what is left does not occur in known chat templates.

mod arguments;
mod filters;
mod json;
mod methods;
mod names;
mod python;

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, context};
use minijinja_contrib::globals;
use serde::{Deserialize, Serialize};

use self::arguments::invalid;
pub use self::json::spaced_json;
use crate::error::PreprocessError;
use outpost_common::clock_rng::ClockRng;

/// In template instructions, and 64 bytes of text for one; a conversation of a thousand messages takes about ten thousand.
const FUEL: u64 = 5_000_000;
const MAX_PROMPT_BYTES: usize = 16 << 20;
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Why a conversation could not be rendered to a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PromptError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template rejects this conversation, with a message for the caller.
    #[error("the model's chat template rejects these messages: {0}")]
    Refused(String),
    /// The template uses a filter, method or the like that this server does not have.
    #[error("the model's chat template is not supported: {0}")]
    Unsupported(String),
    /// The template accepts only objects as arguments of tool calls. Those of the call with this ID are none.
    #[error("the arguments of the tool call '{0}' are not a JSON object")]
    Arguments(String),
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
        environment.set_unknown_method_callback(methods::call);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(write_value);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
        });
        environment.add_function("strftime_now", move |format: String| strftime(clock.as_ref(), &format));
        environment.add_function("cycler", |items: Rest<Value>| globals::cycler(items.0));
        environment.add_function("joiner", globals::joiner);
        filters::add_to(&mut environment);
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_test("callable", is_callable);
        environment.add_test("sequence", is_sequence);
        // Jinja2 reads all ends of lines as line feeds.
        let source = without_generation_tags(&source.replace("\r\n", "\n").replace('\r', "\n"));
        environment
            .add_template_owned("chat", source.clone())
            .map_err(|error| format!("the chat template is invalid: {error}"))?;
        let compiled = environment.get_template("chat").map_err(|error| error.to_string())?;
        names::check(&environment, &source, syntax()?, &compiled.undeclared_variables(false))
            .map_err(|reason| format!("the chat template is not supported: {reason}"))?;
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
    match error.kind() {
        ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::TooManyArguments
        | ErrorKind::MissingArgument
        | ErrorKind::TemplateNotFound
        | ErrorKind::BadInclude => PromptError::Unsupported(error.to_string()),
        _ => PromptError::Broken(error.to_string()),
    }
}

/// Writes the value of an expression as Python does.
fn write_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::text_of(value)?),
    };
    written.map_err(Error::from)
}

/// Jinja2's undefined values are callable, and fail if they are called.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}

/// What has a length and items: also texts, objects and undefined values.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
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

/// The date in UTC: the server does not know the user's time zone.
fn strftime(clock: &dyn ClockRng, format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::from_millisecond(clock.now().as_millis()).map_err(invalid)?;
    jiff::fmt::strtime::format(format, &now.to_zoned(jiff::tz::TimeZone::UTC)).map_err(invalid)
}
