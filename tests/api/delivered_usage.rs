//! What was delivered is metered: a client that leaves after any event of any streamed API pays at least for what it has
//! received.

use std::io::Read;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::blocking::{Client, Response as Body};
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::image_generation::sample_image;
use crate::server::{IMAGE_MODEL, MODEL, Server};
use crate::store_location::check_store;
use crate::tiny_kokoro;
use crate::tiny_model::TinyModel;
use crate::tiny_whisper;
use crate::transcriptions::{WHISPER, speech};
use crate::upload::{Part, form};
use crate::wait::until;

const KOKORO: &str = "tiny-kokoro";
/// Bytes of speech in a millisecond.
const PCM_BYTES_PER_MILLI: u64 = 48;

/// A streamed request.
struct Case {
    path: &'static str,
    body: Sent,
    /// What events deliver.
    delivered: fn(&[Value]) -> Amounts,
}

enum Sent {
    Json(Value),
    Form(Vec<(&'static str, Option<&'static str>, Vec<u8>)>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    input: u64,
    output: u64,
    images: u64,
    audio_millis: u64,
}

impl Amounts {
    fn covers(&self, delivered: &Self) -> bool {
        self.input >= delivered.input
            && self.output >= delivered.output
            && self.images >= delivered.images
            && self.audio_millis >= delivered.audio_millis
    }
}

fn server() -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        add_fixture("pipelines", &config.paths.models, IMAGE_MODEL);
        tiny_kokoro::write(&config.paths.models, KOKORO);
        tiny_whisper::write(&config.paths.models, WHISPER, true);
        config.sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
    })
}

fn report(server: &Server, project: &str) -> Value {
    server.get(&format!("/v1/projects/{project}/usage")).ok()
}

fn recorded(report: &Value) -> Amounts {
    let count = |value: &Value| value.as_u64().unwrap();
    Amounts {
        input: count(&report["tokens"]["input"]),
        output: count(&report["tokens"]["output"]),
        images: count(&report["image_generations"]),
        audio_millis: (report["audio_processing"]["seconds"].as_f64().unwrap() * 1000.0).round() as u64,
    }
}

impl Case {
    fn send(&self, server: &Server, key: &str) -> Body {
        // Its connection is closed with the response.
        let client = Client::builder().pool_max_idle_per_host(0).timeout(Duration::from_secs(60)).build().unwrap();
        let request = client.post(format!("{}{}", server.url, self.path)).bearer_auth(key);
        let request = match &self.body {
            Sent::Json(body) => request.header("content-type", "application/json").body(body.to_string()),
            Sent::Form(parts) => {
                let parts: Vec<Part<'_>> =
                    parts.iter().map(|(name, file, content)| (*name, *file, &**content)).collect();
                request.header("content-type", "multipart/form-data; boundary=xYzZY").body(form("xYzZY", &parts))
            }
        };
        let response = request.send().unwrap();
        assert_eq!(response.status(), 200, "{}", self.path);
        response
    }

    /// Leaves after `count` events. Returns the events that have arrived, and what is recorded.
    fn leave_after(&self, server: &Server, count: usize) -> (Vec<Value>, Amounts) {
        let (project, _, key) = server.tenant("t");
        let events = read_events(self.send(server, &key), count);
        until(|| format!("{} is recorded", self.path), || report(server, &project)["requests"] == 1);
        (events, recorded(&report(server, &project)))
    }
}

/// Reads until at least so many events have arrived, or to the end. Comments are not events.
fn read_events(mut body: Body, count: usize) -> Vec<Value> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let events = whole_events(&bytes);
        if events.len() >= count {
            return events;
        }
        match body.read(&mut buffer).unwrap() {
            0 => return events,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
}

/// The events of a stream, or the lines of JSON, that are complete.
fn whole_events(bytes: &[u8]) -> Vec<Value> {
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = std::str::from_utf8(&bytes[..whole]).unwrap().lines();
    lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).ok()).collect()
}

/// Every event with text has at least one token.
fn texts(events: &[Value]) -> Amounts {
    let fields =
        ["/choices/0/delta/content", "/choices/0/text", "/delta", "/delta/text", "/message/content", "/response"];
    let has_text = |event: &&Value| {
        fields.iter().any(|field| event.pointer(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty()))
    };
    Amounts { output: events.iter().filter(has_text).count() as u64, ..Amounts::default() }
}

