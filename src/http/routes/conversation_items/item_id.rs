//! The ID of an item: the conversation, the row of the message and which part of the message the item is. IDs are not
//! stored, and stay the same when other items are deleted.
//!
//! No index is needed, an item is found by reading one row, and a call is named by a digest of it. Items of a response
//! have the IDs of the response, because the row of a turn is known only when it is stored.

use std::fmt;
use std::str::FromStr;

use crate::ids::{BadId, ConversationId};

/// The ID of an item of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationItemId {
    pub conversation: ConversationId,
    /// The row of the message.
    pub row: u32,
    pub part: ItemPart,
}

/// The part of a message that an item has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemPart {
    /// The reasoning of an assistant's message.
    Reasoning,
    /// The text of a message.
    Message,
    /// The tool call with this digest.
    Call(u64),
    /// The result of a tool call.
    Output,
}

const PREFIXES: [&str; 4] = ["rs_", "msg_", "fc_", "fco_"];
/// Digits of a conversation, a row and a digest.
const DIGITS: [usize; 3] = [32, 8, 16];

impl ItemPart {
    fn prefix(self) -> &'static str {
        match self {
            Self::Reasoning => "rs_",
            Self::Message => "msg_",
            Self::Call(_) => "fc_",
            Self::Output => "fco_",
        }
    }
}

impl fmt::Display for ConversationItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:032x}{:08x}", self.part.prefix(), self.conversation.to_u128(), self.row)?;
        match self.part {
            ItemPart::Call(digest) => write!(f, "{digest:016x}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for ConversationItemId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        parse(text).ok_or(BadId {
            kind: "item",
            form: "'msg_', 'rs_' or 'fco_' followed by 40 lowercase hexadecimal digits, or 'fc_' followed by 56",
        })
    }
}

fn parse(text: &str) -> Option<ConversationItemId> {
    let (prefix, digits) = PREFIXES.iter().find_map(|prefix| Some((*prefix, text.strip_prefix(prefix)?)))?;
    if !digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let (conversation, rest) = digits.split_at_checked(DIGITS[0])?;
    let (row, digest) = rest.split_at_checked(DIGITS[1])?;
    let part = match (prefix, digest.len()) {
        ("rs_", 0) => ItemPart::Reasoning,
        ("msg_", 0) => ItemPart::Message,
        ("fco_", 0) => ItemPart::Output,
        ("fc_", length) if length == DIGITS[2] => ItemPart::Call(u64::from_str_radix(digest, 16).ok()?),
        _ => return None,
    };
    let conversation = u128::from_str_radix(conversation, 16).ok()?.to_be_bytes();
    Some(ConversationItemId {
        conversation: ConversationId::from_bytes(conversation),
        row: u32::from_str_radix(row, 16).ok()?,
        part,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_parsed_back() {
        let conversation = ConversationId::from_bytes([0xab; 16]);
        let parts = [ItemPart::Reasoning, ItemPart::Message, ItemPart::Call(7), ItemPart::Output];
        for (part, length) in parts.into_iter().zip([43, 44, 59, 44]) {
            let id = ConversationItemId { conversation, row: 258, part };
            let text = id.to_string();
            assert_eq!((text.len(), text.parse()), (length, Ok(id)), "{text}");
            for bad in
                [text.to_uppercase(), format!("{text}0"), text[..text.len() - 1].to_owned(), text[1..].to_owned()]
            {
                assert!(bad.parse::<ConversationItemId>().is_err(), "{bad}");
            }
        }
        assert!("msg_é".parse::<ConversationItemId>().is_err());
    }
}
