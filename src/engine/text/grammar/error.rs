//! Why a schema or a demanded tool call cannot be enforced.

/// Why a demanded form cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema of the answer's text; `path` leads to the place inside of it.
    #[error("the schema{path} {what}")]
    Schema { path: String, what: String },
    /// The parameters of the tool with this index.
    #[error("the parameters{path} of the tool {tool} {what}")]
    Tool { tool: usize, path: String, what: String },
    /// The demands as a whole.
    #[error("{0}")]
    Combination(String),
    /// The model's fault, not the caller's.
    #[error("{0}")]
    Model(String),
}
