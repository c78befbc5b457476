//! The input items of stored responses: how they are stored, listed and referred to.
//!
//! The ID of an item is that of its response plus a small number. The AI SDK sends earlier items as references: the
//! response of an item is the one with the next smaller ID, so no index of items is needed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::continuation::output_of;
use super::input::kind;
use crate::calls::responses::item_format::ItemFormat;
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::http::extractors::lenient;
use crate::ids::{
    CustomCallId, CustomOutputId, FunctionCallId, FunctionOutputId, ItemId, MessageId, ReasoningId, ResponseId,
};
use crate::service::access::Access;
use crate::service::responses::{Responses, StoredResponse};
use crate::service::validation::json_fields::invalid_field;

const DEFAULT_LIMIT: i64 = 20;
const MAX_LIMIT: i64 = 100;
/// The types of items that have a status.
const WITH_STATUS: [&str; 5] =
    ["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"];

/// The JSON of each item as it is stored: with an id, a type and a status, and with parts instead of a text.
pub fn stored(response: ResponseId, items: &[Value]) -> Vec<String> {
    let stored = |(index, item)| stored_item(ItemFormat::input_id(response, index), item).to_string();
    items.iter().enumerate().map(stored).collect()
}

fn stored_item(id: [u8; 16], item: &Value) -> Value {
    let mut fields = item.as_object().cloned().unwrap_or_default();
    let kind = kind(item).unwrap_or_default().to_owned();
    let id = match kind.as_str() {
        "message" => MessageId::from_bytes(id).to_string(),
        "function_call" => FunctionCallId::from_bytes(id).to_string(),
        "function_call_output" => FunctionOutputId::from_bytes(id).to_string(),
        "custom_tool_call" => CustomCallId::from_bytes(id).to_string(),
        "custom_tool_call_output" => CustomOutputId::from_bytes(id).to_string(),
        "reasoning" => ReasoningId::from_bytes(id).to_string(),
        _ => ItemId::from_bytes(id).to_string(),
    };
    set_missing(&mut fields, "id", json!(id));
    set_missing(&mut fields, "type", json!(kind));
    if WITH_STATUS.contains(&kind.as_str()) {
        set_missing(&mut fields, "status", json!("completed"));
    }
    if kind == "message"
        && let Some(text) = fields.get("content").and_then(Value::as_str)
    {
        let part = match fields.get("role").and_then(Value::as_str) {
            Some("assistant") => json!({ "type": "output_text", "text": text, "annotations": [] }),
            _ => json!({ "type": "input_text", "text": text }),
        };
        fields.insert("content".to_owned(), json!([part]));
    }
    Value::Object(fields)
}

fn set_missing(fields: &mut Map<String, Value>, name: &str, value: Value) {
    let field = fields.entry(name).or_insert(Value::Null);
    if field.is_null() {
        *field = value;
    }
}

/// Parameters of a list of items.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Max items per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    limit: Option<i64>,
    /// `asc`: in their order; `desc`, the default: the last one first.
    #[param(inline)]
    order: Option<Order>,
    /// The last ID of the previous page.
    pub after: Option<String>,
}

impl ListParams {
    /// The size of the page.
    pub fn limit(&self) -> Result<usize> {
        page_size(self.limit)
    }

    /// Whether the last item comes first.
    pub fn is_descending(&self) -> bool {
        self.order.unwrap_or_default() == Order::Desc
    }
}

/// The number of items of a page, as OpenAI's lists have it.
pub fn page_size(limit: Option<i64>) -> Result<usize> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    match usize::try_from(limit).ok().filter(|_| (1..=MAX_LIMIT).contains(&limit)) {
        Some(limit) => Ok(limit),
        None => invalid_field("limit", &format!("is {limit}; it must be 1 to {MAX_LIMIT}")),
    }
}

