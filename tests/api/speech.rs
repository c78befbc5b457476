//! Speech with a tiny random model, and the list of voices.

use std::io::{Read, Write};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use crate::images::assert_refused;
use crate::server::{MODEL, Response, Server};
use crate::tiny_kokoro::{self, VOICES};
use crate::tiny_model::TinyModel;
use crate::wait::until;

const KOKORO: &str = "tiny-kokoro";
const PATH: &str = "/v1/audio/speech";
const TEXT: &str = "Basha ba sha abba bab ba sha, abba. Ba sha abba basha bab abba sha ba, abba ba? Sha bab.";
const SAMPLES_PER_SECOND: f64 = 24_000.0;

fn start_server() -> Server {
    Server::start_configured(&TinyModel::default(), |config| tiny_kokoro::write(&config.paths.models, KOKORO))
}

fn request(more: &Value) -> Value {
    let mut body = json!({ "model": KOKORO, "input": TEXT, "voice": "af_heart", "response_format": "pcm" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn speak_with(server: &Server, path: &str, key: &str, more: &Value) -> Response {
    server.call(Method::POST, path, Some(key), Some(&request(more)))
}

fn speak(server: &Server, more: Value) -> Response {
    speak_with(server, PATH, &server.admin, &more)
}

/// The samples of a successful response as PCM.
fn pcm(server: &Server, more: Value) -> Vec<u8> {
    let response = speak(server, more);
    assert_eq!(response.status, 200, "{}", response.text);
    assert!(response.bytes.len() > 100 && response.bytes.len().is_multiple_of(2), "{}", response.bytes.len());
    response.bytes
}

/// Milliseconds of PCM, as they are metered.
fn millis(pcm: &[u8]) -> u64 {
    (pcm.len() as u64 / 2 * 1000).div_ceil(24_000)
}

fn usage(server: &Server, project: &str) -> (u64, u64, Value) {
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    let seconds = usage["audio_processing"]["output_seconds"].as_f64().unwrap();
    assert_eq!(usage["audio_processing"]["input_seconds"], 0.0);
    (usage["requests"].as_u64().unwrap(), (seconds * 1000.0).round() as u64, usage["requests_by_outcome"].clone())
}

#[test]
fn each_format_has_its_type_and_the_same_audio() {
    let server = start_server();
    let samples = pcm(&server, json!({}));
    assert_eq!(pcm(&server, json!({ "instructions": "Slowly.", "user": "someone" })), samples, "it is repeatable");
    for (format, kind, begin) in [
        ("mp3", "audio/mpeg", &b"\xff"[..]),
        ("opus", "audio/ogg", b"OggS"),
        ("flac", "audio/flac", b"fLaC"),
        ("wav", "audio/wav", b"RIFF\xff\xff\xff\xffWAVE"),
        ("pcm", "audio/pcm", &samples[..8]),
    ] {
        let response = speak(&server, json!({ "response_format": format }));
        assert_eq!((response.status, response.header("content-type")), (200, Some(kind)), "{}", response.text);
        assert!(response.bytes.starts_with(begin), "{format}: {:?}", &response.bytes[..16]);
        match format {
            "wav" => assert_eq!(&response.bytes[44..], samples),
            _ => assert!(response.bytes.len() > 200, "{format}"),
        }
    }
    let default = speak(&server, json!({ "response_format": null }));
    assert_eq!(default.header("content-type"), Some("audio/mpeg"));
}

#[test]
fn events_have_the_same_bytes_and_the_usage() {
    let server = start_server();
    let input = TEXT.repeat(4);
    let samples = pcm(&server, json!({ "input": input }));
    for (mount, usage) in [
        ("/v1", json!({ "type": "duration", "seconds": millis(&samples) as f64 / 1000.0 })),
        ("/openai/v1", json!({ "input_tokens": 0, "output_tokens": 0, "total_tokens": 0 })),
    ] {
        let path = format!("{mount}/audio/speech");
        let response = speak_with(&server, &path, &server.admin, &json!({ "stream_format": "sse", "input": input }));
        assert!(response.header("content-type").unwrap().starts_with("text/event-stream"), "{}", response.text);
        let data = response.text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut events: Vec<Value> = data.map(|text| serde_json::from_str(text).unwrap()).collect();
        let done = events.pop().unwrap();
        assert_eq!((&done["type"], &done["usage"]), (&json!("speech.audio.done"), &usage));
        assert!(events.len() > 1 && events.iter().all(|event| event["type"] == "speech.audio.delta"));
        let bytes = events.iter().flat_map(|event| STANDARD.decode(event["audio"].as_str().unwrap()).unwrap());
        assert_eq!(bytes.collect::<Vec<u8>>(), samples);
    }
}

#[test]
fn voices_are_mixed_and_openais_names_work() {
    let server = start_server();
    let of = |voice: Value| pcm(&server, json!({ "voice": voice }));
    let (heart, bella) = (of(json!("af_heart")), of(json!("af_bella")));
    assert_ne!(heart, bella);
    assert_eq!(of(json!({ "id": "af_heart" })), heart);
    assert_eq!(of(json!("af_heart(3)")), heart);
    assert_eq!(of(json!("marin")), heart);
    assert_eq!(of(json!("coral")), bella);
    let mix = of(json!("af_heart(2)+af_bella(1)"));
    assert!(mix != heart && mix != bella);
    assert_eq!(of(json!("af_heart(1)+af_bella(0.5)")), mix);
    pcm(&server, json!({ "voice": "onyx" }));
    pcm(&server, json!({ "voice": "ef_dora", "input": "Basaba, aba." }));
    let (slow, fast) = (pcm(&server, json!({ "speed": 0.5 })), pcm(&server, json!({ "speed": 2.0 })));
    assert!(slow.len() > fast.len(), "{} {}", slow.len(), fast.len());
}

#[test]
fn each_invalid_field_is_named_with_a_remedy() {
    let server = start_server();
    for (more, param, words) in [
        (json!({ "input": "" }), "input", "empty"),
        (json!({ "input": "?! ..." }), "input", "no words"),
        (json!({ "input": "a ".repeat(25_001) }), "input", "50002 characters"),
        (json!({ "input": null }), "input", "must be a string"),
        (json!({ "voice": "af_hart" }), "voice", "Did you mean 'af_heart'?"),
        (json!({ "voice": "someone" }), "voice", "GET /v1/audio/voices"),
        (json!({ "voice": "jf_alpha" }), "voice", "cannot be pronounced"),
        (json!({ "voice": "bf_emma" }), "voice", "lexicon"),
        (json!({ "voice": "af_heart(0)" }), "voice", "above 0"),
        (json!({ "voice": ["af_heart"] }), "voice", "name of a voice"),
        (json!({ "voice": (["af_heart"; 9].join("+")) }), "voice", "at most 8"),
        (json!({ "speed": 5 }), "speed", "0.25 to 4"),
        (json!({ "response_format": "aac" }), "response_format", "mp3, opus, flac, wav or pcm"),
        (json!({ "stream_format": "chunks" }), "stream_format", "audio or sse"),
        (json!({ "pitch": 2 }), "pitch", "not supported"),
        (json!({ "model": MODEL }), "model", "needs a speech model. Send 'tiny-kokoro'"),
    ] {
        for mount in ["/v1", "/openai/v1"] {
            assert_refused(&speak_with(&server, &format!("{mount}/audio/speech"), &server.admin, &more), param, words);
        }
    }
    let missing = speak(&server, json!({ "model": "none" }));
    assert_eq!(missing.error_fields(), (404, "model_not_found".to_owned(), Some("model".to_owned())));
}

#[test]
fn voices_are_listed_without_loading_models() {
    let server = start_server();
    let voice = |id: &str| {
        let language = match &id[..1] {
            "a" => json!("en-US"),
            "e" => json!("es"),
            _ => Value::Null,
        };
        json!({ "id": id, "name": id, "language": language, "model": KOKORO })
    };
    let expected: Vec<Value> = VOICES.into_iter().map(voice).collect();
    for query in ["", "?model=tiny-kokoro"] {
        assert_eq!(server.get(&format!("/openai/v1/audio/voices{query}")).ok(), json!({ "voices": expected }));
        let list = server.get(&format!("/v1/audio/voices{query}")).ok();
        assert_eq!((&list["voices"], &list["has_more"]), (&json!(expected), &json!(false)));
        let data = list["data"].as_array().unwrap();
        assert_eq!((data.len(), &data[1]["id"], &data[1]["object"]), (5, &json!("af_heart"), &json!("voice")));
        assert_eq!((&data[1]["language"], &data[1]["model"]), (&json!("en-US"), &json!(KOKORO)));
    }
    assert_eq!(server.get(&format!("/v1/models/{KOKORO}")).ok()["loaded"], false);
    assert_refused(&server.get(&format!("/v1/audio/voices?model={MODEL}")), "model", "needs a speech model");
    assert_eq!(server.get("/v1/audio/voices?model=none").status, 404);
    let (project, _, key) = server.tenant("t");
    let limited = json!({ "name": "k", "project_id": project, "scopes": ["inference"], "models": [MODEL] });
    let created = server.call(Method::POST, "/v1/api-keys", Some(&key), Some(&limited)).ok();
    let limited = created["secret"].as_str().unwrap();
    let get = |path: &str| server.call(Method::GET, path, Some(limited), None);
    assert_eq!(get("/openai/v1/audio/voices").ok(), json!({ "voices": [] }));
    assert_eq!(get(&format!("/v1/audio/voices?model={KOKORO}")).status, 403);
    assert_eq!(speak_with(&server, PATH, limited, &json!({})).status, 403);
}

#[test]
fn voices_and_words_that_are_added_later_are_used() {
    let mut models = None;
    let server = Server::start_configured(&TinyModel::default(), |config| {
        tiny_kokoro::write(&config.paths.models, KOKORO);
        models = Some(config.paths.models.join(KOKORO));
    });
    let folder = models.unwrap();
    let input = json!({ "input": "Abab abab." });
    let (heart, bella) =
        (pcm(&server, input.clone()), pcm(&server, json!({ "voice": "af_bella", "input": "Abab abab." })));
    std::fs::copy(folder.join("voices/af_bella.bin"), folder.join("voices/af_new.bin")).unwrap();
    let spoken = || speak(&server, json!({ "voice": "af_new", "input": "Abab abab." }));
    until(|| "the new voice speaks", || spoken().status == 200);
    assert_eq!(spoken().bytes, bella);
    std::fs::write(folder.join("lexicon/us_gold.json"), json!({ "abab": "ʃˈaʃa" }).to_string()).unwrap();
    until(|| "the new word is spoken", || pcm(&server, input.clone()) != heart);
}

#[test]
fn exactly_the_audio_that_was_spoken_is_metered() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let mut expected = 0;
    for more in [json!({}), json!({ "input": "Ba." }), json!({ "speed": 0.7 })] {
        let response = speak_with(&server, PATH, &key, &more);
        assert_eq!(response.status, 200, "{}", response.text);
        expected += millis(&response.bytes);
        speak_with(&server, PATH, &key, &json!({ "stream_format": "sse", "input": "!" }));
    }
    let (requests, millis, outcomes) = usage(&server, &project);
    assert_eq!((requests, millis), (6, expected));
    assert_eq!((&outcomes["succeeded"], &outcomes["refused"]), (&json!(3), &json!(3)));
    let grouped = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    let group = &grouped["groups"][0];
    assert_eq!((&group["endpoint"], &group["model"]), (&json!("POST /audio/speech"), &json!(KOKORO)));
}

#[test]
fn seconds_of_speech_are_limited_per_minute_and_may_overdraw_the_limit() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let seconds = pcm(&server, json!({})).len() as f64 / 2.0 / SAMPLES_PER_SECOND;
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &json!({ "audio_seconds_per_minute": 1 })).ok();
    let mut spoken = 0.0;
    while spoken < 1.0 {
        assert_eq!(speak_with(&server, PATH, &key, &json!({})).status, 200, "after {spoken}");
        spoken += seconds;
    }
    let refused = speak_with(&server, PATH, &key, &json!({}));
    assert_eq!(refused.error_fields(), (429, "rate_limit_exceeded".to_owned(), None));
    assert!(refused.text.contains("1 seconds of audio per minute"), "{}", refused.text);
    server.clock.pass(Duration::from_secs_f64(60.0 * (spoken - 1.0) + 2.0));
    assert_eq!(speak_with(&server, PATH, &key, &json!({})).status, 200);
}

#[test]
fn a_client_that_leaves_is_charged_for_what_was_spoken() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let input = format!("{TEXT} ").repeat(400);
    let part = millis(&pcm(&server, json!({})));
    let mut connection = server.begin(PATH, &key, &request(&json!({ "input": input })));
    let mut first = [0; 1024];
    connection.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"));
    connection.flush().unwrap();
    drop(connection);
    until(|| "the departure is recorded", || usage(&server, &project).0 == 1);
    let (_, spoken, outcomes) = usage(&server, &project);
    assert!(spoken > 0 && spoken < part * 300, "{spoken} of {}", part * 400);
    assert_eq!(outcomes["abandoned"], 1, "{outcomes}");
    pcm(&server, json!({}));
}
