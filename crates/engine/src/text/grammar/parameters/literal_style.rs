//! How literals are written: as Python does, or as Gemma does.

use serde_json::{Map, Value};

use crate::text::grammar::regex_escape::{escape, quote};
use crate::text::grammar::schema::WHITE_SPACE;
use crate::text::tools::ArgumentStyle;
use crate::text::tools::literals::{self, GEMMA_QUOTE};

/// The style of literals.
#[derive(Clone, Copy, Debug)]
pub struct LiteralStyle {
    pub arguments: ArgumentStyle,
    /// The token around Gemma's strings, if it is a control token.
    pub quote: Option<u32>,
}

impl LiteralStyle {
    pub(super) fn is_gemma(self) -> bool {
        self.arguments == ArgumentStyle::Gemma
    }

    /// What stands before the value of a parameter.
    pub(super) fn head(self, name: &str) -> String {
        quote(&[name, if self.is_gemma() { ":" } else { "=" }].concat())
    }

    pub(super) fn null(self) -> &'static str {
        if self.is_gemma() { "\"null\"" } else { "\"None\"" }
    }

    /// The expression for the quotes around a string of Gemma.
    pub(super) fn quotes(self) -> String {
        self.quote.map_or_else(|| quote(GEMMA_QUOTE), |id| format!("<[{id}]>"))
    }

    /// Properties in the order in which the model is shown them: Gemma's template sorts them as Jinja's `dictsort` does.
    pub fn ordered(self, properties: &Map<String, Value>) -> Vec<(&String, &Value)> {
        let mut all: Vec<(&String, &Value)> = properties.iter().collect();
        if self.is_gemma() {
            all.sort_by_key(|(name, _)| name.to_lowercase());
        }
        all
    }

    pub(super) fn can_name(self, name: &str) -> bool {
        if self.is_gemma() { literals::is_gemma_name(name) } else { literals::is_argument_name(name) }
    }

    /// The input of a custom tool, whose grammar has this name.
    pub fn input(self, name: &str) -> String {
        format!("{} @{name}", self.head("input"))
    }

    /// Literals of any kind.
    pub fn rules(self) -> String {
        let comma = format!("/,({WHITE_SPACE})?/");
        let own = if self.is_gemma() { self.gemma_rules() } else { PYTHON_RULES.to_owned() };
        format!(
            r#"{own}literal_value: literal_string | LITERAL_NUMBER | LITERAL_BOOLEAN | {} | "[" literal_items? "]" | literal_dict
literal_items: literal_value (LITERAL_COMMA literal_value)*
literal_dict: "{{" (literal_field (LITERAL_COMMA literal_field)*)? "}}"
LITERAL_INTEGER: /-?(0|[1-9][0-9]*)/
LITERAL_NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{{1,2}})?/
LITERAL_NAME: /[A-Za-z_][A-Za-z0-9_]{{0,99}}/
LITERAL_COMMA: {comma}
"#,
            self.null()
        )
    }

    fn gemma_rules(self) -> String {
        let string = match self.quote {
            Some(id) => format!("literal_string: <[{id}]> LITERAL_TEXT <[{id}]>\nLITERAL_TEXT: /(?s:.*)/"),
            None => format!("literal_string[lazy]: /{0}(?s:.*){0}/", escape(GEMMA_QUOTE)),
        };
        format!(
            "{string}\nliteral_field: literal_argument\nliteral_argument: LITERAL_NAME \":\" literal_value\nLITERAL_BOOLEAN: \"true\" | \"false\"\n"
        )
    }
}

/// Each character of a string has one spelling in each kind of quotes, except quotation marks.
const PYTHON_RULES: &str = r#"literal_field: literal_string ": " literal_value
literal_string: LITERAL_DOUBLE | LITERAL_SINGLE
literal_argument: LITERAL_NAME "=" literal_value
LITERAL_DOUBLE: /"([^"\\\x00-\x1f\x7f]|\\["'\\bfnrt])*"/
LITERAL_SINGLE: /'([^'\\\x00-\x1f\x7f]|\\["'\\bfnrt])*'/
LITERAL_BOOLEAN: "True" | "False"
"#;
