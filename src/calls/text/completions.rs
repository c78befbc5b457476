//! Text completions: prompts without a chat template, from a typed request to a stream of deltas.

use std::sync::Arc;

use crate::calls::errors;
use crate::calls::models::model_name;
use crate::calls::prompt::length::{PromptLength, check_estimate, completion_limit};
use crate::calls::prompt::logprobs::PromptLogprobsRequest;
use crate::calls::prompt::text_input::{TextField, TextInput, check_ids};
use crate::calls::text::dialect::Dialect;
use crate::calls::text::generation::{RunningGeneration, RunningText, TextGeneration, UpstreamPrompt};
use crate::calls::text::sampling_request::SamplingRequest;
use crate::calls::upstream::completion_chunk::CompletionChunks;
use crate::calls::upstream::completion_request::CompletionRequest;
use crate::calls::upstream::models::Location;
use crate::calls::upstream::request_fields::TextParameters;
use crate::calls::upstream::response_limits::TextLimits;
use crate::clock_rng::Timestamp;
use crate::engine::{
    Engine, GenerationDefaults, GenerationRequest, InfillFile, InfillTexts, ModelInfo, ModelKind, SpecialTokenOptions,
    TextDelta, TextModel, TokenIds, TokenizeLimits,
};
use crate::error::{Error, Result};
use crate::ids::TextCompletionId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamModel};

/// Max tokens of a completion whose request does not set them, as in OpenAI's API.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

/// Runs text completions.
pub struct Completions {
    generation: TextGeneration,
}

/// A request; `http` has validated each field on its own.
pub struct CompletionCall {
    /// `None`: the only model that can be meant.
    pub model: Option<String>,
    /// At least one.
    pub prompts: Vec<TextInput>,
    /// Set if `prompt` was one prompt and not a list, for error messages.
    pub single: bool,
    /// What the completion is put into. Only with prompts that are texts; each is the text before the gap.
    pub gap: Option<Gap>,
    /// Number of completions of each prompt.
    pub choices: u32,
    /// Max tokens of a completion and the name of the field that set it, for error messages; `None`: the default, or fewer if
    /// the context leaves fewer.
    pub max_tokens: Option<(u32, &'static str)>,
    /// `None`: what the context leaves. The settings of the model may have another default.
    pub default_max_tokens: Option<u32>,
    pub sampling: SamplingRequest,
    /// Sampling seed; `None`: a random one.
    pub seed: Option<u64>,
    /// `None`: not sent.
    pub stop: Option<Vec<String>>,
    /// Number of top alternatives to report per token, those of an echoed prompt included.
    pub logprobs: Option<u8>,
    /// Number of top alternatives to report per token of the prompt, separately.
    pub prompt_logprobs: Option<u8>,
    /// Repeats the prompt at the beginning of each completion.
    pub echo: bool,
    pub dialect: &'static Dialect,
}

/// A gap in a text.
#[derive(Clone, Debug, Default)]
pub struct Gap {
    /// The text after it.
    pub suffix: String,
    /// Other files that help the model, the most important last.
    pub files: Vec<InfillFile>,
    /// How the completion begins, which is a part of the prompt.
    pub middle: String,
    /// Cuts a prompt that does not fit into the context, instead of refusing it.
    pub is_cut: bool,
}

/// A running completion. Dropping it cancels the work.
pub struct RunningCompletion {
    pub id: TextCompletionId,
    pub created: Timestamp,
    pub model: String,
    /// The number of top alternatives per token, if log-probabilities are requested.
    pub logprobs: Option<u8>,
    /// Like `logprobs`, of the prompt's tokens.
    pub prompt_logprobs: Option<u8>,
    /// The stop strings that end it.
    pub stop: Vec<String>,
    /// Set if a prompt was cut.
    pub is_cut: bool,
    generation: RunningGeneration,
    /// The prompt of each choice, if token IDs are requested, until it is taken.
    prompt_token_ids: Vec<Option<Arc<[u32]>>>,
    /// The text with which each choice begins.
    echo: Vec<Option<Arc<str>>>,
    /// Set for each choice that has had a delta.
    begun: Vec<bool>,
}

/// A request that the engine or an upstream model has accepted.
struct Submitted {
    generation: RunningGeneration,
    is_cut: bool,
    prompt_token_ids: Vec<Option<Arc<[u32]>>>,
    echo: Vec<Option<Arc<str>>>,
}

/// The prompts of a request with their names in error messages.
struct Prompts {
    inputs: Vec<TextInput>,
    field: TextField,
    gap: Option<Gap>,
    /// Max tokens of a completion, if they are set.
    max_tokens: Option<u32>,
    dialect: &'static Dialect,
}

/// A tokenised prompt.
struct TokenizedPrompt {
    tokens: TokenIds,
    /// Set if it was cut.
    is_cut: bool,
    /// Its text, if the completion begins with it.
    echo: Option<Arc<str>>,
}

impl Gap {
    /// The size of its texts.
    fn bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.name.len() + file.text.len()).sum();
        self.suffix.len() + self.middle.len() + files
    }
}

