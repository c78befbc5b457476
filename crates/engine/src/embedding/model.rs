//! A loaded embedding, reranking or classification model: the network and its tokenizer.

use std::borrow::Cow;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::MAX_BATCH_TEXTS;
use super::decoder_ranking::DecoderRanking;
use super::network::{self, AdaptedText, Network, NetworkConfig, Outputs, Pass};
use super::pair_prompt::PairPrompt;
use super::sentence_transformers::{self, InputType, MODULES_FILE, Matryoshka, SentenceTransformersConfig};
use super::tokenizer::{self, EncoderTokenizer, EncoderTokenizerSpec};
use crate::checkpoint::Checkpoint;
use crate::error::PreprocessError;
use crate::kinds::{LoadOptions, LoadSource, MemoryNeed};
use crate::model_adapter::{AdaptedNetwork, ModelAdapter};
use crate::model_info::ModelKind;
use crate::preprocessor::{EncoderTokenizerInfo, PairLengths, Preprocessor};
use crate::runtime::DeviceIndex;
use crate::runtime::catch_panic::catch_compute_panic;
use crate::runtime::memory_budget::Lease;
use crate::tokenizer::{TokenIds, TokenizeLimits};
use outpost_models::ModelError;
use outpost_models::backend::Recurrent;
use outpost_models::decoder_config::DecoderConfig;
use outpost_models::decoder_family;
use outpost_models::encoder::head::{self, Labels};
use outpost_models::encoder::{
    EncoderConfig, EncoderWeights, Family, ModuleWeights, Pooling, STATIC_MODEL_TYPE, StaticConfig, Tokenized,
};
use outpost_models::gguf::{Header, Metadata};
use outpost_models::safetensors::ModelFolder;
use outpost_models::weights::{DecoderCheckpoint, Footprint, Weights};

/// Tokens per second assumed for the size of the first batch.
const ASSUMED_SPEED: f64 = 2_000.;
/// The weight of the newest batch in the moving average of the speed.
const SMOOTHING: f64 = 0.2;
/// The target duration of a batch in seconds. New requests wait for the running batch.
const BATCH_SECONDS: f64 = 0.05;
/// Limits of a batch's tokens: fewer use the processor poorly, more do not use it better.
const MIN_BATCH_TOKENS: usize = 64;
const MAX_BATCH_TOKENS: usize = 4_096;

/// The share of a window that the next one repeats: one part of this many.
const WINDOW_OVERLAP: usize = 8;

/// A loaded model that embeds texts, scores pairs of them or classifies them: a network, or an adapter of one.
/// Dereferences to the network.
pub struct EncoderModel {
    shared: AdaptedNetwork<SharedEncoder>,
    sentence: SentenceTransformersConfig,
}

/// What a model's files say about it.
struct ModelConfig {
    network: NetworkConfig,
    sentence: SentenceTransformersConfig,
    /// Of a decoder that ranks or classifies.
    ranking: Option<DecoderRanking>,
}

/// How pairs are tokenized.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairOptions<'a> {
    /// What to look for, of models whose prompt has it.
    pub instruction: Option<&'a str>,
    /// Truncates pairs to the model's limit.
    pub truncate: bool,
    /// Max tokens of a document, which is truncated to them before.
    pub max_document: Option<usize>,
}

/// A network with its tokenizer, which a model shares with its adapters.
pub struct SharedEncoder {
    /// The device that runs it.
    pub(crate) device: DeviceIndex,
    pub(crate) network: Box<dyn Network>,
    config: NetworkConfig,
    /// Those of a classifier.
    labels: Option<Labels>,
    /// The prompt of pairs has an instruction.
    takes_instruction: bool,
    preprocessor: Preprocessor,
    info: EncoderTokenizerInfo,
    /// The share of the memory budget; released with the network.
    pub(crate) lease: Lease,
    /// Moving average of tokens per second, as bits of an f64; 0 before the first batch.
    speed: AtomicU64,
}

