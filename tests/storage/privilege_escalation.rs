//! Managing keys never extends the caller's permissions.

use outpost::error::{Code, Result};
use outpost::ids::{KeyId, ProjectId};
use outpost::service::agents::{AgentFields, Agents};
use outpost::service::writes::idempotency::IdempotencyKey;
use outpost::service::writes::precondition::Precondition;
use outpost::service::{Access, Key, NewProject, PageRequest, Patch, Rotation, Scope, Scopes};
use outpost::storage::WriteTx;
use outpost::storage::keys;

use super::fixture::{Fixture, error_fields, new_key};

async fn rename(fixture: &Fixture, access: &Access, key: KeyId) -> Result<Key> {
    fixture.keys.update(access, key, "mine".into(), Patch::Keep).await
}

#[tokio::test]
async fn a_project_key_cannot_create_or_change_an_admin_key() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    let tenant = fixture.access(home, &["project", "inference"]).await;
    let expected = (Code::InsufficientScope, Some("scopes".into()));
    assert_eq!(error_fields(fixture.keys.create(&tenant, new_key(home, &["admin"])).await), expected);
    let admin = fixture.first.key.id;
    assert_eq!(error_fields(fixture.keys.rotate(&tenant, admin, Rotation::default()).await).0, Code::InsufficientScope);
    assert_eq!(error_fields(rename(&fixture, &tenant, admin).await).0, Code::InsufficientScope);
    assert_eq!(error_fields(fixture.keys.revoke(&tenant, admin).await).0, Code::InsufficientScope);
    assert_eq!(fixture.code(&fixture.first.secret).await, None);
}

#[tokio::test]
async fn a_key_with_few_models_cannot_grant_more() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    let mut new = new_key(home, &[]);
    new.models = Some(vec!["small".into()]);
    let (narrow, secret) = fixture.keys.create(&fixture.admin, new.clone()).await.unwrap();
    let secret = secret.unwrap();
    assert_eq!(narrow.fields.models, Some(vec!["small".into()]));
    let access = fixture.keys.authenticate(secret.expose()).await.unwrap();
    access.require_model("small").unwrap();
    assert_eq!(error_fields(access.require_model("large")).0, Code::ModelNotAllowed);
    // An omitted list is inherited. A given one must be within the caller's own.
    assert_eq!(fixture.keys.create(&access, new_key(home, &[])).await.unwrap().0.fields.models, narrow.fields.models);
    new.models = Some(vec!["small".into(), "large".into()]);
    assert_eq!(error_fields(fixture.keys.create(&access, new).await), (Code::InsufficientScope, Some("models".into())));
    let (wide, _) = fixture.key(home, &[]).await;
    assert_eq!(
        error_fields(fixture.keys.rotate(&access, wide.id, Rotation::default()).await).0,
        Code::InsufficientScope
    );
}

#[tokio::test]
async fn an_inference_key_cannot_manage_resources() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    let access = fixture.access(home, &["inference"]).await;
    access.require_model("any").unwrap();
    assert_eq!(
        error_fields(fixture.keys.create(&access, new_key(home, &["inference"])).await).0,
        Code::InsufficientScope
    );
    assert_eq!(error_fields(fixture.keys.revoke(&access, access.key()).await).0, Code::InsufficientScope);
    assert_eq!(error_fields(fixture.keys.list(&access, home, PageRequest::default()).await).0, Code::InsufficientScope);
    assert_eq!(error_fields(fixture.projects.create(&access, NewProject::default()).await).0, Code::InsufficientScope);
}

/// Changes the permissions of a key directly in the store, because the API has no request for it.
async fn set(fixture: &Fixture, key: KeyId, scopes: Scopes, models: Option<&[&str]>) {
    let models: Option<Vec<String>> = models.map(|models| models.iter().map(|model| (*model).into()).collect());
    let change = move |tx: &WriteTx| {
        let mut record = keys::find(tx, key)?.unwrap();
        (record.fields.scopes, record.fields.models) = (scopes, models.clone());
        keys::replace(tx, key, &record)
    };
    fixture.store.write(change).await.unwrap();
}

