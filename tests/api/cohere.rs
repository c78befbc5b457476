//! Cohere's API: embeddings and reranking below `/v2`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{EMBEDDER, RERANKER, Response, Server};

fn embed(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": EMBEDDER, "input_type": "search_document", "texts": ["the sea", "a ship"] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v2/embed", &body)
}

fn rerank(server: &Server, more: Value) -> Response {
    let documents = ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."];
    let mut body = json!({ "model": RERANKER, "query": "where is the light?", "documents": documents });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v2/rerank", &body)
}

fn floats(vector: &Value) -> Vec<f32> {
    serde_json::from_value(vector.clone()).unwrap()
}

#[test]
fn texts_become_vectors_of_each_type() {
    let server = Server::with_encoders();
    let body = json!({ "model": EMBEDDER, "input": ["the sea", "a ship"], "input_type": "document" });
    let expected = server.post("/v1/embeddings", &body).ok();
    let plain = embed(&server, json!({})).ok();
    assert_eq!(plain["response_type"], "embeddings_by_type");
    assert!(plain["id"].is_string());
    assert_eq!(plain["texts"], json!(["the sea", "a ship"]));
    assert_eq!(plain["meta"]["tokens"]["input_tokens"], expected["usage"]["prompt_tokens"]);
    assert_eq!(plain["embeddings"].as_object().unwrap().len(), 1);
    for index in 0..2 {
        assert_eq!(plain["embeddings"]["float"][index], expected["data"][index]["embedding"]);
    }
    let types = ["float", "int8", "uint8", "binary", "ubinary", "base64"];
    let all = embed(&server, json!({ "embedding_types": types })).ok()["embeddings"].clone();
    assert_eq!(all["float"], plain["embeddings"]["float"]);
    let vector = floats(&all["float"][0]);
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(all["base64"][0], STANDARD.encode(bytes));
    let int8 = floats(&all["int8"][0]);
    let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
    assert!(dot(&vector, &int8) / dot(&int8, &int8).sqrt() > 0.999);
    let moved: Vec<f32> = floats(&all["uint8"][0]).iter().map(|value| value - 128.).collect();
    assert_eq!(moved, int8);
    let bits = floats(&all["ubinary"][0]);
    assert_eq!(bits.len(), vector.len().div_ceil(8));
    let bit = |index: usize| ((bits[index / 8] as u8 >> (7 - index % 8)) & 1) == 1;
    assert!(vector.iter().enumerate().all(|(index, number)| bit(index) == (*number > 0.)));
    let moved: Vec<f32> = floats(&all["binary"][0]).iter().map(|value| value + 128.).collect();
    assert_eq!(moved, bits);
    let inputs = json!([{ "content": [{ "type": "text", "text": "the sea" }] }]);
    let same = embed(&server, json!({ "texts": null, "inputs": inputs })).ok();
    assert_eq!(floats(&same["embeddings"]["float"][0]), vector);
}

#[test]
fn documents_are_ranked() {
    let server = Server::with_encoders();
    let ranked = rerank(&server, json!({ "priority": 1 })).ok();
    assert!(ranked["id"].is_string() && ranked["meta"]["tokens"]["input_tokens"].as_u64().unwrap() > 0);
    let body = json!({ "model": RERANKER, "query": "where is the light?",
        "documents": ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."] });
    assert_eq!(ranked["results"], server.post("/openai/v1/rerank", &body).ok()["results"]);
    assert_eq!(rerank(&server, json!({ "top_n": 1 })).ok()["results"].as_array().unwrap().len(), 1);
    // Long documents are truncated, here before the words that differ.
    let documents = ["one two three four", "one two three five", "one"];
    let cut = rerank(&server, json!({ "documents": documents, "max_tokens_per_doc": 1 })).ok();
    let scores: Vec<&Value> = (0..3).map(|index| &cut["results"][index]["relevance_score"]).collect();
    assert_eq!(scores[0], scores[1]);
    let whole = rerank(&server, json!({ "documents": documents })).ok();
    assert!(whole["meta"]["tokens"]["input_tokens"].as_u64() > cut["meta"]["tokens"]["input_tokens"].as_u64());
    rerank(&server, json!({ "documents": ["word ".repeat(600)] })).ok();
}

#[test]
fn errors_have_coheres_format() {
    let server = Server::with_encoders();
    let long = "word ".repeat(600);
    for (more, code, param) in [
        (json!({ "texts": null }), "invalid_parameter", "texts"),
        (json!({ "texts": [] }), "invalid_parameter", "texts"),
        (json!({ "texts": ["a", ""] }), "invalid_parameter", "texts[1]"),
        (json!({ "input_type": "image" }), "invalid_parameter", "input_type"),
        (json!({ "images": ["data:image/png;base64,"] }), "invalid_parameter", "images"),
        (json!({ "inputs": [{ "content": [] }] }), "invalid_parameter", "inputs"),
        (
            json!({ "texts": null, "inputs": [{ "content": [{ "type": "image_url" }] }] }),
            "invalid_parameter",
            "inputs[0].content",
        ),
        (json!({ "embedding_types": ["int4"] }), "invalid_parameter", "embedding_types[0]"),
        (json!({ "output_dimension": 3 }), "invalid_parameter", "output_dimension"),
        (json!({ "output_dimension": 0 }), "invalid_parameter", "output_dimension"),
        (json!({ "truncate": "START" }), "invalid_parameter", "truncate"),
        (json!({ "truncate": "NONE", "texts": ["a", long] }), "context_length_exceeded", "texts[1]"),
        (json!({ "max_tokens": 5 }), "invalid_parameter", "max_tokens"),
    ] {
        let refused = embed(&server, more);
        assert_eq!(refused.error_fields(), (400, code.to_owned(), Some(param.to_owned())), "{}", refused.text);
        assert!(refused.json()["error"].is_null());
    }
    embed(&server, json!({ "texts": ["a", long] })).ok();
    for (more, param) in [
        (json!({ "documents": [] }), "documents"),
        (json!({ "max_tokens_per_doc": 0 }), "max_tokens_per_doc"),
        (json!({ "model": EMBEDDER }), "model"),
    ] {
        let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
        assert_eq!(rerank(&server, more).error_fields(), expected);
    }
    let unknown = server.post("/v2/chat", &json!({}));
    assert_eq!(unknown.error_fields().0, 404);
    let keyless = server.call(Method::POST, "/v2/embed", None, Some(&json!({})));
    assert_eq!(keyless.error_fields().1, "missing_api_key");
}

#[test]
fn requests_are_metered_under_their_own_paths() {
    let server = Server::with_encoders();
    let (project, _, key) = server.tenant("t");
    let body = json!({ "model": EMBEDDER, "texts": ["hello"] });
    let tokens = server.call(Method::POST, "/v2/embed", Some(&key), Some(&body)).ok()["meta"]["tokens"].clone();
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    let group = &report["groups"][0];
    assert_eq!((&group["endpoint"], &group["model"]), (&json!("POST /v2/embed"), &json!(EMBEDDER)));
    assert_eq!(group["tokens"]["total"], tokens["input_tokens"]);
}
