//! HTTP/2: complete responses, and clients that open no window, many streams or endless headers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix_web::web::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::process::{MODEL, Serving, folder};
use crate::tiny_model::TinyModel;
use crate::tls::trusting;

/// Streams of a connection at once.
const STREAMS: usize = 64;

/// The usual size of a window.
const WINDOW: u32 = 65_535;

struct Secure {
    folder: TempDir,
    serving: Serving,
}

impl Secure {
    fn start() -> Self {
        let folder = folder(&TinyModel::default());
        let serving = Serving::start(folder.path(), &["--tls-self-signed"]);
        Self { folder, serving }
    }

    /// A client that opens windows of this size, and opens them again for what it reads.
    async fn connect(&self, window: u32) -> SendRequest<Bytes> {
        let file = self.folder.path().join("data/tls-cert.pem");
        let mut config = trusting([CertificateDer::from_pem_file(file).unwrap()]);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tcp = TcpStream::connect(self.serving.url.trim_start_matches("https://")).await.unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        let (client, mut connection) =
            h2::client::Builder::new().initial_window_size(window).handshake(tls).await.unwrap();
        let allowed = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&allowed);
        tokio::spawn(poll_fn(move |cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            seen.store(connection.max_concurrent_send_streams(), Ordering::Relaxed);
            ended
        }));
        let mut client = client.ready().await.unwrap();
        // Before its first response, the server has said what it allows.
        let request = self.request(Method::GET, "/healthz").body(()).unwrap();
        assert_eq!(send(&mut client, request, None).await.status(), 200);
        assert_eq!(allowed.load(Ordering::Relaxed), STREAMS);
        client
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let key = self.serving.key();
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.serving.url))
            .header("authorization", format!("Bearer {key}"))
    }
}

/// Sends a request and waits for the head of its response.
async fn send(client: &mut SendRequest<Bytes>, request: Request<()>, body: Option<Vec<u8>>) -> Response<RecvStream> {
    let (response, mut stream) = client.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        stream.send_data(body.into(), true).unwrap();
    }
    timeout(Duration::from_secs(60), response).await.expect("an answer").unwrap()
}

async fn text(response: Response<RecvStream>) -> String {
    let (mut body, mut all) = (response.into_body(), Vec::new());
    while let Some(piece) = timeout(Duration::from_secs(60), body.data()).await.expect("the rest of an answer") {
        let piece = piece.unwrap();
        body.flow_control().release_capacity(piece.len()).unwrap();
        all.extend_from_slice(&piece);
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn responses_are_complete() {
    let secure = Secure::start();
    let mut client = secure.connect(WINDOW).await;
    let request = |method, path| secure.request(method, path).body(()).unwrap();
    let response = send(&mut client, request(Method::GET, "/openapi.json"), None).await;
    let (head, document) = (response.headers().clone(), text(response).await);
    assert_eq!(head["content-length"].to_str().unwrap(), document.len().to_string());
    assert!(head.contains_key("date") && head.contains_key("x-request-id") && !head.contains_key("connection"));
    assert!(serde_json::from_str::<Value>(&document).unwrap()["paths"].is_object());
    let response = send(&mut client, request(Method::HEAD, "/healthz"), None).await;
    assert_eq!((response.status().as_u16(), text(response).await.as_str()), (405, ""));
    let response = send(&mut client, Request::get(format!("{}/v1/models", secure.serving.url)).body(()).unwrap(), None);
    assert_eq!(response.await.status(), 401);

    let chat = |stream: bool| {
        let request = secure.request(Method::POST, "/v1/chat/completions").header("content-type", "application/json");
        let messages = json!([{ "role": "user", "content": "go on" }]);
        let body = json!({ "model": MODEL, "stream": stream, "max_tokens": 8, "messages": messages });
        (request.body(()).unwrap(), Some(body.to_string().into_bytes()))
    };
    let (request, body) = chat(false);
    let answer = text(send(&mut client, request, body).await).await;
    assert!(answer.contains("\"choices\""), "{answer}");
    let (request, body) = chat(true);
    let answer = text(send(&mut client, request, body).await).await;
    assert!(answer.contains("data: [DONE]"), "{answer}");
}

/// Reads without opening the window again until the server gives the stream up.
async fn until_given_up(mut body: RecvStream) -> h2::Error {
    loop {
        match timeout(Duration::from_secs(60), body.data()).await.expect("the stream ends") {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            None => panic!("the whole document came through a closed window"),
        }
    }
}

/// Opens all streams that it may, and returns how long they last.
async fn stall(mut client: SendRequest<Bytes>, secure: &Secure) -> Duration {
    let mut bodies = Vec::new();
    for _ in 0..STREAMS {
        client = client.ready().await.unwrap();
        let request = secure.request(Method::GET, "/openapi.json").body(()).unwrap();
        let response = send(&mut client, request, None).await;
        assert_eq!(response.status(), 200);
        bodies.push(response.into_body());
    }
    let begun = Instant::now();
    for body in bodies {
        until_given_up(body).await;
    }
    begun.elapsed()
}

#[tokio::test]
async fn a_connection_whose_client_opens_no_window_ends() {
    let secure = Secure::start();
    let (closed, unread) = (secure.connect(0).await, secure.connect(WINDOW).await);
    let (closed, unread) = tokio::join!(stall(closed, &secure), stall(unread, &secure));
    assert!(closed.max(unread) < Duration::from_secs(30), "{closed:?} {unread:?}");
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_and_its_neighbours_go_on() {
    let secure = Secure::start();
    // Room for the small answers, and not for the document.
    let mut client = secure.connect(1000).await;
    let document = secure.request(Method::GET, "/openapi.json").body(()).unwrap();
    let unread = send(&mut client, document, None).await.into_body();
    let begun = Instant::now();
    let mut given_up = tokio::spawn(until_given_up(unread));
    let error = loop {
        let request = secure.request(Method::GET, "/healthz").body(()).unwrap();
        assert_eq!(text(send(&mut client, request, None).await).await, "{\"status\":\"ok\"}");
        match timeout(Duration::from_secs(1), &mut given_up).await {
            Ok(error) => break error.unwrap(),
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(30), "the stream goes on"),
        }
    };
    assert_eq!(error.reason(), Some(Reason::CANCEL), "{error}");
    let request = secure.request(Method::GET, "/healthz").body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 200);
}

#[tokio::test]
async fn a_list_of_headers_is_bounded() {
    let secure = Secure::start();
    let mut client = secure.connect(WINDOW).await;
    let request = secure.request(Method::GET, "/healthz").header("x-long", "x".repeat(40 << 10)).body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 431);
    let request = secure.request(Method::GET, "/healthz").header("x-long", "x".repeat(8 << 10)).body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 200);
}
