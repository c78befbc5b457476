//! The image endpoints with a tiny pipeline.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::images::{refused, send};
use crate::server::{Answer, Server, add_fixture};
use crate::tiny_model::TinyModel;
use crate::upload::{Part, set_quotas};
use crate::wait::until;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];
/// The pipeline in `tests/fixtures/pipelines`.
const PAINTER: &str = "sd1";

/// A server with an image model.
pub fn painter() -> Server {
    Server::start_as(&TinyModel::default(), |config| add_fixture("pipelines", &config.paths.models, PAINTER))
}

/// The smallest request for an image.
fn request(more: Value) -> Value {
    let mut body = json!({ "model": PAINTER, "prompt": "a red house", "size": "64x64", "steps": 2 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn generate(server: &Server, mount: &str, more: Value) -> Answer {
    server.post(&format!("{mount}/images/generations"), &request(more))
}

fn open(bytes: &[u8]) -> RgbImage {
    image::load_from_memory(bytes).unwrap().to_rgb8()
}

/// The images of a response body.
fn pictures(body: &Value) -> Vec<Vec<u8>> {
    let one = |item: &Value| STANDARD.decode(item["b64_json"].as_str().unwrap()).unwrap();
    body["data"].as_array().unwrap().iter().map(one).collect()
}

fn seeds(body: &Value) -> Vec<u64> {
    body["data"].as_array().unwrap().iter().map(|item| item["seed"].as_u64().unwrap()).collect()
}

fn file(picture: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    picture.into().write_to(&mut file, format).unwrap();
    file.into_inner()
}

fn usage(server: &Server, project: &str) -> (Value, Value) {
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    (usage["requests"].clone(), usage["image_generations"].clone())
}

#[test]
fn a_picture_comes_in_the_shape_of_each_mount() {
    let server = painter();
    for mount in MOUNTS {
        let body = generate(&server, mount, json!({})).ok();
        let [picture] = pictures(&body).try_into().unwrap();
        assert_eq!(image::guess_format(&picture).unwrap(), ImageFormat::Png);
        assert_eq!(open(&picture).dimensions(), (64, 64));
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
fn seeds_give_pictures_again_one_by_one() {
    let server = painter();
    let all = generate(&server, "/v1", json!({ "n": 3, "seed": 7 })).ok();
    assert_eq!(seeds(&all), [7, 8, 9]);
    let all = pictures(&all);
    assert!(all[0] != all[1] && all[1] != all[2]);
    let second = generate(&server, "/v1", json!({ "seed": 8 })).ok();
    assert_eq!(pictures(&second), [all[1].clone()]);
    let drawn = generate(&server, "/v1", json!({})).ok();
    let again = generate(&server, "/v1", json!({ "seed": seeds(&drawn)[0] })).ok();
    assert_eq!(pictures(&again), pictures(&drawn));
    let last = generate(&server, "/v1", json!({ "n": 2, "seed": i64::MAX })).ok();
    assert_eq!(seeds(&last), [i64::MAX as u64, 0]);
}

#[test]
fn each_format_is_what_it_says() {
    let server = painter();
    let png = pictures(&generate(&server, "/v1", json!({ "seed": 1 })).ok()).remove(0);
    for (name, format) in [("jpeg", ImageFormat::Jpeg), ("webp", ImageFormat::WebP)] {
        let body = generate(&server, "/v1", json!({ "seed": 1, "output_format": name })).ok();
        let picture = pictures(&body).remove(0);
        assert_eq!((image::guess_format(&picture).unwrap(), &body["output_format"]), (format, &json!(name)));
        assert_eq!(open(&picture) == open(&png), name == "webp", "webp loses nothing");
    }
    let length = |quality: u8| {
        let more = json!({ "seed": 1, "output_format": "jpeg", "output_compression": quality });
        pictures(&generate(&server, "/v1", more).ok())[0].len()
    };
    assert!(length(5) < length(95));
}

#[test]
fn a_single_picture_comes_as_bytes_where_that_is_accepted() {
    let server = painter();
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
        let answer = ask(accept, more);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.headers["content-type"], format.to_mime_type(), "{accept}");
        assert_eq!(image::guess_format(&answer.bytes).unwrap(), format);
        let seed: u64 = answer.headers["x-outpost-seed"].to_str().unwrap().parse().unwrap();
        let again = pictures(&generate(&server, "/v1", json!({ "seed": seed })).ok()).remove(0);
        assert!(format == ImageFormat::Jpeg || open(&answer.bytes) == open(&again));
    }
    refused(&ask("image/png", json!({ "output_format": "jpeg" })), "output_format", "Accept");
    for (accept, more) in
        [("*/*", json!({})), ("image/png", json!({ "n": 2 })), ("image/png", json!({ "response_format": "url" }))]
    {
        assert_eq!(ask(accept, more).headers["content-type"], "application/json", "{accept}");
    }
}

#[test]
fn a_url_is_fetched_without_a_key_and_weighs_on_the_project() {
    let server = painter();
    let (project, _, key) = server.tenant("t");
    for mount in MOUNTS {
        let body = request(json!({ "n": 2, "response_format": "url", "output_format": "webp", "seed": 3 }));
        let path = format!("{mount}/images/generations");
        let answer = server.call(Method::POST, &path, Some(&key), Some(&body)).ok();
        let inline = pictures(&generate(&server, mount, json!({ "n": 2, "output_format": "webp", "seed": 3 })).ok());
        for (item, picture) in answer["data"].as_array().unwrap().iter().zip(&inline) {
            assert!(item.get("b64_json").is_none());
            let path = item["url"].as_str().unwrap().strip_prefix(&server.url).expect("the address that was asked");
            let fetched = server.raw(Method::GET, path, None, &[], None);
            assert_eq!((fetched.status, &fetched.bytes), (200, picture));
            assert_eq!(fetched.headers["content-type"], "image/webp");
        }
    }
    let holds = server.get(&format!("/v1/projects/{project}/rate-limits")).ok()["holds"].clone();
    assert!(holds["storage_bytes"].as_u64().unwrap() > 100 && holds["files"] == 0, "{holds}");
    assert_eq!(usage(&server, &project), (json!(2), json!(4)));
}

#[test]
fn links_begin_with_what_the_operator_says_or_a_proxy() {
    let server = Server::start_as(&TinyModel::default(), |config| {
        add_fixture("pipelines", &config.paths.models, PAINTER);
        config.public_url = Some("https://ai.example.org/deep".to_owned());
    });
    let url = |server: &Server, headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let body = request(json!({ "response_format": "url" })).to_string().into_bytes();
        let answer = server.raw(Method::POST, "/v1/images/generations", Some(&server.admin), &headers, Some(body));
        answer.ok()["data"][0]["url"].as_str().unwrap().to_owned()
    };
    assert!(url(&server, &[]).starts_with("https://ai.example.org/deep/v1/images/files/pic_"));
    drop(server);
    let server = painter();
    let forwarded = [("x-forwarded-proto", "https"), ("x-forwarded-host", "ai.example.org")];
    assert!(url(&server, &forwarded).starts_with("https://ai.example.org/v1/images/files/pic_"));
}

#[test]
fn a_full_quota_is_told_before_anything_is_painted() {
    let server = painter();
    let (project, _, key) = server.tenant("t");
    let folder = server.stop();
    let quotas = outpost::storage::limits::Quotas { bytes: Some(0), ..Default::default() };
    set_quotas(folder.path(), &project, quotas);
    let server = Server::start_in(folder);
    let body = request(json!({ "response_format": "url" }));
    let answer = server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&body));
    assert_eq!((answer.refusal().0, answer.refusal().1.as_str()), (429, "insufficient_quota"));
    assert_eq!(usage(&server, &project), (json!(1), json!(0)));
    let inline = request(json!({}));
    server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&inline)).ok();
}

