//! HTTP/2: complete responses, and clients with closed windows, many streams or endless headers.

use std::future::poll_fn;
use std::path::Path;
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

use crate::process::{MODEL, ServerProcess, folder};
use crate::tiny_model::TinyModel;
use crate::tls::client_config;
use crate::unread_responses::LargeConversation;

/// Concurrent streams per connection.
const STREAMS: usize = 64;

/// The default size of a window.
const WINDOW: u32 = 65_535;

struct Secure {
    folder: TempDir,
    serving: ServerProcess,
}

impl Secure {
    fn start() -> Self {
        let folder = folder(&TinyModel::default());
        let serving = ServerProcess::start(folder.path(), &["--tls-self-signed"]);
        Self { folder, serving }
    }

    /// A client with flow control windows of this size.
    async fn connect(&self, window: u32) -> SendRequest<Bytes> {
        connect(self.folder.path(), &self.serving, window).await
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let key = self.serving.key();
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.serving.url))
            .header("authorization", format!("Bearer {key}"))
    }
}

/// A client with flow control windows of this size.
async fn connect(folder: &Path, serving: &ServerProcess, window: u32) -> SendRequest<Bytes> {
    let file = folder.join("data/tls-cert.pem");
    let mut config = client_config([CertificateDer::from_pem_file(file).unwrap()]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(serving.url.trim_start_matches("https://")).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
    let (client, mut connection) = h2::client::Builder::new().initial_window_size(window).handshake(tls).await.unwrap();
    let allowed = Arc::new(AtomicUsize::new(0));
    let limit = Arc::clone(&allowed);
    tokio::spawn(poll_fn(move |cx| {
        let ended = Pin::new(&mut connection).poll(cx);
        limit.store(connection.max_concurrent_send_streams(), Ordering::Relaxed);
        ended
    }));
    let mut client = client.ready().await.unwrap();
    // The server sends its settings before its first response.
    let request = Request::get(format!("{}/healthz", serving.url)).body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 200);
    assert_eq!(allowed.load(Ordering::Relaxed), STREAMS);
    client
}

/// Sends a request and waits for the head of its response.
async fn send(client: &mut SendRequest<Bytes>, request: Request<()>, body: Option<Vec<u8>>) -> Response<RecvStream> {
    let (response, mut stream) = client.send_request(request, body.is_none()).unwrap();
    if let Some(body) = body {
        stream.send_data(body.into(), true).unwrap();
    }
    timeout(Duration::from_secs(60), response).await.expect("a response").unwrap()
}

async fn text(response: Response<RecvStream>) -> String {
    let (mut body, mut all) = (response.into_body(), Vec::new());
    while let Some(piece) = timeout(Duration::from_secs(60), body.data()).await.expect("the rest of a response") {
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
    let response = send(&mut client, request(Method::HEAD, "/openapi.json"), None).await;
    assert_eq!(response.headers()["content-length"], head["content-length"]);
    assert_eq!((response.status().as_u16(), text(response).await.as_str()), (200, ""));
    let response = send(&mut client, Request::get(format!("{}/v1/models", secure.serving.url)).body(()).unwrap(), None);
    assert_eq!(response.await.status(), 401);

    let chat = |stream: bool| {
        let request = secure.request(Method::POST, "/v1/chat/completions").header("content-type", "application/json");
        let messages = json!([{ "role": "user", "content": "go on" }]);
        let body = json!({ "model": MODEL, "stream": stream, "max_tokens": 8, "messages": messages });
        (request.body(()).unwrap(), Some(body.to_string().into_bytes()))
    };
    let (request, body) = chat(false);
    let response = text(send(&mut client, request, body).await).await;
    assert!(response.contains("\"choices\""), "{response}");
    let (request, body) = chat(true);
    let response = text(send(&mut client, request, body).await).await;
    assert!(response.contains("data: [DONE]"), "{response}");
}

/// Reads without enlarging the window until the server resets the stream.
async fn read_until_reset(mut body: RecvStream) -> h2::Error {
    loop {
        match timeout(Duration::from_secs(60), body.data()).await.expect("the stream ends") {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            None => panic!("the server ignored the closed window"),
        }
    }
}

/// Opens the maximum number of streams, and returns the time until the server ends them.
async fn open_and_never_read(mut client: SendRequest<Bytes>, secure: &Secure) -> Duration {
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
        read_until_reset(body).await;
    }
    begun.elapsed()
}

