//! Moderation in OpenAI's format, with tiny random classifiers whose scores transformers has computed.

use std::fs;

use outpost_testing::fixtures::fixture;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::server::{CLASSIFIER, EMBEDDER, MODEL, Response, Server};
use crate::tiny_model::TinyModel;

/// A single-label model with the labels of KoalaAI/Text-Moderation.
const LETTERS: &str = "text-moderation";
/// A classifier that does not moderate.
const MOODS: &str = "moods";

const OPENAI_CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

fn start(classifiers: &[&str]) -> Server {
    start_with_settings(classifiers, "")
}

fn start_with_settings(classifiers: &[&str], settings: &str) -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        let models = &config.paths.models;
        classifiers.iter().for_each(|name| add_fixture("classifiers", models, name));
        fs::write(models.join("models.toml"), settings).unwrap();
    })
}

fn moderate(server: &Server, body: Value) -> Response {
    server.post("/openai/v1/moderations", &body)
}

/// The labels of a fixture, and its rows: short texts, and one beyond the model's limit.
fn expected(name: &str) -> (Vec<String>, Vec<Value>) {
    let path = fixture("classifiers").join(name).join("expected.json");
    let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let labels = file["labels"].as_array().unwrap().iter().map(|label| label.as_str().unwrap().to_owned());
    (labels.collect(), file["rows"].as_array().unwrap().clone())
}

fn texts(rows: &[Value]) -> Vec<&str> {
    rows.iter().map(|row| row["text"].as_str().unwrap()).collect()
}

fn score(result: &Value, category: &str) -> f64 {
    result["category_scores"][category].as_f64().unwrap_or_else(|| panic!("no {category} in {result}"))
}

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-5
}