impl Deref for EncoderModel {
    type Target = AdaptedNetwork<SharedEncoder>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

/// The description of a model in listings.
pub struct EncoderInfo {
    /// Max tokens of a text.
    pub limit: usize,
    /// The length of a vector.
    pub dimensions: usize,
    /// Set for decoders that rank or classify.
    pub ranks: bool,
    /// The labels of a classifier; of other models, none.
    pub labels: Vec<String>,
}

/// Checks that a GGUF header describes a model that can be served. Cheap, so listings can use it.
pub fn check_gguf(header: &Header, id: &str) -> Result<EncoderInfo, String> {
    let config = ModelConfig::from_gguf(header, id)?;
    tokenizer::check_gguf(&header.metadata)?;
    let output = header.tensor("cls.output.weight").map(|tensor| tensor.shape.as_slice());
    if gguf_is_cross_encoder(&header.metadata)
        && matches!(config.network, NetworkConfig::Encoder(_))
        && !matches!(output, Some([1, _]))
    {
        return Err("cross-encoders are supported only if their head has one output".to_owned());
    }
    Ok(config.info())
}

/// Detects a cross-encoder, which scores pairs of texts, by the metadata of its GGUF file.
pub fn gguf_is_cross_encoder(metadata: &Metadata) -> bool {
    sentence_transformers::pooling_type(metadata) == Some(sentence_transformers::RANK)
}

/// Checks that a folder holds a model that can be served. Reads only headers and small files.
pub fn check_hugging_face(folder: &ModelFolder, id: &str) -> Result<EncoderInfo, String> {
    let config = ModelConfig::from_folder(folder, id)?;
    EncoderTokenizer::check_folder(&folder.path, &folder.config)?;
    let mut info = config.info();
    if let Some(json) = head_config(&folder.config) {
        if let NetworkConfig::Encoder(sizes) = &config.network {
            head::check(json, sizes).map_err(|error| error.to_string())?;
        }
        info.labels = labels(json)?.map(|labels| labels.names).unwrap_or_default();
    }
    Ok(info)
}

impl ModelConfig {
    fn from_gguf(header: &Header, id: &str) -> Result<Self, String> {
        let network = gguf_config(header).map_err(|error| error.to_string())?;
        let ranking = match network {
            NetworkConfig::Encoder(_) | NetworkConfig::Static(_) => None,
            NetworkConfig::Decoder(_) => DecoderRanking::from_gguf(header, id)?,
        };
        Self { network, sentence: SentenceTransformersConfig::from_gguf(header, id)?, ranking }.check()
    }

    fn from_folder(folder: &ModelFolder, id: &str) -> Result<Self, String> {
        let network = config(folder).map_err(|error| error.to_string())?;
        let sentence = SentenceTransformersConfig::from_folder(&folder.path, id, &folder.config)?;
        let ranking = match network {
            NetworkConfig::Encoder(_) | NetworkConfig::Static(_) => None,
            NetworkConfig::Decoder(_) => {
                DecoderRanking::from_folder(folder, id, &sentence, head_config(&folder.config))?
            }
        };
        Self { network, sentence, ranking }.check()
    }

    fn read(files: &Checkpoint, id: &str) -> Result<Self, String> {
        match files {
            Checkpoint::Gguf(file) => Self::from_gguf(&file.header, id),
            Checkpoint::HuggingFace(folder) => Self::from_folder(folder, id),
        }
    }

    fn check(self) -> Result<Self, String> {
        if self.sentence.score_tokens.is_some() && self.ranking.is_none() {
            return Err("its sentence-transformers module LogitScore is supported only for decoders".to_owned());
        }
        self.sentence.check_projections(self.network.width())?;
        Ok(self)
    }

