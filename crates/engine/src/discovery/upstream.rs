//! Describes a model that other servers run, by its `upstream.toml`.

use std::path::Path;
use std::sync::Arc;

use crate::model_info::ModelInfo;
use outpost_upstream::{Kind, UpstreamModel};

/// Fills in the description. Returns the model, unless its file is not valid.
pub fn describe(path: &Path, info: &mut ModelInfo) -> Option<Arc<UpstreamModel>> {
    // The size of the file says nothing about the model.
    info.bytes = 0;
    let model = match UpstreamModel::read(&info.id, path) {
        Ok(model) => model,
        Err(problem) => {
            info.problem = Some(problem);
            return None;
        }
    };
    info.kind = model.kind.into();
    info.has_chat_template = model.kind == Kind::Chat;
    info.context_window = model.context;
    info.embedding_dimensions = model.dimensions;
    Some(model)
}