#[tokio::test]
async fn a_replay_requires_the_current_permission() {
    let [admin, project, inference] = Scope::ALL.map(|scope| Scopes::from_iter([scope]));
    let both = Scopes::DEFAULT;
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    let agents = Agents::new(fixture.store.clone(), fixture.clock.clone());
    let tenant = fixture.access(home, &["project", "inference"]).await;
    let claimed = |access: &Access, key: &str| {
        access.clone().with_idempotency_key(IdempotencyKey::new(access.key(), key, &[]).unwrap())
    };
    let agent = || AgentFields { name: Some("a".into()), ..AgentFields::default() };
    let change = || |old: AgentFields| AgentFields { instructions: Some("be brief".into()), ..old };
    let expected = || Precondition { version: None, if_match: None };
    let [making, changing, renaming, granting] = ["make", "change", "rename", "grant"].map(|key| claimed(&tenant, key));
    let created = agents.create(&making, None, agent()).await.unwrap();
    let changed = agents.update(&changing, created.id, change(), expected()).await.unwrap();
    let own = tenant.key();
    let renamed = rename(&fixture, &renaming, own).await.unwrap();
    let (granted, _) = fixture.keys.create(&granting, new_key(home, &["project"])).await.unwrap();
    let admins = fixture.access(home, &["admin"]).await;
    let (founding, moving) = (claimed(&admins, "found"), claimed(&admins, "move"));
    let founded = fixture.projects.create(&founding, NewProject { name: "n".into(), ..NewProject::default() });
    let founded = founded.await.unwrap();
    let moved = fixture.projects.replace(&moving, founded.id, "m".into(), None).await.unwrap();

    set(&fixture, own, inference, None).await;
    assert_eq!(error_fields(agents.create(&making, None, agent()).await).0, Code::InsufficientScope);
    assert_eq!(
        error_fields(agents.update(&changing, created.id, change(), expected()).await).0,
        Code::InsufficientScope
    );
    assert_eq!(error_fields(rename(&fixture, &renaming, own).await).0, Code::InsufficientScope);
    assert_eq!(
        error_fields(fixture.keys.create(&granting, new_key(home, &["project"])).await).0,
        Code::InsufficientScope
    );
    // With another idempotency key, the request is refused too, although the access is an old one.
    assert_eq!(error_fields(agents.create(&claimed(&tenant, "new"), None, agent()).await).0, Code::InsufficientScope);
    assert_eq!(error_fields(agents.create(&tenant, None, agent()).await).0, Code::InsufficientScope);
    // A key that can still manage keys, but can grant fewer permissions.
    set(&fixture, own, project, Some(&["small"])).await;
    assert_eq!(
        error_fields(fixture.keys.create(&granting, new_key(home, &["project"])).await).1,
        Some("models".into())
    );
    assert_eq!(agents.create(&making, None, agent()).await.unwrap(), created);
    set(&fixture, own, both, None).await;
    assert_eq!(agents.update(&changing, created.id, change(), expected()).await.unwrap(), changed);
    assert_eq!(rename(&fixture, &renaming, own).await.unwrap(), renamed);
    assert_eq!(fixture.keys.create(&granting, new_key(home, &["project"])).await.unwrap().0, granted);
    assert!(granting.idempotency_key().unwrap().is_replayed());

    set(&fixture, admins.key(), both, None).await;
    let again = || NewProject { name: "n".into(), ..NewProject::default() };
    assert_eq!(error_fields(fixture.projects.create(&founding, again()).await).0, Code::InsufficientScope);
    let again_moved = fixture.projects.replace(&moving, founded.id, "m".into(), None).await;
    assert_eq!(error_fields(again_moved).0, Code::ProjectMismatch);
    set(&fixture, admins.key(), admin, None).await;
    assert_eq!(fixture.projects.create(&founding, again()).await.unwrap(), founded);
    assert_eq!(fixture.projects.replace(&moving, founded.id, "m".into(), None).await.unwrap(), moved);
}

