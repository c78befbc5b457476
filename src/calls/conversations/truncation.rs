//! Builds a prompt from an agent's instructions, a stored transcript and the request's messages, and truncates the
//! transcript to what fits.

use std::sync::Arc;

use crate::calls::errors;
use crate::content::Message;
use crate::engine::{PromptOptions, TextModel, TokenIds, TokenizeLimits, Tool};
use crate::error::Result;

/// Tokens reserved for a completion whose length the request does not set: a quarter of the context, at most this many.
const MAX_RESERVE: u32 = 1024;

/// The parts of a prompt, in order.
#[derive(Clone)]
pub(in crate::calls) struct PromptParts {
    pub system: Option<Message>,
    pub history: Vec<Message>,
    /// The request's own messages, which are never left out.
    pub own: Vec<Message>,
    pub tools: Arc<[Tool]>,
    pub options: PromptOptions,
}

/// The limits that prompt and completion share.
#[derive(Clone, Debug)]
pub(in crate::calls) struct TokenBudget {
    /// Context positions for prompt and completion.
    pub window: u32,
    /// Requested completion tokens, if set.
    pub max_tokens: Option<u32>,
    /// The tokens that a prompt may have from which turns can be left out.
    pub max_prompt: Option<u32>,
    /// The limit of tokenisation.
    pub bound: TokenizeLimits,
}

/// A prompt, and the number of transcript messages that were left out.
#[derive(Debug)]
pub(in crate::calls) struct FittedPrompt {
    pub prompt: TokenIds,
    /// `None` if truncation is off.
    pub dropped: Option<usize>,
}

/// The tokens that are reserved for a completion whose length the request does not set.
pub(in crate::calls) fn default_reserve(window: u32) -> u32 {
    (window / 4).clamp(1, MAX_RESERVE)
}

/// The prompt of all messages, whether it fits or not.
pub(in crate::calls) fn untruncated(
    model: &TextModel,
    parts: PromptParts,
    budget: &TokenBudget,
) -> Result<FittedPrompt> {
    Ok(FittedPrompt { prompt: parts.prompt(model, 0, &budget.bound)?, dropped: None })
}

/// The prompt that continues the tokens of an earlier prompt and its completion: they come first, as they are, and then what
/// ends the completion and begins the next one. The template is rendered with two histories that differ only in the last
/// completion; what both have after it is what follows any completion. System messages come before the first turn, so they
/// are left out.
pub(in crate::calls) fn continuing(
    model: &TextModel,
    parts: PromptParts,
    mut tokens: Vec<u32>,
    budget: &TokenBudget,
) -> Result<FittedPrompt> {
    let with_completion = |completion: &str| {
        let history = vec![Message::new("user", "0"), Message::new("assistant", completion)];
        PromptParts { history, ..parts.clone() }.prompt(model, 0, &budget.bound)
    };
    let (one, other) = (with_completion("0")?, with_completion("1")?);
    let same = one.ids.iter().rev().zip(other.ids.iter().rev()).take_while(|(one, other)| one == other).count();
    let end = one.ids.get(one.ids.len() - same..).unwrap_or_default();
    // The token that ended the completion.
    tokens.pop_if(|last| end.first() == Some(last));
    tokens.extend_from_slice(end);
    let prompt = TokenIds { ids: tokens, complete: one.complete && other.complete };
    Ok(FittedPrompt { prompt, dropped: None })
}

/// The prompt of as many recent turns as fit beside the completion. A binary search renders about ten prompts at most,
/// each tokenised no further than the window. If the request's own messages do not fit, the prompt is too long and the
/// caller refuses it.
pub(in crate::calls) fn truncated(model: &TextModel, parts: PromptParts, budget: &TokenBudget) -> Result<FittedPrompt> {
    let window = u64::from(budget.window);
    let max_prompt = budget.max_prompt.map_or(window, u64::from).min(window);
    let reserve = u64::from(budget.max_tokens.unwrap_or_else(|| default_reserve(budget.window)));
    let fits = |prompt: &TokenIds| {
        let tokens = prompt.ids.len() as u64;
        prompt.complete && tokens <= max_prompt && tokens + reserve <= window
    };
    let cuts = cut_points(&parts.history);
    let last = cuts.len() - 1;
    // Cuts before `low` keep too much. Initially these are cuts whose messages are too long by size alone.
    let mut low = cuts.partition_point(|cut| model.min_prompt_tokens(parts.messages(cut.at)) > max_prompt).min(last);
    let (mut best, mut prompt) = (low, parts.prompt(model, cuts[low].at, &budget.bound)?);
    if !fits(&prompt) && low < last {
        (low, best, prompt) = (low + 1, last, parts.prompt(model, cuts[last].at, &budget.bound)?);
    }
    // The cut at `best` fits, if any does.
    while low < best && !budget.bound.is_cancelled() {
        let middle = low + (best - low) / 2;
        let tried = parts.prompt(model, cuts[middle].at, &budget.bound)?;
        if fits(&tried) {
            (best, prompt) = (middle, tried);
        } else {
            low = middle + 1;
        }
    }
    Ok(FittedPrompt { prompt, dropped: Some(cuts[best].dropped) })
}

