//! Images that are stored for a limited time.

use std::time::Duration;

use outpost::error::Code;
use outpost::ids::{ProjectId, StoredImageId};
use outpost::service::Access;
use outpost::service::stored_images::{Format, SignedUrl, StoredImages};
use outpost::storage::limits::{self, LimitsRecord, Quotas};
use outpost::storage::quota_usage;

use super::fixture::{Fixture, error_fields};

const HOUR: Duration = Duration::from_secs(3600);
/// The time between the expiry of a URL and the removal of its image.
const GRACE: Duration = Duration::from_secs(300);

fn images(fixture: &Fixture) -> StoredImages {
    StoredImages::new(fixture.store.clone(), fixture.clock.clone(), HOUR)
}

async fn create_project(fixture: &Fixture) -> (ProjectId, Access) {
    let project = fixture.project("painter").await.id;
    (project, fixture.access(project, &["inference"]).await)
}

async fn quota_usage_of(fixture: &Fixture, project: ProjectId) -> u64 {
    fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap().bytes
}

async fn read_content(images: &StoredImages, link: &SignedUrl) -> Result<(Format, Vec<u8>), outpost::error::Error> {
    let mut image = images.open(link.id, &link.expires.to_string(), &link.signature).await?;
    let mut content_bytes = Vec::new();
    while let Some(chunk) = image.next().await? {
        content_bytes.extend(chunk);
    }
    assert_eq!(content_bytes.len() as u64, image.bytes);
    Ok((image.format, content_bytes))
}

#[tokio::test]
async fn a_stored_image_is_returned_byte_for_byte_and_counts_towards_the_quota() {
    let fixture = Fixture::new().await;
    let (images, (project, access)) = (images(&fixture), create_project(&fixture).await);
    // Several chunks, the last one incomplete.
    let file: Vec<u8> = (0..1_300_000_u32).map(|at| (at % 253) as u8).collect();
    let link = images.store(&access, Format::WebP, file.clone()).await.unwrap();
    assert_eq!(read_content(&images, &link).await.unwrap(), (Format::WebP, file.clone()));
    assert_eq!(quota_usage_of(&fixture, project).await, file.len() as u64);
    let report = fixture.store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["stored_images"], report.records["stored_image_chunks"]), (1, 3));
}

#[tokio::test]
async fn a_signed_url_expires_and_its_image_is_swept_later() {
    let fixture = Fixture::new().await;
    let (images, (project, access)) = (images(&fixture), create_project(&fixture).await);
    let early = images.store(&access, Format::Png, vec![1; 700_000]).await.unwrap();
    fixture.clock.pass(HOUR / 2);
    let late = images.store(&access, Format::Png, vec![2; 10]).await.unwrap();
    fixture.clock.pass(HOUR / 2 - Duration::from_secs(1));
    let mut started = images.open(early.id, &early.expires.to_string(), &early.signature).await.unwrap();
    assert!(started.left <= Duration::from_secs(1));
    fixture.clock.pass(Duration::from_secs(1));
    assert_eq!(error_fields(read_content(&images, &early).await).0, Code::NotFound);
    assert_eq!(images.sweep().await.unwrap(), 0);
    assert!(started.next().await.unwrap().is_some(), "a download that began in time completes");
    fixture.clock.pass(GRACE);
    assert_eq!(images.sweep().await.unwrap(), 1);
    assert_eq!(quota_usage_of(&fixture, project).await, 10);
    read_content(&images, &late).await.unwrap();
    fixture.clock.pass(HOUR);
    assert_eq!(images.sweep().await.unwrap(), 1);
    assert_eq!(quota_usage_of(&fixture, project).await, 0);
    let report = fixture.store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    for table in ["stored_images", "stored_image_chunks", "stored_images_by_expiry"] {
        assert_eq!(report.records[table], 0, "{table}");
    }
}

#[tokio::test]
async fn several_batches_of_images_are_swept() {
    let fixture = Fixture::new().await;
    let (images, (project, access)) = (images(&fixture), create_project(&fixture).await);
    for _ in 0..150 {
        images.store(&access, Format::Jpeg, vec![3; 5]).await.unwrap();
    }
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!((images.sweep().await.unwrap(), quota_usage_of(&fixture, project).await), (150, 0));
}

