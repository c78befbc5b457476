//! Builds the grammar of an output format: Lark rules for tool calls, JSON schemas for their arguments and for text.

use std::fmt::Write;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::json;

use super::error::GrammarError;
use super::parameters::{self, Budget, LiteralStyle, ParameterGrammar};
use super::part::{Part, Unenforced, object_schema};
use super::regex_escape::{escape, quote, without_anchors};
use super::schema::{Multiples, WHITE_SPACE};
use super::{harmony, json_string};
use crate::text::tools::literals::GEMMA_QUOTE;
use crate::text::tools::{
    ArgumentStyle, CallFormat, CallSyntax, InputFormat, OutputSpec, PYTHON, TextFormat, Tool, bare_call,
};

/// Max calls per choice: a small model may otherwise call tools endlessly.
const MAX_CALLS: usize = 16;

/// Max lines of a grammar in Lark notation: the compiler's time grows with the square of the number of rules.
const MAX_LARK_LINES: usize = 512;
/// The name of the text's schema or grammar in the Lark rules.
const TEXT: &str = "text";

/// The source of a grammar.
pub(super) struct Source {
    /// Absent if the output is a single schema.
    pub lark: Option<String>,
    /// The grammar of the text, if it is not a schema.
    text: Option<GrammarWithLexer>,
    pub schemas: Vec<Part>,
    /// The grammars of custom tools' arguments, with the index of each tool.
    inputs: Vec<(usize, GrammarWithLexer)>,
    /// What is not enforced, and is no part of a schema above.
    unenforced: Vec<Unenforced>,
}

/// Builds the grammar of `spec` and checks its schemas.
pub(super) fn build(spec: &OutputSpec, syntax: Option<&CallSyntax>) -> Result<Source, GrammarError> {
    let has_text = syntax.is_none_or(|syntax| !syntax.call_required);
    let mut multiples = Multiples::default();
    let mut schemas = Vec::new();
    if has_text {
        schemas.extend(text_schema(spec, &mut multiples)?);
    }
    let text = if has_text { text_grammar(&spec.text)? } else { None };
    let (mut inputs, mut unenforced, mut rules) = (Vec::new(), Vec::new(), String::new());
    let Some(syntax) = syntax else { return Ok(Source { lark: None, text, schemas, inputs, unenforced }) };
    let quote = syntax.control_id(GEMMA_QUOTE);
    let style = LiteralStyle { arguments: syntax.format.notation().arguments, quote };
    let (mut expressions, mut budget) = (Vec::new(), Budget::default());
    for (index, tool) in &syntax.callable {
        if style.arguments == ArgumentStyle::Json {
            match &tool.input {
                None => schemas.push(arguments(*index, tool, &mut multiples)?),
                Some(format) => inputs.push((*index, input(*index, format)?)),
            }
            expressions.push(format!("@{}", arguments_name(*index)));
        } else {
            let parameters = ParameterGrammar::new(style, *index, tool, &mut budget, &mut multiples)?;
            schemas.extend(parameters.schemas);
            inputs.extend(parameters.input.map(|grammar| (*index, grammar)));
            unenforced.extend(parameters.unenforced);
            rules.push_str(&parameters.rules);
            expressions.push(parameters.expression);
        }
    }
    rules.push_str(&parameters::shared_rules(style));
    if syntax.format == CallFormat::Llama && !syntax.call_required && !matches!(spec.text, TextFormat::Free) {
        let what = "This model starts tool calls the same way as JSON text, so a format of the text cannot be combined with optional tools. Set tool_choice to \"required\" or \"none\", or omit the format.";
        return Err(GrammarError::Combination(what.to_owned()));
    }
    let lark = match syntax.format {
        CallFormat::Harmony => harmony::lark(syntax, &expressions, MAX_CALLS),
        _ => lark(syntax, &expressions),
    };
    Ok(Source { lark: Some(lark + &rules), text, schemas, inputs, unenforced })
}

fn text_schema(spec: &OutputSpec, multiples: &mut Multiples) -> Result<Option<Part>, GrammarError> {
    let (schema, strict) = match &spec.text {
        TextFormat::Free | TextFormat::Regex(_) | TextFormat::Choice(_) | TextFormat::Lark(_) => return Ok(None),
        TextFormat::Object => (json!({ "type": "object" }), true),
        TextFormat::Schema { schema, strict } => (schema.clone(), *strict),
    };
    Part::new(TEXT.to_owned(), &schema, String::new(), strict, None, multiples).map(Some)
}