/// The error for an `after` that is not in the list.
pub fn bad_after<T>(after: &str) -> Result<T> {
    invalid_field(
        "after",
        &format!(
            "is '{}', which is not the ID of an item of this list. Send the last_id of the previous page",
            shorten(after)
        ),
    )
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq, utoipa::ToSchema)]
#[schema(as = ItemOrder)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    #[default]
    Desc,
}

/// A page of input items.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = InputItemList)]
pub struct ItemList {
    /// `list`.
    object: &'static str,
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// The requested page of a response's input items.
pub fn page(response: &StoredResponse, params: ListParams) -> Result<ItemList> {
    let limit = params.limit()?;
    let mut items = parsed(response)?;
    if params.is_descending() {
        items.reverse();
    }
    if let Some(after) = &params.after {
        match items.iter().position(|item| id_of(item) == Some(after)) {
            Some(index) => drop(items.drain(..=index)),
            None => return bad_after(after),
        }
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.and_then(id_of).map(str::to_owned);
    Ok(ItemList { object: "list", first_id: id(items.first()), last_id: id(items.last()), data: items, has_more })
}

/// The input items of a stored response.
pub fn parsed(response: &StoredResponse) -> Result<Vec<Value>> {
    response.input.iter().map(|text| serde_json::from_str(text).map_err(Error::internal)).collect()
}

fn id_of(item: &Value) -> Option<&str> {
    item.get("id").and_then(Value::as_str)
}

/// Replaces references to items of stored responses by the items.
pub async fn resolve(responses: &Responses, access: &Access, mut items: Vec<Value>) -> Result<Vec<Value>> {
    let is_reference = |item: &Value| kind(item) == Some("item_reference");
    let ids: Vec<&str> =
        items.iter().filter(|item| is_reference(item)).map(|item| id_of(item).unwrap_or_default()).collect();
    if ids.is_empty() {
        return Ok(items);
    }
    let positions = ids.iter().filter_map(|id| position(id)).collect();
    let mut known = HashMap::new();
    for response in responses.at_positions(access, positions).await? {
        let of_response = output_of(&response)?.into_iter().chain(parsed(&response)?);
        known.extend(of_response.filter_map(|item| Some((id_of(&item)?.to_owned(), item))));
    }
    for (index, item) in items.iter_mut().enumerate().filter(|(_, item)| is_reference(item)) {
        let id = id_of(item).unwrap_or_default();
        match known.get(id) {
            Some(found) => *item = found.clone(),
            None => {
                let field = format!("input[{index}].id");
                let text = format!(
                    "'{field}' is '{}', but no stored response has such an item. Send the item itself.",
                    shorten(id)
                );
                return Err(Error::invalid(field, text));
            }
        }
    }
    Ok(items)
}

/// The number in the id of an item.
fn position(id: &str) -> Option<u128> {
    let (_, digits) = id.rsplit_once('_')?;
    (digits.len() == 32).then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_items_have_an_id_a_type_and_parts() {
        let items = [
            json!({ "role": "user", "content": "hi" }),
            json!({ "type": "message", "id": "msg_own", "role": "assistant", "content": "ho", "status": "incomplete" }),
            json!({ "type": "function_call_output", "call_id": "c", "output": "x", "id": null }),
        ];
        let stored: Vec<Value> = stored(ResponseId::from_bytes([0; 16]), &items)
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        let (zeros, content) = ("0".repeat(23), json!([{ "type": "input_text", "text": "hi" }]));
        assert_eq!(
            stored[0],
            json!({ "role": "user", "content": content, "id": format!("msg_{zeros}100000000"), "type": "message", "status": "completed" })
        );
        assert_eq!((&stored[1]["id"], &stored[1]["status"]), (&json!("msg_own"), &json!("incomplete")));
        assert_eq!(stored[1]["content"][0]["type"], "output_text");
        assert_eq!(stored[2]["id"], format!("fco_{zeros}100000002"));
        assert_eq!(position(stored[2]["id"].as_str().unwrap()), Some((1 << 32) + 2));
        assert_eq!((position("msg_own"), position("")), (None, None));
    }
}