/// Names and data of a stream's events, without comments.
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
fn a_stream_shows_pictures_on_their_way_and_steps_where_that_is_understood() {
    let server = painter();
    let (project, _, key) = server.tenant("t");
    for mount in MOUNTS {
        let body =
            request(json!({ "stream": true, "partial_images": 2, "n": 2, "steps": 4, "seed": 5, "scheduler": "ddim" }));
        let path = format!("{mount}/images/generations");
        let answer = server.call(Method::POST, &path, Some(&key), Some(&body));
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        let events = events(&answer.text);
        assert!(events.iter().all(|(name, event)| event["type"] == name.as_str()));
        let of = |kind: &str| -> Vec<&Value> {
            let name = format!("image_generation.{kind}");
            events.iter().filter(|(found, _)| *found == name).map(|(_, event)| event).collect()
        };
        let (steps, partial, completed) = (of("progress"), of("partial_image"), of("completed"));
        assert_eq!(events.len(), steps.len() + partial.len() + completed.len(), "{:?}", answer.text);
        assert_eq!(steps.is_empty(), mount != "/v1");
        assert!(steps.iter().all(|event| event["steps"] == 4 && event["step"].as_u64().unwrap() <= 4));
        let inline =
            pictures(&generate(&server, mount, json!({ "n": 2, "steps": 4, "seed": 5, "scheduler": "ddim" })).ok());
        for image in 0..2_u64 {
            let mine = |event: &&&Value| event["image_index"] == image;
            let [done] = completed.iter().filter(mine).collect::<Vec<_>>().try_into().unwrap();
            let picture = STANDARD.decode(done["b64_json"].as_str().unwrap()).unwrap();
            assert!(picture == inline[image as usize] && done["seed"] == 5 + image, "the same as without a stream");
            assert_eq!((&done["size"], &done["output_format"]), (&json!("64x64"), &json!("png")));
            assert!(done["created_at"].is_i64() && done["usage"]["input_tokens_details"]["text_tokens"] == 0);
            assert_eq!((&done["background"], &done["quality"]), (&json!("opaque"), &json!("auto")));
            let places: Vec<_> = partial.iter().filter(mine).map(|event| &event["partial_image_index"]).collect();
            assert!(places == [0] || places == [0, 1], "{places:?}");
        }
        assert!(!answer.text.contains("[DONE]"));
    }
    assert_eq!(usage(&server, &project), (json!(2), json!(4)));
}

