//! Pictures that are kept for a while.

use std::time::Duration;

use outpost::error::Code;
use outpost::ids::{ProjectId, StoredImageId};
use outpost::service::Access;
use outpost::service::stored_images::{Format, SignedUrl, StoredImages};
use outpost::storage::limits::{self, LimitsRecord, Quotas};
use outpost::storage::quota_usage;

use super::fixture::{Fixture, refusal};

const HOUR: Duration = Duration::from_secs(3600);
/// Until a picture whose link has ended may be removed.
const GRACE: Duration = Duration::from_secs(300);

fn pictures(fixture: &Fixture) -> StoredImages {
    StoredImages::new(fixture.store.clone(), fixture.clock.clone(), HOUR)
}

async fn tenant(fixture: &Fixture) -> (ProjectId, Access) {
    let project = fixture.project("painter").await.id;
    (project, fixture.access(project, &["inference"]).await)
}

async fn held(fixture: &Fixture, project: ProjectId) -> u64 {
    fixture.store.read(move |tx| quota_usage::of(tx, project)).await.unwrap().bytes
}

async fn content(pictures: &StoredImages, link: &SignedUrl) -> Result<(Format, Vec<u8>), outpost::error::Error> {
    let mut kept = pictures.open(link.id, &link.expires.to_string(), &link.signature).await?;
    let mut all = Vec::new();
    while let Some(chunk) = kept.next().await? {
        all.extend(chunk);
    }
    assert_eq!(all.len() as u64, kept.bytes);
    Ok((kept.format, all))
}

#[tokio::test]
async fn a_kept_picture_comes_back_byte_for_byte_and_weighs_on_its_project() {
    let fixture = Fixture::new().await;
    let (pictures, (project, access)) = (pictures(&fixture), tenant(&fixture).await);
    // Several chunks and a rest.
    let file: Vec<u8> = (0..1_300_000_u32).map(|at| (at % 253) as u8).collect();
    let link = pictures.store(&access, Format::WebP, file.clone()).await.unwrap();
    assert_eq!(content(&pictures, &link).await.unwrap(), (Format::WebP, file.clone()));
    assert_eq!(held(&fixture, project).await, file.len() as u64);
    let report = fixture.store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["pictures"], report.records["picture_chunks"]), (1, 3));
}

#[tokio::test]
async fn a_link_ends_in_time_and_its_picture_is_swept_a_little_later() {
    let fixture = Fixture::new().await;
    let (pictures, (project, access)) = (pictures(&fixture), tenant(&fixture).await);
    let early = pictures.store(&access, Format::Png, vec![1; 700_000]).await.unwrap();
    fixture.clock.pass(HOUR / 2);
    let late = pictures.store(&access, Format::Png, vec![2; 10]).await.unwrap();
    fixture.clock.pass(HOUR / 2 - Duration::from_secs(1));
    let mut begun = pictures.open(early.id, &early.expires.to_string(), &early.signature).await.unwrap();
    assert!(begun.left <= Duration::from_secs(1));
    fixture.clock.pass(Duration::from_secs(1));
    assert_eq!(refusal(content(&pictures, &early).await).0, Code::NotFound);
    assert_eq!(pictures.sweep().await.unwrap(), 0);
    assert!(begun.next().await.unwrap().is_some(), "who began in time gets it whole");
    fixture.clock.pass(GRACE);
    assert_eq!(pictures.sweep().await.unwrap(), 1);
    assert_eq!(held(&fixture, project).await, 10);
    content(&pictures, &late).await.unwrap();
    fixture.clock.pass(HOUR);
    assert_eq!(pictures.sweep().await.unwrap(), 1);
    assert_eq!(held(&fixture, project).await, 0);
    let report = fixture.store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    for table in ["pictures", "picture_chunks", "pictures_by_end"] {
        assert_eq!(report.records[table], 0, "{table}");
    }
}

#[tokio::test]
async fn more_than_one_round_of_pictures_is_swept() {
    let fixture = Fixture::new().await;
    let (pictures, (project, access)) = (pictures(&fixture), tenant(&fixture).await);
    for _ in 0..150 {
        pictures.store(&access, Format::Jpeg, vec![3; 5]).await.unwrap();
    }
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!((pictures.sweep().await.unwrap(), held(&fixture, project).await), (150, 0));
}

