//! A loaded model for embeddings or reranking: the network with its tokenizer.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::MAX_BATCH_TEXTS;
use super::network::{Network, NetworkConfig, Pass};
use super::sentence::{self, InputType, Matryoshka, SentenceConfig};
use super::tokens;
use crate::engine::checkpoint::Checkpoint;
use crate::engine::error::PreprocessError;
use crate::engine::precision::Precision;
use crate::engine::preprocessor::{EncoderFacts, Isolation, Preprocessor};
use crate::engine::runtime::memory::Lease;
use crate::engine::runtime::panics::computed;
use crate::engine::tokenizer::TokenBound;
use crate::models::ModelError;
use crate::models::decoder_config::DecoderConfig;
use crate::models::decoder_family;
use crate::models::encoder::{EncoderConfig, EncoderWeights, Family, Pooling, Tokenized, head, normalise};
use crate::models::gguf::{Header, Metadata};
use crate::models::safetensors::ModelFolder;
use crate::models::scratch::Cpu;
use crate::models::weights::{DecoderCheckpoint, Footprint, Weights};

/// Tokens a second that are assumed for the size of the first batch.
const UNMEASURED: f64 = 2_000.;
/// How much the newest batch counts in the speed of late.
const NEWEST: f64 = 0.2;
/// Seconds that a batch shall take: newcomers wait for it.
const BATCH: f64 = 0.05;
/// Tokens of a batch: fewer make no good use of the processor, more none that is better.
const FEWEST: usize = 64;
const MOST: usize = 4_096;

/// A loaded model that makes vectors of texts, or scores pairs of them.
pub struct EncoderModel {
    id: String,
    network: Network,
    outline: NetworkConfig,
    preprocessor: Preprocessor,
    facts: EncoderFacts,
    sentence: SentenceConfig,
    /// The share of the memory budget, given back with the model.
    pub(in crate::engine) lease: Lease,
    /// Tokens a second of late, as bits of an f64; 0 before any were computed.
    speed: AtomicU64,
}

/// What a listing tells of a model.
pub struct EncoderInfo {
    /// Tokens of a text.
    pub limit: usize,
    /// Numbers of a vector.
    pub dimensions: usize,
}

/// Whether a GGUF header describes a model that can be served; cheap, for listings.
pub fn check_gguf(header: &Header, id: &str) -> Result<EncoderInfo, String> {
    let outline = gguf_outline(header).map_err(|error| error.to_string())?;
    let sentence = SentenceConfig::of_gguf(&header.metadata, id)?;
    tokens::check_gguf(&header.metadata)?;
    let facts = facts(&outline, &sentence)?;
    let output = header.tensor("cls.output.weight").map(|tensor| tensor.shape.as_slice());
    if gguf_is_cross_encoder(&header.metadata)
        && !matches!((&outline, output), (NetworkConfig::Encoder(_), Some([1, _])))
    {
        return Err("cross-encoders are supported only with a head that has one output".to_owned());
    }
    Ok(facts)
}

/// Whether a GGUF file is of a cross-encoder, which scores pairs of texts.
pub fn gguf_is_cross_encoder(metadata: &Metadata) -> bool {
    sentence::pooling_type(metadata) == Some(sentence::RANK)
}

/// Whether a folder holds a model that can be served; reads headers and small files only.
pub fn check_hub(folder: &ModelFolder, id: &str) -> Result<EncoderInfo, String> {
    let outline = outline(folder).map_err(|error| error.to_string())?;
    let sentence = SentenceConfig::of_folder(&folder.path, id, &folder.config)?;
    if !folder.path.join("tokenizer.json").is_file() {
        return Err("the folder has no tokenizer.json".to_owned());
    }
    if let NetworkConfig::Encoder(sizes) = &outline
        && is_cross_encoder(&folder.config)
    {
        head::check(&folder.config, sizes).map_err(|error| error.to_string())?;
    }
    facts(&outline, &sentence)
}

fn facts(outline: &NetworkConfig, sentence: &SentenceConfig) -> Result<EncoderInfo, String> {
    if matches!(outline, NetworkConfig::Decoder(_)) && sentence.poolings != [Pooling::Last] {
        return Err("decoders whose vectors are not the last token's are not supported".to_owned());
    }
    Ok(EncoderInfo { limit: sentence.limit(outline.context()), dimensions: sentence.dimensions(outline.width()) })
}

