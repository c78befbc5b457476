//! A proxy between client and server that cuts the connection at a chosen message, or stops to forward.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// When the proxy cuts the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Never,
    /// The client has sent COMMIT, which does not reach the server.
    BeforeCommit,
    /// The server has committed, and its answer does not reach the client.
    AfterCommit,
}

/// What the two directions of all connections share.
#[derive(Default)]
struct State {
    /// Answers are held back since COMMIT.
    is_committing: AtomicBool,
    /// Nothing is forwarded in any direction.
    is_frozen: AtomicBool,
}

pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// A proxy to a port of this machine. Its connections must not use TLS.
    pub fn start(server: u16, cut: Cut) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (from, to, state) = (client.try_clone().unwrap(), server.try_clone().unwrap(), shared.clone());
                thread::spawn(move || {
                    let _ended = forward_requests(&from, &to, cut, &state);
                    close(&from, &to);
                });
                let state = shared.clone();
                thread::spawn(move || {
                    let _ended = forward_answers(&server, &client, cut, &state);
                    close(&server, &client);
                });
            }
        });
        Self { port, state }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on nothing is forwarded, and connections stay open.
    pub fn freeze(&self) {
        self.state.is_frozen.store(true, Ordering::SeqCst);
    }
}

fn close(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        let _closed_already = stream.shutdown(Shutdown::Both);
    }
}

fn forward_requests(mut client: &TcpStream, mut server: &TcpStream, cut: Cut, state: &State) -> io::Result<()> {
    // The first message has no type.
    let mut message = read_body(client)?;
    loop {
        let is_commit = message.starts_with(b"Q") && message.ends_with(b"COMMIT\0");
        if is_commit && cut == Cut::BeforeCommit {
            return Ok(());
        }
        if is_commit && cut == Cut::AfterCommit {
            state.is_committing.store(true, Ordering::SeqCst);
        }
        if !state.is_frozen.load(Ordering::SeqCst) {
            server.write_all(&message)?;
        }
        message = read_message(&mut client)?;
    }
}

fn forward_answers(mut server: &TcpStream, mut client: &TcpStream, cut: Cut, state: &State) -> io::Result<()> {
    loop {
        let message = read_message(&mut server)?;
        let holds_back = cut == Cut::AfterCommit && state.is_committing.load(Ordering::SeqCst);
        if holds_back && message.starts_with(b"C") && message.ends_with(b"COMMIT\0") {
            return Ok(());
        }
        if !holds_back && !state.is_frozen.load(Ordering::SeqCst) {
            client.write_all(&message)?;
        }
    }
}

/// A message: type, length and body.
fn read_message(stream: &mut &TcpStream) -> io::Result<Vec<u8>> {
    let mut kind = vec![0];
    stream.read_exact(&mut kind)?;
    kind.extend(read_body(stream)?);
    Ok(kind)
}

/// A length, which counts itself, and the body.
fn read_body(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut message = length.to_vec();
    message.resize(u32::from_be_bytes(length) as usize, 0);
    stream.read_exact(&mut message[4..])?;
    Ok(message)
}
