//! The kinds of models.

use std::path::Path;
use std::sync::Arc;

use super::model::{LoadOptions, LoadSource, LoadedModel, MemoryNeed, Model, ModelFiles, Runs};
use super::queue::{QueuedWorkload, Queues, RequestQueue};
use crate::device_backend::DeviceBackend;
use crate::embedding::EncoderModel;
use crate::error::LoadError;
use crate::image::ImageModel;
use crate::model_info::{ModelInfo, ModelKind};
use crate::precision::Precision;
use crate::runtime::Runtime;
use crate::runtime::catch_panic::catch_load_panic;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::KindMetrics;
use crate::runtime::workload::Workload;
use crate::settings::Settings;
use crate::speech::SpeechModel;
use crate::text::model::TextModel;
use crate::training::TrainingWorkload;
use crate::transcription::TranscriptionModel;
use outpost_models::backend::{Candle, Cpu};

/// Every kind, in the order of the turns of their workloads.
pub static KINDS: [Kind; 5] = [
    Kind::of::<TextModel>(),
    Kind::of::<EncoderModel>(),
    Kind::of::<TranscriptionModel>(),
    Kind::of::<SpeechModel>(),
    Kind::of::<ImageModel>(),
];

/// The functions of a kind of models, for callers that learn the kind at run time.
pub struct Kind {
    kinds: &'static [ModelKind],
    describe: fn(&ModelFiles<'_>, &mut ModelInfo) -> bool,
    /// The memory that a model in full precision needs on a device. The arguments are the model's main file, the device and
    /// the settings, adapted to the device.
    pub memory: Memory,
    /// Reads the weights of a model on a device. The settings are adapted to the device.
    pub load: Load,
    /// Adds the queue of a device, and returns its workload.
    start: fn(&mut Queues, &Arc<Runtime>) -> Box<dyn Workload>,
    /// The number that [`KindMetrics::waiting`] counts on a device.
    pub waiting: fn(&Queues) -> usize,
    pub metrics: KindMetrics,
}

type Memory = fn(&Path, &DeviceBackend, &Settings) -> Result<MemoryNeed, String>;
type Load = fn(&LoadSource<'_>, &DeviceBackend, &Settings, &LoadHooks<'_>) -> Loading;
type Loading = Result<Arc<dyn LoadedModel>, LoadError>;

/// What the registry does while a model is loaded.
pub struct LoadHooks<'a> {
    /// Leases memory for weights, for loading and for scratch buffers.
    pub lease: &'a dyn Fn(&MemoryNeed) -> Result<Lease, LoadError>,
    /// Records that the model's files cannot be used, for this reason.
    pub broken: &'a dyn Fn(String) -> LoadError,
}

impl Kind {
    const fn of<M: Model>() -> Self
    where
        Cpu: Runs<M>,
        Candle: Runs<M>,
    {
        Self {
            kinds: M::KINDS,
            describe: M::describe,
            memory: memory::<M>,
            load: load::<M>,
            start: Queues::start::<M::Workload>,
            waiting: waiting::<M>,
            metrics: M::METRICS,
        }
    }

    /// Describes a model of a format that several kinds have. Returns `false` if it is of no kind. Text generation is asked last: it
    /// describes every GGUF file, and decoders that embed texts have its architectures.
    pub fn describe(files: &ModelFiles<'_>, info: &mut ModelInfo) -> bool {
        KINDS.iter().rev().any(|kind| (kind.describe)(files, info))
    }

    /// The kind of the models that do this.
    pub fn find(kind: ModelKind) -> Option<&'static Self> {
        KINDS.iter().find(|one| one.kinds.contains(&kind))
    }
}

/// The queues and the workloads of a device. Text generation is first, because it computes in every round
/// ([`Worker`](crate::runtime::supervised_worker::Worker)); training is last, because it gives way to all others.
pub fn start_queues(runtime: &Arc<Runtime>) -> (Queues, Vec<Box<dyn Workload>>) {
    let mut queues = Queues::default();
    let mut workloads: Vec<_> = KINDS.iter().map(|kind| (kind.start)(&mut queues, runtime)).collect();
    workloads.push(queues.start::<TrainingWorkload>(runtime));
    (queues, workloads)
}

fn waiting<M: Model>(queues: &Queues) -> usize {
    queues.get::<<M::Workload as QueuedWorkload>::Queue>().map_or(0, RequestQueue::waiting)
}

/// The backend of a device as one that runs models of kind `M`. Every network that serves requests is built on the result.
fn runner<M: Model>(device: &DeviceBackend) -> &dyn Runs<M>
where
    Cpu: Runs<M>,
    Candle: Runs<M>,
{
    match device {
        DeviceBackend::Cpu(cpu) => cpu,
        DeviceBackend::Candle(candle) => candle,
    }
}

fn memory<M: Model>(path: &Path, device: &DeviceBackend, settings: &Settings) -> Result<MemoryNeed, String>
where
    Cpu: Runs<M>,
    Candle: Runs<M>,
{
    let options = LoadOptions { precision: Precision::Full, mtp: settings.speculate };
    runner(device).memory(&M::open(path)?, options, settings)
}

fn load<M: Model>(
    source: &LoadSource<'_>,
    device: &DeviceBackend,
    settings: &Settings,
    hooks: &LoadHooks<'_>,
) -> Loading
where
    Cpu: Runs<M>,
    Candle: Runs<M>,
{
    let device = runner::<M>(device);
    let checkpoint = catch_load_panic(|| M::open(source.path)).map_err(hooks.broken)?;
    let need = || device.memory(&checkpoint, source.options, settings);
    let need = catch_load_panic(need).map_err(hooks.broken)?;
    let mut lease = (hooks.lease)(&need)?;
    let loading = lease.split(need.weights);
    let model = catch_load_panic(|| device.load(&checkpoint, source, lease)).map_err(hooks.broken)?;
    drop(loading);
    Ok(Arc::new(model))
}

#[cfg(test)]
mod tests {
    use super::KINDS;
    use crate::model_info::ModelKind;

    #[test]
    fn each_model_is_of_one_kind() {
        for kind in ModelKind::ALL {
            assert_eq!(KINDS.iter().filter(|one| one.kinds.contains(kind)).count(), 1, "{kind:?}");
        }
    }
}