#[tokio::test]
async fn resources_of_other_projects_are_403_and_unknown_ones_404() {
    let fixture = Fixture::new().await;
    let tenant = fixture.access(fixture.project("mine").await.id, &[]).await;
    let other = fixture.project("theirs").await.id;
    let (foreign, _) = fixture.key(other, &[]).await;
    let rename = |id| fixture.projects.replace(&tenant, id, "x".into(), None);
    assert_eq!(error_fields(fixture.keys.get(&tenant, foreign.id).await).0, Code::ProjectMismatch);
    assert_eq!(error_fields(fixture.keys.revoke(&tenant, foreign.id).await).0, Code::ProjectMismatch);
    assert_eq!(error_fields(rename(other).await).0, Code::ProjectMismatch);
    let list = fixture.keys.list(&tenant, other, PageRequest::default()).await;
    assert_eq!(error_fields(list), (Code::ProjectMismatch, Some("project_id".into())));
    let (unknown_key, nothing) = (KeyId::from_bytes([1; 16]), ProjectId::from_bytes([1; 16]));
    assert_eq!(error_fields(fixture.keys.get(&tenant, unknown_key).await).0, Code::NotFound);
    assert_eq!(error_fields(rename(nothing).await).0, Code::NotFound);
    let created = fixture.keys.create(&fixture.admin, new_key(nothing, &[])).await;
    assert_eq!(error_fields(created), (Code::NotFound, Some("project_id".into())));
    let own = fixture.projects.list(&tenant, PageRequest::default()).await.unwrap();
    assert_eq!(own.items.iter().map(|project| project.id).collect::<Vec<_>>(), [tenant.project()]);
}

#[tokio::test]
async fn the_last_usable_admin_key_cannot_be_revoked() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    assert_eq!(error_fields(fixture.keys.revoke(&fixture.admin, fixture.first.key.id).await).0, Code::Conflict);
    let (second, _) = fixture.key(home, &["admin"]).await;
    fixture.keys.revoke(&fixture.admin, second.id).await.unwrap();
    assert_eq!(error_fields(fixture.keys.revoke(&fixture.admin, fixture.first.key.id).await).0, Code::Conflict);
    let (_, secret) = fixture.key(home, &["admin"]).await;
    fixture.keys.revoke(&fixture.admin, fixture.first.key.id).await.unwrap();
    assert_eq!(fixture.code(&secret).await, None);
}

#[tokio::test]
async fn a_revoked_key_cannot_finish_a_running_request() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    let thief = fixture.access(home, &[]).await;
    fixture.keys.revoke(&fixture.admin, thief.key()).await.unwrap();
    assert_eq!(error_fields(fixture.keys.create(&thief, new_key(home, &[])).await).0, Code::RevokedApiKey);
    let invented = Access::for_tests(KeyId::from_bytes([1; 16]), home, Scopes::ALL, None);
    assert_eq!(error_fields(fixture.keys.create(&invented, new_key(home, &[])).await).0, Code::InvalidApiKey);
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let fixture = Fixture::new().await;
    let home = fixture.first.project.id;
    for name in ["", "   ", "a\nb", &"x".repeat(257)] {
        let new = NewProject { name: name.into(), ..NewProject::default() };
        let expected = (Code::InvalidParameter, Some("name".into()));
        assert_eq!(error_fields(fixture.projects.create(&fixture.admin, new).await), expected);
    }
    for metadata in ["[]", "1", "{", &format!("{{\"a\":\"{}\"}}", "x".repeat(16 << 10))] {
        let new = NewProject { name: "x".into(), environment: None, metadata: Some(metadata.into()) };
        let expected = (Code::InvalidParameter, Some("metadata".into()));
        assert_eq!(error_fields(fixture.projects.create(&fixture.admin, new).await), expected);
    }
    let created = fixture.keys.create(&fixture.admin, new_key(home, &["project", "root"])).await;
    assert_eq!(error_fields(created), (Code::InvalidParameter, Some("scopes[1]".into())));
}