#[tokio::test]
async fn signed_urls_survive_a_restart_and_still_expire() {
    let fixture = Fixture::new().await;
    let (project, access) = create_project(&fixture).await;
    let link = images(&fixture).store(&access, Format::Png, vec![7; 100]).await.unwrap();
    let fixture = fixture.restart(false).await;
    assert_eq!(read_content(&images(&fixture), &link).await.unwrap().1, [7; 100]);
    fixture.clock.pass(HOUR + GRACE);
    let fixture = fixture.restart(true).await;
    assert_eq!(error_fields(read_content(&images(&fixture), &link).await).0, Code::NotFound);
    assert_eq!(images(&fixture).sweep().await.unwrap(), 1);
    assert_eq!(quota_usage_of(&fixture, project).await, 0);
}

#[tokio::test]
async fn a_forged_url_opens_nothing() {
    let fixture = Fixture::new().await;
    let (images, (_, access)) = (images(&fixture), create_project(&fixture).await);
    let link = images.store(&access, Format::Png, vec![1]).await.unwrap();
    let other = images.store(&access, Format::Png, vec![2]).await.unwrap();
    let expires = link.expires.to_string();
    let later = (link.expires + 1).to_string();
    let mut flipped = link.signature.clone().into_bytes();
    flipped[5] = if flipped[5] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    let unknown_image = StoredImageId::from_bytes([9; 16]);
    let cases = [
        (link.id, expires.as_str(), flipped.as_str()),
        (link.id, &expires, ""),
        (link.id, &expires, &link.signature[..42]),
        (link.id, &expires, other.signature.as_str()),
        (other.id, &expires, &link.signature),
        (unknown_image, &expires, &link.signature),
        (link.id, &later, &link.signature),
        (link.id, "", &link.signature),
        (link.id, "never", &link.signature),
        // The same number, written differently.
        (link.id, &format!("+{expires}"), &link.signature),
        (link.id, &format!("0{expires}"), &link.signature),
    ];
    for (id, expires, signature) in cases {
        let refused = error_fields(images.open(id, expires, signature).await.map(drop));
        assert_eq!(refused.0, Code::InvalidSignature, "{id} {expires} {signature}");
    }
    // Another installation has another pepper.
    let other_fixture = Fixture::new().await;
    let other_images = self::images(&other_fixture);
    assert_eq!(
        error_fields(other_images.open(link.id, &expires, &link.signature).await.map(drop)).0,
        Code::InvalidSignature
    );
}

#[tokio::test]
async fn a_project_cannot_store_more_than_its_quota() {
    let fixture = Fixture::new().await;
    let (images, (project, access)) = (images(&fixture), create_project(&fixture).await);
    let record = LimitsRecord { quotas: Quotas { bytes: Some(100), ..Quotas::default() }, ..LimitsRecord::default() };
    fixture.store.write(move |tx| limits::put(tx, project, &record)).await.unwrap();
    images.admit(&access).await.unwrap();
    images.store(&access, Format::Png, vec![1; 60]).await.unwrap();
    assert_eq!(error_fields(images.store(&access, Format::Png, vec![1; 60]).await).0, Code::InsufficientQuota);
    images.store(&access, Format::Png, vec![1; 40]).await.unwrap();
    assert_eq!(error_fields(images.admit(&access).await).0, Code::InsufficientQuota);
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!(images.sweep().await.unwrap(), 2);
    images.admit(&access).await.unwrap();
    assert!(fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn an_archived_project_cannot_store_images() {
    let fixture = Fixture::new().await;
    let (images, (project, access)) = (images(&fixture), create_project(&fixture).await);
    let link = images.store(&access, Format::Png, vec![1]).await.unwrap();
    fixture.projects.archive(&fixture.admin, project).await.unwrap();
    assert_eq!(error_fields(images.store(&access, Format::Png, vec![1]).await).0, Code::Conflict);
    read_content(&images, &link).await.unwrap();
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!((images.sweep().await.unwrap(), quota_usage_of(&fixture, project).await), (1, 0));
}
