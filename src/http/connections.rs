//! The server's open connections: their limits, and which one is closed to admit another.
//!
//! A connection is anonymous until a request with a valid API key arrives on it. Anonymous connections may take half of
//! the slots, and connections with a key seven eighths. When a limit is reached, the oldest anonymous connection is
//! closed instead of refusing the new one. A client that only holds connections open loses them. A client that sends
//! its request finishes soon or is authenticated soon. A new connection is refused only if its address has used up its
//! limit with connections that have a key.
//!
//! [`Stream`] is the socket for the layers above. It returns an error once this module has closed its connection.
//! The operating system monitors writes. If sent bytes are not acknowledged, or the client's receive window stays
//! closed, for [`WRITE_TIMEOUT`], it ends the connection.
//!
//! Refusing new clients would let the connections that hold the slots keep them indefinitely. The rule is "oldest" and
//! not "longest idle", because a client can look busy by sending a byte now and then. Health probes fit into what
//! neither kind of connection may take. `TCP_USER_TIMEOUT` (Linux only) covers unacknowledged bytes and closed receive
//! windows for every response, with and without TLS; a timer in the HTTP layer would have to wrap every body.
//! `TCP_NOTSENT_LOWAT` limits the unsent data that the kernel buffers for one connection to 64 KiB, without limiting
//! throughput.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use actix_web::{HttpMessage, HttpRequest};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::client_address::TrustedProxies;
use crate::ip_network::ClientPrefix;

/// How long a connection may make no progress while bytes wait to be sent.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection may be idle. Also limits the time for the head of each request after the first.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How often idle connections are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes that the kernel buffers beyond what it has sent.
const MAX_UNSENT: u32 = 64 << 10;

/// File descriptors reserved for files, the listener and the engine.
const RESERVED_FILES: u64 = 128;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
struct ConnectionLimits {
    total: usize,
    anonymous: usize,
    authenticated: usize,
    per_address: usize,
}

impl ConnectionLimits {
    /// A sixteenth of the listener's limit is reserved for connections that are closed but not yet dropped.
    fn of(accepted: usize) -> Self {
        let total = accepted - accepted.div_ceil(16);
        Self {
            total,
            anonymous: total.div_ceil(2),
            authenticated: total - total.div_ceil(8),
            per_address: total.div_ceil(8),
        }
    }
}

/// All open connections.
pub struct Connections {
    bounds: ConnectionLimits,
    table: Mutex<Table>,
    begun: Instant,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// Oldest first.
    anonymous: BTreeMap<u64, Arc<Connection>>,
    /// Connections on which a valid key has arrived.
    authenticated: BTreeMap<u64, Arc<Connection>>,
    /// Only limited addresses. Loopback and trusted proxies represent many clients and are not limited.
    by_prefix: HashMap<ClientPrefix, usize>,
}

/// The state of one connection.
pub struct Connection {
    number: u64,
    prefix: Option<ClientPrefix>,
    connections: Weak<Connections>,
    authenticated: AtomicBool,
    closed: AtomicBool,
    /// Requests whose responses are not complete.
    running: AtomicUsize,
    /// When the connection was opened or its last request ended, in milliseconds after [`Connections::begun`].
    idle_since: AtomicU64,
    /// When its response must be sent, in milliseconds after [`Connections::begun`].
    send_by: AtomicU64,
    waker: AtomicWaker,
}

/// A socket that [`Connections`] can close.
pub struct Stream {
    tcp: TcpStream,
    connection: Arc<Connection>,
}

/// The time in which a response must be sent, until it is dropped.
///
/// Over HTTP/1, nothing asks for the next part of a body while the client does not read, so the sweep closes the
/// connection. Over HTTP/2, the code that sends the parts asks, because each part has a timeout of its own.
pub struct SendLimit {
    end: Option<Instant>,
    /// Of HTTP/1, which sends one response at a time.
    connection: Option<Arc<Connection>>,
}

/// A request on a connection, until its response is sent or dropped.
pub struct ActiveRequest(Arc<Connection>);

impl Connections {
    /// The limits for a listener that accepts this many connections.
    pub fn new(accepted: usize) -> Arc<Self> {
        Arc::new(Self { bounds: ConnectionLimits::of(accepted), table: Mutex::default(), begun: Instant::now() })
    }

