//! Allowed host names.
//!
//! Protects against DNS rebinding: a malicious site can let its own name resolve to this server's address and then send
//! requests as if they were same-origin. A name is therefore allowed only if it cannot be registered in the public DNS,
//! or if the operator configured it. With TLS the certificate protects against this, and any name is allowed.
//!
//! Ollama checks names only on loopback. Here a plain HTTP server that other machines can reach is protected as well,
//! and the error names the option that allows a name. With TLS, operators need not configure their own names a second
//! time.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Uri;
use actix_web::http::header::{self, HeaderMap};
use actix_web::middleware::Next;
use actix_web::web::Data;
use actix_web::{Error as ActixError, HttpRequest};
use arc_swap::ArcSwap;

use crate::display::shorten;
use crate::error::{Code, Error};

/// Suffixes that cannot be registered in the public DNS (RFC 6761, 6762, 8375, 9476, and common private ones).
const PRIVATE_ZONES: &[&str] = &[
    "localhost",
    "local",
    "internal",
    "home.arpa",
    "lan",
    "home",
    "corp",
    "intranet",
    "private",
    "test",
    "svc",
    "alt",
];

/// The host names that the server accepts. They can be replaced while it runs.
#[derive(Debug)]
pub struct AllowedHosts(ArcSwap<Accepted>);

#[derive(Debug)]
enum Accepted {
    Any,
    /// Addresses, private names, and these.
    Named(Vec<String>),
}

impl AllowedHosts {
    /// Any host: those of a server with TLS.
    pub fn any() -> Self {
        Self(ArcSwap::from_pointee(Accepted::Any))
    }

    /// Allowed hosts of a plain HTTP server. `public`: its public URL.
    pub fn named(allowed: &[String], public: Option<&str>) -> Self {
        Self(ArcSwap::from_pointee(Accepted::named(allowed, public)))
    }

    /// Replaces the names of [`Self::named`].
    pub fn rename(&self, allowed: &[String], public: Option<&str>) {
        self.0.store(Arc::new(Accepted::named(allowed, public)));
    }

    /// True if the request names this machine by a loopback name or by a name that the operator has configured.
    pub fn is_local(&self, request: &HttpRequest) -> bool {
        let accepted = self.0.load();
        let named = |authority: &str| match &**accepted {
            Accepted::Any => false,
            Accepted::Named(named) => named.iter().any(|one| one.eq_ignore_ascii_case(name(authority))),
        };
        let mut authorities = authorities(request.uri(), request.headers()).peekable();
        authorities.peek().is_some() && authorities.all(|authority| is_loopback(authority) || named(authority))
    }

    /// Decides about a request for this authority (`name` or `name:port`).
    fn allows(&self, authority: &str) -> bool {
        let accepted = self.0.load();
        let Accepted::Named(named) = &**accepted else { return true };
        let host = name(authority);
        let host = host.strip_suffix('.').unwrap_or(host);
        if host.parse::<IpAddr>().is_ok() {
            return true;
        }
        let host = &*host.to_ascii_lowercase();
        let within = |zone: &str| host.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        !host.contains('.') && !host.is_empty()
            || PRIVATE_ZONES.iter().any(|zone| within(zone))
            || named.iter().any(|one| one == host)
    }
}

impl Accepted {
    fn named(allowed: &[String], public: Option<&str>) -> Self {
        let public =
            public.and_then(|url| url.split_once("://")).map(|(_, rest)| rest.split('/').next().unwrap_or(rest));
        Self::Named(
            allowed.iter().map(String::as_str).chain(public).map(|one| name(one).to_ascii_lowercase()).collect(),
        )
    }
}

/// Whether an authority is this machine: a loopback address, or `localhost`.
fn is_loopback(authority: &str) -> bool {
    let host = name(authority).to_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// An authority without its port and brackets.
fn name(authority: &str) -> &str {
    if let Some((address, _)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match authority.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// The names that a request is for. HTTP/2 has the name in the request's target, and so may HTTP/1.1.
fn authorities<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
    let target = uri.authority().map(|authority| authority.as_str());
    let sent = headers.get_all(header::HOST).map(|value| value.to_str().unwrap_or_default());
    target.into_iter().chain(sent)
}

/// Middleware around all routes: 421 for a host that is not allowed.
pub async fn check_host<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<actix_web::body::EitherBody<B>>, ActixError> {
    let foreign = {
        let hosts = request.app_data::<Data<AllowedHosts>>();
        let mut names = authorities(request.uri(), request.headers());
        let foreign = hosts.and_then(|hosts| names.find(|name| !hosts.allows(name)));
        foreign.map(|one| shorten(name(one)).to_string())
    };
    let Some(name) = foreign else { return Ok(next.call(request).await?.map_into_left_body()) };
    let text = format!(
        "This server does not answer to the name '{name}'. If the name is its own, have it started with --allowed-host {name}, or with --public-url."
    );
    Ok(request.error_response(Error::new(Code::Misdirected, text)).map_into_right_body())
}

#[cfg(test)]
mod tests {
    use super::AllowedHosts;

    #[test]
    fn only_names_that_cannot_be_registered_publicly_are_allowed() {
        let hosts = AllowedHosts::named(&["ai.example.org".to_owned()], Some("https://Gpu.Example.com:8443/ai"));
        for good in [
            "localhost",
            "localhost:8080",
            "a.localhost",
            "127.0.0.1:80",
            "[::1]:8080",
            "::1",
            "10.1.2.3",
            "workstation",
            "box.local",
            "box.lan:1",
            "ollama.internal.",
            "AI.example.org",
            "ai.example.org:443",
            "gpu.example.com",
            "outpost.ai.svc.cluster.local",
        ] {
            assert!(hosts.allows(good), "{good}");
        }
        for bad in [
            "example.org",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "xlocal.example",
            "",
            "notlocalhost.com",
            "ai.example.org.evil.example",
            "127.0.0.1.nip.io",
            "a.b:x",
        ] {
            assert!(!hosts.allows(bad), "{bad}");
        }
        assert!(AllowedHosts::any().allows("evil.example"));
        hosts.rename(&["other.example".to_owned()], None);
        assert!(hosts.allows("other.example") && hosts.allows("localhost") && !hosts.allows("ai.example.org"));
    }
}
