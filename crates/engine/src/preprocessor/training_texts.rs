//! Turns training examples into tokens and targets.
//!
//! Each trained message becomes a prompt and a completion. The prompt's tokens are those that inference computes for the
//! messages before it. The completion is what the chat template then writes for the message, up to the token that ends
//! generation. A prompt that begins with the text of an earlier message, completion included, extends that text. Otherwise,
//! the message gets a text of its own, because its template changes earlier messages: Qwen3's removes their reasoning.
//!
//! Tokenizing a whole conversation and marking the assistant's part can merge characters across the end of the
//! generation prompt, so that the model would learn tokens that follow no prompt. Each trained message is therefore
//! rendered twice, and templates that change earlier messages need no list.

use super::chat::ChatPreprocessor;
use crate::error::PreprocessError;
use crate::text::chat_template::PromptError;
use crate::text::prompt_options::{PromptEnd, PromptOptions};
use crate::text::tools::Tool;
use crate::text::training_example::{TrainingExample, TrainingTexts};
use crate::tokenizer::TokenizeLimits;
use outpost_content::Message;
use outpost_models::training::TrainingText;

impl ChatPreprocessor {
    /// The tokens of an example, unless a text has more than `max_tokens`.
    pub fn training_texts(
        &self,
        example: &TrainingExample,
        max_tokens: usize,
        limits: &TokenizeLimits,
    ) -> Result<TrainingTexts, PromptError> {
        let texts = match example {
            TrainingExample::Chat { messages, trained, tools } => {
                self.chat_texts(messages, trained, tools, max_tokens, limits)?
            }
            TrainingExample::Completion { prompt, completion } => {
                let mut text = TrainingText { tokens: self.tokenizer().encode_document(prompt), targets: Vec::new() };
                let mut completion = self.tokenizer().encode_after(prompt, completion);
                completion.extend(self.eos());
                text.push_targets(completion);
                vec![text]
            }
            TrainingExample::Text(text) => {
                let mut tokens = self.tokenizer().encode_document(text);
                tokens.extend(self.eos());
                let targets = (1..tokens.len()).collect();
                vec![TrainingText { tokens, targets }]
            }
            TrainingExample::Preference { messages, tools, chosen, rejected } => {
                let mut pair = Vec::with_capacity(2);
                for output in [chosen, rejected] {
                    let all = [messages.as_slice(), output].concat();
                    let is_trained = |index: usize| index >= messages.len() && all[index].role == "assistant";
                    let trained: Vec<bool> = (0..all.len()).map(is_trained).collect();
                    let texts = self.chat_texts(&all, &trained, tools, max_tokens, limits)?;
                    if texts.len() > 1 {
                        let reason = "it changes earlier assistant messages, so an output can have only one";
                        return Err(PromptError::Refused(reason.to_owned()));
                    }
                    pair.extend(texts);
                }
                pair
            }
        };
        let too_long = texts.iter().map(|text| text.tokens.len()).find(|tokens| *tokens > max_tokens);
        Ok(too_long.map_or(TrainingTexts::Complete(texts), |tokens| TrainingTexts::TooLong { tokens }))
    }

    /// The texts of the messages that are marked in `trained`. The last one may be longer than `max_tokens`; then others
    /// may be missing.
    fn chat_texts(
        &self,
        messages: &[Message],
        trained: &[bool],
        tools: &[Tool],
        max_tokens: usize,
        limits: &TokenizeLimits,
    ) -> Result<Vec<TrainingText>, PromptError> {
        let transcript = PromptOptions { end: PromptEnd::LastMessage, ..PromptOptions::default() };
        let mut texts: Vec<TrainingText> = Vec::new();
        for (index, _) in trained.iter().enumerate().filter(|(_, trained)| **trained) {
            if limits.is_cancelled() {
                return Err(PromptError::PreprocessError(PreprocessError::Failed("it was cancelled".to_owned())));
            }
            let before = self.render_with_tools(&messages[..index], tools, &PromptOptions::default())?;
            let after = self.render_with_tools(&messages[..=index], tools, &transcript)?;
            let prompt = self.tokenizer().encode_prompt(&before, &TokenizeLimits::default()).ids;
            if prompt.is_empty() {
                return Err(PromptError::Broken("it renders these messages to an empty prompt".to_owned()));
            }
            let completion = self.completion(&before, &prompt, &after);
            match texts.last_mut() {
                Some(text) if prompt.starts_with(&text.tokens) => text.tokens = prompt,
                Some(text) if text.tokens.len() > max_tokens => break,
                _ => texts.push(TrainingText { tokens: prompt, targets: Vec::new() }),
            }
            if let Some(text) = texts.last_mut() {
                text.push_targets(completion);
            }
        }
        Ok(texts)
    }