    fn info(&self) -> EncoderInfo {
        let limit = self.sentence.limit(self.network.context());
        let dimensions = self.sentence.dimensions(self.network.width());
        EncoderInfo { limit, dimensions, ranks: self.ranking.is_some(), labels: Vec::new() }
    }
}

/// What a model with this `config.json` does. A classification head with one output scores pairs of texts.
pub fn kind(config: &Value) -> ModelKind {
    match head_config(config).map(head::outputs) {
        None => ModelKind::Embedding,
        Some(1) => ModelKind::Reranker,
        Some(_) => ModelKind::Classifier,
    }
}

/// True for the `config.json` of a model with a classification head.
pub fn has_head(config: &Value) -> bool {
    head_config(config).is_some()
}

/// The `config.json` of a model with a classification head; `None` for other models.
fn head_config(config: &Value) -> Option<&Value> {
    let name = config.pointer("/architectures/0").and_then(Value::as_str)?;
    name.ends_with("ForSequenceClassification").then_some(config)
}

/// The labels of a classifier, from the `config.json` of a model with a classification head.
fn labels(config: &Value) -> Result<Option<Labels>, String> {
    let is_classifier = kind(config) == ModelKind::Classifier;
    is_classifier.then(|| Labels::read(config)).transpose().map_err(|error| error.to_string())
}

/// The most tokens of a batch. A text that is longer than other batches is computed alone.
fn max_batch_tokens(config: &NetworkConfig) -> usize {
    config.context().max(MAX_BATCH_TOKENS)
}

fn gguf_config(header: &Header) -> Result<NetworkConfig, ModelError> {
    let name = header.metadata.text("general.architecture").unwrap_or_default();
    match decoder_family::find_architecture(name) {
        Some(_) => DecoderConfig::from_gguf(header).map(|config| NetworkConfig::Decoder(Box::new(config))),
        None => EncoderConfig::from_gguf(header).map(NetworkConfig::Encoder),
    }
}

fn config(folder: &ModelFolder) -> Result<NetworkConfig, ModelError> {
    let name = folder.config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    match Family::from_model_type(name) {
        None if name == STATIC_MODEL_TYPE => StaticConfig::from_folder(folder).map(NetworkConfig::Static),
        Some(_) => EncoderConfig::from_config_json(&folder.config).map(NetworkConfig::Encoder),
        None => folder.decoder_config().map(|config| NetworkConfig::Decoder(Box::new(config))),
    }
}

/// Checkpoints of embedding, reranking and classification models.
impl Checkpoint {
    /// Runs `work` with the tensors.
    pub(super) fn with_encoder<T>(&self, config: &NetworkConfig, work: impl FnOnce(&dyn Weights) -> T) -> T {
        match (self, config) {
            (Self::HuggingFace(folder), NetworkConfig::Encoder(sizes)) => {
                work(&EncoderWeights::new(folder, sizes.family))
            }
            _ => work(self.weights()),
        }
    }

    /// The configuration of the classification head; `None` for other models.
    pub(super) fn head_config(&self) -> Option<&Value> {
        match self {
            Self::Gguf(file) => gguf_is_cross_encoder(&file.header.metadata).then_some(&Value::Null),
            Self::HuggingFace(folder) => head_config(&folder.config),
        }
    }

