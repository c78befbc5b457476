//! Speech, from a text to the bytes of an audio file, and the voices that speak.
//!
//! A text is spoken part by part. Each part is metered and encoded when it is taken, so that the first sound is early and
//! little is in memory.

mod part_source;
mod running;
mod voice_selection;

use std::sync::Arc;

use serde_json::Value;

use part_source::{PartSource, PcmParts};
pub use running::RunningSpeech;

pub use crate::audio::AudioFormat;
use crate::audio::ENCODER_RATE;
use crate::calls::blocking::run_blocking;
use crate::calls::errors::{self, ModelErrors};
use crate::calls::models::model_name::{authorize_name, resolve_alias};
use crate::calls::upstream::byte_stream::ByteStream;
use crate::calls::upstream::errors::{from_failure, unsupported};
use crate::calls::upstream::models::{ServedModel, UpstreamModels};
use crate::calls::upstream::request_fields::{Fields, json_call, number};
use crate::calls::upstream::response_limits;
use crate::engine::{Engine, ModelInfo, ModelKind, Refused, SpeechModel, SpeechRequest, VoiceInfo};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::limits::concurrency_limit::{ConcurrencyLimit, Slot};
use crate::service::usage::UsageRecorder;
use crate::upstream::{Api, Kind, UpstreamModel};

/// Concurrent requests whose texts are turned into phonemes, in all and per project; more are refused.
const MAX_PREPARING: usize = 64;
const MAX_PREPARING_PER_PROJECT: usize = 32;
/// Amount in the project's bucket that admits a request, in milliseconds. Its length is not known yet.
const ADMISSION_MILLIS: u64 = 1;
/// The same text gives the same audio.
const SEED: u64 = 0;

/// Speaks texts.
pub struct Speeches {
    engine: Engine,
    upstream: UpstreamModels,
    preparing: Arc<ConcurrencyLimit>,
}

/// A request; `http` has validated each field on its own.
pub struct SpeechCall {
    pub model: String,
    pub text: String,
    /// Voices with their weights. Several are mixed.
    pub voices: Vec<(String, f32)>,
    pub speed: f32,
    pub format: AudioFormat,
}

/// A voice and its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVoice {
    pub voice: VoiceInfo,
    pub model: String,
}

impl Speeches {
    pub fn new(engine: Engine, upstream: UpstreamModels) -> Self {
        let preparing = ConcurrencyLimit::new("texts are being prepared", MAX_PREPARING, MAX_PREPARING_PER_PROJECT);
        Self { engine, upstream, preparing }
    }

    /// Resolves the model and its voices, and submits the text to the engine. Usage is added to `recorder`.
    pub async fn start(
        &self,
        access: &Access,
        mut call: SpeechCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningSpeech> {
        authorize_name(&self.engine, access, &mut call.model)?;
        let acquire = || self.preparing.acquire(access.project());
        let model =
            self.upstream.serve::<SpeechModel, _>(access, &call.model, &[Kind::Speech], &recorder, acquire).await?;
        let format = call.format;
        let parts = match model {
            ServedModel::Local(model, slot) => self.speak(access, model, slot, call, &recorder).await?,
            ServedModel::Upstream(model) => self.speak_upstream(&model, &call, &recorder).await?,
        };
        RunningSpeech::new(parts, format, recorder)
    }

    /// Resolves the voices, and submits a text to the engine.
    async fn speak(
        &self,
        access: &Access,
        model: Arc<SpeechModel>,
        slot: Slot,
        call: SpeechCall,
        recorder: &UsageRecorder,
    ) -> Result<PartSource> {
        let voices = voice_selection::resolve(&model.voices(), call.voices)?;
        recorder.charge_audio(ADMISSION_MILLIS).await?;
        let request = SpeechRequest {
            text: call.text,
            voices,
            speed: call.speed,
            seed: SEED,
            tenant: access.project().to_u128(),
        };
        let engine = self.engine.clone();
        let speak = move || {
            let _slot = slot;
            if model.sample_rate() != ENCODER_RATE {
                return Err(Error::internal("the encoders do not support the model's sample rate"));
            }
            engine.speak(&model, &request).map_err(|refused| refuse(model.id(), refused))
        };
        Ok(PartSource::Engine(run_blocking(speak).await?))
    }

    /// Sends a text to an upstream model.
    async fn speak_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        call: &SpeechCall,
        recorder: &UsageRecorder,
    ) -> Result<PartSource> {
        let max_bytes = response_limits::speech(&call.text, call.speed);
        let sent = json_call(model, "audio/speech", speech_fields(model, call)?, max_bytes);
        recorder.charge_audio(ADMISSION_MILLIS).await?;
        let started = ByteStream::start(self.upstream.client(), sent).await;
        let bytes = started.map_err(|failure| from_failure(&model.id, failure))?;
        Ok(PartSource::Upstream(PcmParts::new(model.id.clone(), bytes)))
    }

    /// The voices of all models that the key may use, or of one model. Sorted by model and name. Loads no model.
    pub async fn voices(&self, access: &Access, mut model: Option<String>) -> Result<Vec<ListedVoice>> {
        if let Some(model) = &mut model {
            resolve_alias(&self.engine, model);
            access.require_listed(model)?;
        }
        let (engine, access) = (self.engine.clone(), access.clone());
        run_blocking(move || {
            let errors = ModelErrors { engine: &engine, access: &access };
            let of_model = |id: &str| match engine.models().voices(id) {
                Ok(voices) => Ok(listed(id, voices)),
                Err(error) => Err(errors.load_failed(id, &error)),
            };
            match model {
                Some(id) => of_model(&id),
                None => Ok(models(&engine, &access).iter().filter_map(|id| of_model(id).ok()).flatten().collect()),
            }
        })
        .await
    }
}

/// The body of a request to an upstream model, without the model's name. It asks for samples, which are metered and encoded
/// here.
fn speech_fields(model: &UpstreamModel, call: &SpeechCall) -> Result<Fields> {
    let voice = match call.voices.as_slice() {
        [(name, _)] => name.clone(),
        voices if model.api == Api::Outpost => {
            let voices: Vec<String> = voices.iter().map(|(name, weight)| format!("{name}({weight})")).collect();
            voices.join("+")
        }
        _ => return Err(unsupported(&model.id, "voice")),
    };
    let fields = [
        ("input", Value::from(call.text.as_str())),
        ("voice", Value::from(voice)),
        ("speed", number(call.speed)),
        ("response_format", Value::from("pcm")),
    ];
    Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The speech models that the key may use, sorted.
fn models(engine: &Engine, access: &Access) -> Vec<String> {
    let all = engine.models().list().into_iter();
    let is_usable =
        |model: &ModelInfo| model.kind == ModelKind::Speech && model.problem.is_none() && !model.is_upstream();
    let usable = all.filter(is_usable);
    let mut ids: Vec<String> = usable.map(|model| model.id).filter(|id| access.lists(id)).collect();
    ids.sort();
    ids
}

fn listed(model: &str, voices: Vec<VoiceInfo>) -> Vec<ListedVoice> {
    voices.into_iter().map(|voice| ListedVoice { voice, model: model.to_owned() }).collect()
}

/// The error for a text that cannot be spoken. The voices were checked before.
fn refuse(model: &str, refused: Refused) -> Error {
    match refused {
        Refused::Invalid(reason) => Error::invalid("input", format!("'input' cannot be spoken: {reason}.")),
        other => errors::from_refused(model, other),
    }
}
