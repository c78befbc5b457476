//! A chat completion, from a typed request to a stream of deltas.

use std::sync::Arc;

use super::conversation_context::{ConversationContext, ConversationContextLoader, ConversationContextRequest};
use super::conversation_truncation::{FittedPrompt, TokenBudget};
use super::dialect::Dialect;
use super::errors::{self, ModelErrors};
use super::fine_tuning::TunedModels;
use super::grammars::GrammarCompiler;
use super::output_spec::{GeneratedCall, OutputRequest, ResolvedOutput, ToolCallIds, append_call_deltas};
use super::persist_turn::TurnRecorder;
use super::prompt_preparation::PromptPreparation;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::engine::{
    DeltaStream, Engine, FinishReason, GenerationRequest, Message, Sampling, TextDelta, TextModel, TokenInfo, Tool,
};
use crate::error::{Code, Error, Result};
use crate::ids::CompletionId;
use crate::service::access::Access;
use crate::service::conversations::Conversation;
use crate::service::usage::{Outcome, UsageRecorder};

/// Advice for a conversation that is too long.
const TRUNCATE: &str = " Or send truncation: \"auto\", which leaves out the oldest turns of the conversation.";

/// Runs chat completions.
pub struct Chat {
    engine: Engine,
    clock_rng: Arc<dyn ClockRng>,
    preparing: PromptPreparation,
    grammars: GrammarCompiler,
    context_loader: ConversationContextLoader,
    tuned: TunedModels,
    strict_schemas: bool,
}

/// A request; `http` has validated each field on its own.
pub struct ChatCall {
    /// Absent: the agent's.
    pub model: Option<String>,
    pub messages: Vec<Message>,
    /// The agent and the conversation that the chat continues.
    pub context: ConversationContextRequest,
    /// Output format and tools.
    pub output: OutputRequest,
    /// Number of completions of the prompt.
    pub choices: u32,
    /// Max tokens of a completion and the name of the field that set it, for error messages; `None`: what the context
    /// leaves.
    pub max_tokens: Option<(u32, &'static str)>,
    pub sampling: Sampling,
    /// Sampling seed; `None`: a random one.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    /// Number of top alternatives to report per token.
    pub logprobs: Option<u8>,
}

/// A running generation. Dropping it cancels the work.
pub struct RunningChat {
    pub id: CompletionId,
    pub created: Timestamp,
    pub model: String,
    pub prompt_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    cached_tokens: u32,
    /// Whether the context leaves fewer tokens than requested.
    pub is_limited_by_context: bool,
    pub choices: u32,
    /// Whether log-probabilities are requested.
    pub logprobs: bool,
    /// Number of conversation messages left out; `None` if truncation is off.
    pub truncated: Option<usize>,
    /// The fields of the request's schemas that the completion need not match.
    pub unenforced: Vec<String>,
    /// Whether the completion may contain tool calls.
    pub may_call: bool,
    pub call_ids: ToolCallIds,
    deltas: DeltaStream,
    turn_recorder: TurnRecorder,
    generated: Vec<u32>,
    recorder: Arc<UsageRecorder>,
}

/// What a request resolves to.
struct Resolved {
    context: ConversationContext,
    output: ResolvedOutput,
    /// Bytes of the tools' definitions.
    tools_bytes: usize,
}

/// Limits of a prompt.
struct Limits {
    /// Tokens of the completion, if set.
    max_tokens: Option<u32>,
    /// Whether a prompt that exceeds the context is tokenised only that far.
    bounded: bool,
}

/// Tokens that a call used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
}

/// One complete choice.
#[derive(Default)]
pub struct Choice {
    pub text: String,
    pub calls: Vec<GeneratedCall>,
    pub tokens: Vec<TokenInfo>,
    pub ending: Option<FinishReason>,
}