#[tokio::test]
async fn links_hold_over_a_restart_and_end_there_too() {
    let fixture = Fixture::new().await;
    let (project, access) = tenant(&fixture).await;
    let link = pictures(&fixture).store(&access, Format::Png, vec![7; 100]).await.unwrap();
    let fixture = fixture.restart(false).await;
    assert_eq!(content(&pictures(&fixture), &link).await.unwrap().1, [7; 100]);
    fixture.clock.pass(HOUR + GRACE);
    let fixture = fixture.restart(true).await;
    assert_eq!(refusal(content(&pictures(&fixture), &link).await).0, Code::NotFound);
    assert_eq!(pictures(&fixture).sweep().await.unwrap(), 1);
    assert_eq!(held(&fixture, project).await, 0);
}

#[tokio::test]
async fn a_link_that_is_not_ours_opens_nothing() {
    let fixture = Fixture::new().await;
    let (pictures, (_, access)) = (pictures(&fixture), tenant(&fixture).await);
    let link = pictures.store(&access, Format::Png, vec![1]).await.unwrap();
    let other = pictures.store(&access, Format::Png, vec![2]).await.unwrap();
    let expires = link.expires.to_string();
    let later = (link.expires + 1).to_string();
    let mut flipped = link.signature.clone().into_bytes();
    flipped[5] = if flipped[5] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    let nobody = StoredImageId::from_bytes([9; 16]);
    let cases = [
        (link.id, expires.as_str(), flipped.as_str()),
        (link.id, &expires, ""),
        (link.id, &expires, &link.signature[..42]),
        (link.id, &expires, other.signature.as_str()),
        (other.id, &expires, &link.signature),
        (nobody, &expires, &link.signature),
        (link.id, &later, &link.signature),
        (link.id, "", &link.signature),
        (link.id, "never", &link.signature),
        // The same number in another spelling.
        (link.id, &format!("+{expires}"), &link.signature),
        (link.id, &format!("0{expires}"), &link.signature),
    ];
    for (id, expires, signature) in cases {
        let refused = refusal(pictures.open(id, expires, signature).await.map(drop));
        assert_eq!(refused.0, Code::InvalidSignature, "{id} {expires} {signature}");
    }
    // Another installation signs with another pepper.
    let elsewhere = Fixture::new().await;
    let theirs = self::pictures(&elsewhere);
    assert_eq!(refusal(theirs.open(link.id, &expires, &link.signature).await.map(drop)).0, Code::InvalidSignature);
}

#[tokio::test]
async fn a_project_keeps_no_more_than_its_quota() {
    let fixture = Fixture::new().await;
    let (pictures, (project, access)) = (pictures(&fixture), tenant(&fixture).await);
    let record = LimitsRecord { quotas: Quotas { bytes: Some(100), ..Quotas::default() }, ..LimitsRecord::default() };
    fixture.store.write(move |tx| limits::put(tx, project, &record)).await.unwrap();
    pictures.admit(&access).await.unwrap();
    pictures.store(&access, Format::Png, vec![1; 60]).await.unwrap();
    assert_eq!(refusal(pictures.store(&access, Format::Png, vec![1; 60]).await).0, Code::InsufficientQuota);
    pictures.store(&access, Format::Png, vec![1; 40]).await.unwrap();
    assert_eq!(refusal(pictures.admit(&access).await).0, Code::InsufficientQuota);
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!(pictures.sweep().await.unwrap(), 2);
    pictures.admit(&access).await.unwrap();
    assert!(fixture.store.verify().unwrap().is_clean());
}

#[tokio::test]
async fn an_archived_project_keeps_nothing_new() {
    let fixture = Fixture::new().await;
    let (pictures, (project, access)) = (pictures(&fixture), tenant(&fixture).await);
    let link = pictures.store(&access, Format::Png, vec![1]).await.unwrap();
    fixture.projects.archive(&fixture.admin, project).await.unwrap();
    assert_eq!(refusal(pictures.store(&access, Format::Png, vec![1]).await).0, Code::Conflict);
    content(&pictures, &link).await.unwrap();
    fixture.clock.pass(HOUR + GRACE + Duration::from_secs(1));
    assert_eq!((pictures.sweep().await.unwrap(), held(&fixture, project).await), (1, 0));
}
