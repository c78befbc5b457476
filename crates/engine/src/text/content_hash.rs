//! A hash of a model's weights, so that clients can tell whether two responses come from the same model.
//!
//! Reading whole checkpoints again would double the time to load them, so the hash covers the name, shape and type of
//! each tensor, the middle row of each matrix, and all of each vector. Training changes nearly every row of every matrix that it changes at all.
//!
//! The hash covers names, shapes and rows, not files: a checkpoint in three shards has the hash of the same one in a
//! single file.

use ring::digest::{Context, SHA256};

use outpost_models::ModelError;
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::peft::PeftAdapter;
use outpost_models::weights::Weights;

/// The hash of a network's weights. Does not depend on the names, number and order of its files.
pub fn of_network(weights: &dyn Weights) -> Result<u64, ModelError> {
    let mut hash = Context::new(&SHA256);
    let mut names = weights.names();
    names.sort_unstable();
    for name in &names {
        let shape = weights.shape(name).unwrap_or_default();
        hash.update(format!("{name} {shape:?} {:?}\n", weights.dtype(name)).as_bytes());
        // Each element of a vector is a row. Vectors are small, so they are hashed as a whole.
        let rows: usize = shape.iter().take((shape.len() - 1).max(1)).product();
        let (first, count) = if shape.len() == 1 { (0, rows) } else { (rows / 2, 1) };
        if rows > 0 {
            hash.update(&weights.rows(name, first, count)?.bytes()?);
        }
    }
    Ok(finish(hash))
}

/// The hash of a network's configuration.
pub fn of_config(config: &DecoderConfig) -> u64 {
    let mut hash = Context::new(&SHA256);
    hash.update(format!("{config:?}").as_bytes());
    finish(hash)
}

/// The hash of an adapter: its modules and scales, and all elements of the first and the last module.
pub fn of_adapter(adapter: &PeftAdapter) -> Result<u64, ModelError> {
    let mut hash = Context::new(&SHA256);
    let modules = adapter.modules();
    for module in modules {
        hash.update(
            format!("{} {:?} {} {}\n", module.layer, module.down.shape, module.up.name, module.scale).as_bytes(),
        );
    }
    for module in modules.first().into_iter().chain(modules.last()) {
        for matrix in [&module.down, &module.up] {
            hash.update(&adapter.rows(matrix)?.bytes()?);
        }
    }
    Ok(finish(hash))
}

/// The beginning of a digest.
pub fn finish(hash: Context) -> u64 {
    let first = hash.finish().as_ref().first_chunk().copied();
    first.map_or(0, u64::from_be_bytes)
}
