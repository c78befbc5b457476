//! Joins messages for chat templates, many of which support only one system message, at the beginning, and want the roles
//! to alternate.
//!
//! Items of the Responses API are finer than messages: two user messages in a row are common. They are joined in the
//! prompt, and stored as they were sent. The messages of chats reach the template as they are.

use crate::content::Message;

/// Joins neighbouring messages of a role. System and developer messages before the first other message become one system
/// message; a later one becomes the user's. `has_begun`: whether another message comes before these.
pub fn join(messages: Vec<Message>, mut has_begun: bool) -> Vec<Message> {
    let mut joined: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in messages {
        if ["system", "developer"].contains(&message.role.as_str()) {
            message.role = if has_begun { "user" } else { "system" }.to_owned();
        } else {
            has_begun = true;
        }
        match joined.last_mut().filter(|last| continues(last, &message)) {
            Some(last) => extend(last, message),
            None => joined.push(message),
        }
    }
    joined
}

/// Joins the messages of a prompt: its history, the oldest turns of which may be left out, and the request's own messages.
/// If the request continues the last message of the history, that whole turn moves to the request, so that truncation keeps
/// it.
pub(in crate::calls) fn join_parts(history: Vec<Message>, own: Vec<Message>) -> (Vec<Message>, Vec<Message>) {
    let has_begun = |messages: &[Message]| messages.iter().any(|message| message.role != "system");
    let mut history = join(history, false);
    let mut own = join(own, has_begun(&history));
    if history.last().zip(own.first()).is_some_and(|(last, next)| continues(last, next)) {
        let mut turn = history.split_off(last_turn(&history));
        turn.append(&mut own);
        own = join(turn, has_begun(&history));
    }
    (history, own)
}

/// The index at which the last turn begins, a user message.
pub fn last_turn(messages: &[Message]) -> usize {
    messages.iter().rposition(|message| message.role == "user").unwrap_or(0)
}

/// True if a message continues the previous one.
fn continues(last: &Message, next: &Message) -> bool {
    let is_same_speaker = last.role == next.role && last.name == next.name && last.role != "tool";
    // A text after tool calls is another message.
    is_same_speaker && (last.tool_calls.is_empty() || next.content.is_empty())
}

fn extend(last: &mut Message, next: Message) {
    last.content.append(next.content);
    join_line(&mut last.reasoning, &next.reasoning);
    last.tool_calls.extend(next.tool_calls);
}

/// Adds a text that is not empty as another line.
pub fn join_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::ToolCall;

    fn call(id: &str) -> Message {
        let call = ToolCall { id: id.to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        Message { tool_calls: vec![call], ..Message::new("assistant", "") }
    }

    fn described(messages: Vec<Message>, has_begun: bool) -> Vec<String> {
        let describe = |message: Message| {
            let calls: String = message.tool_calls.iter().map(|call| format!(" +{}", call.id)).collect();
            format!("{}: {}{calls}", message.role, message.content.text())
        };
        join(messages, has_begun).into_iter().map(describe).collect()
    }

    #[test]
    fn roles_alternate_after_one_system_message() {
        let plain = |role: &str, text: &str| Message::new(role, text);
        let messages = vec![
            plain("system", "a"),
            plain("developer", "b"),
            plain("user", "c"),
            plain("system", "d"),
            plain("assistant", "e"),
            call("1"),
            call("2"),
            plain("assistant", "f"),
            plain("tool", "g"),
            plain("tool", "h"),
        ];
        let expected = ["system: a\nb", "user: c\nd", "assistant: e +1 +2", "assistant: f", "tool: g", "tool: h"];
        assert_eq!(described(messages, false), expected);
        assert_eq!(described(vec![plain("developer", "a"), plain("user", "b")], true), ["user: a\nb"]);
        let named = Message { name: Some("ada".to_owned()), ..plain("user", "b") };
        assert_eq!(described(vec![plain("user", "a"), named], false), ["user: a", "user: b"]);
    }

    #[test]
    fn own_messages_continue_the_last_turn() {
        let parts = |history: &[(&str, &str)], own: &[(&str, &str)]| {
            let messages =
                |texts: &[(&str, &str)]| texts.iter().map(|(role, text)| Message::new(*role, *text)).collect();
            let (history, own) = join_parts(messages(history), messages(own));
            (described(history, false), described(own, true))
        };
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let found = parts(&[("system", "a"), ("user", "b"), ("assistant", "c")], &[("developer", "d"), ("user", "e")]);
        assert_eq!(found, (texts(&["system: a", "user: b", "assistant: c"]), texts(&["user: d\ne"])));
        let found = parts(&[("user", "a"), ("assistant", "b"), ("user", "c")], &[("user", "d")]);
        assert_eq!(found, (texts(&["user: a", "assistant: b"]), texts(&["user: c\nd"])));
        let found = parts(&[("user", "a"), ("assistant", "b")], &[("assistant", "c"), ("user", "d")]);
        assert_eq!(found, (texts(&[]), texts(&["user: a", "assistant: b\nc", "user: d"])));
        let (history, own) = join_parts(
            vec![Message::new("system", "a")],
            vec![Message::new("developer", "b"), Message::new("user", "c")],
        );
        assert_eq!(history, []);
        assert_eq!(own, [Message::new("system", "a\nb"), Message::new("user", "c")]);
    }
}
