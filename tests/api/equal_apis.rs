//! The same requests through chat completions, responses and messages: equal outputs and equal usage records.

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::server::{MODEL, Response, Server};
use crate::slow_model;
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// A request of no particular API.
#[derive(Clone, Default)]
pub struct Request {
    pub system: Option<&'static str>,
    /// Messages of chat completions with the roles user, assistant and tool.
    pub messages: Vec<Value>,
    pub max_tokens: u32,
    /// Function tools of chat completions.
    pub tools: Vec<Value>,
    /// `required`, or the name of a tool.
    pub choice: Option<&'static str>,
    pub schema: Option<Value>,
    pub stop: Option<&'static str>,
    /// Whether the model reasons, and with how many tokens at most.
    pub reasoning: Option<u32>,
    pub stream: bool,
}

/// What a client receives, in the terms of chat completions.
#[derive(Debug, Default, PartialEq)]
pub struct Received {
    pub reasoning: String,
    pub text: String,
    /// Names and arguments.
    pub calls: Vec<(String, Value)>,
    pub ending: &'static str,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub completion_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
}

pub const APIS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The name and the arguments of a call. `arguments`: JSON, as text; null if they are cut off.
fn call(name: &Value, arguments: &Value) -> (String, Value) {
    (text(name), serde_json::from_str(arguments.as_str().unwrap()).unwrap_or_default())
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number of tokens"))
}

/// The data of each event of a stream.
fn events(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/openai/v1/chat/completions",
            Self::Responses => "/openai/v1/responses",
            Self::Messages => "/openai/v1/messages",
        }
    }

    /// The endpoint in usage reports.
    fn endpoint(self) -> &'static str {
        match self {
            Self::Chat => "POST /chat/completions",
            Self::Responses => "POST /responses",
            Self::Messages => "POST /messages",
        }
    }

    pub fn body(self, request: &Request) -> Value {
        let base = json!({ "model": MODEL, "temperature": 0, "stream": request.stream });
        let own = match self {
            Self::Chat => chat(request),
            Self::Responses => responses(request),
            Self::Messages => messages(request),
        };
        with(base, Value::Object(own.into_iter().filter(|(_, value)| !value.is_null()).collect()))
    }

    pub fn received(self, response: &Response, stream: bool) -> Received {
        assert_eq!(response.status, 200, "{self:?}: {}", response.text);
        match (self, stream) {
            (Self::Chat, false) => received_chat(&response.json()),
            (Self::Chat, true) => received_chat(&joined_chat(&events(&response.text))),
            (Self::Responses, false) => received_response(&response.json()),
            (Self::Responses, true) => received_response(&events(&response.text).last().unwrap()["response"]),
            (Self::Messages, false) => received_message(&response.json()),
            (Self::Messages, true) => received_message(&joined_message(&events(&response.text))),
        }
    }
}

fn fields(body: Value) -> Map<String, Value> {
    match body {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

fn chat(request: &Request) -> Map<String, Value> {
    let system = request.system.map(|text| json!({ "role": "system", "content": text }));
    let messages: Vec<Value> = system.into_iter().chain(request.messages.iter().cloned()).collect();
    let schema = |schema: &Value| json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    fields(json!({
        "messages": messages,
        "max_tokens": request.max_tokens,
        "tools": (!request.tools.is_empty()).then_some(&request.tools),
        "tool_choice": request.choice.map(|choice| match choice {
            "required" => json!(choice),
            name => json!({ "type": "function", "function": { "name": name } }),
        }),
        "parallel_tool_calls": request.choice.map(|_| false),
        "response_format": request.schema.as_ref().map(schema),
        "stop": request.stop,
        "enable_thinking": request.reasoning.is_some(),
        "max_reasoning_tokens": request.reasoning,
        "stream_options": request.stream.then_some(json!({ "include_usage": true })),
    }))
}

fn responses(request: &Request) -> Map<String, Value> {
    let items = request.messages.iter().flat_map(|message| {
        let plain = json!({ "role": message["role"], "content": message["content"] });
        match message["role"].as_str().unwrap() {
            "tool" => vec![json!({
                "type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"],
            })],
            _ => {
                let has_calls = message["tool_calls"].is_array();
                let text = (message["content"] != "" || !has_calls).then_some(plain);
                let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
                    let function = &call["function"];
                    json!({
                        "type": "function_call", "call_id": call["id"],
                        "name": function["name"], "arguments": function["arguments"],
                    })
                });
                text.into_iter().chain(calls).collect()
            }
        }
    });
    let tool = |tool: &Value| with(json!({ "type": "function" }), tool["function"].clone());
    let schema = |schema: &Value| json!({ "format": { "type": "json_schema", "name": "s", "schema": schema } });
    fields(json!({
        "instructions": request.system,
        "input": items.collect::<Vec<_>>(),
        "max_output_tokens": request.max_tokens,
        "tools": (!request.tools.is_empty()).then(|| request.tools.iter().map(tool).collect::<Vec<_>>()),
        "tool_choice": request.choice.map(|choice| match choice {
            "required" => json!(choice),
            name => json!({ "type": "function", "name": name }),
        }),
        "parallel_tool_calls": request.choice.map(|_| false),
        "text": request.schema.as_ref().map(schema),
        "stop": request.stop,
        "reasoning": { "effort": if request.reasoning.is_some() { "low" } else { "none" } },
        "max_reasoning_tokens": request.reasoning,
    }))
}

