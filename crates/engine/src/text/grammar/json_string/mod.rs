//! Grammars of texts that the model writes as a string in JSON: the input of a custom tool.
//!
//! The model writes a call's arguments as JSON, so the grammar must describe the text as it appears there: a line break
//! is `\n`, and a quotation mark `\"`. It is therefore parsed, and written anew with escaped terminals.
//!
//! The lexer takes the longest match and takes nothing back, and it has to know after one byte whether a terminal goes on.
//! An escape has at least two bytes: after its backslash, the escape may belong to this terminal or to the next one. So each
//! terminal has up to four forms. It begins between two characters, or after a backslash that the last terminal has
//! taken; and it ends between two characters, or with the backslash of the next terminal's first escape. A rule has
//! the forms that its parts allow.
//!
//! Chat templates show calls as JSON, and the prefix cache finds such a call again when it comes back as history.
//! Escapes have one spelling each, that of chat templates. A terminal for each character, as for GBNF, would cost a
//! step of the parser for each character of each token. A check of the unescaped text beside the grammar would need a
//! second parser that knows where calls begin.

mod common_terminals;
mod directives;
mod escaped;
mod lark;
mod modes;
mod nodes;
mod pattern;
mod repetitions;
mod tokens;
mod writer;

use super::regex_escape::quote;
use crate::text::tools::InputFormat;
use pattern::Pattern;

/// Max bytes of a grammar or a regular expression.
const MAX_BYTES: usize = 64 << 10;

/// The grammar in Lark notation of the arguments `{"input": "…"}` whose string, unescaped, is a text of this format.
/// The error is what is wrong with the format's definition.
pub fn arguments(format: &InputFormat) -> Result<String, String> {
    within(r#"{"input": ""#, format, r#""}"#)
}

/// Like [`arguments`], of the string alone.
pub fn string(format: &InputFormat) -> Result<String, String> {
    within("\"", format, "\"")
}

/// The grammar of JSON with such a string between these texts.
fn within(before: &str, format: &InputFormat, after: &str) -> Result<String, String> {
    let grammar = match format {
        InputFormat::Text => nodes::of_pattern(Pattern::regex("(?s:.*)", "")?)?,
        InputFormat::Regex(regex) => {
            check_length(regex)?;
            nodes::of_pattern(Pattern::regex(regex, "")?)?
        }
        InputFormat::Lark(lark) => {
            check_length(lark)?;
            nodes::resolve(&lark::parse(lark)?)?
        }
    };
    writer::write(&quote(before), &grammar, &quote(after))
}

fn check_length(text: &str) -> Result<(), String> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => Err(format!("has {bytes} bytes; at most {MAX_BYTES} are allowed")),
    }
}

#[cfg(test)]
mod tests;
