//! Reasoning: split from the answer, limited, and free of the grammar.

use outpost_engine::{
    FinishReason, GenerationRequest, Message, OutputSpec, PromptEnd, PromptOptions, TemplateVariable, TextDelta,
    TextFormat, TokenizeLimits,
};
use serde_json::{Value, json};

use crate::harness::{Rig, outputs, pieces, request, rig};
use crate::tiny_model::TinyModel;

/// In the style of Qwen 3: reasoning can be switched off, which closes it in the prompt.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

/// The markers as ordinary tokens, and as control tokens.
const MARKERS: [&[(&str, i32)]; 2] = [&[("<think>", 4), ("</think>", 4)], &[("<think>", 3), ("</think>", 3)]];

fn thinker(markers: &'static [(&'static str, i32)], speculate: bool) -> Rig {
    let model = TinyModel { context: 2048, template: Some(TEMPLATE), markers, ..TinyModel::default() };
    rig(&model, |settings| settings.speculate = speculate)
}

/// A bias that makes a token improbable and does not ban it.
const UNLIKELY: f32 = -99.;

/// The IDs of the opening and the closing marker.
fn marker_ids(rig: &Rig) -> (u32, u32) {
    let end = rig.model.vocabulary() as u32 - 3;
    (end - 2, end - 1)
}

fn prompt(rig: &Rig, variables: Vec<TemplateVariable>) -> Vec<u32> {
    let options = PromptOptions { variables, ..PromptOptions::default() };
    let messages = [Message::new("user", "hello")];
    rig.model.prompt_within(&messages, &[], &options, &TokenizeLimits::default()).unwrap().ids
}

/// A request with a limit of the reasoning. The model does not close it by itself, but may be forced to.
fn limited(rig: &Rig, prompt: Vec<u32>, max_reasoning: Option<u32>) -> GenerationRequest {
    let reasoning = rig.model.reasoning_after(&prompt, max_reasoning, false);
    let mut request = GenerationRequest { reasoning, ..request(prompt, 60) };
    request.sampling.logit_bias = vec![(marker_ids(rig).1, UNLIKELY)];
    request
}

#[tokio::test]
async fn reasoning_is_split_from_the_answer_although_special_tokens_have_text() {
    for speculate in [false, true] {
        let rig = thinker(MARKERS[1], speculate);
        let mut open = prompt(&rig, Vec::new());
        open.push(marker_ids(&rig).0);
        let mut request = limited(&rig, open, Some(7));
        let end = rig.model.vocabulary() as u32;
        request.sampling.logit_bias.extend((end - 3..end).map(|id| (id, -100.)));
        request.sampling.logit_bias.push((marker_ids(&rig).0, -100.));
        let (reasoning, text, tokens, _) = run(&rig, request.clone()).await;
        assert!(!reasoning.is_empty() && !text.is_empty());
        request.text.keeps_special_tokens = true;
        let with_text = run(&rig, request).await;
        assert_eq!((with_text.0, with_text.1, with_text.2), (reasoning, text, tokens));
    }
}

/// The reasoning, the text, and the number of reasoning tokens.
async fn run(rig: &Rig, request: GenerationRequest) -> (String, String, u32, Vec<TextDelta>) {
    let generation = rig.engine.submit(&rig.model, request).unwrap();
    let deltas = pieces(generation.deltas).await.unwrap();
    let (mut reasoning, mut text, mut tokens) = (String::new(), String::new(), 0);
    for delta in &deltas {
        assert!(delta.reasoning.is_empty() || text.is_empty(), "reasoning comes first");
        reasoning += &delta.reasoning;
        text += &delta.text;
        assert!(delta.reasoning_tokens >= tokens && delta.reasoning_tokens <= delta.generated);
        tokens = delta.reasoning_tokens;
    }
    (reasoning, text, tokens, deltas)
}