fn messages(request: &Request) -> Map<String, Value> {
    let blocks = |message: &Value| match message["role"].as_str().unwrap() {
        "tool" => {
            let result = json!({
                "type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"],
            });
            json!({ "role": "user", "content": [result] })
        }
        role => {
            let has_calls = message["tool_calls"].is_array();
            let text = json!({ "type": "text", "text": message["content"] });
            let text = (message["content"] != "" || !has_calls).then_some(text);
            let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
                let function = &call["function"];
                let input: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
                json!({ "type": "tool_use", "id": call["id"], "name": function["name"], "input": input })
            });
            json!({ "role": role, "content": text.into_iter().chain(calls).collect::<Vec<_>>() })
        }
    };
    let tool = |tool: &Value| {
        let function = &tool["function"];
        json!({
            "name": function["name"], "description": function["description"], "input_schema": function["parameters"],
        })
    };
    let schema = |schema: &Value| json!({ "format": { "type": "json_schema", "schema": schema } });
    fields(json!({
        "system": request.system,
        "messages": request.messages.iter().map(blocks).collect::<Vec<_>>(),
        "max_tokens": request.max_tokens,
        "tools": (!request.tools.is_empty()).then(|| request.tools.iter().map(tool).collect::<Vec<_>>()),
        "tool_choice": request.choice.map(|choice| match choice {
            "required" => json!({ "type": "any", "disable_parallel_tool_use": true }),
            name => json!({ "type": "tool", "name": name, "disable_parallel_tool_use": true }),
        }),
        "output_config": request.schema.as_ref().map(schema),
        "stop_sequences": request.stop.map(|stop| [stop]),
        "thinking": request.reasoning.map(|budget| json!({ "type": "enabled", "budget_tokens": budget })),
    }))
}

fn received_chat(body: &Value) -> Received {
    let (choice, usage) = (&body["choices"][0], &body["usage"]);
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    Received {
        reasoning: text(&message["reasoning_content"]),
        text: text(&message["content"]),
        calls: calls.map(|found| call(&found["function"]["name"], &found["function"]["arguments"])).collect(),
        ending: match choice["finish_reason"].as_str().unwrap() {
            "stop" => "stop",
            "length" => "length",
            "tool_calls" => "calls",
            other => panic!("{other}"),
        },
        prompt_tokens: count(&usage["prompt_tokens"]),
        cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"]),
        completion_tokens: count(&usage["completion_tokens"]),
    }
}

/// The completion that a stream's chunks make.
fn joined_chat(chunks: &[Value]) -> Value {
    let (mut message, mut calls) = (json!({ "content": "", "reasoning_content": "" }), Vec::<Value>::new());
    let mut ending = Value::Null;
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let delta = &choice["delta"];
        for field in ["content", "reasoning_content"] {
            message[field] = json!(text(&message[field]) + &text(&delta[field]));
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(count(&call["index"])).unwrap();
            let function = &call["function"];
            if index == calls.len() {
                calls.push(json!({ "function": { "name": function["name"], "arguments": "" } }));
            }
            let arguments = &mut calls[index]["function"]["arguments"];
            *arguments = json!(text(arguments) + &text(&function["arguments"]));
        }
        if !choice["finish_reason"].is_null() {
            ending = choice["finish_reason"].clone();
        }
    }
    message["tool_calls"] = json!(calls);
    json!({ "choices": [{ "message": message, "finish_reason": ending }], "usage": chunks.last().unwrap()["usage"] })
}

