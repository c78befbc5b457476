//! A small HTTP server that stands in for a hub: it serves files with ranges, records every request, and injects the
//! faults that a test requests. It also works as a proxy.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Path and query; the whole URL if the server is used as a proxy.
    pub target: String,
    /// Names are in lower case.
    pub headers: HashMap<String, String>,
}

impl Recorded {
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The first and last byte of its range.
    pub fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

/// A fault of an answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Closes the connection after this many bytes of the body.
    CutAfter(usize),
    /// Sends nothing more after this many bytes of the body, until the client closes the connection.
    StallAfter(usize),
    /// One bit of the body is wrong.
    WrongBytes,
    /// `Content-Range` gives a file that is longer.
    WrongRange,
    /// The whole file is sent although a range was asked for.
    IgnoreRange,
    /// The body is said to be compressed.
    Gzip,
    Status(u16, Vec<(&'static str, String)>),
}

/// The response of a path.
#[derive(Clone)]
enum Page {
    File {
        content: Arc<Vec<u8>>,
        headers: Vec<(&'static str, String)>,
    },
    Redirect {
        to: String,
        headers: Vec<(&'static str, String)>,
    },
    /// Only with this `Authorization` header; else the status with these headers.
    Guarded {
        authorization: String,
        refusal: (u16, Vec<(&'static str, String)>),
        page: Box<Page>,
    },
}

#[derive(Default)]
struct State {
    pages: Mutex<HashMap<String, Page>>,
    /// The faults of the next requests, by path.
    faults: Mutex<HashMap<String, VecDeque<Fault>>>,
    /// The fault of all requests, by path.
    lasting: Mutex<HashMap<String, Fault>>,
    requests: Mutex<Vec<Recorded>>,
    connections: Mutex<Vec<TcpStream>>,
    is_closed: AtomicBool,
}

/// The server. It ends when it is dropped.
pub struct HubServer {
    pub address: SocketAddr,
    state: Arc<State>,
    tls: bool,
}

impl HubServer {
    pub fn start() -> Self {
        Self::listen(None)
    }

    /// A server with this certificate.
    pub fn start_tls(config: Arc<rustls::ServerConfig>) -> Self {
        Self::listen(Some(config))
    }

    fn listen(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let (accepting, config) = (Arc::clone(&state), tls.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connections.lock().unwrap().push(stream.try_clone().unwrap());
                let (state, config) = (Arc::clone(&accepting), config.clone());
                let closing = stream.try_clone().unwrap();
                thread::spawn(move || {
                    // A client that leaves is no error of the test.
                    let _ended = match config {
                        None => serve(stream, &state),
                        Some(config) => {
                            let session = rustls::ServerConnection::new(config).unwrap();
                            serve(rustls::StreamOwned::new(session, stream), &state)
                        }
                    };
                    let _gone = closing.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, state, tls: tls.is_some() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.tls { "https" } else { "http" }, self.address)
    }

    pub fn add(&self, path: &str, content: impl Into<Vec<u8>>) {
        self.add_with_headers(path, content, Vec::new());
    }

    pub fn add_with_headers(&self, path: &str, content: impl Into<Vec<u8>>, headers: Vec<(&'static str, String)>) {
        self.set(path, Page::File { content: Arc::new(content.into()), headers });
    }

    pub fn redirect(&self, path: &str, to: String, headers: Vec<(&'static str, String)>) {
        self.set(path, Page::Redirect { to, headers });
    }

    /// From now on, the path needs this `Authorization` header. Others are refused with a status and headers.
    pub fn guard(&self, path: &str, authorization: &str, refusal: (u16, Vec<(&'static str, String)>)) {
        let page = Box::new(self.state.pages.lock().unwrap()[path].clone());
        self.set(path, Page::Guarded { authorization: authorization.to_owned(), refusal, page });
    }

    fn set(&self, path: &str, page: Page) {
        self.state.pages.lock().unwrap().insert(path.to_owned(), page);
    }

    /// The next requests of the path have these faults, one each.
    pub fn fail_next(&self, path: &str, faults: impl IntoIterator<Item = Fault>) {
        self.state.faults.lock().unwrap().entry(path.to_owned()).or_default().extend(faults);
    }

    /// All requests of the path have this fault, or none any more.
    pub fn fail_always(&self, path: &str, fault: Option<Fault>) {
        let mut lasting = self.state.lasting.lock().unwrap();
        match fault {
            Some(fault) => drop(lasting.insert(path.to_owned(), fault)),
            None => drop(lasting.remove(path)),
        }
    }

    pub fn requests(&self) -> Vec<Recorded> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The requests for a path.
    pub fn requests_for(&self, path: &str) -> Vec<Recorded> {
        self.requests().into_iter().filter(|request| request.path() == path).collect()
    }

    /// How many connections clients have opened.
    pub fn accepted(&self) -> usize {
        self.state.connections.lock().unwrap().len()
    }

    pub fn forget_requests(&self) {
        self.state.requests.lock().unwrap().clear();
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts, and ends the others.
        let _woken = TcpStream::connect(self.address);
        for connection in self.state.connections.lock().unwrap().iter() {
            let _gone = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Answers the requests of a connection.
fn serve(stream: impl Read + Write + Send + 'static, state: &State) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream)? {
        state.requests.lock().unwrap().push(request.clone());
        let fault = state.faults.lock().unwrap().get_mut(request.path()).and_then(VecDeque::pop_front);
        let fault = fault.or_else(|| state.lasting.lock().unwrap().get(request.path()).cloned());
        let page = state.pages.lock().unwrap().get(request.path()).cloned();
        let is_open = answer(&mut stream, &request, page, fault)?;
        stream.get_mut().flush()?;
        if !is_open {
            return Ok(());
        }
    }
    Ok(())
}

fn read_request(stream: &mut impl BufRead) -> io::Result<Option<Recorded>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let target = words.nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return Ok(Some(Recorded { target, headers })),
        }
    }
}

/// Returns whether the connection stays open.
fn answer<S: Read + Write>(
    stream: &mut BufReader<S>,
    request: &Recorded,
    page: Option<Page>,
    fault: Option<Fault>,
) -> io::Result<bool> {
    if let Some(Fault::Status(status, headers)) = fault {
        return head(stream, status, &headers, 0).map(|()| true);
    }
    match page {
        None => head(stream, 404, &[], 0).map(|()| true),
        Some(Page::Redirect { to, mut headers }) => {
            headers.push(("Location", to));
            head(stream, 302, &headers, 0).map(|()| true)
        }
        Some(Page::Guarded { authorization, refusal: (status, headers), page }) => {
            match request.header("authorization") == Some(&authorization) {
                true => answer(stream, request, Some(*page), fault),
                false => head(stream, status, &headers, 0).map(|()| true),
            }
        }
        Some(Page::File { content, headers }) => send_file(stream, request, &content, headers, fault),
    }
}

fn send_file<S: Read + Write>(
    stream: &mut BufReader<S>,
    request: &Recorded,
    content: &[u8],
    mut headers: Vec<(&'static str, String)>,
    fault: Option<Fault>,
) -> io::Result<bool> {
    let range = request.range().filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
    let (status, mut body) = match range {
        Some((first, last)) => {
            let last = last.min(content.len().saturating_sub(1));
            let total = content.len() + usize::from(matches!(fault, Some(Fault::WrongRange)));
            headers.push(("Content-Range", format!("bytes {first}-{last}/{total}")));
            (206, Cow::Borrowed(&content[first..=last]))
        }
        None => (200, Cow::Borrowed(content)),
    };
    if matches!(fault, Some(Fault::Gzip)) {
        headers.push(("Content-Encoding", "gzip".to_owned()));
    }
    if matches!(fault, Some(Fault::WrongBytes)) {
        body.to_mut()[0] ^= 1;
    }
    head(stream, status, &headers, body.len())?;
    match fault {
        Some(Fault::CutAfter(bytes)) => {
            stream.get_mut().write_all(&body[..bytes.min(body.len())])?;
            Ok(false)
        }
        Some(Fault::StallAfter(bytes)) => {
            stream.get_mut().write_all(&body[..bytes.min(body.len())])?;
            stream.get_mut().flush()?;
            // Returns when the client closes the connection.
            io::copy(stream, &mut io::sink())?;
            Ok(false)
        }
        _ => stream.get_mut().write_all(&body).map(|()| true),
    }
}

fn head<S: Read + Write>(
    stream: &mut BufReader<S>,
    status: u16,
    headers: &[(&str, String)],
    length: usize,
) -> io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    stream.get_mut().write_all(format!("{text}\r\n").as_bytes())
}
