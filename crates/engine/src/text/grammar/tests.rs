//! Tests which output with tools the grammar accepts, byte by byte, and that the call parser agrees.

use std::sync::{Arc, LazyLock};

use llguidance::{Matcher, ParserFactory};
use proptest::prelude::*;
use serde_json::json;
use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

use super::{compile, factory, parse, source};
use crate::text::tools::{CallFormat, CallParser, CallSyntax, InputFormat, OutputSpec, TextFormat, Tool};

/// A vocabulary with one token per byte, an end-of-sequence token and these words.
const END: u32 = 256;
const WORDS: [&str; 4] = [
    "\n\n```json\n{\n    \"name\": \"look_up_",
    "{\"name\": \"list_11\", \"arguments\": {\"city",
    "```\n{ \"name\" : \"make_14\" , \"parameters\" : {",
    "  {  {  \"name\":  \"make_1",
];

static FACTORY: LazyLock<ParserFactory> = LazyLock::new(|| {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let words = WORDS.map(|word| word.as_bytes().to_vec());
    let words: Vec<Vec<u8>> = bytes.chain([vec![TokTrie::SPECIAL_TOKEN_MARKER, b'e']]).chain(words).collect();
    let trie = TokTrie::from(&TokRxInfo::new(END + 1 + WORDS.len() as u32, END), &words);
    let environment: toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    factory(&environment).unwrap()
});

fn syntax(format: CallFormat, parallel: bool) -> CallSyntax {
    let tool = |name: &str, parameters| {
        let function = json!({ "name": name, "parameters": parameters });
        Tool {
            name: name.to_owned(),
            definition: json!({ "type": "function", "function": function }),
            strict: true,
            input: None,
        }
    };
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
        "additionalProperties": false });
    let callable = vec![(0, tool("get_weather", city)), (1, tool("get", json!({ "type": "object" })))];
    CallSyntax {
        format,
        control_tokens: Vec::new(),
        callable,
        call_required: false,
        free_text: true,
        bare: format.notation().allows_bare_calls(),
        parallel,
    }
}

fn matcher(syntax: &CallSyntax) -> Matcher {
    let tools = syntax.callable.iter().map(|(_, tool)| tool.clone()).collect();
    parse(&FACTORY, &source::build(&OutputSpec { tools, ..OutputSpec::default() }, Some(syntax)).unwrap(), None)
        .unwrap()
}

/// The number of accepted bytes of a text of this format, and whether it may end after them.
pub(super) fn accepted_text(format: TextFormat, text: &str) -> (usize, bool) {
    let spec = OutputSpec { text: format, ..OutputSpec::default() };
    let mut matcher = parse(&FACTORY, &source::build(&spec, None).unwrap(), None).unwrap();
    read(&mut matcher, text)
}

fn read(matcher: &mut Matcher, text: &str) -> (usize, bool) {
    for (at, byte) in text.bytes().enumerate() {
        if !allows(matcher, byte.into()) {
            return (at, false);
        }
        matcher.consume_token(byte.into()).unwrap();
    }
    (text.len(), allows(matcher, END))
}

fn allows(matcher: &mut Matcher, token: u32) -> bool {
    matcher.compute_mask_or_eos().unwrap().is_allowed(token)
}

/// The number of accepted bytes of the text, and whether the output may end after them.
fn accepted(format: CallFormat, parallel: bool, text: &str) -> (usize, bool) {
    read(&mut matcher(&syntax(format, parallel)), text)
}

fn is_whole(text: &str) -> bool {
    accepted(CallFormat::Hermes, true, text) == (text.len(), true)
}

#[test]
fn calls_without_an_opening_match_their_schema() {
    for lead in ["", " \n", "```json\n", "```\n", "\n```json \r\n\t", "{"] {
        for (blank, key) in [("", "arguments"), (" ", "parameters"), ("\n  ", "arguments")] {
            let head = format!("{lead}{{{blank}\"name\":{blank}\"get_weather\",{blank}\"{key}\":{blank}");
            for format in [CallFormat::Hermes, CallFormat::Mistral, CallFormat::Granite3, CallFormat::Nemotron2] {
                let call = format!("{head}{{\"city\": \"Paris\"{blank}}}{blank}}}");
                assert_eq!(accepted(format, true, &call), (call.len(), true), "{call:?}");
                for wrong in ["5", "{\"town\"", "{\"city\": 5", "{}", "\"{", "{\"city\": \"Paris\"}, "] {
                    let refused = accepted(format, true, &format!("{head}{wrong}")).0;
                    assert!(
                        refused >= head.len() && refused < head.len() + wrong.len(),
                        "{head:?} {wrong:?} {refused}"
                    );
                }
            }
        }
    }
}

#[test]
fn text_that_resembles_a_call_is_free_text() {
    let texts = [
        "",
        "```",
        "```json\n{\"name\": \"find\", \"arguments\": 5}\n```",
        "{\"name\": \"get_weather\", \"description\": 5",
        "{\"name\": \"get_weather_now\", \"arguments\": 5",
        "{\"name\": \"get _weather\", \"arguments\": 5",
        "{\"arguments\": 5, \"name\": \"get_weather\"}",
        "[1, {\"name\": \"get_weather\", \"arguments\": 5}]",
        "```python\n{\"name\": \"get_weather\", \"arguments\": 5}",
        "Like so: {\"name\": \"get_weather\", \"arguments\": 5}",
        "``` json\n{\"name\": \"get_weather\", \"arguments\": 5}",
    ];
    for text in texts {
        assert!(is_whole(text), "{text:?}");
    }
}

