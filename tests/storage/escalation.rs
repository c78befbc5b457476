//! Nobody gains by managing keys.

use outpost::error::Code;
use outpost::ids::{KeyId, ProjectId};
use outpost::service::{Access, Change, KeyChange, NewProject, PageRequest, ProjectSettings, Rotation, Scopes};

use super::world::{World, new_key, refusal};

fn rename() -> KeyChange {
    KeyChange { name: "mine".into(), expires_at: Change::Keep }
}

#[tokio::test]
async fn a_project_key_cannot_make_or_take_over_an_admin_key() {
    let world = World::new().await;
    let home = world.first.project.id;
    let tenant = world.access(home, &["project", "inference"]).await;
    let expected = (Code::InsufficientScope, Some("scopes".into()));
    assert_eq!(refusal(world.keys.create(&tenant, new_key(home, &["admin"])).await), expected);
    let admin = world.first.key.id;
    assert_eq!(refusal(world.keys.rotate(&tenant, admin, Rotation::default()).await).0, Code::InsufficientScope);
    assert_eq!(refusal(world.keys.update(&tenant, admin, rename()).await).0, Code::InsufficientScope);
    assert_eq!(refusal(world.keys.revoke(&tenant, admin).await).0, Code::InsufficientScope);
    assert_eq!(world.code(&world.first.secret).await, None);
}

#[tokio::test]
async fn a_key_for_few_models_cannot_reach_more() {
    let world = World::new().await;
    let home = world.first.project.id;
    let mut new = new_key(home, &[]);
    new.models = Some(vec!["small".into()]);
    let (narrow, secret) = world.keys.create(&world.admin, new.clone()).await.unwrap();
    let secret = secret.unwrap();
    assert_eq!(narrow.models, Some(vec!["small".into()]));
    let access = world.keys.authenticate(secret.expose()).await.unwrap();
    access.require_model("small").unwrap();
    assert_eq!(refusal(access.require_model("large")).0, Code::ModelNotAllowed);
    // Left out, the list is inherited; named, it must be within the caller's own.
    assert_eq!(world.keys.create(&access, new_key(home, &[])).await.unwrap().0.models, narrow.models);
    new.models = Some(vec!["small".into(), "large".into()]);
    assert_eq!(refusal(world.keys.create(&access, new).await), (Code::InsufficientScope, Some("models".into())));
    let (wide, _) = world.key(home, &[]).await;
    assert_eq!(refusal(world.keys.rotate(&access, wide.id, Rotation::default()).await).0, Code::InsufficientScope);
}

#[tokio::test]
async fn an_inference_key_manages_nothing() {
    let world = World::new().await;
    let home = world.first.project.id;
    let access = world.access(home, &["inference"]).await;
    access.require_model("any").unwrap();
    assert_eq!(refusal(world.keys.create(&access, new_key(home, &["inference"])).await).0, Code::InsufficientScope);
    assert_eq!(refusal(world.keys.revoke(&access, access.key()).await).0, Code::InsufficientScope);
    assert_eq!(refusal(world.keys.list(&access, home, PageRequest::default()).await).0, Code::InsufficientScope);
    assert_eq!(refusal(world.projects.create(&access, NewProject::default()).await).0, Code::InsufficientScope);
}

#[tokio::test]
async fn what_is_foreign_is_403_and_what_is_absent_is_404() {
    let world = World::new().await;
    let tenant = world.access(world.project("mine").await.id, &[]).await;
    let other = world.project("theirs").await.id;
    let (foreign, _) = world.key(other, &[]).await;
    let settings = ProjectSettings { name: "x".into(), environment: None };
    assert_eq!(refusal(world.keys.get(&tenant, foreign.id).await).0, Code::ProjectMismatch);
    assert_eq!(refusal(world.keys.revoke(&tenant, foreign.id).await).0, Code::ProjectMismatch);
    assert_eq!(refusal(world.projects.replace(&tenant, other, settings.clone()).await).0, Code::ProjectMismatch);
    let list = world.keys.list(&tenant, other, PageRequest::default()).await;
    assert_eq!(refusal(list), (Code::ProjectMismatch, Some("project_id".into())));
    let (nobody, nothing) = (KeyId::from_bytes([1; 16]), ProjectId::from_bytes([1; 16]));
    assert_eq!(refusal(world.keys.get(&tenant, nobody).await).0, Code::NotFound);
    assert_eq!(refusal(world.projects.replace(&tenant, nothing, settings).await).0, Code::NotFound);
    let created = world.keys.create(&world.admin, new_key(nothing, &[])).await;
    assert_eq!(refusal(created), (Code::NotFound, Some("project_id".into())));
    let own = world.projects.list(&tenant, PageRequest::default()).await.unwrap();
    assert_eq!(own.items.iter().map(|project| project.id).collect::<Vec<_>>(), [tenant.project()]);
}

#[tokio::test]
async fn the_last_usable_admin_key_cannot_be_revoked() {
    let world = World::new().await;
    let home = world.first.project.id;
    assert_eq!(refusal(world.keys.revoke(&world.admin, world.first.key.id).await).0, Code::Conflict);
    let (second, _) = world.key(home, &["admin"]).await;
    world.keys.revoke(&world.admin, second.id).await.unwrap();
    assert_eq!(refusal(world.keys.revoke(&world.admin, world.first.key.id).await).0, Code::Conflict);
    let (_, secret) = world.key(home, &["admin"]).await;
    world.keys.revoke(&world.admin, world.first.key.id).await.unwrap();
    assert_eq!(world.code(&secret).await, None);
}

#[tokio::test]
async fn a_revoked_key_cannot_finish_a_request_that_it_began() {
    let world = World::new().await;
    let home = world.first.project.id;
    let thief = world.access(home, &[]).await;
    world.keys.revoke(&world.admin, thief.key()).await.unwrap();
    assert_eq!(refusal(world.keys.create(&thief, new_key(home, &[])).await).0, Code::RevokedApiKey);
    let invented = Access::for_tests(KeyId::from_bytes([1; 16]), home, Scopes::ALL, None);
    assert_eq!(refusal(world.keys.create(&invented, new_key(home, &[])).await).0, Code::InvalidApiKey);
}

#[tokio::test]
async fn bad_fields_are_named() {
    let world = World::new().await;
    let home = world.first.project.id;
    for name in ["", "   ", "a\nb", &"x".repeat(257)] {
        let new = NewProject { name: name.into(), ..NewProject::default() };
        let expected = (Code::InvalidParameter, Some("name".into()));
        assert_eq!(refusal(world.projects.create(&world.admin, new).await), expected);
    }
    for metadata in ["[]", "1", "{", &format!("{{\"a\":\"{}\"}}", "x".repeat(16 << 10))] {
        let new = NewProject { name: "x".into(), environment: None, metadata: Some(metadata.into()) };
        let expected = (Code::InvalidParameter, Some("metadata".into()));
        assert_eq!(refusal(world.projects.create(&world.admin, new).await), expected);
    }
    let created = world.keys.create(&world.admin, new_key(home, &["project", "root"])).await;
    assert_eq!(refusal(created), (Code::InvalidParameter, Some("scopes[1]".into())));
}
