//! Structured output and tool calls. The model's weights are random, so only the grammar shapes the output.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outpost_engine::{
    CallMode, CompiledGrammar, Failure, FinishReason, GenerationRequest, GrammarError, OutputSpec, TextFormat, Tool,
};
use serde_json::{Value, json};

use crate::harness::{ChoiceOutput, Rig, pieces, request, rig};
use crate::tiny_model::TinyModel;

fn large_context() -> Rig {
    rig(&TinyModel { context: 2048, ..TinyModel::default() }, |_| ())
}

fn schema(schema: Value) -> OutputSpec {
    OutputSpec { text: TextFormat::Schema { schema, strict: true }, ..OutputSpec::default() }
}

fn tool(name: &str, parameters: Value) -> Tool {
    let function = json!({ "name": name, "description": "Looks.", "parameters": parameters });
    Tool {
        name: name.to_owned(),
        definition: json!({ "type": "function", "function": function }),
        strict: true,
        input: None,
    }
}

/// A request that ends only when its grammar is complete.
fn constrained(rig: &Rig, output_spec: CompiledGrammar, seed: u64) -> GenerationRequest {
    let mut request = request(rig.model.encode("hello the").unwrap(), 1900);
    request.sampling.ignore_eos = false;
    request.sampling.seed = seed;
    request.sampling.temperature = 1.5;
    GenerationRequest { grammar: Some(output_spec), ..request }
}

async fn generate(rig: &Rig, output_spec: &OutputSpec, seed: u64) -> ChoiceOutput {
    rig.run_one(constrained(rig, rig.model.compile_grammar(output_spec).unwrap(), seed)).await
}

#[tokio::test]
async fn json_always_matches_its_schema() {
    let rig = large_context();
    let output_spec = schema(json!({
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
        let output = generate(&rig, &output_spec, seed).await;
        let value: Value = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_eq!(output.end, Some(FinishReason::Stop));
        assert!(value["name"].as_str().unwrap().chars().count() <= 8);
        assert!(value["age"].as_u64().unwrap() <= 150);
        assert!([json!("crab"), json!("gull"), json!(null), json!(7)].contains(&value["kind"]));
        assert!((1..=3).contains(&value["tags"].as_array().unwrap().len()));
        assert_eq!(value.as_object().unwrap().len(), 4);
    }
}

#[tokio::test]
async fn two_hundred_varied_schemas_are_never_violated() {
    let rig = rig(&TinyModel { context: 8192, blocks: 1, width: 32, ..TinyModel::default() }, |_| ());
    let schemas: Vec<Value> = serde_json::from_str(include_str!("../../../../tests/fixtures/schemas.json")).unwrap();
    for (number, one) in schemas.iter().enumerate() {
        let output_spec =
            rig.model.compile_grammar(&schema(one.clone())).unwrap_or_else(|error| panic!("{number}: {error}\n{one}"));
        let validator = jsonschema::options().should_validate_formats(true).build(one).unwrap();
        let mut request = constrained(&rig, output_spec, number as u64);
        (request.max_tokens, request.choices) = (8000, 2);
        for output in rig.run(request).await {
            let value: Value = serde_json::from_str(&output.text)
                .unwrap_or_else(|error| panic!("{number}: {error}: {output:?}\n{one}"));
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{number}: {errors:?}\n{value}\n{one}");
            assert_eq!(output.end, Some(FinishReason::Stop));
        }
    }
}

#[tokio::test]
async fn json_object_mode_returns_an_object() {
    let rig = rig(&TinyModel { context: 8192, blocks: 1, width: 32, ..TinyModel::default() }, |_| ());
    let output_spec = OutputSpec { text: TextFormat::Object, ..OutputSpec::default() };
    for seed in 0..5 {
        let mut request = constrained(&rig, rig.model.compile_grammar(&output_spec).unwrap(), seed);
        request.max_tokens = 8000;
        let output = rig.run_one(request).await;
        if output.end == Some(FinishReason::Stop) {
            assert!(serde_json::from_str::<Value>(&output.text).unwrap().is_object(), "{}", output.text);
        }
        let blank = |text: &str| text.chars().all(|letter| " \n\t\r".contains(letter));
        let letters: Vec<char> = output.text.chars().collect();
        assert!(!letters.windows(60).any(|run| blank(&run.iter().collect::<String>())), "no long runs of white space");
    }
}

/// Tool templates in each family's style, reduced to what detection and rendering need.
const HERMES: &str = "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools> use <tool_call>{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}{% endfor %}[assistant]";
const LLAMA: &str = "{% if tools %}Respond {\"name\": name, \"parameters\": values}.{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}\
    {% for m in messages %}[{{ 'ipython' if m.role == 'tool' else m.role }}]{{ m.content }}{% endfor %}[assistant]";
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[TOOL_CALLS] {{ c.id }}{% endfor %}{% if m.tool_call_id is defined %}<{{ m.tool_call_id }}>{% endif %}{% endfor %}[assistant]";
const GRANITE_3: &str = "{% if tools %}Respond only with <|tool_call|> followed by a JSON list.<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}{% endif %}\
    {% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}{% endfor %}[assistant]";
const NEMOTRON_2: &str = "{% if tools %}<AVAILABLE_TOOLS>{{ tools | tojson }}</AVAILABLE_TOOLS>{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}<TOOLCALL>[{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}]</TOOLCALL>{% endif %}{% endfor %}[assistant]";
const LFM_2: &str = "{% if tools %}<|im_start|>system\nList of tools: <|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}<|tool_response_start|>{{ m.content }}<|tool_response_end|>{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
const ALL: [&str; 7] = [crate::tiny_model::CHATML, HERMES, LLAMA, MISTRAL, GRANITE_3, NEMOTRON_2, LFM_2];

fn family(template: &'static str) -> Rig {
    rig(&TinyModel { context: 2048, template: Some(template), ..TinyModel::default() }, |_| ())
}

fn two_tools() -> Arc<[Tool]> {
    let look_schema = json!({ "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false });
    let count = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1, "maximum": 99 } },
        "required": ["n"], "additionalProperties": false });
    Arc::new([tool("look", look_schema), tool("count", count)])
}

