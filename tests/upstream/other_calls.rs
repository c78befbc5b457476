//! Embeddings, reranking, images, transcriptions and speech of upstream models.

use std::io::Cursor;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outpost_testing::fixtures::fixture;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_target::FakeTarget;
use crate::server::{EMBEDDER, RERANKER, Response, Server};
use crate::tiny_model::TinyModel;
use crate::{REMOTE, server_with_settings, upstream_toml, write_upstream};

#[test]
fn vectors_and_scores_are_the_same_as_without_the_hop() {
    let target = Server::with_encoders();
    let near = Server::start_configured(&TinyModel::default(), |config| {
        for (id, kind) in [(EMBEDDER, "embedding"), (RERANKER, "rerank")] {
            let text = format!(
                "kind = \"{kind}\"\napi = \"outpost\"\n[[target]]\nurl = \"{}/openai/v1\"\nkey_file = \"key\"\n",
                target.url
            );
            write_upstream(&config.paths.models, id, &text);
            std::fs::write(config.paths.models.join(id).join("key"), &target.admin).unwrap();
        }
    });
    let without_id = |response: Response| {
        let mut body = response.ok();
        body.as_object_mut().unwrap().remove("id");
        body
    };
    let embed = json!({ "model": EMBEDDER, "input": ["the tide", "a lighthouse"], "input_type": "query" });
    let rerank = json!({ "model": RERANKER, "query": "tide", "documents": ["a", "the tide", "b"], "top_n": 2 });
    for (path, body) in [("/openai/v1/embeddings", &embed), ("/v1/rerank", &rerank)] {
        assert_eq!(without_id(near.post(path, body)), without_id(target.post(path, body)), "{path}");
    }
    let ids = json!({ "model": EMBEDDER, "input": [1, 2], "token_ids": "model" });
    assert_eq!(near.post("/v1/embeddings", &ids).error_fields().2.as_deref(), Some("input"));
}

#[test]
fn vectors_are_checked_and_their_usage_is_told() {
    let target = FakeTarget::start(|number, _, reply| {
        match number {
        0 => reply.json(&json!({ "data": [{ "index": 0, "embedding": [3, 4] }], "usage": { "prompt_tokens": 9, "total_tokens": 9 } })),
        1 => reply.json(&json!({ "data": [{ "index": 0, "embedding": [3, 4] }] })),
        _ => reply.json(&json!({ "data": [] })),
    }
    });
    let server = server_with_settings("kind = \"embedding\"", &[target.address], "");
    let body = json!({ "model": REMOTE, "input": "eight bytes" });
    let first = server.post("/v1/embeddings", &body).ok();
    assert_eq!((&first["data"][0]["embedding"], &first["usage"]["prompt_tokens"]), (&json!([0.6, 0.8]), &json!(9)));
    assert_eq!(target.last().json(), json!({ "input": ["eight bytes"], "encoding_format": "float", "model": "there" }));
    // Eleven bytes.
    assert_eq!(server.post("/v1/embeddings", &body).ok()["usage"]["prompt_tokens"], 3);
    assert_eq!(server.post("/v1/embeddings", &body).error_fields().1, "model_unavailable");
    let chat = json!({ "model": REMOTE, "messages": [{ "role": "user", "content": "x" }] });
    assert_eq!(server.post("/v1/chat/completions", &chat).error_fields().2.as_deref(), Some("model"));
}

#[test]
fn teis_format_of_reranking_is_spoken() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.json(&json!([{ "index": 1, "score": 0.9 }, { "index": 0, "score": 0.1 }]))
    });
    let server = server_with_settings("kind = \"rerank\"\napi = \"tei\"", &[target.address], "");
    let body = json!({ "model": REMOTE, "query": "q", "documents": ["a", "b"], "truncate": true });
    let ranked = server.post("/v1/rerank", &body).ok();
    assert_eq!(ranked["results"][0], json!({ "index": 1, "relevance_score": 0.9 }));
    assert_eq!(target.last().json(), json!({ "query": "q", "texts": ["a", "b"], "truncate": true, "model": "there" }));
}

/// A PNG of this size.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    image::RgbImage::from_pixel(width, height, image::Rgb([200, 10, 10]))
        .write_to(&mut file, image::ImageFormat::Png)
        .unwrap();
    file.into_inner()
}

