//! Chooses a GGUF file: by its name, and then by its header. Each part of a split file has a header with its own tensors, so
//! those of all parts are read.

use super::client::Hub;
use super::error::HubError;
use super::header_folder::HeaderFolder;
use super::quantization::{Candidate, State, by_preference, select};
use super::reference::ModelReference;
use super::remote_file::PlannedFile;
use super::repository::Repository;
use outpost_common::display::shorten;
use outpost_common::progress::Progress;
use outpost_engine::{MemoryNeed, ModelInfo, Settings};
use outpost_models::gguf::{GgufError, MAX_HEADER_BYTES, parse_header};
use outpost_models::model_files::SplitPart;

/// Bytes of the first read of a header. The next one is four times as long.
const FIRST_READ_BYTES: u64 = 4 << 20;
/// The same for the further parts of a split file, which have no vocabulary.
const FIRST_READ_OF_PART: u64 = 256 << 10;
/// Max bytes of their headers, and of the headers of all parts.
const MAX_HEADER_BYTES_OF_PART: u64 = 8 << 20;
const MAX_HEADER_SUM: u64 = 256 << 20;
/// Candidates whose headers are read to find a model that is supported and fits.
const MAX_EXAMINED: usize = 4;
/// Max candidates that an error lists.
const MAX_LISTED: usize = 30;

/// A chosen file, and what its header says.
pub(super) struct GgufChoice {
    pub candidates: Vec<Candidate>,
    pub chosen: usize,
    /// The file, or the parts of a split one.
    pub files: Vec<PlannedFile>,
    pub info: ModelInfo,
    pub need: MemoryNeed,
}

/// The files of a candidate, and what their headers say.
type ReadCandidate = (Vec<PlannedFile>, ModelInfo, MemoryNeed);

impl Hub {
    /// Chooses the file that the user named, or else the first one by preference that is supported and fits into memory. If
    /// none fits, the first one that is supported.
    pub(super) fn plan_gguf(
        &self,
        reference: &ModelReference,
        repository: &Repository,
        mut candidates: Vec<Candidate>,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<GgufChoice, HubError> {
        let order = order(reference, repository, &candidates, settings.memory_bytes)?;
        let (mut failed, mut best) = (None, None);
        for index in order.into_iter().take(MAX_EXAMINED) {
            let Some(candidate) = candidates.get_mut(index) else { continue };
            let (files, info, need) = match self.read_candidate(reference, candidate, settings, progress) {
                Ok(read) => read,
                Err(HubError::Unsupported { file, why }) => {
                    candidate.state = State::Unsupported(why.clone());
                    failed.get_or_insert(HubError::Unsupported { file, why });
                    continue;
                }
                Err(other) => return Err(other),
            };
            candidate.bytes = files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes));
            candidate.state = State::Supported;
            let fits = need.total() <= settings.memory_bytes;
            if fits || best.is_none() {
                best = Some((index, files, info, need));
            }
            if fits {
                break;
            }
        }
        match best {
            Some((chosen, files, info, need)) => Ok(GgufChoice { candidates, chosen, files, info, need }),
            None => Err(failed.unwrap_or_else(|| no_model(reference, repository))),
        }
    }

    fn read_candidate(
        &self,
        reference: &ModelReference,
        candidate: &Candidate,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<ReadCandidate, HubError> {
        let unsupported = |why| HubError::Unsupported { file: candidate.file.path.clone(), why };
        if let State::Incomplete(why) = &candidate.state {
            return Err(unsupported(why.clone()));
        }
        if candidate.parts() > 1 {
            progress.note(&format!("reading the headers of {} files", candidate.parts()));
        }
        let headers = HeaderFolder::new()?;
        let (mut files, mut read) = (Vec::new(), 0);
        for file in candidate.files() {
            let file = self.describe_file(reference, file, progress)?;
            if candidate.is_ggml() {
                return self.read_ggml(reference, file, settings, progress);
            }
            let start = self.gguf_header(reference, &file, progress)?;
            read += start.len() as u64;
            if read > MAX_HEADER_SUM {
                return Err(unsupported(format!("the headers of its parts have more than {MAX_HEADER_SUM} bytes")));
            }
            headers.add(header_name(&file.path), &start, file.bytes)?;
            files.push(file);
        }
        let (info, need) = headers.examine(settings).map_err(unsupported)?;
        Ok((files, info, need))
    }

    /// The header of a file, and some of the bytes that follow it.
    fn gguf_header(
        &self,
        reference: &ModelReference,
        file: &PlannedFile,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        let is_further = SplitPart::of(&file.path).is_some_and(|part| part.number > 1);
        let max = file.bytes.min(if is_further { MAX_HEADER_BYTES_OF_PART } else { MAX_HEADER_BYTES });
        let mut size = max.min(if is_further { FIRST_READ_OF_PART } else { FIRST_READ_BYTES });
        loop {
            let start = self.first_bytes(reference, file, size, progress)?;
            if size == max || !matches!(parse_header(&start, file.bytes), Err(GgufError::Short(_))) {
                return Ok(start);
            }
            size = max.min(size * 4);
        }
    }

    /// Headers of tensors are spread over a `ggml-*.bin` file, so its memory is an estimate until it has been downloaded.
    fn read_ggml(
        &self,
        reference: &ModelReference,
        file: PlannedFile,
        settings: &Settings,
        progress: &mut dyn Progress,
    ) -> Result<ReadCandidate, HubError> {
        let start = self.first_bytes(reference, &file, file.bytes.min(FIRST_READ_BYTES), progress)?;
        let headers = HeaderFolder::new()?;
        let examined = headers.add_ggml("ggml-model.bin", &start).and_then(|()| headers.examine(settings));
        let (info, need) = examined.map_err(|why| HubError::Unsupported { file: file.path.clone(), why })?;
        let need = MemoryNeed { weights: need.weights.saturating_add(file.bytes), ..need };
        Ok((vec![file], info, need))
    }
}