fn check_calls(output: &ChoiceOutput) {
    for (name, arguments) in &output.calls {
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        match name.as_str() {
            "look" => assert!([json!("sea"), json!("land")].contains(&value["place"])),
            "count" => assert!((1..=99).contains(&value["n"].as_u64().unwrap())),
            other => panic!("there is no tool {other}"),
        }
        assert_eq!(value.as_object().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_required_tool_call_is_a_call_and_nothing_else() {
    for template in ALL {
        let rig = family(template);
        for (calling, parallel) in
            [(CallMode::Required, false), (CallMode::Required, true), (CallMode::Named("count".to_owned()), true)]
        {
            let output_spec =
                OutputSpec { tools: two_tools(), calling: calling.clone(), parallel, ..OutputSpec::default() };
            let mut maximum = 0;
            for seed in 0..4 {
                let output = generate(&rig, &output_spec, seed).await;
                assert_eq!((output.text.as_str(), output.end), ("", Some(FinishReason::ToolCalls)), "{output:?}");
                check_calls(&output);
                maximum = maximum.max(output.calls.len());
                if calling != CallMode::Required {
                    assert_eq!(output.calls.iter().map(|call| call.0.as_str()).collect::<Vec<_>>(), ["count"]);
                }
            }
            let several = parallel && calling == CallMode::Required && template != LLAMA;
            assert!(if several { (2..=16).contains(&maximum) } else { maximum == 1 }, "{maximum} calls: {template}");
        }
    }
}

#[tokio::test]
async fn arguments_that_are_no_json_match_varied_schemas() {
    let options = TinyModel { context: 8192, blocks: 1, width: 32, template: Some(LFM_2), ..TinyModel::default() };
    let rig = rig(&options, |_| ());
    let schemas: Vec<Value> = serde_json::from_str(include_str!("../../../../tests/fixtures/schemas.json")).unwrap();
    // References lead to the root of the schema.
    let schemas = schemas.iter().enumerate().filter(|(_, one)| !one.to_string().contains("\"$ref\""));
    let mut checked = 0;
    for (number, one) in schemas {
        let parameters = json!({ "type": "object", "properties": { "first": { "type": ["boolean", "null"] }, "value": one },
            "required": ["value"], "additionalProperties": false });
        let validator = jsonschema::options().should_validate_formats(true).build(&parameters).unwrap();
        let tools = Arc::new([tool("f", parameters)]);
        let output_spec = OutputSpec { tools, calling: CallMode::Required, ..OutputSpec::default() };
        let output_spec =
            rig.model.compile_grammar(&output_spec).unwrap_or_else(|error| panic!("{number}: {error}\n{one}"));
        let mut request = constrained(&rig, output_spec, number as u64);
        (request.max_tokens, request.choices) = (8000, 2);
        for output in rig.run(request).await {
            let [(_, arguments)] = &output.calls[..] else { panic!("{number}: {output:?}") };
            let value =
                serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{number}: {error}: {output:?}\n{one}"));
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{number}: {errors:?}\n{value}\n{one}");
            assert_eq!(output.end, Some(FinishReason::ToolCalls));
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
}

#[tokio::test]
async fn tool_choice_auto_gives_text_or_well_formed_calls() {
    for template in ALL {
        let rig = family(template);
        let output_spec = OutputSpec { tools: two_tools(), parallel: true, ..OutputSpec::default() };
        for seed in 0..4 {
            let mut request = constrained(&rig, rig.model.compile_grammar(&output_spec).unwrap(), seed);
            request.max_tokens = 60;
            let free = rig.run_one(request).await;
            assert!(free.calls.is_empty() && !free.text.is_empty(), "{free:?}");
        }
    }
}

#[tokio::test]
async fn the_start_of_a_tool_call_commits_the_model_to_one() {
    // As plain text, as a token that stands for its text, and as a control token.
    let marked: [&'static [(&'static str, i32)]; 3] =
        [&[("<tool_call>", 1)], &[("<tool_call>", 4)], &[("<tool_call>", 3), ("</tool_call>", 3)]];
    let mistral: &'static [(&'static str, i32)] = &[("[TOOL_CALLS]", 3)];
    let llama: &'static [(&'static str, i32)] = &[("<|python_tag|>", 3)];
    let granite: [&'static [(&'static str, i32)]; 2] =
        [&[("<|tool_call|>", 3)], &[("<tool_call>", 4), ("<|tool_call|>", 3)]];
    let lfm: [&'static [(&'static str, i32)]; 2] =
        [&[("<|tool_call_start|>", 1)], &[("<|tool_call_start|>", 3), ("<|tool_call_end|>", 3)]];
    let nemotron: [&'static [(&'static str, i32)]; 2] =
        [&[("<TOOLCALL>", 4)], &[("<TOOLCALL>", 3), ("</TOOLCALL>", 3)]];
    let cases = marked.map(|markers| (HERMES, markers)).into_iter().chain([(MISTRAL, mistral), (LLAMA, llama)]);
    let cases = cases.chain(granite.map(|markers| (GRANITE_3, markers)));
    let cases = cases.chain(lfm.map(|markers| (LFM_2, markers))).chain(nemotron.map(|markers| (NEMOTRON_2, markers)));
    for (template, markers) in cases {
        let options = TinyModel { context: 2048, template: Some(template), markers, ..TinyModel::default() };
        let rig = rig(&options, |_| ());
        let opening = rig.model.vocabulary() as u32 - 3 - markers.len() as u32;
        let output_spec = OutputSpec { tools: two_tools(), parallel: true, ..OutputSpec::default() };
        for seed in 0..4 {
            let mut request = constrained(&rig, rig.model.compile_grammar(&output_spec).unwrap(), seed);
            // With an even seed the lower bias lets some text come first.
            request.sampling.logit_bias = vec![(opening, if seed % 2 == 0 { 6. } else { 100. })];
            request.max_tokens = 1500;
            // A stop string that occurs in every call, but rarely in text.
            request.stop = vec!["\"name\": ".to_owned()];
            let output = rig.run_one(request).await;
            if output.calls.is_empty() && seed % 2 == 0 {
                continue;
            }
            assert_eq!(output.end, Some(FinishReason::ToolCalls), "{output:?}");
            let openings = ["<tool_call", "TOOL_CALLS", "<|tool_call", "<TOOLCALL"];
            assert!(!openings.iter().any(|opening| output.text.contains(opening)), "{output:?}");
            check_calls(&output);
        }
    }
}

