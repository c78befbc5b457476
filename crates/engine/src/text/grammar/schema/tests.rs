use serde_json::{Value, json};

use super::{Multiples, SchemaError, display};

/// Prepares a strict schema.
fn prepare(schema: &Value) -> Result<Value, SchemaError> {
    super::prepare(schema, true, &mut Multiples::default()).map(|prepared| prepared.schema)
}

#[test]
fn an_error_gives_the_path() {
    let cases = [
        (json!({ "properties": { "a": { "uniqueItems": true } } }), ".properties.a.uniqueItems"),
        (json!({ "items": { "anyOf": [{}, { "not": { "const": 1 } }] } }), ".items.anyOf[1].not"),
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
        assert_eq!(display(&schema, &prepare(&schema).unwrap_err().pointer), path, "{schema}");
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
        json!({ "properties": every(0.01, 450) }),
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
        (0..500).map(|at| (format!("p{at}"), each(at))).collect::<serde_json::Map<_, _>>().into()
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

/// Prepares a schema that is not strict. Returns it and the paths that are left open.
fn relaxed(schema: &Value) -> (Value, Vec<String>) {
    let prepared = super::prepare(schema, false, &mut Multiples::default()).unwrap();
    (prepared.schema, prepared.unenforced)
}

#[test]
fn a_schema_that_is_not_strict_leaves_open_what_cannot_be_enforced() {
    let cases = [
        (json!({ "properties": { "a": { "type": "array", "uniqueItems": true } } }), vec![".properties.a.uniqueItems"]),
        (json!({ "items": { "anyOf": [{}, { "not": { "const": 1 } }] } }), vec![".items.anyOf[1].not"]),
        (json!({ "if": { "required": ["a"] }, "then": { "required": ["b"] }, "else": {} }), vec![".if"]),
        (json!({ "type": "string", "format": "password" }), vec![".format"]),
        (json!({ "type": "string", "maxLength": 4_000_000 }), vec![".maxLength"]),
        (json!({ "$ref": "https://example.com/a" }), vec![".$ref"]),
        (
            json!({ "dependentRequired": { "a": ["b"] }, "x-guidance": { "lenient": true } }),
            vec![".dependentRequired", ".x-guidance"],
        ),
        (json!({ "type": "object", "propertyNames": { "maxLength": 5 } }), vec![".propertyNames"]),
        (json!({ "type": "array", "contains": { "const": 1 }, "minContains": 2 }), vec![".contains"]),
        (json!({ "multipleOf": 999_983 }), vec![".multipleOf"]),
    ];
    for (schema, paths) in cases {
        let (prepared, unenforced) = relaxed(&schema);
        assert_eq!(unenforced, paths, "{schema}");
        // What remains can be enforced.
        assert!(prepare(&without_options(prepared.clone())).is_ok(), "{schema} {prepared}");
    }
}

fn without_options(mut schema: Value) -> Value {
    schema.as_object_mut().unwrap().remove("x-guidance");
    schema
}

#[test]
fn a_schema_that_is_not_strict_must_still_be_valid() {
    for schema in [
        json!({ "enum": [] }),
        json!({ "properties": 1 }),
        json!({ "minItems": -1 }),
        json!({ "type": "text" }),
        json!({ "required": [1] }),
        json!({ "pattern": 5 }),
        json!({ "minimum": "1" }),
        json!({ "$ref": "#/$defs/none" }),
        json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }),
    ] {
        assert!(super::prepare(&schema, false, &mut Multiples::default()).is_err(), "{schema}");
    }
}

#[test]
fn a_schema_that_is_too_large_keeps_only_its_type() {
    let deep = (0..100).fold(json!({}), |inner, _| json!({ "items": inner }));
    let (prepared, unenforced) =
        relaxed(&json!({ "type": "object", "properties": { "a": deep, "b": { "type": "string" } } }));
    assert_eq!(unenforced.len(), 1);
    assert!(unenforced[0].starts_with(".properties.a.items.items"));
    assert_eq!(prepared["properties"]["b"], json!({ "type": "string" }));
    let (prepared, unenforced) = relaxed(&json!({ "type": "object", "const": { "a": "x".repeat(300_000) } }));
    assert_eq!((without_options(prepared), unenforced), (json!({ "type": "object" }), vec![String::new()]));
}

