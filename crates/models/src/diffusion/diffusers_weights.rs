//! The weights of a component as diffusers and transformers save them: a folder with `config.json` and safetensors
//! files.

use crate::backend::DType;

use crate::error::ModelError;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Rows, Weights};

/// The tensors of a component by diffusers' names.
#[derive(Clone, Copy, Debug)]
pub struct DiffusersWeights<'a> {
    folder: &'a ModelFolder,
    /// The prefix of tensor names in some files.
    prefix: &'static str,
}

/// Names of attention projections before diffusers 0.12.
const OLD_NAMES: &[(&str, &str)] = &[("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")];
/// Suffixes of unused tensors.
const UNUSED_SUFFIXES: &[&str] = &["position_ids"];

impl<'a> DiffusersWeights<'a> {
    pub fn new(folder: &'a ModelFolder) -> Self {
        let prefix = if folder.names().any(|name| name.starts_with("text_model.")) { "text_model." } else { "" };
        Self { folder, prefix }
    }
}

impl Weights for DiffusersWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let suffix = if role == Role::Weight { "weight" } else { "bias" };
        let exists = |name: &String| self.folder.tensor(name).is_some();
        let unprefixed = format!("{stem}.{suffix}");
        let prefixed = format!("{}{stem}.{suffix}", self.prefix);
        let old = || {
            let (parent, (_, old)) = OLD_NAMES.iter().find_map(|names| Some((stem.strip_suffix(names.0)?, names)))?;
            Some(format!("{parent}{old}.{suffix}")).filter(exists)
        };
        // A tensor whose name has no `weight` or `bias` suffix.
        let plain = || Some(stem.to_owned()).filter(|stem| role == Role::Weight && exists(stem));
        let current = Some(prefixed).filter(exists).or_else(|| Some(unprefixed.clone()).filter(exists));
        current.or_else(old).or_else(plain).or(Some(unprefixed))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.folder.shape(name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        self.folder.dtype(name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        self.folder.rows(name, first, count)
    }

    fn names(&self) -> Vec<String> {
        let is_unused = |name: &str| UNUSED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        self.folder.names().filter(|name| !is_unused(name)).map(str::to_owned).collect()
    }
}
