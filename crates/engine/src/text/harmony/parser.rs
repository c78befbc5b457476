//! Splits generated tokens into reasoning, text and calls.

use std::sync::Arc;

use super::{ASSISTANT, HarmonySyntax};
use crate::text::tools::ToolCallDelta;
use crate::tokenizer::Vocabulary;

/// Max bytes of a header's part. What is longer is no header: the marker before the content is missing.
const MAX_HEADER_BYTES: usize = 256;
/// Between two messages of a turn that are both reasoning, or both text.
const SEPARATOR: &str = "\n\n";
/// Before the name of a function in a recipient.
const FUNCTIONS: &str = "functions.";
/// Before a recipient.
const TO: &str = "to=";
/// Recipients that are no tools.
const PEOPLE: [&str; 3] = ["assistant", "user", "all"];

/// The parser of one choice.
pub struct HarmonyParser {
    syntax: Arc<HarmonySyntax>,
    /// The names of the functions that may be called.
    functions: Vec<String>,
    /// Allows several calls.
    parallel: bool,
    /// Max tokens of the reasoning.
    max_tokens: Option<u32>,
    state: State,
    /// Set while the output must go on to the next channel, because the reasoning has reached its limit.
    leaves_reasoning: bool,
    /// Tokens of the reasoning so far, with its markers.
    tokens: u32,
    /// Tokens of the header so far.
    header_tokens: u32,
    calls: u32,
    has_reasoning: bool,
    has_text: bool,
}

enum State {
    /// Before a message.
    Between,
    Header(Header),
    Content(Content),
    /// The turn has ended: the model begins to write the next one.
    Done,
}

/// What comes before the content of a message.
#[derive(Default)]
struct Header {
    /// Whether its start was marked.
    is_marked: bool,
    /// The role, and perhaps a recipient.
    role: String,
    /// Parts that another channel has followed.
    earlier: String,
    /// After the marker of the channel.
    channel: Option<String>,
    /// After the marker of the type of the content.
    content_type: Option<String>,
}

struct Content {
    kind: Kind,
    is_empty: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Text,
    Call,
}

/// What one token adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<ToolCallDelta>,
    /// Set if generation must end here.
    pub done: bool,
}

/// The tokens that may come next.
#[derive(Debug, PartialEq, Eq)]
pub enum AllowedTokens<'a> {
    All,
    Only(Vec<u32>),
    AllBut(&'a [u32]),
}

impl HarmonyParser {
    /// The parser of what follows `prompt`. `functions`: those that may be called. `max_tokens`: of the reasoning.
    pub fn new(
        syntax: Arc<HarmonySyntax>,
        functions: Vec<String>,
        parallel: bool,
        max_tokens: Option<u32>,
        (prompt, vocabulary): (&[u32], &Vocabulary),
    ) -> Self {
        let mut parser = Self {
            syntax: Arc::clone(&syntax),
            functions,
            parallel,
            max_tokens,
            state: State::Header(Header { role: ASSISTANT.to_owned(), ..Header::default() }),
            leaves_reasoning: false,
            tokens: 0,
            header_tokens: 0,
            calls: 0,
            has_reasoning: false,
            has_text: false,
        };
        let message = syntax.last_message(prompt);
        if !message.is_empty() {
            parser.state = State::Header(Header { is_marked: true, ..Header::default() });
            for id in message {
                parser.push(*id, &String::from_utf8_lossy(vocabulary.bytes(*id)));
            }
            if matches!(parser.state, State::Done) {
                parser.state = State::Between;
            }
        }
        let may_reason = max_tokens != Some(0);
        let leaves_reasoning = !may_reason && matches!(parser.state, State::Header(_));
        Self {
            leaves_reasoning,
            tokens: 0,
            header_tokens: 0,
            calls: 0,
            has_reasoning: false,
            has_text: false,
            ..parser
        }
    }

    pub fn is_marker(&self, id: u32) -> bool {
        self.syntax.is_marker(id)
    }