/// The name of a file in the folder of headers. Parts keep theirs, which says how they belong together.
fn header_name(path: &str) -> &str {
    match SplitPart::of(path) {
        Some(_) => path.rsplit('/').next().unwrap_or(path),
        None => "model.gguf",
    }
}

/// The candidates to look at, the best first.
fn order(
    reference: &ModelReference,
    repository: &Repository,
    found: &[Candidate],
    limit: u64,
) -> Result<Vec<usize>, HubError> {
    let possible = found.iter().filter(|it| it.is_possible()).map(Candidate::label);
    let possible: Vec<&str> = possible.take(MAX_LISTED).collect();
    let known = if possible.is_empty() { "none".to_owned() } else { possible.join(", ") };
    let Some(selector) = reference.selector() else {
        let order = by_preference(found, limit);
        return match found.iter().find(|it| !it.is_possible()) {
            _ if order.len() > 1 && order.iter().filter_map(|index| found.get(*index)).all(Candidate::is_ggml) => {
                Err(HubError::Several { reference: reference.to_string(), known })
            }
            _ if !order.is_empty() => Ok(order),
            Some(candidate) => Err(impossible(candidate)),
            None => Err(no_model(reference, repository)),
        };
    };
    let selected = select(found, selector);
    match selected.as_slice() {
        [_] => Ok(selected),
        [] if found.is_empty() => Err(no_model(reference, repository)),
        several => {
            let paths = several.iter().filter_map(|index| Some(found.get(*index)?.file.path.as_str())).take(MAX_LISTED);
            let listed = paths.collect::<Vec<_>>().join(", ");
            let known = if listed.is_empty() { known } else { listed };
            Err(HubError::NoCandidate { reference: reference.to_string(), selector: shorten(selector), known })
        }
    }
}

/// Why a candidate cannot be chosen, from the names of its files.
fn impossible(candidate: &Candidate) -> HubError {
    let why = match &candidate.state {
        State::Unsupported(why) => format!("{why} is not supported"),
        _ => candidate.problem().unwrap_or_default().to_owned(),
    };
    HubError::Unsupported { file: candidate.file.path.clone(), why }
}

/// Why there is nothing to choose.
fn no_model(reference: &ModelReference, repository: &Repository) -> HubError {
    let count = |endings: &[&str]| {
        repository.files.iter().filter(|it| endings.iter().any(|ending| it.path.ends_with(ending))).count()
    };
    let why = match (count(&[".safetensors"]), count(&[".bin", ".pt", ".pth", ".ckpt"])) {
        (0, 0) if !repository.unread.is_empty() => {
            let types = repository.unread.join(", ");
            format!(
                "its layers cannot be read: they are compressed archives, large archives with several files, or no archives ({types})"
            )
        }
        (0, 0) => "it has no GGUF and no safetensors files".to_owned(),
        (0, pickles) => format!("it has {pickles} pickle files (.bin, .pt), which are never read"),
        (tensors, _) => format!(
            "it has {tensors} safetensors files, but no GGUF files and no config.json, adapter_config.json or model_index.json"
        ),
    };
    HubError::NoModel { reference: reference.to_string(), why }
}
