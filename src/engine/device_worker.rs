//! A device that runs models, with a memory budget, queues and a worker thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::embedding::{EmbeddingQueue, EmbeddingWorkload};
use super::image::{ImageQueue, ImageWorkload};
use super::runtime::supervised_worker::Worker;
use super::runtime::workload::Workload;
use super::runtime::Runtime;
use super::settings::Settings;
use super::text::queue::TextQueue;
use super::text::workload::TextWorkload;
use crate::models::backend::Cpu;
use crate::models::devices::Selected;

/// The number of a device among those of the engine.
pub type DeviceIndex = usize;

/// A device at work.
pub struct DeviceWorker {
    pub backend: DeviceBackend,
    pub runtime: Arc<Runtime>,
    pub texts: Arc<TextQueue>,
    pub embeddings: Arc<EmbeddingQueue>,
    pub images: Arc<ImageQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The backend of a device.
pub enum DeviceBackend {
    Cpu(Cpu),
}

impl DeviceWorker {
    /// Starts the worker thread. Fails if the operating system cannot start it.
    pub fn start(backend: DeviceBackend, runtime: Arc<Runtime>) -> std::io::Result<Self> {
        let texts = TextQueue::new(Arc::clone(&runtime));
        let embeddings = EmbeddingQueue::new(Arc::clone(&runtime));
        let images = ImageQueue::new(Arc::clone(&runtime));
        runtime.set_kv_cache(Arc::downgrade(&texts) as _);
        let workloads: Vec<Box<dyn Workload>> = vec![
            Box::new(TextWorkload::new(Arc::clone(&texts))),
            Box::new(EmbeddingWorkload::new(Arc::clone(&embeddings))),
            Box::new(ImageWorkload::new(Arc::clone(&images))),
        ];
        let worker = Worker::new(Arc::clone(&runtime), workloads);
        let thread = std::thread::Builder::new().name(runtime.device.name.clone()).spawn(|| worker.run())?;
        Ok(Self { backend, runtime, texts, embeddings, images, thread: Mutex::new(Some(thread)) })
    }

    /// Waits for the thread, which ends when the runtime is closed.
    pub fn join(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }

    /// The name of the device: `cpu`, `cuda:0`.
    pub fn name(&self) -> &str {
        &self.runtime.device.name
    }
}

/// Opens a device, and adapts the settings to it.
///
/// # Errors
/// If it cannot be opened, with the reason.
pub fn open(selected: &Selected, settings: Settings) -> Result<(DeviceBackend, Settings), String> {
    match selected {
        Selected::Cpu { .. } => Ok((DeviceBackend::Cpu(Cpu::new(settings.threads)), settings)),
        Selected::Candle | Selected::Gpu(_) => Err(format!("{} cannot be used yet", selected.name())),
    }
}
