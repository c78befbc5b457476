//! Tells calls from text while an answer is generated.
//!
//! A grammar has let only well-formed calls through, so all there is to do is to find where each
//! begins and where its arguments end. Nothing is shown that may still turn out to be a call.

use std::sync::Arc;

use super::ToolCallDelta;
use super::bare::{Bare, Begun};
use super::format::{Format, Syntax};
use crate::engine::text::stop::StopMatcher;

/// How every call of a Llama begins, white space aside.
const LLAMA: &str = "{\"name\"";

pub struct CallParser {
    syntax: Arc<Syntax>,
    /// How each tool's calls begin, with its name.
    heads: Vec<(String, String)>,
    /// Finds calls without an opening.
    bare: Bare,
    state: State,
    calls: u32,
}

enum State {
    /// Nothing but what may be the beginning of a call.
    Start(String),
    /// The same where the call has no opening.
    Bare(String),
    /// Text in which an opening may come.
    Text(StopMatcher),
    /// Text to the end.
    Plain,
    /// Between calls, before the first or after the last.
    Markup(String),
    Arguments {
        depth: Depth,
        bare: bool,
    },
    /// After the arguments of a call without an opening.
    Tail,
    /// After such a call: another, or nothing that is wanted.
    Next,
    Over,
}

/// Where a JSON object stands.
#[derive(Default)]
struct Depth {
    open: u32,
    quoted: bool,
    escaped: bool,
}

impl Depth {
    /// Whether the object ends with this character.
    fn push(&mut self, letter: char) -> bool {
        match letter {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = self.quoted,
            '"' => self.quoted = !self.quoted,
            '{' | '[' if !self.quoted => self.open += 1,
            '}' | ']' if !self.quoted => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        self.open == 0 && matches!(letter, '}' | ']') && !self.quoted
    }
}

/// What one step adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub text: String,
    pub calls: Vec<ToolCallDelta>,
    /// Whether the answer is to end here.
    pub over: bool,
}

impl CallParser {
    pub fn new(syntax: Arc<Syntax>) -> Self {
        let heads = syntax.callable.iter();
        let heads = heads.map(|(_, tool)| (syntax.format.head(&tool.name), tool.name.clone())).collect();
        let bare = Bare::new(syntax.callable.iter().map(|(_, tool)| tool.name.as_str()));
        let state = match syntax.format {
            _ if syntax.at_once => State::Markup(String::new()),
            _ if syntax.bare => State::Bare(String::new()),
            Format::Llama => State::Start(String::new()),
            format => text(format),
        };
        Self { syntax, heads, bare, state, calls: 0 }
    }

    /// Whether the answer has a call.
    pub fn called(&self) -> bool {
        self.calls > 0
    }

    /// Whether the answer is no longer text.
    pub fn is_calling(&self) -> bool {
        !matches!(self.state, State::Start(_) | State::Bare(_) | State::Text(_) | State::Plain)
    }

    /// Takes a token and the text that is whole with it.
    pub fn push(&mut self, id: u32, text: &str) -> Parsed {
        let mut parsed = Parsed::default();
        if !self.is_calling() && self.syntax.opening_id() == Some(id) {
            parsed.text = self.finish();
            self.state = State::Markup(String::new());
        }
        text.chars().for_each(|letter| self.letter(letter, &mut parsed));
        parsed.over = matches!(self.state, State::Over);
        parsed
    }

    /// Text that was held back, when nothing follows.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Start(held) | State::Bare(held) => std::mem::take(held),
            State::Text(opening) => opening.finish(),
            _ => String::new(),
        }
    }

    fn letter(&mut self, letter: char, parsed: &mut Parsed) {
        match &mut self.state {
            State::Plain => parsed.text.push(letter),
            State::Text(opening) => {
                let (text, found) = opening.push(letter.encode_utf8(&mut [0; 4]));
                parsed.text.push_str(&text);
                if found {
                    self.state = State::Markup(String::new());
                }
            }
            State::Start(held) => {
                held.push(letter);
                let begun = held.trim_start();
                if begun == LLAMA {
                    self.state = State::Markup(begun.to_owned());
                } else if !LLAMA.starts_with(begun) {
                    parsed.text.push_str(held);
                    self.state = State::Plain;
                }
            }
            State::Bare(held) => {
                held.push(letter);
                match self.bare.push(letter) {
                    Begun::Undecided => {}
                    Begun::Call(name) => self.call(name, true, parsed),
                    Begun::Text => {
                        let held = std::mem::take(held);
                        self.state = text(self.syntax.format);
                        held.chars().for_each(|letter| self.letter(letter, parsed));
                    }
                }
            }
            State::Markup(seen) => {
                seen.push(letter);
                if let Some((_, name)) = self.heads.iter().find(|(head, _)| seen.ends_with(head.as_str())) {
                    self.call(name.clone(), false, parsed);
                }
            }
            State::Arguments { depth, bare } => {
                if depth.open == 0 && letter.is_whitespace() {
                    return;
                }
                let (over, bare) = (depth.push(letter), *bare);
                argue(&mut parsed.calls, self.calls.saturating_sub(1), letter);
                if over {
                    self.state = if bare { State::Tail } else { State::Markup(String::new()) };
                }
            }
            State::Tail if letter == '}' => {
                self.bare.reset();
                self.state = if self.syntax.several { State::Next } else { State::Over };
            }
            State::Next => match self.bare.push(letter) {
                Begun::Undecided => {}
                Begun::Call(name) => self.call(name, true, parsed),
                Begun::Text => self.state = State::Over,
            },
            State::Tail | State::Over => {}
        }
    }

    fn call(&mut self, name: String, bare: bool, parsed: &mut Parsed) {
        parsed.calls.push(ToolCallDelta { index: self.calls, name: Some(name), arguments: String::new() });
        self.calls += 1;
        self.state = State::Arguments { depth: Depth::default(), bare };
    }
}

/// Text in which the format's opening may come.
fn text(format: Format) -> State {
    State::Text(StopMatcher::new(vec![format.opening().to_owned()]))
}

/// Adds to the arguments of the call `index`.
fn argue(calls: &mut Vec<ToolCallDelta>, index: u32, letter: char) {
    match calls.last_mut() {
        Some(piece) if piece.index == index && piece.name.is_none() => piece.arguments.push(letter),
        _ => calls.push(ToolCallDelta { index, name: None, arguments: letter.to_string() }),
    }
}

#[cfg(test)]
mod tests;
