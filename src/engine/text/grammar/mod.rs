//! Answers of a demanded form: JSON that obeys a schema, and calls of tools.
//!
//! What a request demands becomes a grammar (llguidance, an Earley parser over a derivative-based
//! lexer); at each step it says which tokens may come next, and the sampler never sees the others.
//! GrammarCache are compiled off the engine's thread, on one with a stack of its own, under limits on
//! the schema's size before and on the work after: a schema is a stranger's program like a template.

mod error;
mod schema;
mod source;
mod state;
mod vocabulary;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use toktrie::TokEnv;

use crate::engine::text::tools::{OutputSpec, Syntax};
use crate::engine::tokenizer::Vocabulary;
pub use error::GrammarError;
pub use state::State;

/// GrammarCache that a model keeps compiled.
const KEPT: usize = 16;
/// Characters of the library's words that a caller is told.
const LONGEST_REASON: usize = 200;
/// Room for the recursion over the largest schema that is let in; only what is touched is used.
const STACK: usize = 256 << 20;

/// A form that an answer is held to. Cheap to clone.
#[derive(Clone)]
pub struct CompiledGrammar {
    compiled: Arc<Compiled>,
    /// How calls are told from text, where calls may come.
    pub(in crate::engine) syntax: Option<Arc<Syntax>>,
}

/// A grammar before its first token. Behind a lock because its lexer is shared by plain copies.
struct Compiled(Mutex<Matcher>);

impl CompiledGrammar {
    /// The grammar at its beginning, with caches of its own.
    pub(in crate::engine) fn state(&self) -> State {
        State::new(self.compiled.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone())
    }
}

impl std::fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledGrammar").field("syntax", &self.syntax).finish_non_exhaustive()
    }
}

/// The grammars of one model.
#[derive(Default)]
pub struct GrammarCache {
    factory: OnceLock<Result<ParserFactory, String>>,
    /// The newest first, by [`OutputSpec::key`].
    kept: Mutex<Vec<(String, Arc<Compiled>)>>,
}

impl GrammarCache {
    /// Reads the vocabulary, once. Takes some tenths of a second for a large one.
    fn prepare(&self, tokens: &Vocabulary) -> Result<&ParserFactory, GrammarError> {
        let factory = self.factory.get_or_init(|| factory(&vocabulary::environment(tokens)?));
        factory.as_ref().map_err(|reason| GrammarError::Model(reason.clone()))
    }

    /// The form of `shape`, compiled or found. Takes time in proportion to the schemas.
    pub fn form(
        &self,
        tokens: &Vocabulary,
        shape: &OutputSpec,
        syntax: Option<Syntax>,
    ) -> Result<CompiledGrammar, GrammarError> {
        let key = shape.key();
        let compiled = match self.find(&key) {
            Some(found) => found,
            None => self.keep(key, self.compile(tokens, shape, syntax.as_ref())?),
        };
        Ok(CompiledGrammar { compiled, syntax: syntax.map(Arc::new) })
    }

    /// The form of `shape` if it is kept.
    pub fn kept(&self, shape: &OutputSpec, syntax: impl FnOnce() -> Option<Syntax>) -> Option<CompiledGrammar> {
        let compiled = self.find(&shape.key())?;
        Some(CompiledGrammar { compiled, syntax: syntax().map(Arc::new) })
    }

    fn compile(
        &self,
        tokens: &Vocabulary,
        shape: &OutputSpec,
        syntax: Option<&Syntax>,
    ) -> Result<Compiled, GrammarError> {
        let factory = self.prepare(tokens)?;
        on_large_stack(|| compile(factory, &source::write(shape, syntax)?))
    }

    fn find(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(one, _)| one == key)?;
        kept.get_mut(..=at)?.rotate_right(1);
        kept.first().map(|(_, compiled)| Arc::clone(compiled))
    }

    fn keep(&self, key: String, compiled: Compiled) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(0, (key, Arc::clone(&compiled)));
        kept.truncate(KEPT);
        compiled
    }
}

fn compile(factory: &ParserFactory, source: &source::Source) -> Result<Compiled, GrammarError> {
    let matcher = parse(factory, source, None).map_err(|reason| blame(factory, source, &reason))?;
    Ok(Compiled(Mutex::new(matcher)))
}

/// The whole grammar, or that of one of its schemas alone.
fn parse(factory: &ParserFactory, source: &source::Source, part: Option<usize>) -> Result<Matcher, String> {
    let matcher = Matcher::new(factory.create_parser(source.grammar(part)));
    match matcher.get_error() {
        None => Ok(matcher),
        Some(error) => Err(gist(&error)),
    }
}

/// The line of a message that says what is wrong; around it the library quotes what it was given.
fn gist(error: &str) -> String {
    if error.starts_with("panic:") {
        return "it has more parts than the compiler has room for".to_owned();
    }
    let line = error.lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| error.lines().next());
    line.unwrap_or_default().trim().chars().take(LONGEST_REASON).collect()
}

/// The schema that cannot be compiled, where one of several is to blame.
fn blame(factory: &ParserFactory, source: &source::Source, reason: &str) -> GrammarError {
    let parts = 0..source.schemas.len();
    let guilty = parts.filter_map(|part| Some((part, parse(factory, source, Some(part)).err()?))).next();
    match guilty {
        Some((part, reason)) => source.error(part, String::new(), format!("cannot be enforced: {reason}")),
        None => GrammarError::Together(format!("The demanded form cannot be enforced: {reason}.")),
    }
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        let running = thread.spawn_scoped(scope, work).map_err(|error| GrammarError::Model(error.to_string()))?;
        let crashed = |_| Err(GrammarError::Together("The demanded form cannot be enforced.".to_owned()));
        running.join().unwrap_or_else(crashed)
    })
}

fn factory(environment: &TokEnv) -> Result<ParserFactory, String> {
    let slices = SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(environment, InferenceCapabilities::default(), &slices)
        .map_err(|error| format!("the vocabulary cannot be used for demanded forms: {error}"))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// Well below the library's own: a step must not hold up the answers of others, and a grammar must
/// not take more memory than a cache of some hundred tokens.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 1_000,
        initial_lexer_fuel: 500_000,
        step_lexer_fuel: 100_000,
        step_max_items: 25_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

#[cfg(test)]
mod tests;
