//! Training data: JSON lines, validated while they are uploaded.
//!
//! All lines of a file have one format. Errors name the line, counted from 1, and the field.

mod example;

pub use self::example::{Example, ExampleFormat, is_trained};
use crate::error::{Error, Result};

/// Max bytes of a line. A longer line is probably a mistake, and each line must fit into memory.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Checks a whole file as an upload does. Returns the format of its examples.
///
/// # Errors
/// The first line that is wrong, by its number.
pub fn check(content: &[u8]) -> Result<ExampleFormat> {
    let mut validator = Validator::default();
    validator.read(content)?;
    Ok(validator.finish()?.form)
}

/// The summary of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub examples: u64,
    pub form: ExampleFormat,
}

/// Validates a file chunk by chunk; chunks may end anywhere.
#[derive(Default)]
pub(super) struct Validator {
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    /// Completed lines.
    lines: u64,
    examples: u64,
    form: Option<ExampleFormat>,
}

impl Validator {
    pub fn read(&mut self, chunk: &[u8]) -> Result<()> {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                self.line(line)?;
            } else {
                self.append(line)?;
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole)?;
            }
        }
        self.append(rest)
    }

    /// Ends the file; the last line needs no line break.
    pub fn finish(mut self) -> Result<Summary> {
        if !self.partial.is_empty() {
            let last = std::mem::take(&mut self.partial);
            self.line(&last)?;
        }
        match self.form {
            Some(form) => Ok(Summary { examples: self.examples, form }),
            None => Err(invalid("The file is empty. It must have at least one line with an example.".into())),
        }
    }

    fn append(&mut self, chunk: &[u8]) -> Result<()> {
        if self.partial.len() + chunk.len() > MAX_LINE_BYTES {
            return Err(self.too_long());
        }
        self.partial.extend_from_slice(chunk);
        Ok(())
    }

    fn too_long(&self) -> Error {
        let number = self.lines + 1;
        invalid(format!("line {number} is longer than {MAX_LINE_BYTES} bytes. Split the example, or shorten it."))
    }

    fn line(&mut self, line: &[u8]) -> Result<()> {
        if line.len() > MAX_LINE_BYTES {
            return Err(self.too_long());
        }
        self.lines += 1;
        let number = self.lines;
        let line = trim_line(line);
        if line.is_empty() {
            return Ok(());
        }
        let example = Example::parse(line).map_err(|problem| invalid(format!("line {number}: {problem}.")))?;
        let form = example.format();
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

/// A line without the byte order mark that Windows editors may write and without white space at its end. A blank line
/// is empty then. The mark may be on any line, because files are joined.
pub fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii_end()
}