fn received_response(body: &Value) -> Received {
    let (output, usage) = (body["output"].as_array().unwrap(), &body["usage"]);
    let items = |kind: &'static str| output.iter().filter(move |item| item["type"] == kind);
    let texts = |kind| items(kind).map(|item| text(&item["content"][0]["text"])).collect::<String>();
    let calls: Vec<_> = items("function_call").map(|item| call(&item["name"], &item["arguments"])).collect();
    Received {
        reasoning: texts("reasoning"),
        text: texts("message"),
        ending: match body["status"].as_str().unwrap() {
            "incomplete" => "length",
            "completed" if calls.is_empty() => "stop",
            "completed" => "calls",
            other => panic!("{other}"),
        },
        calls,
        prompt_tokens: count(&usage["input_tokens"]),
        cached_tokens: count(&usage["input_tokens_details"]["cached_tokens"]),
        completion_tokens: count(&usage["output_tokens"]),
    }
}

fn received_message(body: &Value) -> Received {
    let (content, usage) = (body["content"].as_array().unwrap(), &body["usage"]);
    let blocks = |kind: &'static str| content.iter().filter(move |block| block["type"] == kind);
    let cached = count(&usage["cache_read_input_tokens"]);
    Received {
        reasoning: blocks("thinking").map(|block| text(&block["thinking"])).collect(),
        text: blocks("text").map(|block| text(&block["text"])).collect(),
        calls: blocks("tool_use").map(|block| (text(&block["name"]), block["input"].clone())).collect(),
        ending: match body["stop_reason"].as_str().unwrap() {
            "end_turn" | "stop_sequence" => "stop",
            "max_tokens" => "length",
            "tool_use" => "calls",
            other => panic!("{other}"),
        },
        prompt_tokens: count(&usage["input_tokens"]) + cached,
        cached_tokens: cached,
        completion_tokens: count(&usage["output_tokens"]),
    }
}

/// The message that a stream's events make.
fn joined_message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut blocks = Vec::<Value>::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => blocks.push(event["content_block"].clone()),
            "content_block_delta" => {
                let (block, delta) = (blocks.last_mut().unwrap(), &event["delta"]);
                for field in ["text", "thinking", "partial_json"] {
                    if let Some(more) = delta[field].as_str() {
                        block[field] = json!(text(&block[field]) + more);
                    }
                }
            }
            "content_block_stop" => {
                let block = blocks.last_mut().unwrap();
                if let Some(input) = block["partial_json"].as_str() {
                    block["input"] = serde_json::from_str(input).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }
    message["content"] = json!(blocks);
    message
}

/// A project and its key for each API, so that none uses the cache of another.
struct Tenants<'a> {
    server: &'a Server,
    projects: Vec<(Api, String, String)>,
}

impl<'a> Tenants<'a> {
    fn new(server: &'a Server) -> Self {
        let tenant = |api: Api| {
            let (project, _, key) = server.tenant(&format!("{api:?}"));
            (api, project, key)
        };
        Self { server, projects: APIS.map(tenant).to_vec() }
    }

    /// Runs `request` for each API; returns what all have received.
    fn send(&self, request: &Request) -> Received {
        let mut received = self.projects.iter().map(|(api, _, key)| {
            let response = self.server.call(Method::POST, api.path(), Some(key), Some(&api.body(request)));
            (*api, api.received(&response, request.stream))
        });
        let (_, expected) = received.next().unwrap();
        received.for_each(|(api, found)| assert_eq!(found, expected, "{api:?}"));
        expected
    }

    /// The usage of each API's endpoint, which is the same for all.
    fn usage(&self) -> Value {
        let mut rows = self.projects.iter().map(|(api, project, _)| {
            let report = self.server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
            let mut rows = report["groups"].as_array().unwrap().iter();
            let mut row =
                rows.find(|row| row["endpoint"] == api.endpoint()).unwrap_or_else(|| panic!("{report}")).clone();
            row.as_object_mut().unwrap().remove("endpoint");
            (*api, row)
        });
        let (_, expected) = rows.next().unwrap();
        rows.for_each(|(api, found)| assert_eq!(found, expected, "{api:?}"));
        expected
    }
}

/// Reasons unless it is told not to.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";

fn server() -> Server {
    let markers = &[("<think>", 4), ("</think>", 4), ("```json\n{\"name\": \"look\", \"arguments\":", 4)];
    let model =
        TinyModel { context: 2048, blocks: 1, width: 32, template: Some(TEMPLATE), markers, ..TinyModel::default() };
    Server::start_with(&model)
}

