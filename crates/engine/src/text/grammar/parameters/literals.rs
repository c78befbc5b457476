//! Parameters as Python's keyword arguments, `city="Paris", days=[1, 2]`, or as Gemma writes them, `city:<|"|>Paris<|"|>,days:[1,2]`.
//!
//! Values whose schemas only say what kind of value they are, or which values there are, become rules of such literals. All
//! others are written as JSON, by the compiler of schemas: its strings and numbers are literals of Python with the same
//! meaning. Only lists and dicts that have such a schema as a whole contain `true`, `false` and `null` as JSON writes them,
//! as LFM2's own template writes dicts. Of Gemma's literals, only strings and keys differ from JSON, and its calls are read with
//! both.

use serde_json::{Map, Value, json};

use super::builder::{Builder, MAX_UNDESCRIBED, ParameterGrammar, References, names, references};
use crate::text::grammar::error::GrammarError;
use crate::text::grammar::regex_escape::quote;
use crate::text::grammar::schema;
use crate::text::tools::literals;

/// Max nesting of lists, dicts and unions that are not written as JSON, and max number of them in a request.
const MAX_DEPTH: usize = 8;
const MAX_NESTED: usize = 500;
/// Max schemas that are read for a request, and max rules, with whose square the compiler's time grows.
const MAX_VALUES: usize = 20_000;
const MAX_RULES: usize = 4_096;
/// Max items of a list, fields of a dict and values of an `enum`.
const MAX_ITEMS: u64 = 100;

