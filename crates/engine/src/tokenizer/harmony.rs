//! The control tokens of harmony, the format in which gpt-oss writes messages
//! (<https://github.com/openai/harmony/blob/main/docs/format.md>).

use super::Vocabulary;

pub const START: &str = "<|start|>";
pub const CHANNEL: &str = "<|channel|>";
pub const CONSTRAIN: &str = "<|constrain|>";
pub const MESSAGE: &str = "<|message|>";
pub const END: &str = "<|end|>";
pub const CALL: &str = "<|call|>";
pub const RETURN: &str = "<|return|>";

/// The IDs of the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HarmonyTokens {
    /// Before a message's role.
    pub start: u32,
    /// Before its channel.
    pub channel: u32,
    /// Before the type of its content, if that is not plain text.
    pub constrain: u32,
    /// Before its content.
    pub message: u32,
    /// After a message; another one of the same turn follows.
    pub end: u32,
    /// After a call, which ends the turn.
    pub call: u32,
    /// After the last message of a turn.
    pub ret: u32,
}

impl HarmonyTokens {
    /// `None`: the vocabulary lacks one of them.
    pub fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let id = |text: &str| vocabulary.id_of(text);
        Some(Self {
            start: id(START)?,
            channel: id(CHANNEL)?,
            constrain: id(CONSTRAIN)?,
            message: id(MESSAGE)?,
            end: id(END)?,
            call: id(CALL)?,
            ret: id(RETURN)?,
        })
    }

    pub fn all(&self) -> [u32; 7] {
        [self.start, self.channel, self.constrain, self.message, self.end, self.call, self.ret]
    }
}

impl Vocabulary {
    /// Corrects what files say of these tokens, if it has them: all are control tokens, calls end generation, and the end of a
    /// message does not, although it does in the vocabularies of other models.
    pub(super) fn with_harmony(mut self) -> Self {
        if let Some(tokens) = HarmonyTokens::of(&self) {
            self.control.extend(tokens.all());
            self.eos_ids.remove(&tokens.end);
            self.eos_ids.extend([tokens.call, tokens.ret]);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_and_the_last_message_end_generation() {
        let all = [START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];
        let vocabulary = |tokens: &[&str], eos: u32| {
            let mut vocabulary = Vocabulary::of(tokens);
            vocabulary.eos_ids.insert(eos);
            vocabulary.with_harmony()
        };
        let harmony = vocabulary(&all, 4);
        assert_eq!((harmony.eos_ids.len(), harmony.control.len()), (2, 7));
        assert!(harmony.eos_ids.contains(&5) && harmony.eos_ids.contains(&6));
        let other = vocabulary(&all[..6], 4);
        assert!(other.eos_ids.contains(&4) && other.eos_ids.len() == 1, "Phi has a token that ends its turns");
    }
}