fn tool(name: &str) -> Value {
    let parameters = json!({
        "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "description": "Looks.", "parameters": parameters } })
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

/// A call of `look` and its result.
fn looked(text: &str) -> [Value; 2] {
    let function = json!({ "name": "look", "arguments": "{\"place\":\"sea\"}" });
    let call = json!({ "id": "call_1", "type": "function", "function": function });
    [
        with(assistant(text), json!({ "tool_calls": [call] })),
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "water" }),
    ]
}

fn requests() -> Vec<Request> {
    let ask = |messages: Vec<Value>| Request { messages, max_tokens: 24, ..Request::default() };
    let plain =
        ["the sea", "a", "Ünïcödé 🌊\n\tand more", "", "hello \"there\" \\ {}"].map(|text| ask(vec![user(text)]));
    let talks = [
        vec![user("a"), assistant("b"), user("c")],
        vec![user("the sea"), assistant("is the land"), user("hello"), assistant("in the sea"), user("and?")],
    ]
    .map(ask);
    let with_system = |request: &Request| Request { system: Some("Be brief."), ..request.clone() };
    let systems: Vec<Request> = talks.iter().map(with_system).collect();
    let base = ask(vec![user("hello")]);
    let ends = [
        Request { max_tokens: 1, ..base.clone() },
        Request { max_tokens: 400, ..base.clone() },
        Request { stop: Some("e"), max_tokens: 100, ..base.clone() },
    ];
    let tools = vec![tool("look"), tool("see")];
    let calling = Request { tools: tools.clone(), max_tokens: 300, ..base.clone() };
    let calls = [
        calling.clone(),
        Request { choice: Some("required"), ..calling.clone() },
        Request { choice: Some("see"), ..calling.clone() },
        Request { choice: Some("look"), max_tokens: 12, ..calling.clone() },
        Request { choice: Some("see"), reasoning: Some(6), ..calling.clone() },
        Request { messages: [vec![user("a")], looked("").to_vec()].concat(), max_tokens: 24, ..calling.clone() },
        Request { messages: [vec![user("a")], looked("I look.").to_vec(), vec![user("so?")]].concat(), ..calling },
    ];
    let schema = |schema: Value| Request { schema: Some(schema), max_tokens: 200, ..base.clone() };
    let object = json!({
        "type": "object", "required": ["a"], "additionalProperties": false, "properties": { "a": { "enum": [1, 2] } },
    });
    let list = json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 4 });
    let schemas = [
        schema(object.clone()),
        schema(list.clone()),
        Request { reasoning: Some(4), ..schema(object.clone()) },
        Request { max_tokens: 4, ..schema(object) },
        Request { reasoning: Some(12), ..schema(list) },
    ];
    let reasoning = |budget: u32, max_tokens: u32| Request { reasoning: Some(budget), max_tokens, ..base.clone() };
    let reasoned = [reasoning(1, 24), reasoning(8, 24), reasoning(100, 8), reasoning(30, 200)];
    let mut all =
        [plain.to_vec(), talks.to_vec(), systems, ends.to_vec(), calls.to_vec(), schemas.to_vec(), reasoned.to_vec()]
            .concat();
    all.extend([Request { reasoning: Some(5), ..talks[1].clone() }, Request { stop: Some("zz"), ..talks[0].clone() }]);
    all
}

#[test]
fn outputs_and_usage_records_are_equal() {
    let server = server();
    let tenants = Tenants::new(&server);
    let requests = requests();
    assert_eq!(requests.len(), 30);
    let (mut output, mut endings) = (0, std::collections::BTreeSet::new());
    for (index, request) in requests.iter().enumerate() {
        for stream in [false, true] {
            let received = tenants.send(&Request { stream, ..request.clone() });
            output += received.completion_tokens;
            endings.insert(received.ending);
            assert_eq!(received.reasoning.is_empty(), request.reasoning.is_none(), "{index}: {received:?}");
            let must_call = request.choice.is_some() && received.ending != "length";
            assert!(!received.calls.is_empty() || !must_call, "{index}: {received:?}");
        }
        assert_eq!(tenants.usage()["tokens"]["output"], output, "{index}");
    }
    assert_eq!(endings.into_iter().collect::<Vec<_>>(), ["calls", "length", "stop"]);
    let usage = tenants.usage();
    assert_eq!((&usage["requests"], &usage["requests_by_outcome"]["succeeded"]), (&json!(60), &json!(60)));
    assert!(usage["tokens"]["cached"].as_u64().unwrap() > 0, "{usage}");
}

