//! The image endpoints as far as they need no model: errors that name fields, and signed URLs. `image_generation.rs`
//! tests the generated images.

use std::time::Duration;

use outpost::ids::{KeyId, ProjectId};
use outpost::service::stored_images::{Format, SignedUrl, StoredImages};
use outpost::service::{Access, Scopes};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::upload::{Part, form, quota_usage_of, records, with_stopped_store};
use crate::wait::until;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn generate(server: &Server, mount: &str, more: Value) -> Response {
    let mut body = json!({ "model": MODEL, "prompt": "a cat" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post(&format!("{mount}/images/generations"), &body)
}

/// `POST /v1/images/{endpoint}` with any parts.
pub fn send(server: &Server, endpoint: &str, key: &str, parts: &[Part<'_>]) -> Response {
    let headers = [("content-type", "multipart/form-data; boundary=xYzZY")];
    server.raw(Method::POST, &format!("/v1/images/{endpoint}"), Some(key), &headers, Some(form("xYzZY", parts)))
}

/// Checks that the response is a 400 that names `param` and has `words` in its message.
pub fn assert_refused(response: &Response, param: &str, words: &str) {
    let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
    assert_eq!(response.error_fields(), expected, "{}", response.text);
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(words), "'{words}' is not in: {message}");
}

#[test]
fn each_invalid_field_is_named_with_a_remedy() {
    let server = Server::start();
    let adapter = |name: &str, weight: f32| json!({ "lora": [{ "name": "a" }, { "name": name, "weight": weight }] });
    let cases = [
        (json!({ "prompt": "" }), "prompt", "1 to 32000"),
        (json!({ "prompt": "x".repeat(32_001) }), "prompt", "32001 characters"),
        (json!({ "prompt": 7 }), "prompt", "must be a string, not 7"),
        (json!({ "negative_prompt": "x".repeat(32_001) }), "negative_prompt", "0 to 32000"),
        (json!({ "n": 0 }), "n", "from 1 to 10"),
        (json!({ "n": 11 }), "n", "from 1 to 10"),
        (json!({ "n": 1.5 }), "n", "must be a whole number, not 1.5"),
        (json!({ "size": "large" }), "size", "512x512"),
        (json!({ "size": "512" }), "size", "512x512"),
        (json!({ "size": "0x512" }), "size", "512x512"),
        (json!({ "size": "+512x512" }), "size", "512x512"),
        (json!({ "size": "512x99999" }), "size", "auto"),
        (json!({ "response_format": "file" }), "response_format", "b64_json or url"),
        (json!({ "output_format": "gif" }), "output_format", "png, jpeg or webp"),
        (json!({ "output_compression": 101, "output_format": "jpeg" }), "output_compression", "from 0 to 100"),
        (json!({ "output_compression": 50 }), "output_compression", "png is lossless"),
        (json!({ "output_compression": 50, "output_format": "webp" }), "output_compression", "webp is lossless"),
        (json!({ "seed": -1 }), "seed", "from 0 to"),
        (json!({ "seed": 9_223_372_036_854_775_808_u64 }), "seed", "at most 9223372036854775807"),
        (json!({ "steps": 0 }), "steps", "from 1 to 500"),
        (json!({ "steps": 501 }), "steps", "from 1 to 500"),
        (json!({ "num_inference_steps": 501 }), "steps", "from 1 to 500"),
        (json!({ "guidance_scale": -1 }), "guidance_scale", "from 0 to 100"),
        (json!({ "guidance_scale": 100.5 }), "guidance_scale", "from 0 to 100"),
        (json!({ "guidance_scale": 1e39 }), "guidance_scale", "too large"),
        (json!({ "scheduler": "heun" }), "scheduler", "dpmpp_2m_karras"),
        (json!({ "lora": "a" }), "lora", "must be an array"),
        (adapter("b", 10.5), "lora[1].weight", "from -10 to 10"),
        (adapter("../b", 1.), "lora[1].name", "slash"),
        (adapter("", 1.), "lora[1].name", "1 to 128"),
        (json!({ "lora": [{ "name": "a", "scale": 1 }] }), "lora[0].scale", "is unknown. The fields are name, weight"),
        (json!({ "lora": vec![json!({ "name": "a" }); 9] }), "lora", "at most 8"),
        (json!({ "stream": "yes" }), "stream", "true or false"),
        (json!({ "stream": true, "partial_images": 4 }), "partial_images", "from 0 to 3"),
        (json!({ "partial_images": 1 }), "partial_images", "stream: true"),
        (json!({ "stream": true, "response_format": "url" }), "response_format", "stream"),
        (json!({ "quality": "best" }), "quality", "standard"),
        (json!({ "resize": "yes" }), "resize", "true or false"),
        (json!({ "background": "transparent" }), "background", "auto or opaque"),
        (json!({ "moderation": "none" }), "moderation", "auto or low"),
        (json!({ "style": "vivid" }), "style", "not supported"),
        (json!({ "strength": 0.5 }), "strength", "not supported"),
        (json!({ "prompts": ["a"] }), "prompts", "Did you mean 'prompt'?"),
    ];
    for mount in MOUNTS {
        for (more, param, words) in &cases {
            assert_refused(&generate(&server, mount, more.clone()), param, words);
        }
    }
}

#[test]
fn valid_fields_reach_the_model() {
    let server = Server::start();
    let everything = json!({
        "n": 10, "size": "auto", "response_format": "url", "output_format": "jpeg", "output_compression": 0,
        "seed": i64::MAX, "num_inference_steps": 500, "guidance_scale": 0, "negative_prompt": "", "scheduler": "unipc",
        "lora": [{ "name": "a b" }, { "name": "c", "weight": -10 }], "stream": false, "partial_images": 0,
        "quality": "standard", "background": "opaque", "moderation": "low", "user": "u", "safety_identifier": "s",
        "style": null,
    });
    for mount in MOUNTS {
        for more in [json!({}), everything.clone(), json!({ "stream": true, "partial_images": 3 })] {
            assert_refused(&generate(&server, mount, more.clone()), "model", "needs an image model");
            let unknown =
                generate(&server, mount, [more, json!({ "model": "none" })].into_iter().fold(json!({}), merge));
            assert_eq!(unknown.error_fields(), (404, "model_not_found".to_owned(), Some("model".to_owned())));
        }
    }
}

fn merge(mut one: Value, other: Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

#[test]
fn image_generation_needs_the_scope_and_an_allowed_model() {
    let server = Server::start();
    let (project, ..) = server.tenant("t");
    let key = |more: Value| {
        let body = merge(json!({ "name": "k", "project_id": project }), more);
        server.post("/v1/api-keys", &body).ok()["secret"].as_str().unwrap().to_owned()
    };
    let cases = [
        (key(json!({ "scopes": ["project"] })), "insufficient_scope"),
        (key(json!({ "models": ["other"] })), "model_not_allowed"),
    ];
    let body = json!({ "model": MODEL, "prompt": "a cat" });
    for (key, code) in cases {
        let response = server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&body));
        assert_eq!((response.error_fields().0, response.error_fields().1.as_str()), (403, code));
        for endpoint in ["edits", "variations"] {
            let parts = [("model", None, MODEL.as_bytes()), ("prompt", None, b"x".as_slice()), ("image", None, b"x")];
            let response = send(&server, endpoint, &key, &parts);
            assert_eq!((response.error_fields().0, response.error_fields().1.as_str()), (403, code));
        }
    }
}

#[test]
fn errors_in_a_form_are_named() {
    let server = Server::start();
    let base: [Part<'_>; 3] =
        [("model", None, MODEL.as_bytes()), ("prompt", None, b"a cat"), ("image", Some("i"), b"x")];
    let send_form = |endpoint: &str, more: &[Part<'_>]| send(&server, endpoint, &server.admin, &[&base, more].concat());
    // Valid requests reach the check of the model.
    for endpoint in ["edits", "variations"] {
        assert_refused(&send_form(endpoint, &[]), "model", "needs an image model");
        let fields: &[Part<'_>] = &[
            ("n", None, b"2"),
            ("strength", None, b"1"),
            ("stream", None, b"true"),
            ("resize", None, b"true"),
            ("seed", None, b"12"),
            ("negative_prompt", None, b"12"),
            ("lora", None, br#"[{"name": "a", "weight": 0.5}]"#),
            ("size", None, b"auto"),
            ("user", None, b"5"),
        ];
        assert_refused(&send_form(endpoint, fields), "model", "needs an image model");
        for flag in ["True", "FALSE", "1", "off", "null"] {
            let flags: &[Part<'_>] = &[("stream", None, flag.as_bytes()), ("resize", None, flag.as_bytes())];
            assert_refused(&send_form(endpoint, flags), "model", "needs an image model");
        }
        let marked: &[Part<'_>] = &[("n", None, "\u{feff}2".as_bytes())];
        assert_refused(&send_form(endpoint, marked), "model", "needs an image model");
    }
    let cases: &[(&str, Part<'_>, &str)] = &[
        ("n", ("n", None, b"two"), "must be a whole number"),
        ("n", ("n", None, b"0"), "from 1 to 10"),
        ("strength", ("strength", None, b"0"), "above 0 and at most 1"),
        ("strength", ("strength", None, b"1.01"), "above 0 and at most 1"),
        ("strength", ("strength", None, b"much"), "above 0 and at most 1"),
        ("size", ("size", None, b"512"), "512x512"),
        ("stream", ("stream", None, b"perhaps"), "true or false"),
        ("scheduler", ("scheduler", None, b"heun"), "unipc"),
        ("image", ("image", Some("b"), b"x"), "one image"),
        ("image", ("image[]", Some("b"), b"x"), "one image"),
        ("prompt", ("prompt", None, b"again"), "more than once"),
        ("input_fidelity", ("input_fidelity", None, b"high"), "not supported"),
        ("mask", ("mask", Some("m"), b""), "empty"),
        ("size", ("size", None, &[b'x'; 5000]), "4096 bytes"),
        ("n", ("n", None, b"\xff"), "UTF-8"),
    ];
    for (param, part, words) in cases {
        for endpoint in ["edits", "variations"] {
            assert_refused(&send_form(endpoint, std::slice::from_ref(part)), param, words);
        }
    }
    assert_refused(&send_form("variations", &[("mask", Some("m"), b"x")]), "mask", "/images/edits");
    assert_refused(&send(&server, "edits", &server.admin, &base[..2]), "image", "missing");
    assert_refused(&send(&server, "edits", &server.admin, &base[1..]), "model", "missing");
    assert_refused(&send(&server, "edits", &server.admin, &[base[0], base[2]]), "prompt", "missing");
    assert_refused(&send(&server, "variations", &server.admin, &[base[0], base[2]]), "model", "needs an image model");
    let named: Vec<String> = (0..70).map(|number| format!("f{number}")).collect();
    let many: Vec<Part<'_>> = named.iter().map(|name| (name.as_str(), None, b"x".as_slice())).collect();
    assert!(send_form("edits", &many).text.contains("more than 64 parts"));
    let json = server.post("/v1/images/edits", &json!({ "model": MODEL, "prompt": "x" }));
    assert!(json.error_fields().0 == 400 && json.text.contains("multipart/form-data"), "{}", json.text);
}

#[test]
fn a_too_large_image_is_refused_in_any_encoding() {
    let server = Server::start();
    let large = vec![0; (20 << 20) + 1];
    for field in ["image", "mask"] {
        let response = send(&server, "edits", &server.admin, &[(field, Some("p"), &large)]);
        assert_eq!(response.error_fields(), (413, "request_too_large".to_owned(), Some(field.to_owned())));
        assert!(response.text.contains("20 MiB"), "{}", response.text);
    }
    let headers = [("content-type", "multipart/form-data; boundary=x"), ("content-length", "99999999999")];
    let response = server.raw(Method::POST, "/v1/images/edits", Some(&server.admin), &headers, None);
    assert_eq!(response.error_fields().0, 413);
}

#[test]
fn a_refused_request_generates_no_image() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let body = json!({ "model": MODEL, "prompt": "a cat", "n": 3 });
    server.call(Method::POST, "/v1/images/generations", Some(&key), Some(&body)).error_fields();
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    assert_eq!((&usage["image_generations"], &usage["requests"]), (&json!(0), &json!(1)), "{usage}");
}

/// Stores an image in a stopped server's store, as of `ago` before now.
fn store_image(folder: &std::path::Path, project: &str, format: Format, content: &[u8], ago: Duration) -> SignedUrl {
    let project: ProjectId = project.parse().unwrap();
    let content = content.to_vec();
    with_stopped_store(&folder.join("data"), async move |store| {
        let clock = std::sync::Arc::new(crate::clock::ShiftedClock::default());
        clock.go_back(ago);
        let access = Access::for_tests(KeyId::from_bytes([1; 16]), project, Scopes::ALL, None);
        let images = StoredImages::new(store.clone(), clock, Duration::from_secs(3600));
        images.store(&access, format, content).await.unwrap()
    })
}

fn path(link: &SignedUrl) -> String {
    format!("/v1/images/files/{}?expires={}&signature={}", link.id, link.expires, link.signature)
}

#[test]
fn a_signed_url_opens_its_image_without_a_key_until_it_expires() {
    let server = Server::start();
    let (project, ..) = server.tenant("t");
    let folder = server.stop();
    let file: Vec<u8> = (0..700_000_u32).map(|at| (at % 251) as u8).collect();
    let link = store_image(folder.path(), &project, Format::Jpeg, &file, Duration::ZERO);
    let server = Server::start_in(folder);
    let get = |path: &str| server.raw(Method::GET, path, None, &[], None);
    for key in [None, Some("opk_nonsense"), Some(server.admin.as_str())] {
        let response = server.raw(Method::GET, &path(&link), key, &[], None);
        assert_eq!((response.status, &response.bytes), (200, &file));
        let header = |name: &str| response.headers[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "image/jpeg");
        assert_eq!(header("content-length"), file.len().to_string());
        assert_eq!(header("content-disposition"), format!("inline; filename=\"{}.jpeg\"", link.id));
        assert_eq!(header("x-content-type-options"), "nosniff");
        let age: u64 = header("cache-control").strip_prefix("private, max-age=").unwrap().parse().unwrap();
        assert!((3500..=3600).contains(&age), "{age}");
        assert!(response.headers.contains_key("x-request-id"));
    }
    let holds = server.get(&format!("/v1/projects/{project}/rate-limits")).ok()["holds"]["storage_bytes"].clone();
    assert_eq!(holds, file.len());
    let forged = path(&link).replace(&format!("expires={}", link.expires), &format!("expires={}", link.expires + 60));
    let bare = format!("/v1/images/files/{}", link.id);
    let foreign = path(&link).replace(&link.id.to_string(), &format!("pic_{}", "0".repeat(32)));
    for wrong in [forged, bare.clone(), foreign, path(&link) + "x", format!("{bare}?expires={}", link.expires)] {
        assert_eq!(get(&wrong).error_fields(), (403, "invalid_signature".to_owned(), None), "{wrong}");
    }
    assert_eq!(get("/v1/images/files/x").error_fields().0, 404);
    assert_eq!(
        server.raw(Method::DELETE, &path(&link), None, &[], None).error_fields().0,
        401,
        "other methods need a key"
    );
    assert_eq!(server.delete(&path(&link)).error_fields().0, 405);
    assert_eq!(get(&path(&link).replace("/v1", "/openai/v1")).error_fields().0, 401, "signed URLs exist on one mount");

    server.clock.advance(Duration::from_secs(3600));
    let ended = get(&path(&link));
    assert_eq!((ended.error_fields().0, ended.error_fields().1.as_str()), (404, "not_found"));
    assert!(ended.text.contains("expired at"), "{}", ended.text);
}

#[test]
fn images_that_expired_while_the_server_was_down_are_removed_at_its_start() {
    let server = Server::start();
    let (project, ..) = server.tenant("t");
    let folder = server.stop();
    let old = store_image(folder.path(), &project, Format::Png, &[1; 100], Duration::from_secs(7200));
    let new = store_image(folder.path(), &project, Format::Png, &[2; 10], Duration::ZERO);
    assert_eq!(quota_usage_of(folder.path(), &project).bytes, 110);
    let server = Server::start_in(folder);
    let limits = format!("/v1/projects/{project}/rate-limits");
    until(|| "the old image is removed", || server.get(&limits).ok()["holds"]["storage_bytes"] == 10);
    assert_eq!(server.raw(Method::GET, &path(&old), None, &[], None).error_fields().0, 404);
    assert_eq!(server.raw(Method::GET, &path(&new), None, &[], None).bytes, [2; 10]);
    assert_eq!(records(server.stop().path())["stored_images"], 1);
}
