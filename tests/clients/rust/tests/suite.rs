//! Tests of async-openai against a running server.

use std::env;
use std::process::Command;

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionResponseMessage, CreateChatCompletionRequest,
    CreateChatCompletionResponse, CreateChatCompletionStreamResponse,
};
use async_openai::types::embeddings::CreateEmbeddingRequestArgs;
use futures_util::TryStreamExt;
use serde_json::{Value, from_str, from_value, json};

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("set {name}"))
}

fn client() -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new().with_api_base(variable("OUTPOST_BASE_URL")).with_api_key(variable("OUTPOST_KEY"));
    Client::with_config(config)
}

/// A chat request with the given fields.
fn request(text: &str, more: Value) -> CreateChatCompletionRequest {
    let messages = json!([{"role": "user", "content": text}]);
    let mut request =
        json!({"model": variable("OUTPOST_CHAT"), "messages": messages, "temperature": 0, "max_completion_tokens": 80});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    from_value(request).unwrap()
}

async fn whole(text: &str, more: Value) -> CreateChatCompletionResponse {
    client().chat().create(request(text, more)).await.unwrap()
}

async fn stream(text: &str, more: Value) -> Vec<CreateChatCompletionStreamResponse> {
    client().chat().create_stream(request(text, more)).await.unwrap().try_collect().await.unwrap()
}

fn message(response: &CreateChatCompletionResponse) -> &ChatCompletionResponseMessage {
    &response.choices[0].message
}

fn content(chunks: &[CreateChatCompletionStreamResponse]) -> String {
    chunks.iter().flat_map(|chunk| &chunk.choices).filter_map(|choice| choice.delta.content.as_deref()).collect()
}

fn visit_schema() -> Value {
    let properties =
        json!({"place": {"enum": ["sea", "land"]}, "minutes": {"type": "integer", "minimum": 1, "maximum": 60}});
    json!({"type": "object", "properties": properties, "required": ["place", "minutes"], "additionalProperties": false})
}

fn assert_is_visit(text: &str) {
    let visit: Value = from_str(text).unwrap();
    assert!(["sea", "land"].contains(&visit["place"].as_str().unwrap()), "{text}");
    assert!((1..=60).contains(&visit["minutes"].as_i64().unwrap()), "{text}");
    assert_eq!(visit.as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn a_stream_adds_up_to_the_whole_response() {
    let response = whole("Say hello.", json!({})).await;
    let chunks = stream("Say hello.", json!({"stream_options": {"include_usage": true}})).await;
    let text = message(&response).content.as_deref().unwrap();
    assert!(chunks.len() > 3 && !text.is_empty());
    assert_eq!(content(&chunks), text);
    let tokens = response.usage.unwrap().completion_tokens;
    assert!(tokens > 0);
    assert_eq!(chunks.last().unwrap().usage.as_ref().unwrap().completion_tokens, tokens);
}

#[tokio::test]
async fn tool_calls() {
    let function = json!({"name": "visit", "description": "Look at a place.", "parameters": visit_schema()});
    let forced = json!({
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "visit"}},
    });
    let response = whole("Visit the sea.", forced.clone()).await;
    let Some([ChatCompletionMessageToolCalls::Function(call)]) = message(&response).tool_calls.as_deref() else {
        panic!("one call was expected: {response:?}");
    };
    assert_eq!(call.function.name, "visit");
    assert_is_visit(&call.function.arguments);
    let chunks = stream("Visit the sea.", forced).await;
    let deltas =
        chunks.iter().flat_map(|chunk| &chunk.choices).flat_map(|choice| choice.delta.tool_calls.iter().flatten());
    let arguments: String = deltas.filter_map(|delta| delta.function.as_ref()?.arguments.as_deref()).collect();
    assert_eq!(arguments, call.function.arguments);
}

#[tokio::test]
async fn structured_output() {
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "visit", "strict": true, "schema": visit_schema()}});
    let format = json!({"response_format": format});
    let response = whole("Visit the sea.", format.clone()).await;
    let text = message(&response).content.as_deref().unwrap();
    assert_is_visit(text);
    assert_eq!(content(&stream("Visit the sea.", format).await), text);
}

#[tokio::test]
async fn embeddings() {
    let request = CreateEmbeddingRequestArgs::default()
        .model(variable("OUTPOST_EMBED"))
        .input(["the sea", "the sea"])
        .build()
        .unwrap();
    let response = client().embeddings().create(request).await.unwrap();
    let [first, second] = response.data.as_slice() else { panic!("two vectors were expected") };
    assert_eq!(first.embedding.len(), 384);
    assert_eq!(first.embedding, second.embedding);
    let squares: f32 = first.embedding.iter().map(|x| x * x).sum();
    assert!((squares - 1.0).abs() < 1e-4);
    let expected: Vec<f32> = from_str(&variable("OUTPOST_VECTOR")).unwrap();
    let cosine: f32 = first.embedding.iter().zip(&expected).map(|(x, y)| x * y).sum();
    assert!(cosine > 0.9999, "{cosine}");
}

#[tokio::test]
async fn an_unknown_model() {
    let error = client().chat().create(request("Say hello.", json!({"model": "nobody"}))).await.unwrap_err();
    let OpenAIError::ApiError(error) = error else { panic!("an API error was expected: {error:?}") };
    assert!(error.to_string().contains("No model 'nobody' is installed"), "{error}");
}

#[test]
fn the_block_of_the_clients_page() {
    let done = Command::new(env!("CARGO_BIN_EXE_page")).output().unwrap();
    let output = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(output.trim_end().ends_with("384"), "{output}");
}
