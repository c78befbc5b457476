//! The prompts of decoders that rank: what a query and a document look like to a model that was trained to answer whether
//! they fit.

use std::sync::Arc;

use minijinja::context;
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use crate::text::chat_template::Template;
use outpost_common::clock_rng::ClockRng;

/// The prompt of a pair, as the model's files have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PairPrompt {
    /// A chat template for messages with the roles `query` and `document`, as of sentence-transformers. A message with the role
    /// `system` before them has the instruction.
    Jinja(String),
    /// A text in which `{query}` and `{document}` are replaced, as of llama.cpp.
    Plain(String),
}

/// The prompt of the Qwen3-Reranker models, whose own template is that of chats (Zhang et al. 2025,
/// <https://arxiv.org/abs/2506.05176>).
pub const QWEN3_RERANKER: &str = r#"{%- set instructions = messages | selectattr("role", "eq", "system") | map(attribute="content") | list -%}
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ instructions[0] if instructions else "Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

{{ "</think>\n\n" }}"#;

impl PairPrompt {
    /// The chat template, if it is one for pairs.
    pub fn from_chat_template(source: String) -> Option<Self> {
        (names_role(&source, "query") && names_role(&source, "document")).then_some(Self::Jinja(source))
    }

    /// Whether a request may have an instruction.
    pub fn takes_instruction(&self) -> bool {
        matches!(self, Self::Jinja(source) if names_role(source, "system"))
    }
}

fn names_role(source: &str, role: &str) -> bool {
    ['"', '\''].iter().any(|quote| source.contains(&format!("{quote}{role}{quote}")))
}

/// A prompt that is ready to be rendered.
pub enum PairTemplate {
    Jinja {
        template: Box<Template>,
        /// The content of a message is a list of parts, and not a text.
        structured: bool,
    },
    Plain(String),
}

/// What templates have that read a list of parts. These are the patterns of sentence-transformers.
const STRUCTURED: [&str; 6] = ["content[0]", ".type", "'type'", "\"type\"", "item.type", "message.content["];

impl PairTemplate {
    /// `bos` and `eos`: the texts of these tokens.
    pub fn new(prompt: &PairPrompt, [bos, eos]: [&str; 2], clock: &Arc<dyn ClockRng>) -> Result<Self, String> {
        Ok(match prompt {
            PairPrompt::Plain(text) => Self::Plain(text.clone()),
            PairPrompt::Jinja(source) => Self::Jinja {
                template: Box::new(Template::new(source, bos.to_owned(), eos.to_owned(), Arc::clone(clock))?),
                structured: STRUCTURED.iter().any(|pattern| source.contains(pattern)),
            },
        })
    }

    /// The text of a pair.
    pub fn render(&self, instruction: Option<&str>, query: &str, document: &str) -> Result<String, String> {
        let (template, structured) = match self {
            Self::Jinja { template, structured } => (template, *structured),
            // The query may have the second placeholder.
            Self::Plain(text) => {
                let parts: Vec<String> =
                    text.split("{query}").map(|part| part.replace("{document}", document)).collect();
                return Ok(parts.join(query));
            }
        };
        let message = |(role, text): (&str, &str)| {
            let content = match structured {
                true => Value::from(vec![context! { type => "text", text }]),
                false => Value::from(text),
            };
            context! { role, content }
        };
        let roles =
            instruction.map(|text| ("system", text)).into_iter().chain([("query", query), ("document", document)]);
        let messages: Vec<Value> = roles.map(message).collect();
        template.render(Value::from(messages), Vec::new(), Default::default(), false).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use outpost_testing::test_clock::TestClock;

    use super::*;

    #[test]
    fn placeholders_are_replaced_once() {
        let plain = PairTemplate::Plain("q {query} d {document}.".to_owned());
        assert_eq!(plain.render(None, "{document}", "{query}").unwrap(), "q {document} d {query}.");
    }

    /// That of llama.cpp's converter.
    const PLAIN: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
        provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search \
        query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n";

    #[test]
    fn both_forms_of_qwen3_rerankers_prompt_are_the_same() {
        let clock: Arc<dyn ClockRng> = Arc::new(TestClock::default());
        let template = |prompt| PairTemplate::new(&prompt, ["", ""], &clock).unwrap();
        let [jinja, plain] =
            [PairPrompt::Jinja(QWEN3_RERANKER.to_owned()), PairPrompt::Plain(PLAIN.to_owned())].map(template);
        let pair = |template: &PairTemplate, instruction| template.render(instruction, "  a\n", "{{ b }}").unwrap();
        assert_eq!(pair(&jinja, None), pair(&plain, None));
        assert!(
            pair(&jinja, Some("find it"))
                .contains("<Instruct>: find it\n<Query>:   a\n\n<Document>: {{ b }}<|im_end|>")
        );
    }

    #[test]
    fn contents_are_parts_if_the_template_reads_them() {
        let clock: Arc<dyn ClockRng> = Arc::new(TestClock::default());
        let source = "{% for m in messages %}{{ m.role }}={{ m.content[0].text }};{% endfor %}{# 'query' 'document' #}";
        let template = PairTemplate::new(&PairPrompt::Jinja(source.to_owned()), ["", ""], &clock).unwrap();
        assert_eq!(template.render(None, "a", "b").unwrap(), "query=a;document=b;");
    }

    #[test]
    fn templates_of_chats_are_none_of_pairs() {
        assert_eq!(PairPrompt::from_chat_template("{{ messages[0].role == 'user' }} query document".to_owned()), None);
        let pairs = PairPrompt::from_chat_template("{{ m['query'] }}{{ m[\"document\"] }}".to_owned()).unwrap();
        assert!(!pairs.takes_instruction() && PairPrompt::Jinja(QWEN3_RERANKER.to_owned()).takes_instruction());
    }
}
