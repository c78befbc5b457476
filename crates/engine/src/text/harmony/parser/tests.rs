use std::sync::Arc;

use proptest::prelude::*;

use super::super::HarmonySyntax;
use super::{AllowedTokens, HarmonyParser, Piece};
use crate::tokenizer::Vocabulary;
use crate::tokenizer::harmony::{CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START};

const MARKERS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];
const WORDS: [&str; 6] = ["assistant", "assist", "ant", "analysis", "an", " the"];
/// A token whose text the tests choose.
const OTHER: u32 = 100;

fn vocabulary() -> Vocabulary {
    Vocabulary::of(&[&MARKERS[..], &WORDS].concat())
}

fn id(text: &str) -> u32 {
    vocabulary().id_of(text).unwrap()
}

/// The tokens of a text: markers, and between them texts of at most `size` characters.
fn tokens(mut text: &str, size: usize) -> Vec<(u32, String)> {
    let mut tokens = Vec::new();
    while !text.is_empty() {
        if let Some(marker) = MARKERS.iter().find(|marker| text.starts_with(**marker)) {
            tokens.push((id(marker), String::new()));
            text = &text[marker.len()..];
            continue;
        }
        let end = MARKERS.iter().filter_map(|marker| text.find(marker)).min().unwrap_or(text.len());
        let chars: Vec<char> = text[..end].chars().collect();
        tokens.extend(chars.chunks(size).map(|part| (OTHER, part.iter().collect())));
        text = &text[end..];
    }
    tokens
}

/// A parser after a prompt of markers and words, with the functions `f` and `get`.
fn parser(prompt: &[&str], parallel: bool, max_tokens: Option<u32>) -> HarmonyParser {
    let (vocabulary, functions) = (vocabulary(), ["f", "get"].map(str::to_owned).to_vec());
    let prompt: Vec<u32> = prompt.iter().map(|text| id(text)).collect();
    let syntax = Arc::new(HarmonySyntax::of(&vocabulary).unwrap());
    HarmonyParser::new(syntax, functions, parallel, max_tokens, (&prompt, &vocabulary))
}

const PROMPT: [&str; 2] = [START, "assistant"];

#[derive(Debug, Default, PartialEq)]
struct Parsed {
    reasoning: String,
    text: String,
    calls: Vec<(String, String)>,
    tokens: u32,
    /// Whether generation ended before the end of the text.
    done: bool,
}

impl Parsed {
    fn add(&mut self, piece: Piece) {
        self.reasoning += &piece.reasoning;
        self.text += &piece.text;
        for delta in piece.calls {
            match delta.name {
                Some(name) => self.calls.push((name, delta.arguments)),
                None => self.calls[delta.index as usize].1 += &delta.arguments,
            }
        }
    }
}

/// Parses a text up to the token that ends generation. Without one, it is cut off.
fn run(mut parser: HarmonyParser, text: &str, size: usize) -> Parsed {
    let (mut parsed, mut is_cut_off) = (Parsed::default(), true);
    for (token, text) in tokens(text, size) {
        if [CALL, RETURN].map(id).contains(&token) {
            is_cut_off = false;
            break;
        }
        let piece = parser.push(token, &text);
        parsed.done = piece.done;
        parsed.add(piece);
        if parsed.done {
            return Parsed { tokens: parser.reasoning_tokens(), ..parsed };
        }
    }
    parsed.add(parser.finish("", is_cut_off));
    Parsed { tokens: parser.reasoning_tokens(), ..parsed }
}

fn check(text: &str, reasoning: &str, answer: &str, calls: &[(&str, &str)]) {
    for size in 1..30 {
        let parsed = run(parser(&PROMPT, true, None), text, size);
        let found: Vec<_> = parsed.calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
        let expected = (reasoning, answer, calls, false);
        assert_eq!(
            (parsed.reasoning.as_str(), parsed.text.as_str(), &found[..], parsed.done),
            expected,
            "{text} {size}"
        );
    }
}

#[test]
fn channels_are_reasoning_text_and_calls() {
    check(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        "Hm.",
        "Yes.",
        &[],
    );
    check("<|channel|>final<|message|>Yes.<|return|>", "", "Yes.", &[]);
    check("<|channel|>final <|constrain|>json<|message|>{}<|return|>", "", "{}", &[]);
    check(
        "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|><|start|>assistant<|channel|>commentary<|message|>Plan<|end|><|start|>assistant<|channel|>final<|message|>Done<|return|>",
        "One\n\ntwo",
        "Plan\n\nDone",
        &[],
    );
}

