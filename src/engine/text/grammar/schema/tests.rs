use serde_json::{Value, json};

use super::{Multiples, SchemaError};

fn prepare(schema: &Value) -> Result<Value, SchemaError> {
    super::prepare(schema, &mut Multiples::default())
}

#[test]
fn an_error_gives_the_path() {
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
        (json!({ "items": { "multipleOf": 0 } }), ".items.multipleOf"),
        (json!({ "items": { "multipleOf": "2" } }), ".items.multipleOf"),
        (json!({ "items": { "multipleOf": 1e-9 } }), ".items.multipleOf"),
        (json!({ "items": { "multipleOf": 999_983 } }), ".items.multipleOf"),
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
fn unsatisfiable_recursion_is_rejected() {
    let rejected = [
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "$ref": "#" }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }),
    ];
    for schema in rejected {
        assert!(prepare(&schema).is_err_and(|error| error.what.contains("without end")), "{schema}");
    }
    let accepted = [
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } } }),
        json!({ "type": "array", "items": { "$ref": "#" } }),
        json!({ "type": "object", "properties": { "a": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } }, "required": ["a"] }),
        json!({ "$ref": "#/$defs/a", "$defs": {
            "a": { "anyOf": [{ "$ref": "#/$defs/b" }, { "type": "null" }] },
            "b": { "type": "object", "properties": { "a": { "$ref": "#/$defs/a" } }, "required": ["a"] },
        } }),
    ];
    for schema in accepted {
        assert!(prepare(&schema).is_ok(), "{schema}");
    }
}

#[test]
fn references_in_one_of_are_expanded() {
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

#[test]
fn the_remainders_of_all_multiples_are_bounded() {
    let every = |step: f64, count: usize| -> Value {
        (0..count).map(|at| (format!("p{at}"), json!({ "multipleOf": step }))).collect::<serde_json::Map<_, _>>().into()
    };
    let both = |one: f64, other: f64| json!({ "allOf": [{ "multipleOf": one }, { "$ref": "#/$defs/a" }], "$defs": { "a": { "multipleOf": other } } });
    let several =
        |count: usize| json!({ "anyOf": (0..count).map(|at| json!({ "multipleOf": 500 + at })).collect::<Vec<_>>() });
    let accepted = [
        json!({ "multipleOf": 9_973 }),
        json!({ "multipleOf": 0.05 }),
        json!({ "multipleOf": 0.000_000_01 }),
        json!({ "properties": every(0.01, 900) }),
        json!({ "properties": { "a": { "$ref": "#/$defs/a" }, "b": { "$ref": "#/$defs/a" } }, "$defs": { "a": { "multipleOf": 9_000 } } }),
        both(60., 7.),
        both(0.25, 100.),
        several(15),
    ];
    for schema in accepted {
        assert!(prepare(&schema).is_ok(), "{schema}");
    }
    let rejected = [
        json!({ "multipleOf": 4_294_967_295_u64 }),
        json!({ "properties": every(9_973., 2) }),
        both(997., 991.),
        both(0.000_000_01, 43.),
        merged([json!({ "multipleOf": 997 }), json!({ "multipleOf": 991 })]),
        json!({ "properties": { "a": { "multipleOf": 997 } }, "patternProperties": { "^a": { "multipleOf": 991 } } }),
        json!({ "properties": { "a": { "multipleOf": 997 } }, "$ref": "#/$defs/a", "$defs": { "a": { "additionalProperties": { "multipleOf": 991 } } } }),
        several(25),
        json!({ "allOf": [several(5), several(5)] }),
    ];
    for schema in rejected {
        assert!(prepare(&schema).is_err_and(|error| error.what.contains("multiple")), "{schema}");
    }
}

/// Merges objects and arrays so that all parts apply to one nested value.
fn merged(parts: impl IntoIterator<Item = Value>) -> Value {
    let around = |part: Value| json!({ "type": "object", "properties": { "a": { "type": "array", "items": part } } });
    json!({ "allOf": parts.into_iter().map(around).collect::<Vec<_>>() })
}

#[test]
fn patterns_of_merged_objects_are_counted_together() {
    let patterns =
        |count: usize| (1..=count).map(|at| json!({ "type": "string", "pattern": format!("(a.{{{at}}}b)") }));
    let rejected = [
        merged(patterns(59)),
        json!({ "allOf": patterns(59).map(|one| json!({ "prefixItems": [one] })).collect::<Vec<_>>() }),
        json!({ "allOf": patterns(59).map(|one| json!({ "patternProperties": { "^a": one } })).collect::<Vec<_>>() }),
        json!({ "allOf": patterns(59).map(|one| json!({ "anyOf": [{ "items": one }, { "items": {} }] })).collect::<Vec<_>>() }),
    ];
    for schema in rejected {
        assert!(prepare(&schema).is_err_and(|error| error.what.contains("patterns")), "{schema}");
    }
    let named = |at: usize, one: Value| (format!("p{at}"), one);
    let each =
        patterns(20).enumerate().map(|(at, one)| json!({ "properties": serde_json::Map::from_iter([named(at, one)]) }));
    let tree = json!({ "$ref": "#/$defs/node", "$defs": { "node": { "type": "object", "properties": {
        "id": { "type": "string", "format": "uuid" },
        "children": { "type": "array", "items": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } },
    } } } });
    let accepted = [
        merged(patterns(3)),
        json!({ "allOf": each.clone().collect::<Vec<_>>() }),
        json!({ "anyOf": patterns(20).map(|one| json!({ "properties": { "a": one } })).collect::<Vec<_>>() }),
        json!({ "oneOf": each.collect::<Vec<_>>(), "properties": { "id": { "format": "uuid" } } }),
        tree,
    ];
    for schema in accepted {
        assert!(prepare(&schema).is_ok(), "{schema}");
    }
}

#[test]
fn merging_too_many_schemas_is_rejected_early() {
    let named = |each: &dyn Fn(usize) -> Value| -> Value {
        (0..1_000).map(|at| (format!("p{at}"), each(at))).collect::<serde_json::Map<_, _>>().into()
    };
    let parts: Vec<_> = (0..1_000).map(|at| json!({ "properties": { format!("p{at}"): true } })).collect();
    let schema = json!({
        "properties": named(&|_| json!({ "$ref": "#/$defs/a" })),
        "$defs": { "a": { "allOf": parts }, "id": { "format": "uuid" } },
    });
    assert!(prepare(&schema).is_err_and(|error| error.what.contains("merges more schemas")));
    let (base, own) = (named(&|_| json!({ "format": "uuid" })), named(&|at| json!({ "const": at })));
    let schema = json!({ "allOf": [{ "properties": base }, { "$ref": "#/$defs/own" }], "$defs": { "own": { "properties": own } } });
    assert!(prepare(&schema).is_ok());
}