/// A request whose first token is the model's last marker.
fn starting_with_marker(rig: &Rig, parallel: bool, seed: u64) -> GenerationRequest {
    let output_spec = OutputSpec { tools: two_tools(), parallel, ..OutputSpec::default() };
    let mut request = constrained(rig, rig.model.compile_grammar(&output_spec).unwrap(), seed);
    let marker = rig.model.vocabulary() as u32 - 3 - 1;
    request.sampling.logit_bias = vec![(marker, 100.)];
    request
}

#[tokio::test]
async fn output_that_begins_with_the_json_of_a_call_is_a_call() {
    let bare: [&'static [(&'static str, i32)]; 3] = [
        &[("```json\n{\"name\": \"count\", \"arguments\":", 4)],
        &[("\n```\n{\n  \"name\": \"count\",\n  \"parameters\" : ", 4)],
        &[("<tool_call>", 3), ("{\"name\":\"count\",\"arguments\":{\"n\"", 4)],
    ];
    for (template, markers) in [crate::tiny_model::CHATML, MISTRAL, HERMES].into_iter().zip(bare) {
        let rig = rig(&TinyModel { context: 2048, template: Some(template), markers, ..TinyModel::default() }, |_| ());
        for (seed, parallel) in [(0, false), (1, true), (2, false), (3, true)] {
            let mut request = starting_with_marker(&rig, parallel, seed);
            request.stop = vec!["`".to_owned(), "name".to_owned()];
            let output = rig.run_one(request).await;
            assert_eq!((output.text.as_str(), output.end), ("", Some(FinishReason::ToolCalls)), "{output:?}");
            check_calls(&output);
            assert!(output.calls.len() == if parallel { 16 } else { 1 }, "{output:?}");
        }
    }
}