    /// Admits an accepted socket, and closes another connection if needed. `None` if its address has too many
    /// connections, all with a key.
    pub fn accept(self: &Arc<Self>, tcp: TcpStream, proxies: &TrustedProxies) -> Option<(Stream, Option<SocketAddr>)> {
        set_options(&tcp);
        let peer = tcp.peer_addr().ok();
        let bounded = peer.map(|peer| peer.ip().to_canonical());
        let bounded = bounded.filter(|address| !address.is_loopback() && !proxies.contain(*address));
        let Some(connection) = self.open(bounded) else {
            tracing::debug!(?peer, "a connection is refused: too many are open from its address");
            return None;
        };
        Some((Stream { tcp, connection }, peer))
    }

    pub(super) fn open(self: &Arc<Self>, bounded: Option<IpAddr>) -> Option<Arc<Connection>> {
        let ConnectionLimits { total, anonymous, per_address, .. } = self.bounds;
        let prefix = bounded.map(ClientPrefix::of);
        let mut table = self.lock();
        if let Some(prefix) = prefix
            && table.by_prefix.get(&prefix).is_some_and(|open| *open >= per_address)
        {
            let oldest = table.anonymous.values().find(|one| one.prefix == Some(prefix)).cloned()?;
            table.close(&oldest, "a newer one from its address needs its slot");
        }
        while table.anonymous.len() >= anonymous || table.anonymous.len() + table.authenticated.len() >= total {
            let Some(oldest) = table.anonymous.values().next().cloned() else { break };
            table.close(&oldest, "a newer one needs its slot");
        }
        let number = table.next;
        table.next += 1;
        let connection = Arc::new(Connection {
            number,
            prefix,
            connections: Arc::downgrade(self),
            authenticated: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            idle_since: AtomicU64::new(self.now()),
            send_by: AtomicU64::new(u64::MAX),
            waker: AtomicWaker::new(),
        });
        table.anonymous.insert(number, connection.clone());
        if let Some(prefix) = prefix {
            *table.by_prefix.entry(prefix).or_default() += 1;
        }
        Some(connection)
    }

    /// Moves a connection to those with a key. If their limit is reached, closes the one that was idle longest. If none
    /// is idle, the connection stays anonymous.
    fn mark_authenticated(&self, connection: &Connection) {
        let mut table = self.lock();
        if !table.anonymous.contains_key(&connection.number) {
            return;
        }
        if table.authenticated.len() >= self.bounds.authenticated {
            let idle = table.authenticated.values().filter(|one| one.is_idle());
            let Some(longest) = idle.min_by_key(|one| one.idle_since.load(Ordering::Relaxed)).cloned() else {
                return;
            };
            table.close(&longest, "that of another client needs its slot");
        }
        if let Some(moved) = table.anonymous.remove(&connection.number) {
            moved.authenticated.store(true, Ordering::Relaxed);
            table.authenticated.insert(moved.number, moved);
        }
    }

