//! Answers of a demanded form. The model's weights are random: nothing but the grammar makes sense.

use std::sync::Arc;
use std::time::Instant;

use outpost::engine::{Calling, Ending, Failure, Form, Generation, GrammarError, Shape, Text, Tool};
use serde_json::{Value, json};

use crate::support::{Answer, Rig, pieces, request, rig, tiny};
use crate::tiny_model::TinyModel;

fn roomy() -> Rig {
    rig(&TinyModel { context: 2048, ..TinyModel::default() }, |_| ())
}

fn schema(schema: Value) -> Shape {
    Shape { text: Text::Schema(schema), ..Shape::default() }
}

fn tool(name: &str, parameters: Value) -> Tool {
    let function = json!({ "name": name, "description": "Looks.", "parameters": parameters });
    Tool { name: name.to_owned(), definition: json!({ "type": "function", "function": function }) }
}

/// A request that ends by its form alone.
fn held(rig: &Rig, form: Form, seed: u64) -> Generation {
    let mut request = request(rig.model.encode("hello the"), 1900);
    request.sampling.ignore_eos = false;
    request.sampling.seed = seed;
    request.sampling.temperature = 1.5;
    Generation { form: Some(form), ..request }
}

async fn ask(rig: &Rig, shape: &Shape, seed: u64) -> Answer {
    rig.one(held(rig, rig.model.form(shape).unwrap(), seed)).await
}

#[tokio::test]
async fn json_obeys_its_schema_whatever_the_model_thinks() {
    let rig = roomy();
    let shape = schema(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "kind": { "enum": ["crab", "gull", null, 7] },
            "tags": { "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 3 },
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": false,
    }));
    for seed in 0..20 {
        let answer = ask(&rig, &shape, seed).await;
        let value: Value = serde_json::from_str(&answer.text).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        println!("{}", answer.text);
        assert_eq!(answer.end, Some(Ending::Stop));
        assert!(value["name"].as_str().unwrap().chars().count() <= 8);
        assert!(value["age"].as_u64().unwrap() <= 150);
        assert!([json!("crab"), json!("gull"), json!(null), json!(7)].contains(&value["kind"]));
        assert!((1..=3).contains(&value["tags"].as_array().unwrap().len()));
        assert_eq!(value.as_object().unwrap().len(), 4);
    }
}

/// How many of the 200 schemas, and every how many.
async fn varied(step: usize) {
    let rig = rig(&TinyModel { context: 8192, blocks: 1, width: 32, ..TinyModel::default() }, |_| ());
    let schemas: Vec<Value> = serde_json::from_str(include_str!("../fixtures/schemas.json")).unwrap();
    for (number, one) in schemas.iter().enumerate().step_by(step) {
        let form = rig.model.form(&schema(one.clone())).unwrap_or_else(|error| panic!("{number}: {error}\n{one}"));
        let validator = jsonschema::options().should_validate_formats(true).build(one).unwrap();
        let mut request = held(&rig, form, number as u64);
        (request.max_tokens, request.choices) = (8000, 4);
        for answer in rig.run(request).await {
            let value: Value = serde_json::from_str(&answer.text)
                .unwrap_or_else(|error| panic!("{number}: {error}: {answer:?}\n{one}"));
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{number}: {errors:?}\n{value}\n{one}");
            assert_eq!(answer.end, Some(Ending::Stop));
        }
    }
}

#[tokio::test]
async fn varied_schemas_are_never_violated() {
    varied(8).await;
}

#[tokio::test]
#[ignore = "the whole two hundred take a minute: cargo test --test engine all_two_hundred -- --ignored"]
async fn all_two_hundred_schemas_are_never_violated() {
    varied(1).await;
}