    /// True while the next token belongs to the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Content(Content { kind: Kind::Reasoning, .. }))
    }

    /// True while the next token belongs to a text.
    pub fn is_text(&self) -> bool {
        matches!(self.state, State::Content(Content { kind: Kind::Text, .. }))
    }

    /// True while the next token belongs to a text or a call.
    pub fn is_answer(&self) -> bool {
        matches!(self.state, State::Content(Content { kind: Kind::Text | Kind::Call, .. }))
    }

    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Tokens of the reasoning so far, with its markers.
    pub fn reasoning_tokens(&self) -> u32 {
        self.tokens
    }

    /// The tokens that may come next. Once the reasoning has reached its limit, it ends, and no other begins.
    pub fn allowed(&self) -> AllowedTokens<'_> {
        let HarmonySyntax { tokens, role_parts, analysis_beginnings } = &*self.syntax;
        if self.max_tokens.is_none_or(|max| self.tokens < max) {
            return AllowedTokens::All;
        }
        match &self.state {
            State::Content(Content { kind: Kind::Reasoning, .. }) => AllowedTokens::Only(vec![tokens.end]),
            State::Between if self.leaves_reasoning => AllowedTokens::Only(vec![tokens.start]),
            State::Header(Header { channel: None, role, .. }) if self.leaves_reasoning => {
                match ASSISTANT.strip_prefix(role.as_str()) {
                    None | Some("") => AllowedTokens::Only(vec![tokens.channel]),
                    Some(rest) => {
                        let next = role_parts.iter().filter(|(_, part)| rest.starts_with(part.as_str()));
                        AllowedTokens::Only(next.map(|(id, _)| *id).collect())
                    }
                }
            }
            State::Header(Header { channel: Some(channel), .. }) if channel.is_empty() => {
                AllowedTokens::AllBut(analysis_beginnings)
            }
            _ => AllowedTokens::All,
        }
    }

    /// Takes a token and the text that it completes.
    pub fn push(&mut self, id: u32, text: &str) -> Piece {
        let mut piece = Piece::default();
        let was_reasoning = self.is_reasoning();
        self.header_tokens += 1;
        let tokens = self.syntax.tokens;
        if !self.is_marker(id) {
            self.push_text(text, &mut piece);
        } else if matches!(self.state, State::Done) {
            // Nothing of the next turn is part of this one.
        } else if id == tokens.start {
            self.end_message(&mut piece);
            self.begin(Header { is_marked: true, ..Header::default() });
        } else if id == tokens.channel {
            self.begin_channel(&mut piece);
        } else if id == tokens.constrain {
            if let State::Header(header) = &mut self.state {
                header.content_type = Some(String::new());
            }
        } else if id == tokens.message {
            self.begin_content(&mut piece);
        } else {
            self.end_message(&mut piece);
        }
        if was_reasoning {
            self.tokens += 1;
            // It is not counted again if it begins the next header.
            self.header_tokens = 0;
        } else if self.is_reasoning() {
            self.tokens += self.header_tokens;
        }
        piece.done = matches!(self.state, State::Done);
        piece
    }

    /// What was held back, at the end of the output, after `text`: that of a header is content if there was no content.
    /// `is_cut_off`: the model did not end the turn itself.
    pub fn finish(&mut self, text: &str, is_cut_off: bool) -> Piece {
        let mut piece = Piece::default();
        // An incomplete character inside a call is no argument.
        if !matches!(self.state, State::Content(Content { kind: Kind::Call, .. })) {
            self.push_text(text, &mut piece);
        }
        if let State::Header(header) = &mut self.state {
            let header = std::mem::take(header);
            self.give_up(header, &mut piece);
        }
        if !is_cut_off {
            self.end_message(&mut piece);
        }
        piece
    }

    fn begin(&mut self, header: Header) {
        if !matches!(self.state, State::Done) {
            self.header_tokens = 1;
            self.state = State::Header(header);
        }
    }

    fn begin_channel(&mut self, piece: &mut Piece) {
        if let State::Header(header) = &mut self.state {
            // The smaller model sometimes writes two; the last one counts.
            header.earlier.push_str(&header.channel.take().map(|channel| format!(" {channel} ")).unwrap_or_default());
            (header.channel, header.content_type) = (Some(String::new()), None);
            return;
        }
        self.end_message(piece);
        self.begin(Header { role: ASSISTANT.to_owned(), channel: Some(String::new()), ..Header::default() });
    }

    fn begin_content(&mut self, piece: &mut Piece) {
        match &mut self.state {
            State::Between => self.enter(Kind::Text),
            State::Header(header) => {
                let header = std::mem::take(header);
                if header.is_marked && !header.role.trim().starts_with(ASSISTANT) {
                    self.state = State::Done;
                    return;
                }
                match self.function(&header) {
                    Some(name) if self.calls == 0 || self.parallel => self.begin_call(name, piece),
                    Some(_) => self.state = State::Done,
                    None => self.enter(self.kind(&header)),
                }
            }
            // The marker was written twice.
            State::Content(_) | State::Done => {}
        }
    }

    fn begin_call(&mut self, name: String, piece: &mut Piece) {
        piece.calls.push(ToolCallDelta { index: self.calls, name: Some(name), arguments: String::new() });
        self.calls += 1;
        self.enter(Kind::Call);
    }

    fn enter(&mut self, kind: Kind) {
        self.leaves_reasoning = false;
        self.state = State::Content(Content { kind, is_empty: true });
    }

    /// The function that a message calls.
    fn function(&self, header: &Header) -> Option<String> {
        let recipient = header.recipient()?;
        let name = recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient);
        self.functions.iter().find(|function| *function == name).cloned()
    }

    /// The kind of a message that is no call.
    fn kind(&self, header: &Header) -> Kind {
        match header.channel_name() {
            Some(super::ANALYSIS) => Kind::Reasoning,
            _ if header.recipient().is_some() => Kind::Reasoning,
            _ => Kind::Text,
        }
    }

    fn push_text(&mut self, text: &str, piece: &mut Piece) {
        if text.is_empty() {
            return;
        }
        match &mut self.state {
            State::Between => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.begin(Header::default());
                    self.push_text(text, piece);
                }
            }
            State::Header(header) => {
                header.part().push_str(text);
                match header.check() {
                    Check::Header => {}
                    Check::OtherRole => self.state = State::Done,
                    Check::Content => {
                        let header = std::mem::take(header);
                        self.give_up(header, piece);
                    }
                }
            }
            State::Content(_) => self.push_content(text, piece),
            State::Done => {}
        }
    }

    /// Treats as content what cannot be a header.
    fn give_up(&mut self, header: Header, piece: &mut Piece) {
        if header.is_marked && !header.role.starts_with(ASSISTANT) && header.channel.is_none() {
            return;
        }
        let (kind, mut content) = (self.kind(&header), header.content());
        if content.is_empty() && header.last_part().len() > MAX_HEADER_BYTES {
            content = header.last_part();
        }
        if !content.is_empty() {
            self.enter(kind);
            self.push_content(content, piece);
        }
    }

    fn push_content(&mut self, text: &str, piece: &mut Piece) {
        let State::Content(content) = &mut self.state else { return };
        let is_first = std::mem::replace(&mut content.is_empty, false);
        match content.kind {
            Kind::Reasoning => {
                if std::mem::replace(&mut self.has_reasoning, true) && is_first {
                    piece.reasoning.push_str(SEPARATOR);
                }
                piece.reasoning.push_str(text);
            }
            Kind::Text => {
                if std::mem::replace(&mut self.has_text, true) && is_first {
                    piece.text.push_str(SEPARATOR);
                }
                piece.text.push_str(text);
            }
            Kind::Call => {
                let index = self.calls.saturating_sub(1);
                piece.calls.push(ToolCallDelta { index, name: None, arguments: text.to_owned() });
            }
        }
    }

    fn end_message(&mut self, piece: &mut Piece) {
        match self.state {
            State::Content(Content { kind: Kind::Call, is_empty }) => {
                // A function without parameters.
                if is_empty {
                    self.push_content("{}", piece);
                }
                self.state = if self.parallel { State::Between } else { State::Done };
            }
            State::Content(Content { kind: Kind::Reasoning, .. }) => {
                self.leaves_reasoning = true;
                self.state = State::Between;
            }
            State::Content(_) | State::Header(_) => self.state = State::Between,
            State::Between | State::Done => {}
        }
    }
}