    /// Closes idle connections every [`SWEEP_INTERVAL`], until the server is dropped.
    pub async fn sweep(connections: Weak<Self>) {
        loop {
            actix_web::rt::time::sleep(SWEEP_INTERVAL).await;
            let Some(connections) = connections.upgrade() else { return };
            let timeout = u64::try_from(IDLE_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
            connections.close_idle_since(connections.now().saturating_sub(timeout));
            connections.close_overdue(connections.now());
        }
    }

    fn close_idle_since(&self, limit: u64) {
        let mut table = self.lock();
        let connections = table.anonymous.values().chain(table.authenticated.values());
        let is_idle_too_long = |one: &&Arc<Connection>| one.is_idle() && one.idle_since.load(Ordering::Relaxed) < limit;
        let idle: Vec<_> = connections.filter(is_idle_too_long).cloned().collect();
        idle.iter().for_each(|one| table.close(one, "it was idle too long"));
    }

    /// Closes connections whose response should be sent by now.
    fn close_overdue(&self, now: u64) {
        let mut table = self.lock();
        let connections = table.anonymous.values().chain(table.authenticated.values());
        let overdue: Vec<_> = connections.filter(|one| one.send_by.load(Ordering::Relaxed) < now).cloned().collect();
        overdue.iter().for_each(|one| table.close(one, "its client reads a large response too slowly"));
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn close(&mut self, connection: &Connection, why: &str) {
        self.remove(connection);
        tracing::debug!(number = connection.number, "a connection is closed: {why}");
        connection.closed.store(true, Ordering::Release);
        connection.waker.wake();
    }

    fn remove(&mut self, connection: &Connection) {
        let Self { anonymous, authenticated, by_prefix, .. } = self;
        if anonymous.remove(&connection.number).or_else(|| authenticated.remove(&connection.number)).is_none() {
            return;
        }
        if let Some(prefix) = connection.prefix
            && let Some(open) = by_prefix.get_mut(&prefix)
        {
            *open -= 1;
            if *open == 0 {
                by_prefix.remove(&prefix);
            }
        }
    }
}

impl Connection {
    /// The connection of a request. HTTP/1 stores it with the connection, HTTP/2 with each request.
    pub fn of(request: &HttpRequest) -> Option<Arc<Self>> {
        request.conn_data::<Arc<Self>>().cloned().or_else(|| request.extensions().get::<Arc<Self>>().cloned())
    }

    /// Records that a request with a valid API key arrived on this connection.
    pub fn authenticated(&self) {
        if !self.authenticated.load(Ordering::Relaxed)
            && let Some(connections) = self.connections.upgrade()
        {
            connections.mark_authenticated(self);
        }
    }

    /// Records that a request begins.
    pub fn run(self: &Arc<Self>) -> ActiveRequest {
        self.running.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    /// A number that no other connection of this process has.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn is_idle(&self) -> bool {
        self.running.load(Ordering::Relaxed) == 0
    }

    /// Returns an error once the connection is closed. Until then, registers the task to be woken when it is.
    pub fn check(&self, cx: &Context<'_>) -> io::Result<()> {
        self.waker.register(cx.waker());
        match self.closed.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl SendLimit {
    /// `time`: `None` for a stream, whose time is not known.
    pub fn new(time: Option<Duration>, connection: Option<Arc<Connection>>) -> Self {
        if let (Some(time), Some(connection)) = (time, &connection)
            && let Some(connections) = connection.connections.upgrade()
        {
            let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            connection.send_by.store(connections.now().saturating_add(millis), Ordering::Relaxed);
        }
        Self { end: time.and_then(|time| Instant::now().checked_add(time)), connection }
    }

    /// True once the time is over.
    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end < Instant::now())
    }
}

impl Drop for SendLimit {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.send_by.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if let Some(connections) = self.0.connections.upgrade() {
            self.0.idle_since.store(connections.now(), Ordering::Relaxed);
        }
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stream {
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(connections) = self.connection.connections.upgrade() {
            connections.lock().remove(&self.connection);
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.connection.check(cx)?;
        Pin::new(&mut this.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.connection.check(cx)?;
        Pin::new(&mut this.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.connection.check(cx)?;
        Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.connection.check(cx)?;
        Pin::new(&mut this.tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.connection.check(cx)?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

fn set_options(tcp: &TcpStream) {
    // A response is written in pieces. The last one must not wait until the client has acknowledged the others.
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%error, "small packets of a connection are held back");
    }
    #[cfg(target_os = "linux")]
    {
        let timeout = u32::try_from(WRITE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(tcp, timeout) {
            tracing::debug!(%error, "a connection has no write timeout");
        }
        if let Err(error) = socket2::SockRef::from(tcp).set_tcp_notsent_lowat(MAX_UNSENT) {
            tracing::debug!(%error, "unsent bytes of a connection are not bounded");
        }
    }
}

/// Raises the process's limit of open files as far as allowed. Returns the number of connections that fit.
pub fn raise_file_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            limit.current
        }
    };
    let left = current.unwrap_or(u64::MAX).saturating_sub(RESERVED_FILES);
    usize::try_from(left).unwrap_or(usize::MAX).max(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(connections: &Arc<Connections>, address: Option<&str>) -> Option<Arc<Connection>> {
        connections.open(address.map(|address| address.parse().unwrap()))
    }

    fn is_closed(connection: &Connection) -> bool {
        connection.closed.load(Ordering::Relaxed)
    }

    fn leave(connections: &Connections, connection: &Connection) {
        connections.lock().remove(connection);
    }

    /// Limits: 15 in total, 8 anonymous, 13 with a key, 2 per address.
    fn connections() -> Arc<Connections> {
        let connections = Connections::new(16);
        let ConnectionLimits { total, anonymous, authenticated, per_address } = connections.bounds;
        assert_eq!((total, anonymous, authenticated, per_address), (15, 8, 13, 2));
        connections
    }

    #[tokio::test]
    async fn the_oldest_anonymous_connection_is_closed_and_clients_with_a_key_stay() {
        let connections = connections();
        let authenticated = open(&connections, None).unwrap();
        authenticated.authenticated();
        let anonymous: Vec<_> = (0..20).map(|_| open(&connections, None).unwrap()).collect();
        assert!(!is_closed(&authenticated));
        let closed: Vec<bool> = anonymous.iter().map(|one| is_closed(one)).collect();
        assert_eq!(closed, [[true; 12].as_slice(), &[false; 8]].concat());
        anonymous.iter().for_each(|one| leave(&connections, one));
        leave(&connections, &authenticated);
        let table = connections.lock();
        assert!(table.anonymous.is_empty() && table.authenticated.is_empty() && table.by_prefix.is_empty());
    }

    #[tokio::test]
    async fn clients_with_a_key_leave_slots_for_anonymous_ones() {
        let connections = connections();
        let authenticated: Vec<_> =
            (0..13).map(|_| open(&connections, None).unwrap()).inspect(|one| one.authenticated()).collect();
        let running: Vec<ActiveRequest> = authenticated.iter().map(|one| one.run()).collect();
        let more = open(&connections, None).unwrap();
        more.authenticated();
        assert!(
            !more.authenticated.load(Ordering::Relaxed) && !authenticated.iter().any(|one| is_closed(one)),
            "every connection is busy"
        );
        let newer: Vec<_> = (0..2).map(|_| open(&connections, None).unwrap()).collect();
        assert!(is_closed(&more) && !newer.iter().any(|one| is_closed(one)));
        drop(running);
        newer[1].authenticated();
        assert!(
            newer[1].authenticated.load(Ordering::Relaxed)
                && authenticated.iter().filter(|one| is_closed(one)).count() == 1
        );
    }

    #[tokio::test]
    async fn an_address_replaces_only_its_own_connections_without_a_key() {
        let connections = connections();
        let (one, network) = (Some("192.0.2.1"), Some("2001:db8::1"));
        let first = open(&connections, one).unwrap();
        let other = open(&connections, network).unwrap();
        let second = open(&connections, one).unwrap();
        let third = open(&connections, one).unwrap();
        assert_eq!([&first, &other, &second, &third].map(|one| is_closed(one)), [true, false, false, false]);
        [&second, &third].iter().for_each(|one| one.authenticated());
        assert!(open(&connections, one).is_none());
        assert!(open(&connections, Some("2001:db8::2")).is_some());
        open(&connections, Some("2001:db8::3")).unwrap();
        assert!(is_closed(&other), "an IPv6 network is one address");
        leave(&connections, &second);
        assert!(open(&connections, one).is_some());
    }

    #[tokio::test]
    async fn a_connection_whose_response_is_overdue_ends() {
        let connections = connections();
        let [overdue, in_time, sent] = [(); 3].map(|()| open(&connections, None).unwrap());
        let limits = [&overdue, &in_time].map(|one| {
            let seconds = if Arc::ptr_eq(one, &overdue) { 10 } else { 30 };
            SendLimit::new(Some(Duration::from_secs(seconds)), Some(Arc::clone(one)))
        });
        drop(SendLimit::new(Some(Duration::from_secs(10)), Some(Arc::clone(&sent))));
        assert!(!limits[0].is_over());
        connections.close_overdue(connections.now() + 20_000);
        assert_eq!([&overdue, &in_time, &sent].map(|one| is_closed(one)), [true, false, false]);
    }

    #[tokio::test]
    async fn a_connection_without_a_request_ends() {
        let connections = connections();
        let [idle, busy, later] = [(); 3].map(|()| open(&connections, None).unwrap());
        later.idle_since.store(50, Ordering::Relaxed);
        let running = busy.run();
        connections.close_idle_since(50);
        assert_eq!([&idle, &busy, &later].map(|one| is_closed(one)), [true, false, false]);
        drop(running);
        connections.close_idle_since(u64::MAX);
        assert!(is_closed(&busy) && is_closed(&later));
    }
}
