//! Pages of a listing, the newest first.
//!
//! A page starts below a position (an id), not at a count, so rows that come or go between two
//! requests neither repeat nor hide others. A cursor is that position with a MAC that binds it to
//! the listing and owner it came from.

use std::str::FromStr;

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::storage::Pepper;

const DEFAULT: usize = 20;
const MOST: i64 = 100;

/// What a client asks of a listing.
#[derive(Clone, Debug, Default)]
pub struct PageRequest {
    /// Items in the page: 1 to 100, default 20.
    pub limit: Option<i64>,
    /// From an earlier page of the same listing.
    pub cursor: Option<String>,
    /// The id of the last item seen, as OpenAI's listings have it.
    pub after: Option<String>,
}

/// A page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub has_more: bool,
    /// Present when there is more.
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// The same page of something else.
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(f).collect(), has_more: self.has_more, next_cursor: self.next_cursor }
    }
}

/// The listing that a cursor belongs to.
#[derive(Clone, Copy)]
pub(super) struct Listing {
    pub name: &'static str,
    /// The project, or the resource, whose listing it is; none for one over all projects.
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

/// A checked request: how many rows, below which id.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub limit: usize,
    pub before: Option<[u8; 16]>,
}

impl Window {
    /// One row more than the page holds, to learn whether there is more.
    pub fn rows(&self) -> usize {
        self.limit + 1
    }
}

impl PageRequest {
    /// Checks the request; `Id` is the kind of id that `after` must be.
    pub(super) fn window<Id: FromStr>(
        &self,
        pepper: &Pepper,
        listing: Listing,
        bytes: impl Fn(Id) -> [u8; 16],
    ) -> Result<Window> {
        let limit = match self.limit {
            None => DEFAULT,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|_| (1..=MOST).contains(&limit))
                .ok_or_else(|| Error::invalid("limit", format!("'limit' is {limit}; it must be 1 to {MOST}.")))?,
        };
        let before = match (&self.cursor, &self.after) {
            (Some(_), Some(_)) => return Err(Error::invalid("after", "Give either 'cursor' or 'after', not both.")),
            (Some(cursor), None) => Some(listing.position(pepper, cursor).ok_or_else(bad_cursor)?),
            (None, Some(after)) => Some(after.parse().map(bytes).map_err(|_| bad_after(after))?),
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

fn bad_after(after: &str) -> Error {
    let shown = shorten(after);
    Error::invalid(
        "after",
        format!("'{shown}' is not an id of this listing. Pass on the id of the last item that you have."),
    )
}

/// Cuts up to `limit + 1` rows to a page.
pub(super) fn page<T>(
    pepper: &Pepper,
    listing: Listing,
    window: Window,
    mut items: Vec<T>,
    id: impl Fn(&T) -> [u8; 16],
) -> Page<T> {
    let has_more = items.len() > window.limit;
    items.truncate(window.limit);
    let last = items.last().filter(|_| has_more);
    let next_cursor = last.map(|item| listing.cursor(pepper, id(item)));
    Page { items, has_more, next_cursor }
}