/// Keywords that say nothing about values.
const ANNOTATIONS: [&str; 14] = [
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "nullable",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords that say something only about strings, numbers, lists or dicts.
const OF_OTHERS: [&str; 22] = [
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
];

/// Parameters that no schema describes.
pub(super) fn undescribed() -> String {
    format!("(literal_argument (LITERAL_COMMA literal_argument){{0,{}}})?", MAX_UNDESCRIBED - 1)
}

impl Builder<'_> {
    /// `pointer`: that of its schema. `None`: it is left out, because the model cannot write its name.
    pub(super) fn literal_parameter(
        &mut self,
        name: &str,
        schema: &Value,
        pointer: &str,
        is_required: bool,
    ) -> Result<Option<String>, GrammarError> {
        if !self.style.can_name(name) {
            if is_required {
                return Err(self.error(pointer, "has a name that cannot be written in this model's format of calls"));
            }
            self.leave_open(self.path(pointer))?;
            return Ok(None);
        }
        let value = self.literal_value(schema, pointer)?;
        Ok(Some(format!("{} {value}", self.style.head(name))))
    }

    /// The expression for the value of a parameter. If a part of it would need copies of definitions, all of it is JSON.
    fn literal_value(&mut self, schema: &Value, pointer: &str) -> Result<String, GrammarError> {
        let ParameterGrammar { rules, schemas, unenforced, .. } = &self.written;
        let before = (rules.len(), schemas.len(), unenforced.len(), self.multiples.clone());
        self.is_json = false;
        let value = self.literal(schema, pointer, 0)?;
        if !self.is_json {
            return Ok(value);
        }
        let ParameterGrammar { rules, schemas, unenforced, .. } = &mut self.written;
        rules.truncate(before.0);
        schemas.truncate(before.1);
        unenforced.truncate(before.2);
        *self.multiples = before.3;
        self.json(schema, pointer)
    }

    /// Items in their order, with commas between them. Those that are not required may be left out.
    pub(super) fn literal_sequence(&mut self, items: &[(String, bool)]) -> String {
        let follow = |(item, required): &(String, bool)| match required {
            true => format!("LITERAL_COMMA {item}"),
            false => format!("(LITERAL_COMMA {item})?"),
        };
        // The first item that is written is one of these, and these items may follow the last one of them.
        let optional = items.iter().take_while(|(_, required)| !required).count();
        let (firsts, others) = items.split_at(items.len().min(optional + 1));
        let mut rest = others.iter().map(follow).collect::<Vec<_>>().join(" ");
        let mut alternatives = Vec::new();
        for (place, (item, required)) in firsts.iter().enumerate().rev() {
            if place == 0 {
                alternatives.push(format!("{item} {rest}"));
                break;
            }
            let first = self.rule(&format!("{item} {rest}"));
            rest = match required {
                true => format!("LITERAL_COMMA {first}"),
                false => self.rule(&format!("LITERAL_COMMA {first} | {rest}")),
            };
            alternatives.push(first);
        }
        let any = format!("({})", alternatives.join(" | "));
        if optional == items.len() { format!("{any}?") } else { any }
    }

    /// The expression for values of a schema.
    fn literal(&mut self, schema: &Value, pointer: &str, depth: usize) -> Result<String, GrammarError> {
        self.budget.values += 1;
        if self.is_json {
            return Ok(String::new());
        }
        if self.budget.values > MAX_VALUES && depth > 0 {
            self.is_json = true;
            return Ok(String::new());
        }
        if self.budget.values > MAX_VALUES {
            self.leave_open(self.path(pointer))?;
            return Ok("literal_value".to_owned());
        }
        if let Some(expression) = self.structure(schema, pointer, depth)? {
            return Ok(expression);
        }
        if depth > 0 && (schema == &json!(false) || references(schema) != References::None) {
            self.is_json = true;
            return Ok(String::new());
        }
        self.json(schema, pointer)
    }

    /// The expression for values of a schema that needs no more than literals.
    fn structure(&mut self, schema: &Value, pointer: &str, depth: usize) -> Result<Option<String>, GrammarError> {
        let fields = match schema {
            Value::Bool(true) => return Ok(Some("literal_value".to_owned())),
            Value::Object(fields) => fields,
            _ => return Ok(None),
        };
        let has_only = |keywords: &[&str]| {
            fields.keys().all(|key| ANNOTATIONS.contains(&key.as_str()) || keywords.contains(&key.as_str()))
        };
        if has_only(&[]) {
            return Ok(Some("literal_value".to_owned()));
        }
        if let (Some(reference), true) = (fields.get("$ref").and_then(Value::as_str), has_only(&["$ref"])) {
            let target = schema::resolve(self.root, reference).filter(|_| self.may_nest(depth));
            return target.map_or(Ok(None), |target| self.literal(target, pointer, depth + 1).map(Some));
        }
        if let Some(values) = values(fields) {
            return Ok(if has_only(&["type", "enum", "const"]) { self.choice(&values) } else { None });
        }
        if let (Some(Value::Array(all)), true) = (fields.get("anyOf"), has_only(&["anyOf"])) {
            let pointer = schema::child(pointer, "anyOf");
            let one = |(index, one): (usize, &Value)| (one.clone(), schema::child(&pointer, &index.to_string()));
            return self.alternatives(all.iter().enumerate().map(one), depth);
        }
        match fields.get("type") {
            // There are seven types.
            Some(Value::Array(types)) if types.len() <= 7 && self.budget.may_copy(schema, types.len()) => {
                let of_type = |name: &Value| {
                    let mut fields = fields.clone();
                    fields.insert("type".to_owned(), name.clone());
                    (Value::Object(fields), pointer.to_owned())
                };
                self.alternatives(types.iter().map(of_type), depth)
            }
            Some(Value::String(kind)) => {
                let is_plain = has_only(&["type"]);
                let is_any = has_only(&[&["type"], &OF_OTHERS[..]].concat());
                let rule = match kind.as_str() {
                    "null" if is_any => self.style.null(),
                    "boolean" if is_any => "LITERAL_BOOLEAN",
                    "string" if is_plain => "literal_string",
                    "integer" if is_plain => "LITERAL_INTEGER",
                    "number" if is_plain => "LITERAL_NUMBER",
                    "array" if has_only(&["type", "items", "minItems", "maxItems"]) => {
                        return self.list(fields, pointer, depth);
                    }
                    "object" if has_only(&["type", "properties", "required", "additionalProperties"]) => {
                        return self.dict(fields, pointer, depth);
                    }
                    _ => return Ok(None),
                };
                Ok(Some(rule.to_owned()))
            }
            _ => Ok(None),
        }
    }

    /// Counts a value that contains others. False: it is one too many.
    fn may_nest(&mut self, depth: usize) -> bool {
        self.budget.nested += 1;
        depth < MAX_DEPTH && self.budget.nested <= MAX_NESTED
    }

    /// One of these values.
    fn choice(&mut self, values: &[&Value]) -> Option<String> {
        let is_short = values.len() as u64 <= MAX_ITEMS;
        if values.is_empty() || !is_short || !self.has_rules(1) || !values.iter().all(|value| schema::is_written(value))
        {
            return None;
        }
        if self.style.is_gemma() {
            return self.gemma_choice(values);
        }
        let literals = values.iter().flat_map(|value| match value.as_str() {
            Some(text) => spellings(text),
            None => vec![literals::literal(value)],
        });
        let literals: Vec<String> = literals.map(|literal| quote(&literal)).collect();
        // One terminal, as the lexer has limits for terminals that may come next.
        Some(self.define("LITERAL", &literals.join(" | ")))
    }

    fn gemma_choice(&mut self, values: &[&Value]) -> Option<String> {
        if values.iter().any(|value| value.is_array() || value.is_object()) {
            return None;
        }
        let (texts, others): (Vec<&Value>, Vec<&Value>) = values.iter().copied().partition(|value| value.is_string());
        let mut alternatives: Vec<String> = others.iter().map(|value| quote(&value.to_string())).collect();
        if !texts.is_empty() {
            let texts: Vec<String> = texts.iter().filter_map(|text| text.as_str()).map(quote).collect();
            let (quotes, text) = (self.style.quotes(), self.define("LITERAL", &texts.join(" | ")));
            alternatives.push(format!("{quotes} {text} {quotes}"));
        }
        Some(format!("({})", alternatives.join(" | ")))
    }

    fn alternatives(
        &mut self,
        all: impl ExactSizeIterator<Item = (Value, String)>,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        if all.len() as u64 > MAX_ITEMS || !self.may_nest(depth) {
            return Ok(None);
        }
        let mut found = Vec::new();
        for (schema, pointer) in all {
            found.push(self.literal(&schema, &pointer, depth + 1)?);
        }
        Ok((!found.is_empty()).then(|| format!("({})", found.join(" | "))))
    }

    fn list(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let any = json!(true);
        let items = fields.get("items").unwrap_or(&any);
        let count = |name: &str| fields.get(name).map(|count| count.as_u64().unwrap_or(u64::MAX));
        let (min, max) = (count("minItems").unwrap_or(0), count("maxItems"));
        if !(items.is_object() || items == &any)
            || min > MAX_ITEMS
            || max.is_some_and(|max| max > MAX_ITEMS || max < min)
            || !self.has_rules(2)
            || !self.may_nest(depth)
        {
            return Ok(None);
        }
        if max == Some(0) {
            return Ok(Some("\"[]\"".to_owned()));
        }
        let item = self.literal(items, &schema::child(pointer, "items"), depth + 1)?;
        let item = self.rule(&item);
        let more = min.saturating_sub(1);
        let others = match max {
            Some(1) => String::new(),
            Some(max) => format!("(LITERAL_COMMA {item}){{{more},{}}}", max - 1),
            None => format!("(LITERAL_COMMA {item}){{{more},}}"),
        };
        let items = format!("({item} {others}){}", if min == 0 { "?" } else { "" });
        Ok(Some(self.rule(&format!("\"[\" {items} \"]\""))))
    }

    fn dict(
        &mut self,
        fields: &Map<String, Value>,
        pointer: &str,
        depth: usize,
    ) -> Result<Option<String>, GrammarError> {
        let count = fields.get("properties").and_then(Value::as_object).map_or(0, Map::len);
        if !self.has_rules(2 * count + 2) || !self.may_nest(depth) {
            return Ok(None);
        }
        let others = fields.get("additionalProperties");
        let required = names(fields.get("required"));
        let properties = fields.get("properties").and_then(Value::as_object).filter(|all| !all.is_empty());
        let Some(properties) = properties else {
            return match others {
                _ if !required.is_empty() => Ok(None),
                None | Some(Value::Bool(true)) => Ok(Some("literal_dict".to_owned())),
                Some(Value::Bool(false)) => Ok(Some("\"{}\"".to_owned())),
                Some(values) => {
                    let value = self.literal(values, &schema::child(pointer, "additionalProperties"), depth + 1)?;
                    let key = if self.style.is_gemma() { "LITERAL_NAME \":\"" } else { "literal_string \": \"" };
                    let field = self.rule(&format!("{key} {value}"));
                    Ok(Some(self.rule(&format!("\"{{\" ({field} (LITERAL_COMMA {field})*)? \"}}\""))))
                }
            };
        };
        let is_closed = matches!(others, None | Some(Value::Bool(false)));
        if !is_closed
            || properties.len() as u64 > MAX_ITEMS
            || required.iter().any(|name| !properties.contains_key(*name))
            || properties.keys().any(|name| !self.can_be_key(name))
        {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (name, value) in self.style.ordered(properties) {
            let value = self.literal(value, &schema::child(&schema::child(pointer, "properties"), name), depth + 1)?;
            let keys = match self.style.is_gemma() {
                true => vec![self.style.head(name)],
                false => spellings(name).iter().map(|key| quote(&format!("{key}: "))).collect(),
            };
            all.push((format!("({}) {value}", keys.join(" | ")), required.contains(&name.as_str())));
        }
        let fields = self.literal_sequence(&all);
        Ok(Some(self.rule(&format!("\"{{\" {fields} \"}}\""))))
    }

    fn can_be_key(&self, name: &str) -> bool {
        if self.style.is_gemma() { self.style.can_name(name) } else { schema::is_written(&json!(name)) }
    }

    /// True if the request may have so many more rules.
    pub(super) fn has_rules(&self, count: usize) -> bool {
        self.budget.rules + count <= MAX_RULES
    }

    /// Adds a rule. Returns its name.
    fn rule(&mut self, expression: &str) -> String {
        self.define("literal", expression)
    }

    /// Adds a rule or a terminal, by the case of its name.
    fn define(&mut self, name: &str, expression: &str) -> String {
        let name = format!("{name}_{}_{}", self.index, self.rules);
        self.rules += 1;
        self.budget.rules += 1;
        self.written.rules.push_str(&format!("{name}: {expression}\n"));
        name
    }
}

/// The values of a `const` or an `enum` that the type allows, if there is one of them.
fn values(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    let all = match (fields.get("const"), fields.get("enum")) {
        (Some(value), None) => vec![value],
        (None, Some(Value::Array(values))) => values.iter().collect(),
        (None, None) => return None,
        _ => Vec::new(),
    };
    let types = match fields.get("type") {
        None => return Some(all),
        Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
        Some(kind) => vec![kind.as_str().unwrap_or_default()],
    };
    let is_allowed = |value: &&Value| {
        types.iter().any(|kind| match *kind {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => false,
        })
    };
    Some(all.into_iter().filter(is_allowed).collect())
}

/// A string in both kinds of quotes, or in double ones if the other ones need escapes.
fn spellings(text: &str) -> Vec<String> {
    let double = Value::from(text).to_string();
    let is_plain = double.len() == text.len() + 2 && !text.contains('\'');
    let single = is_plain.then(|| format!("'{text}'"));
    [double].into_iter().chain(single).collect()
}
