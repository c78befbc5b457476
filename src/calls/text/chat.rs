//! A chat completion, from a typed request to a stream of deltas.

use std::sync::Arc;

use crate::calls::conversations::context::{
    CONTINUED, ConversationContext, ConversationContextLoader, ConversationContextRequest,
};
use crate::calls::conversations::persist_turn::TurnRecorder;
use crate::calls::conversations::truncation::{FittedPrompt, TokenBudget};
use crate::calls::output_format::grammars::GrammarCompiler;
use crate::calls::output_format::output_spec::{OutputRequest, ResolvedOutput, ToolCallIds};
use crate::calls::prompt::length::{PromptLength, check_estimate, completion_limit};
use crate::calls::prompt::logprobs::PromptLogprobsRequest;
use crate::calls::prompt::upstream_prompt::{self, UpstreamPromptMessages};
use crate::calls::text::dialect::Dialect;
use crate::calls::text::generation::{RunningGeneration, RunningText, TextGeneration, UpstreamPrompt};
use crate::calls::text::sampling_request::SamplingRequest;
use crate::calls::turn::output::OutputItems;
use crate::calls::upstream::chat_chunk::ChatChunks;
use crate::calls::upstream::chat_request::ChatRequest;
use crate::calls::upstream::models::Location;
use crate::calls::upstream::request_fields::TextParameters;
use crate::calls::upstream::response_limits::TextLimits;
use crate::clock_rng::Timestamp;
use crate::content::Message;
use crate::engine::{GenerationDefaults, GenerationRequest, PromptOptions, Registry, TextDelta, TextModel, Tool};
use crate::error::{Error, Result};
use crate::ids::CompletionId;
use crate::service::access::Access;
use crate::service::conversations::Conversation;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamModel};

/// Advice for a conversation that is too long.
const TRUNCATE: &str = " Or send truncation: \"auto\", which leaves out the oldest turns of the conversation.";

/// Runs chat completions.
pub struct Chat {
    generation: TextGeneration,
    grammars: GrammarCompiler,
    context_loader: ConversationContextLoader,
    strict_schemas: bool,
}

/// A request; `http` has validated each field on its own.
pub struct ChatCall {
    /// Absent: the agent's.
    pub model: Option<String>,
    pub messages: Vec<Message>,
    /// The agent and the conversation that the chat continues.
    pub context: ConversationContextRequest,
    /// Where the prompt ends, and variables of the chat template.
    pub prompt: PromptOptions,
    /// Max tokens of the reasoning, if the model reasons.
    pub max_reasoning_tokens: Option<u32>,
    /// Output format and tools.
    pub output: OutputRequest,
    /// Number of completions of the prompt.
    pub choices: u32,
    /// Max tokens of a completion and the name of the field that set it, for error messages; `None`: what the context
    /// leaves.
    pub max_tokens: Option<(u32, &'static str)>,
    pub sampling: SamplingRequest,
    /// Sampling seed; `None`: a random one.
    pub seed: Option<u64>,
    /// `None`: not sent.
    pub stop: Option<Vec<String>>,
    /// Number of top alternatives to report per token.
    pub logprobs: Option<u8>,
    /// Like `logprobs`, of the prompt's tokens.
    pub prompt_logprobs: Option<u8>,
}

/// A running generation. Dropping it cancels the work.
pub struct RunningChat {
    pub id: CompletionId,
    pub created: Timestamp,
    pub model: String,
    /// The stop strings of the request, or those of the model's settings.
    pub stop: Vec<String>,
    /// Whether the context leaves fewer tokens than requested.
    pub is_limited_by_context: bool,
    /// Set if log-probabilities are requested.
    pub logprobs: bool,
    /// The number of top alternatives per token of the prompt, if its log-probabilities are requested.
    pub prompt_logprobs: Option<u8>,
    /// The prompt, if token IDs are requested.
    pub prompt_token_ids: Option<Arc<[u32]>>,
    /// Number of conversation messages left out; `None` if truncation is off.
    pub truncated: Option<usize>,
    /// The fields of the request's schemas that the completion need not match.
    pub unenforced: Vec<String>,
    /// Set if the completion may contain tool calls.
    pub may_call: bool,
    pub call_ids: ToolCallIds,
    generation: RunningGeneration,
    turn_recorder: TurnRecorder,
}

/// A request whose agent, conversation, model, output and parameters are resolved.
struct ResolvedCall {
    call: ChatCall,
    context: ConversationContext,
    output: ResolvedOutput,
    /// Bytes of the tools' definitions.
    tools_bytes: usize,
    /// The limit of the completion, if the request has none.
    default_max_tokens: Option<u32>,
}

/// A request that the engine or an upstream model has accepted.
struct Submitted {
    generation: RunningGeneration,
    is_limited_by_context: bool,
    prompt_token_ids: Option<Arc<[u32]>>,
    truncated: Option<usize>,
    unenforced: Vec<String>,
}

/// The part of a prompt that the request adds to its context.
struct PromptInput {
    messages: Vec<Message>,
    options: PromptOptions,
    /// With the bytes of their definitions.
    tools: (Arc<[Tool]>, usize),
    dialect: &'static Dialect,
}

/// Limits of a prompt.
struct Limits {
    /// Tokens of the completion, if set.
    max_tokens: Option<u32>,
    /// Stops tokenization of a prompt once it exceeds the context.
    bounded: bool,
}

impl ChatCall {
    /// Sets the parameters that the request does not set. Returns the default limit of its completion, if it has none itself.
    fn fill_in(&mut self, defaults: &GenerationDefaults) -> Option<u32> {
        self.sampling.fill_in(defaults);
        self.seed = self.seed.or(defaults.seed);
        self.stop = self.stop.take().or_else(|| defaults.stop.clone());
        defaults.max_tokens.filter(|_| self.max_tokens.is_none())
    }
}

impl Chat {
    /// `strict_schemas`: whether a schema that cannot be enforced as a whole is always an error.
    pub fn new(generation: TextGeneration, context_loader: ConversationContextLoader, strict_schemas: bool) -> Self {
        Self { generation, grammars: GrammarCompiler::new(), context_loader, strict_schemas }
    }

