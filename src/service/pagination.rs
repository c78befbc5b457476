//! Pagination of listings, newest first.
//!
//! A page starts below a position (an id), not at an offset, so insertions and deletions between two requests neither
//! repeat nor hide rows. A cursor is that position with a MAC that binds it to its listing and owner.

use std::str::FromStr;

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::ids::BadId;
use crate::storage::Pepper;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: i64 = 100;

/// The pagination parameters of a request.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Items in the page: 1 to 100, default 20.
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// The id of the last item of the previous page, as in OpenAI's API.
    pub after: Option<String>,
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub has_more: bool,
    /// Present if there are more items.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// Maps the items.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(f).collect(), has_more: self.has_more, next_cursor: self.next_cursor }
    }
}

/// A listing, to which cursors are bound.
#[derive(Clone, Copy)]
pub(super) struct Listing {
    pub name: &'static str,
    /// The project or resource that is listed; `None` for all projects.
    pub owner: Option<[u8; 16]>,
}

impl Listing {
    fn tag(&self, pepper: &Pepper, position: &[u8; 16]) -> [u8; 16] {
        let owner = self.owner.as_ref().map_or(&[][..], |bytes| bytes);
        pepper.cursor_tag(&[self.name.as_bytes(), owner, position])
    }

    pub fn cursor(&self, pepper: &Pepper, position: [u8; 16]) -> String {
        let bytes = position.into_iter().chain(self.tag(pepper, &position));
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    fn position(&self, pepper: &Pepper, cursor: &str) -> Option<[u8; 16]> {
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (cursor.len() == 64 && cursor.bytes().all(lower)).then_some(())?;
        let (position, tag) = cursor.split_at(32);
        let position = u128::from_str_radix(position, 16).ok()?.to_be_bytes();
        let tag = u128::from_str_radix(tag, 16).ok()?.to_be_bytes();
        let same: bool = subtle::ConstantTimeEq::ct_eq(&tag[..], &self.tag(pepper, &position)[..]).into();
        same.then_some(position)
    }
}

/// A validated request: the number of rows and the id below which they are.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub limit: usize,
    pub before: Option<[u8; 16]>,
}

impl Window {
    /// One row more than the page, to learn whether there are more.
    pub fn rows(&self) -> usize {
        self.limit + 1
    }
}

impl PageRequest {
    /// Validates the request; `Id` is the type of `after`.
    pub(super) fn window<Id: FromStr<Err = BadId>>(
        &self,
        pepper: &Pepper,
        listing: Listing,
        bytes: impl Fn(Id) -> [u8; 16],
    ) -> Result<Window> {
        let limit = match self.limit {
            None => DEFAULT_LIMIT,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|_| (1..=MAX_LIMIT).contains(&limit))
                .ok_or_else(|| Error::invalid("limit", format!("'limit' is {limit}; it must be 1 to {MAX_LIMIT}.")))?,
        };
        let before = match (&self.cursor, &self.after) {
            (Some(_), Some(_)) => return Err(Error::invalid("after", "Give either 'cursor' or 'after', not both.")),
            (Some(cursor), None) => Some(listing.position(pepper, cursor).ok_or_else(bad_cursor)?),
            (None, Some(after)) => Some(after.parse().map(bytes).map_err(|bad| bad_after(after, &bad))?),
            (None, None) => None,
        };
        Ok(Window { limit, before })
    }
}

fn bad_cursor() -> Error {
    Error::invalid(
        "cursor",
        "'cursor' is not from this listing. Pass on 'next_cursor' of its last page unchanged, or leave it out to start anew.",
    )
}

fn bad_after(after: &str, bad: &BadId) -> Error {
    let shown = shorten(after);
    Error::invalid(
        "after",
        format!(
            "'after' is '{shown}', which is not an ID of this list. A valid ID is {}. Send the ID of the last item that you received.",
            bad.form
        ),
    )
}

/// Makes a page of up to `limit + 1` rows.
pub(super) fn page<T>(
    pepper: &Pepper,
    listing: Listing,
    window: Window,
    items: Vec<T>,
    id: impl Fn(&T) -> [u8; 16],
) -> Page<T> {
    short_page(pepper, listing, window, items, false, id)
}

/// Like [`page`]. `is_cut`: whether there are more rows than `items`, which were not read.
pub(super) fn short_page<T>(
    pepper: &Pepper,
    listing: Listing,
    window: Window,
    mut items: Vec<T>,
    is_cut: bool,
    id: impl Fn(&T) -> [u8; 16],
) -> Page<T> {
    let has_more = is_cut || items.len() > window.limit;
    items.truncate(window.limit);
    let last = items.last().filter(|_| has_more);
    let next_cursor = last.map(|item| listing.cursor(pepper, id(item)));
    Page { items, has_more, next_cursor }
}
