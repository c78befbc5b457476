//! Control characters in the texts of a schema.
//!
//! Strings are generated with JSON's short escapes alone (`\n`), so that each has one spelling. Other control characters have
//! none. The compiler drops them from constants and patterns without a word, and if a class of a pattern has all of them, it
//! also allows an escaped quotation mark and backslash. So such constants and patterns are not enforced, and classes are
//! written without control characters.

use regex_syntax::ast::{self, Ast, Span, Visitor};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};
use serde_json::{Map, Value};

use super::schema_error::{SchemaError, unenforceable};
use super::subschemas::visit_schemas;

/// Characters without an escape.
const UNWRITTEN: [(char, char); 4] = [('\0', '\u{7}'), ('\u{b}', '\u{b}'), ('\u{e}', '\u{1f}'), ('\u{7f}', '\u{7f}')];

fn is_unwritten(character: char) -> bool {
    UNWRITTEN.iter().any(|(from, to)| (*from..=*to).contains(&character))
}

/// True if all strings in a value can be generated.
pub fn is_written(value: &Value) -> bool {
    find(value).is_none()
}

/// Checks the values of a `const` or an `enum`.
pub(super) fn check_values(value: &Value, pointer: &str) -> Result<(), SchemaError> {
    match find(value) {
        None => Ok(()),
        Some(character) => refuse(character, pointer),
    }
}

/// Checks that a pattern names no control character outside of a class with others.
pub(super) fn check_pattern(pattern: &str, pointer: &str) -> Result<(), SchemaError> {
    let parts = parts(pattern);
    if let Some(character) = parts.iter().find_map(|(_, part)| part.needed()) {
        return refuse(character, pointer);
    }
    // They may change what a class means.
    if has_flags(pattern) && parts.iter().any(|(_, part)| part.rewritten().is_some()) {
        return unenforceable(pointer, "has flags beside a class that this server can enforce only without them");
    }
    Ok(())
}

fn has_flags(pattern: &str) -> bool {
    pattern.match_indices("(?").any(|(at, _)| !matches!(pattern[at + 2..].chars().next(), Some(':' | '<' | 'P')))
}

fn refuse(character: char, pointer: &str) -> Result<(), SchemaError> {
    unenforceable(
        pointer,
        format!("has the control character U+{:04X}, which this server does not generate", u32::from(character)),
    )
}

/// The first one in a value.
fn find(value: &Value) -> Option<char> {
    match value {
        Value::String(text) => text.chars().find(|character| is_unwritten(*character)),
        Value::Array(items) => items.iter().find_map(find),
        Value::Object(fields) => fields.values().find_map(find),
        _ => None,
    }
}

/// Rewrites the classes of all patterns.
pub(super) fn remove_from_classes(schema: &mut Value) {
    visit_schemas(schema, "", &mut |schema, _| {
        if let Some(Value::String(pattern)) = schema.get_mut("pattern") {
            *pattern = without_control_characters(pattern);
        }
        if let Some(Value::Object(schemas)) = schema.get_mut("patternProperties") {
            let rewritten: Map<String, Value> = std::mem::take(schemas)
                .into_iter()
                .map(|(pattern, schema)| (without_control_characters(&pattern), schema))
                .collect();
            *schemas = rewritten;
        }
    });
}

fn without_control_characters(pattern: &str) -> String {
    let (mut rewritten, mut at) = (String::with_capacity(pattern.len()), 0);
    for (span, part) in parts(pattern) {
        let Some(class) = part.rewritten() else { continue };
        rewritten.push_str(&pattern[at..span.start.offset]);
        rewritten.push_str(&class);
        at = span.end.offset;
    }
    rewritten.push_str(&pattern[at..]);
    rewritten
}

/// A control character, or a class.
struct Part(ClassUnicode);

impl Part {
    fn contains(&self, character: char) -> bool {
        self.0.ranges().iter().any(|range| (range.start()..=range.end()).contains(&character))
    }

    fn without_unwritten(&self) -> ClassUnicode {
        let mut class = self.0.clone();
        class.difference(&ClassUnicode::new(UNWRITTEN.map(|(from, to)| ClassUnicodeRange::new(from, to))));
        class
    }

    /// A control character, if there is nothing else in it.
    fn needed(&self) -> Option<char> {
        let first = self.0.ranges().first()?.start();
        self.without_unwritten().ranges().is_empty().then_some(first)
    }

    /// The class without control characters, as a pattern. `None` if the compiler reads it as it is meant.
    fn rewritten(&self) -> Option<String> {
        // Only a class with all control characters, and so with the first, allows more than it says.
        let is_meant = !self.contains('\0') || (self.contains('"') && self.contains('\\'));
        if is_meant {
            return None;
        }
        let class = self.without_unwritten();
        Some(Hir::class(Class::Unicode(class)).to_string())
    }
}

/// The control characters and classes of a pattern, in its order. Empty if it is no regular expression of the compiler's kind.
fn parts(pattern: &str) -> Vec<(Span, Part)> {
    let Ok(parsed) = ast::parse::Parser::new().parse(pattern) else { return Vec::new() };
    ast::visit(&parsed, Parts { pattern, found: Vec::new() }).unwrap_or_default()
}

struct Parts<'a> {
    pattern: &'a str,
    found: Vec<(Span, Part)>,
}

impl Visitor for Parts<'_> {
    type Output = Vec<(Span, Part)>;
    type Err = std::convert::Infallible;

    fn finish(self) -> Result<Self::Output, Self::Err> {
        Ok(self.found)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Self::Err> {
        let span = *ast.span();
        let found = match ast {
            Ast::Literal(literal) => is_unwritten(literal.c).then(|| only(literal.c)),
            Ast::ClassUnicode(_) | Ast::ClassBracketed(_) => {
                self.pattern.get(span.start.offset..span.end.offset).and_then(class)
            }
            // The classes `\d`, `\w` and `\s` have other characters, and their complements also the quotation mark.
            _ => None,
        };
        self.found.extend(found.map(|class| (span, Part(class))));
        Ok(())
    }
}

/// The characters of a pattern that matches one.
fn class(part: &str) -> Option<ClassUnicode> {
    // The compiler reads `\d` and `\w` as ASCII.
    match regex_syntax::parse(&llguidance::regex_to_lark(part, "dw")).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        HirKind::Literal(literal) => {
            let character = std::str::from_utf8(&literal.0).ok()?.chars().next()?;
            Some(only(character))
        }
        _ => None,
    }
}

fn only(character: char) -> ClassUnicode {
    ClassUnicode::new([ClassUnicodeRange::new(character, character)])
}
