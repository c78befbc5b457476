//! Embeddings (endpoint 13 of the contract) and reranking, on both mounts, with tiny random encoders.

use serde_json::{Value, json};

use crate::server::{EMBEDDER, MODEL, RERANKER, Response, Server};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn embed(server: &Server, mount: &str, more: Value) -> Response {
    let mut body = json!({ "model": EMBEDDER, "input": ["the sea", "a ship in the harbour", "the sea"] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post(&format!("{mount}/embeddings"), &body)
}

fn rerank(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": RERANKER, "query": "where is the light?",
        "documents": ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/rerank", &body)
}

/// The vectors of a response, whose indices are checked.
fn vectors(body: &Value) -> Vec<Vec<f64>> {
    let one = |(index, item): (usize, &Value)| {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        item["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    body["data"].as_array().unwrap().iter().enumerate().map(one).collect()
}

fn norm(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn assert_refused(response: &Response, param: &str) {
    let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
    assert_eq!(response.error_fields(), expected, "{}", response.text);
}

/// Whether two vectors are equal, on other devices than the CPU up to rounding: their products depend on the batch.
fn are_equal(one: &[f64], other: &[f64]) -> bool {
    let tolerance = if std::env::var("OUTPOST_TEST_DEVICE").is_ok() { 1e-5 } else { 0. };
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a - b).abs() <= tolerance)
}

#[test]
fn vectors_are_normalized_and_in_the_order_of_the_texts() {
    let server = Server::with_encoders();
    for mount in MOUNTS {
        let body = embed(&server, mount, json!({})).ok();
        let found = vectors(&body);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [32; 3]);
        assert!(found.iter().all(|vector| (norm(vector) - 1.).abs() < 1e-6));
        assert!(found[0] == found[2] && found[0] != found[1]);
        assert_eq!(body["model"], EMBEDDER);
        let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(tokens >= 9 && body["usage"]["total_tokens"] == tokens, "{body}");
        if mount == "/v1" {
            assert!(body["id"].as_str().unwrap().starts_with("embd-") && body["status"] == "succeeded");
            assert_eq!(body["object"], "service.resource");
        } else {
            assert!(body["object"] == "list" && body.get("id").is_none() && body.get("status").is_none());
        }
        let alone = vectors(&embed(&server, mount, json!({ "input": "the sea" })).ok());
        assert!(are_equal(&alone[0], &found[0]), "the result does not depend on the other texts of the batch");
    }
}

#[test]
fn base64_vectors_have_the_same_values() {
    use base64::Engine;
    let server = Server::with_encoders();
    let plain = vectors(&embed(&server, "/v1", json!({ "encoding_format": "float" })).ok());
    let packed = embed(&server, "/v1", json!({ "encoding_format": "base64" })).ok();
    for (vector, item) in plain.iter().zip(packed["data"].as_array().unwrap()) {
        let text = item["embedding"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let expected: Vec<f32> = vector.iter().map(|number| *number as f32).collect();
        assert_eq!(numbers.collect::<Vec<f32>>(), expected);
    }
    assert_refused(&embed(&server, "/v1", json!({ "encoding_format": "hex" })), "encoding_format");
}

#[test]
fn token_input_equals_text_input() {
    let server = Server::with_encoders();
    let text = vectors(&embed(&server, "/v1", json!({ "input": "sea" })).ok());
    // With and without the special tokens at the ends of a text.
    for tokens in [json!([38, 252]), json!([2, 38, 252, 3]), json!([[38, 252]])] {
        let request = json!({ "input": tokens, "token_ids": "model" });
        assert_eq!(vectors(&embed(&server, "/v1", request).ok()), text, "{tokens}");
        // Another tokenizer may have made them.
        assert_refused(&embed(&server, "/openai/v1", json!({ "input": tokens })), "input");
    }
    assert_refused(&embed(&server, "/v1", json!({ "input": [[38], [99_999]], "token_ids": "model" })), "input[1]");
    assert_refused(&embed(&server, "/v1", json!({ "input": [99_999], "token_ids": "model" })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": [38], "token_ids": "openai" })), "token_ids");
}

#[test]
fn invalid_inputs_are_named() {
    let server = Server::with_encoders();
    assert_refused(&embed(&server, "/v1", json!({ "input": ["a", "", "b"] })), "input[1]");
    assert_refused(&embed(&server, "/v1", json!({ "input": "" })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": [] })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": vec!["a"; 2049] })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": [1.5] })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "dimensions": 0 })), "dimensions");
    assert_refused(&embed(&server, "/v1", json!({ "input_type": "poem" })), "input_type");
    assert_refused(&embed(&server, "/v1", json!({ "model": MODEL })), "model");
    assert_refused(&embed(&server, "/v1", json!({ "model": RERANKER })), "model");
    assert_eq!(embed(&server, "/v1", json!({ "model": "none" })).error_fields().0, 404);
}

#[test]
fn unsupported_dimensions_are_refused() {
    let server = Server::with_encoders();
    assert_eq!(vectors(&embed(&server, "/v1", json!({ "dimensions": 32 })).ok())[0].len(), 32);
    let refused = embed(&server, "/v1", json!({ "dimensions": 8 }));
    assert_refused(&refused, "dimensions");
    assert!(refused.text.contains("32 dimensions"), "{}", refused.text);
}

#[test]
fn matryoshka_models_return_shortened_vectors() {
    let server = Server::start_configured(&crate::tiny_model::TinyModel::default(), |config| {
        crate::server::add_encoder(&config.paths.models, EMBEDDER);
        let path = config.paths.models.join(EMBEDDER).join("config.json");
        let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file["matryoshka_dimensions"] = json!([16, 8]);
        std::fs::write(&path, file.to_string()).unwrap();
    });
    let whole = vectors(&embed(&server, "/v1", json!({})).ok());
    let short = vectors(&embed(&server, "/v1", json!({ "dimensions": 8 })).ok());
    for (whole, short) in whole.iter().zip(&short) {
        assert!(short.len() == 8 && (norm(short) - 1.).abs() < 1e-6);
        let over = norm(&whole[..8]);
        assert!(whole.iter().zip(short).all(|(one, other)| (one / over - other).abs() < 1e-6));
    }
    let refused = embed(&server, "/v1", json!({ "dimensions": 9 }));
    assert_refused(&refused, "dimensions");
    assert!(refused.text.contains("16, 8, 32"), "{}", refused.text);
}

#[test]
fn a_too_long_text_is_named_and_truncated_only_on_request() {
    let server = Server::with_encoders();
    let long = "sea ".repeat(60);
    let refused = embed(&server, "/v1", json!({ "input": ["sea", long] }));
    assert_eq!(refused.error_fields(), (400, "context_length_exceeded".to_owned(), Some("input[1]".to_owned())));
    assert!(refused.text.contains("takes 48") && refused.text.contains("truncate"), "{}", refused.text);
    let cut = embed(&server, "/v1", json!({ "input": [long], "truncate": true })).ok();
    let same = embed(&server, "/v1", json!({ "input": [long], "truncate_prompt_tokens": -1 })).ok();
    assert_eq!(same["data"], cut["data"]);
    assert_eq!(cut["usage"]["prompt_tokens"], 48);
    // The first 46 of 120 tokens, with the special tokens at the ends.
    let same = embed(&server, "/v1", json!({ "input": "sea ".repeat(23) })).ok();
    assert_eq!(vectors(&cut), vectors(&same));
}

#[test]
fn tokens_of_successful_requests_are_metered() {
    let server = Server::with_encoders();
    let (project, _, key) = server.tenant("t");
    let body = json!({ "model": EMBEDDER, "input": ["the sea", "a ship"] });
    let response = server.call(reqwest::Method::POST, "/v1/embeddings", Some(&key), Some(&body)).ok();
    let used = response["usage"]["prompt_tokens"].as_u64().unwrap();
    let bad = json!({ "model": EMBEDDER, "input": ["the sea", ""] });
    server.call(reqwest::Method::POST, "/v1/embeddings", Some(&key), Some(&bad)).error_fields();
    let usage = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    assert_eq!(usage["tokens"]["input"].as_u64(), Some(used), "{usage}");
    assert_eq!(usage["requests"], 2, "{usage}");
}

#[test]
fn concurrent_clients_get_their_own_vectors() {
    let server = Server::with_encoders();
    let texts: Vec<String> = (0..24).map(|n| format!("ship number {n} {}", "sea ".repeat(n % 7))).collect();
    let alone: Vec<_> =
        texts.iter().map(|text| vectors(&embed(&server, "/v1", json!({ "input": text })).ok()).remove(0)).collect();
    std::thread::scope(|scope| {
        let embed_text = |text| {
            let server = &server;
            scope.spawn(move || vectors(&embed(server, "/v1", json!({ "input": [text, text] })).ok()))
        };
        let handles: Vec<_> = texts.iter().map(embed_text).collect();
        for (found, alone) in handles.into_iter().zip(&alone) {
            let found = found.join().unwrap();
            assert!(found.iter().all(|vector| are_equal(vector, alone)));
        }
    });
}

#[test]
fn documents_are_sorted_by_score() {
    let server = Server::with_encoders();
    let body = rerank(&server, json!({ "return_documents": true })).ok();
    let results = body["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|one, other| one >= other) && scores.iter().all(|score| (0. ..=1.).contains(score)));
    let mut indices: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);
    let lighthouse = results.iter().find(|result| result["index"] == 0).unwrap();
    assert_eq!(lighthouse["document"]["text"], "A lighthouse stands at the end of the pier.");
    // The score that transformers computes for this pair.
    // A GPU computes with the 16-bit floats of the file.
    let tolerance = if std::env::var("OUTPOST_TEST_DEVICE").is_ok_and(|name| name != "candle") { 1e-2 } else { 1e-5 };
    assert!((lighthouse["relevance_score"].as_f64().unwrap() - 0.435_923_845).abs() < tolerance, "{body}");
    assert!(body["usage"]["total_tokens"].as_u64().unwrap() > 30 && body["model"] == RERANKER);
    let best = rerank(&server, json!({ "top_n": 1, "raw_scores": true })).ok();
    let [only] = best["results"].as_array().unwrap().as_slice() else { panic!("{best}") };
    assert!(only["index"] == results[0]["index"] && only.get("document").is_none());
    let objects = json!({ "documents": [{ "text": "A lighthouse stands at the end of the pier." }] });
    let same = rerank(&server, objects).ok();
    assert_eq!(
        same["results"][0]["relevance_score"], lighthouse["relevance_score"],
        "the result does not depend on the other texts of the batch"
    );
}

#[test]
fn invalid_documents_are_named() {
    let server = Server::with_encoders();
    assert_refused(&rerank(&server, json!({ "documents": [] })), "documents");
    assert_refused(&rerank(&server, json!({ "documents": ["a", ""] })), "documents[1]");
    assert_refused(&rerank(&server, json!({ "query": "" })), "query");
    assert_refused(&rerank(&server, json!({ "top_n": 0 })), "top_n");
    assert_refused(&rerank(&server, json!({ "model": EMBEDDER })), "model");
    assert_refused(&rerank(&server, json!({ "instructions": "x" })), "instructions");
    let long = "sea ".repeat(100);
    let refused = rerank(&server, json!({ "documents": ["a", long] }));
    assert_eq!(refused.error_fields(), (400, "context_length_exceeded".to_owned(), Some("documents[1]".to_owned())));
    rerank(&server, json!({ "documents": ["a", long], "truncate": true })).ok();
    rerank(&server, json!({ "documents": ["a", long], "truncate_prompt_tokens": -1 })).ok();
}

#[test]
fn the_list_states_each_models_capabilities() {
    let server = Server::with_encoders();
    let can = |id: &str| {
        let model = server.get(&format!("/v1/models/{id}?include_limits=true")).ok();
        let abilities = ["chat_completions", "embeddings", "reranking"].map(|name| model["capabilities"][name] == true);
        (abilities, model["limits"]["embedding_dimensions"].clone(), model["limits"]["context_window"].clone())
    };
    assert_eq!(can(EMBEDDER), ([false, true, false], json!(32), json!(48)));
    assert_eq!(can(RERANKER), ([false, false, true], Value::Null, json!(128)));
    assert_eq!(can(MODEL).0, [true, false, false]);
    server.post(&format!("/v1/models/{EMBEDDER}/load"), &json!({})).ok();
    assert_eq!(server.get(&format!("/v1/models/{EMBEDDER}")).ok()["loaded"], true);
    server.post(&format!("/v1/models/{EMBEDDER}/unload"), &json!({})).ok();
    assert_eq!(server.get(&format!("/v1/models/{EMBEDDER}")).ok()["loaded"], false);
}

#[test]
fn a_list_may_have_texts_and_token_ids() {
    let server = Server::with_encoders();
    let ids = server.post("/v1/tokenize", &json!({ "model": EMBEDDER, "content": "a ship" })).ok()["tokens"].clone();
    let mixed = embed(&server, "/v1", json!({ "input": ["the sea", ids], "token_ids": "model" })).ok();
    let texts = embed(&server, "/v1", json!({ "input": ["the sea", "a ship"] })).ok();
    assert_eq!(vectors(&mixed), vectors(&texts));
    assert_refused(&embed(&server, "/v1", json!({ "input": ["the sea", ids] })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": ["the sea", 5], "token_ids": "model" })), "input");
    assert_refused(&embed(&server, "/v1", json!({ "input": [] })), "input");
}

#[test]
fn texts_are_ranked_in_the_format_of_text_embeddings_inference() {
    let server = Server::with_encoders();
    let ranked = rerank(&server, json!({ "return_documents": true })).ok();
    let texts = ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."];
    let request = json!({ "query": "where is the light?", "texts": texts, "return_text": true });
    let list = server.post("/rerank", &request).ok();
    let expected = |result: &Value| json!({ "index": result["index"], "score": result["relevance_score"], "text": result["document"]["text"] });
    assert_eq!(list, ranked["results"].as_array().unwrap().iter().map(expected).collect::<Value>());
    let in_envelope = server.post("/v1/rerank", &request).ok();
    assert_eq!(in_envelope["results"], ranked["results"]);
    let short = json!({ "query": "where?", "texts": ["a"], "truncation_direction": "Right" });
    let short = server.post("/rerank", &short).ok();
    assert!(short[0].get("text").is_none() && short[0]["score"].is_number());
    for (more, param) in [
        (json!({ "texts": ["a"], "documents": ["a"] }), "texts"),
        (json!({ "texts": ["a", ""] }), "texts[1]"),
        (json!({ "texts": [] }), "texts"),
        (json!({}), "documents"),
    ] {
        let mut request = json!({ "query": "where?" });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_refused(&server.post("/rerank", &request), param);
    }
}

/// Starts with these models of `tests/fixtures/encoders`.
fn with_models(names: &[&str]) -> Server {
    Server::start_configured(&crate::tiny_model::TinyModel::default(), |config| {
        names.iter().for_each(|name| crate::server::add_encoder(&config.paths.models, name));
    })
}

#[test]
fn prompts_are_chosen_by_purpose_or_by_name() {
    const GEMMA: &str = "gemma-embedding";
    let server = with_models(&[GEMMA, EMBEDDER]);
    let of = |more: Value| {
        let mut body = json!({ "model": GEMMA, "input": "a ship in the harbour" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/embeddings", &body)
    };
    let written = |prompt: &str| vectors(&of(json!({ "input": format!("{prompt}a ship in the harbour") })).ok());
    let found = vectors(&of(json!({ "prompt_name": "STS" })).ok());
    assert!(found == written("task: sentence similarity | query: ") && found != written(""));
    let clustering = written("task: clustering | query: ");
    assert_eq!(vectors(&of(json!({ "input_type": "clustering" })).ok()), clustering);
    assert_eq!(vectors(&of(json!({ "input_type": "classification" })).ok()), written(""), "it has no such prompt");
    let cohere = json!({ "model": GEMMA, "texts": ["a ship in the harbour"], "input_type": "clustering" });
    let body = server.post("/v2/embed", &cohere).ok();
    assert_eq!(body["embeddings"]["float"], json!(clustering), "the same prompt for Cohere's clients");
    let unknown = of(json!({ "prompt_name": "Retrieval" }));
    assert_refused(&unknown, "prompt_name");
    assert!(unknown.text.contains("Clustering, STS, document, query"), "{}", unknown.text);
    assert_refused(&of(json!({ "prompt_name": "STS", "input_type": "query" })), "prompt_name");
    let none = embed(&server, "/v1", json!({ "prompt_name": "STS" }));
    assert_refused(&none, "prompt_name");
    assert!(none.text.contains("has no prompts"), "{}", none.text);
}

#[test]
fn decoders_rank_with_an_instruction() {
    const DECODER: &str = "qwen3-reranker-tiny";
    let server = with_models(&[DECODER, RERANKER]);
    let path = outpost_testing::fixtures::fixture("encoders").join(DECODER).join("expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for row in expected["rows"].as_array().unwrap() {
        let body = json!({ "model": DECODER, "query": row["query"], "documents": [row["document"]],
            "instruction": row["instruction"] });
        let found = server.post("/v1/rerank", &body).ok()["results"][0]["relevance_score"].as_f64().unwrap();
        assert!((found - row["score"].as_f64().unwrap()).abs() < 1e-5, "{found} instead of {row}");
    }
    let query = json!({ "model": DECODER, "text_1": "sea", "text_2": "ship", "instruction": "find boats" });
    assert!(server.post("/v1/score", &query).ok()["data"][0]["score"].is_number());
    assert_refused(&rerank(&server, json!({ "instruction": "find boats" })), "instruction");
}
