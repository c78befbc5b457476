//! Sends a request and follows its redirects.

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use http_body_util::Empty;
use http1::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, LOCATION, PROXY_AUTHORIZATION, RANGE, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http1::{HeaderMap, HeaderValue, StatusCode};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;

use super::address_policy::AddressPolicy;
use super::connector::{ConnectError, Connector};
use super::error::{DownloadError, Refusal};
use super::location::Location;
use super::rate_limit::requested_wait;
use super::settings::Settings;

const MAX_REDIRECTS: usize = 5;

/// The value of an `Authorization` header. It is sent to the origin of the request's URL, and not after a redirect to
/// another one.
#[derive(Clone)]
pub struct Authorization(HeaderValue);

impl Authorization {
    /// `None` if the token has characters that a header cannot have.
    pub fn bearer(token: &str) -> Option<Self> {
        Self::new(&format!("Bearer {token}"))
    }

    fn new(text: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(..)")
    }
}

/// What to get.
#[derive(Clone, Debug)]
pub struct Request {
    pub location: Location,
    pub authorization: Option<Authorization>,
    /// The header `Accept`.
    pub accept: Option<&'static str>,
}

impl Request {
    pub fn new(location: Location, authorization: Option<Authorization>) -> Self {
        Self { location, authorization, accept: None }
    }
}

/// The head of an answer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The URL that answered, after redirects.
    pub location: Location,
    /// The headers of the first answer, which may be a redirect. A hub describes a file there.
    pub first: HeaderMap,
    pub headers: HeaderMap,
    pub status: StatusCode,
}

pub(super) struct Client {
    http: legacy::Client<Connector, Empty<Bytes>>,
    proxies: Arc<Matcher>,
    pub settings: Settings,
}

impl Client {
    pub fn new(policy: AddressPolicy, proxies: Matcher, settings: Settings) -> Self {
        let (policy, proxies) = (Arc::new(policy), Arc::new(proxies));
        let connector = Connector { policy, proxies: Arc::clone(&proxies), timeout: settings.connect_timeout };
        let http = legacy::Client::builder(TokioExecutor::new())
            .retry_canceled_requests(true)
            .pool_max_idle_per_host(settings.connections)
            .build(connector);
        Self { http, proxies, settings }
    }

    /// Sends a GET request and follows redirects. Only 200 and 206 are answers; other statuses are errors.
    pub async fn send(&self, request: &Request, range: Option<&Range<u64>>) -> Result<(Head, Incoming), DownloadError> {
        let (mut location, mut authorization) = (request.location.clone(), request.authorization.as_ref());
        let mut first = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&location, authorization, request.accept, range).await?;
            let (head, body) = response.into_parts();
            let first_headers = first.get_or_insert_with(|| head.headers.clone());
            match head.status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                    check_encoding(&location, &head.headers)?;
                    let (first, headers, status) = (first_headers.clone(), head.headers, head.status);
                    return Ok((Head { location, first, headers, status }, body));
                }
                status if status.is_redirection() => {
                    let next = next_location(&location, &head.headers)?;
                    if next.origin() != location.origin() {
                        authorization = None;
                    }
                    location = next;
                }
                status => return Err(DownloadError::Refused(Box::new(refusal(location, status, &head.headers)))),
            }
        }
        let (from, why) = (request.location.clone(), format!("more than {MAX_REDIRECTS} times"));
        Err(DownloadError::BadRedirect { from, why })
    }

    async fn send_once(
        &self,
        location: &Location,
        authorization: Option<&Authorization>,
        accept: Option<&'static str>,
        range: Option<&Range<u64>>,
    ) -> Result<http1::Response<Incoming>, DownloadError> {
        let mut request = http1::Request::new(Empty::new());
        *request.uri_mut() = location.uri().clone();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("outpost/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(accept) = accept {
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        }
        if let Some(Authorization(value)) = authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        if let Some(range) = range
            && let Ok(value) = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end.saturating_sub(1)))
        {
            headers.insert(RANGE, value);
        }
        let proxy = self.proxies.intercept(location.uri()).filter(|_| !location.origin().is_https);
        if let Some(password) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
            headers.insert(PROXY_AUTHORIZATION, password.clone());
        }
        match tokio::time::timeout(self.settings.head_timeout, self.http.request(request)).await {
            Ok(answered) => answered.map_err(|error| unreachable(location, &error)),
            Err(_) => Err(DownloadError::Stalled { location: location.clone(), limit: self.settings.head_timeout }),
        }
    }
}

/// Ranges of compressed content would not be ranges of the file.
fn check_encoding(location: &Location, headers: &HeaderMap) -> Result<(), DownloadError> {
    match headers.get(CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            Err(DownloadError::protocol(location, format!("it is encoded as {encoding:?}")))
        }
        _ => Ok(()),
    }
}

fn next_location(from: &Location, headers: &HeaderMap) -> Result<Location, DownloadError> {
    let bad = |why: &str| DownloadError::BadRedirect { from: from.clone(), why: why.to_owned() };
    let target = headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(|| bad("to no address"))?;
    let next = from.join(target).map_err(|why| bad(&format!("to an address that {why}")))?;
    match from.origin().is_https && !next.origin().is_https {
        true => Err(bad(&format!("to {next}, which is not encrypted"))),
        false => Ok(next),
    }
}

fn refusal(location: Location, status: StatusCode, headers: &HeaderMap) -> Refusal {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Refusal {
        location,
        status,
        code: text("x-error-code"),
        message: text("x-error-message"),
        challenge: text(WWW_AUTHENTICATE.as_str()),
        wait: requested_wait(headers),
    }
}

fn unreachable(location: &Location, error: &legacy::Error) -> DownloadError {
    let mut cause: &(dyn Error + 'static) = error;
    loop {
        match cause.downcast_ref::<ConnectError>() {
            Some(ConnectError::Private { host, address }) => {
                return DownloadError::PrivateAddress { host: host.clone(), address: *address };
            }
            Some(ConnectError::Setup(why)) => {
                return DownloadError::Setup(format!("no connection to {location}: {why}"));
            }
            Some(ConnectError::Io(_)) | None => {}
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => return DownloadError::Unreachable { location: location.clone(), cause: cause.to_string() },
        }
    }
}