#[test]
fn stored_conversations_give_the_same_prompts() {
    let server = server();
    let tenants = Tenants::new(&server);
    let key = |api: Api| {
        tenants
            .projects
            .iter()
            .find(|tenant| tenant.0 == api)
            .map(|tenant| (tenant.1.as_str(), tenant.2.as_str()))
            .unwrap()
    };
    let post = |api: Api, body: &Value| {
        let response = server.call(Method::POST, api.path(), Some(key(api).1), Some(body));
        (api.received(&response, false), response.json())
    };
    let conversation = json!({ "project_id": key(Api::Chat).0, "messages": [] });
    let conversation = server.post("/v1/conversations", &conversation).ok()["id"].clone();
    let (mut history, mut previous) = (Vec::new(), Value::Null);
    for question in ["the sea", "and the land?", "hello"] {
        history.push(user(question));
        let turn = Request { messages: vec![user(question)], max_tokens: 24, ..Request::default() };
        let (expected, _) = post(Api::Chat, &with(Api::Chat.body(&turn), json!({ "conversation_id": conversation })));
        let chained = with(Api::Responses.body(&turn), json!({ "previous_response_id": previous }));
        let (response, body) = post(Api::Responses, &chained);
        previous = body["id"].clone();
        let whole = Request { messages: history.clone(), ..turn };
        let (message, _) = post(Api::Messages, &Api::Messages.body(&whole));
        assert_eq!((&response, &message), (&expected, &expected));
        history.push(assistant(&expected.text));
    }
    assert_eq!(tenants.usage()["requests"], 3);
}

#[test]
fn what_is_refused_is_refused_by_all() {
    let server = server();
    let tenants = Tenants::new(&server);
    let base = Request { messages: vec![user("the sea")], max_tokens: 24, ..Request::default() };
    let long = Request { messages: vec![user(&"the sea ".repeat(2_000))], ..base.clone() };
    let unknown = json!({ "model": "nothing" });
    let no_tools = Request { choice: Some("required"), ..base.clone() };
    let cases = [
        (base.clone(), unknown, 404),
        (base.clone(), json!({ "temperature": 3 }), 400),
        (long, json!({}), 400),
        (no_tools, json!({}), 400),
        (Request { schema: Some(json!({ "type": "strin" })), ..base.clone() }, json!({}), 400),
        (Request { stream: true, ..base }, json!({ "model": "nothing" }), 404),
    ];
    for (request, more, status) in &cases {
        let refused = APIS.map(|api| {
            let (_, _, key) = tenants.projects.iter().find(|tenant| tenant.0 == api).unwrap();
            let body = with(api.body(request), more.clone());
            let (found, code, _) = server.call(Method::POST, api.path(), Some(key), Some(&body)).error_fields();
            (found, code)
        });
        assert_eq!(refused[0].0, *status, "{more}");
        assert!(refused.iter().all(|error| *error == refused[0]), "{more}: {refused:?}");
    }
    for (api, project, _) in &tenants.projects {
        let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
        let rows = report["groups"].as_array().unwrap();
        let row = rows.iter().find(|row| row["endpoint"] == api.endpoint()).unwrap();
        assert_eq!((&row["requests_by_outcome"]["refused"], &row["tokens"]["total"]), (&json!(cases.len()), &json!(0)));
    }
}

#[test]
fn what_a_client_abandons_is_recorded_alike() {
    let server = Server::start_with(&slow_model());
    let tenants = Tenants::new(&server);
    let request = Request { messages: vec![user("the sea")], max_tokens: 1500, stream: true, ..Request::default() };
    let mut inputs = Vec::new();
    for (api, project, key) in &tenants.projects {
        let mut connection = server.begin(api.path(), key, &api.body(&request));
        server.wait_running();
        assert!(std::io::Read::read(&mut connection, &mut [0; 512]).unwrap() > 0);
        drop(connection);
        let report = || server.get(&format!("/v1/projects/{project}/usage")).ok();
        until(|| format!("{api:?} is recorded"), || report()["requests_by_outcome"]["abandoned"] == 1);
        inputs.push(report()["tokens"]["input"].clone());
    }
    assert!(inputs[0].as_u64().unwrap() > 0 && inputs.iter().all(|input| *input == inputs[0]), "{inputs:?}");
}