    /// The memory for the model's weights and for a batch.
    pub(super) fn encoder_memory<B: Recurrent>(&self, backend: &B) -> Result<MemoryNeed, String> {
        let ModelConfig { network: config, sentence, .. } = ModelConfig::read(self, "")?;
        let mut footprint = self.with_encoder(&config, |source| Footprint::new(source, backend));
        for file in sentence.projections.iter().filter_map(|module| module.file.as_ref()) {
            let weights = ModuleWeights::open(file).map_err(|error| error.to_string())?;
            let Footprint { weights, loading } = Footprint::new(&weights, backend);
            footprint = Footprint { weights: footprint.weights + weights, loading: footprint.loading.max(loading) };
        }
        Ok(MemoryNeed::new(footprint, config.pass_bytes(backend, max_batch_tokens(&config), MAX_BATCH_TEXTS)))
    }
}

impl EncoderModel {
    /// Reads the weights of a checkpoint.
    pub(super) fn new<B: Recurrent>(
        files: &Checkpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        let LoadSource { id, path, device, options: LoadOptions { precision, .. }, isolation, .. } = *source;
        let ModelConfig { network: config, sentence, ranking } = ModelConfig::read(files, id)?;
        let pair_prompt = ranking.as_ref().and_then(|ranking| ranking.prompt.clone());
        let takes_instruction = pair_prompt.as_ref().is_some_and(PairPrompt::takes_instruction);
        let spec = EncoderTokenizerSpec {
            lower_case: sentence.lower_case,
            rows: config.vocabulary(),
            is_bare: matches!(config, NetworkConfig::Static(_)),
            pair_prompt,
            words: ranking.as_ref().map(DecoderRanking::words).unwrap_or_default(),
        };
        let (preprocessor, info) = Preprocessor::encoder(isolation, path, spec)?;
        if info.vocabulary > config.vocabulary() {
            return Err(format!(
                "the tokenizer has {} tokens, but the model only {}",
                info.vocabulary,
                config.vocabulary()
            ));
        }
        let score = ranking.map(|ranking| ranking.head(&info.words)).transpose()?;
        let outputs = Outputs { score, projections: &sentence.projections };
        let network = network::load(files, &config, &outputs, precision.kind(), backend);
        let network = network.map_err(|error| error.to_string())?;
        let labels = files.head_config().map(labels).transpose()?.flatten();
        let speed = AtomicU64::new(0);
        let shared =
            SharedEncoder { device, network, config, labels, takes_instruction, preprocessor, info, lease, speed };
        Ok(Self { shared: AdaptedNetwork::new(id, shared), sentence })
    }

    /// The model `id`, which is an adapter of this one. If sentence-transformers has saved it in a `folder`, the files there
    /// set pooling, maximum length and prompts.
    pub(super) fn adapted(&self, id: &str, adapter: ModelAdapter, folder: Option<&Path>) -> Result<Self, String> {
        let sentence = match folder.filter(|folder| folder.join(MODULES_FILE).is_file()) {
            None => self.sentence.clone(),
            Some(folder) => {
                let own = SentenceTransformersConfig::from_folder(folder, id, &Value::Null)?;
                if own.poolings.len() != self.sentence.poolings.len() {
                    return Err(format!(
                        "its {MODULES_FILE} sets {} pooling modes, but its base model has {}",
                        own.poolings.len(),
                        self.sentence.poolings.len()
                    ));
                }
                own.check_projections(self.config.width())?;
                if !own.has_same_projections(&self.sentence) {
                    return Err(format!("the Dense modules of its {MODULES_FILE} are not those of its base model"));
                }
                SentenceTransformersConfig { matryoshka: self.sentence.matryoshka.clone(), ..own }
            }
        };
        Ok(Self { shared: self.shared.with_adapter(id, adapter), sentence })
    }

    pub fn id(&self) -> &str {
        self.shared.id()
    }

    /// Max tokens of a text, including special tokens.
    pub fn limit(&self) -> usize {
        self.sentence.limit(self.config.context())
    }

    /// The length of a vector.
    pub fn dimensions(&self) -> usize {
        self.sentence.dimensions(self.config.width())
    }

    pub fn matryoshka(&self) -> &Matryoshka {
        &self.sentence.matryoshka
    }

    /// The labels of a classifier.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// The vocabulary size; all token IDs are below it.
    pub fn vocabulary(&self) -> usize {
        self.config.vocabulary()
    }

    /// Tokenizes texts with the prompt for `input`, and says for each whether its tokens are complete: a text is not
    /// tokenized much beyond the model's limit. Unless `keep_going`, the first text over the limit is the last of the
    /// result. Takes time in proportion to the texts' length, so it must not run on an async thread.
    pub fn encode(
        &self,
        texts: &[&str],
        input: InputType,
        keep_going: bool,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        self.encode_with_prompt(texts, self.sentence.prompt(input), keep_going, limits)
    }