#[test]
fn the_recipient_of_a_call_stands_after_the_role_or_the_channel() {
    for head in [
        "<|channel|>commentary to=functions.get <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get json<|message|>",
        "<|channel|>commentary to=functions.get code<|message|>",
        "<|channel|>commentary to=functions.get <|message|>",
        "<|channel|>commentary to=get<|message|>",
        "<|channel|>analysis to=functions.get<|message|>",
        " to=functions.get<|channel|>commentary json<|message|>",
        " to=functions.get<|channel|>analysis<|message|>",
        " to=functions.get<|message|>",
        "<|channel|>commentary to=assistant<|channel|>commentary to=functions.get<|message|>",
        "<|channel|>commentary to=functions.get<|channel|>commentary<|message|>",
    ] {
        check(&format!("{head}{{\"a\": \"<\"}}<|call|>"), "", "", &[("get", "{\"a\": \"<\"}")]);
        check(
            &format!("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant{head}{{}}<|call|>"),
            "Hm",
            "",
            &[("get", "{}")],
        );
    }
    check("<|channel|>commentary to=functions.f<|message|><|call|>", "", "", &[("f", "{}")]);
    check("<|channel|>commentary to=functions.f<|message|>{\"a", "", "", &[("f", "{\"a")]);
    check("<|channel|>commentary to=functions.f<|message|>", "", "", &[("f", "")]);
}

#[test]
fn a_turn_may_have_several_calls() {
    let call = |name: &str| format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{{}}");
    let both = format!("{}<|end|><|start|>assistant{}<|call|>", call("f"), call("get"));
    check(&both, "", "", &[("f", "{}"), ("get", "{}")]);
    let single = run(parser(&PROMPT, false, None), &both, 3);
    assert_eq!((single.calls.len(), single.done), (1, true));
}

#[test]
fn what_the_format_does_not_foresee_is_kept() {
    // Without any marker, without a channel, and in an unknown one.
    check("{\"a\": 1}", "", "{\"a\": 1}", &[]);
    check(" to be or not<|return|>", "", " to be or not", &[]);
    check("to", "", "to", &[]);
    check("<|message|>Yes<|return|>", "", "Yes", &[]);
    check("<|channel|>thoughts<|message|>Yes<|return|>", "", "Yes", &[]);
    check("<|channel|>final Yes, it is", "", "Yes, it is", &[]);
    check("<|channel|>analysis Hm, well", "Hm, well", "", &[]);
    check(&format!("<|channel|>final {}", "a b ".repeat(100)), "", &"a b ".repeat(100), &[]);
    // Stray and missing markers.
    check("<|channel|>final<|message|><|message|>a<|constrain|>b<|return|>", "", "ab", &[]);
    check("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>Yes<|return|>", "Hm", "Yes", &[]);
    check(
        "<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Yes<|return|>",
        "Hm",
        "Yes",
        &[],
    );
    check("<|channel|>analysis<|message|>Hm<|end|><|channel|>final<|message|>Yes<|return|>", "Hm", "Yes", &[]);
    check("<|channel|>analysis<|message|>Hm<|end|>assistant<|channel|>final<|message|>Yes<|return|>", "Hm", "Yes", &[]);
    check("<|channel|>analysis<|message|>Hm<|end|>Yes<|return|>", "Hm", "Yes", &[]);
    check("<|end|><|end|><|channel|>final<|message|>Yes<|end|>", "", "Yes", &[]);
    // Tools that the request does not have.
    check("<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", "", &[]);
    check("<|channel|>commentary to=browser.search<|message|>{}<|call|>", "{}", "", &[]);
    check("<|channel|>commentary to=functions.other<|message|>{}<|call|>", "{}", "", &[]);
    // Cut off.
    check("<|channel|>ana", "", "", &[]);
    check("<|channel|>commentary to=functions.ge", "", "", &[]);
    check(" to=functions.ge", "", "", &[]);
    check("<|channel|>analysis<|message|>Hm", "Hm", "", &[]);
    check("<|channel|>analysis<|message|>Hm<|end|><|start|>assis", "Hm", "", &[]);
}

#[test]
fn generation_ends_where_a_turn_of_another_role_begins() {
    for text in ["<|start|>user<|message|>And?", "<|start|>functions.f to=assistant<|channel|>commentary<|message|>1"] {
        let text = format!("<|channel|>final<|message|>Yes<|end|>{text}");
        for size in 1..10 {
            let parsed = run(parser(&PROMPT, true, None), &text, size);
            assert_eq!((parsed.text.as_str(), parsed.reasoning.as_str(), parsed.done), ("Yes", "", true), "{text}");
        }
    }
}

