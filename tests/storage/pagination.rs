//! Pages neither repeat nor skip rows during changes, and cursors cannot be forged or used for another list.

use std::collections::HashSet;
use std::time::Duration;

use outpost::error::Code;
use outpost::service::{Audit, AuditFilter, PageRequest};

use super::fixture::{Fixture, error_fields};

fn page(limit: i64, cursor: Option<String>) -> PageRequest {
    PageRequest { limit: Some(limit), cursor, after: None }
}

#[tokio::test]
async fn pages_neither_repeat_nor_skip_while_keys_are_added() {
    let fixture = Fixture::new().await;
    let project = fixture.project("paged").await.id;
    let mut created = Vec::new();
    for _ in 0..7 {
        fixture.clock.pass(Duration::from_millis(1));
        created.push(fixture.key(project, &[]).await.0.id);
    }
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let found = fixture.keys.list(&fixture.admin, project, page(3, cursor)).await.unwrap();
        assert_eq!(found.has_more, found.next_cursor.is_some());
        listed.extend(found.items.iter().map(|key| key.id));
        fixture.clock.pass(Duration::from_millis(1));
        fixture.key(project, &[]).await;
        cursor = found.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    created.reverse();
    assert_eq!(listed, created);
}

#[tokio::test]
async fn a_plain_id_is_accepted_as_a_cursor() {
    let fixture = Fixture::new().await;
    let project = fixture.project("paged").await.id;
    let older = fixture.key(project, &[]).await.0.id;
    fixture.clock.pass(Duration::from_millis(1));
    let newer = fixture.key(project, &[]).await.0.id;
    let request = |after: String| PageRequest { after: Some(after), ..PageRequest::default() };
    let found = fixture.keys.list(&fixture.admin, project, request(newer.to_string())).await.unwrap();
    assert_eq!(found.items.iter().map(|key| key.id).collect::<Vec<_>>(), [older]);
    let bad = fixture.keys.list(&fixture.admin, project, request("key_1".into())).await;
    assert_eq!(error_fields(bad), (Code::InvalidParameter, Some("after".into())));
}

#[tokio::test]
async fn a_limit_out_of_range_is_refused() {
    let fixture = Fixture::new().await;
    for limit in [0, -1, 101, i64::MAX] {
        let listed = fixture.projects.list(&fixture.admin, page(limit, None)).await;
        assert_eq!(error_fields(listed), (Code::InvalidParameter, Some("limit".into())));
    }
}

#[tokio::test]
async fn a_cursor_of_another_list_or_a_broken_one_is_refused() {
    let fixture = Fixture::new().await;
    let (one, other) = (fixture.project("one").await.id, fixture.project("other").await.id);
    for project in [one, one, other, other] {
        fixture.key(project, &[]).await;
    }
    let cursor = fixture.keys.list(&fixture.admin, one, page(1, None)).await.unwrap().next_cursor.unwrap();
    let expected = (Code::InvalidParameter, Some("cursor".to_owned()));
    let foreign = fixture.keys.list(&fixture.admin, other, page(1, Some(cursor.clone()))).await;
    assert_eq!(error_fields(foreign), expected);
    let audit = Audit::new(fixture.store.clone());
    let filter = AuditFilter { project: Some(one), ..AuditFilter::default() };
    assert_eq!(error_fields(audit.list(&fixture.admin, filter, page(1, Some(cursor.clone()))).await), expected);
    let mut broken: HashSet<String> = ["", "x", "é"].map(str::to_owned).into();
    broken.insert(cursor.to_uppercase() + "A");
    for at in 0..cursor.len() {
        let mut text = cursor.clone().into_bytes();
        text[at] = if text[at] == b'0' { b'1' } else { b'0' };
        broken.insert(String::from_utf8(text).unwrap());
    }
    for cursor in broken {
        assert_eq!(error_fields(fixture.keys.list(&fixture.admin, one, page(1, Some(cursor))).await), expected);
    }
}