#[tokio::test]
async fn text_that_resembles_a_call_stays_text() {
    let texts: [&'static [(&'static str, i32)]; 4] = [
        &[("```json\n{\"name\": \"find\", \"arguments\": 5", 4)],
        &[("{\"name\": \"count\", \"n\": 5", 4)],
        &[("```rust\n{\"name\": \"count\", \"arguments\": 5", 4)],
        &[("So: {\"name\": \"count\", \"arguments\": 5", 4)],
    ];
    for markers in texts {
        let (text, _) = markers[0];
        let rig = rig(&TinyModel { markers, template: Some(HERMES), ..TinyModel::default() }, |_| ());
        let mut request = starting_with_marker(&rig, true, 1);
        request.max_tokens = 2;
        let output = rig.run_one(request.clone()).await;
        assert_eq!((output.text, output.calls.len(), output.end), (text.repeat(2), 0, Some(FinishReason::Length)));
        request.stop = vec![": ".to_owned()];
        let output = rig.run_one(request).await;
        assert_eq!(
            (output.text.as_str(), output.end),
            (text.split(": ").next().unwrap(), Some(FinishReason::StopString(0)))
        );
    }
}

#[tokio::test]
async fn text_matches_its_schema_when_tools_are_optional() {
    let rig = family(HERMES);
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } },
        "required": ["a"], "additionalProperties": false });
    let text = TextFormat::Schema { schema, strict: true };
    let output_spec = OutputSpec { text: text.clone(), tools: two_tools(), parallel: true, ..OutputSpec::default() };
    let (mut said, mut called) = (0, 0);
    for seed in 0..20 {
        let output = generate(&rig, &output_spec, seed).await;
        if output.calls.is_empty() {
            assert!(serde_json::from_str::<Value>(&output.text).unwrap()["a"].is_boolean(), "{output:?}");
            said += 1;
        } else {
            check_calls(&output);
            called += 1;
        }
    }
    assert!(said > 0 && called > 0, "{said} {called}");
    let output_spec = OutputSpec { text, tools: two_tools(), ..OutputSpec::default() };
    let refused = family(LLAMA).model.compile_grammar(&output_spec).unwrap_err();
    assert!(matches!(refused, GrammarError::Combination(_)), "{refused}");
}

