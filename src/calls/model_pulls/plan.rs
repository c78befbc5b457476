//! The plan of a pull, for a user who chooses.

use std::path::Path;

use crate::catalog::CatalogModel;
use crate::disk_space::DiskSpace;
use crate::hub::{Candidate, Plan, PlannedFile};

/// The plan of a pull: the model that it would install.
#[derive(Clone, Debug)]
pub struct PullPlan {
    /// The model as it was requested.
    pub model: String,
    /// The name that it gets.
    pub name: String,
    /// Set if a model of that name is in the models folder.
    pub installed: bool,
    pub revision: Option<String>,
    pub license: Option<String>,
    /// Set if its license must be accepted on the hub first.
    pub gated: bool,
    pub architecture: Option<String>,
    pub parameters: Option<u64>,
    pub context_window: Option<u32>,
    /// Size of the files.
    pub bytes: u64,
    /// Free space of the disk with the models folder, if it is known.
    pub disk_free_bytes: Option<u64>,
    /// What loading it takes, and what all models may take. `None`: not known before the download.
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: u64,
    pub files: Vec<PlanFile>,
    /// The GGUF files to choose from, from the largest to the smallest.
    pub candidates: Vec<PlanCandidate>,
}

/// A file to download.
#[derive(Clone, Debug)]
pub struct PlanFile {
    pub name: String,
    pub bytes: u64,
}

/// A GGUF file of the repository.
#[derive(Clone, Debug)]
pub struct PlanCandidate {
    /// The first part if it is split.
    pub file: String,
    pub quantization: Option<String>,
    pub bytes: u64,
    pub is_chosen: bool,
    pub memory_bytes: u64,
    /// Why it cannot be installed.
    pub problem: Option<String>,
}

impl PullPlan {
    pub(super) fn of_hub(model: String, plan: &Plan, models_dir: &Path) -> Self {
        let file = |file: &PlannedFile| PlanFile { name: file.path.clone(), bytes: file.bytes };
        let candidates = plan.candidates.iter().enumerate();
        Self {
            model,
            name: plan.name.clone(),
            installed: models_dir.join(&plan.name).exists(),
            revision: Some(plan.repository.revision.clone()),
            license: plan.repository.license.clone(),
            gated: plan.repository.is_gated,
            architecture: Some(plan.info.architecture.clone()),
            parameters: Some(plan.info.parameters),
            context_window: plan.info.context_window,
            bytes: plan.bytes(),
            disk_free_bytes: free_bytes(models_dir),
            memory_bytes: Some(plan.need.total()),
            memory_limit_bytes: plan.limit(),
            files: plan.files.iter().map(file).collect(),
            candidates: candidates.map(|(index, one)| candidate(plan, index, one)).collect(),
        }
    }

    pub(super) fn of_catalog(model: &CatalogModel, memory_limit_bytes: u64, models_dir: &Path) -> Self {
        let files = model.files.iter().map(|file| PlanFile { name: file.name.clone(), bytes: file.bytes }).collect();
        Self {
            model: model.name.clone(),
            name: model.name.clone(),
            installed: models_dir.join(&model.name).exists(),
            revision: None,
            license: Some(model.license.clone()),
            gated: false,
            architecture: None,
            parameters: None,
            context_window: None,
            bytes: model.bytes(),
            disk_free_bytes: free_bytes(models_dir),
            memory_bytes: None,
            memory_limit_bytes,
            files,
            candidates: Vec::new(),
        }
    }
}

fn candidate(plan: &Plan, index: usize, candidate: &Candidate) -> PlanCandidate {
    let is_chosen = plan.chosen == Some(index);
    PlanCandidate {
        file: candidate.file.path.clone(),
        quantization: candidate.quantization.clone(),
        bytes: candidate.bytes,
        is_chosen,
        memory_bytes: if is_chosen { plan.need.total() } else { plan.estimate(candidate) },
        problem: candidate.problem().map(str::to_owned),
    }
}

fn free_bytes(models_dir: &Path) -> Option<u64> {
    DiskSpace::of(models_dir).ok().map(|space| space.free)
}
