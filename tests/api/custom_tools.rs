//! Custom tools of the Responses API, whose input is a text of a grammar.

use serde_json::{Value, json};

use crate::responses::{PATH, assembled, comparable, model, send, tool};
use crate::server::Server;

const PATCH: &str = include_str!("../fixtures/apply_patch.lark");

fn custom(name: &str, syntax: &str, definition: &str) -> Value {
    let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
    json!({ "type": "custom", "name": name, "description": "Writes.", "format": format })
}

/// The only call of a complete response.
fn call(response: &Value) -> &Value {
    assert_eq!(response["status"], "completed", "{response}");
    response["output"].as_array().unwrap().last().unwrap()
}

fn input(response: &Value) -> &str {
    let call = call(response);
    assert_eq!((&call["type"], &call["status"]), (&json!("custom_tool_call"), &json!("completed")), "{response}");
    call["input"].as_str().unwrap()
}

/// Sends a request whole and streamed, and checks that the responses are equal.
fn both(server: &Server, more: Value) -> Value {
    let whole = send(server, more.clone()).ok();
    let mut streamed = more;
    streamed["stream"] = json!(true);
    assert_eq!(comparable(assembled(&send(server, streamed).text)), comparable(whole.clone()));
    whole
}

#[test]
fn the_input_matches_the_grammar_and_goes_back_with_its_result() {
    let server = Server::start_with(&model());
    let tools = json!([tool("look"), custom("rows", "regex", "^([ab\"\\\\é]{1,3}\n\t?){1,4}$")]);
    let chosen = json!({ "type": "custom", "name": "rows" });
    let more = json!({ "tools": tools, "tool_choice": chosen, "max_output_tokens": 300, "temperature": 1 });
    for seed in 0..8 {
        let mut more = more.clone();
        more["seed"] = json!(seed);
        let whole = both(&server, more);
        let rows = input(&whole).replace("\n\t", "\n");
        let rows: Vec<&str> = rows.strip_suffix('\n').unwrap().split('\n').collect();
        assert!((1..=4).contains(&rows.len()), "{rows:?}");
        for row in rows {
            assert!(
                (1..=3).contains(&row.chars().count()) && row.chars().all(|one| "ab\"\\é".contains(one)),
                "{row:?}"
            );
        }
        let call = call(&whole);
        assert!(call["id"].as_str().unwrap().starts_with("ctc_"), "{call}");
        assert!(call["call_id"].as_str().unwrap().starts_with("call_"), "{call}");
        assert_eq!((&call["name"], &whole["tools"], &whole["tool_choice"]), (&json!("rows"), &tools, &chosen));

        // The result goes back with the items, with the stored response, or with a reference to the call.
        let result = json!({ "type": "custom_tool_call_output", "call_id": call["call_id"], "output": "written" });
        let again = |more: Value| {
            let mut more = more;
            more["tools"] = tools.clone();
            send(&server, more).ok()
        };
        let user = json!({ "role": "user", "content": "the sea" });
        let by_hand = again(json!({ "input": [user, call, result] }));
        let chained = again(json!({ "input": [result], "previous_response_id": whole["id"] }));
        let reference = json!({ "type": "item_reference", "id": call["id"] });
        let referred = again(json!({ "input": [user, reference, result] }));
        for other in [&chained, &referred] {
            assert_eq!(other["usage"]["input_tokens"], by_hand["usage"]["input_tokens"]);
            assert_eq!(comparable(other.clone())["output"], comparable(by_hand.clone())["output"]);
        }
        let items = server.get(&format!("{PATH}/{}/input_items?order=asc", by_hand["id"].as_str().unwrap())).ok();
        assert_eq!((&items["data"][1], &items["data"][2]["status"]), (call, &json!("completed")));
        assert!(items["data"][2]["id"].as_str().unwrap().starts_with("ctco_"), "{items}");
    }
}

/// Whether a text is a patch, by the rules of the fixture.
fn is_patch(text: &str) -> bool {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let lines: Vec<&str> = text.split('\n').collect();
    let [first, files @ .., last] = lines.as_slice() else { return false };
    let starts =
        |line: &str, starts: &[&str]| starts.iter().any(|start| line.starts_with(start) && line.len() > start.len());
    let is_file = |line: &str| starts(line, &["*** Add File: ", "*** Delete File: ", "*** Update File: "]);
    let mut file = "";
    for line in files {
        if is_file(line) {
            file = line;
            continue;
        }
        let fits = match file.split(' ').nth(1) {
            Some("Add") => line.starts_with('+'),
            Some("Update") => {
                line.starts_with(['+', '-', ' '])
                    || line.starts_with("@@")
                    || starts(line, &["*** Move to: "])
                    || *line == "*** End of File"
            }
            _ => false,
        };
        if !fits {
            return false;
        }
    }
    *first == "*** Begin Patch" && *last == "*** End Patch" && !file.is_empty()
}

