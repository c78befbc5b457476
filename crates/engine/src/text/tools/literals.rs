//! Arguments as Python writes them in a call, `city="Paris", days=[1, 2], exact=True`, and as Gemma does,
//! `city:<|"|>Paris<|"|>,days:[1,2],exact:true`.
//!
//! The grammar lets only some of Python's literals through. The parser also takes the others that models write: tuples,
//! commas after the last item, JSON's `true`, `false` and `null`, `1_000` and `.5`. It does not check what it reads.

use std::fmt::Write as _;

use serde_json::{Number, Value};

use crate::text::stop::StopMatcher;

/// A value as a literal of Python. Strings are written as in JSON.
pub fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| format!("{}: {}", Value::from(name.as_str()), literal(value));
            format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(", "))
        }
        Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// The arguments of a call between its parentheses. Arguments that are no object are left as they are.
pub fn arguments(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}={}", literal(value))).collect::<Vec<_>>().join(", ")
        }
        Value::String(text) => text.clone(),
        other => literal(other),
    }
}

/// True if an argument with this name can be written and read.
pub fn is_argument_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|ch: char| ch.is_whitespace() || "=,()[]{}'\"".contains(ch))
}

/// The quotes around Gemma's strings, in which nothing is escaped.
pub const GEMMA_QUOTE: &str = "<|\"|>";

/// A value as Gemma writes it.
fn gemma_literal(value: &Value) -> String {
    match value {
        Value::String(text) => [GEMMA_QUOTE, text, GEMMA_QUOTE].concat(),
        Value::Array(items) => format!("[{}]", items.iter().map(gemma_literal).collect::<Vec<_>>().join(",")),
        Value::Object(_) => format!("{{{}}}", gemma_arguments(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// The arguments of a call of Gemma between its braces. Arguments that are no object are left as they are.
pub fn gemma_arguments(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| format!("{name}:{}", gemma_literal(value));
            fields.iter().map(field).collect::<Vec<_>>().join(",")
        }
        Value::String(text) => text.clone(),
        other => gemma_literal(other),
    }
}

/// True if an argument with this name can be written and read in a call of Gemma.
pub fn is_gemma_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|ch: char| ch.is_whitespace() || ":,{}[]<\"".contains(ch))
}

/// Turns the arguments of a call into JSON while they are generated: from its opening bracket to the closing one.
#[derive(Default)]
pub struct LiteralParser {
    is_gemma: bool,
    /// The brackets that are open. The first is the call's parenthesis.
    open: Vec<Bracket>,
    string: Option<OpenString>,
    /// The name, number or constant so far.
    word: String,
    /// A comma was read. It is passed on with the next item.
    comma: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Call,
    /// A list or a tuple.
    List,
    Dict,
}

/// A string that is open.
enum OpenString {
    Escaped(PythonString),
    /// Up to [`GEMMA_QUOTE`].
    Raw(StopMatcher),
}

struct PythonString {
    quote: char,
    /// The escape so far, without its backslash.
    escape: Option<String>,
}

impl LiteralParser {
    /// The parser of a call of Gemma. JSON's strings are read, too.
    pub fn gemma() -> Self {
        Self { is_gemma: true, ..Self::default() }
    }

    /// Takes a character after the call's opening bracket. Returns what it adds to the JSON of the arguments, and whether
    /// they end with it.
    pub fn push(&mut self, ch: char) -> (String, bool) {
        let mut json = String::new();
        if self.open.is_empty() {
            self.open.push(Bracket::Call);
            json.push('{');
        }
        if let Some(string) = &mut self.string {
            if string.push(ch, &mut json) {
                self.string = None;
            }
            return (json, false);
        }
        match ch {
            '"' | '\'' if !self.is_gemma || ch == '"' && !self.word.ends_with("<|") => {
                let string = OpenString::Escaped(PythonString { quote: ch, escape: None });
                self.begin_string(string, &mut json);
            }
            '(' | ')' if self.is_gemma => self.word.push(ch),
            '(' | '[' => self.begin_brackets(Bracket::List, '[', &mut json),
            '{' => self.begin_brackets(Bracket::Dict, '{', &mut json),
            ')' | ']' | '}' => {
                self.end_word(&mut json);
                self.comma = false;
                json.push(if self.open.pop() == Some(Bracket::List) { ']' } else { '}' });
            }
            ',' => {
                self.end_word(&mut json);
                self.comma = true;
            }
            '=' if self.open == [Bracket::Call] && !self.is_gemma => self.end_name(&mut json),
            ':' if self.open.last() == Some(&Bracket::Dict) || self.is_gemma => self.end_name(&mut json),
            _ if ch.is_whitespace() => {}
            _ => {
                self.word.push(ch);
                if self.is_gemma && self.word.ends_with(GEMMA_QUOTE) {
                    self.word.clear();
                    self.begin_string(OpenString::Raw(StopMatcher::new(vec![GEMMA_QUOTE.to_owned()])), &mut json);
                }
            }
        }
        (json, self.open.is_empty())
    }

