//! Scores in the format of vLLM, and the other names of reranking.

use serde_json::{Value, json};

use crate::server::{EMBEDDER, RERANKER, Response, Server};

const QUERY: &str = "where is the light?";
const DOCUMENTS: [&str; 3] = ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."];

fn score(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": RERANKER });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/openai/v1/score", &body)
}

fn scores(response: &Value) -> Vec<f64> {
    let data = response["data"].as_array().unwrap();
    for (index, entry) in data.iter().enumerate() {
        assert_eq!((&entry["index"], &entry["object"]), (&json!(index), &json!("score")));
    }
    data.iter().map(|entry| entry["score"].as_f64().unwrap()).collect()
}

#[test]
fn scores_of_a_reranking_model_are_those_of_reranking() {
    let server = Server::with_encoders();
    let ranking = json!({ "model": RERANKER, "query": QUERY, "documents": DOCUMENTS });
    let ranked = server.post("/openai/v1/rerank", &ranking).ok();
    let mut expected = vec![0.; 3];
    for result in ranked["results"].as_array().unwrap() {
        expected[result["index"].as_u64().unwrap() as usize] = result["relevance_score"].as_f64().unwrap();
    }
    let response = score(&server, json!({ "text_1": QUERY, "text_2": DOCUMENTS })).ok();
    assert_eq!((&response["object"], &response["model"]), (&json!("list"), &json!(RERANKER)));
    assert!(response["id"].is_string() && response["created"].is_i64());
    assert_eq!(response["usage"]["prompt_tokens"], ranked["usage"]["prompt_tokens"]);
    assert_eq!(scores(&response), expected);
    // One query for each document, and the other names.
    for more in [
        json!({ "text_1": [QUERY, QUERY, QUERY], "text_2": DOCUMENTS }),
        json!({ "queries": QUERY, "documents": DOCUMENTS }),
        json!({ "data_1": [QUERY], "items": DOCUMENTS, "user": "u" }),
    ] {
        assert_eq!(scores(&score(&server, more).ok()), expected);
    }
    let pairs = score(&server, json!({ "text_1": ["x", QUERY], "text_2": ["x", DOCUMENTS[0]] })).ok();
    assert_eq!(scores(&pairs)[1], expected[0]);
    let raw = score(&server, json!({ "text_1": QUERY, "text_2": DOCUMENTS[0], "use_activation": false })).ok();
    let sigmoid = 1. / (1. + (-scores(&raw)[0]).exp());
    assert!((sigmoid - expected[0]).abs() < 1e-6);
    let alias = server.post("/openai/v1/reranking", &ranking).ok();
    assert_eq!(alias, ranked);
}

#[test]
fn scores_of_an_embedding_model_are_cosines() {
    let server = Server::with_encoders();
    let texts = json!({ "model": EMBEDDER, "input": [QUERY, DOCUMENTS[0], DOCUMENTS[2]] });
    let embedded = server.post("/v1/embeddings", &texts).ok();
    let vector =
        |index: usize| -> Vec<f64> { serde_json::from_value(embedded["data"][index]["embedding"].clone()).unwrap() };
    let cosine = |index: usize| vector(0).iter().zip(vector(index)).map(|(a, b)| a * b).sum::<f64>();
    let request = json!({ "model": EMBEDDER, "text_1": QUERY, "text_2": [DOCUMENTS[0], DOCUMENTS[2]] });
    let response = score(&server, request).ok();
    let found = scores(&response);
    assert!((found[0] - cosine(1)).abs() < 1e-5 && (found[1] - cosine(2)).abs() < 1e-5, "{found:?}");
    assert_eq!(response["usage"]["prompt_tokens"], embedded["usage"]["prompt_tokens"]);
    let same = score(&server, json!({ "model": EMBEDDER, "text_1": [QUERY, "x"], "text_2": [QUERY, "x"] })).ok();
    assert!(scores(&same).iter().all(|score| (score - 1.).abs() < 1e-5));
}

#[test]
fn errors_name_the_field() {
    let server = Server::with_encoders();
    let long = "word ".repeat(600);
    for (more, code, param) in [
        (json!({}), "invalid_parameter", "text_1"),
        (json!({ "text_1": "a" }), "invalid_parameter", "text_2"),
        (json!({ "text_1": "a", "queries": "a", "text_2": "b" }), "invalid_parameter", "queries"),
        (json!({ "text_1": ["a", "b"], "text_2": ["a", "b", "c"] }), "invalid_parameter", "text_1"),
        (json!({ "text_1": "a", "items": ["b", ""] }), "invalid_parameter", "items[1]"),
        (json!({ "text_1": [], "text_2": [] }), "invalid_parameter", "text_1"),
        (json!({ "text_1": "a", "text_2": 5 }), "invalid_parameter", "text_2"),
        (
            json!({ "text_1": "a", "text_2": "b", "truncate_prompt_tokens": 9 }),
            "invalid_parameter",
            "truncate_prompt_tokens",
        ),
        (json!({ "text_1": "a", "documents": ["b", long] }), "context_length_exceeded", "documents[1]"),
        (
            json!({ "model": EMBEDDER, "text_1": "a", "documents": ["b", long] }),
            "context_length_exceeded",
            "documents[1]",
        ),
        (json!({ "model": EMBEDDER, "queries": long, "documents": "b" }), "context_length_exceeded", "queries"),
    ] {
        let refused = score(&server, more);
        assert_eq!(refused.error_fields(), (400, code.to_owned(), Some(param.to_owned())), "{}", refused.text);
    }
    score(&server, json!({ "text_1": "a", "text_2": long, "truncate_prompt_tokens": -1 })).ok();
}
