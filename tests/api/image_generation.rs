//! The image endpoints with a tiny pipeline.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::images::{assert_refused, send};
use crate::server::{Response, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{Part, set_quotas};
use crate::wait::until;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];
/// The pipeline in `tests/fixtures/pipelines`.
const MODEL: &str = "sd1";

/// A server with an image model.
pub fn start_server() -> Server {
    Server::start_configured(&TinyModel::default(), |config| add_fixture("pipelines", &config.paths.models, MODEL))
}

/// The smallest request for an image.
fn request(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": "a red house", "size": "64x64", "steps": 2 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn generate(server: &Server, mount: &str, more: Value) -> Response {
    server.post(&format!("{mount}/images/generations"), &request(more))
}

fn open(bytes: &[u8]) -> RgbImage {
    image::load_from_memory(bytes).unwrap().to_rgb8()
}

/// The images of a response body.
fn decoded_images(body: &Value) -> Vec<Vec<u8>> {
    let one = |item: &Value| STANDARD.decode(item["b64_json"].as_str().unwrap()).unwrap();
    body["data"].as_array().unwrap().iter().map(one).collect()
}

fn seeds(body: &Value) -> Vec<u64> {
    body["data"].as_array().unwrap().iter().map(|item| item["seed"].as_u64().unwrap()).collect()
}

fn file(image_bytes: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    image_bytes.into().write_to(&mut file, format).unwrap();
    file.into_inner()
}

/// A PNG of 64 by 64 pixels.
pub fn sample_image() -> Vec<u8> {
    file(RgbImage::from_fn(64, 64, |x, y| Rgb([(x * 4) as u8, (y * 4) as u8, 90])), ImageFormat::Png)
}

fn usage(server: &Server, project: &str) -> (Value, Value) {
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    (usage["requests"].clone(), usage["image_generations"].clone())
}

#[test]
fn an_image_response_has_the_format_of_its_mount() {
    let server = start_server();
    for mount in MOUNTS {
        let body = generate(&server, mount, json!({})).ok();
        let [image_bytes] = decoded_images(&body).try_into().unwrap();
        assert_eq!(image::guess_format(&image_bytes).unwrap(), ImageFormat::Png);
        assert_eq!(open(&image_bytes).dimensions(), (64, 64));
        assert!(body["created"].is_i64() && seeds(&body)[0] < 1 << 53);
        assert_eq!((&body["size"], &body["output_format"]), (&json!("64x64"), &json!("png")));
        assert_eq!((&body["usage"]["images"], &body["usage"]["total_tokens"]), (&json!(1), &json!(0)));
        if mount == "/v1" {
            assert!(body["id"].as_str().unwrap().starts_with("img-") && body["status"] == "succeeded");
            assert_eq!(body["object"], "service.resource");
        } else {
            assert!(["id", "object", "status"].iter().all(|field| body.get(field).is_none()), "{body}");
        }
    }
}

#[test]
fn seeds_reproduce_images_individually() {
    let server = start_server();
    let all = generate(&server, "/v1", json!({ "n": 3, "seed": 7 })).ok();
    assert_eq!(seeds(&all), [7, 8, 9]);
    let all = decoded_images(&all);
    assert!(all[0] != all[1] && all[1] != all[2]);
    let second = generate(&server, "/v1", json!({ "seed": 8 })).ok();
    assert_eq!(decoded_images(&second), [all[1].clone()]);
    let drawn = generate(&server, "/v1", json!({})).ok();
    let again = generate(&server, "/v1", json!({ "seed": seeds(&drawn)[0] })).ok();
    assert_eq!(decoded_images(&again), decoded_images(&drawn));
    let last = generate(&server, "/v1", json!({ "n": 2, "seed": i64::MAX })).ok();
    assert_eq!(seeds(&last), [i64::MAX as u64, 0]);
}

#[test]
fn each_output_format_has_its_own_encoding() {
    let server = start_server();
    let png = decoded_images(&generate(&server, "/v1", json!({ "seed": 1 })).ok()).remove(0);
    for (name, format) in [("jpeg", ImageFormat::Jpeg), ("webp", ImageFormat::WebP)] {
        let body = generate(&server, "/v1", json!({ "seed": 1, "output_format": name })).ok();
        let image_bytes = decoded_images(&body).remove(0);
        assert_eq!((image::guess_format(&image_bytes).unwrap(), &body["output_format"]), (format, &json!(name)));
        assert_eq!(open(&image_bytes) == open(&png), name == "webp", "webp is lossless");
    }
    let length = |quality: u8| {
        let more = json!({ "seed": 1, "output_format": "jpeg", "output_compression": quality });
        decoded_images(&generate(&server, "/v1", more).ok())[0].len()
    };
    assert!(length(5) < length(95));
}

