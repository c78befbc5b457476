//! Training examples: JSON lines, checked while they stream in.
//!
//! A line is an object of one of three forms, the same in the whole file: `messages` (a chat with
//! at least one answer of the assistant), `prompt` with `completion`, or `text`. Other fields may
//! stand beside them. Errors name the line, counted from 1, and the field.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::error::{Error, Result};

/// A longer line is no example but a mistake, and each has to fit in memory.
const LONGEST_LINE: usize = 4 << 20;

const ROLES: [&str; 5] = ["developer", "system", "user", "assistant", "tool"];

/// What the lines of a file are. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    Messages = 1,
    Completion = 2,
    Text = 3,
}

impl Form {
    pub fn as_str(self) -> &'static str {
        match self {
            Form::Messages => "messages",
            Form::Completion => "prompt_completion",
            Form::Text => "text",
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Form::Messages, Form::Completion, Form::Text].into_iter().find(|form| *form as u8 == number)
    }

    fn fields(self) -> &'static str {
        match self {
            Form::Messages => "'messages'",
            Form::Completion => "'prompt' and 'completion'",
            Form::Text => "'text'",
        }
    }
}

/// What a whole file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub examples: u64,
    pub form: Form,
}

/// Reads a file piece by piece, wherever the pieces are cut.
#[derive(Default)]
pub(super) struct Checker {
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// Lines that are done.
    lines: u64,
    examples: u64,
    form: Option<Form>,
    /// The first line of the run of empty ones that the file ends with so far.
    blank: Option<u64>,
}

impl Checker {
    pub fn read(&mut self, piece: &[u8]) -> Result<()> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(line)?;
            } else {
                self.keep(line)?;
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole)?;
            }
        }
        self.keep(rest)
    }

    /// The end of the file; its last line needs no line break.
    pub fn finish(mut self) -> Result<Summary> {
        if !self.partial.is_empty() {
            let last = std::mem::take(&mut self.partial);
            self.line(&last)?;
        }
        match self.form {
            Some(form) => Ok(Summary { examples: self.examples, form }),
            None => Err(invalid("The file is empty. It must hold at least one line with an example.".into())),
        }
    }

    fn keep(&mut self, piece: &[u8]) -> Result<()> {
        if self.partial.len() + piece.len() > LONGEST_LINE {
            return Err(self.too_long());
        }
        self.partial.extend_from_slice(piece);
        Ok(())
    }

    fn too_long(&self) -> Error {
        let number = self.lines + 1;
        invalid(format!("line {number} is longer than {LONGEST_LINE} bytes. Split the example, or shorten it."))
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        if line.len() > LONGEST_LINE {
            return Err(self.too_long());
        }
        self.lines += 1;
        let number = self.lines;
        // Windows' editors begin a file with a byte order mark and end its lines with CR LF.
        let line = if number == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii().is_empty() {
            self.blank.get_or_insert(number);
            return Ok(());
        }
        if let Some(blank) = self.blank {
            return Err(invalid(format!("line {blank} is empty. Remove it: every line must be an example.")));
        }
        let form = example(line).map_err(|problem| invalid(format!("line {number}: {problem}.")))?;
        let first = *self.form.get_or_insert(form);
        if form != first {
            let text = format!(
                "line {number} has {}, but the lines before it have {}. Use one form in a whole file.",
                form.fields(),
                first.fields()
            );
            return Err(invalid(text));
        }
        self.examples += 1;
        Ok(())
    }
}

fn invalid(text: String) -> Error {
    Error::invalid("file", text)
}

/// A line as far as it matters. What else it holds is skipped without being kept.
#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Message>>,
    prompt: Option<Text>,
    completion: Option<Text>,
    text: Option<Text>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
    tool_calls: Option<Vec<IgnoredAny>>,
}

/// Whether a string is empty is all that is asked of it.
struct Text {
    empty: bool,
}

#[derive(Default)]
enum Content {
    #[default]
    Absent,
    Given,
    /// A part that is no text: its place and type.
    Foreign(usize, String),
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<Text>,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Length;