    fn begin_string(&mut self, string: OpenString, json: &mut String) {
        self.begin_item(json);
        json.push('"');
        self.string = Some(string);
    }

    /// What stands between the last item and the next one.
    fn begin_item(&mut self, json: &mut String) {
        if std::mem::take(&mut self.comma) {
            json.push_str(", ");
        }
    }

    fn begin_brackets(&mut self, bracket: Bracket, written: char, json: &mut String) {
        self.begin_item(json);
        self.open.push(bracket);
        json.push(written);
    }

    /// Ends a word that is a value.
    fn end_word(&mut self, json: &mut String) {
        if !self.word.is_empty() {
            self.begin_item(json);
            json.push_str(&word_as_json(&std::mem::take(&mut self.word)));
        }
    }

    /// Ends the name of an argument, or a key. Keys may be strings, which have been passed on already.
    fn end_name(&mut self, json: &mut String) {
        if !self.word.is_empty() {
            self.begin_item(json);
            json.push_str(&Value::from(std::mem::take(&mut self.word)).to_string());
        }
        json.push_str(": ");
    }
}

fn word_as_json(word: &str) -> String {
    match word {
        "True" | "true" => return "true".to_owned(),
        "False" | "false" => return "false".to_owned(),
        "None" | "null" => return "null".to_owned(),
        _ => {}
    }
    let digits = word.replace('_', "");
    if serde_json::from_str::<Number>(&digits).is_ok() {
        return digits;
    }
    let number = digits.parse().ok().and_then(Number::from_f64);
    number.map_or_else(|| Value::from(word).to_string(), |number| number.to_string())
}

impl OpenString {
    /// Takes a character after the opening quote. True if the string ends with it.
    fn push(&mut self, ch: char, json: &mut String) -> bool {
        match self {
            Self::Escaped(string) => string.push(ch, json),
            Self::Raw(end) => {
                let (text, found) = end.push(ch.encode_utf8(&mut [0; 4]));
                text.chars().for_each(|ch| push_escaped(ch, json));
                if found.is_some() {
                    json.push('"');
                }
                found.is_some()
            }
        }
    }
}

impl PythonString {
    /// Takes a character after the opening quote. True if the string ends with it.
    fn push(&mut self, ch: char, json: &mut String) -> bool {
        match &mut self.escape {
            None if ch == '\\' => self.escape = Some(String::new()),
            None if ch == self.quote => {
                json.push('"');
                return true;
            }
            None => push_escaped(ch, json),
            Some(escape) => {
                escape.push(ch);
                if let Some(text) = unescape(escape) {
                    json.push_str(&text);
                    self.escape = None;
                }
            }
        }
        false
    }
}

/// Appends a character of a string as JSON writes it.
fn push_escaped(ch: char, json: &mut String) {
    match ch {
        '"' | '\\' => json.extend(['\\', ch]),
        '\n' => json.push_str("\\n"),
        '\t' => json.push_str("\\t"),
        _ if ch < ' ' => {
            let _ = write!(json, "\\u{:04x}", u32::from(ch));
        }
        _ => json.push(ch),
    }
}