#[test]
fn the_prompt_decides_where_the_output_begins() {
    let text = |prompt: &[&str], text: &str| {
        let Parsed { reasoning, text, .. } = run(parser(prompt, true, None), text, 4);
        (reasoning, text)
    };
    let expected = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
    let whole = "<|start|>assistant<|channel|>final<|message|>Yes<|return|>";
    for prompt in
        [&[][..], &[START, "an", MESSAGE, " the", END], &[START, "assistant", CHANNEL, " the", MESSAGE, "an", END]]
    {
        assert_eq!(text(prompt, whole), expected("", "Yes"), "{prompt:?}");
    }
    assert_eq!(
        text(&[START, "assist", "ant", CHANNEL, " the", MESSAGE, " the"], " sea<|return|>"),
        expected("", " sea")
    );
    assert_eq!(text(&[START, "assistant", CHANNEL, "analysis", MESSAGE], "Hm<|end|>Yes"), expected("Hm", "Yes"));
    assert_eq!(text(&[START, "assistant", CHANNEL, "analysis"], "<|message|>Hm"), expected("Hm", ""));
    let syntax = HarmonySyntax::of(&vocabulary()).unwrap();
    let header = |prompt: &[&str]| {
        let prompt: Vec<u32> = prompt.iter().map(|text| id(text)).collect();
        syntax.open_header(&prompt).len()
    };
    assert_eq!(
        [header(&PROMPT), header(&[]), header(&[START, "assistant", CHANNEL, "an", MESSAGE, " the"])],
        [0, 0, 3]
    );
    assert_eq!(
        [header(&[START, "an", MESSAGE, " the", END]), header(&[START, "assist", "ant", CHANNEL, "an"])],
        [0, 2]
    );
}

#[test]
fn reasoning_tokens_have_their_markers() {
    let tokens = |text: &str| run(parser(&PROMPT, true, None), text, 100).tokens;
    assert_eq!(tokens("<|channel|>final<|message|>Yes<|return|>"), 0);
    let first = "<|channel|>analysis<|message|>Hm<|end|>";
    assert_eq!(tokens(&format!("{first}<|start|>assistant<|channel|>final<|message|>Yes<|return|>")), 5);
    assert_eq!(tokens(&format!("{first}<|start|>assistant{first}<|start|>assistant<|channel|>final")), 12);
    assert_eq!(tokens("<|channel|>analysis<|message|>Hm<|channel|>analysis<|message|>"), 7);
}

/// Feeds the tokens that the parser forces, or the next one of `wanted`. Returns the texts of all.
fn forced(mut parser: HarmonyParser, wanted: &[&str]) -> (String, u32) {
    let (vocabulary, mut wanted, mut all) = (vocabulary(), wanted.iter(), String::new());
    loop {
        let next = match parser.allowed() {
            AllowedTokens::Only(allowed) => allowed[0],
            AllowedTokens::All => match wanted.next() {
                Some(text) => id(text),
                None => return (all, parser.reasoning_tokens()),
            },
            AllowedTokens::AllBut(banned) => {
                assert_eq!(banned, ["analysis", "an"].map(id));
                all += "…";
                match wanted.next() {
                    Some(text) => id(text),
                    None => return (all, parser.reasoning_tokens()),
                }
            }
        };
        let text = String::from_utf8_lossy(vocabulary.bytes(next)).into_owned();
        parser.push(next, &text);
        all += &text;
    }
}

#[test]
fn reasoning_ends_at_its_limit_and_no_other_begins() {
    let begin = [CHANNEL, "analysis", MESSAGE, " the", " the", " the"];
    let (text, tokens) = forced(parser(&PROMPT, true, Some(4)), &begin[..4]);
    assert_eq!(text, "<|channel|>analysis<|message|> the<|end|><|start|>assistant<|channel|>…");
    assert_eq!(tokens, 5);
    let all = forced(parser(&PROMPT, true, None), &begin);
    assert_eq!(all.0, begin.concat());
    // Without any reasoning, the first message is in another channel.
    assert_eq!(forced(parser(&PROMPT, true, Some(0)), &[" the", MESSAGE, " the"]).0, "<|channel|>… the<|message|> the");
    // A later message, after a text, need not follow, but must not be reasoning either.
    let later = [" the", MESSAGE, " the", END, START, "assistant", CHANNEL];
    assert_eq!(forced(parser(&PROMPT, true, Some(0)), &later).0, format!("<|channel|>…{}…", later.concat()));
    let continued = [START, "assistant", CHANNEL, " the", MESSAGE];
    assert_eq!(forced(parser(&continued, true, Some(0)), &[" the"]).0, " the");
}

proptest! {
    #[test]
    fn chunking_does_not_matter_and_counts_stay_within_the_output(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "assistant", "analysis", "final",
            "commentary", " to=functions.f", "user", " ", "x", "{}",
        ]), 0..12),
        size in 2usize..12,
    ) {
        let text: String = parts.concat();
        let (one, other) = (run(parser(&PROMPT, true, None), &text, size), run(parser(&PROMPT, true, None), &text, 1));
        prop_assert!(one.tokens as usize <= tokens(&text, size).len());
        // The token with which a turn of another role becomes certain may have more of it.
        prop_assert_eq!(Parsed { tokens: 0, ..one }, Parsed { tokens: 0, ..other });
    }
}
