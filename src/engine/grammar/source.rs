//! What a request demands, written as a grammar: Lark for calls, JSON schemas for what is in them.

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::GrammarError;
use super::schema::{self, SchemaError, WHITE_SPACE};
use crate::engine::tools::{Format, PYTHON, Shape, Syntax, Text, Tool, bare_beginning, bare_head};

/// Calls that one answer may have: a small model that likes calling would go on for ever.
const MOST_CALLS: usize = 16;

/// A grammar's text.
pub(super) struct Source {
    /// Absent where the answer is one schema.
    lark: Option<String>,
    pub schemas: Vec<Part>,
}

/// A schema inside of the grammar.
pub(super) struct Part {
    /// What [`Source::lark`] calls it.
    name: String,
    schema: Value,
    /// The index of the tool whose parameters these are; `None` for the text.
    tool: Option<usize>,
}

/// The grammar of `shape`, its schemas checked.
pub(super) fn write(shape: &Shape, syntax: Option<&Syntax>) -> Result<Source, GrammarError> {
    let has_text = syntax.is_none_or(|syntax| !syntax.at_once);
    let mut schemas: Vec<Part> = if has_text { text(shape)?.into_iter().collect() } else { Vec::new() };
    let Some(syntax) = syntax else { return Ok(Source { lark: None, schemas }) };
    for (index, tool) in &syntax.callable {
        schemas.push(parameters(*index, tool)?);
    }
    if syntax.format == Format::Llama && !syntax.at_once && !matches!(shape.text, Text::Free) {
        let what = "This model begins calls as it begins JSON, so response_format cannot be combined with tools it may call or not. Send tool_choice \"required\" or \"none\", or leave response_format out.";
        return Err(GrammarError::Together(what.to_owned()));
    }
    Ok(Source { lark: Some(lark(shape, syntax)), schemas })
}

fn text(shape: &Shape) -> Result<Option<Part>, GrammarError> {
    let schema = match &shape.text {
        Text::Free => return Ok(None),
        Text::Object => json!({ "type": "object" }),
        Text::Schema(schema) => schema.clone(),
    };
    let schema = schema::prepare(&schema).map_err(|SchemaError { path, what }| GrammarError::Schema { path, what })?;
    Ok(Some(Part { name: "text".to_owned(), schema, tool: None }))
}

/// The schema of a tool's arguments: always an object, and an empty one where the tool takes none.
fn parameters(index: usize, tool: &Tool) -> Result<Part, GrammarError> {
    let wrong = |SchemaError { path, what }| GrammarError::Tool { tool: index, path, what };
    let mut schema = match tool.parameters() {
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(parameters) => parameters.clone(),
    };
    match schema.as_object_mut().map(|fields| fields.entry("type").or_insert_with(|| json!("object"))) {
        Some(kind) if kind == "object" => {}
        _ => {
            let what = "must describe an object: its type must be 'object'".to_owned();
            return Err(wrong(SchemaError { path: String::new(), what }));
        }
    }
    let schema = schema::prepare(&schema).map_err(wrong)?;
    Ok(Part { name: format!("arguments_{index}"), schema, tool: Some(index) })
}

/// Rules for text, calls, or either.
fn lark(shape: &Shape, syntax: &Syntax) -> String {
    let format = syntax.format;
    let opening = literal(format.opening(), syntax);
    let lead = literal(format.lead(), syntax);
    let several = if syntax.several { format!("(separator call){{0,{}}}", MOST_CALLS - 1) } else { String::new() };
    let mut out = String::from("%llguidance {}\n");
    let mut rule = |name: &str, body: &str| {
        let _ = writeln!(out, "{name}: {body}");
    };
    rule("start", &start(shape, syntax, &opening));
    rule("calls", &format!("{lead} call {several} {}", literal(format.closing(), syntax)));
    if let (true, Some(separator)) = (syntax.several, format.separator()) {
        rule("separator", &literal(separator, syntax));
    }
    let names: Vec<String> = syntax.callable.iter().map(|(index, _)| format!("call_{index}")).collect();
    rule("call", &names.join(" | "));
    let tail = literal(format.tail(), syntax);
    for (index, tool) in &syntax.callable {
        rule(&format!("call_{index}"), &format!("{} @arguments_{index} {tail}", quote(&format.head(&tool.name))));
    }
    terminals(shape, syntax, &mut out);
    if syntax.bare {
        bare(syntax, &mut out);
    }
    out
}

