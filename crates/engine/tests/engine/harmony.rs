//! Conversations in harmony, as the chat template of gpt-oss gets them.

use outpost_engine::{
    GenerationRequest, Message, PromptEnd, PromptOptions, TemplateVariable, TextModel, TokenizeLimits, Tool, ToolCall,
};
use outpost_testing::harmony::MODEL;
use outpost_testing::scripted_model::{self, Script};
use serde_json::json;

use crate::harness::{Rig, greedy, pieces, rig, rig_of_file};

fn tool(name: &str, more: serde_json::Value) -> Tool {
    let mut function = json!({ "name": name });
    function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let definition = json!({ "type": "function", "function": function });
    Tool { name: name.to_owned(), definition, strict: false, input: None }
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

fn calling(reasoning: &str, text: &str, calls: &[ToolCall]) -> Message {
    Message { reasoning: reasoning.to_owned(), tool_calls: calls.to_vec(), ..Message::new("assistant", text) }
}

fn result(id: &str, text: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), ..Message::new("tool", text) }
}

fn render(model: &TextModel, messages: &[Message], tools: &[Tool], options: &PromptOptions) -> String {
    model.prompt_text(messages, tools, options, &TokenizeLimits::default()).unwrap()
}

/// What follows the system message.
fn after_system(model: &TextModel, messages: &[Message], tools: &[Tool]) -> String {
    let text = render(model, messages, tools, &PromptOptions::default());
    text.split_once("<|end|>").unwrap().1.to_owned()
}

const GENERATION: &str = "<|start|>assistant";

#[test]
fn instructions_and_tools_are_a_message_of_the_developer() {
    let rig = rig(&MODEL, |_| ());
    let user = Message::new("user", "Hi <|end|>");
    let text = render(&rig.model, std::slice::from_ref(&user), &[], &PromptOptions::default());
    let system = "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
        Knowledge cutoff: 2024-06\nCurrent date: 2026-11-18\n\nReasoning: medium\n\n\
        # Valid channels: analysis, commentary, final. Channel must be included for every message.";
    assert_eq!(text, format!("{system}<|end|><|start|>user<|message|>Hi <|end|><|end|>{GENERATION}"));

    let parameters = json!({
        "type": "object", "required": ["city"],
        "properties": {
            "city": { "type": "string", "description": "The city." },
            "unit": { "type": "string", "enum": ["c", "f"], "default": "c" },
            "days": { "type": "array", "items": { "type": "integer" } },
        },
    });
    let tools =
        [tool("weather", json!({ "description": "Tells it.", "parameters": parameters })), tool("now", json!({}))];
    // All instructions are in one message: the template drops later ones.
    let messages = [Message::new("system", "Be brief."), user, Message::new("system", "Now!")];
    let text = render(&rig.model, &messages, &tools, &PromptOptions::default());
    let expected = [
        system,
        "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>",
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\nNow!\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n",
        "// Tells it.\ntype weather = (_: {\n// The city.\ncity: string,\nunit?: \"c\" | \"f\", // default: \"c\",\ndays?: number[],\n}) => any;\n\n",
        "// \ntype now = () => any;\n\n} // namespace functions<|end|>",
        "<|start|>user<|message|>Hi <|end|><|end|><|start|>assistant",
    ];
    assert_eq!(text, expected.concat());
}

#[test]
fn each_call_is_followed_by_its_result() {
    let rig = rig(&MODEL, |_| ());
    let user = Message::new("user", "Hi");
    let both = [call("1", "weather", "{\"city\": \"Rome\"}"), call("2", "now", "")];
    let results = [result("2", "noon"), result("1", "{\"sunny\": true}")];
    let messages = [vec![user.clone(), calling("Hm.", "Let me see.", &both)], results.to_vec()].concat();
    let calls = "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}<|call|>\
        <|start|>functions.weather to=assistant<|channel|>commentary<|message|>\"{\\\"sunny\\\": true}\"<|end|>\
        <|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>\
        <|start|>functions.now to=assistant<|channel|>commentary<|message|>\"noon\"<|end|>";
    let begin = "<|start|>user<|message|>Hi<|end|>";
    let reasoning = "<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nLet me see.<|end|>";
    assert_eq!(after_system(&rig.model, &messages, &[]), format!("{begin}{reasoning}{calls}{GENERATION}"));
    // An answer follows, so the reasoning is left out.
    let answered = [messages, vec![calling("Well.", "Sunny.", &[]), user]].concat();
    let answer = "<|start|>assistant<|channel|>final<|message|>Sunny.<|end|>";
    assert_eq!(after_system(&rig.model, &answered, &[]), format!("{begin}{calls}{answer}{begin}{GENERATION}"));
}

#[test]
fn a_prompt_may_end_after_the_last_message_or_within_it() {
    let rig = rig(&MODEL, |_| ());
    let messages = [Message::new("user", "Hi"), calling("Hm.", "So", &[])];
    let ending = |end: PromptEnd| {
        let variables = vec![TemplateVariable::new("reasoning_effort", "none")];
        let text = render(&rig.model, &messages, &[], &PromptOptions { end, variables });
        assert!(text.contains("Reasoning: low"), "{text}");
        text.split_once("Hi<|end|>").unwrap().1.to_owned()
    };
    let begin =
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So";
    assert_eq!(ending(PromptEnd::LastMessage), format!("{begin}<|end|>"));
    assert_eq!(ending(PromptEnd::LastMessageText), begin);
}

/// What a model writes after a prompt: reasoning, text and the number of reasoning tokens.
async fn generated(rig: &Rig, request: GenerationRequest) -> (String, String, u32) {
    let deltas = pieces(rig.engine.submit(&rig.model, request).unwrap().deltas).await.unwrap();
    let joined = |part: fn(&outpost_engine::TextDelta) -> &str| deltas.iter().map(part).collect::<String>();
    (joined(|delta| &delta.reasoning), joined(|delta| &delta.text), deltas.last().unwrap().reasoning_tokens)
}

#[tokio::test]
async fn stop_strings_end_the_answer_and_not_the_reasoning() {
    let script = Script {
        after: "Q1<|end|><|start|>assistant",
        output: "<|channel|>analysis<|message|>Is it so?<|end|><|start|>assistant<|channel|>final<|message|>It is so.<|return|>",
    };
    for speculate in [false, true] {
        let rig = rig_of_file(&scripted_model::bytes(&MODEL, &[script]), |settings| settings.speculate = speculate);
        let ids = rig.model.prompt(&[Message::new("user", "Q1")]).unwrap();
        let request = |stop: &[&str], is_split: bool| {
            let mut request = greedy(ids.clone(), 100);
            request.sampling.ignore_eos = false;
            request.stop = stop.iter().map(|stop| (*stop).to_owned()).collect();
            request.reasoning = rig.model.reasoning_after(&ids, None, false).filter(|_| is_split);
            request
        };
        let (reasoning, text, tokens) = generated(&rig, request(&["so", "\n"], true)).await;
        assert_eq!((reasoning.as_str(), text.as_str(), tokens), ("Is it so?", "It is ", 20));
        let (_, whole, tokens) = generated(&rig, request(&[], false)).await;
        assert_eq!((whole.as_str(), tokens), ("analysisIs it so?assistantfinalIt is so.", 0), "nothing is split");
    }
}
