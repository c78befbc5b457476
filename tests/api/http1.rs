//! T18: what is no HTTP/1.1, or could be read in two ways, is refused in words and ends the connection. On a raw socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{MODEL, Server};

/// What a request carries in its wake: an answer to it would be one that was smuggled in.
const SMUGGLED: &str = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Sends all of it, and returns what comes until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(server.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have refused it before all is sent.
    let _sent = connection.write_all(bytes);
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).expect("the server answers and closes");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answers on a connection: status, header, and body.
fn answers(text: &str) -> Vec<(u16, String, Value)> {
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

/// One answer of our shape, and the connection is closed after it. Returns its message.
fn refusal(server: &Server, name: &str, bytes: &[u8], expected: (u16, &str)) -> String {
    let text = exchange(server, bytes);
    let all = answers(&text);
    let [(status, head, body)] = all.as_slice() else { panic!("{name}: {} answers: {text}", all.len()) };
    let error = &body["error"];
    assert_eq!((*status, error["code"].as_str()), (expected.0, Some(expected.1)), "{name}: {text}");
    assert_eq!(error["type"], "invalid_request_error", "{name}: {text}");
    let id = error["request_id"].as_str().unwrap();
    assert!(head.contains(&format!("x-request-id: {id}")) && head.contains("connection: close"), "{name}: {head}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn no_request_can_be_read_in_two_ways() {
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
        let message = refusal(&server, head, bytes.as_bytes(), (400, "invalid_parameter"));
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
        let message = refusal(&server, &head[..40], bytes.as_bytes(), (431, "request_header_too_large"));
        assert!(message.len() < 200 && (message.contains("64 KiB") || message.contains("96")), "{message}");
    }
    assert_eq!((heads.len(), large.len()), (73, 4), "requests tried");
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_body_whose_chunks_are_broken_gets_an_answer() {
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
            refusal(&server, body, format!("{authorised}{body}{SMUGGLED}").as_bytes(), (400, "invalid_parameter"));
        assert!(message.contains("not valid chunks"), "{message}");
    }
    let projects = server.get("/v1/projects?limit=100").ok();
    assert!(projects["data"].as_array().unwrap().iter().all(|project| project["name"] != "smuggled"), "{projects}");
    // Who is refused before the body is read gets that answer, and no second one.
    for body in &broken {
        let text = exchange(&server, format!("{}{body}{SMUGGLED}", head("/v1/projects", "opk_wrong")).as_bytes());
        let all = answers(&text);
        assert!(all.len() == 1 && matches!(all[0].0, 401 | 429), "{body:?}: {text}");
    }
    assert_eq!(broken.len(), 23, "bodies tried");
    // A whole one passes, with extensions and trailers, and the connection goes on.
    let good = format!("{authorised}{size};a=\"b\"\r\n{body}\r\n0\r\nChecksum: 1\r\n\r\n");
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let all = answers(&exchange(&server, format!("{good}{good}{last}").as_bytes()));
    assert_eq!(all.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 200]);
    assert_eq!(all[1].2["name"], "smuggled");
}

#[test]
fn what_came_before_a_malformed_request_is_answered_first() {
    let server = Server::start();
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 40, "ignore_eos": true });
    let chat = chat.to_string();
    let chat = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{chat}",
        server.admin,
        chat.len()
    );
    let text = exchange(&server, format!("{chat}{SMUGGLED}GET / HTTP/1.1\nHost: x\r\n\r\n{SMUGGLED}").as_bytes());
    let all = answers(&text);
    assert_eq!(all.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 400], "{text}");
    assert_eq!(all[0].2["usage"]["completion_tokens"], 40);
    assert!(!all[0].1.contains("connection: close") && all[2].1.contains("connection: close"), "{text}");
}

#[test]
fn an_offer_to_upgrade_is_passed_over() {
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
    let all = answers(&text);
    assert_eq!(all.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 200, 200], "{text}");
    assert_eq!(all[0].2["name"], "upgraded");
}

#[test]
fn a_body_that_is_too_large_is_refused_in_our_shape() {
    let server = Server::start();
    let head = format!(
        "POST /v1/projects HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{{",
        server.admin
    );
    let message = refusal(&server, "content-length", head.as_bytes(), (413, "request_too_large"));
    assert!(!message.is_empty());
}

#[test]
fn a_long_method_is_not_repeated() {
    let server = Server::start();
    let answer =
        server.call(reqwest::Method::from_bytes(&[b'X'; 32]).unwrap(), "/v1/models", Some(&server.admin), None);
    assert_eq!(answer.status, 405);
    let refused =
        server.call(reqwest::Method::from_bytes(&[b'X'; 33]).unwrap(), "/v1/models", Some(&server.admin), None);
    assert_eq!(refused.refusal().0, 400);
    assert!(!refused.text.contains("XXXX"), "{}", refused.text);
}
