//! The weights of a component as diffusers and transformers save it: a folder with `config.json` and safetensors.

use outpost_kernels::DType;

use crate::models::error::ModelError;
use crate::models::safetensors::ModelFolder;
use crate::models::weights::{Role, Rows, Weights};

/// A component's tensors, by diffusers' names.
#[derive(Clone, Copy, Debug)]
pub struct DiffusersWeights<'a> {
    folder: &'a ModelFolder,
    /// Prefix of tensor names in some files.
    prefix: &'static str,
}

/// Names of attention projections before diffusers 0.12.
const OLD_NAMES: &[(&str, &str)] = &[("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")];
/// Tensors that are not used.
const IDLE: &[&str] = &["position_ids"];

impl<'a> DiffusersWeights<'a> {
    pub fn new(folder: &'a ModelFolder) -> Self {
        let prefix = if folder.names().any(|name| name.starts_with("text_model.")) { "text_model." } else { "" };
        Self { folder, prefix }
    }
}

impl Weights for DiffusersWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let ending = if role == Role::Weight { "weight" } else { "bias" };
        let known = |name: &String| self.folder.tensor(name).is_some();
        let own = format!("{stem}.{ending}");
        let prefixed = format!("{}{stem}.{ending}", self.prefix);
        let old = || {
            let (before, (_, old)) = OLD_NAMES.iter().find_map(|names| Some((stem.strip_suffix(names.0)?, names)))?;
            Some(format!("{before}{old}.{ending}")).filter(known)
        };
        // A tensor that is no layer's weight or bias.
        let plain = || Some(stem.to_owned()).filter(|stem| role == Role::Weight && known(stem));
        let here = Some(prefixed).filter(known).or_else(|| Some(own.clone()).filter(known));
        here.or_else(old).or_else(plain).or(Some(own))
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
        let idle = |name: &str| IDLE.iter().any(|idle| name.ends_with(idle));
        self.folder.names().filter(|name| !idle(name)).map(str::to_owned).collect()
    }
}
