//! Why an output format cannot be enforced.

/// Why an output format cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The schema of the text is invalid at `path`.
    #[error("the schema{path} {what}")]
    Schema { path: String, what: String },
    /// The parameters of the tool with this index are invalid at `path`.
    #[error("the parameters{path} of the tool {tool} {what}")]
    Tool { tool: usize, path: String, what: String },
    /// The combination of formats and tools.
    #[error("{0}")]
    Combination(String),
    /// The model cannot be used with grammars; not the caller's fault.
    #[error("{0}")]
    Model(String),
}

impl GrammarError {
    /// An error in the parameters of a tool, or in the schema of the text.
    pub(super) fn schema(tool: Option<usize>, path: String, what: String) -> Self {
        match tool {
            Some(tool) => Self::Tool { tool, path, what },
            None => Self::Schema { path, what },
        }
    }
}
