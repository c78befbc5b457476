//! What holds for every accepted connection: few from one address, and an end for a client that does not read.
//!
//! The operating system watches the writes: where sent bytes are not acknowledged, or the client's receive window stays
//! closed, for [`WRITE_TIMEOUT`], it ends the connection, whatever the server was about to send.

use std::any::Any;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;

use super::client_address::TrustedProxies;

/// How long a connection may make no progress while bytes wait to be sent.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// Descriptors that connections leave to files, the listener and the engine.
const RESERVED_FILES: u64 = 128;

/// Open connections, counted by the address of their peers.
#[derive(Default)]
pub struct Connections {
    by_address: Mutex<HashMap<IpAddr, usize>>,
    /// The most from one address.
    most: usize,
}

/// One connection in the count, until it is dropped.
struct Counted {
    address: IpAddr,
    connections: Arc<Connections>,
}

impl Connections {
    /// At most `most` connections from one address. It does not bound loopback and trusted proxies, which stand for many
    /// clients.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, ..Self::default() })
    }

    /// To be called with each accepted connection; what it puts into `extensions` lives as long as the connection.
    pub fn accept(self: &Arc<Self>, stream: &dyn Any, proxies: &TrustedProxies, extensions: &mut Extensions) {
        let plain = stream.downcast_ref::<TcpStream>();
        let tcp = plain.or_else(|| stream.downcast_ref::<TlsStream<TcpStream>>().map(|stream| stream.get_ref().0));
        let Some(tcp) = tcp else { return };
        limit_writes(tcp);
        let Ok(peer) = tcp.peer_addr().map(|peer| peer.ip().to_canonical()) else { return };
        if peer.is_loopback() || proxies.contain(peer) {
            return;
        }
        match self.count(peer) {
            Some(counted) => drop(extensions.insert(counted)),
            None => {
                tracing::debug!(%peer, "a connection is closed: too many are open from its address");
                let _already_closed = rustix::net::shutdown(tcp, rustix::net::Shutdown::Both);
            }
        }
    }

    fn count(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Counted>> {
        let mut by_address = self.lock();
        let open = by_address.entry(address).or_default();
        if *open >= self.most {
            return None;
        }
        *open += 1;
        Some(Arc::new(Counted { address, connections: Arc::clone(self) }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut by_address = self.connections.lock();
        if let Some(open) = by_address.get_mut(&self.address) {
            *open -= 1;
            if *open == 0 {
                by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(target_os = "linux")]
fn limit_writes(stream: &TcpStream) {
    let timeout = u32::try_from(WRITE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(stream, timeout) {
        tracing::debug!(%error, "a connection has no write timeout");
    }
}

#[cfg(not(target_os = "linux"))]
fn limit_writes(_: &TcpStream) {}

/// Raises the process's limit of open files as far as it may, and returns how many connections that leaves room for.
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

    #[test]
    fn connections_from_one_address_are_bounded_and_come_back() {
        let connections = Connections::new(2);
        let (one, other) = ("192.0.2.1", "2001:db8::1");
        let count = |address: &str| connections.count(address.parse().unwrap());
        let open = [count(one), count(one), count(other)];
        assert!(open.iter().all(Option::is_some));
        assert!(count(one).is_none());
        drop(open);
        assert!(count(one).is_some());
        assert!(connections.lock().is_empty());
    }
}
