//! Ids in paths, bodies and query strings. A malformed id gives 404, like an unknown one, and the message says what such
//! ids look like.

use std::str::FromStr;

use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::ids::{BadId, ProjectId};

/// The id in a path.
pub fn parse_id<I: FromStr<Err = BadId>>(text: &str) -> Result<I> {
    text.parse().map_err(|BadId { kind, form }| {
        let text = shorten(text);
        let message = format!("No {kind} '{text}' exists. A valid ID is {form}.");
        Error::new(Code::NotFound, message)
    })
}

/// The id in the field `param`.
pub fn parse_field_id<I: FromStr<Err = BadId>>(text: &str, param: &str) -> Result<I> {
    parse_id(text).map_err(|error| error.param(param))
}

/// The field `project_id`.
pub fn parse_project_id(text: &str) -> Result<ProjectId> {
    parse_field_id(text, "project_id")
}
