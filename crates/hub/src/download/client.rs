//! Sends a request and follows its redirects.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use http_body_util::Empty;
use http1::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, IF_RANGE, LOCATION, PROXY_AUTHORIZATION, RANGE,
    USER_AGENT, WWW_AUTHENTICATE,
};
use http1::{HeaderMap, HeaderValue, StatusCode};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;

use super::address_policy::AddressPolicy;
use super::authorization::Authorization;
use super::body_reader::read_all;
use super::connector::{ConnectError, Connector};
use super::error::{DownloadError, Refusal};
use super::location::Location;
use super::rate_limit::requested_wait;
use super::registry_login::{Challenge, MAX_TOKEN_ANSWER_BYTES, RegistryLogin, read_token};
use super::settings::Settings;

const MAX_REDIRECTS: usize = 5;

/// What to get.
#[derive(Clone, Debug)]
pub struct Request {
    pub location: Location,
    pub authorization: Option<Authorization>,
    /// Gets tokens of a registry, instead of [`Self::authorization`].
    pub login: Option<Arc<RegistryLogin>>,
    /// The header `Accept`.
    pub accept: Option<&'static str>,
    /// The strong ETag that all parts of the file must have.
    pub etag: Option<String>,
    /// The file is this part of what the server has at the location.
    pub section: Option<Section>,
}

/// A part of what a server has, such as a file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub range: Range<u64>,
    /// The length of the whole, in bytes.
    pub whole: u64,
}

impl Section {
    /// A range of the section, as a range of the whole; `None`: all of the section.
    pub(super) fn absolute(&self, range: Option<&Range<u64>>) -> Range<u64> {
        let at = |offset: u64| self.range.start.saturating_add(offset);
        range.map_or_else(|| self.range.clone(), |range| at(range.start)..at(range.end))
    }
}

impl Request {
    pub fn new(location: Location, authorization: Option<Authorization>) -> Self {
        Self { location, authorization, login: None, accept: None, etag: None, section: None }
    }

    /// The same request for the target of a redirect. Another origin must not see the token.
    pub(super) fn redirected(&self, location: &Location) -> Self {
        let is_same = location.origin() == self.location.origin();
        let (authorization, login) = match is_same {
            true => (self.authorization.clone(), self.login.clone()),
            false => (None, None),
        };
        Self { location: location.clone(), authorization, login, ..self.clone() }
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

    /// Sends a GET request and follows redirects. Only 200 and 206 are answers; other statuses are errors. If a registry
    /// wants a token, gets one and sends the request again, once. `range`: of the section, if the request names one.
    pub async fn send(&self, request: &Request, range: Option<&Range<u64>>) -> Result<(Head, Incoming), DownloadError> {
        let Some(section) = &request.section else { return self.send_with_login(request, range).await };
        let (head, body) = self.send_with_login(request, Some(&section.absolute(range))).await?;
        match head.status {
            StatusCode::PARTIAL_CONTENT => Ok((head, body)),
            _ => Err(DownloadError::protocol(&head.location, "it has no ranges")),
        }
    }

    async fn send_with_login(
        &self,
        request: &Request,
        range: Option<&Range<u64>>,
    ) -> Result<(Head, Incoming), DownloadError> {
        let Some(login) = &request.login else {
            return self.send_as(request, request.authorization.as_ref(), range).await;
        };
        let refused = match self.send_as(request, login.current().as_ref(), range).await {
            Err(DownloadError::Refused(refused)) => refused,
            answered => return answered,
        };
        match login.challenge(&refused)? {
            Some(challenge) => {
                let authorization = self.log_in(login, &challenge).await?;
                self.send_as(request, Some(&authorization), range).await
            }
            None => Err(DownloadError::Refused(refused)),
        }
    }

    /// Gets a token of the server that a challenge names.
    async fn log_in(&self, login: &RegistryLogin, challenge: &Challenge) -> Result<Authorization, DownloadError> {
        let (location, credentials) = match challenge {
            Challenge::Basic(credentials) => return Ok(login.keep(credentials.clone())),
            Challenge::Token { location, credentials } => (location, credentials),
        };
        let request = Request::new(location.clone(), credentials.clone());
        let (head, body) = match self.send_as(&request, credentials.as_ref(), None).await {
            Err(DownloadError::Refused(refused)) if matches!(refused.status.as_u16(), 400 | 401 | 403) => {
                let (realm, had_credentials) = (refused.location, credentials.is_some());
                return Err(DownloadError::LoginRefused { realm, had_credentials });
            }
            answered => answered?,
        };
        let answer = read_all(&head.location, body, MAX_TOKEN_ANSWER_BYTES, &self.settings).await?;
        let token = read_token(&answer).ok_or_else(|| DownloadError::protocol(&head.location, "it gives no token"))?;
        Ok(login.keep(token))
    }

    async fn send_as(
        &self,
        request: &Request,
        authorization: Option<&Authorization>,
        range: Option<&Range<u64>>,
    ) -> Result<(Head, Incoming), DownloadError> {
        let (mut location, mut authorization) = (request.location.clone(), authorization);
        let mut first = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&location, authorization, request, range).await?;
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
        Request { accept, etag, .. }: &Request,
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
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.header());
        }
        if let Some(range) = range
            && let Ok(value) = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end.saturating_sub(1)))
        {
            headers.insert(RANGE, value);
            if let Some(Ok(etag)) = etag.as_deref().map(HeaderValue::from_str) {
                headers.insert(IF_RANGE, etag);
            }
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
    let is_plain = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    match headers.get_all(CONTENT_ENCODING).iter().find(|coding| !is_plain(coding)) {
        Some(encoding) => Err(DownloadError::protocol(location, format!("it is encoded as {encoding:?}"))),
        None => Ok(()),
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
