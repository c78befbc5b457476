//! Loads base models for training.

use super::{Eviction, Registry};
use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::runtime::catch_panic::catch_load_panic;
use crate::training::{Memory, TrainableModel, TrainingData, TrainingOptions, micro_batch};
use outpost_models::decoder::Decoder;
use outpost_models::peft;
use outpost_models::training::LoraParameters;
use outpost_models::weights::Footprint;

impl Registry {
    /// Loads a chat model for training. Blocks while its weights are read. `saved`: the state of a training that is
    /// resumed.
    ///
    /// # Errors
    /// If the model cannot be loaded or trained, or does not fit into memory.
    pub fn load_for_training(
        &self,
        id: &str,
        data: &TrainingData,
        options: &TrainingOptions,
        saved: Option<&[u8]>,
    ) -> Result<TrainableModel, LoadError> {
        let found = self.find_base(id)?;
        let unusable = |reason: String| LoadError::Unusable { id: id.to_owned(), reason };
        let device =
            self.devices.get(self.device_index(id)).ok_or_else(|| unusable("its device does not exist".to_owned()))?;
        let backend = device.backend.for_training();
        let checkpoint = catch_load_panic(|| Checkpoint::open_text(&found.path)).map_err(unusable)?;
        let config = || checkpoint.weights().decoder_config().map_err(|error| error.to_string());
        let config = catch_load_panic(config).map_err(unusable)?;
        let targets = targets(config.adapter_modules, &options.target_modules).map_err(unusable)?;
        let footprint = Footprint::new(checkpoint.weights(), &backend);
        let memory = Memory::new(&config, data, options);
        let mut lease = None;
        let mut refusal = None;
        let fixed = saved.map(micro_batch).transpose().map_err(unusable)?;
        for (tokens, keep_graphs) in memory.choices(fixed) {
            let bytes = memory.bytes(tokens, keep_graphs) + footprint.weights + footprint.loading;
            match self.lease(device, bytes, 0, Eviction::IdleModels) {
                Ok(taken) => {
                    lease = Some((taken, tokens, keep_graphs));
                    break;
                }
                Err(error) => refusal = Some(error),
            }
        }
        let Some((mut lease, micro_batch, keep_graphs)) = lease else {
            return Err(refusal.unwrap_or_else(|| unusable("there are no examples".to_owned())));
        };
        let load = || Decoder::load(checkpoint.weights(), &backend).map_err(|error| error.to_string());
        let loading = lease.split(memory.bytes(micro_batch, keep_graphs) + footprint.weights);
        let decoder = catch_load_panic(load).map_err(unusable)?;
        drop(loading);
        let is_target = |projection: &str| {
            targets.is_empty() || targets.iter().any(|(_, projections)| projections.contains(&projection))
        };
        let TrainingOptions { rank, alpha, seed, .. } = *options;
        let parameters = LoraParameters::new(&decoder, rank as usize, alpha, is_target, seed);
        let parameters = parameters.map_err(|error| unusable(error.to_string()))?;
        let has = |projections: &[&str]| {
            parameters.modules.iter().any(|module| projections.iter().any(|name| module.tensor.ends_with(name)))
        };
        if let Some((name, _)) = targets.iter().find(|(_, projections)| !has(projections)) {
            return Err(unusable(match config.is_recurrent() {
                true => format!("{}, or whose rows its GGUF file has in another order", no_module(name)),
                false => no_module(name),
            }));
        }
        let device = device.runtime.device.index;
        Ok(TrainableModel { id: id.to_owned(), device, decoder, backend, parameters, micro_batch, keep_graphs, lease })
    }
}

/// The modules with these names, each with the ends of its tensors' names in GGUF.
fn targets<'a>(
    modules: &'static [peft::Module],
    names: &'a [String],
) -> Result<Vec<(&'a str, Vec<&'static str>)>, String> {
    let with_projections = |name: &'a String| match peft::projections_of(modules, name) {
        projections if projections.is_empty() => Err(no_module(name)),
        projections => Ok((name.as_str(), projections)),
    };
    names.iter().map(with_projections).collect()
}

fn no_module(name: &str) -> String {
    format!("target_modules has {name}, which the model does not have")
}
