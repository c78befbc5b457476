//! A models folder and an engine, for all fuzz targets.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::engine::{Engine, LoadError, Message, ModelInfo, Settings};
pub use outpost_testing::tiny_model;
use tempfile::TempDir;

/// A clock that advances by two seconds at each call, so that every listing reads the folder.
#[derive(Default)]
struct Clock(AtomicU64);

impl ClockRng for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_795_000_000_000)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(2, Ordering::Relaxed))
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A models folder and an engine that uses it.
pub struct Models {
    folder: TempDir,
    engine: Engine,
}

impl Models {
    /// If `sandboxed`, tokenizers and templates run in child processes of the program `OUTPOST_PROGRAM`, as in the server.
    pub fn new(sandboxed: bool) -> Self {
        let program = || std::env::var_os("OUTPOST_PROGRAM").expect("OUTPOST_PROGRAM is the built outpost").into();
        let folder = tempfile::tempdir().expect("a folder");
        let sandbox = sandboxed.then(program);
        let settings = Settings { sandbox, threads: 1, ..Settings::new(folder.path(), 1 << 30) };
        let engine = Engine::start(settings, Arc::new(Clock::default())).expect("an engine");
        Self { folder, engine }
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("a file");
        path
    }

    /// The listed models.
    pub fn list(&self) -> Vec<ModelInfo> {
        self.engine.models().list()
    }

    /// Loads a chat model and renders a prompt. Errors are expected, panics are not.
    pub fn prompt(&self, id: &str) {
        self.list();
        let loaded = self.engine.models().load(id);
        match loaded {
            Ok(model) => drop(model.prompt(&[Message::new("user", "hello aaaa <|im_end|>")])),
            Err(LoadError::Unusable { .. } | LoadError::NotFound | LoadError::WrongKind { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.engine.models().unload(id).expect("the model is not in use");
    }
}
