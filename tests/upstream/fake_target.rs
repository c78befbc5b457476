//! A target of upstream models that does what a test says: a small HTTP/1.1 server with threads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// A request that a target has received.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    /// In lowercase, with their values.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The connection of a request, to write the response to.
pub struct Reply<'a>(&'a mut TcpStream);

impl Reply<'_> {
    /// Writes bytes as they are.
    pub fn raw(&mut self, text: &str) {
        // A client that has left is not an error of the target.
        let _ = self.try_raw(text.as_bytes());
    }

    /// Writes bytes as they are. Returns `false` if the client has closed the connection.
    pub fn try_raw(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// A complete response.
    pub fn status(&mut self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        self.raw(&format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n{headers}\r\n{body}"));
    }

    pub fn json(&mut self, body: &Value) {
        self.status(200, "content-type: application/json\r\n", &body.to_string());
    }

    /// The head of an event stream, whose body ends with the connection.
    pub fn begin_events(&mut self) {
        self.raw("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    }

    pub fn event(&mut self, event: &Value) {
        self.raw(&format!("data: {event}\n\n"));
    }

    /// A whole streamed chat with these parts of text and this usage.
    pub fn chat(&mut self, parts: &[&str], usage: Option<Value>) {
        self.begin_events();
        for part in parts {
            self.event(&chunk(part, None));
        }
        self.event(&chunk("", Some("stop")));
        if let Some(usage) = usage {
            self.event(&serde_json::json!({ "choices": [], "usage": usage }));
        }
        self.raw("data: [DONE]\n\n");
    }

    /// Blocks until the client closes the connection.
    pub fn wait_closed(&mut self) {
        let mut byte = [0];
        while self.0.read(&mut byte).is_ok_and(|count| count > 0) {}
    }
}

/// A chunk of a streamed chat.
pub fn chunk(text: &str, finish: Option<&str>) -> Value {
    serde_json::json!({ "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": finish }] })
}

type Script = dyn Fn(usize, &Received, &mut Reply<'_>) + Send + Sync;

/// A running target. It accepts connections until the test ends.
pub struct FakeTarget {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl FakeTarget {
    /// `script` answers each request, given its number from 0. The connection closes afterwards, unless the response has
    /// said otherwise: the next request on it is then answered.
    pub fn start(script: impl Fn(usize, &Received, &mut Reply<'_>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let (script, log, count): (Arc<Script>, _, _) =
            (Arc::new(script), Arc::clone(&received), Arc::new(AtomicUsize::new(0)));
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (script, log, count) = (Arc::clone(&script), Arc::clone(&log), Arc::clone(&count));
                std::thread::spawn(move || serve(connection, &*script, &log, &count));
            }
        });
        Self { address, received }
    }

    /// A target that answers each chat with this text.
    pub fn chatting(text: &'static str) -> Self {
        Self::start(move |_, _, reply| {
            reply.chat(&[text], Some(serde_json::json!({ "prompt_tokens": 3, "completion_tokens": 2 })))
        })
    }

    pub fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    /// The last request, which must have come.
    pub fn last(&self) -> Received {
        self.received.lock().unwrap().last().cloned().expect("a request")
    }
}

fn serve(mut connection: TcpStream, script: &Script, log: &Mutex<Vec<Received>>, count: &AtomicUsize) {
    let Ok(clone) = connection.try_clone() else { return };
    let mut reader = BufReader::new(clone);
    while let Some(request) = read(&mut reader) {
        let number = count.fetch_add(1, Ordering::SeqCst);
        log.lock().unwrap().push(request.clone());
        script(number, &request, &mut Reply(&mut connection));
        if request.path.ends_with("/completions") {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let request = Received { path, headers, body: Vec::new() };
    let body = match request.header("content-length") {
        Some(length) => {
            let mut body = vec![0; length.parse().ok()?];
            reader.read_exact(&mut body).ok()?;
            body
        }
        None => read_chunks(reader)?,
    };
    Some(Received { body, ..request })
}

fn read_chunks(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk).ok()?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Some(body);
        }
    }
}