/// A finished image is an image, and so is a preview from half of the steps on.
fn images(events: &[Value]) -> Amounts {
    let mut delivered = [false; 2];
    let mut is_late = false;
    for event in events {
        let kind = event["type"].as_str().unwrap();
        if kind.ends_with(".progress") {
            is_late = event["step"].as_u64().unwrap() * 2 >= event["steps"].as_u64().unwrap();
        } else if is_late || kind.ends_with(".completed") {
            delivered[event["image_index"].as_u64().unwrap() as usize] = true;
        }
    }
    Amounts { images: delivered.iter().filter(|is_delivered| **is_delivered).count() as u64, ..Amounts::default() }
}

/// The audio up to the end of the last segment, in milliseconds.
fn segments(events: &[Value]) -> Amounts {
    let ends = events.iter().filter_map(|event| event["end"].as_f64());
    Amounts { audio_millis: (ends.fold(0.0, f64::max) * 1000.0).floor() as u64, ..Amounts::default() }
}

fn spoken(events: &[Value]) -> Amounts {
    let audio = events.iter().filter_map(|event| event["audio"].as_str());
    let bytes: usize = audio.map(|audio| STANDARD.decode(audio).unwrap().len()).sum();
    Amounts { audio_millis: bytes as u64 / PCM_BYTES_PER_MILLI, ..Amounts::default() }
}

/// Leaves each request after every number of events. The tokens of the prompt are always counted.
fn assert_delivered_is_recorded(server: &Server, cases: &[Case]) {
    for case in cases {
        let (all, whole) = case.leave_after(server, usize::MAX);
        let delivered = (case.delivered)(&all);
        assert!(delivered != Amounts::default() && whole.covers(&delivered), "{}: {whole:?} {all:?}", case.path);
        for count in 0..=all.len() {
            let (events, found) = case.leave_after(server, count);
            let delivered = Amounts { input: whole.input, ..(case.delivered)(&events) };
            let place = format!("{} after {} of {} events", case.path, events.len(), all.len());
            assert!(found.covers(&delivered), "{place}: {delivered:?} delivered, but {found:?} recorded");
            assert!(whole.covers(&found), "{place}: {found:?} recorded, but the whole is {whole:?}");
        }
    }
}

fn text_case(path: &'static str, more: Value) -> Case {
    let mut body = json!({ "model": MODEL, "stream": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Case { path, body: Sent::Json(body), delivered: texts }
}

#[test]
fn a_client_that_leaves_after_any_event_of_a_text_pays_for_what_it_has_received() {
    let server = server();
    let messages = json!([{ "role": "user", "content": "hello the sea" }]);
    let cases = [
        text_case(
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 6, "ignore_eos": true, "temperature": 0 }),
        ),
        text_case(
            "/openai/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 5, "n": 2, "temperature": 0 }),
        ),
        text_case(
            "/v1/completions",
            json!({ "prompt": ["hello", "the sea"], "max_tokens": 4, "n": 2, "ignore_eos": true, "temperature": 0 }),
        ),
        text_case(
            "/v1/responses",
            json!({ "input": "hello", "max_output_tokens": 5, "ignore_eos": true, "temperature": 0 }),
        ),
        text_case("/v1/messages", json!({ "messages": messages, "max_tokens": 5, "temperature": 0 })),
        text_case("/api/chat", json!({ "messages": messages, "options": { "num_predict": 5, "temperature": 0 } })),
        text_case("/api/generate", json!({ "prompt": "hello", "options": { "num_predict": 5, "temperature": 0 } })),
    ];
    assert_delivered_is_recorded(&server, &cases);
}

#[test]
fn a_client_that_leaves_after_any_event_of_audio_pays_for_what_it_has_received() {
    let server = server();
    let text = "Basha ba sha abba bab ba sha, abba. Ba sha abba basha bab abba sha ba, abba ba? Sha bab.";
    let speaking = json!({
        "model": KOKORO, "input": text.repeat(3), "voice": "af_heart", "response_format": "pcm", "stream_format": "sse",
    });
    let silence = vec![0; 8_000 * 2 * 40];
    let fields = [("model", WHISPER), ("stream", "true"), ("response_format", "verbose_json"), ("language", "en")];
    let mut parts: Vec<_> = fields.into_iter().map(|(name, value)| (name, None, value.as_bytes().to_vec())).collect();
    parts.push(("file", Some("a.wav"), speech_around(&silence)));
    let cases = [
        Case { path: "/v1/audio/speech", body: Sent::Json(speaking), delivered: spoken },
        Case { path: "/v1/audio/transcriptions", body: Sent::Form(parts), delivered: segments },
    ];
    assert_delivered_is_recorded(&server, &cases);
}

