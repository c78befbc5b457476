//! The API that a request came through. Errors use its names and texts.

/// An API for chats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's Chat Completions.
    #[default]
    Chat,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
}

impl Dialect {
    /// The field with the schema of the output.
    pub(super) fn output_schema(self) -> &'static str {
        match self {
            Self::Chat => "response_format.json_schema.schema",
            Self::Messages => "output_config.format.schema",
            Self::Responses => "text.format.schema",
        }
    }

    /// The field with the format of the output.
    pub(super) fn output_format(self) -> &'static str {
        match self {
            Self::Chat => "response_format",
            Self::Messages => "output_config.format",
            Self::Responses => "text.format",
        }
    }

    /// The field with the conversation.
    pub(super) fn prompt(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Responses => "input",
        }
    }

    /// The field of a tool with the schema of its arguments.
    pub(super) fn tool_schema(self) -> &'static str {
        match self {
            Self::Chat => "function.parameters",
            Self::Messages => "input_schema",
            Self::Responses => "parameters",
        }
    }

    /// The field that names the tool to call.
    pub(super) fn chosen_tool(self) -> &'static str {
        match self {
            Self::Chat => "tool_choice.function.name",
            Self::Messages | Self::Responses => "tool_choice.name",
        }
    }

    /// Whether `max_tokens` may exceed what the context leaves. Anthropic's clients always send it, and generation then ends
    /// where the context does. In the Responses API, it is an upper bound, too.
    pub(super) fn limits_max_tokens(self) -> bool {
        self != Self::Chat
    }
}
