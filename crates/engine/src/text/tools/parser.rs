//! Parses tool calls from the text while it is generated.
//!
//! The grammar lets only well-formed calls through, so the parser only finds where each call begins and where its
//! arguments end. Text that may still turn out to be a call is held back.

use std::sync::Arc;

use super::bare_call::{BareCallMatcher, BareMatch};
use super::format::{ArgumentStyle, CallFormat, CallSyntax};
use super::literals::LiteralParser;
use super::parameters::ParameterParser;
use super::{Tool, ToolCallDelta};
use crate::text::stop::StopMatcher;

/// The beginning of every call of a Llama model, after whitespace.
const LLAMA_CALL_START: &str = "{\"name\"";

pub struct CallParser {
    syntax: Arc<CallSyntax>,
    /// The beginning of each tool's calls, with the character that ends it.
    heads: Vec<String>,
    /// Finds calls without an opening.
    bare: BareCallMatcher,
    state: State,
    calls: u32,
}

enum State {
    /// The output so far may be the beginning of a call.
    Start(String),
    /// Like [`State::Start`], for calls without an opening tag.
    Bare(String),
    /// Text that may contain an opening.
    Text(StopMatcher),
    /// Text to the end of the output.
    Plain,
    /// Between calls, before the first or after the last.
    Markup(String),
    Arguments {
        depth: JsonDepth,
        bare: bool,
    },
    /// Arguments that are not JSON.
    Converted(Converter),
    /// After the arguments of a call without an opening.
    Tail,
    /// After such a call: another call, or the end of the output.
    Next,
    Done,
}

/// Turns arguments into JSON while they are generated.
enum Converter {
    Tagged(ParameterParser),
    Literals(LiteralParser),
}

impl Converter {
    /// `None`: the arguments are JSON.
    fn new(style: ArgumentStyle, tool: &Tool) -> Option<Self> {
        match style {
            ArgumentStyle::Json => None,
            ArgumentStyle::Tagged(tags) => Some(Self::Tagged(ParameterParser::new(tool, tags))),
            ArgumentStyle::Python => Some(Self::Literals(LiteralParser::default())),
            ArgumentStyle::Gemma => Some(Self::Literals(LiteralParser::gemma())),
        }
    }

    /// Takes a character. Returns what it adds to the JSON of the arguments, and whether they end with it.
    fn push(&mut self, ch: char) -> (String, bool) {
        match self {
            Self::Tagged(parser) => parser.push(ch),
            Self::Literals(parser) => parser.push(ch),
        }
    }
}

/// The nesting of a JSON object or array that arrives in parts. Finds its end.
#[derive(Clone, Debug, Default)]
pub struct JsonDepth {
    open: u32,
    quoted: bool,
    escaped: bool,
}

impl JsonDepth {
    /// Takes a character. True if the object ends with it.
    pub fn push(&mut self, ch: char) -> bool {
        match ch {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = self.quoted,
            '"' => self.quoted = !self.quoted,
            '{' | '[' if !self.quoted => self.open += 1,
            '}' | ']' if !self.quoted => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        self.open == 0 && matches!(ch, '}' | ']') && !self.quoted
    }
}

/// What one step adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub text: String,
    pub calls: Vec<ToolCallDelta>,
    /// Set if generation must end here.
    pub done: bool,
}

impl CallParser {
    pub fn new(syntax: Arc<CallSyntax>) -> Self {
        let notation = syntax.format.notation();
        let heads = syntax.callable.iter().map(|(_, tool)| notation.head(&tool.name) + notation.name_end).collect();
        let bare = BareCallMatcher::new(syntax.callable.iter().map(|(_, tool)| tool.name.as_str()));
        let state = match syntax.format {
            _ if syntax.call_required => State::Markup(String::new()),
            _ if syntax.bare => State::Bare(String::new()),
            CallFormat::Llama => State::Start(String::new()),
            _ => text_state(&syntax),
        };
        Self { syntax, heads, bare, state, calls: 0 }
    }

    /// True after the first call.
    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether the parser is past the text, in or between calls.
    pub fn is_calling(&self) -> bool {
        !matches!(self.state, State::Start(_) | State::Bare(_) | State::Text(_) | State::Plain)
    }

