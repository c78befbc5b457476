//! A loaded chat model: the network, its tokenizer and its chat template.

use outpost_content::Message;
use std::ops::Deref;
use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::error::PreprocessError;
use crate::ids::Tenant;
use crate::kinds::LoadSource;
use crate::model_adapter::{AdaptedNetwork, ModelAdapter};
use crate::preprocessor::{ChatTokenizerInfo, Preprocessor, TokenizerDescription};
use crate::runtime::catch_panic::catch_compute_panic;
use crate::runtime::memory_budget::Lease;
use crate::runtime::{DeviceIndex, Runtime};
use crate::text::chat_template::PromptError;
use crate::text::content_hash;
use crate::text::grammar::{CompiledGrammar, GrammarCache, GrammarError};
use crate::text::harmony::HarmonySyntax;
use crate::text::prefix_disk::names::DiskRoot;
use crate::text::prefix_disk::{ModelIdentity, PrefixDisk};
use crate::text::prompt_options::PromptOptions;
use crate::text::reasoning::{PromptReasoning, ReasoningParser, ReasoningRequest, ReasoningSyntax};
use crate::text::scheduler::ModelId;
use crate::text::speculative::draft_model::{DraftNetwork, DraftSlot};
use crate::text::tools::{CallFormat, CallSyntax, OutputSpec, Tool};
use crate::text::training_example::{TrainingExample, TrainingTexts};
use crate::tokenizer::{InfillTexts, SpecialTokenOptions, TokenIds, TokenizeLimits, Vocabulary};
use outpost_models::ModelError;
use outpost_models::backend::{Isa, Recurrent};
use outpost_models::causal_lm::{BatchRow, CausalLm, Logits};
use outpost_models::kv::KvType;
use outpost_models::load_causal_lm;
use outpost_models::state_arenas::StateArenas;
use outpost_models::state_layout::StateGroup;

/// A chat model: a network, or an adapter of one. Dereferences to the network.
pub struct TextModel(AdaptedNetwork<TextNetwork>);

/// A network with its tokenizer and its chat template, which a model shares with its adapters.
pub struct TextNetwork {
    /// The model ID of the network, also for its adapters.
    network_id: String,
    /// The device that runs it.
    pub(crate) device: DeviceIndex,
    /// Unique to this load of the network.
    pub(crate) key: ModelId,
    pub(crate) network: Box<dyn CausalLm>,
    pub(crate) vocabulary: Vocabulary,
    /// A hash of the weights.
    content_hash: u64,
    /// A hash of the configuration: all that the network computes with besides its weights.
    config_hash: u64,
    /// Bytes of the longest token.
    longest_token: usize,
    /// Whether the tokens of a text begin with a space that the text does not have.
    prepends_space: bool,
    preprocessor: Preprocessor,
    /// How it marks its reasoning, if it reasons.
    reasoning: Option<Arc<ReasoningSyntax>>,
    /// The tokens of its messages, if it writes them in channels.
    harmony: Option<Arc<HarmonySyntax>>,
    /// How it writes tool calls.
    call_format: CallFormat,
    template_describes_tools: bool,
    tokenizer: TokenizerDescription,
    grammars: GrammarCache,
    /// The share of the memory budget for weights and activations; released with the network.
    pub(crate) lease: Lease,
    /// The draft model for speculative decoding, if one is loaded.
    pub(crate) draft_slot: Arc<DraftSlot>,
}

