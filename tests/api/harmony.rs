//! gpt-oss through every API for text: a tiny model writes given turns in harmony.

use outpost_testing::harmony;
use serde_json::{Value, json};

use crate::equal_apis::{APIS, Api, Received, Request};
use crate::scripted_model::{self, Script};
use crate::server::{MODEL, Server};

macro_rules! script {
    ($after:literal, $output:literal) => {
        Script { after: concat!($after, "<|end|><|start|>assistant"), output: $output }
    };
}

/// What the model writes after the message of a user that ends in the first text.
const SCRIPTS: &[Script] = &[
    script!(
        "Q1",
        "<|channel|>analysis<|message|>A simple sum: four.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
    ),
    script!(
        "Q2",
        "<|channel|>analysis<|message|>I have to look it up.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{\"place\": \"sea\"}<|call|>"
    ),
    script!(
        "Q3",
        " to=functions.find<|channel|>commentary json<|message|>{\"place\":\"land\"}<|end|><|start|>assistant<|channel|>commentary to=functions.wait<|message|>{}<|call|>"
    ),
    script!("Q4", "Only [1] is the answer.<|return|>"),
    script!("Q5", "<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>"),
    script!(
        "Q6",
        "<|channel|>analysis<|message|>They want JSON now.<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{\"place\": \"land\"}<|return|>"
    ),
    script!("Q7", "<|channel|>final<|message|>So be it.<|end|><|start|>user<|message|>And now?<|end|>"),
    // After the result of a tool.
    script!(
        "\"wet\"",
        "<|channel|>analysis<|message|>The result is wet.<|end|><|start|>assistant<|channel|>final<|message|>It is wet.<|return|>"
    ),
    // A continued answer.
    Script { after: "<|message|>Q8 is", output: " what it is.<|return|>" },
];

fn server() -> Server {
    let folder = tempfile::tempdir().unwrap();
    scripted_model::write(&folder.path().join("models"), MODEL, &harmony::MODEL, SCRIPTS);
    Server::start_in(folder)
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn tools() -> Vec<Value> {
    let look = json!({
        "type": "object", "properties": { "place": { "type": "string", "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false,
    });
    let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "description": "Works.", "parameters": parameters } });
    vec![tool("look", look.clone()), tool("find", look), tool("wait", nothing)]
}

fn request(text: &str) -> Request {
    Request { messages: vec![user(text)], max_tokens: 200, reasoning: Some(1000), ..Request::default() }
}

fn send(server: &Server, api: Api, request: &Request) -> Received {
    api.received(&server.post(api.path(), &api.body(request)), request.stream)
}

/// Sends a request to every API, streamed and not, and checks what it receives.
fn check(server: &Server, request: &Request, reasoning: &str, text: &str, calls: &[(&str, Value)], ending: &str) {
    for api in APIS {
        for stream in [false, true] {
            let found = send(server, api, &Request { stream, ..request.clone() });
            let expected: Vec<_> =
                calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
            assert_eq!(
                (found.reasoning.as_str(), found.text.as_str(), &found.calls, found.ending),
                (reasoning, text, &expected, ending),
                "{api:?} {stream}"
            );
        }
    }
}

