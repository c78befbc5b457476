//! Endpoint 13 and reranking, on both mounts, with tiny random encoders.

use serde_json::{Value, json};

use crate::server::{Answer, JUDGE, MODEL, Server, VECTORS};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn embed(server: &Server, mount: &str, more: Value) -> Answer {
    let mut body = json!({ "model": VECTORS, "input": ["the sea", "a ship in the harbour", "the sea"] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post(&format!("{mount}/embeddings"), &body)
}

fn rerank(server: &Server, more: Value) -> Answer {
    let mut body = json!({ "model": JUDGE, "query": "where is the light?",
        "documents": ["A lighthouse stands at the end of the pier.", "x", "The keeper wrote into his book."] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/rerank", &body)
}

/// Vectors in the order of the body, whose indices are checked.
fn vectors(body: &Value) -> Vec<Vec<f64>> {
    let one = |(index, item): (usize, &Value)| {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        item["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    body["data"].as_array().unwrap().iter().enumerate().map(one).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn wrong(answer: &Answer, param: &str) {
    let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
    assert_eq!(answer.refusal(), expected, "{}", answer.text);
}

#[test]
fn texts_become_vectors_of_length_one_in_their_order() {
    let server = Server::with_encoders();
    for mount in MOUNTS {
        let body = embed(&server, mount, json!({})).ok();
        let found = vectors(&body);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [32; 3]);
        assert!(found.iter().all(|vector| (length(vector) - 1.).abs() < 1e-6));
        assert!(found[0] == found[2] && found[0] != found[1]);
        assert_eq!(body["model"], VECTORS);
        let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(tokens >= 9 && body["usage"]["total_tokens"] == tokens, "{body}");
        if mount == "/v1" {
            assert!(body["id"].as_str().unwrap().starts_with("embd-") && body["status"] == "succeeded");
            assert_eq!(body["object"], "service.resource");
        } else {
            assert!(body["object"] == "list" && body.get("id").is_none() && body.get("status").is_none());
        }
        let alone = vectors(&embed(&server, mount, json!({ "input": "the sea" })).ok());
        assert_eq!(alone, found[..1], "company changes nothing");
    }
}

#[test]
fn vectors_in_base64_are_the_same_numbers() {
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
    wrong(&embed(&server, "/v1", json!({ "encoding_format": "hex" })), "encoding_format");
}

#[test]
fn tokens_are_as_good_as_their_text() {
    let server = Server::with_encoders();
    let text = vectors(&embed(&server, "/v1", json!({ "input": "sea" })).ok());
    // With and without the tokens that stand around every text.
    for tokens in [json!([38, 252]), json!([2, 38, 252, 3]), json!([[38, 252]])] {
        assert_eq!(vectors(&embed(&server, "/v1", json!({ "input": tokens })).ok()), text, "{tokens}");
    }
    wrong(&embed(&server, "/v1", json!({ "input": [[38], [99_999]] })), "input[1]");
    wrong(&embed(&server, "/v1", json!({ "input": [99_999] })), "input");
}

#[test]
fn wrong_inputs_are_named() {
    let server = Server::with_encoders();
    wrong(&embed(&server, "/v1", json!({ "input": ["a", "", "b"] })), "input[1]");
    wrong(&embed(&server, "/v1", json!({ "input": "" })), "input");
    wrong(&embed(&server, "/v1", json!({ "input": [] })), "input");
    wrong(&embed(&server, "/v1", json!({ "input": vec!["a"; 2049] })), "input");
    wrong(&embed(&server, "/v1", json!({ "input": [1.5] })), "input");
    wrong(&embed(&server, "/v1", json!({ "dimensions": 0 })), "dimensions");
    wrong(&embed(&server, "/v1", json!({ "input_type": "poem" })), "input_type");
    wrong(&embed(&server, "/v1", json!({ "model": MODEL })), "model");
    wrong(&embed(&server, "/v1", json!({ "model": JUDGE })), "model");
    assert_eq!(embed(&server, "/v1", json!({ "model": "none" })).refusal().0, 404);
}

#[test]
fn only_lengths_that_the_model_has_are_given() {
    let server = Server::with_encoders();
    assert_eq!(vectors(&embed(&server, "/v1", json!({ "dimensions": 32 })).ok())[0].len(), 32);
    let refused = embed(&server, "/v1", json!({ "dimensions": 8 }));
    wrong(&refused, "dimensions");
    assert!(refused.text.contains("32 numbers"), "{}", refused.text);
}

#[test]
fn shortened_vectors_are_given_where_the_model_was_trained_for_them() {
    let server = Server::start_as(&crate::tiny_model::TinyModel::default(), |config| {
        crate::server::add_encoder(&config.paths.models, VECTORS);
        let path = config.paths.models.join(VECTORS).join("config.json");
        let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file["matryoshka_dimensions"] = json!([16, 8]);
        std::fs::write(&path, file.to_string()).unwrap();
    });
    let whole = vectors(&embed(&server, "/v1", json!({})).ok());
    let short = vectors(&embed(&server, "/v1", json!({ "dimensions": 8 })).ok());
    for (whole, short) in whole.iter().zip(&short) {
        assert!(short.len() == 8 && (length(short) - 1.).abs() < 1e-6);
        let over = length(&whole[..8]);
        assert!(whole.iter().zip(short).all(|(one, other)| (one / over - other).abs() < 1e-6));
    }
    let refused = embed(&server, "/v1", json!({ "dimensions": 9 }));
    wrong(&refused, "dimensions");
    assert!(refused.text.contains("16, 8, 32"), "{}", refused.text);
}

#[test]
fn a_text_that_is_too_long_is_named_and_cut_only_if_that_is_wanted() {
    let server = Server::with_encoders();
    let long = "sea ".repeat(60);
    let refused = embed(&server, "/v1", json!({ "input": ["sea", long] }));
    assert_eq!(refused.refusal(), (400, "context_length_exceeded".to_owned(), Some("input[1]".to_owned())));
    assert!(refused.text.contains("takes 48") && refused.text.contains("truncate"), "{}", refused.text);
    let cut = embed(&server, "/v1", json!({ "input": [long], "truncate": true })).ok();
    assert_eq!(cut["usage"]["prompt_tokens"], 48);
    // The first 46 tokens, of 120, between those that stand around every text.
    let same = embed(&server, "/v1", json!({ "input": "sea ".repeat(23) })).ok();
    assert_eq!(vectors(&cut), vectors(&same));
}

#[test]
fn tokens_are_metered_and_failures_are_not() {
    let server = Server::with_encoders();
    let (project, _, key) = server.tenant("t");
    let body = json!({ "model": VECTORS, "input": ["the sea", "a ship"] });
    let answer = server.call(reqwest::Method::POST, "/v1/embeddings", Some(&key), Some(&body)).ok();
    let used = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let bad = json!({ "model": VECTORS, "input": ["the sea", ""] });
    server.call(reqwest::Method::POST, "/v1/embeddings", Some(&key), Some(&bad)).refusal();
    let usage = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    assert_eq!(usage["tokens"]["input"].as_u64(), Some(used), "{usage}");
    assert_eq!(usage["requests"], 2, "{usage}");
}

#[test]
fn many_clients_at_once_get_their_own_vectors() {
    let server = Server::with_encoders();
    let texts: Vec<String> = (0..24).map(|n| format!("ship number {n} {}", "sea ".repeat(n % 7))).collect();
    let alone: Vec<_> =
        texts.iter().map(|text| vectors(&embed(&server, "/v1", json!({ "input": text })).ok()).remove(0)).collect();
    std::thread::scope(|scope| {
        let ask = |text| {
            let server = &server;
            scope.spawn(move || vectors(&embed(server, "/v1", json!({ "input": [text, text] })).ok()))
        };
        let asked: Vec<_> = texts.iter().map(ask).collect();
        for (found, alone) in asked.into_iter().zip(&alone) {
            let found = found.join().unwrap();
            assert!(found.iter().all(|vector| vector == alone));
        }
    });
}

#[test]
fn documents_come_in_the_order_of_their_scores() {
    let server = Server::with_encoders();
    let body = rerank(&server, json!({ "return_documents": true })).ok();
    let results = body["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|one, other| one >= other) && scores.iter().all(|score| (0. ..=1.).contains(score)));
    let mut places: Vec<u64> = results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2]);
    let lighthouse = results.iter().find(|result| result["index"] == 0).unwrap();
    assert_eq!(lighthouse["document"]["text"], "A lighthouse stands at the end of the pier.");
    // What transformers makes of this pair.
    assert!((lighthouse["relevance_score"].as_f64().unwrap() - 0.435_923_845).abs() < 1e-5, "{body}");
    assert!(body["usage"]["total_tokens"].as_u64().unwrap() > 30 && body["model"] == JUDGE);
    let best = rerank(&server, json!({ "top_n": 1, "raw_scores": true })).ok();
    let [only] = best["results"].as_array().unwrap().as_slice() else { panic!("{best}") };
    assert!(only["index"] == results[0]["index"] && only.get("document").is_none());
    let objects = json!({ "documents": [{ "text": "A lighthouse stands at the end of the pier." }] });
    let same = rerank(&server, objects).ok();
    assert_eq!(same["results"][0]["relevance_score"], lighthouse["relevance_score"], "company changes nothing");
}

#[test]
fn what_cannot_be_ranked_is_named() {
    let server = Server::with_encoders();
    wrong(&rerank(&server, json!({ "documents": [] })), "documents");
    wrong(&rerank(&server, json!({ "documents": ["a", ""] })), "documents[1]");
    wrong(&rerank(&server, json!({ "query": "" })), "query");
    wrong(&rerank(&server, json!({ "top_n": 0 })), "top_n");
    wrong(&rerank(&server, json!({ "model": VECTORS })), "model");
    wrong(&rerank(&server, json!({ "instructions": "x" })), "instructions");
    let long = "sea ".repeat(100);
    let refused = rerank(&server, json!({ "documents": ["a", long] }));
    assert_eq!(refused.refusal(), (400, "context_length_exceeded".to_owned(), Some("documents[1]".to_owned())));
    rerank(&server, json!({ "documents": ["a", long], "truncate": true })).ok();
}

#[test]
fn the_list_tells_what_each_model_can() {
    let server = Server::with_encoders();
    let can = |id: &str| {
        let model = server.get(&format!("/v1/models/{id}?include_limits=true")).ok();
        let abilities = ["chat_completions", "embeddings", "reranking"].map(|name| model["capabilities"][name] == true);
        (abilities, model["limits"]["embedding_dimensions"].clone(), model["limits"]["context_window"].clone())
    };
    assert_eq!(can(VECTORS), ([false, true, false], json!(32), json!(48)));
    assert_eq!(can(JUDGE), ([false, false, true], Value::Null, json!(128)));
    assert_eq!(can(MODEL).0, [true, false, false]);
    server.post(&format!("/v1/models/{VECTORS}/load"), &json!({})).ok();
    assert_eq!(server.get(&format!("/v1/models/{VECTORS}")).ok()["loaded"], true);
    server.post(&format!("/v1/models/{VECTORS}/unload"), &json!({})).ok();
    assert_eq!(server.get(&format!("/v1/models/{VECTORS}")).ok()["loaded"], false);
}