/// Calls without an opening. Each tool's head ends a lexeme as soon as it is whole, which text loses to: so an answer
/// is text up to there, and from there on a call. What follows the last call has no such beginning; it is not shown.
fn bare(syntax: &Syntax, out: &mut String) {
    let more = if syntax.several { format!("any_bare{{0,{}}}", MOST_CALLS - 1) } else { String::new() };
    let names: Vec<String> = syntax.callable.iter().map(|(index, _)| format!("bare_{index}")).collect();
    let _ = writeln!(out, "bare: any_bare {more} REST\nany_bare: {}", names.join(" | "));
    for (index, tool) in &syntax.callable {
        let head = bare_head(&tool.name);
        let _ =
            writeln!(out, "bare_{index}: head_{index} BLANK? @arguments_{index} tail\nhead_{index}[lazy]: /{head}/");
    }
    let _ = writeln!(out, "tail[lazy]: /({WHITE_SPACE})?\\}}/\nBLANK: /{WHITE_SPACE}/");
    let _ = writeln!(out, "REST: /(?s:.*)/ & ~/{}(?s:.*)/", bare_beginning());
}

fn start(shape: &Shape, syntax: &Syntax, opening: &str) -> String {
    let python = syntax.marks.iter().find(|(text, _)| *text == PYTHON).map(|(_, id)| format!("<[{id}]>"));
    let python = python.map(|token| format!("{token}? ")).unwrap_or_default();
    match (&shape.text, syntax.opening_id()) {
        _ if syntax.format == Format::Llama && syntax.at_once => format!("{python} calls"),
        _ if syntax.format == Format::Llama => format!("TEXT | {python} calls"),
        _ if syntax.at_once => format!("{opening} calls"),
        (Text::Free, Some(_)) => format!("TEXT | TEXT {opening} calls | bare"),
        (Text::Free, None) => "TEXT | until calls | bare".to_owned(),
        (Text::Object | Text::Schema(_), _) => format!("@text | {opening} calls"),
    }
}

/// Free text never has the opening, which a lexeme of its own waits for.
fn terminals(shape: &Shape, syntax: &Syntax, out: &mut String) {
    if syntax.at_once || !matches!(shape.text, Text::Free) {
        return;
    }
    let opening = escape(syntax.format.opening());
    let rules = match (syntax.format, syntax.opening_id()) {
        (Format::Llama, _) => "TEXT: /(?s:.*)/ & ~/[ \\n\\r\\t]*\\{\"name\"(?s:.*)/\n".to_owned(),
        (_, Some(_)) => "TEXT: /(?s:.*)/\n".to_owned(),
        (_, None) => {
            format!("until[lazy]: /(?s:.*){opening}/\nTEXT: /(?s:.*)/ & ~/(?s:.*){opening}(?s:.*)/\n")
        }
    };
    out.push_str(&rules);
}

/// Text of the format, in which marks that are control tokens stand for these.
fn literal(text: &str, syntax: &Syntax) -> String {
    let found = syntax.marks.iter().filter_map(|(mark, id)| Some((text.find(mark)?, *mark, *id))).min();
    match found {
        None if text.is_empty() => String::new(),
        None => quote(text),
        Some((at, mark, id)) => {
            let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at + mark.len()..).unwrap_or_default());
            format!("{} <[{id}]> {}", literal(before, syntax), literal(after, syntax))
        }
    }
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

fn escape(text: &str) -> String {
    let special = |letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '_' | '<' | '>');
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

impl Source {
    /// All of it, or one of its schemas alone.
    pub fn grammar(&self, part: Option<usize>) -> TopLevelGrammar {
        let named = |part: &Part| GrammarWithLexer {
            name: Some(part.name.clone()),
            json_schema: Some(part.schema.clone()),
            ..GrammarWithLexer::default()
        };
        let chosen = self.schemas.iter().enumerate().filter(|(index, _)| part.is_none_or(|part| part == *index));
        let schemas = chosen.map(|(_, part)| named(part));
        let lark = self.lark.clone().filter(|_| part.is_none()).map(GrammarWithLexer::from_lark);
        TopLevelGrammar { grammars: lark.into_iter().chain(schemas).collect(), max_tokens: None }
    }

    /// An error in the schema at `part`.
    pub fn error(&self, part: usize, path: String, what: String) -> GrammarError {
        match self.schemas.get(part).and_then(|part| part.tool) {
            Some(tool) => GrammarError::Tool { tool, path, what },
            None => GrammarError::Schema { path, what },
        }
    }
}