#[tokio::test]
async fn text_matches_a_regex_a_choice_or_a_grammar() {
    let choices = ["yes".to_owned(), "yes, \"but\"".to_owned(), "nö\n".to_owned()];
    let lark = "start: item (\",\" item)*\nitem: /[a-z]/ \"=\" NUMBER\nNUMBER: /[0-9]{1,2}/";
    let regexes =
        [r"[a-c]{2}-\d{1,3}/x", r"^[a-c]{2}-\d{1,3}/x$", r"(aa|b)\$"].map(|regex| TextFormat::Regex(regex.to_owned()));
    let formats = [TextFormat::Choice(choices.to_vec()), TextFormat::Lark(lark.to_owned())];
    let patterns = [
        r"^[a-c]{2}-\d{1,3}/x$",
        r"^[a-c]{2}-\d{1,3}/x$",
        r"^(aa|b)\$$",
        "^(yes|yes, \"but\"|nö\n)$",
        "^[a-z]=[0-9]{1,2}(,[a-z]=[0-9]{1,2})*$",
    ];
    let rig = large_context();
    let with_tools = family(HERMES);
    let mut called = 0;
    for (text, pattern) in regexes.into_iter().chain(formats).zip(patterns) {
        let pattern = regex::Regex::new(pattern).unwrap();
        let spec = OutputSpec { text, ..OutputSpec::default() };
        for seed in 0..6 {
            let output = generate(&rig, &spec, seed).await;
            assert!(pattern.is_match(&output.text), "{pattern} {output:?}");
            let spec = OutputSpec { tools: two_tools(), ..spec.clone() };
            let output = generate(&with_tools, &spec, seed).await;
            called += usize::from(!output.calls.is_empty());
            assert!(!output.calls.is_empty() || pattern.is_match(&output.text), "{pattern} {output:?}");
        }
    }
    assert!(called > 0);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
fn invalid_and_malicious_grammars_are_refused_in_bounded_time() {
    let rig = large_context();
    let regexes = ["(", "a{1000}{1000}{1000}", "((a*)*)*(b+){999}{999}", "\\1"];
    let grammars =
        ["start", "start: x", "start: start", "start: /(/", "rule: \"a\"", "start: @arguments_0", "%llguidance {"];
    let nested = format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
    let chain = |rules: u32| {
        let rule = |index| format!("r{index}: \"a\" r{} | \"b\"\n", index + 1);
        format!("start: r0\n{}r{rules}: \"c\"", (0..rules).map(rule).collect::<String>())
    };
    let optional = format!("start: {}", "\"a\"? \"b\"? ".repeat(3_000));
    let alternatives =
        format!("start: {}", (0..6_000).map(|index| format!("\"{index}\"")).collect::<Vec<_>>().join(" | "));
    let repeated = "start: ((\"a\" \"b\"?){0,1000} \"c\"){0,1000}".to_owned();
    let regexes = regexes.map(|regex| TextFormat::Regex(regex.to_owned()));
    let grammars = grammars.iter().map(|grammar| TextFormat::Lark((*grammar).to_owned()));
    let long = [nested, chain(500), chain(3_000), optional, alternatives, repeated].map(TextFormat::Lark);
    for text in regexes.into_iter().chain(grammars).chain(long) {
        let spec = OutputSpec { text, ..OutputSpec::default() };
        let begun = Instant::now();
        let made = rig.model.compile_grammar(&spec);
        let elapsed = begun.elapsed();
        assert!(elapsed.as_secs() < 15, "{elapsed:?} {:.60}", format!("{:?}", spec.text));
        if let Err(error) = made {
            assert!(matches!(&error, GrammarError::Schema { path, .. } if path.is_empty()), "{error}");
            assert!(error.to_string().contains("cannot be enforced: ") && error.to_string().len() < 300, "{error}");
        }
    }
}

#[tokio::test]
async fn a_grammar_works_with_seeds_choices_and_min_tokens() {
    let rig = large_context();
    let output_spec = schema(json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 4 }));
    let output_spec = rig.model.compile_grammar(&output_spec).unwrap();
    let generate = |choices| GenerationRequest { choices, ..constrained(&rig, output_spec.clone(), 4) };
    let three = rig.run(generate(3)).await;
    assert_eq!(three, rig.run(generate(3)).await);
    assert_eq!(three[0], rig.run_one(generate(1)).await);
    assert!(three[0].text != three[1].text || three[0].text != three[2].text);

    // A complete grammar ends generation, even with ignore_eos or min_tokens.
    let mut longer = generate(1);
    (longer.sampling.min_tokens, longer.sampling.ignore_eos) = (500, true);
    let output = rig.run_one(longer).await;
    assert_eq!(output.end, Some(FinishReason::Stop));
    assert!(serde_json::from_str::<Value>(&output.text).unwrap().is_array());

    let mut stopped = generate(1);
    stopped.stop = vec!["e".to_owned()];
    let output = rig.run_one(stopped).await;
    assert!(!output.text.contains('e') && output.end == Some(FinishReason::StopString(0)));
}

