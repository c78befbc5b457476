//! The actix server: the application, its limits, its listener.
//!
//! HTTP runs on sockets of its own and not on actix's `HttpServer`, which only lends a reference to the socket, once.
//! To close a connection from outside, and to apply the limits to the TLS handshake, the server needs to own it.
//! `actix-server` and actix's HTTP/1 are still used, with two hidden functions on which `HttpServer` itself builds:
//! `AppConfig::__priv_test_new` and `graceful_shutdown_signal`.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::error::DispatchError;
use actix_http::{HttpService, Request};
use actix_server::GracefulShutdownSignal;
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, fn_factory, fn_service};
use actix_web::body::BoxBody;
use actix_web::dev::{AppConfig, Server, ServiceRequest, ServiceResponse};
use actix_web::middleware::from_fn;
use actix_web::rt::net::TcpStream;
use actix_web::rt::time::timeout;
use actix_web::web::Data;
use actix_web::{App, web};
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;
use utoipa_actix_web::service_config::ServiceConfig;
use utoipa_actix_web::{AppExt, scope};

use super::authentication::authenticate;
use super::connections::{Connections, IDLE_TIMEOUT};
use super::cors::cors;
use super::http1::ValidatedStream;
use super::metering_middleware::meter;
use super::normalize::normalize;
use super::request_logging::log_request;
use super::response::Mount;
use super::transport::{CHUNK_BYTES, HTTP2, Transport};
use super::{Api, allowed_hosts, dashboard, http2, openapi, response_body, routes};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for the head of a connection's first request, or for the HTTP/2 preface.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that run handlers.
    pub workers: usize,
    /// Open connections, over all workers.
    pub connections: usize,
    /// How long running requests may take to end after a stop is requested.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { workers: cores.min(8), connections: 8192, drain: Duration::from_secs(30) }
    }
}

/// Builds the server on a bound listener; it runs when awaited.
pub fn build(
    api: Data<Api>,
    listener: TcpListener,
    tls: Option<ServerConfig>,
    limits: Limits,
) -> std::io::Result<Server> {
    let connections = Connections::new(limits.connections);
    actix_web::rt::spawn(Connections::sweep(Arc::downgrade(&connections)));
    let address = listener.local_addr()?;
    let tls = tls.map(|mut config| {
        config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    });
    let server = actix_server::Server::build()
        .workers(limits.workers)
        .max_concurrent_connections(limits.connections.div_ceil(limits.workers))
        .shutdown_timeout(limits.drain.as_secs())
        .disable_signals();
    let stopping = server.graceful_shutdown_signal();
    let listen = move || {
        let (api, tls) = (api.clone(), tls.clone());
        let (connections, stopping) = (connections.clone(), stopping.clone());
        fn_factory(move || {
            let app = app(api.clone()).into_factory().map_err(|error| error.error_response());
            let config = AppConfig::__priv_test_new(tls.is_some(), address.to_string(), address);
            let app = app.new_service(config);
            let (api, tls) = (api.clone(), tls.clone());
            let (connections, stopping) = (connections.clone(), stopping.clone());
            async move {
                let app = Rc::new(app.await?);
                let http1 = http1(app.clone(), stopping.clone()).new_service(()).await?;
                let worker = Rc::new(Worker { api, tls, connections, stopping, app, http1 });
                Ok::<_, ()>(fn_service(move |tcp| {
                    let worker = worker.clone();
                    async move {
                        worker.serve(tcp).await;
                        Ok::<_, Infallible>(())
                    }
                }))
            }
        })
    };
    Ok(server.listen("http", listener, listen)?.run())
}