/// A WAV file of speech before and after these samples.
fn speech_around(samples: &[u8]) -> Vec<u8> {
    let file = speech(8);
    let (head, spoken) = file.split_at(44);
    let data = [spoken, samples, spoken].concat();
    let mut head = head.to_vec();
    head[4..8].copy_from_slice(&u32::try_from(36 + data.len()).unwrap().to_le_bytes());
    head[40..44].copy_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
    [head, data].concat()
}

/// A request for an image with three previews, after steps 5, 10 and 15 of 20.
fn previewing(count: u32, steps: u32) -> Value {
    json!({
        "model": IMAGE_MODEL, "prompt": "a red house", "size": "64x64", "steps": steps, "scheduler": "ddim", "seed": 5,
        "n": count, "stream": true, "partial_images": 3,
    })
}

#[test]
fn a_client_that_leaves_after_any_event_of_an_image_pays_for_what_it_has_received() {
    let server = server();
    let fields = [
        ("model", IMAGE_MODEL),
        ("prompt", "x"),
        ("size", "64x64"),
        ("steps", "12"),
        ("scheduler", "ddim"),
        ("seed", "3"),
        ("strength", "0.75"),
        ("stream", "true"),
        ("partial_images", "2"),
    ];
    let mut parts: Vec<_> = fields.into_iter().map(|(name, value)| (name, None, value.as_bytes().to_vec())).collect();
    parts.push(("image", Some("i.png"), sample_image()));
    let cases = [
        Case { path: "/v1/images/generations", body: Sent::Json(previewing(1, 20)), delivered: images },
        Case { path: "/v1/images/generations", body: Sent::Json(previewing(2, 9)), delivered: images },
        Case { path: "/v1/images/edits", body: Sent::Form(parts), delivered: images },
    ];
    assert_delivered_is_recorded(&server, &cases);
}

/// Reads until an event has this type.
fn read_until(body: &mut Body, bytes: &mut Vec<u8>, kind: &str, times: usize) {
    let mut buffer = [0; 4096];
    let found = |bytes: &[u8]| whole_events(bytes).iter().filter(|event| event["type"] == kind).count() >= times;
    while !found(bytes) {
        let read = body.read(&mut buffer).unwrap();
        assert!(read > 0, "the stream ended before {kind}");
        bytes.extend_from_slice(&buffer[..read]);
    }
}

#[test]
fn a_preview_that_counts_as_the_image_is_recorded_before_it_is_sent() {
    let server = server();
    let (project, _, key) = server.tenant("t");
    let case = Case { path: "/v1/images/generations", body: Sent::Json(previewing(2, 360)), delivered: images };
    let (mut body, mut bytes) = (case.send(&server, &key), Vec::new());
    let images = || report(&server, &project)["image_generations"].as_u64().unwrap();
    read_until(&mut body, &mut bytes, "image_generation.partial_image", 1);
    assert_eq!(images(), 0, "a quarter of the steps is no image");
    for (kind, times, expected) in
        [("partial_image", 2, 1), ("partial_image", 3, 1), ("completed", 1, 1), ("partial_image", 5, 2)]
    {
        read_until(&mut body, &mut bytes, &format!("image_generation.{kind}"), times);
        assert_eq!(images(), expected, "{kind} {times}");
    }
    body.read_to_end(&mut bytes).unwrap();
    let whole = report(&server, &project);
    assert_eq!((&whole["requests"], &whole["image_generations"]), (&json!(1), &json!(2)), "{whole}");
    assert_eq!(whole["requests_by_outcome"]["succeeded"], 1, "{whole}");
    let folder = server.stop();
    let checked = check_store(&folder.path().join("data"));
    assert!(checked.is_clean(), "{:?}", checked.problems);
}

#[test]
fn an_abandoned_image_counts_by_its_steps() {
    let server = server();
    let leave = |step: usize| {
        let mut request = previewing(1, 200);
        request["partial_images"] = json!(0);
        let (project, _, key) = server.tenant("t");
        let case = Case { path: "/v1/images/generations", body: Sent::Json(request), delivered: images };
        read_events(case.send(&server, &key), step);
        until(|| "the request is recorded", || report(&server, &project)["requests"] == 1);
        report(&server, &project)["image_generations"].as_u64().unwrap()
    };
    assert_eq!([1, 110].map(leave), [0, 1]);
}