/// The grammar of a text format that is not a schema.
fn text_grammar(format: &TextFormat) -> Result<Option<GrammarWithLexer>, GrammarError> {
    let grammar = match format {
        TextFormat::Free | TextFormat::Object | TextFormat::Schema { .. } => return Ok(None),
        TextFormat::Regex(regex) => GrammarWithLexer::from_regex(without_anchors(regex)),
        TextFormat::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| quote(text)).collect();
            GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
        }
        TextFormat::Lark(grammar) => match grammar.lines().count() {
            0..=MAX_LARK_LINES => GrammarWithLexer::from_lark(grammar.clone()),
            lines => {
                let what = format!("cannot be enforced: it has {lines} lines; at most {MAX_LARK_LINES} are allowed");
                return Err(GrammarError::schema(None, String::new(), what));
            }
        },
    };
    Ok(Some(GrammarWithLexer { name: Some(TEXT.to_owned()), ..grammar }))
}

/// The grammar of a custom tool's arguments.
fn input(index: usize, format: &InputFormat) -> Result<GrammarWithLexer, GrammarError> {
    let invalid = |what| GrammarError::schema(Some(index), String::new(), what);
    let grammar = GrammarWithLexer::from_lark(json_string::arguments(format).map_err(invalid)?);
    Ok(GrammarWithLexer { name: Some(arguments_name(index)), ..grammar })
}

/// The name of a tool's arguments in the Lark rules.
fn arguments_name(index: usize) -> String {
    format!("arguments_{index}")
}

/// The schema of a tool's arguments: always an object, an empty one if the tool takes none.
fn arguments(index: usize, tool: &Tool, multiples: &mut Multiples) -> Result<Part, GrammarError> {
    let schema = object_schema(index, tool)?;
    Part::new(arguments_name(index), &schema, String::new(), tool.strict, Some(index), multiples)
}

/// Lark rules for text, calls, or both. `arguments`: the expression of each tool's arguments.
fn lark(syntax: &CallSyntax, arguments: &[String]) -> String {
    let notation = syntax.format.notation();
    let openings: Vec<String> = notation.openings.iter().map(|opening| literal(opening, syntax)).collect();
    let lead = literal(notation.lead, syntax);
    let several = if syntax.parallel { format!("(separator call){{0,{}}}", MAX_CALLS - 1) } else { String::new() };
    let mut out = String::from("%llguidance {}\n");
    let mut rule = |name: &str, body: &str| {
        let _ = writeln!(out, "{name}: {body}");
    };
    rule("start", &start(syntax, &format!("({})", openings.join(" | "))));
    rule("calls", &format!("{lead} call {several} {}", literal(notation.closing, syntax)));
    if let (true, Some(separator)) = (syntax.parallel, notation.separator) {
        rule("separator", &literal(separator, syntax));
    }
    let names: Vec<String> = syntax.callable.iter().map(|(index, _)| format!("call_{index}")).collect();
    rule("call", &names.join(" | "));
    let tail = literal(notation.tail, syntax);
    let call_id = notation.call_id.map(|(marker, size)| format!("{} /[a-zA-Z0-9]{{{size}}}/", literal(marker, syntax)));
    for ((index, tool), arguments) in syntax.callable.iter().zip(arguments) {
        let head = match &call_id {
            // A name and the text that follows it are one lexeme.
            None => literal(&notation.head(&tool.name), syntax),
            Some(id) => {
                let (name, after_name) = (notation.name(&tool.name), notation.after_name());
                format!("{} ({id})? {}", literal(&name, syntax), literal(after_name, syntax))
            }
        };
        rule(&format!("call_{index}"), &format!("{head} {arguments} {tail}"));
    }
    if syntax.free_text && !notation.openings.is_empty() {
        out.push_str(&plain(syntax));
    }
    if syntax.bare {
        bare_calls(syntax, &mut out);
    } else if syntax.format == CallFormat::Llama && !syntax.call_required {
        out.push_str("TEXT: /(?s:.*)/ & ~/[ \\n\\r\\t]*\\{\"name\"(?s:.*)/\n");
    }
    out
}

/// Text, optionally followed by calls. Openings that are text end it, as a separate lexeme.
fn plain(syntax: &CallSyntax) -> String {
    let mut plain = "plain: TEXT".to_owned();
    for id in syntax.opening_ids() {
        let _ = write!(plain, " | TEXT <[{id}]> calls");
    }
    let openings: Vec<String> = syntax.opening_texts().into_iter().map(escape).collect();
    if openings.is_empty() {
        return format!("{plain}\nTEXT: /(?s:.*)/\n");
    }
    let opening = openings.join("|");
    let lexemes = format!("until[lazy]: /(?s:.*)({opening})/\nTEXT: /(?s:.*)/ & ~/(?s:.*)({opening})(?s:.*)/\n");
    format!("{plain} | until calls\n{lexemes}")
}