/// Whether a `config.json` is of a cross-encoder, which scores pairs of texts.
pub fn is_cross_encoder(config: &Value) -> bool {
    let name = config.pointer("/architectures/0").and_then(Value::as_str);
    name.is_some_and(|name| name.ends_with("ForSequenceClassification"))
}

fn gguf_outline(header: &Header) -> Result<NetworkConfig, ModelError> {
    let name = header.metadata.text("general.architecture").unwrap_or_default();
    match decoder_family::find_architecture(name) {
        Some(_) => DecoderConfig::from_gguf(header).map(|config| NetworkConfig::Decoder(Box::new(config))),
        None => EncoderConfig::from_gguf(header).map(NetworkConfig::Encoder),
    }
}

fn outline(folder: &ModelFolder) -> Result<NetworkConfig, ModelError> {
    let name = folder.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match Family::of_hub(name) {
        Some(_) => EncoderConfig::of_config(&folder.config).map(NetworkConfig::Encoder),
        None => folder.decoder_config().map(|config| NetworkConfig::Decoder(Box::new(config))),
    }
}

/// What is asked of a checkpoint that makes vectors.
impl Checkpoint {
    fn outline(&self) -> Result<NetworkConfig, String> {
        match self {
            Self::Gguf(file) => gguf_outline(&file.header),
            Self::Hub(folder) => outline(folder),
        }
        .map_err(|error| error.to_string())
    }

    /// Does `work` with the tensors.
    pub(super) fn with_encoder<T>(&self, outline: &NetworkConfig, work: impl FnOnce(&dyn Weights) -> T) -> T {
        match (self, outline) {
            (Self::Hub(folder), NetworkConfig::Encoder(sizes)) => work(&EncoderWeights::new(folder, sizes.family)),
            _ => work(self.weights()),
        }
    }

    /// What a model that scores pairs says of its head.
    pub(super) fn cross_encoder_config(&self) -> Option<&Value> {
        match self {
            Self::Gguf(file) => gguf_is_cross_encoder(&file.header.metadata).then_some(&Value::Null),
            Self::Hub(folder) => Some(&folder.config).filter(|config| is_cross_encoder(config)),
        }
    }

    /// What the model takes in memory, and the scratch of its passes.
    pub(in crate::engine) fn encoder_needs(&self, threads: usize) -> Result<(Footprint, u64), String> {
        let outline = self.outline()?;
        let footprint = self.with_encoder(&outline, |source| Footprint::new(source, threads));
        // A text that is longer than a batch goes alone.
        let tokens = outline.context().max(MOST);
        Ok((footprint, outline.pass_bytes(tokens, MAX_BATCH_TEXTS, threads)))
    }
}

impl EncoderModel {
    pub(in crate::engine) fn open(
        id: &str,
        path: &Path,
        files: &Checkpoint,
        isolation: &Isolation,
        lease: Lease,
        precision: Precision,
        cpu: Arc<Cpu>,
    ) -> Result<Self, String> {
        let outline = files.outline()?;
        let sentence = match files {
            Checkpoint::Gguf(file) => SentenceConfig::of_gguf(&file.header.metadata, id)?,
            Checkpoint::Hub(folder) => SentenceConfig::of_folder(&folder.path, id, &folder.config)?,
        };
        let (preprocessor, facts) = Preprocessor::encoder(isolation, path, sentence.lower_case)?;
        if facts.vocabulary > outline.vocabulary() {
            return Err(format!("the tokenizer has {} tokens, the model {}", facts.vocabulary, outline.vocabulary()));
        }
        let network = Network::load(files, &outline, precision.kind(), cpu).map_err(|error| error.to_string())?;
        let speed = AtomicU64::new(0);
        Ok(Self { id: id.to_owned(), network, outline, preprocessor, facts, sentence, lease, speed })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Tokens that a text may have, those that stand around every text among them.
    pub fn limit(&self) -> usize {
        self.sentence.limit(self.outline.context())
    }

    /// Numbers of a vector.
    pub fn dimensions(&self) -> usize {
        self.sentence.dimensions(self.outline.width())
    }

    pub fn matryoshka(&self) -> &Matryoshka {
        &self.sentence.matryoshka
    }

    /// Ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.outline.vocabulary()
    }

