//! Files, in OpenAI's format.

use std::net::IpAddr;

use actix_web::body::SizedStream;
use actix_web::http::header;
use actix_web::web::{Bytes, Data, Payload};
use actix_web::{HttpRequest, HttpResponse, delete, get, post};
use futures_util::{TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::http::extractors::{ApiParams, ApiPath, lenient};
use crate::http::multipart::{Part, Parts};
use crate::http::resource_ids::parse_project_id;
use crate::http::response::{ApiResult, Deleted, Head, List};
use crate::http::{Api, authentication::Caller};
use crate::ids::{FileId, ProjectId};
use crate::service::access::Access;
use crate::service::files::upload::{self, CompletedUpload, MAX_FILE_BYTES};
use crate::service::files::{Content, File, NewFile, Purpose};
use crate::service::pagination::PageRequest;
use crate::spelling;
use crate::storage::content_chunks::CHUNK_BYTES;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(content).service(delete);
}

/// Max bytes of the other parts and the boundaries around a file.
const FRAME: u64 = 64 << 10;

/// The parts of an upload.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the form in /openapi.json; it is read part by part")]
pub struct UploadFile {
    /// JSON lines: `{"messages": […]}`, `{"prompt": …, "completion": …}`, `{"text": …}`, or
    /// `{"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}`.
    #[schema(value_type = String, format = Binary)]
    file: String,
    /// What the file is for: `fine-tune`, or `batch` for the requests of a batch. Their lines are checked when the batch is
    /// created.
    purpose: String,
    /// The project that owns the file; absent: the key's own project.
    project_id: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    /// The project to list; absent: the key's own project.
    project_id: Option<String>,
    /// Only files for this purpose.
    purpose: Option<String>,
    /// `desc`, the newest first, is the only order.
    #[param(inline)]
    order: Option<Order>,
    /// Max records per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    limit: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The last ID of the previous page, as OpenAI's clients send it.
    after: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Order {
    Desc,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct FileBody {
    project_id: String,
    /// The client's file name; only a label.
    filename: String,
    purpose: &'static str,
    bytes: u64,
    /// Number of training examples in the file.
    examples: u64,
    /// Format of the examples: `messages`, `prompt_completion`, `text` or `preference`; null for files of batches.
    example_format: Option<String>,
    /// SHA-256 of the content, in hexadecimal digits.
    sha256: String,
    /// Unix seconds, as in OpenAI's API.
    created_at: i64,
    /// Always null: files stay until they are deleted.
    expires_at: Option<i64>,
}

fn head(file: &File) -> Head<FileId> {
    Head { id: file.id, object: "file", state: Some("processed") }
}

fn body(file: File) -> FileBody {
    FileBody {
        project_id: file.project.to_string(),
        filename: file.name,
        purpose: file.purpose.as_str(),
        bytes: file.bytes,
        examples: file.examples,
        example_format: file.example_format,
        sha256: file.sha256,
        created_at: file.created_at.as_seconds(),
        expires_at: None,
    }
}

/// The fields of an upload read so far.
#[derive(Default)]
struct Form {
    file: Option<(String, CompletedUpload)>,
    purpose: Option<Purpose>,
    project: Option<ProjectId>,
    seen: Vec<String>,
}

impl Form {
    async fn read(parts: &mut Parts, access: &Access, address: Option<IpAddr>, api: &Api) -> Result<Self> {
        let mut form = Form::default();
        while let Some(part) = parts.next().await? {
            let name = shorten(part.name());
            if form.seen.contains(&name) {
                return Err(Error::invalid(name.clone(), format!("'{name}' is given more than once. Give it once.")));
            }
            match name.as_str() {
                "file" => form.file = Some(receive(part, access, address, (form.project, form.purpose), api).await?),
                "purpose" => form.purpose = Some(Purpose::of_upload(&part.text().await?)?),
                "project_id" => form.project = Some(parse_project_id(&part.text().await?)?),
                other => {
                    let problem = spelling::unknown_field(other, &["file", "purpose", "project_id"]);
                    return Err(Error::invalid(other, format!("'{other}' {problem}")));
                }
            }
            form.seen.push(name);
        }
        Ok(form)
    }

    fn finish(self) -> Result<(CompletedUpload, NewFile)> {
        let missing = |name: &str, what: &str| Error::invalid(name, format!("'{name}' is missing. Send {what}."));
        let (name, completed) = self.file.ok_or_else(|| missing("file", "the file as a part with a filename"))?;
        let purpose = self.purpose.ok_or_else(|| missing("purpose", "what the file is for: fine-tune or batch"))?;
        Ok((completed, NewFile { project: self.project, name, purpose }))
    }
}

/// Stores the content of the file as it arrives. `known`: the fields `project` and `purpose`, if they precede it.
async fn receive(
    mut part: Part,
    access: &Access,
    address: Option<IpAddr>,
    known: (Option<ProjectId>, Option<Purpose>),
    api: &Api,
) -> Result<(String, CompletedUpload)> {
    let name = part.file_name().ok_or_else(|| {
        Error::invalid("file", "'file' has no filename. Send it as a file, for example with -F file=@train.jsonl.")
    })?;
    let mut upload = api.services.files.begin(access, address, known, &name).await?;
    while let Some(bytes) = part.next().await? {
        upload.write(&bytes).await?;
    }
    Ok((name, upload.finish().await?))
}

/// Upload a file. Lines of training data are checked while they arrive.
#[utoipa::path(tag = "files", request_body(content = UploadFile, content_type = "multipart/form-data"),
    responses((status = 200, body = FileBody)))]