impl Chat {
    /// `strict_schemas`: whether a schema that cannot be enforced as a whole is always an error.
    pub fn new(
        engine: Engine,
        clock_rng: Arc<dyn ClockRng>,
        context_loader: ConversationContextLoader,
        tuned: TunedModels,
        strict_schemas: bool,
    ) -> Self {
        Self {
            engine,
            clock_rng,
            preparing: PromptPreparation::new(),
            grammars: GrammarCompiler::new(),
            context_loader,
            tuned,
            strict_schemas,
        }
    }

    /// Resolves agent, conversation and model, renders the prompt and submits it to the engine. Fails early if the key
    /// lacks permission, the prompt does not fit or the queue is full. Usage is added to `recorder`.
    pub async fn start(
        &self,
        access: &Access,
        mut call: ChatCall,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningChat> {
        let dialect = call.output.dialect;
        let Resolved { context, mut output, tools_bytes } = self.resolve(access, &mut call).await?;
        let name = context.model.clone();
        let tenant = access.project().to_u128();
        let loaded = self.engine.models().loaded_model(&name);
        if let Some(model) = loaded.filter(|model| model.is_available_to(tenant)) {
            recorder.set_model(model.id());
            self.engine.check_queue(&model, tenant).map_err(|refused| errors::from_refused(model.id(), refused))?;
            check_estimate(&self.engine, &model, &call.messages, &recorder, dialect)?;
        }
        let call_ids = ToolCallIds::new(&*self.clock_rng);
        let turn_recorder =
            self.context_loader.turn_recorder(access, context.conversation(), call.context.sent, call_ids);
        let tools = (Arc::clone(&output.spec.tools), tools_bytes);
        let requested = call.max_tokens.map(|(count, _)| count);
        let limits = Limits { max_tokens: requested, bounded: true };
        let (model, fitted) = self.prepare(access, context, call.messages, tools, limits).await?;
        recorder.set_model(model.id());
        check_bias(&call.sampling, &model)?;
        output.adapt_to(&model);
        let prompt_tokens = u32::try_from(fitted.prompt.ids.len()).unwrap_or(u32::MAX);
        let remedy = if turn_recorder.is_disabled() || fitted.dropped.is_some() { "" } else { TRUNCATE };
        let count = Count { tokens: prompt_tokens, exact: fitted.prompt.complete };
        let max_tokens = completion_limit(&self.engine, &model, count, call.max_tokens, remedy, dialect)?;
        let grammar = self.grammars.compile(&model, &output).await?;
        let unenforced = grammar.as_ref().map(|grammar| output.unenforced(grammar)).unwrap_or_default();
        let mut sampling = call.sampling;
        sampling.seed = call.seed.unwrap_or_else(|| self.fresh_seed());
        let request = GenerationRequest {
            prompt: fitted.prompt.ids.into(),
            choices: call.choices,
            max_tokens,
            sampling,
            grammar,
            stop: call.stop,
            logprobs: call.logprobs,
            tenant,
        };
        recorder.charge_prompt(prompt_tokens.into())?;
        // A request that never ran is not charged.
        let generation = self.engine.submit(&model, request).inspect_err(|_| recorder.waive());
        let generation = generation.map_err(|refused| errors::from_refused(model.id(), refused))?;
        Ok(RunningChat {
            id: CompletionId::generate(&*self.clock_rng),
            created: self.clock_rng.now(),
            model: name,
            prompt_tokens,
            cached_tokens: 0,
            is_limited_by_context: requested.is_some_and(|requested| requested > max_tokens),
            choices: call.choices,
            logprobs: call.logprobs.is_some(),
            truncated: fitted.dropped,
            unenforced,
            may_call: !output.spec.tools.is_empty(),
            call_ids,
            turn_recorder,
            deltas: generation.deltas,
            generated: vec![0; call.choices as usize],
            recorder,
        })
    }

    /// The number of tokens that the prompt of a request has.
    pub async fn count_tokens(&self, access: &Access, mut call: ChatCall, recorder: &UsageRecorder) -> Result<u32> {
        let Resolved { context, output, tools_bytes } = self.resolve(access, &mut call).await?;
        let limits = Limits { max_tokens: None, bounded: false };
        let (model, fitted) =
            self.prepare(access, context, call.messages, (output.spec.tools, tools_bytes), limits).await?;
        recorder.set_model(model.id());
        Ok(u32::try_from(fitted.prompt.ids.len()).unwrap_or(u32::MAX))
    }

    /// Resolves agent, conversation, model and output of a request.
    async fn resolve(&self, access: &Access, call: &mut ChatCall) -> Result<Resolved> {
        let mut context = self.context_loader.load(access, call.model.take(), &mut call.context).await?;
        let request = std::mem::take(&mut call.output);
        let tools_bytes = request.tools.as_ref().or(context.tools.as_ref()).map_or(0, String::len);
        let output = request.resolve(context.tools.take(), self.strict_schemas)?;
        access.require_model(&context.model)?;
        self.tuned.register(access, &context.model).await?;
        Ok(Resolved { context, output, tools_bytes })
    }

    /// Loads the model and builds the prompt, off the async threads. `tools`: with the bytes of their definitions.
    async fn prepare(
        &self,
        access: &Access,
        context: ConversationContext,
        messages: Vec<Message>,
        (tools, tools_bytes): (Arc<[Tool]>, usize),
        Limits { max_tokens, bounded }: Limits,
    ) -> Result<(Arc<TextModel>, FittedPrompt)> {
        let (engine, allowed, id) = (self.engine.clone(), access.clone(), context.model.clone());
        let tenant = access.project().to_u128();
        let messages_bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        let bytes = context.bytes() + messages_bytes + tools_bytes;
        let prepared = self.preparing.run(access.project(), bytes, move |bound| {
            let errors = ModelErrors { engine: &engine, access: &allowed };
            let model = engine.models().load_for(&id, tenant).map_err(|error| errors.load_failed(&id, &error))?;
            let window = engine.positions(&model);
            let bound = if bounded { bound.with_max_tokens(window as usize) } else { bound };
            let budget = TokenBudget { window, max_tokens, bound };
            let fitted = context.prompt(&model, messages, tools, budget)?;
            Ok((model, fitted))
        });
        prepared.await
    }

    fn fresh_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl RunningChat {
    /// The next delta of any choice; `None` when all have ended. The last delta is returned once the turn is stored in
    /// its conversation. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<TextDelta>> {
        if !self.turn_recorder.is_writing() {
            let delta = self.receive().await?.map(|delta| self.turn_recorder.observe(delta)).transpose();
            if delta.is_some() {
                return delta;
            }
        }
        self.turn_recorder.finish().await
    }

    /// The conversation including this turn, once stored.
    pub fn conversation(&self) -> Option<&Conversation> {
        self.turn_recorder.stored()
    }

    async fn receive(&mut self) -> Option<Result<TextDelta>> {
        let delta = self.deltas.recv().await?;
        Some(delta.map_err(errors::from_failure).inspect(|delta| self.count(delta)))
    }

    /// Records the usage that a delta reports.
    fn count(&mut self, delta: &TextDelta) {
        if let Some(generated) = self.generated.get_mut(delta.choice as usize) {
            *generated = delta.generated;
        }
        self.cached_tokens = delta.cached;
        self.recorder.set_cached(delta.cached.into());
        self.recorder.set_output(self.usage().completion_tokens.into());
    }

    /// Records the usage durably; called before the last byte of a stream. For other responses the middleware does
    /// this.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.recorder.close(outcome).await
    }

