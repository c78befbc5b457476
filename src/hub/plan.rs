//! Decides what a pull will download, from the list of files and from headers.

use super::client::Hub;
use super::error::HubError;
use super::folder_selection::folder_kind;
use super::hugging_face::Repository;
use super::quantization::{Candidate, candidates};
use super::reference::HuggingFaceModel;
use super::remote_file::{Place, PlannedFile};
use crate::catalog::{is_model_name, is_reserved};
use crate::display::{format_bytes, one_line, shorten};
use crate::download::Checksum;
use crate::engine::{MemoryNeed, ModelInfo, Settings};
use crate::progress::Progress;

/// What limits the choice.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The model's name in the models folder; else that of the file or the repository.
    pub name: Option<String>,
    /// The expected hash of the only file, in lower-case hex.
    pub sha256: Option<String>,
    /// Threads and memory for models.
    pub settings: Settings,
}

/// The chosen files, and what is known of them.
#[derive(Clone, Debug)]
pub struct Plan {
    pub model: HuggingFaceModel,
    pub repository: Repository,
    /// The GGUF files of the repository; empty for a model of another format.
    pub candidates: Vec<Candidate>,
    /// The index of the chosen one.
    pub chosen: Option<usize>,
    pub files: Vec<PlannedFile>,
    pub info: ModelInfo,
    pub need: MemoryNeed,
    /// The memory for models, in bytes.
    pub limit: u64,
    /// The name that the model gets.
    pub name: String,
}

impl Plan {
    /// The size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The memory that another candidate needs, in bytes: that of the chosen one, with the weights in proportion to the file.
    pub fn estimate(&self, candidate: &Candidate) -> u64 {
        let others = self.need.total().saturating_sub(self.need.weights);
        let scaled = u128::from(self.need.weights) * u128::from(candidate.bytes) / u128::from(self.bytes().max(1));
        others.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// # Errors
    /// If the model would not fit into the memory for models.
    pub fn check_memory(&self) -> Result<(), HubError> {
        if self.need.total() <= self.limit {
            return Ok(());
        }
        let fits = |it: &&Candidate| it.is_possible() && self.estimate(it) <= self.limit;
        let smaller = self.candidates.iter().find(fits);
        let smaller = smaller.map(|it| format!("{} needs about {}", it.label(), format_bytes(self.estimate(it))));
        let (name, need, limit) = (self.name.clone(), Box::new(self.need), self.limit);
        Err(HubError::TooLarge { name, need, limit, smaller })
    }
}

impl Hub {
    /// Chooses files of a repository and reads their headers. GGUF files are preferred.
    pub fn plan(
        &self,
        model: &HuggingFaceModel,
        options: &PlanOptions,
        progress: &mut dyn Progress,
    ) -> Result<Plan, HubError> {
        let repository = self.repository(model, progress)?;
        let (found, limit) = (candidates(&repository.files), options.settings.memory_bytes);
        let place = Place { model, commit: &repository.commit };
        let no_gguf = found.is_empty() && model.selector.as_deref().is_none_or(|selector| selector == "fp16");
        let (candidates, chosen, mut files, info, need) = match folder_kind(&repository.files).filter(|_| no_gguf) {
            Some(kind) => {
                let (files, info, need) = self.plan_folder(place, &repository, kind, &options.settings, progress)?;
                (found, None, files, info, need)
            }
            None => {
                let choice = self.plan_gguf(place, &repository, found, &options.settings, progress)?;
                (choice.candidates, Some(choice.chosen), vec![choice.file], choice.info, choice.need)
            }
        };
        match files.as_mut_slice() {
            [only] => expect_hash(only, options.sha256.as_deref())?,
            several if options.sha256.is_some() => {
                let count = several.len();
                return Err(HubError::Setting(format!("--sha256 is for one file, but the model has {count}")));
            }
            _ => {}
        }
        let default = match chosen {
            Some(_) => files.first().map_or("", |file| file.path.rsplit('/').next().unwrap_or_default()),
            None => model.name(),
        };
        let name = name(options.name.as_deref(), default.trim_end_matches(".gguf"))?;
        if let (Some(_), Some(file)) = (chosen, files.first_mut()) {
            file.local = format!("{name}.gguf");
        }
        let model = model.clone();
        Ok(Plan { model, repository, candidates, chosen, files, info, need, limit, name })
    }
}

/// Checks a file's hash against the one that the user gave, and sets it.
fn expect_hash(file: &mut PlannedFile, expected: Option<&str>) -> Result<(), HubError> {
    let Some(expected) = expected else { return Ok(()) };
    if let Checksum::Sha256(found) = &file.checksum
        && found != expected
    {
        let (file, expected, found) = (file.path.clone(), expected.to_owned(), found.clone());
        return Err(HubError::OtherHash { file, expected, found });
    }
    file.checksum = Checksum::Sha256(expected.to_owned());
    Ok(())
}

/// The name of the model: the wanted one, or the default in lower case.
fn name(wanted: Option<&str>, default: &str) -> Result<String, HubError> {
    let name = wanted.map_or_else(|| default.to_ascii_lowercase(), str::to_owned);
    match is_model_name(&name) && !is_reserved(&name) {
        true => Ok(name),
        false => Err(HubError::BadName(shorten(&one_line(&name)))),
    }
}