/// What an escape, without its backslash, is in a string of JSON. `None`: it goes on. As in Python, the backslash of an
/// unknown escape is a part of the text.
fn unescape(escape: &str) -> Option<String> {
    let mut chars = escape.chars();
    let (kind, rest) = (chars.next()?, chars.as_str());
    let digits = match kind {
        'n' | 'r' | 't' | 'b' | 'f' | '"' | '\\' => return Some(format!("\\{kind}")),
        '\'' => return Some("'".to_owned()),
        'a' => return Some("\\u0007".to_owned()),
        'v' => return Some("\\u000b".to_owned()),
        // A line that goes on in the next one.
        '\n' => return Some(String::new()),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if rest.len() < digits && rest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let is_code = digits > 0 && rest.len() == digits && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let code = u32::from_str_radix(rest, 16).ok().filter(|_| is_code);
    Some(match code {
        // JSON writes characters beyond these as pairs, too.
        Some(code) if digits <= 4 => format!("\\u{code:04x}"),
        Some(code) => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string(),
        None => {
            let mut text = "\\\\".to_owned();
            escape.chars().for_each(|ch| push_escaped(ch, &mut text));
            text
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{LiteralParser, arguments, gemma_arguments};

    /// The JSON of arguments, and the characters that were left.
    fn parsed(text: &str) -> (String, usize) {
        parsed_by(LiteralParser::default(), text)
    }

    fn parsed_by(mut parser: LiteralParser, text: &str) -> (String, usize) {
        let mut json = String::new();
        for (at, ch) in text.char_indices() {
            let (more, done) = parser.push(ch);
            json += &more;
            if done {
                return (json, text.len() - at - 1);
            }
        }
        (json, text.len())
    }

    #[test]
    fn literals_become_json() {
        for (text, expected) in [
            ("", "{}"),
            ("city=\"Paris\", days=3", r#"{"city": "Paris", "days": 3}"#),
            ("a='it\\'s \"x\"', b=\"it's \\\"y\\\"\"", r#"{"a": "it's \"x\"", "b": "it's \"y\""}"#),
            ("x=[1, 2], y={\"a\": True, 'b': None}", r#"{"x": [1, 2], "y": {"a": true, "b": null}}"#),
            ("x=(800,600,), y=[(1,), [], {}, ()]", r#"{"x": [800, 600], "y": [[1], [], {}, []]}"#),
            ("from=False , a-b = { 1 : [ true , null ] },", r#"{"from": false, "a-b": {"1": [true, null]}}"#),
            (
                "a=-1.5e-3, b=.5, c=1_000, d=+7, e=18446744073709551616",
                "{\"a\": -1.5e-3, \"b\": 0.5, \"c\": 1000, \"d\": 7.0, \"e\": 18446744073709551616}",
            ),
            ("a=')]}=,:', b=\"[{(\"", r#"{"a": ")]}=,:", "b": "[{("}"#),
            ("s='a\\n\\t\\\\\\x41\\u00e9\\U0001F980\\a\\d\\\nb\n'", r#"{"s": "a\n\t\\\u0041\u00e9🦀\u0007\\db\n"}"#),
            ("s='\\ud83e\\udd80 \\xg', t=celsius", r#"{"s": "\ud83e\udd80 \\xg", "t": "celsius"}"#),
        ] {
            let (json, left) = parsed(&format!("{text})]<|tool_call_end|>"));
            assert_eq!((json.as_str(), left), (expected, "]<|tool_call_end|>".len()), "{text}");
            assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
        }
    }

    #[test]
    fn literals_of_gemma_become_json() {
        for (text, expected) in [
            ("", "{}"),
            ("city:<|\"|>Paris<|\"|>,days:3", r#"{"city": "Paris", "days": 3}"#),
            (
                "a:<|\"|>it's \"x\" {y}, \\\n<|b<|\"|>,b:true,c:null",
                r#"{"a": "it's \"x\" {y}, \\\n<|b", "b": true, "c": null}"#,
            ),
            (
                "x:[1,2.5,<|\"|>a<|\"|>,[]],y:{a:{},b:[{c:-1e3}]}",
                r#"{"x": [1, 2.5, "a", []], "y": {"a": {}, "b": [{"c": -1e3}]}}"#,
            ),
            ("<|\"|>a b<|\"|>: \"x\\n'\", 'c:f(x)", r#"{"a b": "x\n'", "'c": "f(x)"}"#),
            ("x:<|\"|><|\"|>", r#"{"x": ""}"#),
        ] {
            let (json, left) = parsed_by(LiteralParser::gemma(), &format!("{text}}}<tool_call|>"));
            assert_eq!((json.as_str(), left), (expected, "<tool_call|>".len()), "{text}");
            assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
        }
        let value = json!({ "s": "\"it's\"\n\\ é", "n": [1, -2.5, null], "o": { "c": [true, { "d": "x" }] }, "e": {} });
        let (json, _) = parsed_by(LiteralParser::gemma(), &format!("{}}}", gemma_arguments(&value)));
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{json}");
    }

    #[test]
    fn a_call_that_was_written_is_read_as_the_same_arguments() {
        let value = json!({ "s": "\"it's\"\n\\ \u{1} é", "n": [1, -2.5, 1e300], "o": { "a b": null, "c": [true, false, {}] }, "e": {} });
        let (json, _) = parsed(&format!("{})", arguments(&value)));
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{json}");
    }

    #[test]
    fn arguments_that_were_cut_off_are_the_beginning_of_json() {
        assert_eq!(parsed("city=\"Par").0, r#"{"city": "Par"#);
        assert_eq!(parsed("city=\"Par\\").0, r#"{"city": "Par"#);
        assert_eq!(parsed("days=[1, 2").0, r#"{"days": [1"#);
    }
}
