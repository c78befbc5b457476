//! Servers that share a PostgreSQL database.

use tempfile::TempDir;

use crate::database::Database;
use crate::server::{MODEL, Server};
use crate::tiny_model::{self, TinyModel};

impl Database {
    /// A server inside this process, in a new folder.
    pub fn serve(&self, node: &str, model: &TinyModel) -> Server {
        let folder = tempfile::tempdir().unwrap();
        tiny_model::write(&folder.path().join("models"), MODEL, model);
        self.serve_in(node, folder)
    }

    /// A server inside this process. `folder` has its models, and what an earlier server has left.
    pub fn serve_in(&self, node: &str, folder: TempDir) -> Server {
        let (data, location) = (folder.path().join("data"), self.location(node));
        self.with_secrets(&data, || Server::start_in_configured(folder, |config| config.store = Some(location)))
    }

    /// The servers `a` and `b`.
    pub fn serve_two(&self, model: &TinyModel) -> [Server; 2] {
        ["a", "b"].map(|node| self.serve(node, model))
    }
}
