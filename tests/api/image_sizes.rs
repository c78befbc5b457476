//! The sizes of images: those that a model is good at, those that it refuses, and scaling to others.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, Rgb, RgbImage, imageops};
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::image_generation::start_server;
use crate::images::{assert_refused, send};
use crate::server::{MODEL as CHAT_MODEL, Response, Server};
use crate::tiny_model::TinyModel;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];
/// Trained on images of 64x64 pixels.
const MODEL: &str = "sd1";
const SIZE: &str = "64x64";
/// Trained on images of 512x512 pixels.
const LARGE_MODEL: &str = "flux";
const LARGE_SIZES: [&str; 7] = ["512x512", "576x448", "448x576", "576x384", "384x576", "704x384", "384x704"];

fn generate(server: &Server, mount: &str, more: Value) -> Response {
    let mut body = json!({ "model": MODEL, "prompt": "a red house", "steps": 2, "seed": 7 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post(&format!("{mount}/images/generations"), &body)
}

/// The size in the response, and its image.
fn image_of(response: &Response) -> (String, RgbImage) {
    let body = response.ok();
    let bytes = STANDARD.decode(body["data"][0]["b64_json"].as_str().unwrap()).unwrap();
    (body["size"].as_str().unwrap().to_owned(), image::load_from_memory(&bytes).unwrap().to_rgb8())
}

#[test]
fn a_model_lists_the_sizes_that_it_is_good_at() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        [MODEL, LARGE_MODEL].into_iter().for_each(|name| add_fixture("pipelines", &config.paths.models, name));
    });
    for mount in MOUNTS {
        let listed = server.get(&format!("{mount}/models")).ok();
        let find = |id: &str| listed["data"].as_array().unwrap().iter().find(|model| model["id"] == id).unwrap();
        for (id, sizes) in [(MODEL, json!([SIZE])), (LARGE_MODEL, json!(LARGE_SIZES))] {
            let model = server.get(&format!("{mount}/models/{id}")).ok();
            assert_eq!((&model["image_sizes"], model.get("limits")), (&sizes, None));
            let limited = server.get(&format!("{mount}/models/{id}?include_limits=true")).ok();
            assert_eq!(limited["limits"]["image_sizes"], sizes);
            assert_eq!(find(id)["image_sizes"], sizes);
        }
        assert_eq!(find(CHAT_MODEL).get("image_sizes"), None);
    }
    for size in ["auto", SIZE] {
        let (named, image) = image_of(&generate(&server, "/v1", json!({ "size": size })));
        assert_eq!((named.as_str(), image.dimensions()), (SIZE, (64, 64)));
    }
}

#[test]
fn a_size_beyond_twice_the_training_size_is_refused_with_the_good_sizes() {
    let server = start_server();
    generate(&server, "/v1", json!({ "size": "128x16" })).ok();
    for mount in MOUNTS {
        for size in ["1024x1024", "136x64", "64x136", "60x64", "8x64"] {
            let response = generate(&server, mount, json!({ "size": size }));
            for words in [size, "from 16 to 128", "good at: 64x64. Send one of them"] {
                assert_refused(&response, "size", words);
            }
            // Scaled images have sides from 16 pixels on.
            assert_eq!(response.text.contains("resize: true"), size != "8x64", "{}", response.text);
        }
    }
}

#[test]
fn resize_generates_at_a_good_size_and_scales_the_image() {
    let server = start_server();
    for (size, generated) in [("1024x1024", "64x64"), ("300x200", "72x48"), ("33x33", "64x64"), ("64x64", "64x64")] {
        let (_, small) = image_of(&generate(&server, "/v1", json!({ "size": generated })));
        for mount in MOUNTS {
            let (named, image) = image_of(&generate(&server, mount, json!({ "size": size, "resize": true })));
            assert_eq!(named, size);
            let (width, height) = image.dimensions();
            assert_eq!(format!("{width}x{height}"), size);
            assert!(image == imageops::resize(&small, width, height, imageops::FilterType::Lanczos3), "{size}");
        }
    }
    assert_eq!(image_of(&generate(&server, "/v1", json!({ "resize": true }))).0, SIZE);
    for (size, words) in [("2049x64", "from 16 to 2048"), ("64x8", "from 16 to 2048"), ("2048x16", "aspect ratio")] {
        assert_refused(&generate(&server, "/v1", json!({ "size": size, "resize": true })), "size", words);
    }
}