        impl Visitor<'_> for Length {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text { empty: text.is_empty() })
            }
        }

        deserializer.deserialize_str(Length)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrParts;

        impl<'de> Visitor<'de> for StringOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or an array of text parts")
            }

            fn visit_str<E>(self, _: &str) -> Result<Content, E> {
                Ok(Content::Given)
            }

            fn visit_unit<E>(self) -> Result<Content, E> {
                Ok(Content::Absent)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let (mut found, mut index) = (Content::Given, 0);
                while let Some(part) = parts.next_element::<Part>()? {
                    if (part.r#type != "text" || part.text.is_none()) && matches!(found, Content::Given) {
                        found = Content::Foreign(index, part.r#type);
                    }
                    index += 1;
                }
                Ok(if index == 0 { Content::Absent } else { found })
            }
        }

        deserializer.deserialize_any(StringOrParts)
    }
}

/// The form of a line, or what is wrong with it.
fn example(line: &[u8]) -> Result<Form, String> {
    let text = std::str::from_utf8(line)
        .map_err(|bad| format!("the byte at {} is not valid UTF-8; save the file as UTF-8", bad.valid_up_to()))?;
    if !text.trim_start().starts_with('{') {
        return Err("it is not a JSON object; a line looks like {\"messages\": [...]}".into());
    }
    let line = parse(text)?;
    let forms = [
        (Form::Messages, line.messages.is_some()),
        (Form::Completion, line.prompt.is_some() || line.completion.is_some()),
        (Form::Text, line.text.is_some()),
    ];
    let mut given = forms.into_iter().filter(|(_, given)| *given).map(|(form, _)| form);
    match (given.next(), given.next()) {
        (Some(one), Some(other)) => Err(format!("it has {} and {}; give one of them", one.fields(), other.fields())),
        (None, _) => Err("it has neither 'messages', nor 'prompt' and 'completion', nor 'text'".into()),
        (Some(Form::Messages), None) => messages(&line.messages.unwrap_or_default()).map(|()| Form::Messages),
        (Some(Form::Completion), None) => {
            if line.prompt.is_none() {
                return Err("'prompt' is missing beside 'completion'".into());
            }
            filled("completion", line.completion.as_ref()).map(|()| Form::Completion)
        }
        (Some(Form::Text), None) => filled("text", line.text.as_ref()).map(|()| Form::Text),
    }
}

fn parse(text: &str) -> Result<Line, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let line: Result<Line, _> = serde_path_to_error::deserialize(&mut reader);
    let line = line.map_err(|error| {
        let (path, cause) = (error.path().to_string(), plain(error.inner()));
        if path == "." { cause } else { format!("{path}: {cause}") }
    })?;
    reader.end().map_err(|error| format!("something follows the JSON object: {}", plain(&error)))?;
    Ok(line)
}

