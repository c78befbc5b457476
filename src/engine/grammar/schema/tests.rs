use serde_json::{Value, json};

use super::prepare;

#[test]
fn an_error_names_the_place() {
    let cases = [
        (json!({ "properties": { "a": { "uniqueItems": true } } }), ".properties.a.uniqueItems"),
        (json!({ "items": { "anyOf": [{}, { "not": {} }] } }), ".items.anyOf[1].not"),
        (json!({ "$ref": "#/$defs/none" }), ".$ref"),
        (json!({ "$ref": "https://example.com/a" }), ".$ref"),
        (json!({ "enum": [] }), ".enum"),
        (json!({ "properties": 1 }), ".properties"),
        (json!({ "minItems": -1 }), ".minItems"),
        (json!({ "maxLength": 4_000_000_000u64 }), ".maxLength"),
        (json!({ "minProperties": 2, "required": [] }), ".minProperties"),
        (json!({ "x-guidance": { "lenient": true } }), ".x-guidance"),
        (json!([]), ""),
    ];
    for (schema, path) in cases {
        assert_eq!(prepare(&schema).unwrap_err().path, path, "{schema}");
    }
}

#[test]
fn a_property_may_be_called_like_a_keyword() {
    let schema = json!({ "properties": { "not": { "type": "string" }, "$ref": {}, "if": { "enum": [{ "not": 1 }] } } });
    assert!(prepare(&schema).is_ok());
}

#[test]
fn what_never_ends_is_refused_and_what_may_end_is_not() {
    let endless = [
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }),
    ];
    for schema in endless {
        assert!(prepare(&schema).is_err_and(|error| error.what.contains("without end")), "{schema}");
    }
    let fine = [
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }),
        json!({ "type": "array", "items": { "$ref": "#" } }),
        json!({ "type": "object", "properties": { "a": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } }, "required": ["a"] }),
        json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "anyOf": [{ "$ref": "#/$defs/b" }, { "type": "null" }] },
            "b": { "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "required": ["a"] },
        } }),
    ];
    for schema in fine {
        assert!(prepare(&schema).is_ok(), "{schema}");
    }
}

#[test]
fn alternatives_are_put_in_for_references() {
    let schema = json!({
        "oneOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }],
        "$defs": { "a": { "const": 1 }, "b": { "$ref": "#/$defs/c" }, "c": { "const": 2 } },
    });
    assert_eq!(prepare(&schema).unwrap()["oneOf"], json!([{ "const": 1 }, { "const": 2 }]));
}

#[test]
fn size_is_bounded_before_anything_is_compiled() {
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "items": inner }));
    assert!(prepare(&deep).is_err());
    let wide: Value = (0..6_000).map(|at| (format!("p{at}"), json!({}))).collect::<serde_json::Map<_, _>>().into();
    assert!(prepare(&json!({ "properties": wide })).is_err());
    assert!(prepare(&json!({ "const": "x".repeat(300_000) })).is_err());
}