/// MB that may remain allocated after responses that were not read.
const REMAINS: u64 = 60;

/// Requests the conversation on all streams of `connections` connections with closed windows. Returns the resident memory
/// at first, its peak while nothing is read, and what remains afterwards, in MB.
async fn memory_of_closed_windows(megabytes: usize, memory: &'static str, connections: usize) -> [u64; 3] {
    let start = move || LargeConversation::start(megabytes, &["--tls-self-signed", "--memory", memory]);
    let large = tokio::task::spawn_blocking(start).await.unwrap();
    let authorization = format!("Bearer {}", large.serving.key());
    large.reset_peak();
    let before = large.memory().0;
    let mut responses = Vec::new();
    for _ in 0..connections {
        let mut client = connect(large.folder.path(), &large.serving, 0).await;
        for _ in 0..STREAMS {
            client = client.ready().await.unwrap();
            let request = Request::get(format!("{}{}", large.serving.url, large.path));
            let request = request.header("authorization", &authorization).body(()).unwrap();
            responses.push(client.send_request(request, true).unwrap().0);
        }
    }
    tokio::time::sleep(Duration::from_secs(15)).await;
    let peak = large.memory().1;
    drop(responses);
    let dropped = Instant::now();
    while large.memory().0 > before + REMAINS && dropped.elapsed() < Duration::from_secs(15) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    [before, peak, large.memory().0]
}

#[tokio::test]
async fn streams_with_a_closed_window_take_bounded_memory() {
    let [before, peak, after] = memory_of_closed_windows(3, "256MiB", 1).await;
    assert!(peak <= before + 130 && after <= before + REMAINS, "{before} MB, {peak} MB, {after} MB");
}

/// `cargo test --release --test cli http2 -- --ignored --nocapture`
#[tokio::test]
#[ignore = "takes gigabytes of memory if it fails"]
async fn hundreds_of_streams_with_a_closed_window_stay_within_the_memory_of_the_process() {
    let [before, peak, after] = memory_of_closed_windows(7, "1GiB", 4).await;
    println!("256 streams over HTTP/2: {before} MB before, at most {peak} MB, {after} MB afterwards");
    assert!(peak <= 1400 && after <= before + 100);
}

#[tokio::test]
async fn a_connection_with_a_closed_flow_control_window_ends() {
    let secure = Secure::start();
    let (closed, unread) = (secure.connect(0).await, secure.connect(WINDOW).await);
    let (closed, unread) = tokio::join!(open_and_never_read(closed, &secure), open_and_never_read(unread, &secure));
    assert!(closed.max(unread) < Duration::from_secs(30), "{closed:?} {unread:?}");
}

#[tokio::test]
async fn an_unread_stream_is_reset_and_the_others_continue() {
    let secure = Secure::start();
    // The window is large enough for the small responses, but not for the document.
    let mut client = secure.connect(1000).await;
    let document = secure.request(Method::GET, "/openapi.json").body(()).unwrap();
    let unread = send(&mut client, document, None).await.into_body();
    let begun = Instant::now();
    let mut given_up = tokio::spawn(read_until_reset(unread));
    let error = loop {
        let request = secure.request(Method::GET, "/healthz").body(()).unwrap();
        assert_eq!(text(send(&mut client, request, None).await).await, "{\"status\":\"ok\"}");
        match timeout(Duration::from_secs(1), &mut given_up).await {
            Ok(error) => break error.unwrap(),
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(30), "the stream was not ended"),
        }
    };
    assert_eq!(error.reason(), Some(Reason::CANCEL), "{error}");
    let request = secure.request(Method::GET, "/healthz").body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 200);
}

#[tokio::test]
async fn the_header_list_is_bounded() {
    let secure = Secure::start();
    let mut client = secure.connect(WINDOW).await;
    let request = secure.request(Method::GET, "/healthz").header("x-long", "x".repeat(40 << 10)).body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 431);
    let request = secure.request(Method::GET, "/healthz").header("x-long", "x".repeat(8 << 10)).body(()).unwrap();
    assert_eq!(send(&mut client, request, None).await.status(), 200);
}
