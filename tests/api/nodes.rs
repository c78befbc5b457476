//! Servers over one PostgreSQL database.

use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::storage::{CheckReport, PostgresLocation, PostgresSettings, Store, StoreSettings};
use serde_json::json;

use crate::postgres;
use crate::server::{MODEL, Server};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

/// Two servers over one database.
pub struct Nodes {
    pub servers: Vec<Server>,
    database: String,
}

fn location(database: &str, node: &str) -> PostgresLocation {
    let settings = PostgresSettings::parse(&postgres::shared().socket_url(database), None).unwrap();
    PostgresLocation { settings, node: node.to_owned(), readers: 4 }
}

impl Nodes {
    pub fn start(model: &TinyModel) -> Self {
        let database = postgres::shared().new_database();
        let mut servers: Vec<Server> = Vec::new();
        for node in ["one", "two"] {
            let folder = tempfile::tempdir().unwrap();
            tiny_model::write(&folder.path().join("models"), MODEL, model);
            let data = folder.path().join("data");
            std::fs::create_dir(&data).unwrap();
            for name in ["pepper", "admin.key"] {
                if let Some(first) = servers.first() {
                    std::fs::copy(first.folder.path().join("data").join(name), data.join(name)).unwrap();
                }
            }
            let store = location(&database, node);
            servers.push(Server::start_in_configured(folder, |config| config.store = Some(store)));
        }
        let nodes = Self { servers, database };
        nodes.generate_once();
        nodes
    }

    /// Lets the last server generate a response, so that it has begun to look for them.
    fn generate_once(&self) {
        let Some(server) = self.servers.last() else { return };
        let request = json!({ "model": MODEL, "input": "hello", "max_output_tokens": 1, "background": true });
        let response = server.post("/v1/responses", &request).ok();
        let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
        until(|| "a response ends", || server.get(&path).ok()["usage"].is_object());
        server.delete(&path).ok();
    }

    pub fn first(&self) -> &Server {
        &self.servers[0]
    }

    /// The index of the server that generates the only response.
    pub fn generator(&self) -> usize {
        let running = || self.servers.iter().position(|server| server.engine.load().running > 0);
        until(|| "a node generates", || running().is_some());
        running().unwrap()
    }

    /// Stops both and checks the store.
    pub fn stop(self) -> CheckReport {
        let mut folders: Vec<_> = self.servers.into_iter().map(Server::stop).collect();
        let folder = folders.pop().unwrap();
        let settings = StoreSettings { dir: folder.path().join("data"), cache_bytes: 16 << 20, queue: 64 };
        let store = Store::open_postgres(settings, &location(&self.database, "check"), Arc::new(SystemClockRng::new()))
            .unwrap();
        let report = store.verify().unwrap();
        store.shutdown();
        assert!(report.is_clean(), "{:?}", report.problems);
        report
    }
}
