//! A device that runs models, with a memory budget, queues and a worker thread of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::device_backend::DeviceBackend;
use super::kinds::{Queues, start_queues};
use super::runtime::Runtime;
use super::runtime::supervised_worker::Worker;
use super::settings::Settings;
use outpost_models::devices::Selected;
use outpost_models::kv::KvType;

/// Threads of the host that a device uses at most.
const MAX_HOST_THREADS: usize = 4;
/// Max prompt tokens of a step on a GPU, which needs many to be busy.
const GPU_PREFILL_CHUNK: usize = 1024;

/// A device at work.
pub struct DeviceWorker {
    pub backend: DeviceBackend,
    pub runtime: Arc<Runtime>,
    pub queues: Queues,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DeviceWorker {
    /// Starts the worker thread. Fails if the operating system cannot start it.
    pub fn start(backend: DeviceBackend, runtime: Arc<Runtime>) -> std::io::Result<Self> {
        let (queues, workloads) = start_queues(&runtime);
        let worker = Worker::new(Arc::clone(&runtime), workloads, backend.check());
        let thread =
            std::thread::Builder::new().name(format!("engine {}", runtime.device.name)).spawn(|| worker.run())?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { backend, runtime, queues, thread })
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

/// The settings, adapted to a device.
pub fn settings_for(selected: &Selected, settings: Settings) -> Settings {
    if let Selected::Cpu { .. } = selected {
        return settings;
    }
    // The host samples tokens for the device.
    let threads = settings.threads.min(MAX_HOST_THREADS);
    // candle has no 8-bit keys and values.
    let kv_type = if settings.kv_type == KvType::Q8 { KvType::F16 } else { settings.kv_type };
    let settings = Settings { threads, kv_type, ..settings };
    match selected {
        Selected::Gpu(gpu) => Settings {
            memory_bytes: gpu.free_memory / 10 * 9,
            prefill_chunk: settings.prefill_chunk.max(GPU_PREFILL_CHUNK),
            ..settings
        },
        _ => settings,
    }
}

impl Settings {
    /// Adapted to the device of models that are not named with one of their own.
    #[must_use]
    pub fn for_default_device(self) -> Self {
        settings_for(&self.devices.usual.clone(), self)
    }

    /// Like [`Self::for_default_device`], as if no program used the device: a server that runs on it may have loaded other models,
    /// which it will unload.
    #[must_use]
    pub fn for_planning(mut self) -> Self {
        if let Selected::Gpu(gpu) = &mut self.devices.usual {
            gpu.free_memory = gpu.total_memory;
        }
        self.for_default_device()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{MAX_HOST_THREADS, Settings};
    use crate::Devices;
    use outpost_common::device_choice::DeviceChoice;
    use outpost_models::devices::{Gpu, Selected};
    use outpost_models::kv::KvType;

    #[test]
    fn the_memory_of_a_gpu_replaces_that_of_the_machine() {
        let of = |usual: Selected| {
            let devices = Devices { usual, ..Devices::default() };
            Settings { threads: 64, kv_type: KvType::Q8, devices, ..Settings::new(PathBuf::new(), 1000) }
        };
        let settings = |usual: Selected| {
            let adapted = of(usual).for_default_device();
            (adapted.threads, adapted.kv_type, adapted.memory_bytes)
        };
        let (choice, name) = (DeviceChoice::Cuda(0), "NVIDIA L4".to_owned());
        let gpu = Gpu { choice, name, total_memory: 40 << 30, free_memory: 20 << 30 };
        assert_eq!(of(Selected::Gpu(gpu.clone())).for_planning().memory_bytes, 36 << 30);
        assert_eq!(settings(Selected::default()), (64, KvType::Q8, 1000));
        assert_eq!(settings(Selected::Candle), (MAX_HOST_THREADS, KvType::F16, 1000));
        assert_eq!(settings(Selected::Gpu(gpu)), (MAX_HOST_THREADS, KvType::F16, 18 << 30));
    }
}
