use std::io::{Read, Write};
use std::time::{Duration, Instant};

use outpost::storage::limits::Quotas;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{
    CHAT, Part, begin, begin_upload_from, file, form, pages, quota_usage_of, read_rest, records, send, set_quotas,
    stop_after_sweep, upload, wait_for_chunks, write_orphaned_chunks,
};
use crate::wait::until;

const PURPOSE: Part<'_> = ("purpose", None, b"fine-tune");

fn examples(lines: usize) -> Vec<u8> {
    format!("{CHAT}\n").repeat(lines).into_bytes()
}

#[test]
fn a_file_has_all_fields_on_both_mounts() {
    let server = Server::start();
    let content = format!("\u{feff}{CHAT}\r\n{CHAT}\r\n");
    let (project, _, key) = server.tenant("files");
    let parts = [PURPOSE, ("file", Some("my train.jsonl"), content.as_bytes())];
    let created = send(&server, "/v1", &key, &parts, &[]).ok();
    assert_eq!((&created["object"], &created["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert_eq!(created["state"], "processed");
    let id = created["id"].as_str().unwrap();
    assert!(id.starts_with("file-"));
    assert_eq!((&created["filename"], &created["purpose"]), (&json!("my train.jsonl"), &json!("fine-tune")));
    assert_eq!((&created["bytes"], &created["examples"]), (&json!(content.len()), &json!(2)));
    assert_eq!((&created["example_format"], &created["project_id"]), (&json!("messages"), &json!(project)));
    assert_eq!((created["sha256"].as_str().unwrap().len(), &created["expires_at"]), (64, &Value::Null));
    assert!(created["created_at"].is_i64());

    let theirs = server.call(Method::GET, &format!("/openai/v1/files/{id}"), Some(&key), None).ok();
    assert_eq!((&theirs["object"], &theirs["status"]), (&json!("file"), &json!("processed")));
    assert!(theirs["created_at"] == created["created_at"] && theirs.get("state").is_none());
    assert_eq!((&theirs["bytes"], &theirs["sha256"]), (&created["bytes"], &created["sha256"]));

    let raw = server.call(Method::GET, &format!("/v1/files/{id}/content"), Some(&key), None);
    assert_eq!((raw.status, raw.text), (200, content.clone()), "reqwest removes the byte order mark");
    assert_eq!(raw.headers["content-length"], content.len().to_string().as_str());
    assert_eq!(raw.headers["content-type"], "application/octet-stream");
    assert_eq!(raw.headers["x-content-type-options"], "nosniff");

    let deleted_body = server.call(Method::DELETE, &format!("/openai/v1/files/{id}"), Some(&key), None).ok();
    assert_eq!(deleted_body, json!({ "id": id, "object": "file", "deleted": true }));
    let missing = server.call(Method::GET, &format!("/v1/files/{id}"), Some(&key), None).error_fields();
    assert_eq!((missing.0, missing.1.as_str()), (404, "not_found"));
}

#[test]
fn preferences_are_checked_like_chats() {
    let server = Server::start();
    let line = |output: &str| {
        format!(
            r#"{{"input":{{"messages":[{{"role":"user","content":"q"}}]}},"preferred_output":[{{"role":"assistant","content":"a"}}],"non_preferred_output":{output}}}"#
        )
    };
    let good = line(r#"[{"role":"assistant","content":"b"}]"#);
    let upload = |content: &str| {
        let parts = [PURPOSE, ("file", Some("dpo.jsonl"), content.as_bytes())];
        send(&server, "/openai/v1", &server.admin, &parts, &[])
    };
    assert_eq!(upload(&good).ok()["example_format"], "preference");
    let refused = upload(&format!("{good}\n{}", line(r#"[{"role":"user","content":"b"}]"#)));
    assert!(refused.text.contains("line 2: 'non_preferred_output[0].role' must be 'assistant'"), "{}", refused.text);
}

#[test]
fn form_parts_may_be_in_any_order_and_name_a_project() {
    let server = Server::start();
    let (project, _, key) = server.tenant("owner");
    let parts = [("file", Some("a.jsonl"), CHAT.as_bytes()), PURPOSE, ("project_id", None, project.as_bytes())];
    for by in [&server.admin, &key] {
        assert_eq!(send(&server, "/v1", by, &parts, &[]).ok()["project_id"], project);
    }
    let listed = server.get(&format!("/openai/v1/files?project_id={project}&purpose=fine-tune&order=desc")).ok();
    assert_eq!((listed["object"].as_str(), listed["data"].as_array().unwrap().len()), (Some("list"), 2));
    assert_eq!(server.get("/v1/files").ok()["data"], json!([]), "the admin's own project has none");
}

#[test]
fn each_invalid_upload_is_refused_by_field_and_leaves_nothing() {
    let server = Server::start();
    let long = "x".repeat(256);
    let good = CHAT.as_bytes();
    let cases: Vec<(&str, Vec<Part<'_>>, u16, Option<&str>)> = vec![
        ("no file", vec![PURPOSE], 400, Some("file")),
        ("no purpose", vec![("file", Some("a"), good)], 400, Some("purpose")),
        ("another purpose", vec![("purpose", None, b"assistants"), ("file", Some("a"), good)], 400, Some("purpose")),
        ("no filename", vec![PURPOSE, ("file", None, good)], 400, Some("file")),
        ("empty filename", vec![PURPOSE, ("file", Some(""), good)], 400, Some("file")),
        ("long filename", vec![PURPOSE, ("file", Some(&long), good)], 400, Some("file")),
        ("two files", vec![PURPOSE, ("file", Some("a"), good), ("file", Some("b"), good)], 400, Some("file")),
        ("two purposes", vec![PURPOSE, PURPOSE, ("file", Some("a"), good)], 400, Some("purpose")),
        (
            "an unknown field",
            vec![PURPOSE, ("expires_after[anchor]", None, b"created_at")],
            400,
            Some("expires_after[anchor]"),
        ),
        ("a huge field", vec![("purpose", None, &[b'x'; 5000])], 400, Some("purpose")),
        ("no such project", vec![("project_id", None, b"proj_1"), PURPOSE], 404, Some("project_id")),
        (
            "an unknown project",
            vec![("project_id", None, b"proj_00000000000000000000000000000000"), PURPOSE, ("file", Some("a"), good)],
            404,
            Some("project_id"),
        ),
        ("empty", vec![PURPOSE, ("file", Some("a"), b"")], 400, Some("file")),
        ("no JSON", vec![PURPOSE, ("file", Some("a"), b"hello")], 400, Some("file")),
    ];
    for (name, parts, status, param) in cases {
        for mount in ["/v1", "/openai/v1"] {
            let response = send(&server, mount, &server.admin, &parts, &[]);
            let (got, _, named) = response.error_fields();
            assert_eq!((got, named.as_deref()), (status, param), "{name}: {}", response.text);
        }
    }
    let purposes = send(&server, "/v1", &server.admin, &[("purpose", None, b"vision")], &[]);
    assert!(purposes.text.contains("fine-tune or batch"), "{}", purposes.text);
    assert_eq!(server.get("/v1/files").ok()["data"], json!([]));
    let records = records(stop_after_sweep(server).path());
    assert_eq!((records["files"], records["content_chunks"], records["orphaned_chunks"]), (0, 0, 0));
}

#[test]
fn a_body_that_is_not_a_form_is_refused() {
    let server = Server::start();
    let kind = "multipart/form-data; boundary=xYzZY";
    let cases: [(&str, Headers<'_>, &[u8], u16); 7] = [
        ("JSON", &[("content-type", "application/json")], b"{}", 400),
        ("no boundary", &[("content-type", "multipart/form-data")], b"x", 400),
        ("another kind", &[("content-type", "multipart/mixed; boundary=x")], b"x", 400),
        ("compressed", &[("content-type", kind), ("content-encoding", "gzip")], b"x", 415),
        ("not encoded", &[("content-type", kind), ("content-encoding", "identity")], b"hello", 400),
        ("garbage", &[("content-type", kind)], b"hello", 400),
        (
            "no end",
            &[("content-type", kind)],
            b"--xYzZY\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{",
            400,
        ),
    ];
    for (name, headers, body, status) in cases {
        let response = server.raw(Method::POST, "/v1/files", Some(&server.admin), headers, Some(body.to_vec()));
        assert_eq!(response.error_fields().0, status, "{name}: {}", response.text);
    }
    assert_eq!(server.get("/v1/files").ok()["data"], json!([]));
}

#[test]
fn a_declared_size_above_the_limit_is_refused_at_once() {
    let server = Server::start();
    let response = read_rest(begin(&server, &server.admin, 600 << 20, b""));
    assert!(response.starts_with("HTTP/1.1 413") && response.contains("536870912 bytes"), "{response}");
}

#[test]
fn an_invalid_line_is_named_regardless_of_chunk_boundaries() {
    let server = Server::start();
    let mut content = examples(20_000);
    content.extend_from_slice(br#"{"messages":[{"role":"user","content":"hi"},{"role":"user","content":"x"},{"role":"asistant","content":""}]}"#);
    let response = upload(&server, &server.admin, &content);
    assert_eq!(response.error_fields(), (400, "invalid_parameter".to_owned(), Some("file".to_owned())));
    assert!(response.text.contains("line 20001: 'messages[2].role' is"), "{}", response.text);

    // Blank lines are skipped and counted, and files that were joined may each begin with a mark.
    let blank = format!("\u{feff}{CHAT}\n\n \t\r\n\u{feff}{CHAT}\n");
    assert_eq!(upload(&server, &server.admin, blank.as_bytes()).ok()["examples"], 2);
    let response = upload(&server, &server.admin, format!("{blank}\n{{\"text\"").as_bytes());
    assert!(response.status == 400 && response.text.contains("line 6: it is not valid JSON"), "{}", response.text);
    let wide: Vec<u8> = format!("\u{feff}{CHAT}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let response = upload(&server, &server.admin, &wide);
    assert!(response.status == 400 && response.text.contains("line 1: it is UTF-16"), "{}", response.text);

    // One line that spans four chunks.
    let long = format!("{{\"text\":\"{}\"}}\n", "é".repeat(900_000));
    let created = upload(&server, &server.admin, long.repeat(2).as_bytes()).ok();
    assert_eq!((&created["examples"], &created["example_format"]), (&json!(2), &json!("text")));
    let content = server.get(&format!("/v1/files/{}/content", created["id"].as_str().unwrap()));
    assert!(content.text == long.repeat(2), "the content is unchanged");

    let longer = format!("{CHAT}\n{{\"text\":\"{}\"}}\n", "x".repeat(4 << 20));
    let response = upload(&server, &server.admin, longer.as_bytes());
    assert!(
        response.status == 400 && response.text.contains("line 2 is longer than 4194304 bytes"),
        "{}",
        response.text
    );
    assert_eq!(records(stop_after_sweep(server).path())["content_chunks"], 8);
}

#[test]
fn a_repeated_upload_creates_one_file() {
    let server = Server::start();
    let once = |mount: &str, boundary: &str, content: &[u8], name: &str| {
        let headers =
            [("idempotency-key", "k1"), ("content-type", &format!("multipart/form-data; boundary={boundary}"))];
        let body = form(boundary, &[PURPOSE, ("file", Some(name), content)]);
        server.raw(Method::POST, &format!("{mount}/files"), Some(&server.admin), &headers, Some(body))
    };
    let first = once("/v1", "one", CHAT.as_bytes(), "a");
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let again = once("/v1", "two", CHAT.as_bytes(), "a");
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(first.ok(), again.ok());
    assert_eq!(once("/openai/v1", "three", CHAT.as_bytes(), "a").ok()["id"], first.ok()["id"]);
    for (content, name) in [(format!("{CHAT}\n"), "a"), (CHAT.to_owned(), "b")] {
        let other = once("/v1", "one", content.as_bytes(), name).error_fields();
        assert_eq!((other.0, other.1.as_str()), (422, "idempotency_conflict"));
    }
    let bad = send(&server, "/v1", &server.admin, &[PURPOSE], &[("idempotency-key", "")]).error_fields();
    assert_eq!((bad.0, bad.2.as_deref()), (400, Some("Idempotency-Key")));
    assert_eq!(server.get("/v1/files").ok()["data"].as_array().unwrap().len(), 1);
    let content = server.get(&format!("/v1/files/{}/content", first.ok()["id"].as_str().unwrap()));
    assert_eq!(content.text, CHAT, "only the chunks of the replays were removed");
    let records = records(stop_after_sweep(server).path());
    assert_eq!((records["content_chunks"], records["orphaned_chunks"]), (1, 0));
}

#[test]
fn pagination_returns_each_file_once() {
    let server = Server::start();
    let created: Vec<String> = (0..7).map(|_| file(&server, &server.admin)).collect();
    let listed: Vec<Value> = pages(&server, "/v1/files", 3).into_iter().map(|file| file["id"].clone()).collect();
    assert_eq!(listed, created.iter().rev().map(|id| json!(id)).collect::<Vec<_>>());
    let page = server.get(&format!("/openai/v1/files?limit=2&after={}", created[5])).ok();
    assert_eq!((&page["first_id"], &page["has_more"]), (&json!(created[4]), &json!(true)));
    for (bad, param) in [
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("after=x", "after"),
        ("purpose=vision", "purpose"),
        ("order=asc", "order"),
    ] {
        let refused = server.get(&format!("/v1/files?{bad}")).error_fields();
        assert_eq!((refused.0, refused.2.as_deref()), (400, Some(param)), "{bad}");
    }
}

#[test]
fn a_file_is_private_to_keys_of_its_project_with_the_scope() {
    let server = Server::start();
    let (project, _, owner) = server.tenant("owner");
    let (_, _, other) = server.tenant("other");
    let id = file(&server, &owner);
    let inference = json!({ "name": "k", "project_id": project, "scopes": ["inference"] });
    let inference = server.post("/v1/api-keys", &inference).ok()["secret"].as_str().unwrap().to_owned();
    for mount in ["/v1", "/openai/v1"] {
        for (method, path) in [
            (Method::GET, format!("{mount}/files/{id}")),
            (Method::GET, format!("{mount}/files/{id}/content")),
            (Method::DELETE, format!("{mount}/files/{id}")),
            (Method::GET, format!("{mount}/files?project_id={project}")),
        ] {
            assert_eq!(
                server.call(method.clone(), &path, Some(&other), None).error_fields().1,
                "project_mismatch",
                "{path}"
            );
            assert_eq!(
                server.call(method, &path, Some(&inference), None).error_fields().1,
                "insufficient_scope",
                "{path}"
            );
        }
        let parts = [("project_id", None, project.as_bytes()), PURPOSE, ("file", Some("a"), CHAT.as_bytes())];
        let refused = send(&server, mount, &other, &parts, &[]).error_fields();
        assert_eq!(refused, (403, "project_mismatch".to_owned(), Some("project_id".to_owned())));
        assert_eq!(send(&server, mount, &inference, &parts[1..], &[]).error_fields().1, "insufficient_scope");
    }
    for path in ["file-1", "file-00000000000000000000000000000000"] {
        assert_eq!(server.get(&format!("/v1/files/{path}")).error_fields().0, 404);
        assert_eq!(server.get(&format!("/v1/files/{path}/content")).error_fields().0, 404);
        assert_eq!(server.delete(&format!("/v1/files/{path}")).error_fields().0, 404);
    }
    assert_eq!(server.call(Method::GET, &format!("/v1/files/{id}"), Some(&owner), None).status, 200);
}

#[test]
fn files_of_an_archived_project_are_read_only() {
    let server = Server::start();
    let (project, _, key) = server.tenant("old");
    let id = file(&server, &key);
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    assert_eq!(server.delete(&format!("/v1/files/{id}")).error_fields().1, "conflict");
    let parts = [("project_id", None, project.as_bytes()), PURPOSE, ("file", Some("a"), CHAT.as_bytes())];
    let refused = send(&server, "/v1", &server.admin, &parts, &[]).error_fields();
    assert_eq!(refused, (409, "conflict".to_owned(), Some("project_id".to_owned())));
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).text, CHAT);
}

#[test]
fn deleting_all_files_returns_quota_usage_to_zero() {
    let server = Server::start();
    let (project, _, key) = server.tenant("counting");
    let content = examples(30_000);
    let ids = [(); 2].map(|()| upload(&server, &key, &content).ok()["id"].as_str().unwrap().to_owned());
    server.call(Method::DELETE, &format!("/v1/files/{}", ids[0]), Some(&key), None).ok();
    let folder = server.stop();
    let (one, bytes) = (quota_usage_of(folder.path(), &project), content.len() as u64);
    assert_eq!((one.files, one.bytes), (1, bytes));
    let server = Server::start_in(folder);
    server.call(Method::DELETE, &format!("/v1/files/{}", ids[1]), Some(&key), None).ok();
    let twice = server.call(Method::DELETE, &format!("/v1/files/{}", ids[1]), Some(&key), None);
    assert_eq!(twice.error_fields().0, 404);
    let events = server.get(&format!("/v1/audit-events?project_id={project}")).ok();
    let actions: Vec<_> = events["data"].as_array().unwrap().iter().map(|event| event["action"].clone()).collect();
    assert_eq!(actions[..4], ["file.deleted", "file.deleted", "file.created", "file.created"]);
    let folder = stop_after_sweep(server);
    let none = quota_usage_of(folder.path(), &project);
    assert_eq!((none.files, none.bytes), (0, 0));
    let left = records(folder.path());
    assert_eq!((left["files"], left["content_chunks"], left["orphaned_chunks"]), (0, 0, 0));
}

#[test]
fn quotas_apply_during_the_whole_upload() {
    let server = Server::start();
    let (project, _, key) = server.tenant("small");
    let folder = server.stop();
    set_quotas(folder.path(), &project, Quotas { files: Some(1), bytes: Some(1 << 20), ..Quotas::default() });
    let server = Server::start_in(folder);
    let over = upload(&server, &key, &examples(30_000));
    assert_eq!((over.error_fields().0, over.error_fields().1.as_str()), (429, "insufficient_quota"));
    assert!(over.text.contains("storage_bytes"), "{}", over.text);
    // If an admin key names the project only after the file, the quota is checked at the end.
    let late = [PURPOSE, ("file", Some("a"), &examples(30_000)[..]), ("project_id", None, project.as_bytes())];
    assert_eq!(send(&server, "/v1", &server.admin, &late, &[]).error_fields().1, "insufficient_quota");
    let first = file(&server, &key);
    let second = upload(&server, &key, CHAT.as_bytes());
    assert!(second.error_fields().1 == "insufficient_quota" && second.text.contains("'files'"), "{}", second.text);
    server.call(Method::DELETE, &format!("/v1/files/{first}"), Some(&key), None).ok();
    file(&server, &key);
    let folder = stop_after_sweep(server);
    assert_eq!(quota_usage_of(folder.path(), &project).files, 1);
    assert_eq!(records(folder.path())["content_chunks"], 1);
}

#[test]
fn an_aborted_upload_leaves_nothing() {
    let server = Server::start();
    let body = form("xYzZY", &[PURPOSE, ("file", Some("a"), &examples(40_000))]);
    for abruptly in [false, true] {
        let connection = begin(&server, &server.admin, body.len(), &body[..body.len() / 2]);
        wait_for_chunks(&server, 1);
        if abruptly {
            socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(connection);
        wait_for_chunks(&server, 0);
    }
    assert_eq!(server.get("/v1/files").ok()["data"], json!([]));
    let left = records(stop_after_sweep(server).path());
    assert_eq!((left["files"], left["content_chunks"], left["orphaned_chunks"]), (0, 0, 0));
}

#[test]
fn a_key_revoked_during_an_upload_creates_no_file() {
    let server = Server::start();
    let (project, key, secret) = server.tenant("leaving");
    let body = form("xYzZY", &[PURPOSE, ("file", Some("a"), &examples(20_000))]);
    let (half, rest_of_it) = body.split_at(body.len() / 2);
    let mut connection = begin(&server, &secret, body.len(), half);
    wait_for_chunks(&server, 1);
    server.delete(&format!("/v1/api-keys/{key}")).ok();
    connection.write_all(rest_of_it).unwrap();
    let response = read_rest(connection);
    assert!(response.starts_with("HTTP/1.1 401") && response.contains("revoked_api_key"), "{response}");
    assert_eq!(server.get(&format!("/v1/files?project_id={project}")).ok()["data"], json!([]));
    let left = records(stop_after_sweep(server).path());
    assert_eq!((left["files"], left["content_chunks"], left["orphaned_chunks"]), (0, 0, 0));
}

#[test]
fn the_next_start_removes_uploads_that_a_crash_interrupted() {
    let server = Server::start();
    let id = file(&server, &server.admin);
    let folder = server.stop();
    write_orphaned_chunks(folder.path(), 20);
    let before = records(folder.path());
    assert_eq!((before["content_chunks"], before["orphaned_chunks"]), (21, 1));
    let server = Server::start_in(folder);
    assert_eq!(server.get("/v1/files").ok()["data"].as_array().unwrap().len(), 1);
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).text, CHAT);
    let after = records(stop_after_sweep(server).path());
    assert_eq!((after["content_chunks"], after["orphaned_chunks"]), (1, 0));
}

#[test]
fn a_large_upload_leaves_the_server_responsive() {
    let server = Server::start();
    let content = examples(260_000);
    assert!(content.len() > 20_000_000);
    let slowest = std::thread::scope(|scope| {
        let upload = scope.spawn(|| upload(&server, &server.admin, &content).ok());
        let mut slowest = Duration::ZERO;
        while !upload.is_finished() {
            let before = Instant::now();
            server.post("/v1/projects", &json!({ "name": "meanwhile" })).ok();
            slowest = slowest.max(before.elapsed());
        }
        let created = upload.join().unwrap();
        assert_eq!((&created["bytes"], &created["examples"]), (&json!(content.len()), &json!(260_000)));
        let back = server.get(&format!("/v1/files/{}/content", created["id"].as_str().unwrap()));
        assert!(back.text.as_bytes() == content, "the content is unchanged");
        slowest
    });
    // Far more than a read needs, and far less than it would take if the upload blocked the writer.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

#[test]
fn an_upload_that_is_too_slow_is_ended() {
    let server = Server::start();
    let body = form("xYzZY", &[("purpose", None, b"fine-tune"), ("file", Some("train.jsonl"), CHAT.as_bytes())]);
    let mut connection = begin(&server, &server.admin, 1 << 20, &body[..body.len() - 20]);
    connection.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    let mut response = vec![0; 4096];
    // One space per second: the upload is never idle, but would take days.
    let read = loop {
        match connection.read(&mut response) {
            Ok(read) => break read,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the upload was not ended");
        connection.write_all(b" ").unwrap();
        std::thread::sleep(Duration::from_secs(1));
    };
    let text = String::from_utf8_lossy(&response[..read]).into_owned();
    assert!(text.starts_with("HTTP/1.1 408 ") && text.contains("too slowly"), "{text}");
}

/// Slow uploads from one address with keys of many projects take only the slots of that address.
#[test]
fn uploads_from_one_address_leave_slots_for_others() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    });
    let keys: Vec<String> = (0..5).map(|number| server.tenant(&format!("tenant-{number}")).2).collect();
    let parts: [Part<'_>; 2] = [PURPOSE, ("file", Some("train.jsonl"), CHAT.as_bytes())];
    let body = form("xYzZY", &parts);
    let trickle = |key: &String| begin_upload_from(&server, "203.0.113.9", key, 1 << 20, &body[..body.len() - 20]);
    let mut unfinished_uploads: Vec<_> = keys[..4].iter().flat_map(|key| [key, key]).map(trickle).collect();
    let attempt = |from: &str| send(&server, "/v1", &keys[4], &parts, &[("x-forwarded-for", from)]);
    // The eight uploads have their slots as soon as the server has read their first part.
    let mut response = attempt("203.0.113.9");
    let is_refused = || {
        if response.status == 200 {
            // This attempt may have taken a slot before one of the eight.
            unfinished_uploads.push(trickle(&keys[3]));
            response = attempt("203.0.113.9");
        }
        response.status != 200
    };
    until(|| "a ninth upload is refused", is_refused);
    let refused = response;
    assert_eq!(refused.error_fields(), (503, "overloaded".to_owned(), None));
    assert!(refused.text.contains("your address 8") && refused.headers.contains_key("retry-after"), "{}", refused.text);
    attempt("203.0.113.10").ok();
    drop(unfinished_uploads);
    until(|| "the slots are free again", || attempt("203.0.113.9").status == 200);
}
