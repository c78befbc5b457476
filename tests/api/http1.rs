//! Malformed and ambiguous HTTP/1.1 requests, on a raw socket: they get an error response and the connection is closed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{MODEL, Server};

/// A request in the body of another one. A response to it would mean that request smuggling succeeded.
const SMUGGLED: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends the bytes, and returns what the server sends until it closes the connection.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(server.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may refuse the request before all bytes are sent.
    let _sent = connection.write_all(bytes);
    let mut response = Vec::new();
    connection.read_to_end(&mut response).expect("the server responds and closes the connection");
    String::from_utf8_lossy(&response).into_owned()
}

/// The responses on a connection: status, header, and body.
fn responses(text: &str) -> Vec<(u16, String, Value)> {
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (head, body) = rest.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{rest:?}"));
        let head = head.to_ascii_lowercase();
        let status = head.strip_prefix("http/1.1 ").unwrap_or_else(|| panic!("{rest:?}"))[..3].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let (body, more) = body.split_at(length.parse().unwrap());
        all.push((status, head, serde_json::from_str(body).unwrap_or(Value::Null)));
        rest = more;
    }
    all
}

/// Checks that there is one error response, after which the connection is closed. Returns its message.
fn error_fields(server: &Server, name: &str, bytes: &[u8], expected: (u16, &str)) -> String {
    let text = exchange(server, bytes);
    let all = responses(&text);
    let [(status, head, body)] = all.as_slice() else { panic!("{name}: {} answers: {text}", all.len()) };
    let error = &body["error"];
    assert_eq!((*status, error["code"].as_str()), (expected.0, Some(expected.1)), "{name}: {text}");
    assert_eq!(error["type"], "invalid_request_error", "{name}: {text}");
    let id = error["request_id"].as_str().unwrap();
    assert!(head.contains(&format!("x-request-id: {id}")) && head.contains("connection: close"), "{name}: {head}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn ambiguous_requests_are_refused() {
    let server = Server::start();
    let post = |fields: &str| format!("POST /v1/projects HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n0\r\n\r\n");
    let get = |fields: &str| format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n\r\n");
    let mut heads: Vec<(String, &str)> = vec![
        (post("Content-Length: 4\r\nTransfer-Encoding: chunked"), "both"),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 4"), "both"),
        (post("Transfer-Encoding: chunked\r\nContent-Length: 0"), "both"),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), "more than one"),
        (post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), "not 'chunked'"),
        (post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), "not 'chunked'"),
        (post("Transfer-Encoding: chunked, identity"), "not 'chunked'"),
        (post("Transfer-Encoding: identity, chunked"), "not 'chunked'"),
        (post("Transfer-Encoding: gzip, chunked"), "not 'chunked'"),
        (post("Transfer-Encoding: xchunked"), "not 'chunked'"),
        (post("Transfer-Encoding: \"chunked\""), "not 'chunked'"),
        (post("Transfer-Encoding:"), "not 'chunked'"),
        (post("Transfer-Encoding: chunked\x0b"), "control character"),
        (post("Transfer-Encoding : chunked"), "space before the colon"),
        (post("Transfer-Encoding\t: chunked"), "space before the colon"),
        (post(" Transfer-Encoding: chunked"), "folded"),
        (post("X: y\r\n Transfer-Encoding: chunked"), "folded"),
        (post("X: y\r\n\tmore"), "folded"),
        (post("X: y\rTransfer-Encoding: chunked"), "control character"),
        (post("X: y\nTransfer-Encoding: chunked"), "bare LF"),
        (post("Transfer-Encoding: chunked\n"), "bare LF"),
        (post("Content-Length: 5\r\nContent-Length: 5"), "more than one"),
        (post("Content-Length: 5\r\nContent-Length: 0"), "more than one"),
        (post("Content-Length: 5, 5"), "not a number"),
        (post("Content-Length: +5"), "not a number"),
        (post("Content-Length: -1"), "not a number"),
        (post("Content-Length: 0x5"), "not a number"),
        (post("Content-Length: 5 5"), "not a number"),
        (post("Content-Length: 5;x"), "not a number"),
        (post("Content-Length: 1e3"), "not a number"),
        (post("Content-Length: \u{661}"), "not a number"),
        (post("Content-Length:"), "not a number"),
        (post("Content-Length: 18446744073709551616"), "not a number"),
        (post("Content-Length : 5"), "space before the colon"),
        (get("Host: other"), "one Host"),
        (get("no colon"), "no colon"),
        (get(": no name"), "name"),
        (get("X y: z"), "name"),
        (get("X\0: z"), "name"),
        (get("X\u{e9}: z"), "name"),
        (get("X: \0"), "control character"),
        (get("X: \x1b[2J"), "control character"),
        (get("X: \x7f"), "control character"),
    ];
    let lines = [
        ("GET /healthz HTTP/1.1\r\nX: y\r\n\r\n", "one Host"),
        ("GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n", "bare LF"),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\n\r\n", "bare LF"),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n", "bare LF"),
        ("GET /healthz HTTP/1.1\nHost: localhost\n\n", "bare LF"),
        ("\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "bare LF"),
        ("GET /healthz HTTP/1.1\rHost: localhost\r\n\r\n", "version"),
        ("GET /healthz\r\nHost: localhost\r\n\r\n", "first line"),
        ("GET\r\nHost: localhost\r\n\r\n", "first line"),
        (" GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "method"),
        ("GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "path"),
        ("GET\t/healthz\tHTTP/1.1\r\nHost: localhost\r\n\r\n", "first line"),
        ("GET /healthz HTTP/1.1 \r\nHost: localhost\r\n\r\n", "version"),
        ("GET /healthz http/1.1\r\nHost: localhost\r\n\r\n", "version"),
        ("GET /healthz HTTP/1.10\r\nHost: localhost\r\n\r\n", "version"),
        ("GET /healthz HTTP/0.9\r\nHost: localhost\r\n\r\n", "version"),
        ("GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n", "version"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "version"),
        ("GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n", "version"),
        ("GET /\u{e9} HTTP/1.1\r\nHost: localhost\r\n\r\n", "path"),
        ("GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", "path"),
        ("GE(T /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "method"),
        ("G\0T /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "method"),
        ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", "CONNECT method"),
        ("POST /v1/projects HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0"),
        ("POST /v1/projects HTTP/1.0\r\n\r\n", "HTTP/1.0"),
    ];
    heads.extend(lines.map(|(head, why)| (head.to_owned(), why)));
    let long = "x".repeat(100_000);
    heads.push((format!("{} /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "X".repeat(33)), "32 characters"));
    heads.push((format!("{long} /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"), "32 characters"));
    heads.push((long.clone(), "32 characters"));
    heads.push(("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03".to_owned(), "32 characters"));
    for (head, why) in &heads {
        let bytes = format!("{head}{SMUGGLED}");
        let message = error_fields(&server, head, bytes.as_bytes(), (400, "invalid_parameter"));
        assert!(message.contains(why), "{head:?}: {message}");
    }
    let large = [
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        get(&format!("X: {long}")),
        get(&format!("{long}: y")),
        get("X: y\r\n".repeat(97).trim_end()),
    ];
    for head in &large {
        let bytes = format!("{head}{SMUGGLED}");
        let message = error_fields(&server, &head[..40], bytes.as_bytes(), (431, "request_header_too_large"));
        assert!(message.len() < 200 && (message.contains("64 KiB") || message.contains("96")), "{message}");
    }
    assert_eq!((heads.len(), large.len()), (73, 4), "requests tried");
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_body_with_broken_chunks_gets_a_response() {
    let server = Server::start();
    let body = r#"{"name":"smuggled"}"#;
    let size = format!("{:x}", body.len());
    let chunk = format!("{size}\r\n{body}\r\n");
    let broken: Vec<String> = vec![
        format!("x\r\n{chunk}0\r\n\r\n"),
        format!("\r\n{chunk}0\r\n\r\n"),
        format!("-{chunk}0\r\n\r\n"),
        format!("+{chunk}0\r\n\r\n"),
        format!("0x{chunk}0\r\n\r\n"),
        format!(" {chunk}0\r\n\r\n"),
        format!("{size} \r\n{body}\r\n0\r\n\r\n"),
        format!("{size}\n{body}\r\n0\r\n\r\n"),
        format!("{size}\r{body}\r\n0\r\n\r\n"),
        format!("{size};a\nb\r\n{body}\r\n0\r\n\r\n"),
        format!("{size};a\0\r\n{body}\r\n0\r\n\r\n"),
        format!("{size};{}\r\n{body}\r\n0\r\n\r\n", "x".repeat(10_000)),
        format!("{size}\r\n{body}0\r\n\r\n"),
        format!("{size}\r\n{body}\n0\r\n\r\n"),
        format!("{size}\r\n{body}xx\r\n0\r\n\r\n"),
        format!("{chunk}f0000000000000003\r\nabc\r\n0\r\n\r\n"),
        format!("{chunk}10000000000000000\r\nabc\r\n0\r\n\r\n"),
        format!("{chunk}0\r\nno trailer\r\n\r\n"),
        format!("{chunk}0\r\n folded: x\r\n\r\n"),
        format!("{chunk}0\r\nx : y\r\n\r\n"),
        format!("{chunk}0\r\nx: y\n\r\n"),
        format!("{chunk}0\n\r\n"),
        format!("{chunk}0\r\n{}\r\n", "x: y\r\n".repeat(5_000)),
    ];
    let head = |path: &str, key: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
    };
    let authorised = head("/v1/projects", &server.admin);
    for body in &broken {
        let message =
            error_fields(&server, body, format!("{authorised}{body}{SMUGGLED}").as_bytes(), (400, "invalid_parameter"));
        assert!(message.contains("not valid chunks"), "{message}");
    }
    let projects = server.get("/v1/projects?limit=100").ok();
    assert!(projects["data"].as_array().unwrap().iter().all(|project| project["name"] != "smuggled"), "{projects}");
    // A request that is refused before its body is read gets only that response.
    for body in &broken {
        let text = exchange(&server, format!("{}{body}{SMUGGLED}", head("/v1/projects", "opk_wrong")).as_bytes());
        let all = responses(&text);
        assert!(all.len() == 1 && matches!(all[0].0, 401 | 429), "{body:?}: {text}");
    }
    assert_eq!(broken.len(), 23, "bodies tried");
    // A valid chunked body with extensions and trailers is accepted, and the connection stays open.
    let good = format!("{authorised}{size};a=\"b\"\r\n{body}\r\n0\r\nChecksum: 1\r\n\r\n");
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let all = responses(&exchange(&server, format!("{good}{good}{last}").as_bytes()));
    assert_eq!(all.iter().map(|response| response.0).collect::<Vec<_>>(), [200, 200, 200]);
    assert_eq!(all[1].2["name"], "smuggled");
}

#[test]
fn requests_before_a_malformed_one_are_answered_first() {
    let server = Server::start();
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 40, "ignore_eos": true });
    let chat = chat.to_string();
    let chat = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{chat}",
        server.admin,
        chat.len()
    );
    let text = exchange(&server, format!("{chat}{SMUGGLED}GET / HTTP/1.1\nHost: x\r\n\r\n{SMUGGLED}").as_bytes());
    let all = responses(&text);
    assert_eq!(all.iter().map(|response| response.0).collect::<Vec<_>>(), [200, 200, 400], "{text}");
    assert_eq!(all[0].2["usage"]["completion_tokens"], 40);
    assert!(!all[0].1.contains("connection: close") && all[2].1.contains("connection: close"), "{text}");
}

#[test]
fn upgrade_offers_are_ignored() {
    let server = Server::start();
    let body = r#"{"name":"upgraded"}"#;
    let post = format!(
        "POST /v1/projects HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nContent-Length: {}\r\n\r\n{body}",
        server.admin,
        body.len()
    );
    let get = |more: &str| {
        format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade{more}\r\nUpgrade: websocket\r\n\r\n")
    };
    let h2c = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    let text = exchange(&server, format!("{post}{}{h2c}{}", get(""), get(", close")).as_bytes());
    let all = responses(&text);
    assert_eq!(all.iter().map(|response| response.0).collect::<Vec<_>>(), [200, 200, 200, 200], "{text}");
    assert_eq!(all[0].2["name"], "upgraded");
}

#[test]
fn a_too_large_body_is_refused_with_the_error_envelope() {
    let server = Server::start();
    let head = format!(
        "POST /v1/projects HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{{",
        server.admin
    );
    let message = error_fields(&server, "content-length", head.as_bytes(), (413, "request_too_large"));
    assert!(!message.is_empty());
}

#[test]
fn a_long_method_is_not_echoed() {
    let server = Server::start();
    let response =
        server.call(reqwest::Method::from_bytes(&[b'X'; 32]).unwrap(), "/v1/models", Some(&server.admin), None);
    assert_eq!(response.status, 405);
    let refused =
        server.call(reqwest::Method::from_bytes(&[b'X'; 33]).unwrap(), "/v1/models", Some(&server.admin), None);
    assert_eq!(refused.error_fields().0, 400);
    assert!(!refused.text.contains("XXXX"), "{}", refused.text);
}
