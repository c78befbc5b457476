//! Optimistic concurrency: a write may state the version that it expects.

use crate::display::shorten;
use crate::error::{Code, Error, Result};

/// The header `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: any version, but there must be one.
    Exists,
    /// One of these; a tag that is not a version matches nothing.
    Versions { given: String, numbers: Vec<u64> },
}

impl IfMatch {
    /// Parses the header (RFC 9110, section 13.1.1).
    pub fn parse(text: &str) -> Result<Self> {
        let given = text.trim();
        if given == "*" {
            return Ok(Self::Exists);
        }
        let numbers = given.split(',').map(|tag| tag_number(tag.trim())).collect::<Result<Vec<_>>>()?;
        Ok(Self::Versions { given: given.to_owned(), numbers: numbers.into_iter().flatten().collect() })
    }

    fn check(&self, stored: Option<u64>) -> Result<()> {
        let (given, fits) = match self {
            Self::Exists => ("*", stored.is_some()),
            Self::Versions { given, numbers } => (&**given, stored.is_some_and(|stored| numbers.contains(&stored))),
        };
        if fits {
            return Ok(());
        }
        let text = format!("The header 'If-Match' is {given}, but {}.", stored_text(stored));
        Err(Error::new(Code::PreconditionFailed, text).param("If-Match"))
    }
}

/// The version in an entity tag; `None` for a tag that this server never issued.
fn tag_number(tag: &str) -> Result<Option<u64>> {
    let inner = tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let Some(inner) = inner.filter(|inner| !inner.contains('"')) else {
        let shown = shorten(tag);
        let text = format!(
            "The header 'If-Match' is {shown}, which is not an entity tag. Send an ETag as it was received, such as \"3\", or *."
        );
        return Err(Error::invalid("If-Match", text));
    };
    // Weak tags never match in If-Match.
    let strong = !tag.starts_with("W/");
    Ok(inner.parse().ok().filter(|_| strong))
}

/// The precondition of a write.
#[derive(Clone, Debug, Default)]
pub struct Precondition {
    /// The field `version` of the body; 0: the resource must not exist yet.
    pub version: Option<u64>,
    pub if_match: Option<IfMatch>,
}

impl Precondition {
    /// Compares with the stored version; `None` if nothing is stored.
    pub(in crate::service) fn check(&self, stored: Option<u64>) -> Result<()> {
        self.if_match.as_ref().map_or(Ok(()), |header| header.check(stored))?;
        match self.version {
            Some(version) if version != stored.unwrap_or(0) => {
                let text = format!("'version' is {version}, but {}.", stored_text(stored));
                Err(Error::new(Code::Conflict, text).param("version"))
            }
            _ => Ok(()),
        }
    }
}

fn stored_text(stored: Option<u64>) -> String {
    match stored {
        Some(stored) => {
            format!("version {stored} is stored. Read it again, apply your change to it, and send that version")
        }
        None => "nothing is stored under this id. Leave the expectation out to create it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{IfMatch, Precondition};
    use crate::error::Code;

    #[test]
    fn entity_tags_match_their_version() {
        let stored = |header: &str, stored| {
            let if_match = Some(IfMatch::parse(header).unwrap());
            Precondition { version: None, if_match }.check(stored).map_err(|error| error.code())
        };
        assert_eq!(stored("\"3\"", Some(3)), Ok(()));
        assert_eq!(stored("\"2\", \"3\"", Some(3)), Ok(()));
        assert_eq!(stored("*", Some(9)), Ok(()));
        for invalid_field in ["\"2\"", "W/\"3\"", "\"abc\"", "\"\""] {
            assert_eq!(stored(invalid_field, Some(3)), Err(Code::PreconditionFailed), "{invalid_field}");
        }
        assert_eq!(stored("*", None), Err(Code::PreconditionFailed));
    }

    #[test]
    fn invalid_entity_tags_are_rejected() {
        for invalid_field in ["3", "", "\"3", "\"3\" \"4\"", "*, \"3\""] {
            assert_eq!(IfMatch::parse(invalid_field).unwrap_err().code(), Code::InvalidParameter, "{invalid_field}");
        }
    }
}