/// The routes and their middleware.
fn app(
    api: Data<Api>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    let hosts = api.hosts.clone();
    let (app, document) = App::new()
        .into_utoipa_app()
        .openapi(openapi::base())
        .app_data(api)
        .app_data(hosts)
        // Must precede the mount that contains it, where every request needs a key.
        .service(routes::images::fetch)
        .service(scoped(Mount::Spec.prefix(), Mount::Spec, routes::mount))
        .service(scoped(Mount::OpenAi.prefix(), Mount::OpenAi, routes::mount))
        // The handlers of these two reply in their own format on any mount.
        .service(scoped(routes::ollama::api_format::PREFIX, Mount::OpenAi, routes::ollama::mount))
        .service(scoped(routes::cohere::api_format::PREFIX, Mount::OpenAi, routes::cohere::mount))
        .service(routes::health::alive)
        .service(routes::health::ready)
        .service(routes::health::health)
        .service(routes::health::ping)
        .service(routes::health::version)
        .service(routes::metrics::metrics)
        .split_for_parts();
    let document = Data::new(openapi::Document::new(document));
    app.app_data(document)
        .service(openapi::serve)
        .configure(dashboard::routes)
        .configure(routes::sign_in::routes)
        .default_service(web::to(openapi::fallback))
        // The last middleware is outermost.
        .wrap(from_fn(cors))
        .wrap(from_fn(normalize))
        .wrap(from_fn(allowed_hosts::check_host))
        .wrap(from_fn(log_request))
        .wrap(from_fn(response_body::track_in_flight))
}

/// The HTTP/1 service of accepted connections.
fn http1<S>(
    app: Rc<S>,
    stopping: GracefulShutdownSignal,
) -> impl ServiceFactory<
    (ValidatedStream, Option<SocketAddr>),
    Config = (),
    Response = (),
    Error = DispatchError,
    InitError = (),
    Service: 'static,
>
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = actix_web::HttpResponse> + 'static,
{
    HttpService::build()
        .keep_alive(IDLE_TIMEOUT)
        .client_request_timeout(HEAD_TIMEOUT)
        .client_disconnect_timeout(Duration::from_secs(1))
        // A client that closes its side has disconnected, so its work is cancelled.
        .h1_allow_half_closed(false)
        .h1_write_buffer_size(CHUNK_BYTES)
        .graceful_shutdown_signal(move || {
            let stopping = stopping.clone();
            async move { stopping.notified().await }
        })
        .on_connect_ext(ValidatedStream::share)
        .h1(fn_factory(move || std::future::ready(Ok::<_, ()>(app.clone()))))
}

/// The listener in one worker.
struct Worker<S, H> {
    api: Data<Api>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    stopping: GracefulShutdownSignal,
    app: Rc<S>,
    http1: H,
}

impl<S, H> Worker<S, H>
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = actix_web::HttpResponse> + 'static,
    H: Service<(ValidatedStream, Option<SocketAddr>), Response = (), Error = DispatchError>,
{
    /// Serves an accepted socket until its connection ends.
    async fn serve(&self, tcp: TcpStream) {
        let Some((stream, peer)) = self.connections.accept(tcp, &self.api.proxies) else { return };
        let transport = match &self.tls {
            None => Transport::plain(stream),
            Some(tls) => match timeout(HANDSHAKE_TIMEOUT, Transport::secure(tls, stream)).await {
                Ok(Ok(transport)) => transport,
                Ok(Err(error)) => return tracing::debug!(?peer, %error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!(?peer, "a TLS handshake took too long"),
            },
        };
        if transport.is_http2() {
            let shared = http2::Shared {
                app: Rc::clone(&self.app),
                connection: Arc::clone(transport.connection()),
                peer,
                clock_rng: Arc::clone(&self.api.clock_rng),
            };
            if let Err(error) = http2::serve(transport, shared, HEAD_TIMEOUT, self.stopping.notified()).await {
                tracing::debug!(?peer, %error, "a connection with HTTP/2 ended");
            }
        } else if let Err(error) = self.http1.call((ValidatedStream::new(transport), peer)).await {
            tracing::debug!(?peer, %error, "a connection with HTTP/1 ended");
        }
    }
}

/// The routes below `prefix`. They need a key.
fn scoped(
    prefix: &str,
    mount: Mount,
    routes: fn(&mut ServiceConfig<'_>),
) -> scope::Scope<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse<impl actix_web::body::MessageBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    scope::scope(prefix)
        .app_data(mount)
        .configure(routes)
        .default_service(web::to(openapi::fallback))
        // The last middleware is outermost: requests are authenticated before they are counted.
        .wrap(from_fn(meter))
        .wrap(from_fn(authenticate))
}