    /// Resolves agent, conversation and model, renders the prompt and submits it to the engine. Fails early if the key
    /// lacks permission, the prompt does not fit or the queue is full. Usage is added to `recorder`.
    pub async fn start(&self, access: &Access, call: ChatCall, recorder: Arc<UsageRecorder>) -> Result<RunningChat> {
        let mut resolved = self.resolve(access, call).await?;
        let ResolvedCall { call, context, output, .. } = &mut resolved;
        let (clock_rng, model) = (&self.generation.clock_rng, context.model.clone());
        let location = self.generation.locate(access, &model, &[Kind::Chat], &recorder).await?;
        let call_ids = ToolCallIds::new(&**clock_rng);
        let sent = std::mem::take(&mut call.context.sent);
        let turn_recorder = self.context_loader.turn_recorder(access, context.conversation(), sent, call_ids);
        let (stop, may_call) = (call.stop.clone().unwrap_or_default(), !output.spec.tools.is_empty());
        let (logprobs, prompt_logprobs) = (call.logprobs.is_some(), call.prompt_logprobs);
        let submitted = match location {
            Location::Local => self.submit(access, resolved, recorder).await?,
            Location::Upstream(model) => self.submit_upstream(&model, resolved, recorder).await?,
        };
        let Submitted { generation, is_limited_by_context, prompt_token_ids, truncated, unenforced } = submitted;
        Ok(RunningChat {
            id: CompletionId::generate(&**clock_rng),
            created: clock_rng.now(),
            model,
            stop,
            is_limited_by_context,
            logprobs,
            prompt_logprobs,
            prompt_token_ids,
            truncated,
            unenforced,
            may_call,
            call_ids,
            generation,
            turn_recorder,
        })
    }

