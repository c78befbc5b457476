//! Transcriptions and translations of audio files, from an upload to the events of the engine.
//!
//! A file is measured first, because admission needs its length. It is then decoded by a thread of its own while it is
//! transcribed: the engine takes windows as it needs them, so memory is bounded however long the file is.

mod audio_source;
mod measuring_permits;
mod running;
mod temporary_space;
mod upload;

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::sync::oneshot;

use audio_source::AudioSource;
use measuring_permits::MeasuringPermits;
use running::Progress;
pub use running::{RunningTranscription, Transcript};
use temporary_space::TemporarySpace;
use upload::Held;
pub use upload::{ReceivedAudio, Upload, too_large};

use crate::audio::{AudioError, lower_thread_priority};
use crate::calls::blocking::run_blocking;
use crate::calls::errors;
use crate::calls::models::model_name::authorize_name;
use crate::calls::upstream::errors::unsupported;
use crate::calls::upstream::models::{ServedModel, UpstreamModels};
use crate::calls::upstream::transcription_request::{self as remote, TranscriptionRequest as UpstreamRequest};
use crate::clock_rng::ClockRng;
use crate::disk_space::DiskReserve;
use crate::engine::{Engine, Transcription, TranscriptionModel, TranscriptionRequest, TranscriptionTask};
use crate::error::{Code, Error, Result};
use crate::ids::{ProjectId, TranscriptionId};
use crate::service::access::{Access, Scope};
use crate::service::limits::concurrency_limit::ConcurrencyLimit;
use crate::service::usage::{UsageRecorder, seconds};
use crate::upstream::{Kind, UpstreamModel};

/// Audio files that are received or transcribed at once, in all and per project; more are refused. Each has a temporary
/// file, and while it is transcribed a thread and a process that decode it.
const MAX_FILES: usize = 32;
const MAX_FILES_PER_PROJECT: usize = 16;

/// The settings of transcriptions.
#[derive(Clone, Debug)]
pub struct TranscriptionSettings {
    /// The `outpost` program, which decodes audio in a child process. `None`: audio is refused.
    pub program: Option<PathBuf>,
    /// The folder of temporary files.
    pub folder: PathBuf,
    /// Of the disk with that folder.
    pub reserve: DiskReserve,
    /// The most bytes of an audio file.
    pub max_bytes: u64,
    /// The longest audio; seconds.
    pub max_seconds: u32,
}

/// Runs transcriptions and translations.
pub struct Transcriptions {
    engine: Engine,
    clock_rng: Arc<dyn ClockRng>,
    settings: TranscriptionSettings,
    upstream: UpstreamModels,
    source: AudioSource,
    files: Arc<ConcurrencyLimit>,
    space: Arc<TemporarySpace>,
    measuring: MeasuringPermits,
}

/// A request; `http` has validated each field on its own.
pub struct TranscriptionCall {
    pub model: String,
    pub task: TranscriptionTask,
    /// The code of the language; `None`: it is detected.
    pub language: Option<String>,
    pub prompt: Option<String>,
    pub temperature: f32,
    /// Requests the times of words.
    pub words: bool,
    /// Requests the log-probabilities of tokens. Models of this server always give them.
    pub logprobs: bool,
}

impl Transcriptions {
    pub fn new(
        engine: Engine,
        clock_rng: Arc<dyn ClockRng>,
        settings: TranscriptionSettings,
        upstream: UpstreamModels,
    ) -> Self {
        let files = ConcurrencyLimit::new("audio files are being transcribed", MAX_FILES, MAX_FILES_PER_PROJECT);
        let source = AudioSource::new(settings.program.clone(), settings.max_seconds);
        let space = TemporarySpace::new(settings.reserve.clone());
        Self { engine, clock_rng, settings, upstream, source, files, space, measuring: MeasuringPermits::default() }
    }

    /// Stops the processes that decode audio files, when the server stops.
    pub fn abort(&self) {
        self.source.stop();
    }

    /// Admits an upload before any of it is read. It counts against the client's `address`, if known.
    pub fn receive(&self, access: &Access, address: Option<IpAddr>) -> Result<Upload> {
        access.require(access.project(), Scope::Inference)?;
        let slot = self.files.acquire_from(access.project(), address)?;
        let held = Held { _slot: slot, space: self.space.share(access.project()) };
        Ok(Upload::new(self.settings.folder.clone(), self.settings.max_bytes, held))
    }

