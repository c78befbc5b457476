//! A complete server inside the test process, on a free port, with a tiny random model.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outpost::app::App;
use outpost::config::{Config, DataPaths, KvType, ModelDevice, StoreArgs, Tls};
use outpost::engine::Engine;
use reqwest::Method;
use reqwest::blocking::Client;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tempfile::TempDir;

use crate::clock::ShiftedClock;
use crate::fixtures::add_fixture;
use crate::store_location::store_location;
use crate::tiny_model::{self, TinyModel};

/// The chat model of every test server.
pub const MODEL: &str = "tiny";

pub struct Server {
    pub url: String,
    pub address: SocketAddr,
    pub admin: String,
    pub clock: Arc<ShiftedClock>,
    pub engine: Engine,
    pub folder: TempDir,
    client: Client,
    stop: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

/// An embedding model with 32 dimensions and a cross-encoder, for [`Server::with_encoders`].
pub const EMBEDDER: &str = "bert-mean";
pub const RERANKER: &str = "rank-bert";
/// A text classifier of `tests/fixtures/classifiers`.
pub const CLASSIFIER: &str = "toxic-bert";
/// An image model of `tests/fixtures/pipelines`, for [`Server::with_all_workloads`].
pub const IMAGE_MODEL: &str = "sd1";

/// Header names and values of a raw request.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// A response, read to its end.
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// The body, for responses that are not text.
    pub bytes: Vec<u8>,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The body of a success.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// `(status, error.code, error.param)` of an error response, whose format is checked here. In Ollama's format, an error has
    /// no code.
    pub fn error_fields(&self) -> (u16, String, Option<String>) {
        let body = self.json();
        if let (Some(message), Some(id), None) = (body["message"].as_str(), body["id"].as_str(), body.get("error")) {
            // Cohere's format.
            assert!(message.len() > 10 && body.as_object().unwrap().len() == 4, "{}", self.text);
            assert_eq!(id, self.headers["x-request-id"].to_str().unwrap(), "{}", self.text);
            let (code, param) = (body["code"].as_str().unwrap(), body["param"].as_str());
            return (self.status, code.to_owned(), param.map(str::to_owned));
        }
        let error = body.get("error").unwrap_or_else(|| panic!("no error in {}", self.text));
        if let Some(text) = error.as_str() {
            assert!(text.len() > 10 && body.as_object().unwrap().len() == 1, "{}", self.text);
            assert!(self.headers.contains_key("x-request-id"));
            return (self.status, String::new(), None);
        }
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{}", self.text);
        assert!(error["type"].is_string(), "{}", self.text);
        let id = self.headers["x-request-id"].to_str().unwrap();
        // Anthropic's format has the ID beside the error.
        let place = if body["type"] == "error" { &body } else { error };
        assert_eq!(place["request_id"], id, "{}", self.text);
        (self.status, error["code"].as_str().unwrap().to_owned(), error["param"].as_str().map(str::to_owned))
    }
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&TinyModel::default())
    }

    pub fn start_with(model: &TinyModel) -> Self {
        Self::start_configured(model, |_| ())
    }

    /// Starts with a changed configuration.
    pub fn start_configured(model: &TinyModel, change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        tiny_model::write(&models, MODEL, model);
        let mut config = config(folder.path());
        change(&mut config);
        Self::start_with_config(folder, config)
    }

    /// Starts with an embedding model and a cross-encoder, in addition to the chat model.
    pub fn with_encoders() -> Self {
        Self::start_configured(&TinyModel::default(), |config| {
            [EMBEDDER, RERANKER].into_iter().for_each(|name| add_encoder(&config.paths.models, name));
        })
    }

    /// Starts with a model for each kind of call: text, embeddings, reranking and images.
    pub fn with_all_workloads() -> Self {
        Self::start_configured(&TinyModel::default(), |config| {
            [EMBEDDER, RERANKER].into_iter().for_each(|name| add_encoder(&config.paths.models, name));
            add_fixture("pipelines", &config.paths.models, IMAGE_MODEL);
        })
    }

    /// Starts on a folder that may already contain models and data.
    pub fn start_in(folder: TempDir) -> Self {
        Self::start_in_configured(folder, |_| ())
    }

    /// Like [`Self::start_in`], with a changed configuration.
    pub fn start_in_configured(folder: TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(folder.path());
        change(&mut config);
        Self::start_with_config(folder, config)
    }

    fn start_with_config(folder: TempDir, config: Config) -> Self {
        let clock = Arc::new(ShiftedClock::default());
        let (ready, started) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let clock_rng = clock.clone();
        let thread = std::thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let app = App::start(&config, clock_rng).await.unwrap();
                ready.send((app.url(), app.address(), app.engine().clone())).unwrap();
                let stopper = app.stopper();
                actix_web::rt::spawn(async move {
                    let _stopped_or_dropped = stopped.await;
                    stopper.stop().await;
                });
                app.run().await.unwrap();
            });
        });
        let (url, address, engine) = started.recv().expect("the server starts");
        let admin = std::fs::read_to_string(folder.path().join("data/admin.key")).unwrap().trim().to_owned();
        let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        Self { url, address, admin, clock, engine, folder, client, stop: Mutex::new(Some(stop)), thread: Some(thread) }
    }

    /// Stops and returns the folder, so that a test can start another server on it.
    pub fn stop(mut self) -> TempDir {
        self.shut_down();
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    /// Tells it to stop, and returns at once.
    pub fn begin_stop(&self) {
        drop(self.stop.lock().unwrap().take());
    }

    fn shut_down(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub fn get(&self, path: &str) -> Response {
        self.call(Method::GET, path, Some(&self.admin), None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.call(Method::POST, path, Some(&self.admin), Some(body))
    }

    pub fn put(&self, path: &str, body: &Value) -> Response {
        self.call(Method::PUT, path, Some(&self.admin), Some(body))
    }

    pub fn patch(&self, path: &str, body: &Value) -> Response {
        self.call(Method::PATCH, path, Some(&self.admin), Some(body))
    }

    pub fn delete(&self, path: &str) -> Response {
        self.call(Method::DELETE, path, Some(&self.admin), None)
    }

    pub fn call(&self, method: Method, path: &str, key: Option<&str>, body: Option<&Value>) -> Response {
        let body = body.map(|value| value.to_string().into_bytes());
        self.raw(method, path, key, &[("content-type", "application/json")], body)
    }

    /// Sends a request with exactly these headers and this body.
    pub fn raw(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        headers: Headers<'_>,
        body: Option<Vec<u8>>,
    ) -> Response {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        read(request.send().unwrap())
    }

    /// Sends a chat request as the admin and leaves the connection open.
    pub fn start_chat(&self, body: &Value) -> TcpStream {
        self.begin("/v1/chat/completions", &self.admin, body)
    }

    /// Sends a request and leaves the connection open.
    pub fn begin(&self, path: &str, key: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut connection = TcpStream::connect(self.address).unwrap();
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(body.as_bytes()).unwrap();
        connection
    }

    /// Waits until the engine is running a request.
    pub fn wait_running(&self) {
        let started = Instant::now();
        while self.engine.load().running == 0 {
            assert!(started.elapsed() < Duration::from_secs(20), "nothing has started: {:?}", self.engine.load());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Creates a project and a key in it with the default scopes: `(project id, key id, secret)`.
    pub fn tenant(&self, name: &str) -> (String, String, String) {
        let project = self.post("/v1/projects", &serde_json::json!({ "name": name })).ok();
        let project = project["id"].as_str().unwrap().to_owned();
        let key = self.post("/v1/api-keys", &serde_json::json!({ "name": name, "project_id": project })).ok();
        (project, key["id"].as_str().unwrap().to_owned(), key["secret"].as_str().unwrap().to_owned())
    }

    /// Waits until the engine has no running or queued requests.
    pub fn wait_idle(&self, limit: Duration) {
        let started = Instant::now();
        loop {
            let load = self.engine.load();
            if load.running == 0 && load.queued == 0 {
                return;
            }
            assert!(started.elapsed() < limit, "the engine is still busy: {load:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn read(response: reqwest::blocking::Response) -> Response {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().unwrap().to_vec();
    Response { status, headers, text: String::from_utf8_lossy(&bytes).into_owned(), bytes }
}

/// Copies one of the tiny random models of `tests/fixtures/encoders` into a folder of models.
pub fn add_encoder(models: &Path, name: &str) {
    add_fixture("encoders", models, name);
}

/// The device that runs the models of test servers: that of the variable `OUTPOST_TEST_DEVICE`, such as `candle`, or the
/// default.
fn test_device() -> Vec<ModelDevice> {
    let device = std::env::var("OUTPOST_TEST_DEVICE").ok().map(|name| name.parse().unwrap());
    device.into_iter().map(|device| ModelDevice { model: None, device }).collect()
}

pub fn config(folder: &Path) -> Config {
    Config {
        precision: Vec::new(),
        device: test_device(),
        paths: DataPaths { data: folder.join("data"), models: folder.join("models"), store: StoreArgs::default() },
        store: store_location(&folder.join("data")),
        listen: "127.0.0.1:0".parse().unwrap(),
        threads: 2,
        memory: 2 << 30,
        kv_type: KvType::F16,
        prefix_cache_disk: None,
        max_running: 32,
        max_queued: 256,
        speculate: true,
        draft_model: Vec::new(),
        strict_schemas: false,
        strict_envelope: false,
        ignore_unknown_fields: false,
        open_metrics: false,
        pull: false,
        api_pulls: None,
        stop_delay: Duration::ZERO,
        drain: Duration::from_secs(30),
        usage_retention: Duration::from_secs(90 * 86_400),
        image_url_ttl: Duration::from_secs(3600),
        min_free_disk: Some(0),
        max_audio_bytes: 4 << 20,
        max_audio_seconds: 600,
        public_url: None,
        allowed_hosts: Vec::new(),
        cors_origins: Vec::new(),
        keyless_project: None,
        trusted_proxies: Vec::new(),
        sandbox: None,
        tls: Tls::Off,
    }
}
