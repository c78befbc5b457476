//! The API that a request came through. Errors use its names and texts.

/// An API for chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's Chat Completions.
    #[default]
    Chat,
    /// Anthropic's Messages.
    Messages,
}

impl Dialect {
    /// The field with the schema of the output.
    pub(super) fn output_schema(self) -> &'static str {
        match self {
            Self::Chat => "response_format.json_schema.schema",
            Self::Messages => "output_config.format.schema",
        }
    }

    /// The field of a tool with the schema of its arguments.
    pub(super) fn tool_schema(self) -> &'static str {
        match self {
            Self::Chat => "function.parameters",
            Self::Messages => "input_schema",
        }
    }

    /// The field that names the tool to call.
    pub(super) fn chosen_tool(self) -> &'static str {
        match self {
            Self::Chat => "tool_choice.function.name",
            Self::Messages => "tool_choice.name",
        }
    }

    /// Whether `max_tokens` may exceed what the context leaves. Anthropic's clients always send it, and generation then ends
    /// where the context does.
    pub(super) fn limits_max_tokens(self) -> bool {
        self == Self::Messages
    }
}