#[test]
fn a_stream_scales_partial_images_too() {
    let server = start_server();
    let more = json!({ "size": "200x200", "resize": true, "stream": true, "partial_images": 1 });
    let response = generate(&server, "/openai/v1", more);
    let events = response.text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(events.len(), 2, "{}", response.text);
    for event in events {
        let bytes = STANDARD.decode(event["b64_json"].as_str().unwrap()).unwrap();
        assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgb8().dimensions(), (200, 200));
        assert_eq!(event["size"], "200x200");
    }
}

#[test]
fn resize_returns_an_edit_or_variation_at_the_size_of_its_source() {
    let server = start_server();
    let mut photo = Cursor::new(Vec::new());
    RgbImage::from_fn(300, 180, |x, _| Rgb([(x / 2) as u8, 90, 30])).write_to(&mut photo, ImageFormat::Png).unwrap();
    let photo = photo.into_inner();
    let parts = [
        ("model", None, MODEL.as_bytes()),
        ("prompt", None, b"a blue house".as_slice()),
        ("steps", None, b"4"),
        ("image", Some("photo.png"), &photo),
    ];
    for endpoint in ["edits", "variations"] {
        let ask = |more: &[_]| send(&server, endpoint, &server.admin, &[&parts, more].concat());
        let (size, image) = image_of(&ask(&[("resize", None, b"true".as_slice())]));
        assert_eq!((size.as_str(), image.dimensions()), ("300x180", (300, 180)));
        let both = [("resize", None, b"true".as_slice()), ("size", None, b"150x90")];
        assert_eq!(image_of(&ask(&both)).0, "150x90");
        let (size, _) = image_of(&ask(&[]));
        assert_eq!(size, "80x48", "without resize, the model's own size");
        assert_refused(&ask(&[("size", None, b"300x180".as_slice())]), "size", "resize: true");
    }
}

#[test]
fn openais_qualities_are_accepted_and_low_takes_fewer_steps() {
    let server = start_server();
    let steps = |quality: &str, more: Value| {
        let mut body = json!({ "model": MODEL, "prompt": "x", "seed": 7, "quality": quality, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let text = server.post("/v1/images/generations", &body).text;
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        let progress = events.iter().find(|event| event["type"] == "image_generation.progress").unwrap();
        (progress["steps"].as_u64().unwrap(), events.last().unwrap()["quality"].as_str().unwrap().to_owned())
    };
    // The PNDM scheduler evaluates the network once more than there are steps.
    let expected = [
        ("auto", 51, "auto"),
        ("standard", 51, "auto"),
        ("low", 26, "low"),
        ("medium", 51, "medium"),
        ("high", 51, "high"),
        ("hd", 51, "high"),
        ("xhigh", 51, "high"),
        ("max", 51, "high"),
    ];
    for (sent, count, named) in expected {
        assert_eq!(steps(sent, json!({})), (count, named.to_owned()), "{sent}");
    }
    assert_eq!(steps("low", json!({ "steps": 3 })), (4, "low".to_owned()), "steps take precedence");
    for (sent, named) in [("low", json!("low")), ("hd", json!("high")), ("auto", Value::Null)] {
        let body = generate(&server, "/openai/v1", json!({ "quality": sent })).ok();
        assert_eq!(body.get("quality").cloned().unwrap_or_default(), named);
    }
}