#[tokio::test]
async fn log_probabilities_are_computed_before_the_grammar_mask() {
    let rig = large_context();
    let mut request = constrained(&rig, rig.model.compile_grammar(&schema(json!({ "const": 7 }))).unwrap(), 1);
    request.logprobs = Some(5);
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    let pieces = pieces(ticket.deltas).await.unwrap();
    assert_eq!(pieces[0].text, "7");
    assert!(pieces[0].tokens[0].top.iter().all(|token| token.logprob.is_finite()));
    assert!(pieces[0].tokens[0].top[0].bytes != b"7", "the most likely token of a random model is another one");
}

#[tokio::test]
async fn a_logit_bias_that_bans_every_allowed_token_fails_clearly() {
    let rig = large_context();
    let mut request = constrained(&rig, rig.model.compile_grammar(&schema(json!({ "const": true }))).unwrap(), 1);
    request.sampling.logit_bias = (0..rig.model.vocabulary() as u32).map(|id| (id, -100.)).collect();
    let ticket = rig.engine.submit(&rig.model, request).unwrap();
    assert!(matches!(pieces(ticket.deltas).await, Err(Failure::NoToken)));
    rig.wait_until_idle().await;
}

/// Malicious schemas. Some may be accepted.
#[test]
fn grammars_are_cached_per_output_spec() {
    let rig = large_context();
    let calls = |calling, look: &str| {
        let tools = Arc::from([tool(look, json!({ "type": "object" }))]);
        OutputSpec { tools, calling, ..OutputSpec::default() }
    };
    let cached_spec = calls(CallMode::Required, "look");
    assert!(rig.model.cached_grammar(&cached_spec).is_none());
    rig.model.compile_grammar(&cached_spec).unwrap();
    assert!(rig.model.cached_grammar(&cached_spec).is_some());
    let other_specs = [
        calls(CallMode::Auto, "look"),
        calls(CallMode::Required, "see"),
        OutputSpec { parallel: true, ..calls(CallMode::Required, "look") },
        OutputSpec { text: TextFormat::Object, ..calls(CallMode::Required, "look") },
        schema(json!("object")),
    ];
    assert!(other_specs.iter().all(|other| rig.model.cached_grammar(other).is_none()));
}