#[test]
fn channels_are_the_reasoning_and_the_answer() {
    let server = server();
    check(&server, &request("Q1"), "A simple sum: four.", "It is 4.", &[], "stop");
    let cut_off = Request { max_tokens: 18, ..request("Q1") };
    check(&server, &cut_off, "A simple", "", &[], "length");
    // Tokens of the reasoning, with its markers: the names of channels are bytes here.
    let body = json!({ "model": MODEL, "temperature": 0, "messages": [user("Q1")], "logprobs": true });
    let chat = server.post("/v1/chat/completions", &body).ok();
    let reasoning = 1 + "analysis".len() + 1 + "A simple sum: four.".len() + 1;
    assert_eq!(chat["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
    let tokens = chat["choices"][0]["logprobs"]["content"].as_array().unwrap().iter();
    assert_eq!(tokens.map(|token| token["token"].as_str().unwrap()).collect::<String>(), "It is 4.");
    // A completion is raw.
    let body = json!({ "model": MODEL, "temperature": 0, "max_tokens": 60, "prompt": "Q1<|end|><|start|>assistant", "skip_special_tokens": false });
    let raw = server.post("/v1/completions", &body).ok()["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(raw.starts_with("<|channel|>analysis<|message|>A simple sum: four.<|end|><|start|>assistant"), "{raw}");
}

#[test]
fn messages_to_functions_are_calls() {
    let server = server();
    let with_tools = |text: &str| Request { tools: tools(), ..request(text) };
    let look = ("look", json!({ "place": "sea" }));
    let find = ("find", json!({ "place": "land" }));
    check(&server, &with_tools("Q2"), "I have to look it up.", "Let me look.", &[look], "calls");
    check(&server, &with_tools("Q3"), "", "", &[find, ("wait", json!({}))], "calls");
    check(&server, &with_tools("Q1"), "A simple sum: four.", "It is 4.", &[], "stop");
    // The call, and then its result.
    let function = json!({ "name": "look", "arguments": "{\"place\":\"sea\"}" });
    let call = json!({ "id": "call_1", "type": "function", "function": function });
    let history = vec![
        user("Q2"),
        json!({ "role": "assistant", "content": "Let me look.", "reasoning_content": "Hm.", "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "wet" }),
    ];
    check(&server, &Request { messages: history, ..with_tools("") }, "The result is wet.", "It is wet.", &[], "stop");
    // A required call of another tool than the model wants.
    for api in APIS {
        let request = Request { choice: Some("wait"), ..with_tools("Q2") };
        let Received { reasoning, text, calls, ending, .. } = send(&server, api, &request);
        assert_eq!((reasoning.as_str(), text.as_str(), ending), ("I have to look it up.", "Let me look.", "calls"));
        assert_eq!(calls, [("wait".to_owned(), json!({}))], "{api:?}");
        let request = Request { choice: Some("required"), ..with_tools("Q2") };
        assert_eq!(send(&server, api, &request).calls, [("look".to_owned(), json!({ "place": "sea" }))], "{api:?}");
    }
}

#[test]
fn a_schema_applies_to_the_answer() {
    let server = server();
    let schema = tools()[0]["function"]["parameters"].clone();
    let json = Request { schema: Some(schema), ..request("Q6") };
    check(&server, &json, "They want JSON now.", "{\"place\": \"land\"}", &[], "stop");
    // The model wants to reason and to write a text.
    for (more, reasons) in [
        (json!({}), true),
        (json!({ "reasoning_effort": "none" }), false),
        (json!({ "max_reasoning_tokens": 12 }), true),
    ] {
        let mut body = json!({
            "model": MODEL, "temperature": 0, "messages": [user("Q1")], "max_tokens": 300,
            "structured_outputs": { "choice": ["sea", "land"] },
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let chat = server.post("/v1/chat/completions", &body).ok();
        let (message, usage) = (&chat["choices"][0]["message"], &chat["usage"]["completion_tokens_details"]);
        let text = message["content"].as_str().unwrap();
        assert!(text.ends_with("sea") || text.ends_with("land"), "{message}");
        let tokens = usage["reasoning_tokens"].as_u64().unwrap();
        assert_eq!((tokens > 0, message["reasoning"].is_string()), (reasons, reasons), "{message}");
        if more.get("max_reasoning_tokens").is_some() {
            assert_eq!((tokens, &message["reasoning"]), (13, &json!("A ")), "its markers are part of it");
        }
    }
}

#[test]
fn what_the_format_does_not_foresee_is_kept() {
    let server = server();
    check(&server, &request("Q4"), "", "Only [1] is the answer.", &[], "stop");
    check(&server, &request("Q5"), "print(6 * 7)", "", &[], "stop");
    check(&server, &request("Q7"), "", "So be it.", &[], "stop");
}

#[test]
fn ollama_has_the_channels_apart() {
    let server = server();
    let chat = |more: Value| {
        let mut body = json!({ "model": MODEL, "options": { "temperature": 0, "num_predict": 200 }, "messages": [user("Q2")], "tools": tools() });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/api/chat", &body)
    };
    let whole = chat(json!({ "stream": false })).ok();
    let message = &whole["message"];
    assert_eq!((&message["thinking"], &message["content"]), (&json!("I have to look it up."), &json!("Let me look.")));
    let calls = json!([{ "name": "look", "arguments": { "place": "sea" } }]);
    let functions = |calls: &Value| {
        let function =
            |call: &Value| json!({ "name": call["function"]["name"], "arguments": call["function"]["arguments"] });
        json!(calls.as_array().into_iter().flatten().map(function).collect::<Vec<_>>())
    };
    assert_eq!(functions(&message["tool_calls"]), calls);
    let lines = chat(json!({ "stream": true }));
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let joined = |field: &str| lines.iter().filter_map(|line| line["message"][field].as_str()).collect::<String>();
    assert_eq!((joined("thinking").as_str(), joined("content").as_str()), ("I have to look it up.", "Let me look."));
    assert!(lines.iter().any(|line| functions(&line["message"]["tool_calls"]) == calls));
    let shown = server.post("/api/show", &json!({ "model": MODEL })).ok();
    for capability in ["thinking", "tools"] {
        assert!(shown["capabilities"].as_array().unwrap().contains(&json!(capability)), "{shown}");
    }
}

#[test]
fn a_given_beginning_of_the_answer_is_continued() {
    let server = server();
    let messages = json!([user("So"), { "role": "assistant", "content": "Q8 is" }]);
    let body = json!({ "model": MODEL, "temperature": 0, "max_tokens": 40, "messages": messages, "continue_final_message": true });
    let chat = server.post("/v1/chat/completions", &body).ok();
    assert_eq!(chat["choices"][0]["message"]["content"], " what it is.");
}

/// The prompt of a request, as text.
fn prompt(server: &Server, more: Value) -> String {
    let mut body = json!({ "model": MODEL, "messages": [user("hi")] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let tokens = server.post("/v1/tokenize", &body).ok()["tokens"].clone();
    let text = server.post("/v1/detokenize", &json!({ "model": MODEL, "tokens": tokens })).ok();
    text["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn the_level_of_reasoning_is_one_that_the_model_knows() {
    let server = server();
    for (effort, level) in
        [("none", "low"), ("minimal", "low"), ("low", "low"), ("high", "high"), ("xhigh", "high"), ("max", "high")]
    {
        let prompt = prompt(&server, json!({ "chat_template_kwargs": { "reasoning_effort": effort } }));
        assert!(prompt.contains(&format!("\n\nReasoning: {level}\n\n")), "{prompt}");
    }
    assert!(prompt(&server, json!({})).contains("\n\nReasoning: medium\n\n"));
    let ended = prompt(
        &server,
        json!({ "messages": [user("hi"), { "role": "assistant", "content": "So" }], "add_generation_prompt": false }),
    );
    assert!(ended.ends_with("<|start|>assistant<|channel|>final<|message|>So<|end|>"), "{ended}");
}
