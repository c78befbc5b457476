//! What a request demands, written as a grammar: Lark for calls, JSON schemas for what is in them.

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::error::GrammarError;
use super::schema::{self, Multiples, SchemaError, WHITE_SPACE};
use crate::engine::text::tools::{Format, OutputSpec, PYTHON, Syntax, TextFormat, Tool, bare};

/// Calls that one answer may have: a small model that likes calling would go on for ever.
const MAX_CALLS: usize = 16;

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
pub(super) fn write(shape: &OutputSpec, syntax: Option<&Syntax>) -> Result<Source, GrammarError> {
    let has_text = syntax.is_none_or(|syntax| !syntax.at_once);
    let mut multiples = Multiples::default();
    let mut schemas = Vec::new();
    if has_text {
        schemas.extend(text(shape, &mut multiples)?);
    }
    let Some(syntax) = syntax else { return Ok(Source { lark: None, schemas }) };
    for (index, tool) in &syntax.callable {
        schemas.push(parameters(*index, tool, &mut multiples)?);
    }
    if syntax.format == Format::Llama && !syntax.at_once && !matches!(shape.text, TextFormat::Free) {
        let what = "This model begins calls as it begins JSON, so response_format cannot be combined with tools it may call or not. Send tool_choice \"required\" or \"none\", or leave response_format out.";
        return Err(GrammarError::Together(what.to_owned()));
    }
    Ok(Source { lark: Some(lark(syntax)), schemas })
}

fn text(shape: &OutputSpec, multiples: &mut Multiples) -> Result<Option<Part>, GrammarError> {
    let schema = match &shape.text {
        TextFormat::Free => return Ok(None),
        TextFormat::Object => json!({ "type": "object" }),
        TextFormat::Schema(schema) => schema.clone(),
    };
    let wrong = |SchemaError { path, what }| GrammarError::Schema { path, what };
    let schema = schema::prepare(&schema, multiples).map_err(wrong)?;
    Ok(Some(Part { name: "text".to_owned(), schema, tool: None }))
}

/// The schema of a tool's arguments: always an object, and an empty one where the tool takes none.
fn parameters(index: usize, tool: &Tool, multiples: &mut Multiples) -> Result<Part, GrammarError> {
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
    let schema = schema::prepare(&schema, multiples).map_err(wrong)?;
    Ok(Part { name: format!("arguments_{index}"), schema, tool: Some(index) })
}

/// Rules for text, calls, or either.
fn lark(syntax: &Syntax) -> String {
    let format = syntax.format;
    let opening = literal(format.opening(), syntax);
    let lead = literal(format.lead(), syntax);
    let several = if syntax.several { format!("(separator call){{0,{}}}", MAX_CALLS - 1) } else { String::new() };
    let mut out = String::from("%llguidance {}\n");
    let mut rule = |name: &str, body: &str| {
        let _ = writeln!(out, "{name}: {body}");
    };
    rule("start", &start(syntax, &opening));
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
    if syntax.bare {
        plain(syntax, &opening, &mut out);
        bare_calls(syntax, &mut out);
    } else if format == Format::Llama && !syntax.at_once {
        out.push_str("TEXT: /(?s:.*)/ & ~/[ \\n\\r\\t]*\\{\"name\"(?s:.*)/\n");
    }
    out
}

/// Text, also with calls after it. It never has the format's opening, which a lexeme of its own waits for.
fn plain(syntax: &Syntax, opening: &str, out: &mut String) {
    let rules = match syntax.opening_id() {
        Some(_) => format!("plain: TEXT | TEXT {opening} calls\nTEXT: /(?s:.*)/\n"),
        None => {
            let opening = escape(syntax.format.opening());
            let lexemes = format!("until[lazy]: /(?s:.*){opening}/\nTEXT: /(?s:.*)/ & ~/(?s:.*){opening}(?s:.*)/\n");
            format!("plain: TEXT | until calls\n{lexemes}")
        }
    };
    out.push_str(&rules);
}

/// Calls without an opening of the format. A lazy lexeme ends as soon as it is whole, whatever else could go on: so an
/// answer may be text up to where a tool's arguments begin, and is a call from there on. All that names do not differ in
/// are lexemes that they share, for 128 long ones at once would exceed the lexer's limits. What follows the last call
/// does not begin like one.
fn bare_calls(syntax: &Syntax, out: &mut String) {
    let more = if syntax.several { format!("(bare_opening bare){{0,{}}}", MAX_CALLS - 1) } else { String::new() };
    let all = |rule: &str| syntax.callable.iter().map(|(index, _)| format!("{rule}_{index}")).collect::<Vec<_>>();
    let _ = writeln!(out, "bare_calls: bare_opening bare {more} REST\nbare: {}", all("bare").join(" | "));
    let _ = writeln!(out, "bare_name: {}", all("name").join(" | "));
    for (index, tool) in &syntax.callable {
        let _ = writeln!(out, "bare_{index}: name_{index} bare_middle BLANK? @arguments_{index} bare_tail");
        let _ = writeln!(out, "name_{index}[lazy]: {}", quote(&format!("{}\"", tool.name)));
    }
    let _ = writeln!(out, "bare_opening[lazy]: /{}/\nbare_middle[lazy]: /{}/", bare::opening(), bare::middle());
    let _ = writeln!(out, "bare_tail[lazy]: /({WHITE_SPACE})?\\}}/\nBLANK: /{WHITE_SPACE}/");
    let _ = writeln!(out, "REST: /(?s:.*)/ & ~/{}(?s:.*)/", bare::likeness());
}

fn start(syntax: &Syntax, opening: &str) -> String {
    let python = syntax.marks.iter().find(|(text, _)| *text == PYTHON).map(|(_, id)| format!("<[{id}]>"));
    let python = python.map(|token| format!("{token}? ")).unwrap_or_default();
    match syntax.format {
        Format::Llama if syntax.at_once => format!("{python} calls"),
        Format::Llama => format!("TEXT | {python} calls"),
        _ if syntax.at_once => format!("{opening} calls"),
        _ if syntax.bare => "plain | bare_opening (plain | bare_name plain) | bare_calls".to_owned(),
        _ => format!("@text | {opening} calls"),
    }
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