#[test]
fn equivalent_keywords_replace_those_that_cannot_be_enforced() {
    let cases = [
        (
            json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "number" } }),
            json!({ "type": "object", "additionalProperties": { "type": "number" } }),
        ),
        (
            json!({ "type": "object", "propertyNames": { "type": "string", "enum": ["a", "b.c"] }, "additionalProperties": { "type": "number" }, "required": ["a"] }),
            json!({ "type": "object", "additionalProperties": false, "required": ["a"], "properties": { "a": { "type": "number" }, "b.c": { "type": "number" } } }),
        ),
        (
            json!({ "type": "object", "propertyNames": { "pattern": "^x-" }, "additionalProperties": { "type": "number" } }),
            json!({ "type": "object", "additionalProperties": false, "patternProperties": { "^x-": { "type": "number" } } }),
        ),
        (
            json!({ "type": "object", "patternProperties": { "^(a|b)$": { "type": "number" }, "^x-": {} } }),
            json!({ "type": "object", "patternProperties": { "^x-": {} }, "properties": { "a": { "type": "number" }, "b": { "type": "number" } }, "additionalProperties": false }),
        ),
        (
            json!({ "type": "object", "properties": { "a": {} }, "unevaluatedProperties": false }),
            json!({ "type": "object", "properties": { "a": {} }, "additionalProperties": false }),
        ),
        (json!({ "type": "array", "uniqueItems": true, "maxItems": 1 }), json!({ "type": "array", "maxItems": 1 })),
        (json!({ "type": "integer", "format": "int32" }), json!({ "type": "integer" })),
        (
            json!({ "$id": "https://a/b", "type": "array", "items": { "$ref": "https://a/b#/$defs/x" }, "$defs": { "x": {} } }),
            json!({ "type": "array", "items": { "$ref": "#/$defs/x" }, "$defs": { "x": {} } }),
        ),
        (json!({ "$schema": "https://json.schemastore.org/any", "type": "string" }), json!({ "type": "string" })),
        (
            json!({ "type": "object", "properties": { "a": { "not": {} } } }),
            json!({ "type": "object", "properties": { "a": false }, "additionalProperties": false }),
        ),
    ];
    for (schema, expected) in cases {
        assert_eq!(without_options(prepare(&schema).unwrap()), expected, "{schema}");
    }
}

/// Four levels would make a hundred million copies of the innermost schema.
#[test]
fn nested_lists_of_names_are_copied_within_a_limit() {
    let nest = |wrap: fn(Value) -> Value| (0..4).fold(json!({ "type": "string" }), |inner, _| wrap(inner));
    let patterns = nest(|inner| json!({ "type": "object", "patternProperties": { "^[0-9][0-9]$": inner } }));
    let names: Vec<String> = (0..400).map(|at| at.to_string()).collect();
    let listed = (0..4).fold(
        json!({ "type": "string" }),
        |inner, _| json!({ "type": "object", "propertyNames": { "enum": names }, "additionalProperties": inner }),
    );
    for schema in [patterns, listed] {
        assert!(relaxed(&schema).0.to_string().len() < 1 << 20);
    }
}

#[test]
fn objects_that_name_properties_are_closed() {
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let is_open = |schema: &Value, pointer: &str| {
        prepare(schema).unwrap().pointer(pointer).unwrap().get("additionalProperties").is_none()
    };
    let nested = object(json!({ "a": object(json!({ "b": {} })), "c": { "type": "object" } }));
    assert!(!is_open(&nested, "") && !is_open(&nested, "/properties/a"));
    assert!(is_open(&nested, "/properties/c"));
    // Required names are properties too.
    let required = json!({ "type": "object", "properties": {}, "required": ["a"] });
    assert_eq!(prepare(&required).unwrap()["properties"], json!({ "a": {} }));
    // Each schema may have what the other names.
    let merged = json!({ "allOf": [object(json!({ "a": {} })), { "$ref": "#/$defs/b" }], "$defs": { "b": object(json!({ "b": object(json!({})) })) } });
    assert!(is_open(&merged, "/allOf/0") && is_open(&merged, "/$defs/b") && is_open(&merged, "/$defs/b/properties/b"));
    let extended = json!({ "type": "object", "properties": { "a": {} }, "anyOf": [object(json!({ "b": {} })), {}] });
    assert!(is_open(&extended, "") && is_open(&extended, "/anyOf/0"));
    let union = json!({ "anyOf": [object(json!({ "a": {} })), { "$ref": "#/$defs/b" }], "$defs": { "b": object(json!({ "b": {} })) } });
    assert!(!is_open(&union, "/anyOf/0") && !is_open(&union, "/$defs/b"));
    let two_uses = json!({ "type": "object", "properties": { "x": { "$ref": "#/$defs/b" }, "y": { "allOf": [{ "$ref": "#/$defs/b" }, { "required": ["z"] }] } },
        "$defs": { "b": object(json!({ "b": {} })) } });
    assert!(is_open(&two_uses, "/$defs/b"));
}