#[tokio::test]
async fn any_object_is_an_object() {
    let rig = rig(&TinyModel { context: 8192, blocks: 1, width: 32, ..TinyModel::default() }, |_| ());
    let shape = Shape { text: Text::Object, ..Shape::default() };
    for seed in 0..5 {
        let mut request = held(&rig, rig.model.form(&shape).unwrap(), seed);
        request.max_tokens = 8000;
        let answer = rig.one(request).await;
        if answer.end == Some(Ending::Stop) {
            assert!(serde_json::from_str::<Value>(&answer.text).unwrap().is_object(), "{}", answer.text);
        }
        let blank = |text: &str| text.chars().all(|letter| " \n\t\r".contains(letter));
        let letters: Vec<char> = answer.text.chars().collect();
        assert!(!letters.windows(60).any(|run| blank(&run.iter().collect::<String>())), "no desert of white space");
    }
}

/// Templates that know tools, in each family's manner, reduced to what detection and rendering need.
const HERMES: &str = "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools> use <tool_call>{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}{% endfor %}[assistant]";
const LLAMA: &str = "{% if tools %}Respond {\"name\": name, \"parameters\": values}.{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}\
    {% for m in messages %}[{{ 'ipython' if m.role == 'tool' else m.role }}]{{ m.content }}{% endfor %}[assistant]";
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[TOOL_CALLS] {{ c.id }}{% endfor %}{% if m.tool_call_id is defined %}<{{ m.tool_call_id }}>{% endif %}{% endfor %}[assistant]";

fn family(template: &'static str) -> Rig {
    rig(&TinyModel { context: 2048, template: Some(template), ..TinyModel::default() }, |_| ())
}

fn looking() -> Arc<[Tool]> {
    let place = json!({ "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false });
    let count = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 99 } },
        "required": ["n"], "additionalProperties": false });
    Arc::new([tool("look", place), tool("count", count)])
}

fn check_calls(answer: &Answer) {
    for (name, arguments) in &answer.calls {
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
        match name.as_str() {
            "look" => assert!([json!("sea"), json!("land")].contains(&value["place"])),
            "count" => assert!((1..=99).contains(&value["n"].as_u64().unwrap())),
            other => panic!("no tool is called {other}"),
        }
        assert_eq!(value.as_object().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn demanded_calls_are_calls_and_nothing_else() {
    for template in [crate::tiny_model::CHATML, HERMES, LLAMA, MISTRAL] {
        let rig = family(template);
        for (calling, parallel) in [
            (Calling::Required, false),
            (Calling::Required, true),
            (Calling::Named("count".to_owned()), true),
        ] {
            let shape = Shape { tools: looking(), calling: calling.clone(), parallel, ..Shape::default() };
            let mut most = 0;
            for seed in 0..4 {
                let answer = ask(&rig, &shape, seed).await;
                assert_eq!((answer.text.as_str(), answer.end), ("", Some(Ending::Calls)), "{answer:?}");
                check_calls(&answer);
                most = most.max(answer.calls.len());
                if calling != Calling::Required {
                    assert_eq!(answer.calls.iter().map(|call| call.0.as_str()).collect::<Vec<_>>(), ["count"]);
                }
            }
            let several = parallel && calling == Calling::Required && template != LLAMA;
            assert!(if several { (2..=16).contains(&most) } else { most == 1 }, "{most} calls: {template}");
        }
    }
}

/// Ids that spell `text`, each favoured so that the model writes it if it may.
async fn led(rig: &Rig, shape: &Shape, text: &str) -> Answer {
    let mut request = held(rig, rig.model.form(shape).unwrap(), 3);
    request.max_tokens = 200;
    request.sampling.temperature = 0.;
    request.sampling.logit_bias = rig.model.encode(text).into_iter().map(|id| (id, 60.)).collect();
    request.sampling.frequency_penalty = 0.;
    rig.one(request).await
}

#[tokio::test]
async fn a_model_that_may_call_writes_text_or_well_formed_calls() {
    for template in [crate::tiny_model::CHATML, HERMES, LLAMA, MISTRAL] {
        let rig = family(template);
        let shape = Shape { tools: looking(), parallel: true, ..Shape::default() };
        for seed in 0..4 {
            let mut request = held(&rig, rig.model.form(&shape).unwrap(), seed);
            request.max_tokens = 60;
            let free = rig.one(request).await;
            assert!(free.calls.is_empty() && !free.text.is_empty(), "{free:?}");
        }
    }
}
