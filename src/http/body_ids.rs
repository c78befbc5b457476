//! Ids in bodies and query strings. A malformed id is reported like an unknown one.

use std::str::FromStr;

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::ids::ProjectId;

/// The id of a resource of the kind `what` in the field `param`; 404 if it is malformed.
pub fn parse_id<I: FromStr>(text: &str, what: &str, param: &str) -> Result<I> {
    text.parse().map_err(|_| Error::not_found(what, shorten(text)).param(param))
}

/// The field `project_id`.
pub fn parse_project_id(text: &str) -> Result<ProjectId> {
    parse_id(text, "project", "project_id")
}