/// The reader sees one line and calls it line 1; only the column helps.
fn plain(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

fn filled(field: &str, text: Option<&Text>) -> Result<(), String> {
    match text {
        None => Err(format!("'{field}' is missing")),
        Some(text) if text.empty => Err(format!("'{field}' is empty; there is nothing to learn from it")),
        Some(_) => Ok(()),
    }
}

fn messages(messages: &[Message]) -> Result<(), String> {
    for (index, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        if !ROLES.contains(&role) {
            let shown: String = role.chars().take(40).collect();
            return Err(format!("messages[{index}].role is '{shown}'; roles are {}", ROLES.join(", ")));
        }
        let calls = role == "assistant" && message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        match &message.content {
            Content::Given => {}
            Content::Absent if calls => {}
            Content::Absent => {
                return Err(format!("messages[{index}].content is missing; it is a string or an array of text parts"));
            }
            Content::Foreign(part, kind) => {
                let shown: String = kind.chars().take(40).collect();
                return Err(format!(
                    "messages[{index}].content[{part}] is of type '{shown}'; only {{\"type\": \"text\", \"text\": …}} is taken"
                ));
            }
        }
    }
    if messages.iter().any(|message| message.role == "assistant") {
        return Ok(());
    }
    Err("messages has no message of the role 'assistant'; there is nothing to learn from it".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Checker, Form, Summary};

    fn check(pieces: &[&[u8]]) -> Result<Summary, String> {
        let mut checker = Checker::default();
        let read = pieces.iter().try_for_each(|piece| checker.read(piece));
        read.and_then(|()| checker.finish()).map_err(|error| {
            assert_eq!(error.param_name(), Some("file"));
            error.message().to_owned()
        })
    }

    const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#;

    #[test]
    fn every_form_is_taken() {
        let parts = r#"{"messages":[{"role":"system","content":""},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{}]}],"tools":[],"id":7}"#;
        let cases = [
            (CHAT, Form::Messages),
            (parts, Form::Messages),
            (r#"{"prompt":"","completion":"b"}"#, Form::Completion),
            (r#" {"text":"é"} "#, Form::Text),
        ];
        for (line, form) in cases {
            for ending in ["", "\n", "\r\n", "\n\n \r\n"] {
                let file = format!("\u{feff}{line}\n{line}{ending}");
                assert_eq!(check(&[file.as_bytes()]), Ok(Summary { examples: 2, form }), "{file}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_field() {
        let long = format!(r#"{{"text":"{}"}}"#, "x".repeat(super::LONGEST_LINE));
        let cases: Vec<(&[u8], &str)> = vec![
            (b"", "empty"),
            (b"\n\n", "empty"),
            (b"@\n@\n\n@", "line 3 is empty"),
            (b"@\n[1]", "line 2: it is not a JSON object"),
            (b"@\n{\"text\":\"\xff\"}", "line 2: the byte at 9 is not valid UTF-8"),
            (b"@\n\xef\xbb\xbf@", "line 2: it is not a JSON object"),
            (b"{\"text\":", "line 1: EOF while parsing a value at column 8"),
            (b"@ @", "line 1: something follows the JSON object"),
            (b"{}", "line 1: it has neither"),
            (b"{\"text\":\"a\",\"prompt\":\"b\"}", "line 1: it has 'prompt' and 'completion' and 'text'"),
            (b"@\n{\"text\":\"a\"}", "line 2 has 'text', but the lines before it have 'messages'"),
            (b"{\"prompt\":\"a\"}", "line 1: 'completion' is missing"),
            (b"{\"completion\":\"a\"}", "line 1: 'prompt' is missing"),
            (b"{\"prompt\":\"a\",\"completion\":\"\"}", "line 1: 'completion' is empty"),
            (b"{\"prompt\":1,\"completion\":\"\"}", "line 1: prompt: invalid type: integer `1`, expected a string"),
            (b"{\"text\":\"\"}", "line 1: 'text' is empty"),
            (b"{\"messages\":[]}", "line 1: messages has no message of the role 'assistant'"),
            (b"{\"messages\":{}}", "line 1: messages: invalid type: map"),
            (
                b"{\"messages\":[{\"role\":\"asistant\",\"content\":\"\"}]}",
                "line 1: messages[0].role is 'asistant'; roles",
            ),
            (b"{\"messages\":[{\"content\":\"\"}]}", "line 1: messages[0]: missing field `role`"),
            (b"{\"messages\":[{\"role\":\"assistant\"}]}", "line 1: messages[0].content is missing"),
            (b"{\"messages\":[{\"role\":\"assistant\",\"content\":5}]}", "line 1: messages[0].content: invalid type"),
            (
                b"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
                "line 1: messages[0].content[0] is of type 'image_url'",
            ),
            (long.as_bytes(), "line 1 is longer than 4194304 bytes"),
        ];
        for (file, told) in cases {
            let file = file.split(|byte| *byte == b'@').collect::<Vec<_>>().join(CHAT.as_bytes());
            let message = check(&[&file]).unwrap_err();
            assert!(message.to_lowercase().contains(&told.to_lowercase()), "{told}: {message}");
        }
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_makes_no_difference(
            file in "(\\{\"text\":\"[aé]{0,3}\"\\}|\r|\n|x){0,12}",
            cuts: Vec<prop::sample::Index>,
        ) {
            let bytes = file.as_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(check(&pieces), check(&[bytes]));
        }
    }
}
