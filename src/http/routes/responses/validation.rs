//! Validates requests, with the stored responses that they refer to.

use serde_json::Value;

use super::input_items;
use super::request::{Checked, ResponsesRequest};
use crate::error::Result;
use crate::http::Api;
use crate::ids::ResponseId;
use crate::service::access::Access;
use crate::service::responses::{Chain, ChainLink};
use crate::service::writes::precondition::IfMatch;

/// Validates a request. `if_match`: the expected version of its conversation.
pub async fn validate(
    request: ResponsesRequest,
    if_match: Option<IfMatch>,
    access: &Access,
    api: &Api,
) -> Result<(Checked, ChainLink)> {
    let items = input_items::resolve(&api.services.responses, access, request.items()?).await?;
    validate_resolved(request, items, if_match, access, api).await
}

/// The responses that end with `last`; none if it is `None`.
pub async fn chain(last: Option<ResponseId>, access: &Access, api: &Api) -> Result<Chain> {
    match last {
        Some(last) => api.services.responses.chain(access, last).await,
        None => Ok(Chain::default()),
    }
}

/// Like [`validate`], for items whose references are already resolved.
pub async fn validate_resolved(
    request: ResponsesRequest,
    items: Vec<Value>,
    if_match: Option<IfMatch>,
    access: &Access,
    api: &Api,
) -> Result<(Checked, ChainLink)> {
    let chain = chain(request.previous()?, access, api).await?;
    let link = ChainLink::from(&chain);
    let defaults = api.models.generation_defaults(request.model());
    Ok((request.check(items, &chain, if_match, &defaults)?, link))
}
