//! The actix server: the application, its limits, its listener.

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
use utoipa_actix_web::{AppExt, scope};

use super::caller::authenticate;
use super::channel::{Channel, HTTP2};
use super::connections::{Connections, IDLE_TIMEOUT};
use super::frame::frame;
use super::http1::Guarded;
use super::metering::meter;
use super::reply::Mount;
use super::{Api, dashboard, host, http2, openapi, routes, sending};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// For the head of a connection's first request, or what opens HTTP/2.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

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
                let listening = Rc::new(Listening { api, tls, connections, stopping, app, http1 });
                Ok::<_, ()>(fn_service(move |tcp| {
                    let listening = listening.clone();
                    async move {
                        listening.serve(tcp).await;
                        Ok::<_, Infallible>(())
                    }
                }))
            }
        })
    };
    Ok(server.listen("http", listener, listen)?.run())
}

/// The routes and all that surrounds them.
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
    let (app, document) = App::new()
        .into_utoipa_app()
        .openapi(openapi::base())
        .app_data(api)
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
        .wrap(from_fn(sending::watch))
}

/// HTTP/1 on connections that are accepted.
fn http1<S>(
    app: Rc<S>,
    stopping: GracefulShutdownSignal,
) -> impl ServiceFactory<
    (Guarded, Option<SocketAddr>),
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
        // A client that closes its side has left: its work is cancelled, not finished for nobody.
        .h1_allow_half_closed(false)
        .h1_write_buffer_size(sending::PIECE)
        .graceful_shutdown_signal(move || {
            let stopping = stopping.clone();
            async move { stopping.notified().await }
        })
        .on_connect_ext(Guarded::share)
        .h1(fn_factory(move || std::future::ready(Ok::<_, ()>(app.clone()))))
}

/// One worker's part of the listener.
struct Listening<S, H> {
    api: Data<Api>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
    stopping: GracefulShutdownSignal,
    app: Rc<S>,
    http1: H,
}

impl<S, H> Listening<S, H>
where
    S: Service<Request, Response = ServiceResponse<BoxBody>, Error = actix_web::HttpResponse> + 'static,
    H: Service<(Guarded, Option<SocketAddr>), Response = (), Error = DispatchError>,
{
    /// Serves an accepted socket until its connection ends.
    async fn serve(&self, tcp: TcpStream) {
        let Some((stream, peer)) = self.connections.accept(tcp, &self.api.proxies) else { return };
        let channel = match &self.tls {
            None => Channel::plain(stream),
            Some(tls) => match timeout(HANDSHAKE_TIMEOUT, Channel::secure(tls, stream)).await {
                Ok(Ok(channel)) => channel,
                Ok(Err(error)) => return tracing::debug!(?peer, %error, "a TLS handshake failed"),
                Err(_) => return tracing::debug!(?peer, "a TLS handshake took too long"),
            },
        };
        if channel.is_http2() {
            let shared = http2::Shared {
                app: Rc::clone(&self.app),
                connection: Arc::clone(channel.connection()),
                peer,
                clock_rng: Arc::clone(&self.api.clock_rng),
            };
            if let Err(error) = http2::serve(channel, shared, HEAD_TIMEOUT, self.stopping.notified()).await {
                tracing::debug!(?peer, %error, "a connection with HTTP/2 ended");
            }
        } else if let Err(error) = self.http1.call((Guarded::new(channel), peer)).await {
            tracing::debug!(?peer, %error, "a connection with HTTP/1 ended");
        }
    }
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