fn malicious_schemas() -> Vec<(&'static str, Value)> {
    let nested = (0..120).fold(json!({}), |inner, _| json!({ "a": inner }));
    let chain: serde_json::Map<String, Value> = (0..4_000)
        .map(|at| {
            (format!("d{at}"), json!({ "properties": { "n": { "$ref": format!("#/$defs/d{}", (at + 1) % 4_000) } } }))
        })
        .collect();
    let defs = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    vec![
        ("nested repetition", json!({ "type": "string", "pattern": "^(a+)+$" })),
        ("nested counts", json!({ "type": "string", "pattern": "^((a{1,99}){1,99}){1,99}$" })),
        ("exponential automaton", json!({ "type": "string", "pattern": "^[ab]*a[ab]{40}$" })),
        (
            "and of three",
            json!({ "allOf": (1..4).map(|n| json!({ "type": "string", "pattern": format!("(a.{{{n}9}}b)") })).collect::<Vec<_>>() }),
        ),
        (
            "pattern and length",
            json!({ "type": "string", "pattern": "^[ab]*a[ab]{90}c[ab]*a[ab]{90}$", "minLength": 50, "maxLength": 5_000 }),
        ),
        (
            "and of many",
            json!({ "allOf": (1..60).map(|n| json!({ "type": "string", "pattern": format!("(a.{{{n}}}b)") })).collect::<Vec<_>>() }),
        ),
        (
            "and of many inside",
            json!({ "allOf": (1..60).map(|n| json!({ "type": "array", "items": { "type": "string", "pattern": format!("(a.{{{n}}}b)") } })).collect::<Vec<_>>() }),
        ),
        (
            "multiples inside",
            json!({ "allOf": Vec::from([997, 1_009].map(|n| json!({ "type": "object", "properties": { "a": { "type": "integer", "multipleOf": n } } }))) }),
        ),
        ("parentheses", json!({ "type": "string", "pattern": "(".repeat(60_000) })),
        (
            "closed parentheses",
            json!({ "type": "string", "pattern": format!("{}{}", "(".repeat(450), ")".repeat(450)) }),
        ),
        ("a cycle", defs(r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##)),
        ("a cycle of allOf", defs(r##"{"allOf":[{"$ref":"#"},{"type":"object"}]}"##)),
        ("a chain", json!({ "$ref": "#/$defs/d0", "$defs": chain })),
        ("a wide enum", json!({ "enum": (0..10_000).map(|at| format!("value number {at}")).collect::<Vec<_>>() })),
        ("a wide oneOf", json!({ "oneOf": (0..10_000).map(|at| json!({ "const": at })).collect::<Vec<_>>() })),
        (
            "a wide anyOf",
            json!({ "anyOf": (0..4_000).map(|at| json!({ "type": "object", "properties": { format!("p{at}"): {} } })).collect::<Vec<_>>() }),
        ),
        ("deep constants", json!({ "const": (0..100).fold(json!(1), |inner, _| json!([inner])) })),
        ("deep unknown", json!({ "nothing": nested })),
        ("a long string", json!({ "type": "string", "minLength": 10_000, "maxLength": 10_000 })),
        (
            "a long array",
            json!({ "type": "array", "items": { "type": "array", "minItems": 10_000 }, "minItems": 10_000 }),
        ),
        (
            "products",
            json!({ "allOf": (0..12).map(|_| json!({ "anyOf": [{ "type": "object", "minProperties": 1 }, { "type": "object" }, { "type": "array" }] })).collect::<Vec<_>>() }),
        ),
        (
            "many properties",
            json!({ "type": "object", "properties": (0..4_000).map(|at| (format!("p{at}"), json!({ "type": "string" }))).collect::<serde_json::Map<_, _>>() }),
        ),
        ("multiples", json!({ "type": "number", "multipleOf": 0.000_000_1, "minimum": 1e-300, "maximum": 1e300 })),
        ("a large multiple", json!({ "type": "integer", "multipleOf": 2_147_483_647 })),
        (
            "many multiples",
            json!({ "type": "object", "properties": (0..900).map(|at| (format!("p{at}"), json!({ "type": "integer", "multipleOf": 9_001 + at }))).collect::<serde_json::Map<_, _>>() }),
        ),
        (
            "ranges",
            json!({ "type": "integer", "minimum": -9_007_199_254_740_991i64, "maximum": 9_007_199_254_740_991i64 }),
        ),
        ("other hands", json!({ "x-guidance": { "lenient": true }, "not": {} })),
    ]
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test measures real time")]
async fn malicious_schemas_are_refused_or_compiled_in_bounded_time() {
    let rig = large_context();
    for (what, one) in malicious_schemas() {
        let began = Instant::now();
        let output_spec = rig.model.compile_grammar(&schema(one));
        let elapsed = began.elapsed();
        // The limit is a second; the test allows more for busy machines. Without the limit each takes minutes.
        assert!(elapsed < Duration::from_secs(10), "{what}: {elapsed:?}");
        let Ok(output_spec) = output_spec else { continue };
        let mut request = constrained(&rig, output_spec, 1);
        request.max_tokens = 50;
        let began = Instant::now();
        let ticket = rig.engine.submit(&rig.model, request).unwrap();
        let outcome = pieces(ticket.deltas).await;
        assert!(!matches!(outcome, Err(Failure::Internal(_))), "{what}");
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
    }
    let fine = generate(&rig, &schema(json!({ "const": 1 })), 1).await;
    assert_eq!(fine.text, "1");
}