#[test]
fn one_image_is_returned_as_bytes_if_the_client_accepts_that() {
    let server = start_server();
    let ask = |accept: &str, more: Value| {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        let body = request(more).to_string().into_bytes();
        server.raw(Method::POST, "/openai/v1/images/generations", Some(&server.admin), &headers, Some(body))
    };
    let cases = [
        ("image/png", json!({}), ImageFormat::Png),
        ("image/webp, image/png;q=0.5", json!({}), ImageFormat::WebP),
        ("image/*", json!({ "output_format": "jpeg" }), ImageFormat::Jpeg),
        ("application/json;q=0.1, image/jpeg", json!({ "output_format": "jpeg" }), ImageFormat::Jpeg),
    ];
    for (accept, more, format) in cases {
        let response = ask(accept, more);
        assert_eq!(response.status, 200, "{}", response.text);
        assert_eq!(response.headers["content-type"], format.to_mime_type(), "{accept}");
        assert_eq!(image::guess_format(&response.bytes).unwrap(), format);
        let seed: u64 = response.headers["x-outpost-seed"].to_str().unwrap().parse().unwrap();
        let again = decoded_images(&generate(&server, "/v1", json!({ "seed": seed })).ok()).remove(0);
        assert!(format == ImageFormat::Jpeg || open(&response.bytes) == open(&again));
    }
    assert_refused(&ask("image/png", json!({ "output_format": "jpeg" })), "output_format", "Accept");
    for (accept, more) in
        [("*/*", json!({})), ("image/png", json!({ "n": 2 })), ("image/png", json!({ "response_format": "url" }))]
    {
        assert_eq!(ask(accept, more).headers["content-type"], "application/json", "{accept}");
    }
}

#[test]
fn a_url_opens_without_a_key_and_counts_towards_the_quota() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    for mount in MOUNTS {
        let body = request(json!({ "n": 2, "response_format": "url", "output_format": "webp", "seed": 3 }));
        let path = format!("{mount}/images/generations");
        let response = server.call(Method::POST, &path, Some(&key), Some(&body)).ok();
        let inline =
            decoded_images(&generate(&server, mount, json!({ "n": 2, "output_format": "webp", "seed": 3 })).ok());
        for (item, image_bytes) in response["data"].as_array().unwrap().iter().zip(&inline) {
            assert!(item.get("b64_json").is_none());
            let path = item["url"]
                .as_str()
                .unwrap()
                .strip_prefix(&server.url)
                .expect("the URL has the address of the request");
            let fetched = server.raw(Method::GET, path, None, &[], None);
            assert_eq!((fetched.status, &fetched.bytes), (200, image_bytes));
            assert_eq!(fetched.headers["content-type"], "image/webp");
        }
    }
    let holds = server.get(&format!("/v1/projects/{project}/rate-limits")).ok()["holds"].clone();
    assert!(holds["storage_bytes"].as_u64().unwrap() > 100 && holds["files"] == 0, "{holds}");
    assert_eq!(usage(&server, &project), (json!(2), json!(4)));
}

#[test]
fn urls_begin_with_the_configured_or_forwarded_origin() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        add_fixture("pipelines", &config.paths.models, MODEL);
        config.public_url = Some("https://ai.example.org/deep".to_owned());
    });
    let url = |server: &Server, headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let body = request(json!({ "response_format": "url" })).to_string().into_bytes();
        let response = server.raw(Method::POST, "/v1/images/generations", Some(&server.admin), &headers, Some(body));
        response.ok()["data"][0]["url"].as_str().unwrap().to_owned()
    };
    assert!(url(&server, &[]).starts_with("https://ai.example.org/deep/v1/images/files/pic_"));
    drop(server);
    let server = start_server();
    let forwarded = [("x-forwarded-proto", "https"), ("x-forwarded-host", "ai.example.org")];
    assert!(url(&server, &forwarded).starts_with("https://ai.example.org/v1/images/files/pic_"));
}

#[test]
fn a_full_quota_is_reported_before_generation() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let folder = server.stop();
    let quotas = outpost::storage::limits::Quotas { bytes: Some(0), ..Default::default() };
    set_quotas(folder.path(), &project, quotas);
    let server = Server::start_in(folder);
    let body = request(json!({ "response_format": "url" }));
    let response = server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&body));
    assert_eq!((response.error_fields().0, response.error_fields().1.as_str()), (429, "insufficient_quota"));
    assert_eq!(usage(&server, &project), (json!(1), json!(0)));
    let inline = request(json!({}));
    server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&inline)).ok();
}