#[post("/files")]
async fn create(request: HttpRequest, caller: Caller, payload: Payload, api: Data<Api>) -> ApiResult {
    // An invalid idempotency key is rejected before the content is read.
    let caller = caller.with_idempotency_key(&request, &[])?;
    let address = api.proxies.client(&request);
    let mut parts = Parts::of(&request, payload, MAX_FILE_BYTES + FRAME, upload::too_large)?;
    let (arrived, new) = Form::read(&mut parts, &caller.access, address, &api).await?.finish()?;
    // The boundary differs between retries, so the parts themselves are compared.
    let same = serde_json::to_vec(&(arrived.sha256(), &new.name, new.purpose, new.project)).map_err(Error::internal)?;
    let caller = caller.with_idempotency_key(&request, &same)?;
    let file = api.services.files.create(&caller.access, arrived, new).await?;
    caller.reply(head(&file), body(file))
}

/// List a project's files, newest first.
#[utoipa::path(tag = "files", params(ListFiles), responses((status = 200, body = [FileBody])))]
#[get("/files")]
async fn list(caller: Caller, params: ApiParams<ListFiles>, api: Data<Api>) -> ApiResult {
    let ListFiles { project_id, purpose, order: None | Some(Order::Desc), limit, cursor, after } = params.0;
    let purpose = purpose.as_deref().map(Purpose::from_name).transpose()?;
    let project = project_id.as_deref().map(parse_project_id).transpose()?;
    let page = api.services.files.list(&caller.access, project, purpose, PageRequest { limit, cursor, after }).await?;
    let item = |file: File| caller.mount.item(head(&file), body(file));
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}

/// Read a file's metadata.
#[utoipa::path(tag = "files", params(("file_id" = String, Path)), responses((status = 200, body = FileBody)))]
#[get("/files/{file_id}")]
async fn get(caller: Caller, id: ApiPath<FileId>, api: Data<Api>) -> ApiResult {
    let file = api.services.files.get(&caller.access, id.0).await?;
    caller.reply(head(&file), body(file))
}

/// Read a file's content, byte for byte.
#[utoipa::path(tag = "files", params(("file_id" = String, Path)),
    responses((status = 200, body = String, content_type = "application/octet-stream")))]
#[get("/files/{file_id}/content")]
async fn content(caller: Caller, id: ApiPath<FileId>, api: Data<Api>) -> ApiResult {
    let content = api.services.files.content(&caller.access, id.0).await?;
    caller.room.reserve_for_stream(content.bytes.min(CHUNK_BYTES as u64)).await?;
    let bytes = content.bytes;
    let chunks = stream::try_unfold(content, |mut content: Content| async move {
        let chunk = content.next().await?;
        Ok::<_, Error>(chunk.map(|chunk| (Bytes::from(chunk), content)))
    });
    let chunks = chunks.inspect_err(|error| tracing::warn!(%error, "the content of a file broke off"));
    // Uploaded content must never be rendered as a page of this server.
    Ok(HttpResponse::Ok()
        .content_type("application/octet-stream")
        .insert_header((header::CONTENT_DISPOSITION, "attachment"))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(SizedStream::new(bytes, Box::pin(chunks))))
}

/// Delete a file.
#[utoipa::path(tag = "files", params(("file_id" = String, Path)), responses((status = 200, body = Deleted)))]
#[delete("/files/{file_id}")]
async fn delete(caller: Caller, id: ApiPath<FileId>, api: Data<Api>) -> ApiResult {
    let id = api.services.files.delete(&caller.access, id.0).await?;
    caller.reply(Head { id, object: "file", state: None }, Deleted { deleted: true })
}