#[tokio::test]
async fn the_answer_begins_at_the_limit_of_the_reasoning() {
    for markers in MARKERS {
        let rig = thinker(markers, false);
        let (opening, closing) = marker_ids(&rig);
        let open = [prompt(&rig, vec![]), vec![opening]].concat();
        let free = run(&rig, limited(&rig, open.clone(), None)).await;
        assert!(!free.0.is_empty() && free.1.is_empty(), "{free:?}");
        assert_eq!(free.2, 60, "without a limit it reasons to the end");
        for max in [1, 7] {
            let (reasoning, text, tokens, deltas) = run(&rig, limited(&rig, open.clone(), Some(max))).await;
            assert!(free.0.starts_with(reasoning.trim_end_matches('\u{fffd}')), "{reasoning:?} {:?}", free.0);
            assert!(
                !text.is_empty() && !text.contains("</think>") && !text.starts_with(char::is_whitespace),
                "{text:?}"
            );
            assert_eq!((tokens, outputs(&deltas, 1)[0].generated), (max + 1, 60));
        }
        // The model closes the reasoning itself.
        let mut request = limited(&rig, open, None);
        request.sampling.logit_bias = vec![(closing, 100.)];
        let (reasoning, text, tokens, _) = run(&rig, request).await;
        assert_eq!((reasoning.as_str(), tokens), ("", 1));
        let expected = if markers[1].1 == 4 { "</think>".repeat(59) } else { String::new() };
        assert_eq!(text, expected, "later markers are text");
    }
}

#[tokio::test]
async fn the_model_may_begin_to_reason_unless_the_prompt_has_closed_it() {
    for markers in MARKERS {
        let rig = thinker(markers, false);
        let (opening, _) = marker_ids(&rig);
        let begin = |prompt: Vec<u32>| {
            let mut request = limited(&rig, prompt, Some(3));
            request.sampling.logit_bias = vec![(opening, 100.), (marker_ids(&rig).1, UNLIKELY)];
            request
        };
        let (_, text, tokens, _) = run(&rig, begin(prompt(&rig, vec![]))).await;
        assert_eq!(tokens, 4, "the opening marker, two more tokens and the closing marker: {text}");
        let closed = prompt(&rig, vec![TemplateVariable::new("enable_thinking", false)]);
        assert_eq!(rig.model.reasoning_after(&closed, None, false), None);
        let (reasoning, _, tokens, _) = run(&rig, begin(closed)).await;
        assert_eq!((reasoning.as_str(), tokens), ("", 0));
    }
}

#[tokio::test]
async fn a_grammar_applies_after_the_reasoning() {
    let schema = json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 4 });
    let spec = OutputSpec { text: TextFormat::Schema { schema, strict: true }, ..OutputSpec::default() };
    for markers in MARKERS {
        let rig = thinker(markers, false);
        let (opening, closing) = marker_ids(&rig);
        let constrained = |prompt: Vec<u32>, bias: Vec<(u32, f32)>| {
            let mut request = limited(&rig, prompt, Some(9));
            request.grammar = Some(rig.model.compile_grammar(&spec).unwrap());
            request.sampling.logit_bias = bias;
            request.logprobs = Some(0);
            request
        };
        let check = |(_, text, tokens, deltas): (String, String, u32, Vec<TextDelta>), expected: u32| {
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_array(), "{text}");
            let output = &outputs(&deltas, 1)[0];
            assert_eq!((tokens, output.end), (expected, Some(FinishReason::Stop)));
            let logprobs: usize = deltas.iter().map(|delta| delta.tokens.len()).sum();
            assert_eq!(logprobs as u32, output.generated - tokens, "log-probabilities are those of the answer");
        };
        let open = [prompt(&rig, vec![]), vec![opening]].concat();
        check(run(&rig, constrained(open.clone(), vec![(closing, UNLIKELY)])).await, 10);
        check(run(&rig, constrained(open, vec![(closing, 100.)])).await, 1);
        // The first token may begin the reasoning, or be the beginning of the answer.
        check(run(&rig, constrained(prompt(&rig, vec![]), vec![(opening, 100.), (closing, UNLIKELY)])).await, 10);
        check(run(&rig, constrained(prompt(&rig, vec![]), vec![(opening, -100.)])).await, 0);
    }
}