    /// Renders the prompt and submits it to the engine.
    async fn submit(&self, access: &Access, resolved: ResolvedCall, recorder: Arc<UsageRecorder>) -> Result<Submitted> {
        let ResolvedCall { call, context, mut output, tools_bytes, default_max_tokens } = resolved;
        let (engine, dialect, is_recorded) = (&self.generation.engine, output.dialect(), context.is_stored());
        if let Some(model) = self.generation.admit(access, &context.model, &recorder).await? {
            let min_tokens = model.min_prompt_tokens(&call.messages);
            check_estimate(engine, &model, PromptLength::at_least(min_tokens, dialect.prompt, dialect))?;
            if min_tokens > 0 {
                recorder.check_budget(min_tokens).await?;
            }
        }
        let tools = (Arc::clone(&output.spec.tools), tools_bytes);
        let has_no_reasoning = call.prompt.disables_reasoning();
        let input = PromptInput { messages: call.messages, options: call.prompt, tools, dialect };
        let requested = call.max_tokens.map(|(count, _)| count);
        let limits = Limits { max_tokens: requested, bounded: true };
        let (model, fitted) = self.prepare(access, context, input, limits).await?;
        recorder.set_model(model.id());
        let text = call.sampling.text;
        let sampling = self.generation.sampling(access, &model, call.sampling, call.seed).await?;
        output.adapt_to(&model);
        let prompt_tokens = u32::try_from(fitted.prompt.ids.len()).unwrap_or(u32::MAX);
        let remedy = if !is_recorded || fitted.dropped.is_some() { "" } else { TRUNCATE };
        let exact = fitted.prompt.complete;
        let length = PromptLength { tokens: prompt_tokens, exact, field: dialect.prompt, dialect };
        let limit = completion_limit(engine, &model, length, call.max_tokens, remedy)?;
        let max_tokens = default_max_tokens.map_or(limit, |default| limit.min(default));
        of_prompt(call.prompt_logprobs).check_size([fitted.prompt.ids.len()].into_iter(), 1)?;
        let grammar = self.grammars.compile(&model, &output).await?;
        let unenforced = grammar.as_ref().map(|grammar| output.unenforced(grammar)).unwrap_or_default();
        let reasoning = model.reasoning_after(&fitted.prompt.ids, call.max_reasoning_tokens, has_no_reasoning);
        let prompt: Arc<[u32]> = fitted.prompt.ids.into();
        let prompt_token_ids = text.has_token_ids.then(|| Arc::clone(&prompt));
        let request = GenerationRequest {
            prompt: prompt.into(),
            prompt_logprobs: call.prompt_logprobs,
            choices: call.choices,
            max_tokens,
            sampling,
            grammar,
            reasoning,
            stop: call.stop.unwrap_or_default(),
            text,
            logprobs: call.logprobs,
            tenant: access.project().to_u128(),
        };
        Ok(Submitted {
            generation: self.generation.submit(&model, vec![request], recorder).await?,
            is_limited_by_context: requested.is_some_and(|requested| requested > max_tokens),
            prompt_token_ids,
            truncated: fitted.dropped,
            unenforced,
        })
    }

    /// Sends the messages to an upstream model.
    async fn submit_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        resolved: ResolvedCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<Submitted> {
        let ResolvedCall { call, context, output, tools_bytes, default_max_tokens } = resolved;
        of_prompt(call.prompt_logprobs).refuse_upstream(&model.id)?;
        if context.has_tokens() {
            let text = format!(
                "'{CONTINUED}' has tokens of a model of this server, but the model '{}' runs on another one. Send the messages of the conversation to /api/chat.",
                model.id
            );
            return Err(Error::invalid(CONTINUED, text));
        }
        let dialect = output.dialect();
        let requested = call.max_tokens.map(|(count, _)| count);
        let (parts, may_drop) = context.parts(call.messages, (Arc::clone(&output.spec.tools), call.prompt), dialect)?;
        let prompt = UpstreamPromptMessages::new(model, &parts, may_drop, tools_bytes, requested);
        let max_tokens = upstream_prompt::completion_limit(model, call.max_tokens, prompt.tokens, dialect)?;
        let default_limit = upstream_prompt::default_limit(model, default_max_tokens, prompt.tokens);
        let limit = max_tokens.or(default_limit);
        let limits = TextLimits::new(model, limit, call.choices, call.logprobs);
        let stop = call.stop.unwrap_or_default();
        let text = TextParameters {
            sampling: &call.sampling,
            seed: call.seed,
            stop: &stop,
            max_tokens: limit,
            choices: call.choices,
        };
        let request = ChatRequest {
            messages: &prompt.messages,
            prompt: &parts.options,
            output: &output.spec,
            format_field: output.text_field(),
            parallel_by_model: output.is_parallel_by_model(),
            max_reasoning_tokens: call.max_reasoning_tokens,
            logprobs: call.logprobs,
            text,
            dialect,
        };
        let fields = request.fields(model)?;
        let reader = ChatChunks::new(call.choices, stop, call.logprobs.is_some());
        let (operation, truncated, prompt_tokens) = ("chat/completions", prompt.truncated, prompt.tokens);
        let prompt = UpstreamPrompt { operation, fields, reader, choices: call.choices, prompt_tokens, limits };
        Ok(Submitted {
            generation: self.generation.submit_upstream(model, prompt, recorder).await?,
            is_limited_by_context: max_tokens < requested,
            prompt_token_ids: None,
            truncated,
            unenforced: Vec::new(),
        })
    }