#[test]
fn a_patch_conforms_to_its_lark_grammar() {
    let server = Server::start_with(&model());
    // The whole grammar is accepted. A model of random weights would hardly ever end a line, so the lines are bounded.
    let bounded = PATCH
        .replace("[^\\n]+", "[^\\n]{1,4}")
        .replace("[^\\n]*", "[^\\n]{0,4}")
        .replace("file+", "file~1..2")
        .replace("section+", "section~1..2")
        .replace("added+", "added~1..3")
        .replace("kept)+", "kept)~1..3");
    for seed in 0..6 {
        let more = json!({
            "tools": [custom("apply_patch", "lark", &bounded)], "tool_choice": "required", "parallel_tool_calls": false,
            "max_output_tokens": 1500, "temperature": 1, "seed": seed, "top_k": 0, "top_p": 1, "min_p": 0,
        });
        let whole = both(&server, more);
        assert!(is_patch(input(&whole)), "{whole}");
    }
    let more =
        json!({ "tools": [custom("apply_patch", "lark", PATCH)], "tool_choice": "required", "max_output_tokens": 200 });
    let cut_off = both(&server, more);
    let last = cut_off["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&cut_off["status"], &last["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert!(last["input"].as_str().unwrap().starts_with("*** Begin Patch\n*** "), "{last}");
}

#[test]
fn custom_tools_stand_beside_functions() {
    let server = Server::start_with(&model());
    let yes = custom("yes", "lark", "start: \"yes\\n\"");
    let allowed =
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "custom", "name": "yes" }] });
    let tools = json!([{ "type": "web_search" }, tool("look"), yes, { "type": "custom", "name": "any" }]);
    let more = json!({ "tools": tools, "tool_choice": allowed, "max_output_tokens": 300 });
    let reply = send(&server, more);
    assert_eq!(reply.header("x-outpost-ignored"), Some("tools[0] web_search"));
    let whole = reply.ok();
    assert_eq!(input(&whole), "yes\n");
    assert_eq!(
        whole["tools"][3],
        json!({ "type": "custom", "name": "any", "description": null, "format": { "type": "text" } })
    );
    for choice in ["auto", "none"] {
        both(&server, json!({ "tools": tools, "tool_choice": choice }));
    }
    let any = json!({ "type": "custom", "name": "any" });
    let whole = both(&server, json!({ "tools": [any], "tool_choice": any, "max_output_tokens": 60 }));
    assert_eq!(whole["output"][0]["type"], "custom_tool_call");
    let counted = |tools: Value| {
        let counted =
            server.post(&format!("{PATH}/input_tokens"), &crate::responses::body(json!({ "tools": tools }))).ok();
        counted["input_tokens"].as_u64().unwrap()
    };
    assert!(counted(json!([yes])) > counted(json!([any])) && counted(json!([any])) > counted(json!([])));
}

#[test]
fn errors_name_the_grammar() {
    let server = Server::start_with(&model());
    let web = json!({ "type": "web_search" });
    for (syntax, definition, what) in [
        ("lark", "start: other", "uses the undefined rule 'other' (line 1)"),
        ("lark", "start: <think>", "has a special token"),
        ("regex", "(a", "is invalid: unclosed group"),
        ("regex", "a(?=b)", "look-around"),
    ] {
        let reply =
            send(&server, json!({ "tools": [web, custom("write", syntax, definition)], "tool_choice": "required" }));
        let field = "tools[1].format.definition".to_owned();
        assert_eq!(reply.error_fields(), (400, "invalid_parameter".to_owned(), Some(field)));
        assert!(reply.text.contains(what), "{}", reply.text);
    }
    for (tools, choice, param) in [
        (json!([custom("write", "gbnf", "a")]), json!("auto"), "tools[0].format.syntax"),
        (json!([custom("write", "lark", "")]), json!("auto"), "tools[0].format.definition"),
        (json!([custom("write", "regex", "a")]), json!({ "type": "custom", "name": "read" }), "tool_choice.name"),
        (json!([custom("write", "regex", "a")]), json!({ "type": "function", "name": "write" }), "tool_choice.type"),
        (json!([custom("write", "regex", "a"), tool("write")]), json!("auto"), "tools[1].name"),
    ] {
        let reply = send(&server, json!({ "tools": tools, "tool_choice": choice }));
        assert_eq!(reply.error_fields().2.as_deref(), Some(param));
    }
    // Chat completions have functions only.
    let chat = json!({
        "model": crate::server::MODEL, "messages": [{ "role": "user", "content": "hi" }],
        "tools": [{ "type": "custom", "custom": { "name": "write" } }],
    });
    let reply = server.post("/v1/chat/completions", &chat);
    assert_eq!(reply.error_fields().2.as_deref(), Some("tools[0].type"));
}