/// Calls without the format's opening. A lazy lexeme ends at its first match: the output may be text up to where a
/// tool's arguments begin, and is a call from there on. The tools share all lexemes except their names, as 128 long
/// lexemes at once would exceed the lexer's limits. The text after the last call must not begin like a call.
fn bare_calls(syntax: &CallSyntax, out: &mut String) {
    let more = if syntax.parallel { format!("(bare_opening bare){{0,{}}}", MAX_CALLS - 1) } else { String::new() };
    let all = |rule: &str| syntax.callable.iter().map(|(index, _)| format!("{rule}_{index}")).collect::<Vec<_>>();
    let _ = writeln!(out, "bare_calls: bare_opening bare {more} REST\nbare: {}", all("bare").join(" | "));
    let _ = writeln!(out, "bare_name: {}", all("name").join(" | "));
    for (index, tool) in &syntax.callable {
        let _ = writeln!(out, "bare_{index}: name_{index} bare_middle BLANK? @arguments_{index} bare_tail");
        let _ = writeln!(out, "name_{index}[lazy]: {}", quote(&format!("{}\"", tool.name)));
    }
    let _ = writeln!(
        out,
        "bare_opening[lazy]: /{}/\nbare_middle[lazy]: /{}/",
        bare_call::opening_regex(),
        bare_call::middle_regex()
    );
    let _ = writeln!(out, "bare_tail[lazy]: /({WHITE_SPACE})?\\}}/\nBLANK: /{WHITE_SPACE}/");
    let _ = writeln!(out, "REST: /(?s:.*)/ & ~/{}(?s:.*)/", bare_call::prefix_regex());
}

fn start(syntax: &CallSyntax, opening: &str) -> String {
    let python = syntax.control_id(PYTHON).map(|id| format!("<[{id}]>? ")).unwrap_or_default();
    match syntax.format {
        CallFormat::Llama if syntax.call_required => format!("{python} calls"),
        CallFormat::Llama => format!("TEXT | {python} calls"),
        _ if syntax.call_required => format!("{opening} calls"),
        _ if syntax.free_text && !syntax.bare => "plain".to_owned(),
        _ if syntax.bare => "plain | bare_opening (plain | bare_name plain) | bare_calls".to_owned(),
        _ => format!("@text | {opening} calls"),
    }
}

/// Text of the format as a Lark expression; markers that are control tokens become token IDs.
fn literal(text: &str, syntax: &CallSyntax) -> String {
    let found = syntax.control_tokens.iter().filter_map(|(mark, id)| Some((text.find(mark)?, *mark, *id))).min();
    match found {
        None if text.is_empty() => String::new(),
        None => quote(text),
        Some((at, mark, id)) => {
            let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at + mark.len()..).unwrap_or_default());
            format!("{} <[{id}]> {}", literal(before, syntax), literal(after, syntax))
        }
    }
}

impl Source {
    /// The whole grammar, or only the schema `part`.
    pub fn grammar(&self, part: Option<usize>) -> TopLevelGrammar {
        let named = |part: &Part| GrammarWithLexer {
            name: Some(part.name.clone()),
            json_schema: Some(part.schema.clone()),
            ..GrammarWithLexer::default()
        };
        let chosen = self.schemas.iter().enumerate().filter(|(index, _)| part.is_none_or(|part| part == *index));
        let schemas = chosen.map(|(_, part)| named(part));
        let lark = self.lark.clone().filter(|_| part.is_none()).map(GrammarWithLexer::from_lark);
        let text = self.text.clone().filter(|_| part.is_none());
        let inputs = self.inputs.iter().filter(|_| part.is_none()).map(|(_, grammar)| grammar.clone());
        TopLevelGrammar {
            grammars: lark.into_iter().chain(text).chain(inputs).chain(schemas).collect(),
            max_tokens: None,
        }
    }

    /// The grammars of custom tools' arguments, with the index of each tool.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, TopLevelGrammar)> {
        self.inputs.iter().map(|(tool, grammar)| (*tool, TopLevelGrammar::from_grammar(grammar.clone())))
    }

    /// The grammar of the text alone, if it is not a schema.
    pub fn text_grammar(&self) -> Option<TopLevelGrammar> {
        self.text.clone().map(TopLevelGrammar::from_grammar)
    }

    /// An error in the schema at `part`.
    pub fn error(&self, part: usize, what: String) -> GrammarError {
        let part = self.schemas.get(part);
        let prefix = part.map(|part| part.prefix.clone()).unwrap_or_default();
        GrammarError::schema(part.and_then(|part| part.tool), prefix, what)
    }

    pub fn unenforced(&self) -> Vec<Unenforced> {
        let of = |part: &Part| {
            let path = |path: &String| Unenforced { tool: part.tool, path: part.prefix.clone() + path };
            part.unenforced.iter().map(path).collect::<Vec<_>>()
        };
        self.schemas.iter().flat_map(of).chain(self.unenforced.iter().cloned()).collect()
    }
}
