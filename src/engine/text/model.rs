//! A loaded chat model: the network, its tokenizer and its template.

use crate::engine::text::message::Message;
use std::path::Path;
use std::sync::Arc;

use crate::engine::checkpoint::Checkpoint;
use crate::engine::error::PreprocessError;
use crate::engine::preprocessor::{ChatFacts, Isolation, Preprocessor};
use crate::engine::runtime::memory::Lease;
use crate::engine::runtime::panics::computed;
use crate::engine::text::chat_template::PromptError;
use crate::engine::text::grammar::{CompiledGrammar, GrammarCache, GrammarError};
use crate::engine::text::scheduler::ModelId;
use crate::engine::text::speculative::draft_model::{DraftNetwork, DraftSlot};
use crate::engine::text::tools::{Format, OutputSpec, Syntax, Tool};
use crate::engine::tokenizer::{Prompt, TokenBound, Vocabulary};
use crate::models::causal_lm::{BatchRow, CausalLm, Logits};
use crate::models::kv::{KvArena, KvShape, KvType};
use crate::models::load_causal_lm;
use crate::models::scratch::Cpu;

pub struct TextModel {
    id: String,
    /// Tells this load from every other.
    pub(in crate::engine) key: ModelId,
    pub(in crate::engine) network: Box<dyn CausalLm>,
    pub(in crate::engine) vocabulary: Vocabulary,
    /// Bytes of the longest token.
    longest_token: usize,
    preprocessor: Preprocessor,
    /// How it writes calls of tools.
    call_format: Format,
    grammars: GrammarCache,
    /// The share of the memory budget of weights and steps, given back with the model.
    pub(in crate::engine) lease: Lease,
    /// What guesses its tokens, if a smaller model does.
    pub(in crate::engine) draft_slot: Arc<DraftSlot>,
}

impl TextModel {
    pub(in crate::engine) fn open(
        id: &str,
        key: ModelId,
        path: &Path,
        checkpoint: &Checkpoint,
        isolation: &Isolation,
        lease: Lease,
        cpu: Arc<Cpu>,
    ) -> Result<Self, String> {
        let rows = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?.vocabulary;
        let (preprocessor, ChatFacts { vocabulary, call_format }) = Preprocessor::chat(isolation, path, rows)?;
        let longest_token = vocabulary.longest();
        let network = load_causal_lm(checkpoint.weights(), cpu).map_err(|error| error.to_string())?;
        Ok(Self {
            id: id.to_owned(),
            key,
            network,
            vocabulary,
            longest_token,
            preprocessor,
            call_format,
            grammars: GrammarCache::default(),
            lease,
            draft_slot: Arc::default(),
        })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Positions that prompt and answer share.
    pub fn context_window(&self) -> u32 {
        u32::try_from(self.network.context()).unwrap_or(u32::MAX)
    }

    /// How many tokens have a text; ids are below this.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.len()
    }

    /// Renders the conversation with the model's own template, up to where the answer begins.
    /// Takes time in proportion to its length: not for an async thread.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, PromptError> {
        self.prompt_with(messages, &[])
    }

    /// The same with tools that the answer may call.
    pub fn prompt_with(&self, messages: &[Message], tools: &[Tool]) -> Result<Vec<u32>, PromptError> {
        self.prompt_within(messages, tools, &TokenBound::default()).map(|prompt| prompt.ids)
    }

    /// The same, but a long prompt is tokenised only as far as `bound` says.
    pub fn prompt_within(
        &self,
        messages: &[Message],
        tools: &[Tool],
        bound: &TokenBound,
    ) -> Result<Prompt, PromptError> {
        self.preprocessor.prompt(messages, tools, bound)
    }

    /// A lower bound on the tokens of a prompt with these messages, found without rendering it.
    ///
    /// Only what users and tools wrote counts, without the whitespace around it: templates may leave out parts of
    /// assistants' messages. The margin is for tokenizers that shorten texts before they cut them into tokens.
    pub fn fewest_tokens<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) -> u64 {
        const MARGIN: usize = 4;
        let kept = |message: &&Message| message.role == "user" || message.role == "tool";
        let bytes: usize = messages.into_iter().filter(kept).map(|message| message.content.trim().len()).sum();
        (bytes / (self.longest_token * MARGIN)) as u64
    }

    /// What an answer of this shape is held to. Takes time in proportion to the schemas, up to some
    /// seconds, and the first some tenths more: not for an async thread, nor the engine's.
    pub fn form(&self, shape: &OutputSpec) -> Result<CompiledGrammar, GrammarError> {
        self.grammars.form(&self.vocabulary, shape, self.syntax(shape))
    }

    /// The same if it was compiled lately, and at once.
    pub fn kept_form(&self, shape: &OutputSpec) -> Option<CompiledGrammar> {
        self.grammars.kept(shape, || self.syntax(shape))
    }

    fn syntax(&self, shape: &OutputSpec) -> Option<Syntax> {
        Syntax::new(self.call_format, &self.vocabulary, shape)
    }

    /// Plain text as tokens: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, PreprocessError> {
        self.preprocessor.plain(text)
    }

    /// The bytes that a token stands for; empty for an id without a token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// A step of the network.
    pub(in crate::engine) fn forward(&self, rows: &[BatchRow<'_>], arena: &mut KvArena) -> Result<Logits, String> {
        computed(|| self.network.forward(rows, arena))
    }

    /// Bytes of a block of keys and values, those of its draft_slot among them.
    pub(in crate::engine) fn block_bytes(&self, kind: KvType) -> u64 {
        self.kv_shape(kind).block_bytes() + self.draft_slot.block_bytes()
    }

    /// The sizes of its own keys and values.
    pub(in crate::engine) fn kv_shape(&self, kind: KvType) -> KvShape {
        self.network.kv_shape(kind)
    }
}

impl DraftNetwork for TextModel {
    fn id(&self) -> &str {
        Self::id(self)
    }

    fn context_window(&self) -> u32 {
        Self::context_window(self)
    }

    fn kv_shape(&self, kind: KvType) -> KvShape {
        Self::kv_shape(self, kind)
    }

    fn weight_bytes(&self) -> u64 {
        self.lease.weights()
    }

    fn ends_with(&self, token: u32) -> bool {
        self.vocabulary.ends().contains(&token)
    }

    fn forward(&self, rows: &[BatchRow<'_>], arena: &mut KvArena) -> Result<Logits, String> {
        Self::forward(self, rows, arena)
    }

    fn reuse(&self, logits: Logits) {
        self.network.reuse(logits);
    }
}

impl std::fmt::Debug for TextModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextModel").field("id", &self.id).finish_non_exhaustive()
    }
}