impl CompletionCall {
    /// Sets the parameters that the request does not set.
    fn fill_in(&mut self, defaults: &GenerationDefaults) {
        self.sampling.fill_in(defaults);
        self.seed = self.seed.or(defaults.seed);
        self.stop = self.stop.take().or_else(|| defaults.stop.clone());
        self.default_max_tokens = defaults.max_tokens.or(self.default_max_tokens);
    }

    /// The log-probabilities of the prompt that are needed.
    fn of_prompt(&self) -> PromptLogprobsRequest {
        PromptLogprobsRequest { echoed: self.logprobs.filter(|_| self.echo), separate: self.prompt_logprobs }
    }
}

impl Completions {
    pub fn new(generation: TextGeneration) -> Self {
        Self { generation }
    }

    /// Tokenises the prompts and submits them to the engine. Fails early if the key lacks permission, a prompt does not fit
    /// or the queue is full. Usage is added to `recorder`.
    pub async fn start(
        &self,
        access: &Access,
        mut call: CompletionCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningCompletion> {
        let is_meant = if call.gap.is_some() { fills_gaps } else { completes };
        let mut name = model_name::or_only(&self.generation.engine, access, call.model.take(), is_meant).await?;
        let defaults = self.generation.engine.models().generation_defaults(&name);
        self.generation.resolve_alias(access, &mut name).await?;
        call.fill_in(&defaults);
        let kinds = &[Kind::Chat, Kind::Completion];
        let location = self.generation.locate(access, &name, kinds, &recorder).await?;
        let (logprobs, prompt_logprobs) = (call.logprobs, call.prompt_logprobs);
        let stop = call.stop.clone().unwrap_or_default();
        let submitted = match location {
            Location::Local => self.submit(access, &name, call, recorder).await?,
            Location::Upstream(model) => self.submit_upstream(&model, call, recorder).await?,
        };
        let Submitted { generation, is_cut, prompt_token_ids, echo } = submitted;
        let clock_rng = &self.generation.clock_rng;
        Ok(RunningCompletion {
            id: TextCompletionId::generate(&**clock_rng),
            created: clock_rng.now(),
            model: name,
            logprobs,
            prompt_logprobs,
            stop,
            is_cut,
            generation,
            prompt_token_ids,
            begun: vec![false; echo.len()],
            echo,
        })
    }

    /// Tokenises the prompts and submits them to the engine.
    async fn submit(
        &self,
        access: &Access,
        name: &str,
        call: CompletionCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<Submitted> {
        let engine = &self.generation.engine;
        let (dialect, prompt_logprobs) = (call.dialect, call.of_prompt());
        let max_tokens = call.max_tokens.map(|(count, _)| count).or(call.default_max_tokens);
        let field = TextField { name: "prompt", single: call.single };
        let prompts = Prompts { inputs: call.prompts, field, gap: call.gap, max_tokens, dialect };
        if let Some(model) = self.generation.admit(access, name, &recorder).await? {
            prompts.check_estimates(engine, &model, &recorder).await?;
        }
        let (bytes, echo) = (prompts.bytes(), call.echo);
        let bound_by = engine.clone();
        let prepared = self.generation.prepare_with(access, name, bytes, move |model, bound| {
            prompts.tokenise(model, bound_by.positions(model), echo, bound)
        });
        let (model, prompts) = prepared.await?;
        recorder.set_model(model.id());
        let text = call.sampling.text;
        let sampling = self.generation.sampling(access, &model, call.sampling, call.seed).await?;
        let stop = call.stop.unwrap_or_default();
        prompt_logprobs.check_size(prompts.iter().map(|prompt| prompt.tokens.ids.len()), call.choices)?;
        let is_cut = prompts.iter().any(|prompt| prompt.is_cut);
        let (mut requests, mut echoes) = (Vec::with_capacity(prompts.len()), Vec::new());
        let mut prompt_token_ids = Vec::new();
        for (index, prompt) in prompts.into_iter().enumerate() {
            let (tokens, field) = (&prompt.tokens, field.of(index));
            let count = u32::try_from(tokens.ids.len()).unwrap_or(u32::MAX);
            let length = PromptLength { tokens: count, exact: tokens.complete, field: &field, dialect };
            let limit = completion_limit(engine, &model, length, call.max_tokens, "")?;
            let default = call.default_max_tokens.filter(|_| call.max_tokens.is_none());
            let max_tokens = default.map_or(limit, |default| limit.min(default));
            echoes.extend(std::iter::repeat_n(prompt.echo, call.choices as usize));
            let prompt: Arc<[u32]> = prompt.tokens.ids.into();
            if text.has_token_ids {
                prompt_token_ids.extend(std::iter::repeat_n(Some(Arc::clone(&prompt)), call.choices as usize));
            }
            requests.push(GenerationRequest {
                prompt: prompt.into(),
                prompt_logprobs: prompt_logprobs.top(),
                choices: call.choices,
                max_tokens,
                sampling: sampling.clone(),
                grammar: None,
                reasoning: None,
                stop: stop.clone(),
                text,
                logprobs: call.logprobs,
                tenant: access.project().to_u128(),
            });
        }
        let generation = self.generation.submit(&model, requests, recorder).await?;
        Ok(Submitted { generation, is_cut, prompt_token_ids, echo: echoes })
    }

    /// Sends the prompts to an upstream model.
    async fn submit_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        call: CompletionCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<Submitted> {
        call.of_prompt().refuse_upstream(&model.id)?;
        let max_tokens = call.max_tokens.map(|(count, _)| count).or(call.default_max_tokens);
        let stop = call.stop.unwrap_or_default();
        let Gap { suffix, files, middle, .. } = call.gap.clone().unwrap_or_default();
        let before: String = files.iter().map(|InfillFile { name, text }| format!("{name}\n{text}\n")).collect();
        let around = |prompt: TextInput| match prompt {
            TextInput::Text(text) => TextInput::Text([before.as_str(), &text, &middle].concat()),
            tokens @ TextInput::Tokens(_) => tokens,
        };
        let prompts: Vec<TextInput> = match call.gap.is_some() {
            true => call.prompts.into_iter().map(around).collect(),
            false => call.prompts,
        };
        let request = CompletionRequest {
            prompts: &prompts,
            single: call.single,
            suffix: call.gap.is_some().then_some(suffix.as_str()),
            logprobs: call.logprobs,
            text: TextParameters {
                sampling: &call.sampling,
                seed: call.seed,
                stop: &stop,
                max_tokens,
                choices: call.choices,
            },
        };
        let (fields, prompt_tokens) = (request.fields(model)?, request.tokens());
        let choices = call.choices.saturating_mul(u32::try_from(prompts.len()).unwrap_or(u32::MAX));
        let reader = CompletionChunks::new(choices, stop, call.logprobs.is_some());
        let limits = TextLimits::new(model, max_tokens, choices, call.logprobs);
        let prompt = UpstreamPrompt { operation: "completions", fields, reader, choices, prompt_tokens, limits };
        let echo = |input: TextInput| match input {
            TextInput::Text(text) if call.echo => Some(Arc::from(text)),
            TextInput::Text(_) | TextInput::Tokens(_) => None,
        };
        let echoes = prompts.into_iter().map(echo);
        let echo = echoes.flat_map(|echo: Option<Arc<str>>| std::iter::repeat_n(echo, call.choices as usize));
        Ok(Submitted {
            echo: echo.collect(),
            generation: self.generation.submit_upstream(model, prompt, recorder).await?,
            is_cut: false,
            prompt_token_ids: Vec::new(),
        })
    }
}

impl RunningText for RunningCompletion {
    fn generation(&self) -> &RunningGeneration {
        &self.generation
    }

    /// The first delta of a choice begins with the prompt, if it is to be echoed.
    async fn next(&mut self) -> Option<Result<TextDelta>> {
        let mut delta = match self.generation.next().await? {
            Ok(delta) => delta,
            failed => return Some(failed),
        };
        let index = delta.choice as usize;
        let has_begun = self.begun.get_mut(index).is_none_or(|begun| std::mem::replace(begun, true));
        if let Some(echo) = self.echo(index).filter(|_| !has_begun) {
            delta.text = [echo, &delta.text].concat();
        }
        Some(Ok(delta))
    }
}

impl RunningCompletion {
    /// The prompt with which the choice begins, if it does.
    pub fn echo(&self, choice: usize) -> Option<&str> {
        self.echo.get(choice)?.as_deref()
    }

    /// The prompt of a choice, if token IDs are requested and it was not taken.
    pub fn prompt_token_ids(&self, choice: u32) -> Option<Arc<[u32]>> {
        self.prompt_token_ids.get(choice as usize)?.clone()
    }

    /// The same, once.
    pub fn take_prompt_token_ids(&mut self, choice: u32) -> Option<Arc<[u32]>> {
        self.prompt_token_ids.get_mut(choice as usize).and_then(Option::take)
    }
}

impl Prompts {
    /// The size of all texts that are tokenised.
    fn bytes(&self) -> usize {
        let gap = self.gap.as_ref().map_or(0, Gap::bytes);
        self.inputs.iter().map(|input| input.bytes() + gap).sum()
    }

    /// Refuses prompts that are too long for the context or the project's budget, before they are tokenised.
    async fn check_estimates(&self, engine: &Engine, model: &TextModel, recorder: &UsageRecorder) -> Result<()> {
        if self.gap.as_ref().is_some_and(|gap| gap.is_cut) {
            return Ok(());
        }
        let gap = self.gap.as_ref().map_or(0, Gap::bytes);
        let mut total = 0;
        for (index, input) in self.inputs.iter().enumerate() {
            let min_tokens = match input {
                TextInput::Text(text) => model.min_text_tokens(text.len() + gap),
                TextInput::Tokens(ids) => ids.len() as u64,
            };
            let field = self.field.of(index);
            check_estimate(engine, model, PromptLength::at_least(min_tokens, &field, self.dialect))?;
            total += min_tokens;
        }
        if total > 0 { recorder.check_budget(total).await } else { Ok(()) }
    }

    /// Tokenises each prompt. `positions`: of a prompt with its completion. Takes time in proportion to their length.
    fn tokenise(
        self,
        model: &TextModel,
        positions: u32,
        echo: bool,
        bound: TokenizeLimits,
    ) -> Result<Vec<TokenizedPrompt>> {
        let Self { inputs, field, gap, max_tokens, .. } = self;
        let room = gap.as_ref().filter(|gap| gap.is_cut).map(|_| prompt_room(positions, max_tokens));
        // A prompt that is cut has a bounded size already, and its end may be needed.
        let bound = &if room.is_some() { bound } else { bound.with_max_tokens(positions as usize) };
        let one = |(index, input)| {
            let field = field.of(index);
            let (mut tokens, echo) = match input {
                TextInput::Text(text) => {
                    let echo = echo.then(|| text.clone());
                    (tokenise(model, text, gap.as_ref(), room, bound)?, echo)
                }
                TextInput::Tokens(ids) => {
                    check_ids(model.id(), model.vocabulary(), &ids, &field)?;
                    let echo = echo.then(|| model.decode(&ids));
                    (TokenIds { ids, complete: true }, echo)
                }
            };
            if tokens.ids.is_empty() {
                let id = model.id();
                let text =
                    format!("'{field}' is empty. Send some text: the model '{id}' has no token that begins texts.");
                return Err(Error::invalid(field, text));
            }
            let is_cut = room.is_some() && !std::mem::replace(&mut tokens.complete, true);
            Ok(TokenizedPrompt { tokens, is_cut, echo: echo.map(Arc::from) })
        };
        inputs.into_iter().enumerate().map(one).collect()
    }
}

/// Special tokens in a prompt are parsed, as in vLLM and llama.cpp, because clients write fill-in-the-middle prompts and
/// chat templates themselves. Those around a suffix are written here, so in the texts they stay text.
fn tokenise(
    model: &TextModel,
    text: String,
    gap: Option<&Gap>,
    room: Option<usize>,
    bound: &TokenizeLimits,
) -> Result<TokenIds> {
    let stopped = |error| errors::from_stopped(model.id(), &error);
    let Some(Gap { suffix, files, middle, .. }) = gap.cloned() else {
        let special = SpecialTokenOptions { add: true, parse: true };
        return model.text_prompt(&text, special, bound).map_err(stopped);
    };
    let texts = InfillTexts { files, prefix: text, suffix, middle, max_tokens: room };
    let prompt = model.infill_prompt(&texts, bound).map_err(stopped)?;
    prompt.ok_or_else(|| {
        let field = if room.is_some() { "input_suffix" } else { "suffix" };
        let text = format!(
            "'{field}' needs a model that was trained to fill in the middle; the vocabulary of '{}' has no tokens for it. Use another model, such as a coder model, or leave '{field}' out.",
            model.id()
        );
        Error::invalid(field, text)
    })
}

/// The tokens of a prompt that is cut: what the completion leaves of the context, but at least half of it.
fn prompt_room(positions: u32, max_tokens: Option<u32>) -> usize {
    let completion = max_tokens.unwrap_or(positions / 4).min(positions / 2);
    positions.saturating_sub(completion) as usize
}

/// True for models that a request without a model may mean.
fn completes(model: &ModelInfo) -> bool {
    model.kind == ModelKind::Text
}

/// True for models that a request with a gap and without a model may mean. Only GGUF files say whether they have tokens
/// for gaps.
fn fills_gaps(model: &ModelInfo) -> bool {
    completes(model) && (model.infills || model.format != "gguf")
}
