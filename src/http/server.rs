//! The actix server: the application, its limits, its listener.

use std::net::TcpListener;
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer, web};
use rustls::ServerConfig;
use utoipa_actix_web::{AppExt, scope};

use super::caller::authenticate;
use super::connections::Connections;
use super::frame::frame;
use super::metering::meter;
use super::reply::Mount;
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
    let open = Connections::new(limits.connections.div_ceil(FROM_ONE_ADDRESS));
    let listening = api.clone();
    let server = HttpServer::new(move || {
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
    })
    .on_connect(move |stream, extensions| open.accept(stream, &listening.proxies, extensions))
    .workers(limits.workers)
    .max_connections(limits.connections.div_ceil(limits.workers))
    .tls_handshake_timeout(Duration::from_secs(3))
    .client_request_timeout(Duration::from_secs(10))
    .keep_alive(Duration::from_secs(75))
    // A client that closes its side has left: its work is cancelled, not finished for nobody.
    .h1_allow_half_closed(false)
    .shutdown_timeout(limits.drain.as_secs())
    .disable_signals();
    let server = match tls {
        Some(config) => server.listen_rustls_0_23(listener, config)?,
        None => server.listen(listener)?,
    };
    Ok(server.run())
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