    /// Usage so far.
    pub fn usage(&self) -> Usage {
        let Self { prompt_tokens, cached_tokens, .. } = *self;
        Usage { prompt_tokens, cached_tokens, completion_tokens: self.generated.iter().sum() }
    }

    /// Waits until every choice has ended.
    pub async fn whole(&mut self) -> Result<Vec<Choice>> {
        let mut choices: Vec<Choice> = (0..self.choices).map(|_| Choice::default()).collect();
        while let Some(delta) = self.next().await {
            let delta = delta?;
            let Some(choice) = choices.get_mut(delta.choice as usize) else { continue };
            choice.text.push_str(&delta.text);
            append_call_deltas(&mut choice.calls, &delta.calls);
            choice.tokens.extend(delta.tokens);
            choice.ending = delta.end.or(choice.ending);
        }
        match choices.iter().all(|choice| choice.ending.is_some()) {
            true => Ok(choices),
            false => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }
}

impl Drop for RunningChat {
    /// A client that disconnects is charged for all generated tokens, received or not.
    fn drop(&mut self) {
        let unreceived: Vec<TextDelta> = self.deltas.close().collect();
        unreceived.iter().for_each(|delta| self.count(delta));
    }
}

/// The number of tokens that may be generated: the requested number, if prompt and completion fit into the model's
/// context and the KV cache. If the dialect says so, what fits of it.
fn completion_limit(
    engine: &Engine,
    model: &TextModel,
    count: Count,
    requested: Option<(u32, &'static str)>,
    remedy: &str,
    dialect: Dialect,
) -> Result<u32> {
    let prompt = count.tokens;
    let left = engine.positions(model).saturating_sub(prompt);
    let (completion, field) = requested.unwrap_or((left.max(1), "messages"));
    if completion <= left {
        return Ok(completion);
    }
    if dialect.limits_max_tokens() && left > 0 {
        return Ok(left);
    }
    let needed = if dialect.limits_max_tokens() { 1 } else { completion };
    let (total, window) = (u64::from(prompt) + u64::from(needed), model.context_window());
    let param = if left == 0 { "messages" } else { field };
    let or_lower = if field == "messages" { String::new() } else { format!(" or lower {field}") };
    if total <= u64::from(window) {
        engine.fits(model, total).map_err(|large| errors::too_large(&large, param, remedy))?;
    }
    let id = model.id();
    let counts = match count.exact {
        true => {
            format!(
                "However, you requested {total} tokens: {prompt} tokens in the messages, {completion} in the completion."
            )
        }
        false => format!("However, the messages have at least {prompt} tokens."),
    };
    // Clients recognise the error by how the text of their API begins.
    let message = match dialect {
        Dialect::Chat => format!(
            "This model's maximum context length is {window} tokens. {counts} Shorten the messages{or_lower} (model: '{id}').{remedy}"
        ),
        Dialect::Messages => format!(
            "prompt is too long: {prompt} tokens > {window} maximum. Shorten the messages, or use a model with a longer context (model: '{id}')."
        ),
    };
    Err(Error::new(Code::ContextLengthExceeded, message).param(param))
}

/// Number of prompt tokens, or a lower bound.
#[derive(Clone, Copy)]
struct Count {
    tokens: u32,
    exact: bool,
}

/// Refuses a request whose messages are too long for the context or the project's budget, by an estimate made before
/// rendering.
fn check_estimate(
    engine: &Engine,
    model: &TextModel,
    messages: &[Message],
    recorder: &UsageRecorder,
    dialect: Dialect,
) -> Result<()> {
    let min_tokens = model.min_prompt_tokens(messages);
    if min_tokens > u64::from(engine.positions(model)) {
        let tokens = u32::try_from(min_tokens).unwrap_or(u32::MAX);
        completion_limit(engine, model, Count { tokens, exact: false }, None, "", dialect)?;
    }
    if min_tokens > 0 { recorder.check_budget(min_tokens) } else { Ok(()) }
}

fn check_bias(sampling: &Sampling, model: &TextModel) -> Result<()> {
    match sampling.logit_bias.iter().find(|(id, _)| *id as usize >= model.vocabulary()) {
        None => Ok(()),
        Some((id, _)) => {
            let message = format!(
                "logit_bias names the token {id}, but the model '{}' has tokens 0 to {}.",
                model.id(),
                model.vocabulary() - 1
            );
            Err(Error::invalid(format!("logit_bias.{id}"), message))
        }
    }
}
