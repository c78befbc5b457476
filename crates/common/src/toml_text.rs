//! Reads TOML that users write, with the line of every error.

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

/// Parses a text, or lists all syntax errors with their lines.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<(usize, String)>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::new(text);
    let located = |error: &Error| {
        let line = lines.line_of(error.span().map_or(0, |span| span.start));
        (line, format!("this is not TOML: {}", error.message()))
    };
    if errors.is_empty() { Ok(table) } else { Err(errors.iter().map(located).collect()) }
}

/// The lines of a text.
pub struct Lines {
    /// The positions of line breaks.
    breaks: Vec<usize>,
}

impl Lines {
    pub fn new(text: &str) -> Self {
        Self { breaks: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// The line of a byte of the text, counted from 1.
    pub fn line_of(&self, at: usize) -> usize {
        self.breaks.partition_point(|position| *position < at) + 1
    }
}

/// The kind of a value, for error messages.
pub fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "number",
        DeValue::Float(_) => "number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "date or time",
        DeValue::Array(_) => "list",
        DeValue::Table(_) => "section",
    }
}
