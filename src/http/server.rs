//! The actix server: the application, its limits, its listener.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use actix_http::body::BoxBody;
use actix_http::{HttpServiceBuilder, Protocol, Request, Response};
use actix_server::{GracefulShutdownSignal, Server, ServerBuilder};
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, fn_service, map_config};
use actix_tls::accept::TlsError;
use actix_tls::accept::rustls_0_23::{Acceptor, TlsStream};
use actix_web::dev::AppConfig;
use actix_web::middleware::from_fn;
use actix_web::rt::net::TcpStream;
use actix_web::web::Data;
use actix_web::{App, web};
use rustls::ServerConfig;
use utoipa_actix_web::{AppExt, scope};

use super::caller::authenticate;
use super::connections::Connections;
use super::frame::frame;
use super::metering::meter;
use super::reply::Mount;
use super::wire::Guarded;
use super::{Api, dashboard, host, openapi, routes};

/// One address may have one part in so many of the connections.
const FROM_ONE_ADDRESS: usize = 8;

/// Bounds of the listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Threads that run handlers.
    pub workers: usize,
    /// Open connections, over all workers.
    pub connections: usize,
    /// How long running requests may take to end after a stop is asked for.
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
    let address = listener.local_addr()?;
    let open = Connections::new(limits.connections.div_ceil(FROM_ONE_ADDRESS));
    let listening = api.clone();
    let app = move || {
        let (app, document) = App::new()
            .into_utoipa_app()
            .openapi(openapi::base())
            .app_data(api.clone())
            // Before the mount that it lies under: there, nobody passes without a key.
            .service(routes::images::fetch)
            .service(mount(Mount::Spec))
            .service(mount(Mount::OpenAi))
            .service(routes::health::alive)
            .service(routes::health::ready)
            .service(routes::metrics::metrics)
            .split_for_parts();
        let document = Data::new(openapi::Document::new(document));
        app.app_data(document)
            .service(openapi::serve)
            .configure(dashboard::routes)
            .default_service(web::to(openapi::fallback))
            // The last one wraps all.
            .wrap(from_fn(host::check))
            .wrap(from_fn(frame))
            .into_factory()
            .map_err(|error| error.error_response())
    };
    let server = ServerBuilder::default()
        .workers(limits.workers)
        .max_concurrent_connections(limits.connections.div_ceil(limits.workers))
        .shutdown_timeout(limits.drain.as_secs())
        .disable_signals();
    let stopping = server.graceful_shutdown_signal();
    let secure = tls.is_some();
    let config = move |()| AppConfig::__priv_test_new(secure, address.to_string(), address);
    // What actix-web's own server does, but for the guard around each connection.
    let server = match tls {
        Some(tls) => server.listen("https", listener, move || {
            let (open, listening) = (open.clone(), listening.clone());
            let http = http(&stopping, address).on_connect_ext(
                move |connection: &Guarded<TlsStream<TcpStream>>, extensions| {
                    open.accept(connection.stream(), &listening.proxies, extensions);
                    connection.share(extensions);
                },
            );
            let mut acceptor = Acceptor::new(alpn(tls.clone()));
            acceptor.set_handshake_timeout(Duration::from_secs(3));
            acceptor
                .map_err(TlsError::into_service_error)
                .and_then(|stream: TlsStream<TcpStream>| async move {
                    let (tcp, session) = stream.get_ref();
                    let peer = tcp.peer_addr().ok();
                    Ok(match session.alpn_protocol() {
                        Some(b"h2") => (Guarded::http2(stream), Protocol::Http2, peer),
                        _ => (Guarded::http1(stream), Protocol::Http1, peer),
                    })
                })
                .and_then(http.finish(map_config(app(), config)).map_err(TlsError::Service))
        })?,
        None => server.listen("http", listener, move || {
            let (open, listening) = (open.clone(), listening.clone());
            let http = http(&stopping, address).on_connect_ext(move |connection: &Guarded<TcpStream>, extensions| {
                open.accept(connection.stream(), &listening.proxies, extensions);
                connection.share(extensions);
            });
            fn_service(|stream: TcpStream| async move {
                let peer = stream.peer_addr().ok();
                Ok((Guarded::http1(stream), Protocol::Http1, peer))
            })
            .and_then(http.finish(map_config(app(), config)))
        })?,
    };
    Ok(server.run())
}

/// The limits of a connection.
fn http<T, S>(stopping: &GracefulShutdownSignal, address: SocketAddr) -> HttpServiceBuilder<T, S>
where
    S: ServiceFactory<Request, Config = ()>,
    S::Error: Into<Response<BoxBody>> + 'static,
    S::InitError: std::fmt::Debug,
    <S::Service as Service<Request>>::Future: 'static,
{
    let stopping = stopping.clone();
    HttpServiceBuilder::default()
        .graceful_shutdown_signal(move || {
            let stopping = stopping.clone();
            async move { stopping.notified().await }
        })
        .client_request_timeout(Duration::from_secs(10))
        .client_disconnect_timeout(Duration::from_secs(1))
        .keep_alive(Duration::from_secs(75))
        // A client that closes its side has left: its work is cancelled, not finished for nobody.
        .h1_allow_half_closed(false)
        .local_addr(address)
}

/// What the server speaks over TLS, the preferred first.
fn alpn(mut tls: ServerConfig) -> ServerConfig {
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    tls
}

fn mount(
    mount: Mount,
) -> scope::Scope<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse<impl actix_web::body::MessageBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    scope::scope(mount.prefix())
        .app_data(mount)
        .configure(routes::mount)
        .default_service(web::to(openapi::fallback))
        // The last one wraps all: who calls is known before anything is counted.
        .wrap(from_fn(meter))
        .wrap(from_fn(authenticate))
}