fn invalid(text: String) -> Error {
    Error::invalid("file", text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ExampleFormat, MAX_LINE_BYTES, Summary, Validator};

    fn check(chunks: &[&[u8]]) -> Result<Summary, String> {
        let mut validator = Validator::default();
        let read = chunks.iter().try_for_each(|chunk| validator.read(chunk));
        read.and_then(|()| validator.finish()).map_err(|error| {
            assert_eq!(error.param_name(), Some("file"));
            error.message().to_owned()
        })
    }

    const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}"#;

    #[test]
    fn every_form_is_accepted() {
        let parts = r#"{"messages":[{"role":"system","content":""},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"r"},{"role":"assistant","content":"w","weight":0}],"tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false,"id":7}"#;
        let preference = r#"{"input":{"messages":[{"role":"user","content":"q"}],"tools":[],"parallel_tool_calls":true},"preferred_output":[{"role":"assistant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]}"#;
        let cases = [
            (CHAT, ExampleFormat::Messages),
            (parts, ExampleFormat::Messages),
            (r#"{"prompt":"","completion":"b"}"#, ExampleFormat::Completion),
            (r#" {"text":"é"} "#, ExampleFormat::Text),
            (preference, ExampleFormat::Preference),
        ];
        for (line, form) in cases {
            for ending in ["", "\n", "\r\n", "\n\n \r\n"] {
                let file = format!("\u{feff}{line}\n\r\n\u{feff}{line}{ending}");
                assert_eq!(check(&[file.as_bytes()]), Ok(Summary { examples: 2, form }), "{file}");
            }
        }
    }

    #[test]
    fn errors_name_the_line_and_field() {
        let long = format!(r#"{{"text":"{}"}}"#, "x".repeat(MAX_LINE_BYTES));
        let cases: Vec<(&[u8], &str)> = vec![
            (b"", "empty"),
            (b"\n\n", "empty"),
            (b"@\n[1]", "line 2: it is not a JSON object"),
            (b"@\n{\"text\":\"\xff\"}", "line 2: it is not valid UTF-8 from byte 9 on; save the file as UTF-8"),
            (b"@\n\n\xef\xbb\xbf\r\n[1]", "line 4: it is not a JSON object"),
            (b"\xff\xfe{\0", "line 1: it is UTF-16 or UTF-32, not UTF-8; save the file as UTF-8"),
            (b"{\"text\":", "line 1: it is not valid JSON: it ends too early at column 8"),
            (b"@ @", "line 1: it is not valid JSON: something follows the JSON value"),
            (b"{}", "line 1: it has neither"),
            (b"{\"text\":\"a\",\"prompt\":\"b\"}", "line 1: it has 'prompt' and 'completion' and 'text'"),
            (b"@\n{\"text\":\"a\"}", "line 2 has 'text', but the lines before it have 'messages'"),
            (b"{\"prompt\":\"a\"}", "line 1: 'completion' is missing"),
            (b"{\"completion\":\"a\"}", "line 1: 'prompt' is missing"),
            (b"{\"prompt\":\"a\",\"completion\":\"\"}", "line 1: 'completion' is empty"),
            (b"{\"prompt\":1,\"completion\":\"\"}", "line 1: 'prompt' must be a string, not 1"),
            (b"{\"text\":\"\"}", "line 1: 'text' is empty"),
            (b"{\"messages\":[]}", "line 1: 'messages' has no message of the role 'assistant'"),
            (b"{\"messages\":{}}", "line 1: 'messages' must be an array, not an object"),
            (
                b"{\"messages\":[{\"role\":\"asistant\",\"content\":\"\"}]}",
                "line 1: 'messages[0].role' is \"asistant\". It must be one of developer, system, user, assistant, tool.",
            ),
            (b"{\"messages\":[{\"content\":\"\"}]}", "line 1: 'messages[0].role' is missing"),
            (b"{\"messages\":[3]}", "line 1: 'messages[0]' must be an object"),
            (b"{\"messages\":[{\"role\":\"assistant\"}]}", "line 1: 'messages[0].content' is missing"),
            (
                b"{\"messages\":[{\"role\":\"assistant\",\"content\":5}]}",
                "line 1: 'messages[0].content' must be a string or an array of content parts.",
            ),
            (
                b"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"\"}}]}]}",
                "line 1: 'messages[0].content[0]' is of type 'image_url'",
            ),
            (long.as_bytes(), "line 1 is longer than 4194304 bytes"),
        ];
        for (file, expected) in cases {
            let file = file.split(|byte| *byte == b'@').collect::<Vec<_>>().join(CHAT.as_bytes());
            let message = check(&[&file]).unwrap_err();
            assert!(message.to_lowercase().contains(&expected.to_lowercase()), "{expected}: {message}");
        }
    }

    /// A chat with these messages after the first and this second field.
    fn chat(messages: &str, field: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"q"}},{messages}]{field}}}"#)
    }

    #[test]
    fn weights_and_tools_of_chats_are_checked() {
        let good = r#"{"role":"assistant","content":"a"}"#;
        let assistant = |weight: &str| format!(r#"{{"role":"assistant","content":"a","weight":{weight}}}"#);
        let result = |id: &str| format!(r#"{good},{{"role":"tool","content":"r","tool_call_id":"{id}"}}"#);
        let cases = [
            (chat(&assistant("2"), ""), "'messages[1].weight' must be 0 or 1"),
            (chat(&assistant("\"1\""), ""), "'messages[1].weight' must be 0 or 1"),
            (chat(&assistant("0"), ""), "'messages' has only assistant messages of the weight 0"),
            (chat(r#"{"role":"user","content":"a","weight":1}"#, ""), "'messages[1].weight' belongs to messages of"),
            (
                format!(r#"{{"messages":[{good}]}}"#),
                "'messages[0]' has the role 'assistant', but no message is before it",
            ),
            (chat(r#"{"role":"assistant","tool_calls":[{}]}"#, ""), "'messages[1].tool_calls[0].type' must be"),
            (chat(r#"{"role":"assistant","refusal":"no"}"#, ""), "'messages[1].content' is missing"),
            (chat(&result("x"), ""), "'messages[2].tool_call_id' is 'x', but no message before it"),
            (chat(good, r#","tools":[{"type":"function"}]"#), "'tools[0].function' must be an object"),
            (chat(good, r#","tools":{}"#), "'tools' must be an array"),
            (chat(good, r#","parallel_tool_calls":1"#), "'parallel_tool_calls' must be true or false"),
        ];
        for (line, expected) in cases {
            let message = check(&[line.as_bytes()]).unwrap_err();
            assert!(message.contains(&format!("line 1: {expected}")), "{expected}: {message}");
        }
        for weight in ["0", "1", "null", "0.0"] {
            assert!(check(&[chat(&format!("{},{good}", assistant(weight)), "").as_bytes()]).is_ok(), "{weight}");
        }
    }

    #[test]
    fn preferences_are_checked() {
        let input = r#"{"messages":[{"role":"user","content":"q"}]}"#;
        let output = |role: &str, more: &str| format!(r#"[{{"role":"{role}","content":"a"{more}}}]"#);
        let line = |input: &str, preferred: &str, other: &str| {
            format!(r#"{{"input":{input},"preferred_output":{preferred},"non_preferred_output":{other}}}"#)
        };
        let good = output("assistant", "");
        let tools = r#"{"messages":[{"role":"user","content":"q"}],"tools":[{}]}"#;
        let cases = [
            (format!(r#"{{"input":{input},"preferred_output":{good}}}"#), "'non_preferred_output' is missing"),
            (format!(r#"{{"input":{input},"non_preferred_output":{good}}}"#), "'preferred_output' is missing"),
            (format!(r#"{{"preferred_output":{good}}}"#), "'input' is missing"),
            (line("{}", &good, &good), "'input.messages' is missing"),
            (line(r#"{"messages":[]}"#, &good, &good), "'input.messages' is empty"),
            (line(tools, &good, &good), "'input.tools[0].type' must be"),
            (line(input, "[]", &good), "'preferred_output' must end with a message of the role 'assistant'"),
            (line(input, &good, &output("user", "")), "'non_preferred_output[0].role' must be 'assistant'"),
            (line(input, &good, &output("assistant", ",\"weight\":1")), "'non_preferred_output[0].weight' belongs to"),
            (line(input, &good, "[{}]"), "'non_preferred_output[0].role' is missing"),
            (line(input, &good, &good).replacen('{', "{\"text\":\"\",", 1), "it has 'text' and 'input'"),
        ];
        for (line, expected) in cases {
            let message = check(&[line.as_bytes()]).unwrap_err();
            assert!(message.contains(&format!("line 1: {expected}")), "{expected}: {message}");
        }
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_change_the_result(
            file in "(\\{\"text\":\"[aé]{0,3}\"\\}|\r|\n|x){0,12}",
            cuts: Vec<prop::sample::Index>,
        ) {
            let bytes = file.as_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).chain([0, bytes.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(check(&chunks), check(&[bytes]));
        }
    }
}
