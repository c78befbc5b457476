//! Makes one prompt of an agent's instructions, a stored transcript and the request's messages, and
//! finds how much of the transcript fits.

use std::sync::Arc;

use super::chat::refuse_prompt;
use crate::engine::{Message, Prompt, TextModel, TokenBound, Tool};
use crate::error::Result;

/// Room left for an answer whose length the request does not say: a quarter of the context, but no
/// more than this.
const RESERVE: u32 = 1024;

/// What a prompt is made of, in its order.
pub(super) struct Parts {
    pub system: Option<Message>,
    pub history: Vec<Message>,
    /// The request's own messages, of which none is ever left out.
    pub own: Vec<Message>,
    pub tools: Arc<[Tool]>,
}

/// What prompt and answer must fit into.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// Positions that both share.
    pub window: u32,
    /// Tokens that the request wants for its answer, if it says.
    pub wanted: Option<u32>,
    /// How far prompts are tokenised.
    pub bound: TokenBound,
}

/// A prompt, and how many messages of the transcript were left out to make it fit.
#[derive(Debug)]
pub(super) struct Fitted {
    pub prompt: Prompt,
    /// `None` where nothing may be left out.
    pub dropped: Option<usize>,
}

/// The prompt of everything, whether it fits or not.
pub(super) fn whole(model: &TextModel, parts: Parts, room: &Room) -> Result<Fitted> {
    Ok(Fitted { prompt: parts.prompt(model, 0, &room.bound)?, dropped: None })
}

/// The prompt of as many of the last turns as fit beside the answer. Whatever the transcript's length, some ten prompts
/// are made at most, each tokenised no further than the window. If not even the request's own messages fit, the prompt
/// is too long and the caller refuses it.
pub(super) fn truncated(model: &TextModel, parts: Parts, room: &Room) -> Result<Fitted> {
    let window = u64::from(room.window);
    let reserve = u64::from(room.wanted.unwrap_or_else(|| (room.window / 4).clamp(1, RESERVE)));
    let fits = |prompt: &Prompt| prompt.complete && prompt.ids.len() as u64 + reserve <= window;
    let cuts = cuts(&parts.history);
    let last = cuts.len() - 1;
    // Cuts before `low` leave too much: at first, those whose messages are too long by their bytes alone.
    let mut low = cuts.partition_point(|cut| model.fewest_tokens(parts.messages(cut.at)) > window).min(last);
    let (mut best, mut prompt) = (low, parts.prompt(model, cuts[low].at, &room.bound)?);
    if !fits(&prompt) && low < last {
        (low, best, prompt) = (low + 1, last, parts.prompt(model, cuts[last].at, &room.bound)?);
    }
    // The cut at `best` leaves little enough, if any does.
    while low < best && !room.bound.is_cancelled() {
        let middle = low + (best - low) / 2;
        let tried = parts.prompt(model, cuts[middle].at, &room.bound)?;
        if fits(&tried) {
            (best, prompt) = (middle, tried);
        } else {
            low = middle + 1;
        }
    }
    Ok(Fitted { prompt, dropped: Some(cuts[best].dropped) })
}

/// At most the last `most` messages, from a user's message on; instructions inside stay.
pub(super) fn last(history: Vec<Message>, most: Option<u32>) -> Vec<Message> {
    let Some(most) = most else { return history };
    let cuts = cuts(&history);
    let spoken = cuts.last().map_or(0, |end| end.dropped);
    let cut = cuts.iter().find(|cut| spoken - cut.dropped <= most as usize).map_or(history.len(), |cut| cut.at);
    let stays = |(at, message): &(usize, Message)| *at >= cut || is_system(message);
    history.into_iter().enumerate().filter(stays).map(|(_, message)| message).collect()
}

/// A place where a transcript may be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cut {
    /// Index of the first message that stays; instructions stay everywhere.
    at: usize,
    /// How many messages go.
    dropped: usize,
}

/// Nowhere, before each message of a user, and after the end. A turn is a user's message with what
/// follows it, so no answer stays without its question.
fn cuts(history: &[Message]) -> Vec<Cut> {
    let (mut cuts, mut spoken) = (vec![Cut::default()], 0);
    for (at, message) in history.iter().enumerate() {
        if message.role == "user" && spoken > 0 {
            cuts.push(Cut { at, dropped: spoken });
        }
        spoken += usize::from(!is_system(message));
    }
    if spoken > 0 {
        cuts.push(Cut { at: history.len(), dropped: spoken });
    }
    cuts
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

impl Parts {
    /// All messages, those of the transcript from `cut` on and its instructions.
    fn messages(&self, cut: usize) -> impl Iterator<Item = &Message> {
        let stays = move |(at, message): &(usize, &Message)| *at >= cut || is_system(message);
        let history = self.history.iter().enumerate().filter(stays).map(|(_, message)| message);
        self.system.iter().chain(history).chain(&self.own)
    }

    fn prompt(&self, model: &TextModel, cut: usize, bound: &TokenBound) -> Result<Prompt> {
        let messages: Vec<Message> = self.messages(cut).cloned().collect();
        let prompt = model.prompt_within(&messages, &self.tools, bound);
        prompt.map_err(|error| refuse_prompt(model.id(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::{cuts, last};
    use crate::engine::Message;

    /// `s`ystem, `u`ser, `a`ssistant, `t`ool.
    fn history(roles: &str) -> Vec<Message> {
        let role = |letter| match letter {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        let one = |(at, letter)| Message::new(role(letter), format!("{at}"));
        roles.chars().enumerate().map(one).collect()
    }

    #[test]
    fn a_transcript_is_cut_between_turns_only() {
        let places = |roles: &str| cuts(&history(roles)).iter().map(|cut| (cut.at, cut.dropped)).collect::<Vec<_>>();
        assert_eq!(places("suaauatau"), [(0, 0), (4, 3), (8, 7), (9, 8)]);
        assert_eq!(places("aua"), [(0, 0), (1, 1), (3, 3)]);
        assert_eq!(places("ss"), [(0, 0)]);
        assert_eq!(places(""), [(0, 0)]);
    }

    #[test]
    fn the_last_messages_begin_with_a_user_s_and_instructions_stay() {
        let texts = |roles: &str, most| {
            last(history(roles), most).into_iter().map(|message| message.content).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts("suaua", None), "0 1 2 3 4");
        assert_eq!(texts("suaua", Some(4)), "0 1 2 3 4");
        assert_eq!(texts("suaua", Some(3)), "0 3 4");
        assert_eq!(texts("suaua", Some(1)), "0");
        assert_eq!(texts("suaus", Some(1)), "0 3 4");
    }
}