    /// The model's own prompt of this name.
    pub fn prompt(&self, name: &str) -> Option<&str> {
        self.sentence.prompts.get(name).map(String::as_str)
    }

    /// The names of the model's own prompts.
    pub fn prompt_names(&self) -> impl Iterator<Item = &str> {
        self.sentence.prompts.keys().map(String::as_str)
    }

    /// Like [`Self::encode`], with this prompt.
    pub fn encode_with_prompt(
        &self,
        texts: &[&str],
        prompt: &str,
        keep_going: bool,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let prompted = texts.iter().map(|text| match prompt {
            "" => Cow::Borrowed(*text),
            prompt => Cow::Owned(format!("{prompt}{text}")),
        });
        self.preprocessor.encode_texts(prompted.collect(), keep_going, &limits.clone().with_max_tokens(self.limit()))
    }

    /// Tokenizes texts without a prompt, even those beyond the model's limit, up to `limits`. Says for each whether its tokens
    /// are complete; the first text over the limits is the last of the result.
    pub fn encode_long(
        &self,
        texts: &[&str],
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        self.preprocessor.encode_texts(texts.iter().map(|text| Cow::Borrowed(*text)).collect(), false, limits)
    }

    /// Tokenizes a text without a prompt, even one beyond the model's limit, up to `limits`.
    pub fn tokenize(
        &self,
        text: &str,
        add_special: bool,
        limits: &TokenizeLimits,
    ) -> Result<TokenIds, PreprocessError> {
        let texts = self.preprocessor.encode_texts(vec![Cow::Borrowed(text)], true, limits)?;
        let (text, complete) = texts.into_iter().next().unwrap_or_default();
        let EncoderTokenizerInfo { prefix, suffix, .. } = &self.info;
        let end = text.ids.len().saturating_sub(suffix.len());
        let bare = text.ids.get(prefix.len()..end).unwrap_or_default();
        Ok(TokenIds { ids: if add_special { text.ids } else { bare.to_vec() }, complete })
    }

    /// The text of these tokens, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> Result<String, PreprocessError> {
        self.preprocessor.decode(ids)
    }

    /// These tokens as the tokenizer writes them, such as `##ing`.
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<String>, PreprocessError> {
        self.preprocessor.pieces(ids)
    }

    /// Adds the special tokens around a text given as tokens, unless it has them already.
    pub fn add_special_tokens(&self, ids: &[u32]) -> Tokenized {
        let EncoderTokenizerInfo { prefix, suffix, .. } = &self.info;
        let whole = ids.len() >= prefix.len() + suffix.len() && ids.starts_with(prefix) && ids.ends_with(suffix);
        Tokenized::new(if whole { ids.to_vec() } else { [prefix, ids, suffix].concat() })
    }

    /// Tokenizes pairs of the query and each document. Says for each whether its tokens are complete apart from truncation, as
    /// [`Self::encode`] does.
    pub fn encode_pairs(
        &self,
        query: &str,
        documents: &[String],
        options: PairOptions<'_>,
        limits: &TokenizeLimits,
    ) -> Result<Vec<(Tokenized, bool)>, PreprocessError> {
        let PairOptions { instruction, truncate, max_document } = options;
        let limits = limits.clone().with_max_tokens(self.limit());
        let max = PairLengths { pair: truncate.then(|| self.limit()), document: max_document };
        let default = Some(self.sentence.default_prompt.as_str()).filter(|prompt| !prompt.is_empty());
        let instruction = instruction.or(default).filter(|_| self.takes_instruction);
        self.preprocessor.encode_pairs(query, documents, instruction, max, &limits)
    }

    /// Whether the prompt of pairs has an instruction.
    pub fn takes_instruction(&self) -> bool {
        self.takes_instruction
    }

