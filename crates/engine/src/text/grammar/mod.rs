//! Constrained decoding: JSON that is valid under a schema, and tool calls.
//!
//! The output format becomes a grammar (llguidance, an Earley parser over a derivative-based lexer). In each step it
//! masks the tokens that cannot come next before sampling. Grammars are compiled off the compute thread, on a thread
//! with a large stack. Schemas are untrusted input: their size is limited before compilation, the work during it.
//!
//! Every keyword that can be enforced is enforced, with or without `strict`; with it, a schema with any other keyword
//! is refused. Arguments conform to a tool's schema even if the model is free not to call it. Models that spell a
//! marker letter by letter and models that have a token for it use the same grammar, because only control tokens are
//! distinguished from their bytes.
//!
//! Schemas are compiled in the server and not in the sandbox: the compiler has exact limits of its own, and a compiled
//! grammar is a state machine in the sampler's memory, which cannot cross a process boundary.

mod error;
mod gbnf;
mod harmony;
mod json_string;
mod parameters;
mod part;
mod regex_escape;
mod rejection;
mod schema;
mod source;
mod state;
mod vocabulary;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::TokEnv;

use crate::text::tools::{CallSyntax, OutputSpec};
use crate::tokenizer::Vocabulary;
pub use error::GrammarError;
pub use gbnf::to_lark as gbnf_to_lark;
use outpost_common::display::shorten;
pub use part::Unenforced;
use rejection::Rejection;
pub use state::GrammarState;

/// Compiled grammars kept per model.
const CACHE_SIZE: usize = 16;
/// Enough for the recursion over the largest accepted schema; only touched pages use memory.
const STACK_BYTES: usize = 256 << 20;

/// A compiled grammar that constrains the output. Cheap to clone.
#[derive(Clone)]
pub struct CompiledGrammar {
    compiled: Arc<Compiled>,
    /// How tool calls are written, if there may be any.
    pub(crate) syntax: Option<Arc<CallSyntax>>,
}

struct Compiled {
    /// The grammar in its initial state. Behind a lock because shallow copies share its lexer.
    matcher: Mutex<Matcher>,
    unenforced: Vec<Unenforced>,
}

impl CompiledGrammar {
    /// A copy of the grammar in its initial state, with its own caches.
    pub(crate) fn state(&self) -> GrammarState {
        GrammarState::new(self.compiled.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }

    /// The constraints of the schemas that the output need not match.
    pub fn unenforced(&self) -> &[Unenforced] {
        &self.compiled.unenforced
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").field("syntax", &self.syntax).finish_non_exhaustive()
    }
}

/// Compiled grammars of one model, least recently used evicted first.
#[derive(Default)]
pub struct GrammarCache {
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Most recently used first, by [`OutputSpec::key`].
    cached: Mutex<Vec<(String, Arc<Compiled>)>>,
}

impl GrammarCache {
    /// Reads the vocabulary, once. Takes a few tenths of a second for a large one.
    fn prepare(&self, tokens: &Vocabulary) -> Result<&ParserFactory, GrammarError> {
        let factory = self.factory.get_or_init(|| factory(&vocabulary::token_env(tokens)?));
        factory.as_ref().map_err(|reason| GrammarError::Model(reason.clone()))
    }

    /// The grammar of `spec`, from the cache or compiled. Takes time proportional to the schemas.
    pub fn get_or_compile(
        &self,
        tokens: &Vocabulary,
        spec: &OutputSpec,
        syntax: Option<CallSyntax>,
    ) -> Result<CompiledGrammar, GrammarError> {
        let key = spec.key();
        let compiled = match self.find(&key) {
            Some(found) => found,
            None => self.insert(key, self.compile(tokens, spec, syntax.as_ref())?),
        };
        Ok(CompiledGrammar { compiled, syntax: syntax.map(Arc::new) })
    }

    /// The grammar of `spec`, if it is cached.
    pub fn get(&self, spec: &OutputSpec, syntax: impl FnOnce() -> Option<CallSyntax>) -> Option<CompiledGrammar> {
        let compiled = self.find(&spec.key())?;
        Some(CompiledGrammar { compiled, syntax: syntax().map(Arc::new) })
    }

    fn compile(
        &self,
        tokens: &Vocabulary,
        spec: &OutputSpec,
        syntax: Option<&CallSyntax>,
    ) -> Result<Compiled, GrammarError> {
        let factory = self.prepare(tokens)?;
        on_large_stack(|| compile(factory, source::build(spec, syntax)?))
    }

