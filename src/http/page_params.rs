//! The paging parameters that every listing takes.

use serde::Deserialize;

use super::extractors::lenient;
use super::resource_ids::parse_project_id;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::service::pagination::PageRequest;

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Paging {
    /// Max records per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The last ID of the previous page, as OpenAI's clients send it.
    pub after: Option<String>,
}

/// The paging parameters of a listing of one project.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ProjectPaging {
    /// The project to list; absent: the key's own project.
    pub project_id: Option<String>,
    /// Max records per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The last ID of the previous page, as OpenAI's clients send it.
    pub after: Option<String>,
}

impl ProjectPaging {
    /// The requested project, if any, and the page.
    pub fn into_parts(self) -> Result<(Option<ProjectId>, PageRequest)> {
        let Self { project_id, limit, cursor, after } = self;
        Ok((project_id.as_deref().map(parse_project_id).transpose()?, PageRequest { limit, cursor, after }))
    }
}

impl From<Paging> for PageRequest {
    fn from(Paging { limit, cursor, after }: Paging) -> Self {
        PageRequest { limit, cursor, after }
    }
}