    /// The number of tokens that the prompt of a request has.
    pub async fn count_tokens(&self, access: &Access, call: ChatCall, recorder: &UsageRecorder) -> Result<u32> {
        let ResolvedCall { call, context, output, tools_bytes, .. } = self.resolve(access, call).await?;
        let dialect = output.dialect();
        self.generation.authorize(access, &context.model).await?;
        let limits = Limits { max_tokens: None, bounded: false };
        let tools = (output.spec.tools, tools_bytes);
        let input = PromptInput { messages: call.messages, options: call.prompt, tools, dialect };
        let (model, fitted) = self.prepare(access, context, input, limits).await?;
        recorder.set_model(model.id());
        Ok(u32::try_from(fitted.prompt.ids.len()).unwrap_or(u32::MAX))
    }

    /// Loads a chat model without generating anything.
    pub async fn load(&self, access: &Access, id: &str, recorder: &UsageRecorder) -> Result<()> {
        let mut id = id.to_owned();
        self.generation.resolve_alias(access, &mut id).await?;
        let id = id.as_str();
        access.require_model(id)?;
        if let Some(model) = self.generation.upstream.find(id).await? {
            recorder.set_model(&model.id);
        } else if self.generation.admit(access, id, recorder).await?.is_none() {
            let (model, ()) = self.generation.prepare_with(access, id, 0, |_, _| Ok(())).await?;
            recorder.set_model(model.id());
        }
        Ok(())
    }

    fn models(&self) -> &Registry {
        self.generation.engine.models()
    }

    /// Resolves agent, conversation, model, output and parameters of a request.
    async fn resolve(&self, access: &Access, mut call: ChatCall) -> Result<ResolvedCall> {
        let mut context = self.context_loader.load(access, call.model.take(), &mut call.context).await?;
        let defaults = self.models().generation_defaults(&context.model);
        context.default_system = self.models().system_prompt(&context.model);
        self.generation.resolve_alias(access, &mut context.model).await?;
        let request = std::mem::take(&mut call.output);
        let tools_bytes = request.tools.as_ref().or(context.tools.as_ref()).map_or(0, String::len);
        let output = request.resolve(context.tools.take(), self.strict_schemas)?;
        let default_max_tokens = call.fill_in(&defaults);
        Ok(ResolvedCall { call, context, output, tools_bytes, default_max_tokens })
    }

    /// Loads the model and builds the prompt, off the async threads.
    async fn prepare(
        &self,
        access: &Access,
        context: ConversationContext,
        PromptInput { messages, options, tools: (tools, tools_bytes), dialect }: PromptInput,
        Limits { max_tokens, bounded }: Limits,
    ) -> Result<(Arc<TextModel>, FittedPrompt)> {
        let (engine, id) = (self.generation.engine.clone(), context.model.clone());
        let messages_bytes: usize = messages.iter().map(Message::bytes).sum();
        let bytes = context.bytes() + messages_bytes + tools_bytes;
        let prepared = self.generation.prepare_with(access, &id, bytes, move |model, bound| {
            let window = engine.positions(model);
            let bound = if bounded { bound.with_max_tokens(window as usize) } else { bound };
            let budget = TokenBudget { window, max_tokens, max_prompt: None, bound };
            context.prompt(model, messages, (tools, options), dialect, budget)
        });
        prepared.await
    }
}

/// The log-probabilities of the prompt that a request asks for.
fn of_prompt(separate: Option<u8>) -> PromptLogprobsRequest {
    PromptLogprobsRequest { echoed: None, separate }
}

impl RunningText for RunningChat {
    fn generation(&self) -> &RunningGeneration {
        &self.generation
    }

    fn prompt(&self) -> Option<&[u32]> {
        self.prompt_token_ids.as_deref()
    }

    fn call_ids(&self) -> Option<ToolCallIds> {
        Some(self.call_ids)
    }

    fn truncated(&self) -> Option<usize> {
        self.truncated
    }

    fn unenforced(&self) -> &[String] {
        &self.unenforced
    }

    fn begin_storing(&mut self, output: &OutputItems) -> bool {
        self.turn_recorder.begin(output)
    }

    async fn wait_until_stored(&mut self) -> Result<()> {
        self.turn_recorder.finish().await
    }

    async fn next(&mut self) -> Option<Result<TextDelta>> {
        self.generation.next().await
    }
}

impl RunningChat {
    /// Cancels the work; the usage has all tokens that were generated.
    pub fn cancel(&mut self) {
        self.generation.cancel();
    }

    /// The conversation including this turn, once stored.
    pub fn conversation(&self) -> Option<&Conversation> {
        self.turn_recorder.stored()
    }
}