    /// Texts as tokens, with the prompt for their use before them, and of each whether these are all: a long text is
    /// tokenised no further than the model's limit. Unless `whole`, the first text beyond the limit is the last of the
    /// result. Takes time in proportion to their length: not for an async thread.
    pub fn encode(
        &self,
        texts: &[&str],
        input: InputType,
        whole: bool,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let prompt = self.sentence.prompt(input);
        let prompted = texts.iter().map(|text| match prompt {
            "" => Cow::Borrowed(*text),
            prompt => Cow::Owned(format!("{prompt}{text}")),
        });
        self.preprocessor.texts(prompted.collect(), whole, &bound.clone().with_most(self.limit()))
    }

    /// A text that is tokens already, with what belongs around it.
    pub fn wrap(&self, ids: &[u32]) -> Tokenized {
        let EncoderFacts { before, behind, .. } = &self.facts;
        let whole = ids.len() >= before.len() + behind.len() && ids.starts_with(before) && ids.ends_with(behind);
        Tokenized::new(if whole { ids.to_vec() } else { [before, ids, behind].concat() })
    }

    /// A question beside each text that may answer it, to be scored; cut to the limit if that is wanted. And of each
    /// whether nothing else is missing, as with [`Self::encode`].
    pub fn encode_pairs(
        &self,
        query: &str,
        documents: &[String],
        cut: bool,
        bound: &TokenBound,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let bound = bound.clone().with_most(self.limit());
        self.preprocessor.pairs(query, documents, cut.then(|| self.limit()), &bound)
    }

    /// Leaves out what is too much of a single text, before what stands behind every text.
    pub fn cut(&self, text: &mut Tokenized) {
        let (limit, behind) = (self.limit(), &self.facts.behind);
        if text.ids.len() > limit {
            text.ids.truncate(limit.saturating_sub(behind.len()));
            text.ids.extend(behind);
            text.second = text.ids.len();
        }
    }

    /// Begins with a batch.
    pub(in crate::engine) fn begin(&self, texts: &[&Tokenized]) -> Result<Pass, String> {
        computed(|| self.network.begin(texts))
    }

    /// Computes a part of a batch. `true`: it was the last.
    pub(in crate::engine) fn advance(&self, pass: &mut Pass) -> Result<bool, String> {
        computed(|| self.network.advance(pass))
    }

    /// The texts' vectors, of length one, in the order of the batch; of a cross-encoder, one logit for each.
    pub(in crate::engine) fn vectors(&self, pass: &Pass) -> Result<Vec<Vec<f32>>, String> {
        let (width, poolings) = (self.outline.width(), &self.sentence.poolings);
        let pool = |vectors: &[f32]| {
            let mut out = Vec::with_capacity(self.dimensions());
            poolings.iter().for_each(|pooling| pooling.add(vectors, width, &mut out));
            normalise(&mut out);
            out
        };
        computed(|| self.network.vectors(pass, pool))
    }

    /// Tokens of a batch that does not keep others waiting.
    pub(in crate::engine) fn batch(&self) -> usize {
        ((self.speed().unwrap_or(UNMEASURED) * BATCH) as usize).clamp(FEWEST, MOST)
    }

    /// Tokens a second of late; `None` before any were computed.
    pub(in crate::engine) fn speed(&self) -> Option<f64> {
        Some(f64::from_bits(self.speed.load(Ordering::Relaxed))).filter(|speed| *speed > 0.)
    }

    /// A batch took so long.
    pub(in crate::engine) fn measure(&self, tokens: usize, took: Duration) {
        if !took.is_zero() {
            let newest = tokens as f64 / took.as_secs_f64();
            let speed = self.speed().map_or(newest, |speed| speed + (newest - speed) * NEWEST);
            self.speed.store(speed.to_bits(), Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for EncoderModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderModel").field("id", &self.id).finish_non_exhaustive()
    }
}