impl Deref for TextModel {
    type Target = AdaptedNetwork<TextNetwork>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl TextModel {
    /// Reads the weights of a checkpoint.
    pub(super) fn new<B: Recurrent>(
        checkpoint: &Checkpoint,
        source: &LoadSource<'_>,
        lease: Lease,
        backend: &B,
    ) -> Result<Self, String> {
        let LoadSource { id, path, device, key, options, isolation, .. } = *source;
        let config = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?;
        let (preprocessor, info) = Preprocessor::chat(isolation, path, config.vocabulary)?;
        let ChatTokenizerInfo { vocabulary, prepends_space, call_format, reasoning, .. } = info;
        let longest_token = vocabulary.max_token_bytes();
        let harmony = Some(&vocabulary).filter(|_| call_format == CallFormat::Harmony).and_then(HarmonySyntax::of);
        let network = load_causal_lm(&checkpoint.drafting(options.mtp), backend).map_err(|error| error.to_string())?;
        let content_hash = content_hash::of_network(checkpoint.weights()).map_err(|error| error.to_string())?;
        let network = TextNetwork {
            network_id: id.to_owned(),
            device,
            key,
            network,
            content_hash,
            config_hash: content_hash::of_config(&config),
            vocabulary,
            longest_token,
            prepends_space,
            preprocessor,
            reasoning: reasoning.map(Arc::new),
            harmony: harmony.map(Arc::new),
            call_format,
            template_describes_tools: info.template_describes_tools,
            tokenizer: info.description,
            grammars: GrammarCache::default(),
            lease,
            draft_slot: Arc::default(),
        };
        Ok(Self(AdaptedNetwork::new(id, network)))
    }

    /// The model `id`, which is an adapter of this one.
    pub(super) fn adapted(&self, id: &str, adapter: ModelAdapter) -> Self {
        Self(self.0.with_adapter(id, adapter))
    }

    /// True if the project may use it. Only registered adapters belong to a single project.
    pub fn is_available_to(&self, tenant: Tenant) -> bool {
        self.adapter().and_then(|adapter| adapter.owner).is_none_or(|owner| owner == tenant)
    }

    /// Bytes of the memory budget that it takes, with its network.
    pub(crate) fn leased_bytes(&self) -> u64 {
        self.lease.bytes() + self.adapter().map_or(0, |adapter| adapter.lease.weights())
    }

    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// A hash of its weights, with those of its adapter.
    pub(crate) fn content_hash(&self) -> u64 {
        self.content_hash ^ self.adapter().map_or(0, |adapter| adapter.content_hash)
    }

    /// Where a tenant's texts begin in the prefix cache on disk. `long`: whether they are long sequences.
    pub(crate) fn disk_root(&self, disk: &PrefixDisk, runtime: &Runtime, tenant: Tenant, long: bool) -> DiskRoot {
        let kv_type = runtime.settings.kv_type;
        let (device, kernels) = (runtime.device.kind(), Isa::detect().name());
        let (weights, config, groups) = (self.content_hash, self.config_hash, self.network.state_groups(kv_type));
        let description = format!("{device} {kernels} {kv_type:?} {weights:016x} {config:016x} {groups:?}");
        let identity = ModelIdentity { id: &self.network_id, description: &description };
        disk.root(&identity, tenant, self.adapter().map(|adapter| adapter.content_hash), long)
    }

    /// The max positions of prompt and generated tokens together.
    pub fn context_window(&self) -> u32 {
        u32::try_from(self.network.context()).unwrap_or(u32::MAX)
    }

    /// The number of tokens; token IDs are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    /// Its special tokens and its chat template.
    pub fn tokenizer(&self) -> &TokenizerDescription {
        &self.tokenizer
    }

    /// Renders the conversation with the model's chat template, up to where the assistant's turn begins, and tokenises
    /// it. Takes time proportional to its length: do not call on an async thread.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, PromptError> {
        self.prompt_with(messages, &[])
    }

    /// Like [`Self::prompt`], with tools that the model may call.
    pub fn prompt_with(&self, messages: &[Message], tools: &[Tool]) -> Result<Vec<u32>, PromptError> {
        let options = PromptOptions::default();
        self.prompt_within(messages, tools, &options, &TokenizeLimits::default()).map(|prompt| prompt.ids)
    }

    /// Like [`Self::prompt_with`], with options, and tokenises a long prompt only up to `bound`.
    pub fn prompt_within(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        bound: &TokenizeLimits,
    ) -> Result<TokenIds, PromptError> {
        self.preprocessor.prompt(messages, tools, options, bound)
    }

    /// The text that [`Self::prompt_within`] tokenizes.
    pub fn prompt_text(
        &self,
        messages: &[Message],
        tools: &[Tool],
        options: &PromptOptions,
        bound: &TokenizeLimits,
    ) -> Result<String, PromptError> {
        self.preprocessor.render(messages, tools, options, bound)
    }

    /// The reasoning that may follow a prompt. `None` if the model does not reason, or not after this prompt. `max_tokens`:
    /// its limit. `is_off`: the request switches it off. Most templates then close the reasoning in the prompt; a model that
    /// writes channels may not begin it.
    pub fn reasoning_after(&self, prompt: &[u32], max_tokens: Option<u32>, is_off: bool) -> Option<ReasoningRequest> {
        if self.harmony.is_some() {
            return Some(ReasoningRequest { is_open: false, max_tokens: if is_off { Some(0) } else { max_tokens } });
        }
        let is_open = match self.reasoning.as_ref()?.at_end_of(prompt, &self.vocabulary) {
            PromptReasoning::Before => false,
            PromptReasoning::Open => true,
            PromptReasoning::Closed => return None,
        };
        Some(ReasoningRequest { is_open, max_tokens })
    }

    /// The tokens of its messages, if it writes them in channels.
    pub(crate) fn harmony(&self) -> Option<&Arc<HarmonySyntax>> {
        self.harmony.as_ref()
    }

    pub(crate) fn reasoning_parser(&self, request: ReasoningRequest) -> Option<ReasoningParser> {
        self.reasoning.clone().map(|syntax| ReasoningParser::new(syntax, request))
    }

    /// Tokenises a text without the chat template, a long one only up to `bound`. Takes time proportional to its length: do
    /// not call on an async thread.
    pub fn text_prompt(
        &self,
        text: &str,
        special: SpecialTokenOptions,
        bound: &TokenizeLimits,
    ) -> Result<TokenIds, PreprocessError> {
        self.preprocessor.tokenize(text, special, bound)
    }