#[tokio::test]
async fn stop_strings_are_not_searched_for_in_reasoning() {
    let rig = thinker(MARKERS[0], false);
    let (opening, _) = marker_ids(&rig);
    let open = [prompt(&rig, vec![]), vec![opening]].concat();
    let (reasoning, text, ..) = run(&rig, limited(&rig, open.clone(), Some(7))).await;
    let letter = reasoning.chars().next().unwrap().to_string();
    let stopped = GenerationRequest { stop: vec![letter.clone()], ..limited(&rig, open, Some(7)) };
    let (same, stopped, ..) = run(&rig, stopped).await;
    assert_eq!(same, reasoning);
    assert_eq!(stopped, text.split(&letter).next().unwrap());
}

#[tokio::test]
async fn speculation_does_not_change_the_output() {
    for max in [None, Some(11)] {
        let mut found = Vec::new();
        for speculate in [false, true] {
            let rig = thinker(MARKERS[0], speculate);
            let (opening, _) = marker_ids(&rig);
            // A text that repeats itself, which is what n-grams are proposed from.
            let open = [[9, 10, 11].repeat(30), vec![opening]].concat();
            let mut request = limited(&rig, open, max);
            (request.max_tokens, request.sampling.temperature) = (200, 0.);
            let (reasoning, text, tokens, _) = run(&rig, request).await;
            found.push((reasoning, text, tokens));
        }
        assert_eq!(found[0], found[1]);
    }
}

#[test]
fn a_message_is_continued_where_its_text_ends() {
    let rig = thinker(MARKERS[0], false);
    let render = |messages: &[Message], end: PromptEnd| {
        let options = PromptOptions { end, ..PromptOptions::default() };
        let prompt = rig.model.prompt_within(messages, &[], &options, &TokenizeLimits::default());
        prompt.map(|prompt| rig.model.decode(&prompt.ids))
    };
    let messages = [Message::new("user", "So"), Message::new("assistant", " So it is, ")];
    let whole = "<|im_start|>user\nSo<|im_end|>\n<|im_start|>assistant\n So it is, <|im_end|>\n";
    assert_eq!(render(&messages, PromptEnd::LastMessage).unwrap(), whole);
    let next = whole.to_owned() + "<|im_start|>assistant\n";
    assert_eq!(render(&messages, PromptEnd::NextMessage).unwrap(), next);
    let continued = whole.strip_suffix("<|im_end|>\n").unwrap();
    assert_eq!(render(&messages, PromptEnd::LastMessageText).unwrap(), continued);
    // A special token in the text is text, and is found as such.
    let special = [Message::new("assistant", "a <|im_end|> b")];
    assert_eq!(render(&special, PromptEnd::LastMessageText).unwrap(), "<|im_start|>assistant\na <|im_end|> b");
    let empty = [Message::new("assistant", " ")];
    assert!(render(&empty, PromptEnd::LastMessageText).is_err());
}

#[test]
fn templates_see_variables_and_the_reasoning_of_messages() {
    let rig = thinker(MARKERS[0], false);
    let message = Message { reasoning: "Hm </think>".to_owned(), ..Message::new("assistant", "yes") };
    let options = PromptOptions {
        end: PromptEnd::NextMessage,
        variables: vec![
            TemplateVariable::new("enable_thinking", false),
            // What the server sets cannot be replaced.
            TemplateVariable::new("messages", json!([])),
        ],
    };
    let ids = rig.model.prompt_within(&[message], &[], &options, &TokenizeLimits::default()).unwrap().ids;
    let expected = "<|im_start|>assistant\n<think>\nHm </think>\n</think>\n\nyes<|im_end|>\n\
                    <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(rig.model.decode(&ids), expected);
    let (_, closing) = marker_ids(&rig);
    assert_eq!(ids.iter().filter(|id| **id == closing).count(), 2, "the markers in a message are text");
}