    /// The tokens that the model has to generate so that the rendered prompt `before` becomes `after`. They end with a token
    /// that ends generation. `prompt`: the tokens of `before`.
    fn completion(&self, before: &str, prompt: &[u32], after: &str) -> Vec<u32> {
        let mut completion = match after.strip_prefix(before) {
            Some(rest) => self.tokenizer().encode_continuation(before, rest),
            // The generation prompt has more than the beginning of a message, such as the start of reasoning.
            None => {
                let mut all = self.tokenizer().encode_prompt(after, &TokenizeLimits::default()).ids;
                let common = all.iter().zip(prompt).take_while(|(one, other)| one == other).count();
                all.split_off(common)
            }
        };
        match completion.iter().position(|id| self.ends_generation(*id)) {
            Some(end) => completion.truncate(end + 1),
            None => completion.extend(self.eos()),
        }
        completion
    }
}

#[cfg(test)]
mod tests {
    use outpost_testing::fixtures::fixture;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use crate::preprocessor::spec::ModelFiles;
    use crate::tokenizer::files::TextFiles;
    use outpost_common::clock_rng::{ClockRng, StoppedClock};

    const CHATML: &str = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}\
                          {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

    /// A model with a tokenizer of the fixtures.
    fn preprocessor(tokenizer: &Path, template: &str, config: &Value) -> ChatPreprocessor {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(tokenizer.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
        std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        let files = ModelFiles::Folder(TextFiles::read(dir.path()).unwrap());
        let clock: Arc<dyn ClockRng> = Arc::new(StoppedClock);
        ChatPreprocessor::new(&files, 1 << 20, &clock).unwrap().0
    }

    fn smollm(template: &str) -> ChatPreprocessor {
        preprocessor(&fixture("tokenizers/smollm"), template, &json!({"eos_token": "<|end|>"}))
    }

    fn texts(preprocessor: &ChatPreprocessor, example: &TrainingExample) -> Vec<TrainingText> {
        match preprocessor.training_texts(example, 10_000, &TokenizeLimits::default()).unwrap() {
            TrainingTexts::Complete(texts) => texts,
            TrainingTexts::TooLong { tokens } => panic!("{tokens} tokens"),
        }
    }

    fn chat(messages: &[(&str, &str)]) -> TrainingExample {
        let messages: Vec<_> = messages.iter().map(|(role, content)| Message::new(*role, *content)).collect();
        let trained = messages.iter().map(|message| message.role == "assistant").collect();
        TrainingExample::Chat { messages, trained, tools: Vec::new() }
    }

    /// The target tokens.
    fn targets(text: &TrainingText) -> Vec<u32> {
        text.targets.iter().map(|position| text.tokens[*position]).collect()
    }

    #[derive(Deserialize)]
    struct Setup {
        tokenizer: PathBuf,
        bos_token: Value,
        eos_token: Value,
        template: String,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        messages: Vec<Value>,
        trained: Vec<usize>,
        tools: Vec<Value>,
        texts: Vec<TrainingText>,
    }

    /// `tests/fixtures/make_training_texts_reference.py` wrote the expected texts.
    #[test]
    fn conversations_match_transformers() {
        let path = fixture("training_texts.json");
        let setups: Vec<Setup> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let mut checked = 0;
        for Setup { tokenizer, bos_token, eos_token, template, cases } in setups {
            let config = json!({"bos_token": bos_token, "eos_token": eos_token});
            let preprocessor = preprocessor(&fixture("tokenizers").join(&tokenizer), &template, &config);
            for Case { messages, trained, tools, texts: expected } in cases {
                let messages: Vec<Message> = messages.iter().map(Message::from_json).collect();
                let trained = (0..messages.len()).map(|index| trained.contains(&index)).collect();
                let tool = |definition: &Value| {
                    let name = definition["function"]["name"].as_str().unwrap().to_owned();
                    Tool { name, definition: definition.clone(), strict: false, input: None }
                };
                let tools = tools.iter().map(tool).collect();
                let example = TrainingExample::Chat { messages, trained, tools };
                assert_eq!(texts(&preprocessor, &example), expected, "{tokenizer:?} {template} {example:?}");
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn special_tokens_in_messages_are_text() {
        let preprocessor = smollm(CHATML);
        let example = chat(&[("user", "a<|end|>"), ("assistant", "b<|end|>c<|start|>")]);
        let [text] = &texts(&preprocessor, &example)[..] else { panic!("one text") };
        let end = preprocessor.eos().unwrap();
        assert_eq!(text.tokens.iter().filter(|id| **id == end).count(), 2);
        let expected = [preprocessor.tokenizer().encode("b<|end|>c<|start|>"), vec![end]].concat();
        assert_eq!(targets(text), expected);
    }

    #[test]
    fn special_tokens_strip_white_space_across_the_prompts_end() {
        let tokenizer = fixture("tokenizers/hub-strips");
        let template = "{% for m in messages %}[INST]{{ m.content }}</s>{% endfor %}";
        let preprocessor = preprocessor(&tokenizer, template, &json!({"bos_token": "<s>", "eos_token": "</s>"}));
        let strips = |id: u32| preprocessor.tokenizer().encode_continuation("[INST]", " \n x").first() == Some(&id);
        let x = preprocessor.tokenizer().encode_continuation("[INST]", "x");
        assert!(strips(x[0]), "{x:?}");
    }

    #[test]
    fn texts_without_a_template_end_with_the_eos_token() {
        let config = json!({"bos_token": "<s>", "eos_token": "</s>"});
        let preprocessor = preprocessor(&fixture("tokenizers/hub-first"), CHATML, &config);
        let eos = preprocessor.eos().unwrap();
        let [text] = &texts(&preprocessor, &TrainingExample::Text("some words".to_owned()))[..] else { panic!("one") };
        assert_eq!(text.tokens, [preprocessor.tokenizer().encode("some words"), vec![eos]].concat());
        assert_eq!(text.targets, (1..text.tokens.len()).collect::<Vec<_>>());
        let completion = |prompt: &str, completion: &str| {
            let (prompt, completion) = (prompt.to_owned(), completion.to_owned());
            texts(&preprocessor, &TrainingExample::Completion { prompt, completion }).remove(0)
        };
        let text = completion("some words", " and <s> more");
        let prompt = preprocessor.tokenizer().encode("some words");
        assert!(text.tokens.starts_with(&prompt));
        assert_eq!(text.targets, (prompt.len()..text.tokens.len()).collect::<Vec<_>>());
        assert_eq!(text.tokens, [preprocessor.tokenizer().encode("some words and <s> more"), vec![eos]].concat());
        let text = completion("", "words");
        assert_eq!(text.tokens, [preprocessor.tokenizer().encode("words"), vec![eos]].concat());
        assert_eq!(text.targets, (1..text.tokens.len()).collect::<Vec<_>>(), "the first token has no prediction");
    }

    #[test]
    fn a_tokenizers_bos_token_begins_texts_without_a_template() {
        let dir = tempfile::tempdir().unwrap();
        let path = fixture("tokenizers/hub-first/tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        });
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let preprocessor = preprocessor(dir.path(), CHATML, &json!({"bos_token": "<s>", "eos_token": "</s>"}));
        let text = texts(&preprocessor, &TrainingExample::Text("a".to_owned())).remove(0);
        assert_eq!(
            text.tokens,
            [vec![1], preprocessor.tokenizer().encode("a"), preprocessor.eos().into_iter().collect()].concat()
        );
        assert_eq!(text.targets, (1..text.tokens.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_preference_is_a_pair_of_texts() {
        let message = |content: &str| vec![Message::new("assistant", content)];
        let (chosen, rejected) = (message("yes"), message("not at all"));
        let messages = vec![Message::new("user", "q"), Message::new("assistant", "earlier"), Message::new("user", "r")];
        let tools = Vec::new();
        let example = TrainingExample::Preference { messages, tools, chosen: chosen.clone(), rejected };
        let preprocessor = smollm(CHATML);
        let pair = texts(&preprocessor, &example);
        let targets: Vec<_> = pair.iter().map(targets).collect();
        let end = preprocessor.eos().unwrap();
        assert_eq!(
            targets,
            ["yes", "not at all"].map(|text| [preprocessor.tokenizer().encode(text), vec![end]].concat())
        );
        let split = pair[0].targets[0];
        assert_eq!(pair[0].tokens[..split], pair[1].tokens[..split], "the same prompt");
        // Several messages must form one text.
        let chosen = [chosen, vec![Message::new("tool", "t")], message("more")].concat();
        let example = TrainingExample::Preference {
            messages: vec![Message::new("user", "q")],
            tools: Vec::new(),
            chosen,
            rejected: message("no"),
        };
        assert_eq!(texts(&preprocessor, &example).len(), 2);
        let rewriting =
            smollm("{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}<|end|>{% endfor %}");
        let error = rewriting.training_texts(&example, 100, &TokenizeLimits::default()).unwrap_err();
        assert!(matches!(&error, PromptError::Refused(reason) if reason.contains("only one")), "{error}");
    }

    #[test]
    fn the_length_of_a_long_text_is_reported() {
        let preprocessor = smollm(CHATML);
        let conversation = chat(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
        let count = texts(&preprocessor, &conversation)[0].tokens.len();
        let limited = |max_tokens| preprocessor.training_texts(&conversation, max_tokens, &TokenizeLimits::default());
        assert!(matches!(limited(count), Ok(TrainingTexts::Complete(_))));
        assert_eq!(limited(count - 1), Ok(TrainingTexts::TooLong { tokens: count }));
        assert_eq!(limited(1), Ok(TrainingTexts::TooLong { tokens: count }));
        let text = TrainingExample::Text("word ".repeat(30_000));
        let count = preprocessor.tokenizer().encode("word ".repeat(30_000).as_str()).len() + 1;
        let found = preprocessor.training_texts(&text, 100, &TokenizeLimits::default());
        assert_eq!(found, Ok(TrainingTexts::TooLong { tokens: count }));
    }

    #[test]
    fn a_template_without_an_end_token_gets_one() {
        let preprocessor = smollm(
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                                   {% if add_generation_prompt %}assistant: {% endif %}",
        );
        let found =
            texts(&preprocessor, &chat(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]));
        assert_eq!(found.len(), 2, "the prompt of the second message has no such token");
        assert!(found.iter().all(|text| targets(text).last() == preprocessor.eos().as_ref()));
    }
}