    /// Resolves the model, measures the audio, admits it and submits it to the engine. Usage is added to `recorder`.
    pub async fn start(
        &self,
        access: &Access,
        mut call: TranscriptionCall,
        audio: ReceivedAudio,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningTranscription> {
        authorize_name(&self.engine, access, &mut call.model)?;
        let model = self
            .upstream
            .serve::<TranscriptionModel, _>(access, &call.model, &[Kind::Transcription], &recorder, || Ok(()))
            .await?;
        match &model {
            ServedModel::Local(model, ()) => check_languages(model, &call)?,
            ServedModel::Upstream(model) if call.logprobs => return Err(unsupported(&model.id, "include")),
            ServedModel::Upstream(_) => {}
        }
        let (audio, measured_millis) = self.measure(access.project(), audio).await?;
        recorder.charge_audio(measured_millis).await?;
        let ReceivedAudio { file, held } = audio;
        let held = Arc::new(held);
        let audio = Progress { measured_millis, decoded_millis: Arc::default(), transcribed: 0.0 };
        let (events, decoded) = match model {
            ServedModel::Local(model, ()) => {
                let request = TranscriptionRequest {
                    task: call.task,
                    language: call.language,
                    prompt: call.prompt,
                    temperature: call.temperature,
                    words: call.words,
                    seed: if call.temperature == 0.0 { 0 } else { self.draw_seed() },
                    tenant: access.project().to_u128(),
                };
                let decoded_millis = Arc::clone(&audio.decoded_millis);
                let (events, decoded) =
                    self.transcribe(model, request, (file, Arc::clone(&held)), decoded_millis).await?;
                (events, Some(decoded))
            }
            ServedModel::Upstream(model) => {
                let events = self.transcribe_upstream(&model, call, file, seconds(measured_millis)).await?;
                // The target has done its work, so a client that leaves from now on is charged for it.
                recorder.set_audio(measured_millis);
                (events, None)
            }
        };
        let id = TranscriptionId::generate(&*self.clock_rng);
        Ok(RunningTranscription { id, events, decoded, audio, recorder, _held: held })
    }

    /// Submits a request to the engine, and starts the thread that decodes the file for it. Returns how that ended, too.
    async fn transcribe(
        &self,
        model: Arc<TranscriptionModel>,
        request: TranscriptionRequest,
        (file, held): (File, Arc<Held>),
        decoded_millis: Arc<AtomicU64>,
    ) -> Result<(Transcription, oneshot::Receiver<Result<()>>)> {
        let (engine, source) = (self.engine.clone(), self.source.clone());
        let (done, decoded) = oneshot::channel();
        let submit = move || {
            let refused = |refused| errors::from_refused(model.id(), refused);
            let (windows, events) = engine.transcribe(&model, &request).map_err(refused)?;
            let decode = move || {
                lower_thread_priority();
                let decoded = source.send_windows(&file, &windows, &decoded_millis).map_err(|error| refuse(&error));
                // The audio ends before the outcome is known. Closing a large file takes a while, so that is last.
                drop(windows);
                let _ = done.send(decoded);
                drop((file, held));
            };
            std::thread::Builder::new().name("audio-windows".to_owned()).spawn(decode).map_err(Error::internal)?;
            Ok(events)
        };
        Ok((run_blocking(submit).await?, decoded))
    }

    /// Sends the file to an upstream model and waits for the whole transcript. `length`: seconds of audio. It is measured
    /// here, because it is what is metered.
    async fn transcribe_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        call: TranscriptionCall,
        file: File,
        length: f64,
    ) -> Result<Transcription> {
        let operation = match call.task {
            TranscriptionTask::Transcribe => "audio/transcriptions",
            TranscriptionTask::Translate => "audio/translations",
        };
        let request = UpstreamRequest {
            file,
            operation,
            language: call.language,
            prompt: call.prompt,
            temperature: call.temperature,
            words: call.words,
            boundary: format!("outpost-{:016x}{:016x}", self.draw_seed(), self.draw_seed()),
        };
        let sent = request.call(model, length);
        let (events, _) = self.upstream.whole(sent, move |body| remote::read(body, length)).await?;
        Ok(Transcription::finished(events))
    }

    /// The file and its length in milliseconds, rounded up.
    async fn measure(&self, project: ProjectId, audio: ReceivedAudio) -> Result<(ReceivedAudio, u64)> {
        let permit = self.measuring.acquire(project).await?;
        let source = self.source.clone();
        run_blocking(move || {
            let _permit = permit;
            let millis = source.measure(&audio.file).map_err(|error| refuse(&error))?;
            Ok((audio, millis))
        })
        .await
    }

    /// A seed for temperatures above 0. At 0, the same file gives the same text, even where a window is decoded again.
    fn draw_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Refuses a language that the model does not know, and translations by a model that knows only English.
fn check_languages(model: &TranscriptionModel, call: &TranscriptionCall) -> Result<()> {
    let known = model.languages();
    let id = model.id();
    if call.task == TranscriptionTask::Translate && known == ["en"] {
        let text = format!(
            "The model '{id}' knows only English and cannot translate. Send a multilingual model, such as whisper-base."
        );
        return Err(Error::invalid("model", text));
    }
    match &call.language {
        Some(language) if !known.contains(&language.as_str()) => {
            let codes = known.join(", ");
            let text = format!("'language' is '{language}', which the model '{id}' does not know. It knows: {codes}.");
            Err(Error::invalid("language", text))
        }
        _ => Ok(()),
    }
}

/// The API error for a file that cannot be decoded.
fn refuse(error: &AudioError) -> Error {
    match error {
        AudioError::NotStarted { reason } => {
            let text = "The server cannot start the process that decodes audio. Try again later; the operator can free \
                        memory or processes.";
            Error::new(Code::Overloaded, text).with_cause(reason.clone()).retry_after(errors::MEMORY_FREED)
        }
        AudioError::Unreadable { reason } => Error::internal(reason.clone()),
        other => Error::invalid("file", format!("'file' cannot be transcribed: {other}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::{AudioError, Code, refuse};

    #[test]
    fn errors_of_files_name_the_field_and_those_of_the_server_do_not() {
        for error in [AudioError::EmptyFile, AudioError::NotAudio, AudioError::TooLong { max_seconds: 5 }] {
            let refused = refuse(&error);
            assert_eq!((refused.code(), refused.param_name()), (Code::InvalidParameter, Some("file")), "{refused}");
        }
        let reason = || "no memory".to_owned();
        assert_eq!(refuse(&AudioError::NotStarted { reason: reason() }).code(), Code::Overloaded);
        assert_eq!(refuse(&AudioError::Unreadable { reason: reason() }).code().status(), 500);
    }
}