    fn find(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|(one, _)| one == key)?;
        cached.get_mut(..=at)?.rotate_right(1);
        cached.first().map(|(_, compiled)| Arc::clone(compiled))
    }

    fn insert(&self, key: String, compiled: Compiled) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.insert(0, (key, Arc::clone(&compiled)));
        cached.truncate(CACHE_SIZE);
        compiled
    }
}

/// Compiles the grammar. If it fails, leaves open what cannot be enforced of the schemas that are not strict.
fn compile(factory: &ParserFactory, mut source: source::Source) -> Result<Compiled, GrammarError> {
    let matcher = match parse(factory, &source, None) {
        Ok(matcher) => matcher,
        Err(reason) => {
            check_text(factory, &source)?;
            check_inputs(factory, &source)?;
            relax(factory, &mut source)?;
            parse(factory, &source, None).map_err(|_| combination(reason))?
        }
    };
    Ok(Compiled { matcher: Mutex::new(matcher), unenforced: source.unenforced() })
}

/// Leaves open what cannot be enforced of the schemas that do not compile. Fails if one is strict or cannot be satisfied.
fn relax(factory: &ParserFactory, source: &mut source::Source) -> Result<(), GrammarError> {
    for index in 0..source.schemas.len() {
        let Err(reason) = parse(factory, source, Some(index)) else { continue };
        if source.schemas[index].is_strict() || reason == Rejection::Unsatisfiable {
            return Err(source.error(index, format!("cannot be enforced: {reason}")));
        }
        source.schemas[index].leave_open(&|schema| compiles(factory, schema));
    }
    Ok(())
}

/// Fails if the grammar or the regular expression of the text does not compile, with the compiler's reason.
fn check_text(factory: &ParserFactory, source: &source::Source) -> Result<(), GrammarError> {
    source.text_grammar().map_or(Ok(()), |grammar| check_grammar(factory, None, grammar))
}

/// Fails if the grammar of a custom tool's input does not compile.
fn check_inputs(factory: &ParserFactory, source: &source::Source) -> Result<(), GrammarError> {
    source.inputs().try_for_each(|(tool, grammar)| check_grammar(factory, Some(tool), grammar))
}

/// Fails if a grammar does not compile, with the compiler's reason. `tool`: the tool that it belongs to.
fn check_grammar(factory: &ParserFactory, tool: Option<usize>, grammar: TopLevelGrammar) -> Result<(), GrammarError> {
    let Some(error) = Matcher::new(factory.create_parser(grammar)).get_error() else { return Ok(()) };
    let reason = match Rejection::of(&error) {
        Rejection::TooComplex => Rejection::TooComplex.to_string(),
        _ => shorten(error.lines().next().unwrap_or_default()),
    };
    Err(GrammarError::schema(tool, String::new(), format!("cannot be enforced: {reason}")))
}

fn compiles(factory: &ParserFactory, schema: Value) -> bool {
    let grammar = TopLevelGrammar::from_json_schema(schema);
    Matcher::new(factory.create_parser(grammar)).get_error().is_none()
}

fn combination(reason: Rejection) -> GrammarError {
    GrammarError::Combination(format!("The requested output format cannot be enforced: {reason}."))
}

/// Parses the whole grammar, or only that of the schema `part`.
fn parse(factory: &ParserFactory, source: &source::Source, part: Option<usize>) -> Result<Matcher, Rejection> {
    let matcher = Matcher::new(factory.create_parser(source.grammar(part)));
    match matcher.get_error() {
        None => Ok(matcher),
        Some(error) => Err(Rejection::of(&error)),
    }
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, work).map_err(|error| GrammarError::Model(error.to_string()))?;
        let crashed = |_| Err(GrammarError::Combination("The requested output format cannot be enforced.".to_owned()));
        running.join().unwrap_or_else(crashed)
    })
}

fn factory(environment: &TokEnv) -> Result<ParserFactory, String> {
    let slices = SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(environment, InferenceCapabilities::default(), &slices)
        .map_err(|error| format!("the vocabulary cannot be used for constrained decoding: {error}"))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// Well below the library's defaults: a step must not delay other sequences, and a grammar must not take more memory
/// than the KV cache of a few hundred tokens.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_500,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

#[cfg(test)]
mod tests;
