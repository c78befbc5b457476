//! Custom tools: tools whose input is a text, of any form or of a grammar.
//!
//! Chat templates know only functions, so the model sees a function with one argument, `input`. It writes the call as
//! `{"input": "…"}`, under a grammar that lets only such calls through.

use serde_json::{Map, Value, json};

use crate::engine::{InputFormat, Tool};

/// The description of the input, for a tool that takes any text.
const ANY_TEXT: &str = "The input is a text.";

/// Converts a validated definition.
pub(in crate::calls) fn tool(custom: &Map<String, Value>) -> Tool {
    let text = |name: &str| custom.get(name).and_then(Value::as_str).unwrap_or_default();
    let format = input_format(custom);
    let note = note(&format);
    let description = match text("description") {
        "" => note,
        description => format!("{description}\n\n{note}"),
    };
    let function = json!({
        "name": text("name"),
        "description": description,
        "parameters": {
            "type": "object",
            "properties": { "input": { "type": "string" } },
            "required": ["input"],
            "additionalProperties": false,
        },
    });
    let definition = json!({ "type": "function", "function": function });
    Tool { name: text("name").to_owned(), definition, strict: true, input: Some(format) }
}

fn input_format(custom: &Map<String, Value>) -> InputFormat {
    let grammar = custom.get("format").and_then(|format| format.get("grammar"));
    let text = |name: &str| grammar.and_then(|grammar| grammar.get(name)).and_then(Value::as_str);
    match (text("syntax"), text("definition")) {
        (Some("lark"), Some(definition)) => InputFormat::Lark(definition.to_owned()),
        (Some("regex"), Some(definition)) => InputFormat::Regex(definition.to_owned()),
        _ => InputFormat::Text,
    }
}

/// The description of the input's format, for the model.
fn note(format: &InputFormat) -> String {
    match format {
        InputFormat::Text => ANY_TEXT.to_owned(),
        InputFormat::Regex(regex) => format!("The input is a text that matches this regular expression:\n{regex}"),
        InputFormat::Lark(grammar) => format!("The input is a text of this grammar in Lark notation:\n{grammar}"),
    }
}

/// The arguments of a call as the model writes them.
pub fn arguments(input: &str) -> String {
    format!("{{\"input\": {}}}", Value::from(input))
}

/// Reads the input out of a call's arguments while they are generated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputDecoder {
    state: State,
    /// The last code unit, if it was the first half of a surrogate pair.
    high_surrogate: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Before the string, after this many quotation marks.
    Before(u8),
    Text,
    /// After a backslash.
    Escape,
    /// After `\u` and these digits.
    Unicode(String),
    /// After the string.
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self::Before(0)
    }
}

impl InputDecoder {
    /// The text that the next part of the arguments adds. An escape that is not complete waits for the next part.
    pub fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        arguments.chars().for_each(|next| self.push_char(next, &mut text));
        text
    }

    fn push_char(&mut self, next: char, text: &mut String) {
        self.state = match (std::mem::take(&mut self.state), next) {
            // The quotation marks of the name, and the one that opens the string.
            (State::Before(2), '"') => State::Text,
            (State::Before(count), '"') => State::Before(count + 1),
            (State::Text, '"') | (State::Done, _) => State::Done,
            (State::Text, '\\') => State::Escape,
            (State::Text, other) => {
                text.push(other);
                State::Text
            }
            (State::Escape, 'u') => State::Unicode(String::new()),
            (State::Escape, kind) => {
                text.push(escaped(kind));
                State::Text
            }
            (State::Unicode(mut digits), digit) => {
                digits.push(digit);
                if digits.len() < 4 {
                    State::Unicode(digits)
                } else {
                    self.push_unit(u16::from_str_radix(&digits, 16).unwrap_or(0xfffd), text);
                    State::Text
                }
            }
            (before, _) => before,
        };
    }

    fn push_unit(&mut self, unit: u16, text: &mut String) {
        let units: Vec<u16> = self.high_surrogate.take().into_iter().chain([unit]).collect();
        match (units.as_slice(), unit) {
            ([_], 0xd800..=0xdbff) => self.high_surrogate = Some(unit),
            (units, _) => text.push_str(&String::from_utf16_lossy(units)),
        }
    }
}

fn escaped(kind: char) -> char {
    match kind {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_survive_every_division_of_the_arguments() {
        for input in ["", "a", "*** Begin Patch\n+\t\"x\\y\"\r\n", "é漢😀\u{0}\u{1f}\u{7f}\u{8}\u{c}/"] {
            let arguments = arguments(input);
            assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "input": input }));
            let letters: Vec<char> = arguments.chars().collect();
            for at in 0..letters.len() {
                let mut decoder = InputDecoder::default();
                let mut part = |letters: &[char]| decoder.push(&letters.iter().collect::<String>());
                let text = part(&letters[..at]) + &part(&letters[at..]);
                assert_eq!(text, input, "{at}");
            }
        }
        let mut decoder = InputDecoder::default();
        assert_eq!(decoder.push(r#"{ "input":"\ud83d"#), "");
        assert_eq!(decoder.push(r#"\ude00\u00"#), "😀");
        assert_eq!(decoder.push(r#"e9\/""#), "é/");
        assert_eq!(decoder.push(" }"), "");
    }

    #[test]
    fn the_model_sees_a_function_and_the_grammar() {
        let custom = json!({
            "name": "patch", "description": "Edits.",
            "format": { "type": "grammar", "grammar": { "syntax": "regex", "definition": "a+" } },
        });
        let tool = tool(custom.as_object().unwrap());
        assert_eq!((tool.name.as_str(), &tool.input), ("patch", &Some(InputFormat::Regex("a+".to_owned()))));
        let function = &tool.definition["function"];
        assert_eq!(function["description"], "Edits.\n\nThe input is a text that matches this regular expression:\na+");
        assert_eq!(function["parameters"]["required"], json!(["input"]));
    }
}