#[test]
fn images_are_encoded_as_the_client_wants() {
    let target = FakeTarget::start(|number, request, reply| {
        let count = request.json()["n"].as_u64().unwrap();
        let item = json!({ "b64_json": STANDARD.encode(if number < 3 { png(8, 16) } else { b"no image".to_vec() }) });
        reply.json(&json!({ "created": 1, "data": vec![item; usize::try_from(count).unwrap()] }));
    });
    let server = server_with_settings("kind = \"image\"", &[target.address], "");
    let body = |more: Value| {
        let mut body = json!({ "model": REMOTE, "prompt": "a tide", "n": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let images = server.post("/v1/images/generations", &body(json!({ "output_format": "jpeg" }))).ok();
    let file = STANDARD.decode(images["data"][1]["b64_json"].as_str().unwrap()).unwrap();
    assert_eq!(image::guess_format(&file).unwrap(), image::ImageFormat::Jpeg);
    assert_eq!(
        (&images["size"], &images["usage"]["images"], images["data"][0].get("seed")),
        (&json!("8x16"), &json!(2), None)
    );
    assert_eq!(
        target.last().json(),
        json!({ "prompt": "a tide", "n": 2, "response_format": "b64_json", "model": "there" })
    );
    let scaled = server.post("/v1/images/generations", &body(json!({ "size": "64x64", "resize": true }))).ok();
    assert_eq!(scaled["size"], "64x64");
    for resize in [false, true] {
        let huge = body(json!({ "size": "16384x16384", "resize": resize }));
        assert_eq!(server.post("/v1/images/generations", &huge).error_fields().2.as_deref(), Some("size"));
    }
    let streamed = server.post("/v1/images/generations", &body(json!({ "stream": true })));
    assert_eq!(streamed.text.matches("image_generation.completed").count(), 4, "{}", streamed.text.len());
    for (more, param) in [(json!({ "seed": 5 }), "seed"), (json!({ "negative_prompt": "x" }), "negative_prompt")] {
        assert_eq!(server.post("/v1/images/generations", &body(more)).error_fields().2.as_deref(), Some(param));
    }
    assert_eq!(server.post("/v1/images/generations", &body(json!({}))).error_fields().1, "model_unavailable");
}

#[test]
fn images_of_a_target_that_ignores_the_size_are_not_scaled() {
    let target = FakeTarget::start(|number, _, reply| {
        let file = if number == 0 { png(8, 16) } else { png(2049, 1) };
        reply.json(&json!({ "created": 1, "data": [{ "b64_json": STANDARD.encode(file) }] }));
    });
    let server = server_with_settings("kind = \"image\"", &[target.address], "");
    let body = json!({ "model": REMOTE, "prompt": "a tide", "size": "64x64" });
    let images = server.post("/v1/images/generations", &body).ok();
    let file = STANDARD.decode(images["data"][0]["b64_json"].as_str().unwrap()).unwrap();
    let image = image::load_from_memory(&file).unwrap();
    assert_eq!((&images["size"], image.width(), image.height()), (&json!("8x16"), 8, 16));
    assert_eq!(server.post("/v1/images/generations", &body).error_fields().1, "model_unavailable", "too wide");
}

#[test]
fn speech_is_encoded_and_measured() {
    let target = FakeTarget::start(|number, _, reply| match number {
        0 => {
            // A second at 24 kHz, in odd pieces.
            reply.raw("HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ncontent-length: 48000\r\n\r\n");
            (0..48).for_each(|_| reply.raw(&"\x01".repeat(1000)));
        }
        _ => reply.json(&json!({ "error": "no" })),
    });
    let server = server_with_settings("kind = \"speech\"", &[target.address], "");
    let body = json!({ "model": REMOTE, "voice": "af_heart", "input": "hello", "response_format": "wav" });
    let spoken = server.post("/v1/audio/speech", &body);
    assert_eq!((spoken.status, spoken.bytes.len()), (200, 48_044));
    assert_eq!(&spoken.bytes[44..46], [1, 1]);
    let sent =
        json!({ "input": "hello", "voice": "af_heart", "speed": 1.0, "response_format": "pcm", "model": "there" });
    assert_eq!(target.last().json(), sent);
    assert_eq!(server.post("/v1/audio/speech", &body).error_fields().1, "model_unavailable");
    let mixed = json!({ "model": REMOTE, "voice": "a+b", "input": "hello" });
    assert_eq!(server.post("/v1/audio/speech", &mixed).error_fields().2.as_deref(), Some("voice"));
    let project = server.get("/v1/projects").ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    assert_eq!(usage["audio_processing"]["output_seconds"], 1.0);
}

#[test]
fn audio_files_are_sent_on_and_measured_here() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.json(&json!({
            "text": "One. Two.", "language": "german",
            "segments": [{ "start": 0.0, "end": 0.7, "text": " One." }, { "start": 0.7, "end": 1.5, "text": " Two." }],
        }));
    });
    let text = upstream_toml("kind = \"transcription\"", &[target.address]);
    let server = Server::start_configured(&TinyModel::default(), |config| {
        write_upstream(&config.paths.models, REMOTE, &text);
        config.sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
    });
    let file = std::fs::read(fixture("audio/mono-8k.wav")).unwrap();
    let mut form = Vec::new();
    for (name, value) in
        [("model", REMOTE), ("response_format", "verbose_json"), ("prompt", "tide"), ("language", "de")]
    {
        form.extend(
            format!("--xYz\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").into_bytes(),
        );
    }
    form.extend(b"--xYz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
    form.extend(&file);
    form.extend(b"\r\n--xYz--\r\n");
    let headers = [("content-type", "multipart/form-data; boundary=xYz")];
    let response = server.raw(Method::POST, "/v1/audio/transcriptions", Some(&server.admin), &headers, Some(form)).ok();
    assert_eq!((&response["text"], &response["language"]), (&json!("One. Two."), &json!("german")));
    assert_eq!((&response["duration"], &response["segments"][1]["start"]), (&json!(1.5), &json!(0.7)));
    let sent = target.last();
    assert_eq!(sent.path, "/v1/audio/transcriptions");
    assert!(sent.body.windows(file.len()).any(|part| part == file), "the file is sent as it is");
    let form = String::from_utf8_lossy(&sent.body).into_owned();
    for part in [
        "name=\"model\"\r\n\r\nthere",
        "name=\"prompt\"\r\n\r\ntide",
        "name=\"language\"\r\n\r\nde",
        "filename=\"audio.wav\"",
    ] {
        assert!(form.contains(part), "{part}");
    }
}
