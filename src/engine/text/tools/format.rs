//! The ways in which families of models write calls.

use serde::{Deserialize, Serialize};

use super::{CallMode, OutputSpec, TextFormat, Tool};
use crate::engine::tokenizer::Vocabulary;

/// How a family writes calls. Found in its template, for a template shows the form to its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer (Llama 3.1 to 3.3).
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}]` (Mistral up to 2024).
    Mistral,
}

impl Format {
    /// `None`: the template does not know tools, or in a form that is none of these.
    pub fn detect(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        if !has("tools") {
            None
        } else if has("<tool_call>") && !has("<function=") && !has("<arg_key>") {
            Some(Self::Hermes)
        } else if has("[TOOL_CALLS]") && !has("[ARGS]") {
            Some(Self::Mistral)
        } else if has("\"parameters\": ") && (has("<|python_tag|>") || has("ipython")) {
            Some(Self::Llama)
        } else {
            None
        }
    }

    /// What no text has: from here on the answer is calls. Empty where calls begin an answer.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>",
            Self::Llama => "",
            Self::Mistral => "[TOOL_CALLS]",
        }
    }

    /// Between the opening and the first call.
    pub fn lead(self) -> &'static str {
        match self {
            Self::Hermes => "\n",
            Self::Llama => "",
            Self::Mistral => " [",
        }
    }

    /// A call up to its arguments. No head begins another, for the name is quoted.
    pub fn head(self, name: &str) -> String {
        let arguments = if self == Self::Llama { "parameters" } else { "arguments" };
        format!("{{\"name\": \"{name}\", \"{arguments}\": ")
    }

    /// A call after its arguments.
    pub fn tail(self) -> &'static str {
        if self == Self::Hermes { "}\n</tool_call>" } else { "}" }
    }

    /// Between calls; `None` where there can be but one.
    pub fn separator(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("\n<tool_call>\n"),
            Self::Llama => None,
            Self::Mistral => Some(", "),
        }
    }

    /// After the last call.
    pub fn closing(self) -> &'static str {
        if self == Self::Mistral { "]" } else { "" }
    }

    /// Texts that some vocabularies have as control tokens.
    fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::Llama => &[PYTHON],
            Self::Mistral => &["[TOOL_CALLS]"],
        }
    }
}

/// What a Llama may put before a call.
pub const PYTHON: &str = "<|python_tag|>";

/// The way in which one request's calls are written.
#[derive(Clone, Debug)]
pub struct Syntax {
    pub format: Format,
    /// Texts of the format that are control tokens here.
    pub marks: Vec<(&'static str, u32)>,
    /// What may be called, with its index among the request's tools.
    pub callable: Vec<(usize, Tool)>,
    /// Whether the answer is calls from its first token on.
    pub at_once: bool,
    /// Whether the answer may begin with a call without its opening, see [`super::bare`].
    pub bare: bool,
    /// Whether there may be several calls.
    pub several: bool,
}

impl Syntax {
    /// `None` where nothing may be called.
    pub fn new(format: Format, tokens: &Vocabulary, shape: &OutputSpec) -> Option<Self> {
        let wanted = |tool: &Tool| match &shape.calling {
            CallMode::Named(name) => tool.name == *name,
            _ => true,
        };
        let callable: Vec<_> = shape.tools.iter().cloned().enumerate().filter(|(_, tool)| wanted(tool)).collect();
        let marks = format.marks().iter().filter_map(|text| tokens.control_id(text).map(|id| (*text, id)));
        let at_once = shape.calling != CallMode::Auto;
        (!callable.is_empty()).then(|| Self {
            format,
            marks: marks.collect(),
            callable,
            at_once,
            bare: !at_once && format != Format::Llama && matches!(shape.text, TextFormat::Free),
            several: shape.parallel && format.separator().is_some() && !matches!(shape.calling, CallMode::Named(_)),
        })
    }

    /// The control token that opens calls.
    pub fn opening_id(&self) -> Option<u32> {
        let opening = if self.format == Format::Llama { PYTHON } else { self.format.opening() };
        self.marks.iter().find(|(text, _)| *text == opening).map(|(_, id)| *id)
    }
}
