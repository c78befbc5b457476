//! Splits generated text into reasoning and answer, token by token.

use std::sync::Arc;

use super::{ReasoningRequest, ReasoningSyntax};
use crate::text::stop::StopMatcher;

/// The parser of one choice. White space around the reasoning and before the answer is dropped.
pub struct ReasoningParser {
    syntax: Arc<ReasoningSyntax>,
    state: State,
    /// Tokens of the reasoning so far, with its markers.
    tokens: u32,
    max_tokens: Option<u32>,
    /// Tokens of the closing marker that were forced.
    forced: usize,
}

enum State {
    /// The opening marker may follow. With the text that was held back.
    Before(String),
    Open(OpenReasoning),
    /// After the closing marker, before the first letter of the answer.
    Closed,
    Answer,
}

struct OpenReasoning {
    /// What is left of the label that may follow the opening marker.
    label: String,
    /// The part of the label so far.
    labelled: String,
    closing: StopMatcher,
    /// White space that was held back.
    space: String,
    has_begun: bool,
}

/// The text that a token adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub reasoning: String,
    pub answer: String,
}

impl ReasoningParser {
    pub fn new(syntax: Arc<ReasoningSyntax>, request: ReasoningRequest) -> Self {
        let state = match request.is_open {
            true => State::Open(OpenReasoning::new(&syntax)),
            false => State::Before(String::new()),
        };
        Self { syntax, state, tokens: 0, max_tokens: request.max_tokens, forced: 0 }
    }

    /// True while the next token belongs to the reasoning.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// The token that would begin the reasoning, if it may begin now.
    pub fn opening_id(&self) -> Option<u32> {
        self.syntax.opening_id.filter(|_| matches!(self.state, State::Before(_)))
    }

    /// Treats what follows as the answer, unless the model has begun to reason.
    pub fn skip(&mut self) {
        if matches!(self.state, State::Before(_)) {
            self.state = State::Answer;
        }
    }

    /// The next token, if the reasoning has reached its limit: a part of the closing marker.
    pub fn forced(&self) -> Option<u32> {
        let is_due = self.is_open() && self.max_tokens.is_some_and(|max| self.tokens >= max);
        self.syntax.closing_ids.get(self.forced).copied().filter(|_| is_due)
    }

    /// Tokens of the reasoning so far, with its markers.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Takes a token and the text that it completes.
    pub fn push(&mut self, id: u32, text: &str) -> Split {
        let was_open = self.is_open();
        let is_forced = self.forced() == Some(id);
        let mut split = Split::default();
        // A marker that is a control token has no text.
        if self.opening_id() == Some(id) && text.is_empty() {
            self.state = State::Open(OpenReasoning::new(&self.syntax));
        } else if was_open && self.syntax.closing_ids == [id] && text.is_empty() {
            self.close(&mut split);
        }
        text.chars().for_each(|ch| self.push_char(ch, &mut split));
        self.forced += usize::from(is_forced);
        if self.forced >= self.syntax.closing_ids.len() && self.is_open() {
            self.close(&mut split);
        }
        self.tokens += u32::from(was_open || self.is_open());
        split
    }

    fn push_char(&mut self, ch: char, split: &mut Split) {
        match &mut self.state {
            State::Before(held) => {
                held.push(ch);
                let start = held.trim_start();
                if start == self.syntax.opening {
                    self.state = State::Open(OpenReasoning::new(&self.syntax));
                } else if !self.syntax.opening.starts_with(start) {
                    split.answer.push_str(held);
                    self.state = State::Answer;
                }
            }
            State::Open(open) => {
                let (text, found) = open.closing.push(ch.encode_utf8(&mut [0; 4]));
                let text = open.without_label(&text);
                open.write(&text, &mut split.reasoning);
                if found.is_some() {
                    open.flush(&mut split.reasoning);
                    self.state = State::Closed;
                }
            }
            State::Closed if ch.is_whitespace() => {}
            State::Closed | State::Answer => {
                self.state = State::Answer;
                split.answer.push(ch);
            }
        }
    }

    fn close(&mut self, split: &mut Split) {
        if let State::Open(open) = &mut self.state {
            open.flush(&mut split.reasoning);
        }
        self.state = State::Closed;
    }

    /// Takes the last text. Returns what it adds, with the text that was held back.
    pub fn finish(&mut self, text: &str) -> Split {
        let mut split = Split::default();
        text.chars().for_each(|ch| self.push_char(ch, &mut split));
        match &mut self.state {
            State::Before(held) => split.answer.push_str(&std::mem::take(held)),
            State::Open(open) => open.flush(&mut split.reasoning),
            State::Closed | State::Answer => {}
        }
        split
    }
}

impl OpenReasoning {
    fn new(syntax: &ReasoningSyntax) -> Self {
        Self {
            label: syntax.label.clone(),
            labelled: String::new(),
            closing: StopMatcher::new(vec![syntax.closing.clone()]),
            space: String::new(),
            has_begun: false,
        }
    }

    /// Appends the text that may have been the beginning of the closing marker, or a part of the label.
    fn flush(&mut self, out: &mut String) {
        let rest = std::mem::take(&mut self.labelled) + &self.closing.finish();
        self.label.clear();
        self.write(&rest, out);
    }

    /// The text without the label, if it begins with it.
    fn without_label(&mut self, text: &str) -> String {
        if self.label.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        self.labelled.push_str(text);
        if self.label.starts_with(&self.labelled) && self.label != self.labelled {
            return String::new();
        }
        let seen = std::mem::take(&mut self.labelled);
        let label = std::mem::take(&mut self.label);
        seen.strip_prefix(&label).map_or(seen.clone(), str::to_owned)
    }

