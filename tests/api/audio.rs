//! Transcriptions and translations as far as they need no model: the form, and errors that name fields.

use reqwest::Method;

use crate::images::assert_refused;
use crate::server::{MODEL, Response, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{Part, form};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];
pub const ENDPOINTS: [&str; 2] = ["transcriptions", "translations"];

/// `POST {mount}/audio/{endpoint}` with any parts.
pub fn send(server: &Server, path: &str, key: &str, parts: &[Part<'_>]) -> Response {
    let headers = [("content-type", "multipart/form-data; boundary=xYzZY")];
    server.raw(Method::POST, path, Some(key), &headers, Some(form("xYzZY", parts)))
}

/// The parts of a request with these fields, after the file.
fn parts<'a>(fields: &[(&'a str, &'a str)]) -> Vec<Part<'a>> {
    let file: [Part<'a>; 1] = [("file", Some("speech.mp3"), b"ID3")];
    file.into_iter().chain(fields.iter().map(|(name, value)| (*name, None, value.as_bytes()))).collect()
}

fn refused(server: &Server, fields: &[(&str, &str)], param: &str, words: &str) {
    for endpoint in ENDPOINTS {
        let path = format!("/v1/audio/{endpoint}");
        let named = if fields.iter().any(|(name, _)| *name == "model") { vec![] } else { vec![("model", MODEL)] };
        assert_refused(&send(server, &path, &server.admin, &parts(&[fields, &named].concat())), param, words);
    }
}

#[test]
fn each_invalid_field_is_named_with_a_remedy() {
    let server = Server::start();
    let long = "x".repeat(8_001);
    for (fields, param, words) in [
        (&[("language", "klingon")][..], "language", "such as german"),
        (&[("temperature", "2")], "temperature", "from 0 to 1"),
        (&[("temperature", "warm")], "temperature", "must be a number"),
        (&[("response_format", "diarized_json")], "response_format", "verbose_json"),
        (&[("timestamp_granularities[]", "word")], "timestamp_granularities", "verbose_json"),
        (&[("timestamp_granularities[]", "letter")], "timestamp_granularities[0]", "word or segment"),
        (&[("include[]", "logprobs"), ("response_format", "text")], "include", "json"),
        (&[("include[]", "everything")], "include[0]", "logprobs"),
        (&[("stream", "perhaps")], "stream", "true or false"),
        (&[("stream", "true"), ("response_format", "vtt")], "response_format", "stream"),
        (&[("chunking_strategy", "never")], "chunking_strategy", "server_vad"),
        (
            &[("chunking_strategy[type]", "server_vad"), ("chunking_strategy[tempo]", "1")],
            "chunking_strategy",
            "server_vad",
        ),
        (&[("prompt", &long)], "prompt", "8001 characters"),
        (&[("keywords[]", "lighthouse")], "keywords", "not supported"),
        (&[("languge", "en")], "languge", "Did you mean 'language'?"),
        (&[("language", "en"), ("language", "de")], "language", "more than once"),
        (&[("file", "again")], "file", "more than once"),
    ] {
        refused(&server, fields, param, words);
    }
}

#[test]
fn the_request_is_a_form_with_a_file_and_a_model() {
    let server = Server::start();
    for endpoint in ENDPOINTS {
        let path = format!("/v1/audio/{endpoint}");
        let sent = |parts: &[Part<'_>]| send(&server, &path, &server.admin, parts);
        assert_refused(&sent(&[("model", None, MODEL.as_bytes())]), "file", "file=@speech.mp3");
        assert_refused(&sent(&[("file", None, b"x")]), "model", "missing");
        let json = server.post(&path, &serde_json::json!({ "model": MODEL, "file": "x" }));
        assert_eq!(json.error_fields(), (400, "invalid_parameter".to_owned(), None));
        assert!(json.text.contains("multipart/form-data"));
    }
}

#[test]
fn a_model_of_another_kind_is_refused_and_a_missing_one_is_not_found() {
    let server = Server::start();
    for mount in MOUNTS {
        for endpoint in ENDPOINTS {
            let path = format!("{mount}/audio/{endpoint}");
            let of_model = |model| send(&server, &path, &server.admin, &parts(&[("model", model)]));
            assert_refused(&of_model(MODEL), "model", "needs a transcription model");
            let missing = of_model("whisper-none").error_fields();
            assert_eq!(missing, (404, "model_not_found".to_owned(), Some("model".to_owned())));
        }
    }
}

#[test]
fn a_file_above_the_limit_is_refused_with_413() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.max_audio_bytes = 100_000);
    let data = server.folder.path().join("data");
    let files = || data.read_dir().unwrap().count();
    let before = files();
    // The first is refused before its body is read, the second while it is.
    for bytes in [5_000_000, 100_001] {
        let content = vec![7; bytes];
        let all = [("model", None, MODEL.as_bytes()), ("file", Some("a.wav"), &content[..])];
        let response = send(&server, "/v1/audio/transcriptions", &server.admin, &all);
        assert_eq!(response.error_fields(), (413, "request_too_large".to_owned(), Some("file".to_owned())));
        assert!(response.text.contains("--max-audio-size"), "{}", response.text);
    }
    assert_eq!(files(), before, "no temporary file is left");
}