/// The messages of as many recent turns as `fits` accepts, and the number of messages that were left out. If the request's
/// own messages do not fit, all turns are left out.
pub(in crate::calls) fn truncated_messages(
    parts: &PromptParts,
    fits: impl Fn(&[&Message]) -> bool,
) -> (Vec<Message>, usize) {
    let cuts = cut_points(&parts.history);
    let kept = |cut: &CutPoint| parts.messages(cut.at).collect::<Vec<_>>();
    // Fewer messages are never larger, so the first cut that fits keeps the most.
    let first = cuts.partition_point(|cut| !fits(&kept(cut))).min(cuts.len() - 1);
    (kept(&cuts[first]).into_iter().cloned().collect(), cuts[first].dropped)
}

/// At most the last `max` messages, starting with a user message; system messages stay.
pub(in crate::calls) fn last_messages(history: Vec<Message>, max: Option<u32>) -> Vec<Message> {
    let Some(max) = max else { return history };
    let cuts = cut_points(&history);
    let spoken = cuts.last().map_or(0, |end| end.dropped);
    let cut = cuts.iter().find(|cut| spoken - cut.dropped <= max as usize).map_or(history.len(), |cut| cut.at);
    let stays = |(at, message): &(usize, Message)| *at >= cut || is_system(message);
    history.into_iter().enumerate().filter(stays).map(|(_, message)| message).collect()
}

/// A position where a transcript may be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CutPoint {
    /// Index of the first message that stays; system messages always stay.
    at: usize,
    /// Number of messages removed.
    dropped: usize,
}

/// The possible cuts: none, before each user message, and after the end. A turn is a user message with what follows it,
/// so no answer remains without its question.
fn cut_points(history: &[Message]) -> Vec<CutPoint> {
    let (mut cuts, mut spoken) = (vec![CutPoint::default()], 0);
    for (at, message) in history.iter().enumerate() {
        if message.role == "user" && spoken > 0 {
            cuts.push(CutPoint { at, dropped: spoken });
        }
        spoken += usize::from(!is_system(message));
    }
    if spoken > 0 {
        cuts.push(CutPoint { at: history.len(), dropped: spoken });
    }
    cuts
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

impl PromptParts {
    /// All messages of the prompt.
    pub fn all_messages(&self) -> Vec<Message> {
        self.messages(0).cloned().collect()
    }

    /// The messages of the prompt if the transcript is cut at `cut`.
    fn messages(&self, cut: usize) -> impl Iterator<Item = &Message> {
        let stays = move |(at, message): &(usize, &Message)| *at >= cut || is_system(message);
        let history = self.history.iter().enumerate().filter(stays).map(|(_, message)| message);
        self.system.iter().chain(history).chain(&self.own)
    }

    fn prompt(&self, model: &TextModel, cut: usize, bound: &TokenizeLimits) -> Result<TokenIds> {
        let messages: Vec<Message> = self.messages(cut).cloned().collect();
        let prompt = model.prompt_within(&messages, &self.tools, &self.options, bound);
        prompt.map_err(|error| errors::from_prompt_error(model.id(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::{cut_points, last_messages};
    use crate::content::Message;

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
    fn a_transcript_is_cut_only_between_turns() {
        let cuts =
            |roles: &str| cut_points(&history(roles)).iter().map(|cut| (cut.at, cut.dropped)).collect::<Vec<_>>();
        assert_eq!(cuts("suaauatau"), [(0, 0), (4, 3), (8, 7), (9, 8)]);
        assert_eq!(cuts("aua"), [(0, 0), (1, 1), (3, 3)]);
        assert_eq!(cuts("ss"), [(0, 0)]);
        assert_eq!(cuts(""), [(0, 0)]);
    }

    #[test]
    fn last_messages_start_with_a_user_message_and_keep_instructions() {
        let texts = |roles: &str, max| {
            let kept = last_messages(history(roles), max);
            kept.iter().map(|message| message.content.text()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(texts("suaua", None), "0 1 2 3 4");
        assert_eq!(texts("suaua", Some(4)), "0 1 2 3 4");
        assert_eq!(texts("suaua", Some(3)), "0 3 4");
        assert_eq!(texts("suaua", Some(1)), "0");
        assert_eq!(texts("suaus", Some(1)), "0 3 4");
    }
}