#[test]
fn parallel_calls_follow_each_other_with_fences_between() {
    let call = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}";
    for between in ["\n", "\n```\n```json\n", "\n```\n\n", " "] {
        let both = format!("{call}{between}{call}");
        assert!(is_whole(&both) && is_whole(&both.replace("{\"name", "```json\n{\"name")), "{both:?}");
        let wrong = both.replace("{\"city\": \"Oslo\"}", "{\"city\": \"Oslo\"").replacen("\"}", "\"}}", 1);
        assert!(!is_whole(&wrong), "{wrong:?}");
        assert!(!is_whole(&format!("{call}{between}{{\"name\": \"get_weathe")));
        assert!(!is_whole(&format!("{call}{between}{{\"name\": \"other\", ")));
        let single = accepted(CallFormat::Hermes, false, &both);
        assert!(!single.1 && single.0 < both.len(), "{single:?}");
    }
    assert!(is_whole(&format!("{call}\n```\nThat is {{\"it\": 1}}.")));
    let calls = |count: usize| vec![call; count].join("\n");
    assert!(is_whole(&calls(16)) && !is_whole(&calls(17)));
}

/// The start of a call, and strings with which to corrupt it.
const CALL: [&str; 9] = ["```json", "\n", "{", "\"name\"", ": ", "\"get\"", ",\n", "\"arguments\"", ":"];
const PIECES: [&str; 14] = [
    "```",
    "json",
    "\n",
    " ",
    "\t\r",
    "{",
    "\"",
    "\"name\"",
    "\"parameters\"",
    "\"get_weather\"",
    ",",
    ":",
    "x",
    "<tool_call>",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn grammar_and_parser_agree_on_where_a_call_begins(
        from in prop::sample::select(vec![0usize, 2]),
        changes in prop::collection::vec((0usize..9, prop::option::of(prop::sample::select(PIECES.to_vec())), any::<bool>()), 0..3),
        parallel: bool,
    ) {
        let mut pieces = CALL[from..].to_vec();
        for (at, piece, keep) in changes {
            let at = at.min(pieces.len() - 1);
            pieces.splice(at..at + usize::from(!keep), piece);
            prop_assume!(!pieces.is_empty());
        }
        let syntax = syntax(CallFormat::Hermes, parallel);
        let (mut matcher, mut parser) = (matcher(&syntax), CallParser::new(Arc::new(syntax)));
        for ch in pieces.concat().chars() {
            let byte = ch as u32;
            if !allows(&mut matcher, byte) {
                prop_assert!(parser.is_calling());
                break;
            }
            matcher.consume_token(byte).unwrap();
            parser.push(0, &ch.to_string());
            prop_assert_eq!(parser.is_calling(), !allows(&mut matcher, u32::from(b'z')), "at {:?} of {:?}", ch, pieces.concat());
        }
    }
}

#[test]
fn multiples_are_exact_with_and_without_a_point() {
    let both = json!({ "type": "integer", "allOf": [{ "multipleOf": 60 }, { "multipleOf": 7 }] });
    let cases = [
        (json!({ "type": "integer", "multipleOf": 9_973 }), vec!["0", "9973", "-19946"], vec!["1", "9974", "99730.0"]),
        (json!({ "type": "number", "multipleOf": 0.05 }), vec!["0", "3", "0.1", "-0.15", "7.95"], vec!["0.01", "0.12"]),
        (json!({ "type": "number", "multipleOf": 0.000_000_01 }), vec!["5", "0.12345678"], vec!["0.123456789"]),
        (both, vec!["0", "420", "-840"], vec!["60", "7", "421"]),
    ];
    for (schema, right, wrong) in cases {
        let spec =
            OutputSpec { text: TextFormat::Schema { schema: schema.clone(), strict: true }, ..OutputSpec::default() };
        let matcher = parse(&FACTORY, &source::build(&spec, None).unwrap(), None).unwrap();
        let whole = |text: &str| {
            let mut matcher = matcher.deep_clone();
            text.bytes().all(|byte| allows(&mut matcher, byte.into()) && matcher.consume_token(byte.into()).is_ok())
                && allows(&mut matcher, END)
        };
        assert!(right.iter().all(|text| whole(text)) && !wrong.iter().any(|text| whole(text)), "{schema}");
    }
}

/// Compiles a schema that is not strict. Returns what is left open, and which of the texts the grammar accepts.
fn accepts(schema: serde_json::Value, texts: &[&str]) -> (Vec<String>, Vec<bool>) {
    let spec = OutputSpec { text: TextFormat::Schema { schema, strict: false }, ..OutputSpec::default() };
    let compiled = compile(&FACTORY, source::build(&spec, None).unwrap()).unwrap();
    let matcher = compiled.matcher.lock().unwrap();
    let is_whole = |text: &&str| {
        let mut matcher = matcher.deep_clone();
        text.bytes().all(|byte| allows(&mut matcher, byte.into()) && matcher.consume_token(byte.into()).is_ok())
            && allows(&mut matcher, END)
    };
    (compiled.unenforced.into_iter().map(|part| part.path).collect(), texts.iter().map(is_whole).collect())
}