/// What the parts of a header say so far.
enum Check {
    Header,
    /// It is a message of another role.
    OtherRole,
    /// It is no header.
    Content,
}

impl Header {
    /// The part that grows.
    fn part(&mut self) -> &mut String {
        match (&mut self.content_type, &mut self.channel) {
            (Some(content_type), _) => content_type,
            (None, Some(channel)) => channel,
            (None, None) => &mut self.role,
        }
    }

    fn last_part(&self) -> &str {
        self.content_type.as_ref().or(self.channel.as_ref()).unwrap_or(&self.role)
    }

    fn check(&self) -> Check {
        if self.last_part().len() > MAX_HEADER_BYTES {
            return Check::Content;
        }
        if self.channel.is_some() || self.content_type.is_some() || ASSISTANT.starts_with(self.role.as_str()) {
            return Check::Header;
        }
        match self.role.strip_prefix(ASSISTANT).map(str::trim_start) {
            Some(rest) if TO.starts_with(rest) || rest.starts_with(TO) => Check::Header,
            Some(_) => Check::Content,
            None if self.is_marked => Check::OtherRole,
            None => Check::Content,
        }
    }

    fn channel_name(&self) -> Option<&str> {
        let channel = self.channel.as_deref()?.trim_start();
        let end = channel.find(char::is_whitespace).into_iter().chain(channel.find(TO)).min();
        channel.get(..end.unwrap_or(channel.len()))
    }

    /// The tool that the message is for. It stands after the role or after the channel.
    fn recipient(&self) -> Option<&str> {
        let role =
            self.role.strip_prefix(ASSISTANT).filter(|rest| rest.trim_start().starts_with(TO)).unwrap_or_default();
        let parts = self.channel.as_deref().into_iter().chain([self.earlier.as_str(), role]);
        let mut recipients = parts.filter_map(|part| part.rsplit_once(TO)?.1.split_whitespace().next());
        recipients.find(|recipient| !PEOPLE.contains(recipient))
    }

    /// The text that was written where a header belongs: after the name of the channel, and after a recipient.
    fn content(&self) -> &str {
        if let Some(content_type) = &self.content_type {
            return after_first_word(content_type);
        }
        if let Some(channel) = &self.channel {
            let rest = after_first_word(channel);
            return if rest.trim_start().starts_with(TO) { after_first_word(rest) } else { rest.trim_start() };
        }
        let rest = self.role.strip_prefix(ASSISTANT).unwrap_or(&self.role);
        if rest.trim_start().starts_with(&[TO, FUNCTIONS].concat()) { after_first_word(rest) } else { rest }
    }
}

/// What follows the first word of a text.
fn after_first_word(text: &str) -> &str {
    let text = text.trim_start();
    text.find(char::is_whitespace).and_then(|end| text.get(end..)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