    /// Like [`Self::text_prompt`], for a prompt whose completion is the text between two others. Special tokens in them stay
    /// text. `None`: the model has no tokens for such prompts.
    pub fn infill_prompt(
        &self,
        texts: &InfillTexts,
        bound: &TokenizeLimits,
    ) -> Result<Option<TokenIds>, PreprocessError> {
        self.preprocessor.infill(texts, bound)
    }

    /// The tokens of a training example and which of them are targets, unless a text has more than `max_tokens`. `limits`
    /// cancels the work. Takes time proportional to its length: do not call on an async thread.
    pub fn training_texts(
        &self,
        example: &TrainingExample,
        max_tokens: usize,
        limits: &TokenizeLimits,
    ) -> Result<TrainingTexts, PromptError> {
        self.preprocessor.training_texts(example, max_tokens, limits)
    }

    /// A lower bound on the tokens of a prompt with these messages, without rendering it. Counts only the trimmed text of
    /// users and tools: templates may leave out parts of assistant messages.
    pub fn min_prompt_tokens<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) -> u64 {
        let counted = |message: &&Message| message.role == "user" || message.role == "tool";
        let bytes = messages.into_iter().filter(counted).map(|message| message.content.text().trim().len()).sum();
        self.min_text_tokens(bytes)
    }

    /// A lower bound on the tokens of a text of so many bytes. The margin allows for tokenizers that normalise text to
    /// fewer bytes.
    pub fn min_text_tokens(&self, bytes: usize) -> u64 {
        const MARGIN: usize = 4;
        (bytes / (self.longest_token * MARGIN)) as u64
    }

    /// Compiles the grammar of an output format, or takes it from the cache. Takes time proportional to the schemas, up
    /// to some seconds: do not call on an async thread or the compute thread.
    pub fn compile_grammar(&self, spec: &OutputSpec) -> Result<CompiledGrammar, GrammarError> {
        self.grammars.get_or_compile(&self.vocabulary, spec, self.syntax(spec))
    }

    /// The grammar of an output format, if it is in the cache. Returns at once.
    pub fn cached_grammar(&self, spec: &OutputSpec) -> Option<CompiledGrammar> {
        self.grammars.get(spec, || self.syntax(spec))
    }

    /// If false, a system message describes the tools instead of the model's own template.
    pub fn template_describes_tools(&self) -> bool {
        self.template_describes_tools
    }

    fn syntax(&self, spec: &OutputSpec) -> Option<CallSyntax> {
        CallSyntax::new(self.call_format, &self.vocabulary, spec)
    }

    /// Tokenises plain text: special tokens are neither recognised nor added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PreprocessError> {
        let plain = SpecialTokenOptions::default();
        self.preprocessor.tokenize(text, plain, &TokenizeLimits::default()).map(|prompt| prompt.ids)
    }

    /// The tokens of each word within a text, with a space before it and without; each of these forms is an entry. Takes time
    /// proportional to their length: do not call on an async thread.
    pub fn encode_words(&self, words: &[String], limits: &TokenizeLimits) -> Result<Vec<Vec<u32>>, PreprocessError> {
        self.preprocessor.encode_words(words, limits)
    }

    /// The text of these tokens, special tokens included. Invalid UTF-8 becomes U+FFFD, and unknown IDs are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.vocabulary.bytes(*id)).copied().collect();
        let text = bytes.strip_prefix(b" ").filter(|_| self.prepends_space).unwrap_or(&bytes);
        String::from_utf8_lossy(text).into_owned()
    }

    /// The bytes of a token; empty for an unknown ID.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// One forward pass of the network.
    pub(crate) fn forward(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits, ModelError> {
        catch_compute_panic(|| self.network.forward(rows, arenas))
    }

    /// One step of the network's own layer for multi-token prediction.
    pub(crate) fn draft(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits, ModelError> {
        catch_compute_panic(|| self.network.draft(rows, arenas))
    }

    /// What it keeps of a sequence. Blocks of the first group include those of the draft model.
    pub(crate) fn state_groups(&self, kind: KvType) -> Vec<StateGroup> {
        let mut groups = self.network.state_groups(kind);
        groups.iter_mut().take(1).for_each(|group| group.block_bytes += self.draft_slot.block_bytes());
        groups
    }
}

impl DraftNetwork for TextModel {
    fn id(&self) -> &str {
        Self::id(self)
    }

    fn context_window(&self) -> u32 {
        Self::context_window(self)
    }

    fn new_arenas(&self, kind: KvType) -> StateArenas {
        self.network.new_arenas(kind)
    }

    fn weight_bytes(&self) -> u64 {
        self.lease.weights()
    }

    fn ends_with(&self, token: u32) -> bool {
        self.vocabulary.eos_ids().contains(&token)
    }

    fn forward(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits, String> {
        Self::forward(self, rows, arenas).map_err(|error| error.to_string())
    }

    fn reuse(&self, logits: Logits) {
        self.network.reuse(logits);
    }
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel").field("id", &self.id()).finish_non_exhaustive()
    }
}