#[test]
fn bounds_between_multiples_are_those_of_the_next_multiples() {
    for (schema, right, wrong) in [
        (json!({ "multipleOf": 0.1, "minimum": 0.15, "maximum": 0.25 }), vec!["0.2"], vec!["0.1", "0.3"]),
        (json!({ "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.45 }), vec!["0.3", "0.4"], vec!["0.2", "0.5"]),
        (json!({ "multipleOf": 0.1, "minimum": -0.25, "maximum": -0.15 }), vec!["-0.2"], vec!["-0.1", "0.2"]),
        (json!({ "multipleOf": 0.01, "minimum": 19.99, "maximum": 19.995 }), vec!["19.99"], vec!["19.98", "20"]),
        (json!({ "multipleOf": 0.01, "minimum": 0.29, "maximum": 0.29 }), vec!["0.29"], vec!["0.28"]),
        (json!({ "multipleOf": 0.5, "exclusiveMinimum": 1, "exclusiveMaximum": 2 }), vec!["1.5"], vec!["1", "2"]),
        (json!({ "multipleOf": 5, "minimum": 11, "exclusiveMaximum": 25 }), vec!["15", "20"], vec!["10", "25"]),
        (
            json!({ "type": ["number", "null"], "multipleOf": 10, "minimum": 5, "maximum": 15 }),
            vec!["10", "null"],
            vec!["5", "20"],
        ),
        (json!({ "multipleOf": 3, "minimum": -4 }), vec!["-3", "0", "9"], vec!["-6", "1"]),
    ] {
        let mut number = json!({ "type": "number" });
        number.as_object_mut().unwrap().extend(schema.as_object().unwrap().clone());
        let texts: Vec<&str> = right.iter().chain(&wrong).copied().collect();
        let expected: Vec<bool> = right.iter().map(|_| true).chain(wrong.iter().map(|_| false)).collect();
        assert_eq!(accepts(number, &texts), (vec![], expected), "{schema}");
    }
}

#[test]
fn what_does_not_compile_is_left_open_and_the_rest_enforced() {
    let property = |schema| json!({ "type": "object", "properties": { "a": schema, "b": { "type": "integer" } }, "required": ["a", "b"] });
    let cases = [
        // Look-around beside a format: the format is enforced.
        (
            property(json!({ "type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+@[a-z.]+$" })),
            vec![".properties.a.pattern"],
            vec![(r#"{"a":"x@y.org","b":1}"#, true), (r#"{"a":"x","b":1}"#, false)],
        ),
        // Alternatives that may both match.
        (
            property(
                json!({ "oneOf": [{ "type": "integer", "minimum": 0 }, { "type": "integer", "maximum": 9 }, { "type": "string" }] }),
            ),
            vec![".properties.a.oneOf"],
            vec![(r#"{"a":5,"b":1}"#, true), (r#"{"a":"x","b":1}"#, true), (r#"{"a":null,"b":1}"#, false)],
        ),
        // zod's uuid: a pattern and the format that it implies.
        (
            property(
                json!({ "type": "string", "format": "uuid", "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$" }),
            ),
            vec![],
            vec![
                (r#"{"a":"123e4567-e89b-12d3-a456-426614174000","b":1}"#, true),
                (r#"{"a":"123e4567-e89b-92d3-a456-426614174000","b":1}"#, false),
            ],
        ),
        // A number of properties that cannot be counted.
        (
            json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": {}, "c": {} }, "maxProperties": 2 }),
            vec![".maxProperties"],
            vec![(r#"{"a":1,"b":2,"c":3}"#, true), (r#"{"a":"x"}"#, false)],
        ),
        // Bounds that the compiler's integers cannot hold.
        (
            property(json!({ "type": "number", "minimum": -1e20, "maximum": 1e20 })),
            vec![".properties.a.maximum", ".properties.a.minimum"],
            vec![(r#"{"a":1.5,"b":1}"#, true), (r#"{"a":"x","b":1}"#, false), (r#"{"a":1.5,"b":"x"}"#, false)],
        ),
        // What a reference leads to is named once.
        (
            json!({ "oneOf": [{ "$ref": "#/$defs/x" }, { "type": "null" }],
                "$defs": { "x": { "type": "string", "pattern": "^(?!a)[a-z]+$" } } }),
            vec![".$defs.x.pattern"],
            vec![(r#""b""#, true), ("null", true), ("1", false)],
        ),
        // Names in an enum.
        (
            json!({ "type": "object", "propertyNames": { "$ref": "#/$defs/color" }, "additionalProperties": { "type": "integer" },
                "$defs": { "color": { "title": "Color", "type": "string", "enum": ["red", "blue"] } } }),
            vec![],
            vec![
                (r#"{"red":1,"blue":2}"#, true),
                (r#"{"blue":2}"#, true),
                (r#"{"green":1}"#, false),
                (r#"{"red":"x"}"#, false),
            ],
        ),
    ];
    for (schema, paths, texts) in cases {
        let (unenforced, accepted) = accepts(schema.clone(), &texts.iter().map(|(text, _)| *text).collect::<Vec<_>>());
        assert_eq!(unenforced, paths, "{schema}");
        assert_eq!(accepted, texts.iter().map(|(_, accepted)| *accepted).collect::<Vec<_>>(), "{schema}");
    }
}

#[test]
fn control_characters_without_a_short_escape_are_left_open_and_no_class_has_more_than_it_says() {
    let constant = |schema| accepts(schema, &[]).0;
    assert_eq!(constant(json!({ "const": "a\u{1}b" })), [".const"]);
    assert_eq!(constant(json!({ "enum": ["a", { "b": ["\u{7f}"] }] })), [".enum"]);
    assert!(constant(json!({ "const": "a\tb\n\"\\" })).is_empty());
    for pattern in ["^\\x00$", "^a\\v$", "^[\\x00-\\x07]+$", "\u{1}", "^(a|\\x{b})$"] {
        assert_eq!(constant(json!({ "type": "string", "pattern": pattern })), [".pattern"], "{pattern}");
    }
    assert_eq!(constant(json!({ "type": "string", "pattern": "(?i)^[^A\"]$" })), [".pattern"]);
    for (pattern, right, wrong) in [
        ("^[^\"]{3}$", vec!["abc", "a\nb", "\\\\\\", "äöü"], vec!["a\"b", "ab"]),
        ("^[^\\\\]{2}$", vec!["ab", "\"\""], vec!["a\\"]),
        ("^[^\\x00-\\x1f\"]+$", vec!["ab"], vec!["a\"b", "a\nb"]),
        ("^[^\\n\"]$", vec!["a", "\t", "\\"], vec!["\n", "\""]),
        ("^[\\x00-\\x1f]$", vec!["\n", "\t"], vec!["\\", "\"", "a"]),
        ("^[^a]$", vec!["\"", "\\", "\n", "b"], vec!["a"]),
        ("^[\\s\\v]\\S$", vec![" a", "\n\""], vec!["a "]),
        ("^[\\w\\s]+$", vec!["a b"], vec!["ä"]),
        ("^[^\\w\"]$", vec!["ä", "-"], vec!["a", "\""]),
        ("(?i)^a\\s+b$", vec!["A B"], vec!["ab"]),
        ("^.\\D\\W$", vec!["\"\"\"", "a\\\\"], vec!["\na-", "a1-"]),
    ] {
        let texts: Vec<String> = right.iter().chain(&wrong).map(|text| json!(text).to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (unenforced, accepted) = accepts(json!({ "type": "string", "pattern": pattern }), &texts);
        let expected: Vec<bool> = right.iter().map(|_| true).chain(wrong.iter().map(|_| false)).collect();
        assert_eq!((unenforced, accepted), (vec![], expected), "{pattern} {texts:?}");
    }
    let names = json!({ "type": "object", "patternProperties": { "^[^\"]$": {} }, "additionalProperties": false });
    assert_eq!(accepts(names, &[r#"{"a":1}"#, r#"{"\"":1}"#]).1, [true, false]);
    let names = json!({ "type": "object", "patternProperties": { "^a\\x01.*$": {} }, "additionalProperties": false });
    assert!(!constant(names).is_empty());
}

/// The matcher of a schema after `text`.
fn matcher_after(schema: serde_json::Value, text: &str) -> Matcher {
    let spec = OutputSpec { text: TextFormat::Schema { schema, strict: false }, ..OutputSpec::default() };
    let compiled = compile(&FACTORY, source::build(&spec, None).unwrap()).unwrap();
    assert!(compiled.unenforced.is_empty(), "{:?}", compiled.unenforced);
    let mut matcher = compiled.matcher.lock().unwrap().deep_clone();
    for byte in text.bytes() {
        assert!(allows(&mut matcher, byte.into()), "{byte}");
        matcher.consume_token(byte.into()).unwrap();
    }
    matcher
}

/// Otherwise, generation would stop there with an error.
#[test]
fn no_comma_follows_the_last_possible_property() {
    let number = json!({ "type": "number" });
    for schema in [
        json!({ "type": "object", "propertyNames": { "enum": ["a", "b"] }, "additionalProperties": number, "required": ["a", "b"] }),
        json!({ "type": "object", "patternProperties": { "^(a|b)$": number }, "additionalProperties": false, "required": ["a", "b"] }),
        json!({ "type": "object", "propertyNames": { "pattern": "^[ab]$" }, "additionalProperties": number }),
    ] {
        let mut matcher = matcher_after(schema.clone(), r#"{"a":1,"b":2.5"#);
        assert!(allows(&mut matcher, b'}'.into()) && !allows(&mut matcher, b','.into()), "{schema}");
    }
}

#[test]
fn the_maximum_number_of_optional_properties_stays_within_the_step_limits() {
    let properties: serde_json::Map<_, _> =
        (0..500).map(|at| (format!("rule-{at}"), json!({ "type": "boolean" }))).collect();
    let schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let mut matcher = matcher_after(schema, r#"{"rule-0": true, "rule-7":false,"rule-498":true"#);
    assert!(allows(&mut matcher, b','.into()) && allows(&mut matcher, b'}'.into()));
}

/// The max number of tools of a request.
fn many() -> CallSyntax {
    let mut syntax = syntax(CallFormat::Hermes, true);
    let (_, one) = syntax.callable[0].clone();
    let more =
        (2..128).map(|at| (at, Tool { name: format!("{}_{at}", ["look_up", "list", "make"][at % 3]), ..one.clone() }));
    syntax.callable.extend(more);
    syntax
}

#[test]
fn the_maximum_number_of_tools_stays_within_the_step_limits() {
    let mut matcher = matcher(&many());
    for (word, id) in WORDS.into_iter().zip(END + 1..) {
        assert!(allows(&mut matcher, id), "{word}");
    }
    for byte in "```json\n{\n  \"name\": \"look_up_99\",\n  \"arguments\": {\"city\": \"Rome\"}}".bytes() {
        assert!(allows(&mut matcher, byte.into()), "{byte}");
        matcher.consume_token(byte.into()).unwrap();
    }
    assert!(allows(&mut matcher, END));
}

#[test]
fn parameters_between_tags_match_their_schemas() {
    let format = CallFormat::Qwen3Coder;
    let written = |name: &str, parameters: &str| {
        format!("Let me <see.\n<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    };
    let parameter = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let schema = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "unit": { "anyOf": [{ "$ref": "#/$defs/unit" }, { "type": "null" }] },
            "note": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
            "days": { "type": "array", "items": { "$ref": "#/$defs/day" } },
        },
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": { "day": { "type": "integer" }, "unit": { "enum": ["C", "F"] } },
    });
    let mut one = syntax(format, true);
    one.callable[0].1.definition = json!({ "function": { "name": "get_weather", "parameters": schema } });
    one.callable[1].1.definition = json!({ "function": { "name": "get" } });
    let check = |text: &str| read(&mut matcher(&one), text);
    let city = parameter("city", "St.\n\"<parameter=x>");
    for parameters in [
        city.clone() + &parameter("unit", "F") + &parameter("note", "x </parameter> x") + &parameter("days", "[1, 2]"),
        "<parameter=city>\n</parameter>\n".to_owned() + &parameter("unit", "null") + &parameter("days", "[1, 2]"),
        city.clone() + &parameter("days", "[]"),
    ] {
        let call = written("get_weather", &parameters);
        assert_eq!(check(&call), (call.len(), true), "{call}");
        let two = format!("{call}\n<tool_call>\n<function=get>\n</function>\n</tool_call>");
        assert_eq!(check(&two), (two.len(), true));
    }
    for (parameters, part) in [
        (city.clone(), "/function>"),
        (city.clone() + &parameter("days", "[1.5]"), ".5"),
        (city.clone() + &parameter("unit", "K"), "K"),
        (parameter("town", "x"), "town"),
        (parameter("days", "[]"), "days"),
    ] {
        let call = written("get_weather", &parameters);
        assert_eq!(check(&call), (call.rfind(part).unwrap(), false), "{call}");
    }
    let free = "Text with <function=get> and </tool_call>";
    assert_eq!(check(free), (free.len(), true));
}

#[test]
fn keys_and_values_between_tags_match_their_schemas() {
    let schema = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "unit": { "enum": ["C", "F"] },
            "days": { "type": "array", "items": { "type": "integer" } },
        },
        "required": ["city", "days"],
    });
    for (format, line) in [(CallFormat::Glm45, "\n"), (CallFormat::Glm47, "")] {
        let key =
            |name: &str, value: &str| format!("<arg_key>{name}</arg_key>{line}<arg_value>{value}</arg_value>{line}");
        let call = |name: &str, arguments: &str| format!("<tool_call>{name}{line}{arguments}</tool_call>");
        let mut syntax = syntax(format, true);
        syntax.callable[0].1.definition = json!({ "function": { "name": "get_weather", "parameters": schema } });
        syntax.callable[1].1.definition = json!({ "function": { "name": "get" } });
        let check = |text: &str| read(&mut matcher(&syntax), text);
        let city = key("city", "St.\n\"<arg_key> < x");
        for arguments in
            [city.clone() + &key("unit", "F") + &key("days", "[1, 2]"), key("city", "") + &key("days", "[]")]
        {
            let one = format!("Let me <see.\n{}", call("get_weather", &arguments));
            assert_eq!(check(&one), (one.len(), true), "{one}");
            let two = format!("{one}{line}{}", call("get", ""));
            assert_eq!(check(&two), (two.len(), true), "{two}");
        }
        for (arguments, part) in [
            (city.clone(), "/tool_call>"),
            (city.clone() + &key("days", "[1.5]"), ".5"),
            (city.clone() + &key("unit", "K"), "K"),
            (key("town", "x"), "town"),
        ] {
            let refused = call("get_weather", &arguments);
            assert_eq!(check(&refused), (refused.rfind(part).unwrap(), false), "{refused}");
        }
    }
}

#[test]
fn what_tags_cannot_enforce_is_reported_or_refused() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "string", "pattern": "x" }, "b": {}, "c": { "type": "array", "uniqueItems": true } },
        "minProperties": 1,
    });
    let build = |strict| {
        let mut syntax = syntax(CallFormat::Qwen3Coder, true);
        syntax.callable.truncate(1);
        (syntax.callable[0].1.definition, syntax.callable[0].1.strict) =
            (json!({ "function": { "parameters": schema } }), strict);
        source::build(&OutputSpec::default(), Some(&syntax))
    };
    let paths: Vec<String> = build(false).unwrap().unenforced().into_iter().map(|part| part.path).collect();
    assert_eq!(paths, [".properties.c.uniqueItems", ".minProperties", ".properties.a.pattern", ".properties.b"]);
    assert!(build(true).is_err());
}

#[test]
fn calls_are_a_list_of_json_after_a_marker() {
    for (format, opening, closing) in [
        (CallFormat::Mistral, "[TOOL_CALLS] [", "]"),
        (CallFormat::Granite3, "<|tool_call|>[", "]"),
        (CallFormat::Granite3, "<tool_call>[", "]"),
        (CallFormat::Nemotron2, "<TOOLCALL>[", "]</TOOLCALL>"),
    ] {
        let one = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}";
        for text in [format!("{opening}{one}{closing}"), format!("Text {opening}{one}, {one}{closing}")] {
            assert_eq!(accepted(format, true, &text), (text.len(), true), "{text}");
            let other = text.replace("city", "town");
            assert_eq!(accepted(format, true, &other), (other.find("town").unwrap(), false), "{other}");
        }
        let after = format!("{opening}{one}{closing}x");
        assert_eq!(accepted(format, true, &after).0, after.len() - 1);
        let free = "Text with [{\"name\": \"get_weather\"}] and tool_call";
        assert_eq!(accepted(format, true, free), (free.len(), true));
    }
}

#[test]
fn calls_are_a_name_and_arguments_between_markers() {
    let call = |id: &str| format!("[TOOL_CALLS]get_weather{id}[ARGS]{{\"city\": \"Oslo\"}}");
    for id in ["", "[CALL_ID]0aB345678"] {
        for text in [call(id), format!("Text {}[TOOL_CALLS]get[ARGS]{{}}", call(id))] {
            assert_eq!(accepted(CallFormat::MistralArgs, true, &text), (text.len(), true), "{text}");
            let other = text.replace("city", "town");
            let refused = accepted(CallFormat::MistralArgs, true, &other);
            assert_eq!(refused, (other.find("town").unwrap(), false), "{other}");
        }
        let two = call(id).repeat(2);
        assert_eq!(accepted(CallFormat::MistralArgs, false, &two), (call(id).len(), false));
    }
    let short = call("[CALL_ID]0aB34");
    assert_eq!(accepted(CallFormat::MistralArgs, true, &short).0, short.find("[ARGS]").unwrap());
}

/// The syntax of a single tool `f` with these parameters, written as Python writes them.
fn python(parameters: serde_json::Value, strict: bool) -> CallSyntax {
    let mut syntax = syntax(CallFormat::Lfm2, true);
    syntax.callable.truncate(1);
    let definition = json!({ "function": { "name": "f", "parameters": parameters } });
    syntax.callable[0].1 = Tool { name: "f".to_owned(), definition, strict, input: None };
    syntax
}

fn check_python(schema: &serde_json::Value, right: &[&str], wrong: &[&str]) {
    check_literals(&python(schema.clone(), true), ["Text <|tool_call_start|>[f(", ")]<|tool_call_end|>"], right, wrong);
}

fn check_gemma(schema: &serde_json::Value, right: &[&str], wrong: &[&str]) {
    let mut syntax = python(schema.clone(), true);
    syntax.format = CallFormat::Gemma4;
    check_literals(&syntax, ["Text <|tool_call>call:f{", "}<tool_call|>"], right, wrong);
}

/// What the grammar of a tool accepts. Arguments that it accepts are read by the parser, and valid.
fn check_literals(syntax: &CallSyntax, [before, after]: [&str; 2], right: &[&str], wrong: &[&str]) {
    let schema = syntax.callable[0].1.parameters().unwrap();
    let validator = jsonschema::validator_for(schema).unwrap();
    let start = matcher(syntax);
    let call = |arguments: &str| [before, arguments, after].concat();
    for arguments in right {
        let text = call(arguments);
        assert_eq!(read(&mut start.deep_clone(), &text), (text.len(), true), "{text} {schema}");
        let mut parser = CallParser::new(Arc::new(syntax.clone()));
        let json: String = parser.push(0, &text).calls.into_iter().map(|delta| delta.arguments).collect();
        let value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        assert!(validator.is_valid(&value), "{json} {schema}");
    }
    for arguments in wrong {
        let text = call(arguments);
        assert_ne!(read(&mut start.deep_clone(), &text), (text.len(), true), "{text} {schema}");
    }
}

#[test]
fn arguments_of_gemma_match_their_schemas() {
    let object = |properties: serde_json::Value, required: &[&str]| json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required });
    // Gemma's template sorts parameters by their names.
    check_gemma(
        &object(json!({ "days": { "type": "integer" }, "City": { "type": "string" } }), &["days"]),
        &["City:<|\"|>St. \"x\", {y}\n<|\"|>,days:3", "days:-1", "City:<|\"|><|\"|>, days:0"],
        &["", "days:3,City:<|\"|>x<|\"|>", "City:x,days:3", "City:\"x\",days:3", "days:<|\"|>3<|\"|>", "days:1.5"],
    );
    check_gemma(
        &object(json!({ "a": { "enum": ["C", "it's", 1, true, null] }, "b": { "type": ["boolean", "null"] } }), &["a"]),
        &["a:<|\"|>C<|\"|>", "a:<|\"|>it's<|\"|>,b:false", "a:1,b:null", "a:true", "a:null"],
        &["a:C", "a:<|\"|>K<|\"|>", "a:True", "a:None", "a:12"],
    );
    let nested = object(json!({ "y": { "type": "integer" }, "x": { "type": "string" } }), &["x"]);
    check_gemma(
        &object(json!({ "l": { "type": "array", "items": nested, "maxItems": 2 } }), &["l"]),
        &["l:[]", "l:[{x:<|\"|>s<|\"|>},{x:<|\"|>}]<|\"|>,y:2}]"],
        &["l:[{}]", "l:[{y:2}]", "l:[{<|\"|>x<|\"|>:<|\"|>s<|\"|>}]", "l:{}"],
    );
    // What literals cannot express is JSON.
    check_gemma(
        &object(
            json!({ "n": { "type": "integer", "minimum": 3, "maximum": 5 }, "p": { "type": "string", "pattern": "^a+$" } }),
            &[],
        ),
        &["n:4", "n:5,p:\"aa\"", ""],
        &["n:6", "p:\"b\""],
    );
    check_gemma(&json!({ "type": "object" }), &["a:<|\"|>x<|\"|>,b:{c:[1,true,null]}", ""], &["a:x", "1:2"]);
}

#[test]
fn keyword_arguments_match_their_schemas() {
    let object = |properties: serde_json::Value, required: &[&str]| {
        let mut schema = json!({ "type": "object", "additionalProperties": false });
        (schema["properties"], schema["required"]) = (properties, json!(required));
        schema
    };
    let one = |schema: serde_json::Value| object(json!({ "a": schema }), &["a"]);
    check_python(
        &object(
            json!({ "city": { "type": "string" }, "days": { "type": "integer" }, "exact": { "type": "boolean" } }),
            &["days"],
        ),
        &["city=\"St. \\\"x\\\"\", days=3, exact=True", "city='it\\'s', days=-1", "days=0,exact=False", "days=10"],
        &[
            "",
            "city='x'",
            "days=3, city='x'",
            "days=1.5",
            "days='3'",
            "days=3, exact=true",
            "days=3,",
            "town='x', days=3",
            "days=03",
            "3",
        ],
    );
    check_python(
        &object(json!({ "a": { "type": "number" }, "b": { "type": "null" }, "c": { "const": "x" } }), &[]),
        &["", "a=1.5e3", "b=None", "c='x'", "a=1, b=None, c=\"x\"", "a=1, c='x'", "b=None, c='x'"],
        &["b=null", "c='y'", "b=None, a=1", "a=1 b=None", ", a=1", "a=1, a=1"],
    );
    check_python(
        &one(json!({ "enum": ["C", "F's", 1, true, null, [1, false]] })),
        &["a='C'", "a=\"C\"", "a=\"F's\"", "a=1", "a=True", "a=None", "a=[1, False]"],
        &["a='K'", "a='F's'", "a=12", "a=true", "a=[1]"],
    );
    check_python(
        &one(json!({ "type": ["array", "null"], "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2 })),
        &["a=None", "a=[True]", "a=[True, False]"],
        &["a=[]", "a=[True, True, True]", "a=[1]", "a=[true]", "a=[True,]"],
    );
    let nested = object(json!({ "x": { "type": ["string", "null"] }, "y": { "type": "integer" } }), &["x"]);
    check_python(
        &one(json!({ "type": "array", "items": nested })),
        &["a=[]", "a=[{\"x\": \"s\"}, {'x': None, 'y': 2}]"],
        &["a=[{}]", "a=[{'y': 2}]", "a=[{'x': 's', 'z': 1}]", "a=[{x: 's'}]", "a={}"],
    );
    let mut union = one(json!({ "anyOf": [{ "$ref": "#/$defs/unit" }, { "type": "number" }], "description": "Any." }));
    union["$defs"] = json!({ "unit": { "enum": ["C", "F"] } });
    check_python(&union, &["a='C'", "a=\"F\"", "a=2.5"], &["a='K'", "a=None"]);
    check_python(
        &one(json!({ "type": "object", "additionalProperties": { "type": "integer" } })),
        &["a={}", "a={\"x\": 1, 'y z': 2}"],
        &["a={'x': 'y'}", "a={x: 1}", "a=[]"],
    );
    check_python(
        &object(json!({ "a": {}, "b": { "type": "object" }, "c": { "type": "array" } }), &["a", "b", "c"]),
        &["a='x', b={}, c=[]", "a=[{'k': [1, None]}], b={'x': {\"y\": True}}, c=['x', 1.5]"],
        &["a=x, b={}, c=[]", "a=(1,), b={}, c=[]", "a=1, b=[], c=[]", "a='\n', b={}, c=[]"],
    );
}

#[test]
fn values_with_other_constraints_are_written_as_json() {
    let schema = json!({
        "type": "object",
        "properties": {
            "day": { "type": ["string", "null"], "pattern": "^[A-Z][a-z]+$" },
            "n": { "type": "integer", "minimum": 1, "maximum": 9 },
            "tree": { "$ref": "#/$defs/tree" },
            "pair": { "type": "array", "prefixItems": [{ "type": "integer" }, { "type": "boolean" }], "items": false, "minItems": 2 },
        },
        "required": ["day", "n"],
        "additionalProperties": false,
        "$defs": { "tree": { "type": "object", "properties": { "of": { "type": "array", "items": { "$ref": "#/$defs/tree" } } },
            "additionalProperties": false } },
    });
    check_python(
        &schema,
        &["day=\"Monday\", n=5", "day=None, n=1, tree={\"of\": [{}, {\"of\": []}]}", "day=None, n=2, pair=[1, true]"],
        &[
            "day=\"monday\", n=5",
            "day='Monday', n=5",
            "day=None, n=10",
            "day=None, n=2, tree={\"of\": [1]}",
            "day=None, n=2, pair=[1, 2]",
        ],
    );
}

#[test]
fn schemas_that_no_literal_covers_do_not_stop_the_others() {
    let schema = json!({
        "type": "object",
        "properties": {
            "none": false,
            "pair": { "type": "object", "properties": { "x": { "type": "integer" }, "y": false } },
            "node": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] },
            "last": { "type": ["boolean", "null"] },
        },
        "$defs": { "node": { "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } },
            "required": ["next"], "additionalProperties": false } },
    });
    check_python(
        &schema,
        &["pair={\"x\": 1}, node={\"next\": {\"next\": null}}, last=None", "node=null, last=True"],
        &["none=1", "pair={\"y\": 1}", "node={\"next\": 1}", "node={}", "last=1"],
    );
}

#[test]
fn what_keyword_arguments_cannot_enforce_is_reported_or_refused() {
    let build = |schema: &serde_json::Value, strict| {
        source::build(&OutputSpec::default(), Some(&python(schema.clone(), strict)))
    };
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": "array", "items": { "type": "array", "uniqueItems": true } } },
        "minProperties": 1,
    });
    let paths: Vec<String> = build(&schema, false).unwrap().unenforced().into_iter().map(|part| part.path).collect();
    assert_eq!(paths, [".properties.a.items.uniqueItems", ".minProperties"]);
    assert!(build(&schema, true).is_err());
    for name in ["a b", "a=b", "", "(", "'a'"] {
        let mut schema = json!({ "type": "object", "properties": { name: {} } });
        assert!(build(&schema, true).is_err(), "{name}");
        let paths = build(&schema, false).unwrap().unenforced();
        assert_eq!(paths.len(), 1, "{name} is left out");
        matcher(&python(schema.clone(), false));
        schema["required"] = json!([name]);
        assert!(build(&schema, false).is_err(), "{name}");
    }
    for name in ["from", "$filter", "x-y", "a.b", "ä"] {
        assert!(build(&json!({ "type": "object", "properties": { name: {} } }), true).is_ok(), "{name}");
    }
}

#[test]
fn a_tool_without_described_parameters_takes_any_or_none() {
    for (schema, right, wrong) in [
        (json!({ "type": "object" }), vec!["", "a=1", "a='x', b_2=[None]"], vec!["1", "a", "=1"]),
        (json!({ "type": "object", "properties": {}, "additionalProperties": false }), vec![""], vec!["a=1"]),
    ] {
        check_python(&schema, &right, &wrong);
    }
}

#[test]
fn the_input_of_a_custom_tool_is_a_keyword_argument() {
    for (input, right, wrong) in [
        (InputFormat::Text, vec!["", "a\n\"b\" 'c'"], vec![]),
        (InputFormat::Regex("[a-c\\n]+".to_owned()), vec!["ab\nc"], vec!["", "d"]),
        (InputFormat::Lark("start: \"a\" | \"\\\"\"".to_owned()), vec!["a", "\""], vec!["b"]),
    ] {
        let mut syntax = python(json!({}), false);
        syntax.callable[0].1.input = Some(input);
        let start = matcher(&syntax);
        for (input, is_right) in
            right.into_iter().map(|text| (text, true)).chain(wrong.into_iter().map(|text| (text, false)))
        {
            let text = format!("<|tool_call_start|>[f(input={})]<|tool_call_end|>", serde_json::Value::from(input));
            assert_eq!(read(&mut start.deep_clone(), &text) == (text.len(), true), is_right, "{text}");
            let mut parser = CallParser::new(Arc::new(syntax.clone()));
            let json: String = parser.push(0, &text).calls.into_iter().map(|delta| delta.arguments).collect();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), json!({ "input": input }));
        }
    }
}

#[test]
fn many_tools_and_optional_parameters_stay_within_the_step_limits() {
    let properties: serde_json::Map<_, _> =
        (0..500).map(|at| (format!("option_{at}"), json!({ "type": ["boolean", "null"] }))).collect();
    let one = python(json!({ "type": "object", "properties": properties, "additionalProperties": false }), true);
    let text = "<|tool_call_start|>[f(option_0=True, option_7=None, option_499=False)]<|tool_call_end|>";
    assert_eq!(read(&mut matcher(&one), text), (text.len(), true));
    let mut many = many();
    many.format = CallFormat::Lfm2;
    many.bare = false;
    let text = "<|tool_call_start|>[look_up_99(city='Rome'), make_14(city=\"Oslo\")]<|tool_call_end|>";
    assert_eq!(read(&mut matcher(&many), text), (text.len(), true));
}

/// Schemas that are small, and would be large with all their references resolved and all their combinations written.
#[test]
fn schemas_of_keyword_arguments_that_multiply_are_left_open() {
    let refer = |target: &str| json!({ "$ref": format!("#/$defs/{target}") });
    let optional = |count: usize, schema: serde_json::Value| -> serde_json::Map<_, _> {
        (0..count).map(|at| (format!("p{at}"), schema.clone())).collect()
    };
    let strings: Vec<_> = (0..100).map(|at| json!({ "type": "string", "pattern": format!("^{at}$") })).collect();
    let mut alternatives = vec![refer("y"); 99];
    alternatives.push(json!({ "allOf": [refer("z")] }));
    let long: String = "x".repeat(200_000);
    let many_types =
        json!({ "type": vec!["object"; 100], "minProperties": 1, "properties": { "a": { "const": long } } });
    for parameters in [
        json!({ "type": "object", "properties": optional(400, refer("x")),
            "$defs": { "x": { "anyOf": alternatives }, "y": { "anyOf": strings }, "z": {} } }),
        json!({ "type": "object", "properties": optional(400, refer("big")),
            "$defs": { "big": { "type": "object", "minProperties": 1, "description": long } } }),
        json!({ "type": "object", "properties": { "x": { "type": vec!["object"; 100], "properties": { "q": many_types } } } }),
        json!({ "type": "object", "properties": optional(4_000, json!({ "enum": ["a", "b"] })) }),
    ] {
        let syntax = python(parameters, false);
        let tools = [syntax.callable[0].1.clone()].into();
        let built = source::build(&OutputSpec { tools, ..OutputSpec::default() }, Some(&syntax)).unwrap();
        let lark = built.lark.as_ref().unwrap();
        let (rules, bytes) = (lark.lines().count(), lark.len());
        let schemas = built.schemas.len();
        assert!(
            rules < 4_200 && bytes < 1 << 20 && schemas < 1_000,
            "{rules} rules of {bytes} bytes and {schemas} schemas"
        );
    }
}