    /// Takes a token and the text that it completes.
    pub fn push(&mut self, id: u32, text: &str) -> Parsed {
        let mut parsed = Parsed::default();
        if !self.is_calling() && self.syntax.opening_ids().any(|opening| opening == id) {
            parsed.text = self.finish();
            self.state = State::Markup(String::new());
        }
        // A marker that is a control token has no text, but a call's head may have it.
        let marker = self.syntax.control_tokens.iter().find(|(_, marker)| self.is_calling() && *marker == id);
        let marker = marker.map(|(marker, _)| *marker).filter(|_| text.is_empty()).unwrap_or_default();
        marker.chars().chain(text.chars()).for_each(|ch| self.push_char(ch, &mut parsed));
        parsed.done = matches!(self.state, State::Done);
        parsed
    }

    /// The text that was held back, at the end of the output.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Start(held) | State::Bare(held) => std::mem::take(held),
            State::Text(opening) => opening.finish(),
            _ => String::new(),
        }
    }

    fn push_char(&mut self, ch: char, parsed: &mut Parsed) {
        match &mut self.state {
            State::Plain => parsed.text.push(ch),
            State::Text(opening) => {
                let (text, found) = opening.push(ch.encode_utf8(&mut [0; 4]));
                parsed.text.push_str(&text);
                if found.is_some() {
                    self.state = State::Markup(String::new());
                }
            }
            State::Start(held) => {
                held.push(ch);
                let start = held.trim_start();
                if start == LLAMA_CALL_START {
                    self.state = State::Markup(start.to_owned());
                } else if !LLAMA_CALL_START.starts_with(start) {
                    parsed.text.push_str(held);
                    self.state = State::Plain;
                }
            }
            State::Bare(held) => {
                held.push(ch);
                match self.bare.push(ch) {
                    BareMatch::Undecided => {}
                    BareMatch::Call(name) => self.start_call(name, true, parsed),
                    BareMatch::Text => {
                        let held = std::mem::take(held);
                        self.state = text_state(&self.syntax);
                        held.chars().for_each(|ch| self.push_char(ch, parsed));
                    }
                }
            }
            State::Markup(seen) => {
                seen.push(ch);
                // A name may be the end of another one, so the longest head counts.
                let end = self.syntax.format.notation().without_call_id(seen);
                let heads = self.heads.iter().enumerate().filter(|(_, head)| end.ends_with(head.as_str()));
                let found = heads.max_by_key(|(_, head)| head.len());
                let syntax = Arc::clone(&self.syntax);
                if let Some((_, tool)) = found.and_then(|(index, _)| syntax.callable.get(index)) {
                    self.start_call(tool.name.clone(), false, parsed);
                    let notation = syntax.format.notation();
                    if let Some(mut converter) = Converter::new(notation.arguments, tool) {
                        notation.name_end.chars().for_each(|ch| drop(converter.push(ch)));
                        self.state = State::Converted(converter);
                    }
                }
            }
            State::Arguments { depth, bare } => {
                if depth.open == 0 && ch.is_whitespace() {
                    return;
                }
                let (done, bare) = (depth.push(ch), *bare);
                push_argument(&mut parsed.calls, self.calls.saturating_sub(1), ch);
                if done {
                    self.state = if bare { State::Tail } else { State::Markup(String::new()) };
                }
            }
            State::Converted(converter) => {
                let (json, done) = converter.push(ch);
                json.chars().for_each(|ch| push_argument(&mut parsed.calls, self.calls.saturating_sub(1), ch));
                if done {
                    self.state = State::Markup(String::new());
                }
            }
            State::Tail if ch == '}' => {
                self.bare.reset();
                self.state = if self.syntax.parallel { State::Next } else { State::Done };
            }
            State::Next => match self.bare.push(ch) {
                BareMatch::Undecided => {}
                BareMatch::Call(name) => self.start_call(name, true, parsed),
                BareMatch::Text => self.state = State::Done,
            },
            State::Tail | State::Done => {}
        }
    }

    fn start_call(&mut self, name: String, bare: bool, parsed: &mut Parsed) {
        parsed.calls.push(ToolCallDelta { index: self.calls, name: Some(name), arguments: String::new() });
        self.calls += 1;
        self.state = State::Arguments { depth: JsonDepth::default(), bare };
    }
}

/// Text that may contain one of the format's openings.
fn text_state(syntax: &CallSyntax) -> State {
    State::Text(StopMatcher::new(syntax.opening_texts().into_iter().map(str::to_owned).collect()))
}

/// Appends a character to the arguments of the call `index`.
fn push_argument(calls: &mut Vec<ToolCallDelta>, index: u32, ch: char) {
    match calls.last_mut() {
        Some(delta) if delta.index == index && delta.name.is_none() => delta.arguments.push(ch),
        _ => calls.push(ToolCallDelta { index, name: None, arguments: ch.to_string() }),
    }
}

#[cfg(test)]
mod tests;
