//! Reads the weights of models on a device, within the memory budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DiscoveredModel, Eviction, Model, Registry};
use crate::checkpoint::Checkpoint;
use crate::device_worker::DeviceWorker;
use crate::embedding::EncoderModel;
use crate::error::LoadError;
use crate::image::{self, ImageModel};
use crate::model_info::ModelKind;
use crate::runtime::catch_panic::catch_load_panic;
use crate::settings::Settings;
use crate::speech::{SpeechCheckpoint, SpeechModel};
use crate::text::model::TextModel;
use crate::transcription::{TranscriptionModel, WhisperCheckpoint};
use outpost_models::backend::Backend;
use outpost_models::step_memory::scratch_bytes;
use outpost_models::weights::Footprint;

impl Registry {
    /// Reads a model's weights on a device.
    pub(super) fn load_on<B: Backend>(
        &self,
        device: &DeviceWorker,
        backend: &B,
        found: &DiscoveredModel,
        eviction: Eviction,
        broken: &dyn Fn(String) -> LoadError,
    ) -> Result<Model, LoadError> {
        match found.info.kind {
            ModelKind::Image => return self.load_image_checkpoint(device, backend, found, eviction, broken),
            ModelKind::Transcription => return self.load_whisper(device, backend, found, eviction, broken),
            ModelKind::Speech => return self.load_kokoro(device, backend, found, eviction, broken),
            _ => {}
        }
        let (id, encoder, index) = (&found.info.id, found.is_encoder(), device.runtime.device.index);
        let files = if encoder { Checkpoint::open } else { Checkpoint::open_text };
        let files = catch_load_panic(|| files(&found.path)).map_err(broken)?;
        let needs = || match encoder {
            true => files.encoder_needs(backend),
            false => text_needs(&files, backend, &device.runtime.settings),
        };
        let (footprint, scratch) = catch_load_panic(needs).map_err(broken)?;
        let lease = self.lease(device, footprint.weights + footprint.loading, scratch, eviction)?;
        let isolation = self.isolation();
        let open = || {
            if encoder {
                let precision = self.settings.precisions.of(id);
                let mut model =
                    EncoderModel::open(id, index, (&found.path, &files), &isolation, lease, precision, backend)?;
                model.shrink_lease(footprint.weights);
                return Ok(Model::Encoder(Arc::new(model)));
            }
            let key = self.next_key.fetch_add(1, Ordering::Relaxed);
            let mut model = TextModel::open(id, index, key, (&found.path, &files), &isolation, lease, backend)?;
            model.shrink_lease(footprint.weights);
            Ok(Model::Text(Arc::new(model)))
        };
        catch_load_panic(open).map_err(broken)
    }

    fn load_image_checkpoint<B: Backend>(
        &self,
        device: &DeviceWorker,
        backend: &B,
        found: &DiscoveredModel,
        eviction: Eviction,
        broken: &dyn Fn(String) -> LoadError,
    ) -> Result<Model, LoadError> {
        let (id, runtime) = (&found.info.id, &device.runtime);
        let precision = self.settings.precisions.of(id);
        let components = catch_load_panic(|| image::open(&found.path)).map_err(broken)?;
        let footprint = image::footprint(&components, backend, precision);
        let lease = self.lease(device, footprint.weights + footprint.loading, 0, eviction)?;
        let index = runtime.device.index;
        let open = || ImageModel::open(id, index, &components, &self.isolation(), lease, precision, backend);
        let mut model = catch_load_panic(open).map_err(broken)?;
        model.lease.shrink(footprint.weights);
        Ok(Model::Image(Arc::new(model)))
    }

    fn load_whisper<B: Backend>(
        &self,
        device: &DeviceWorker,
        backend: &B,
        found: &DiscoveredModel,
        eviction: Eviction,
        broken: &dyn Fn(String) -> LoadError,
    ) -> Result<Model, LoadError> {
        let (id, index) = (&found.info.id, device.runtime.device.index);
        let precision = self.settings.precisions.of(id);
        let files = catch_load_panic(|| WhisperCheckpoint::open(&found.path)).map_err(broken)?;
        let footprint = catch_load_panic(|| Ok(files.footprint(backend, precision))).map_err(broken)?;
        let lease = self.lease(device, footprint.weights + footprint.loading, 0, eviction)?;
        let open =
            || TranscriptionModel::open(id, index, (&found.path, &files), &self.isolation(), lease, precision, backend);
        let mut model = catch_load_panic(open).map_err(broken)?;
        model.lease.shrink(footprint.weights);
        Ok(Model::Transcription(Arc::new(model)))
    }

    fn load_kokoro<B: Backend>(
        &self,
        device: &DeviceWorker,
        backend: &B,
        found: &DiscoveredModel,
        eviction: Eviction,
        broken: &dyn Fn(String) -> LoadError,
    ) -> Result<Model, LoadError> {
        let (id, index) = (&found.info.id, device.runtime.device.index);
        let precision = self.settings.precisions.of(id);
        let files = catch_load_panic(|| SpeechCheckpoint::open(&found.path)).map_err(broken)?;
        let footprint = catch_load_panic(|| Ok(files.footprint(backend, precision))).map_err(broken)?;
        let lease = self.lease(device, footprint.weights + footprint.loading, 0, eviction)?;
        let open = || SpeechModel::open(id, index, &files, lease, precision, backend);
        let mut model = catch_load_panic(open).map_err(broken)?;
        model.lease.shrink(footprint.weights);
        Ok(Model::Speech(Arc::new(model)))
    }
}

/// The memory for the weights of a chat model, and the bytes of scratch buffers for its steps.
pub(crate) fn text_needs<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    settings: &Settings,
) -> Result<(Footprint, u64), String> {
    let weights = checkpoint.weights();
    let config = weights.decoder_config().map_err(|error| error.to_string())?;
    Ok((Footprint::new(weights, backend), scratch_bytes(&config, backend, &settings.step_limits())))
}
