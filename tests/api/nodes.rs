//! Servers over one PostgreSQL database, which generate responses in the background.

use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::storage::CheckReport;
use serde_json::json;

use crate::database::Database;
use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Two servers over one database.
pub struct Nodes {
    pub servers: Vec<Server>,
    database: Database,
}

impl Nodes {
    pub fn start(model: &TinyModel) -> Self {
        let database = Database::new();
        let nodes = Self { servers: database.serve_two(model).into(), database };
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
        drop(self.servers);
        let (store, _folder) = self.database.open_store("check", Arc::new(SystemClockRng::new()));
        let report = store.verify().unwrap();
        store.shutdown();
        assert!(report.is_clean(), "{:?}", report.problems);
        report
    }
}