fn refused(response: &Response, status: u16, code: &str, field: &str) -> String {
    assert_eq!(response.error_fields(), (status, code.to_owned(), Some(field.to_owned())), "{}", response.text);
    response.json()["error"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn texts_get_openais_categories_and_the_labels_of_the_model() {
    let server = start(&[CLASSIFIER]);
    let (labels, rows) = expected(CLASSIFIER);
    let body = moderate(&server, json!({ "model": CLASSIFIER, "input": texts(&rows) })).ok();
    assert!(body["id"].as_str().unwrap().starts_with("modr-") && body["model"] == CLASSIFIER, "{body}");
    assert_eq!(body.as_object().unwrap().len(), 3, "OpenAI's fields alone");
    let results = body["results"].as_array().unwrap();
    assert_eq!(results.len(), rows.len());
    for (result, row) in results.iter().zip(&rows) {
        let of_label =
            |name: &str| row["scores"][labels.iter().position(|label| label == name).unwrap()].as_f64().unwrap();
        for label in &labels {
            assert!(is_close(score(result, label), of_label(label)), "{label}: {result}");
            assert_eq!(result["categories"][label], of_label(label) >= 0.5, "{label}: {result}");
            assert_eq!(result["category_applied_input_types"][label], json!(["text"]));
        }
        let harassment = ["toxic", "severe_toxic", "insult"].map(of_label).into_iter().fold(0., f64::max);
        for (category, expected) in [
            ("harassment", harassment),
            ("harassment/threatening", of_label("threat")),
            ("hate", of_label("identity_hate")),
        ] {
            assert!(is_close(score(result, category), expected), "{category}: {result}");
            assert_eq!(result["categories"][category], expected >= 0.5, "{category}: {result}");
        }
        // Swear words are not sexual, and the model says nothing about the others.
        for category in ["sexual", "violence", "illicit", "self-harm/intent"] {
            assert_eq!((&result["categories"][category], score(result, category)), (&json!(false), 0.));
            assert_eq!(result["category_applied_input_types"][category], json!([]));
        }
        assert_eq!(result["flagged"], labels.iter().any(|label| of_label(label) >= 0.5));
        for part in ["categories", "category_scores", "category_applied_input_types"] {
            let names: Vec<&String> = result[part].as_object().unwrap().keys().collect();
            let expected = OPENAI_CATEGORIES.map(str::to_owned);
            assert_eq!(names, expected.iter().chain(&labels).collect::<Vec<_>>());
        }
    }
    let spec = server.post("/v1/moderations", &json!({ "input": "sea" })).ok();
    assert_eq!((&spec["object"], &spec["model"]), (&json!("service.resource"), &json!(CLASSIFIER)));
    assert_eq!(spec["results"].as_array().unwrap().len(), 1);
    assert_eq!(server.get(&format!("/v1/models/{CLASSIFIER}")).ok()["capabilities"]["moderation"], true);
}

#[test]
fn harm_that_is_spread_over_labels_of_a_single_label_model_flags_the_most_likely() {
    let server = start(&[LETTERS]);
    let (labels, rows) = expected(LETTERS);
    let safe = labels.iter().position(|label| label == "OK").unwrap();
    let results = moderate(&server, json!({ "input": texts(&rows) })).ok()["results"].clone();
    let short = rows.iter().filter(|row| row.get("ids").is_some());
    let (mut flagged, mut unflagged) = (0, 0);
    for (result, row) in results.as_array().unwrap().iter().zip(short) {
        let scores: Vec<f64> = row["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect();
        let is_flagged = 1. - scores[safe] >= 0.5;
        assert_eq!(result["flagged"], is_flagged, "{result}");
        let applies = labels.iter().filter(|label| result["categories"][label.as_str()] == true).count();
        assert_eq!(applies, usize::from(is_flagged), "{result}");
        *if is_flagged { &mut flagged } else { &mut unflagged } += 1;
        assert_eq!(result["categories"]["OK"], false, "a safe label never flags");
        assert!(is_close(
            score(result, "sexual/minors"),
            scores[labels.iter().position(|label| label == "S3").unwrap()]
        ));
    }
    assert!(flagged > 3 && unflagged > 0);
    // The letters mean categories: here, S is the most likely.
    assert_eq!(results[0]["categories"]["sexual"], true, "{results}");
}

#[test]
fn a_text_beyond_the_models_limit_is_classified_whole() {
    let server = start(&[CLASSIFIER]);
    let (project, _, key) = server.tenant("t");
    let (labels, rows) = expected(CLASSIFIER);
    let long = rows.last().unwrap();
    let body = json!({ "input": long["text"] });
    let response = server.call(Method::POST, "/v1/moderations", Some(&key), Some(&body)).ok();
    for (label, expected) in labels.iter().zip(long["scores"].as_array().unwrap()) {
        assert!(is_close(score(&response["results"][0], label), expected.as_f64().unwrap()), "{label}: {response}");
    }
    // The tokens of all windows are metered.
    let windows = long["windows"].as_array().unwrap();
    let tokens: usize = windows.iter().map(|window| window.as_array().unwrap().len()).sum();
    let usage = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    assert_eq!((&usage["tokens"]["input"], &usage["requests"]), (&json!(tokens), &json!(1)), "{usage}");
    assert_eq!(usage["groups"][0]["endpoint"], "POST /moderations", "{usage}");
    let endless = json!({ "input": ["sea", "sea ".repeat(100_000)] });
    let text = refused(&moderate(&server, endless), 400, "context_length_exceeded", "input[1]");
    assert!(text.contains("2048 windows of 64 tokens"), "{text}");
}

#[test]
fn the_text_parts_of_a_message_get_one_result() {
    let server = start(&[CLASSIFIER]);
    let (_, rows) = expected(CLASSIFIER);
    let parts: Vec<Value> = texts(&rows[..2]).iter().map(|text| json!({ "type": "text", "text": text })).collect();
    let results = moderate(&server, json!({ "input": parts })).ok()["results"].clone();
    assert_eq!(results.as_array().unwrap().len(), 1);
    let highest = rows[..2].iter().map(|row| row["scores"][0].as_f64().unwrap()).fold(0., f64::max);
    assert!(is_close(score(&results[0], "toxic"), highest), "{results}");
    let image = json!([{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": "data:," } }]);
    let text = refused(&moderate(&server, json!({ "input": image })), 400, "invalid_parameter", "input[1]");
    assert!(text.contains("is an image"), "{text}");
    refused(&moderate(&server, json!({ "input": [{ "type": "text" }] })), 400, "invalid_parameter", "input[0].text");
    for (input, field) in [(json!(""), "input"), (json!([]), "input"), (json!(["a", ""]), "input[1]")] {
        refused(&moderate(&server, json!({ "input": input })), 400, "invalid_parameter", field);
    }
}

#[test]
fn without_a_name_the_alias_of_openais_default_or_the_first_moderating_model_answers() {
    let server = start(&[MOODS, LETTERS, CLASSIFIER]);
    let answers = |server: &Server, body: Value| moderate(server, body).ok()["model"].clone();
    assert_eq!(answers(&server, json!({ "input": "sea" })), LETTERS, "it comes first, and {MOODS} does not moderate");
    let text =
        refused(&moderate(&server, json!({ "model": MOODS, "input": "sea" })), 400, "invalid_parameter", "model");
    assert!(text.contains("'negative', 'neutral', 'positive'") && text.contains("[moderation.labels]"), "{text}");
    let unknown = json!({ "model": "omni-moderation-latest", "input": "sea" });
    refused(&moderate(&server, unknown.clone()), 404, "model_not_found", "model");
    let settings = format!("[aliases]\nomni-moderation-latest = '{CLASSIFIER}'\n");
    fs::write(server.folder.path().join("models/models.toml"), settings).unwrap();
    crate::wait::until(|| "the alias".to_owned(), || moderate(&server, unknown.clone()).status == 200);
    assert_eq!(answers(&server, json!({ "input": "sea" })), CLASSIFIER);
    // A key may use only the models that it names.
    let (project, ..) = server.tenant("t");
    let new = json!({ "name": "k", "project_id": project, "models": [LETTERS] });
    let key = server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned();
    let body = json!({ "input": "sea" });
    assert_eq!(server.call(Method::POST, "/v1/moderations", Some(&key), Some(&body)).status, 403);
}

#[test]
fn settings_say_what_labels_mean_and_from_which_score_they_apply() {
    let settings = format!(
        "[models.{MOODS}.moderation]\nthreshold = 0.9\nlabels = {{ negative = 'harassment', positive = 'unsafe' }}\n\
         [models.{CLASSIFIER}.moderation]\nlabels = {{ threat = 'safe', obscene = 'sexual' }}"
    );
    let server = start_with_settings(&[MOODS, CLASSIFIER], &settings);
    let (_, rows) = expected(MOODS);
    let body = json!({ "model": MOODS, "input": texts(&rows) });
    let results = moderate(&server, body).ok()["results"].clone();
    for (result, row) in results.as_array().unwrap().iter().zip(&rows).filter(|(_, row)| row.get("ids").is_some()) {
        let [negative, neutral, positive] = [0, 1, 2].map(|at| row["scores"][at].as_f64().unwrap());
        assert!(is_close(score(result, "harassment"), negative) && is_close(score(result, "neutral"), neutral));
        assert_eq!(result["flagged"], negative + positive >= 0.9, "{result}");
        assert_eq!(result["categories"]["neutral"], false);
    }
    assert_eq!(server.get(&format!("/v1/models/{MOODS}")).ok()["capabilities"]["moderation"], true);
    let (_, rows) = expected(CLASSIFIER);
    let result = moderate(&server, json!({ "model": CLASSIFIER, "input": rows[0]["text"] })).ok()["results"][0].clone();
    assert!(score(&result, "threat") > 0.8 && result["categories"]["threat"] == false, "{result}");
    assert!(is_close(score(&result, "sexual"), score(&result, "obscene")), "{result}");
    assert_eq!(score(&result, "harassment/threatening"), 0.);
}

#[test]
fn without_a_classifier_the_error_says_what_to_install() {
    let server = Server::with_encoders();
    for body in [json!({ "input": "a" }), json!({ "model": "omni-moderation-latest", "input": "a" })] {
        let text = refused(&moderate(&server, body), 404, "model_not_found", "model");
        assert!(text.contains("BertForSequenceClassification") && text.contains("outpost models pull hf:"), "{text}");
    }
    for model in [MODEL, EMBEDDER] {
        let text =
            refused(&moderate(&server, json!({ "model": model, "input": "a" })), 400, "invalid_parameter", "model");
        assert!(text.contains("needs a classification model"), "{text}");
    }
}
