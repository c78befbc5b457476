//! Maintains the models every second: reads settings files that have changed, unloads idle models, and loads pinned ones.
//!
//! Loading takes a while, so it has a thread of its own. The threads are not joined: a load that has begun ends with the
//! process.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::engine::{Engine, Registry};

const INTERVAL: Duration = Duration::from_secs(1);

/// The running threads. They end when it is dropped.
pub struct ModelUpkeep {
    _stops: [Sender<()>; 2],
}

impl ModelUpkeep {
    pub fn start(engine: &Engine) -> io::Result<Self> {
        let settings = |models: &Registry| {
            models.refresh_settings();
            models.unload_unused();
        };
        let _stops = [
            every_second("model-settings", engine, settings)?,
            every_second("pinned-models", engine, Registry::load_pinned)?,
        ];
        Ok(Self { _stops })
    }
}

/// Calls `work` now and every second on a thread with this name, until the sender is dropped.
fn every_second(name: &str, engine: &Engine, work: impl Fn(&Registry) + Send + 'static) -> io::Result<Sender<()>> {
    let (stop, stopped) = channel();
    let engine = engine.clone();
    let run = move || {
        work(engine.models());
        while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            work(engine.models());
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(stop)
}