    /// Appends text to `out`. White space is held back until more follows.
    fn write(&mut self, text: &str, out: &mut String) {
        let end = text.trim_end();
        if !end.is_empty() {
            let start = std::mem::take(&mut self.space);
            if self.has_begun {
                out.push_str(&start);
                out.push_str(end);
            } else {
                out.push_str(end.trim_start());
                self.has_begun = true;
            }
        }
        self.space.push_str(text.strip_prefix(end).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPENING: u32 = 1;
    const CLOSING: u32 = 2;
    const OTHER: u32 = 3;

    fn syntax() -> Arc<ReasoningSyntax> {
        Arc::new(ReasoningSyntax {
            opening: "<think>".to_owned(),
            label: String::new(),
            closing: "</think>".to_owned(),
            opening_id: Some(OPENING),
            closing_ids: vec![CLOSING],
        })
    }

    fn parser(is_open: bool, max_tokens: Option<u32>) -> ReasoningParser {
        ReasoningParser::new(syntax(), ReasoningRequest { is_open, max_tokens })
    }

    fn run(mut parser: ReasoningParser, tokens: impl IntoIterator<Item = (u32, String)>) -> (String, String, u32) {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut add = |split: Split| {
            assert!(split.reasoning.is_empty() || answer.is_empty(), "reasoning after the answer");
            reasoning += &split.reasoning;
            answer += &split.answer;
        };
        for (id, text) in tokens {
            add(parser.push(id, &text));
        }
        add(parser.finish(""));
        (reasoning, answer, parser.tokens())
    }

    fn in_chunks(is_open: bool, text: &str, size: usize) -> (String, String) {
        let chars: Vec<char> = text.chars().collect();
        let tokens = chars.chunks(size).map(|part| (OTHER, part.iter().collect()));
        let (reasoning, answer, _) = run(parser(is_open, None), tokens);
        (reasoning, answer)
    }

    #[test]
    fn reasoning_is_split_from_the_answer() {
        for size in 1..9 {
            let check = |is_open, text: &str, reasoning: &str, answer: &str| {
                assert_eq!(
                    in_chunks(is_open, text, size),
                    (reasoning.to_owned(), answer.to_owned()),
                    "{text:?} {size}"
                );
            };
            check(false, "\n<think>\nWell, \n\nso.\n</think>\n\n Yes. ", "Well, \n\nso.", "Yes. ");
            check(false, " <thin air> </think> x", "", " <thin air> </think> x");
            check(false, "Yes <think>no</think>", "", "Yes <think>no</think>");
            check(false, " <thi", "", " <thi");
            check(true, "Well</thin </think>", "Well</thin", "");
            check(true, "<think>a</think>b<think>c</think>", "<think>a", "b<think>c</think>");
            check(true, "never ends </th", "never ends </th", "");
            check(true, "</think>\nYes", "", "Yes");
        }
    }

    #[test]
    fn markers_may_be_control_tokens() {
        let token = |id, text: &str| (id, text.to_owned());
        let tokens = [token(OPENING, ""), token(OTHER, " a "), token(CLOSING, ""), token(OTHER, "\n b")];
        assert_eq!(run(parser(false, None), tokens), ("a".to_owned(), "b".to_owned(), 3));
        let later = [token(OTHER, "a"), token(OPENING, ""), token(OTHER, "b"), token(CLOSING, "")];
        assert_eq!(run(parser(false, None), later), (String::new(), "ab".to_owned(), 0));
    }

    #[test]
    fn a_label_is_no_part_of_the_reasoning() {
        let syntax = ReasoningSyntax { label: "thought\n".to_owned(), ..(*syntax()).clone() };
        let syntax = Arc::new(syntax);
        for size in 1..9 {
            for (text, reasoning, answer) in [
                ("<think>thought\nHm.\n</think>Yes", "Hm.", "Yes"),
                ("<think>thoughts</think>Yes", "thoughts", "Yes"),
                ("<think>thought\n</think>Yes", "", "Yes"),
                ("<think>though", "though", ""),
                ("<think>tho</think>Yes", "tho", "Yes"),
                ("Yes", "", "Yes"),
            ] {
                let request = ReasoningRequest::default();
                let chars: Vec<char> = text.chars().collect();
                let tokens = chars.chunks(size).map(|part| (OTHER, part.iter().collect()));
                let (found, rest, _) = run(ReasoningParser::new(Arc::clone(&syntax), request), tokens);
                assert_eq!((found.as_str(), rest.as_str()), (reasoning, answer), "{text} {size}");
            }
        }
    }

    #[test]
    fn the_closing_marker_is_forced_at_the_limit() {
        let mut parser = parser(true, Some(2));
        for _ in 0..2 {
            assert_eq!(parser.forced(), None);
            parser.push(OTHER, "x</thi");
        }
        assert_eq!(parser.forced(), Some(CLOSING));
        assert_eq!(parser.push(CLOSING, "</think>"), Split { reasoning: "</thi".to_owned(), answer: String::new() });
        assert_eq!((parser.forced(), parser.is_open(), parser.tokens()), (None, false, 3));
    }

    proptest! {
        #[test]
        fn chunking_does_not_matter(text in "[a \n]{0,3}(<think>)?[a <\n]{0,6}(</think>)?[a \n]{0,4}", size in 1usize..6, is_open: bool) {
            prop_assert_eq!(in_chunks(is_open, &text, size), in_chunks(is_open, &text, 1));
        }
    }
}