    /// Splits a text into windows of at most the model's limit. Each has the special tokens and repeats some tokens of the one
    /// before it, so that what stands at a border is seen with its context.
    pub fn windows(&self, text: Tokenized) -> Vec<Tokenized> {
        let EncoderTokenizerInfo { prefix, suffix, .. } = &self.info;
        if text.ids.len() <= self.limit() {
            return vec![text];
        }
        let bare = text.ids.get(prefix.len()..text.ids.len() - suffix.len()).unwrap_or_default();
        let size = self.limit().saturating_sub(prefix.len() + suffix.len()).max(1);
        let step = size - size / WINDOW_OVERLAP;
        let window = |start: usize| {
            let end = bare.len().min(start + size);
            Tokenized::new([prefix, bare.get(start..end).unwrap_or_default(), suffix].concat())
        };
        // The last window begins where the one before it does not reach the end.
        (0..bare.len().saturating_sub(size) + step).step_by(step).map(window).collect()
    }

    /// Truncates a single text to `limit` tokens and keeps the special tokens at its end.
    pub fn truncate(&self, text: &mut Tokenized, limit: usize) {
        let suffix = &self.info.suffix;
        if text.ids.len() > limit {
            text.ids.truncate(limit.saturating_sub(suffix.len()));
            text.ids.extend(suffix);
            text.second = text.ids.len();
        }
    }

    /// Starts a batch of texts, each with its model: this one, or one with the same network.
    pub(crate) fn begin(&self, texts: &[(&Tokenized, &Self)]) -> Result<Box<dyn Pass>, ModelError> {
        let mut adapted: Vec<AdaptedText<'_>> = Vec::with_capacity(texts.len());
        for (text, model) in texts {
            adapted.push((text, model.adapter().map(|adapter| &adapter.weights)));
        }
        let poolings: Vec<Pooling> = texts.iter().flat_map(|(_, model)| &model.sentence.poolings).copied().collect();
        catch_compute_panic(|| self.network.begin(&adapted, network::wanted_tokens(&poolings)))
    }

    /// Computes a part of a batch. `true`: it was the last part.
    pub(crate) fn advance(&self, pass: &mut dyn Pass) -> Result<bool, ModelError> {
        catch_compute_panic(|| pass.advance())
    }

    /// The normalized vectors of the texts of a batch, in order; from a model with a classification head the logits of each
    /// text. `models` are the models of the texts.
    pub(crate) fn vectors(&self, pass: &dyn Pass, models: &[&Self]) -> Result<Vec<Vec<f32>>, ModelError> {
        let pool = |index: usize, vectors: &[f32]| {
            let mut out = Vec::with_capacity(self.dimensions());
            let poolings = models.get(index).map_or(&self.sentence.poolings, |model| &model.sentence.poolings);
            poolings.iter().for_each(|pooling| pooling.add(vectors, self.config.width(), &mut out));
            out
        };
        catch_compute_panic(|| pass.vectors(&pool))
    }

    /// The most tokens of a batch.
    pub(crate) fn max_batch_tokens(&self) -> usize {
        max_batch_tokens(&self.config)
    }

    /// The token limit of a batch, so that it takes about [`BATCH_SECONDS`].
    pub(crate) fn batch_tokens(&self) -> usize {
        ((self.speed().unwrap_or(ASSUMED_SPEED) * BATCH_SECONDS) as usize).clamp(MIN_BATCH_TOKENS, MAX_BATCH_TOKENS)
    }

    /// Moving average of tokens per second; `None` before the first batch.
    pub(crate) fn speed(&self) -> Option<f64> {
        Some(f64::from_bits(self.speed.load(Ordering::Relaxed))).filter(|speed| *speed > 0.)
    }

    /// Updates the average with a finished batch.
    pub(crate) fn record_speed(&self, tokens: usize, took: Duration) {
        if !took.is_zero() {
            let newest = tokens as f64 / took.as_secs_f64();
            let speed = self.speed().map_or(newest, |speed| speed + (newest - speed) * SMOOTHING);
            self.speed.store(speed.to_bits(), Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for EncoderModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncoderModel").field("id", &self.id()).finish_non_exhaustive()
    }
}