/// `(name, data)` of a stream's events, without comments.
fn events(text: &str) -> Vec<(String, Value)> {
    let blocks = text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
    let event = |block: &str| {
        let (name, data) = block.split_once('\n').unwrap_or_else(|| panic!("an event without a name: {block}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    blocks.map(event).collect()
}

#[test]
fn a_stream_has_previews_and_optionally_step_events() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    for mount in MOUNTS {
        let body =
            request(json!({ "stream": true, "partial_images": 2, "n": 2, "steps": 4, "seed": 5, "scheduler": "ddim" }));
        let path = format!("{mount}/images/generations");
        let response = server.call(Method::POST, &path, Some(&key), Some(&body));
        assert!(response.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        let events = events(&response.text);
        assert!(events.iter().all(|(name, event)| event["type"] == name.as_str()));
        let of = |kind: &str| -> Vec<&Value> {
            let name = format!("image_generation.{kind}");
            events.iter().filter(|(found, _)| *found == name).map(|(_, event)| event).collect()
        };
        let (steps, partial, completed) = (of("progress"), of("partial_image"), of("completed"));
        assert_eq!(events.len(), steps.len() + partial.len() + completed.len(), "{:?}", response.text);
        assert_eq!(steps.is_empty(), mount != "/v1");
        assert!(steps.iter().all(|event| event["steps"] == 4 && event["step"].as_u64().unwrap() <= 4));
        let inline = decoded_images(
            &generate(&server, mount, json!({ "n": 2, "steps": 4, "seed": 5, "scheduler": "ddim" })).ok(),
        );
        for image in 0..2_u64 {
            let mine = |event: &&&Value| event["image_index"] == image;
            let [done] = completed.iter().filter(mine).collect::<Vec<_>>().try_into().unwrap();
            let image_bytes = STANDARD.decode(done["b64_json"].as_str().unwrap()).unwrap();
            assert!(image_bytes == inline[image as usize] && done["seed"] == 5 + image, "the same as without a stream");
            assert_eq!((&done["size"], &done["output_format"]), (&json!("64x64"), &json!("png")));
            assert!(done["created_at"].is_i64() && done["usage"]["input_tokens_details"]["text_tokens"] == 0);
            assert_eq!((&done["background"], &done["quality"]), (&json!("opaque"), &json!("auto")));
            let places: Vec<_> = partial.iter().filter(mine).map(|event| &event["partial_image_index"]).collect();
            assert!(places == [0] || places == [0, 1], "{places:?}");
        }
        assert!(!response.text.contains("[DONE]"));
    }
    assert_eq!(usage(&server, &project), (json!(2), json!(4)));
}

#[test]
fn a_client_that_disconnects_is_charged_for_finished_images() {
    let server = start_server();
    let (project, _, key) = server.tenant("t");
    let body = request(json!({ "stream": true, "n": 10, "steps": 500, "size": "64x64" }));
    let mut connection = server.begin("/v1/images/generations", &key, &body);
    let mut buffer = [0; 2048];
    assert!(std::io::Read::read(&mut connection, &mut buffer).unwrap() > 0);
    drop(connection);
    until(|| "the request is recorded", || usage(&server, &project).0 == 1);
    let images = usage(&server, &project).1.as_u64().unwrap();
    assert!(images < 10, "{images} images were generated after the disconnect");
}

#[test]
fn an_edit_starts_from_the_init_image_and_keeps_unmasked_pixels() {
    let server = start_server();
    let photo = file(RgbImage::from_fn(100, 60, |x, _| Rgb([(x * 2) as u8, 90, 30])), ImageFormat::Jpeg);
    let mask = file(RgbImage::from_fn(100, 60, |x, _| Rgb([if x < 50 { 255 } else { 0 }; 3])), ImageFormat::Png);
    let holes = RgbaImage::from_fn(100, 60, |x, _| Rgba([0, 0, 0, if x < 50 { 0 } else { 255 }]));
    let base: [Part<'_>; 5] = [
        ("model", None, MODEL.as_bytes()),
        ("prompt", None, b"a blue house"),
        ("steps", None, b"4"),
        ("seed", None, b"9"),
        ("image", Some("photo.jpg"), &photo),
    ];
    let edit = |more: &[Part<'_>]| send(&server, "edits", &server.admin, &[&base, more].concat());
    let one = |response: Response| {
        let body = response.ok();
        (body["size"].clone(), decoded_images(&body).remove(0))
    };
    let (size, whole) = one(edit(&[]));
    assert_ne!(size, "100x60", "the size is rounded to one that the model supports");
    let (request_body, weak) = one(edit(&[("size", None, b"64x64"), ("strength", None, b"0.5")]));
    assert_eq!((request_body, open(&weak).dimensions()), (json!("64x64"), (64, 64)));
    let (_, by_white) = one(edit(&[("mask", Some("mask.png"), &mask)]));
    let (_, by_holes) = one(edit(&[("mask", Some("mask.png"), &file(holes, ImageFormat::Png))]));
    assert_eq!(by_white, by_holes, "white in a mask means the same as transparency");
    assert_ne!(by_white, whole);
    let mut listed = base;
    listed[4].0 = "image[]";
    assert_eq!(one(send(&server, "edits", &server.admin, &listed)).1, whole);
    let (_, variation) = one(send(&server, "variations", &server.admin, &[base[0], base[2], base[3], base[4]]));
    assert_ne!(variation, whole);
    let stream = edit(&[("stream", None, b"true"), ("partial_images", None, b"1")]);
    let names: Vec<String> = events(&stream.text).into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| name.starts_with("image_edit.")) && names.last().unwrap().ends_with(".completed"));
}

/// The form of an edit with few steps.
fn parts<'a>(image: &'a [u8], mask: Option<&'a [u8]>) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> =
        vec![("model", None, MODEL.as_bytes()), ("prompt", None, b"x"), ("steps", None, b"2")];
    parts.push(("image", Some("i"), image));
    parts.extend(mask.map(|mask| ("mask", Some("m"), mask)));
    parts
}

#[test]
fn an_invalid_or_mismatched_image_is_refused_by_name() {
    let server = start_server();
    let whole = file(RgbImage::new(64, 64), ImageFormat::Png);
    let other = file(RgbImage::new(32, 64), ImageFormat::Png);
    let wide = file(RgbImage::new(9000, 1), ImageFormat::Png);
    let ask = |image: &[u8], mask: Option<&[u8]>| send(&server, "edits", &server.admin, &parts(image, mask));
    assert_refused(&ask(b"<svg/>", None), "image", "PNG, JPEG or WebP");
    assert_refused(&ask(&whole[..whole.len() / 2], None), "image", "not a complete image");
    assert_refused(&ask(&wide, None), "image", "9000x1");
    assert_refused(&ask(&whole, Some(b"nothing")), "mask", "PNG, JPEG or WebP");
    assert_refused(&ask(&whole, Some(&other)), "mask", "32x64");
    assert_refused(&ask(&whole, Some(&whole)), "mask", "marks no area");
    let weak = [parts(&whole, None), vec![("strength", None, b"0.01".as_slice())]].concat();
    assert_refused(&send(&server, "edits", &server.admin, &weak), "strength", "steps");
}

#[test]
fn a_jpeg_that_ends_early_is_refused() {
    let server = start_server();
    let ask = |image: &[u8]| send(&server, "edits", &server.admin, &parts(image, None));
    let image = RgbImage::from_fn(64, 64, |x, y| Rgb([(x * 4) as u8, (y * 4) as u8, (x * y) as u8]));
    let plain = file(image, ImageFormat::Jpeg);
    let progressive = include_bytes!("../fixtures/progressive.jpg").to_vec();
    // A preview in the metadata is a whole JPEG of its own.
    let preview = file(RgbImage::new(16, 16), ImageFormat::Jpeg);
    let length = u16::try_from(preview.len() + 8).unwrap().to_be_bytes();
    let photo = [&plain[..2], &[0xFF, 0xE1], &length, b"Exif\0\0", &preview, &plain[2..]].concat();
    for whole in [&plain, &progressive, &photo] {
        for part in [3, 6, 8, 9] {
            let cut = &whole[..whole.len() * part / 10];
            assert_refused(&ask(cut), "image", "not a complete image");
        }
        let cut = &whole[..whole.len() - 2];
        assert_refused(&ask(cut), "image", "the JPEG file ends early");
        ask(whole).ok();
        // Phones append other pictures and videos.
        ask(&[whole, &b"\xFF\xD8\xFF\xE0 more"[..]].concat()).ok();
    }
}

#[test]
fn errors_of_the_model_are_passed_on() {
    let server = start_server();
    let response = generate(&server, "/v1", json!({ "size": "63x64" }));
    assert_eq!(
        response.error_fields(),
        (400, "invalid_parameter".to_owned(), Some("size".to_owned())),
        "{}",
        response.text
    );
    let response = generate(&server, "/v1", json!({ "lora": [{ "name": "none" }] }));
    assert_eq!(response.error_fields().0, 400, "{}", response.text);
    let model = server.get(&format!("/v1/models/{MODEL}")).ok();
    assert_eq!(model["capabilities"]["image_generation"], true, "{model}");
    assert_eq!(model["modalities"], json!({ "input": ["text", "image"], "output": ["image"] }));
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(server.post("/v1/chat/completions", &chat).error_fields().2.as_deref(), Some("model"));
}