#[test]
fn a_client_that_leaves_pays_for_the_pictures_that_were_finished() {
    let server = painter();
    let (project, _, key) = server.tenant("t");
    let body = request(json!({ "stream": true, "n": 10, "steps": 500, "size": "64x64" }));
    let mut connection = server.begin("/v1/images/generations", &key, &body);
    let mut seen = [0; 2048];
    assert!(std::io::Read::read(&mut connection, &mut seen).unwrap() > 0);
    drop(connection);
    until(|| "the request is recorded", || usage(&server, &project).0 == 1);
    let images = usage(&server, &project).1.as_u64().unwrap();
    assert!(images < 10, "{images} pictures were painted for nobody");
}

#[test]
fn an_edit_begins_with_the_picture_and_keeps_what_the_mask_leaves() {
    let server = painter();
    let photo = file(RgbImage::from_fn(100, 60, |x, _| Rgb([(x * 2) as u8, 90, 30])), ImageFormat::Jpeg);
    let mask = file(RgbImage::from_fn(100, 60, |x, _| Rgb([if x < 50 { 255 } else { 0 }; 3])), ImageFormat::Png);
    let holes = RgbaImage::from_fn(100, 60, |x, _| Rgba([0, 0, 0, if x < 50 { 0 } else { 255 }]));
    let base: [Part<'_>; 5] = [
        ("model", None, PAINTER.as_bytes()),
        ("prompt", None, b"a blue house"),
        ("steps", None, b"4"),
        ("seed", None, b"9"),
        ("image", Some("photo.jpg"), &photo),
    ];
    let edit = |more: &[Part<'_>]| send(&server, "edits", &server.admin, &[&base, more].concat());
    let one = |answer: Answer| {
        let body = answer.ok();
        (body["size"].clone(), pictures(&body).remove(0))
    };
    let (size, whole) = one(edit(&[]));
    assert_ne!(size, "100x60", "no model takes that");
    let (asked, weak) = one(edit(&[("size", None, b"64x64"), ("strength", None, b"0.5")]));
    assert_eq!((asked, open(&weak).dimensions()), (json!("64x64"), (64, 64)));
    let (_, by_white) = one(edit(&[("mask", Some("mask.png"), &mask)]));
    let (_, by_holes) = one(edit(&[("mask", Some("mask.png"), &file(holes, ImageFormat::Png))]));
    assert_eq!(by_white, by_holes, "white marks what transparency does");
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

/// An edit with few steps.
fn parts<'a>(image: &'a [u8], mask: Option<&'a [u8]>) -> Vec<Part<'a>> {
    let mut parts: Vec<Part<'a>> =
        vec![("model", None, PAINTER.as_bytes()), ("prompt", None, b"x"), ("steps", None, b"2")];
    parts.push(("image", Some("i"), image));
    parts.extend(mask.map(|mask| ("mask", Some("m"), mask)));
    parts
}

#[test]
fn a_picture_that_is_none_or_does_not_fit_is_refused_by_name() {
    let server = painter();
    let whole = file(RgbImage::new(64, 64), ImageFormat::Png);
    let other = file(RgbImage::new(32, 64), ImageFormat::Png);
    let wide = file(RgbImage::new(9000, 1), ImageFormat::Png);
    let ask = |image: &[u8], mask: Option<&[u8]>| send(&server, "edits", &server.admin, &parts(image, mask));
    refused(&ask(b"<svg/>", None), "image", "PNG, JPEG or WebP");
    refused(&ask(&whole[..whole.len() / 2], None), "image", "cannot be decoded");
    refused(&ask(&wide, None), "image", "9000x1");
    refused(&ask(&whole, Some(b"nothing")), "mask", "PNG, JPEG or WebP");
    refused(&ask(&whole, Some(&other)), "mask", "32x64");
    refused(&ask(&whole, Some(&whole)), "mask", "marks no area");
    let weak = [parts(&whole, None), vec![("strength", None, b"0.01".as_slice())]].concat();
    refused(&send(&server, "edits", &server.admin, &weak), "strength", "steps");
}

#[test]
fn what_the_model_cannot_do_is_said_in_its_words() {
    let server = painter();
    let answer = generate(&server, "/v1", json!({ "size": "63x64" }));
    assert_eq!(answer.refusal(), (400, "invalid_parameter".to_owned(), Some("size".to_owned())), "{}", answer.text);
    let answer = generate(&server, "/v1", json!({ "lora": [{ "name": "none" }] }));
    assert_eq!(answer.refusal().0, 400, "{}", answer.text);
    let model = server.get(&format!("/v1/models/{PAINTER}")).ok();
    assert_eq!(model["capabilities"]["image_generation"], true, "{model}");
    assert_eq!(model["modalities"], json!({ "input": ["text", "image"], "output": ["image"] }));
    let chat = json!({ "model": PAINTER, "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(server.post("/v1/chat/completions", &chat).refusal().2.as_deref(), Some("model"));
}
