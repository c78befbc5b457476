//! Manifests of registries (<https://github.com/opencontainers/image-spec/blob/main/manifest.md>): which files a model has.
//!
//! Three kinds of artifacts are understood. Ollama's and Docker's name the purpose of a layer by its media type. Those of
//! ModelPack (<https://github.com/modelpack/model-spec>) and of ORAS name the layer's file by an annotation. Layers may also
//! be tar archives ([`registry_archive`](super::registry_archive)), which is all that is read of KitOps's artifacts.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::Deserialize;

use super::repository::is_usable;
use crate::catalog::is_sha256;
use outpost_common::display::{one_line, shorten};
use outpost_models::model_files::{is_gguf, is_hidden_path};

/// Max layers of an artifact, and max entries of an index.
const MAX_LAYERS: usize = 1024;
/// Annotations with the path of a layer's file.
const PATHS: [&str; 3] = ["org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title"];
const LICENSES: &str = "org.opencontainers.image.licenses";
/// Marks the entries of an index that are no artifacts but statements about one.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
const MAX_LICENSE_BYTES: u64 = 1 << 20;
/// Media types of GGUF files.
const GGUF: [&str; 4] = [
    "application/vnd.ollama.image.model",
    "application/vnd.docker.ai.gguf.v3",
    "application/vnd.docker.ai.model.file.v1+gguf",
    "application/vnd.cncf.model.weight.v1.gguf",
];
/// Media types of licenses.
const LICENSE: [&str; 2] = ["application/vnd.ollama.image.license", "application/vnd.docker.ai.license"];
/// Media types of what is not used with a GGUF file, and what it is.
const UNUSED: [(&str, &str); 7] = [
    ("application/vnd.ollama.image.template", "the registry's template"),
    ("application/vnd.ollama.image.system", "the system prompt"),
    ("application/vnd.ollama.image.params", "the default parameters"),
    ("application/vnd.ollama.image.messages", "the example messages"),
    ("application/vnd.ollama.image.projector", "the vision projector"),
    ("application/vnd.ollama.image.draft", "the draft model"),
    ("application/vnd.docker.ai.mmproj", "the vision projector"),
];
/// Media types without which the model would be another one, and why they cannot be used.
const REFUSED: [(&str, &str); 2] = [
    (
        "application/vnd.ollama.image.adapter",
        "it is a model with an adapter in Ollama's format, which is not supported",
    ),
    ("application/vnd.ollama.image.tensor", "its weights are safetensors in Ollama's format, which is not supported"),
];
/// Media types whose file needs no annotation.
const NAMED: [(&str, &str); 2] = [
    ("application/vnd.docker.ai.safetensors", "model.safetensors"),
    ("application/vnd.docker.ai.chat.template.jinja", "chat_template.jinja"),
];

/// An artifact, or an index of artifacts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Manifest {
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    annotations: Option<HashMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    annotations: Option<HashMap<String, String>>,
    platform: Option<Platform>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Platform {
    architecture: String,
    os: String,
}

/// The files of an artifact.
#[derive(Debug, Default)]
pub struct Artifact {
    pub(super) files: Vec<LayerFile>,
    /// The parts of it that are not used.
    pub(super) unused: Vec<&'static str>,
    /// Layers that are uncompressed tar archives.
    pub(super) archives: Vec<ArchiveLayer>,
    /// The media types of archives that cannot be read; each once.
    pub(super) unread: Vec<String>,
    pub(super) license: Option<String>,
}

/// A layer that is a file.
#[derive(Debug, PartialEq, Eq)]
pub struct LayerFile {
    pub(super) path: String,
    pub(super) bytes: u64,
    /// A sha256 in lower-case hex.
    pub(super) sha256: String,
}

/// A layer that is an archive.
#[derive(Debug, PartialEq, Eq)]
pub struct ArchiveLayer {
    /// One line of untrusted text.
    pub(super) media_type: String,
    /// The name that it has if it is a file instead.
    pub(super) path: Option<String>,
    pub(super) bytes: u64,
    /// A sha256 in lower-case hex.
    pub(super) sha256: String,
}

impl Manifest {
    /// # Errors
    /// Why the text is not a manifest.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text).map_err(|error| shorten(&one_line(&error.to_string())))?;
        let count = |list: &Option<Vec<Descriptor>>| list.as_ref().map_or(0, Vec::len);
        match (count(&manifest.layers), count(&manifest.manifests)) {
            (0, 0) => Err("its manifest has no layers".to_owned()),
            (layers, entries) if layers.max(entries) > MAX_LAYERS => {
                Err(format!("its manifest has more than {MAX_LAYERS} layers"))
            }
            _ => Ok(manifest),
        }
    }

    /// The digest of the artifact to take, if this is an index: the only one, or the one for this processor.
    ///
    /// # Errors
    /// If it has none, or several.
    pub fn entry(&self) -> Result<Option<String>, String> {
        let Some(entries) = self.manifests.as_deref().filter(|_| self.layers.is_none()) else { return Ok(None) };
        let is_artifact =
            |entry: &&Descriptor| !entry.annotations.as_ref().is_some_and(|it| it.contains_key(REFERENCE_TYPE));
        let entries: Vec<&Descriptor> = entries.iter().filter(is_artifact).collect();
        let machine = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let is_own = |entry: &&&Descriptor| {
            entry
                .platform
                .as_ref()
                .is_some_and(|it| it.architecture == machine && matches!(it.os.as_str(), "linux" | ""))
        };
        match (entries.as_slice(), entries.iter().find(is_own)) {
            (&[entry], _) | (_, Some(&entry)) => entry.sha256().map(|digest| Some(format!("sha256:{digest}"))),
            (several, None) => {
                let digests = several.iter().map(|entry| shorten(&entry.digest)).take(8).collect::<Vec<_>>().join(", ");
                Err(format!("it has {} artifacts; name one by its digest: {}", several.len(), one_line(&digests)))
            }
        }
    }

    /// The files of an artifact. `name`: for a GGUF file without a name.
    ///
    /// # Errors
    /// Why the model cannot be installed.
    pub fn artifact(&self, name: &str) -> Result<Artifact, String> {
        let license = self.annotations.as_ref().and_then(|it| it.get(LICENSES));
        let license = license.filter(|text| !text.trim().is_empty()).map(|text| shorten(&one_line(text)));
        let mut artifact = Artifact { license, ..Artifact::default() };
        let mut paths = Paths::default();
        self.layers.iter().flatten().try_for_each(|layer| artifact.add(layer, name, &mut paths))?;
        Ok(artifact)
    }
}

impl Artifact {
    fn add(&mut self, layer: &Descriptor, name: &str, paths: &mut Paths) -> Result<(), String> {
        let media_type = layer.media_type.as_str();
        let find = |list: &[(&'static str, &'static str)]| list.iter().find(|it| it.0 == media_type).map(|it| it.1);
        if let Some(why) = find(&REFUSED) {
            return Err(why.to_owned());
        }
        if let Some(what) = find(&UNUSED) {
            self.unused.push(what);
            return Ok(());
        }
        if is_compressed(media_type) {
            self.add_unread(shorten(&one_line(media_type)));
            return Ok(());
        }
        if is_archive(media_type) {
            let (media_type, sha256) = (shorten(&one_line(media_type)), layer.sha256()?.to_owned());
            let path = layer.path().map(str::to_owned);
            self.archives.push(ArchiveLayer { media_type, path, bytes: layer.size, sha256 });
            return Ok(());
        }
        let named = layer.path().map(str::to_owned);
        let path = match media_type {
            _ if GGUF.contains(&media_type) => {
                let named = named.filter(|path| is_gguf(Path::new(path)) && !is_hidden_path(path));
                Some(named.unwrap_or_else(|| paths.free(name, ".gguf")))
            }
            _ if LICENSE.contains(&media_type) => Some(paths.free("LICENSE", "")),
            _ => named.or_else(|| find(&NAMED).map(str::to_owned)),
        };
        match path.filter(|path| is_wanted(path, layer.size)) {
            Some(path) => {
                let sha256 = layer.sha256()?.to_owned();
                paths.taken.insert(path.clone());
                self.files.push(LayerFile { path, bytes: layer.size, sha256 });
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Notes the media type of an archive that cannot be read.
    pub(super) fn add_unread(&mut self, media_type: String) {
        if !self.unread.contains(&media_type) {
            self.unread.push(media_type);
        }
    }
}

/// The paths of the files that an artifact has so far.
#[derive(Default)]
struct Paths {
    taken: HashSet<String>,
    /// The number at which the next search of a free path begins, for each stem.
    numbers: HashMap<String, usize>,
}

impl Paths {
    /// `stem` and `ending`, with a number if an earlier file has that path.
    fn free(&mut self, stem: &str, ending: &str) -> String {
        let number = self.numbers.entry(stem.to_owned()).or_insert(1);
        loop {
            let path = match *number {
                1 => format!("{stem}{ending}"),
                number => format!("{stem}-{number}{ending}"),
            };
            if !self.taken.contains(&path) {
                return path;
            }
            *number += 1;
        }
    }
}

impl Descriptor {
    fn path(&self) -> Option<&str> {
        let annotations = self.annotations.as_ref()?;
        PATHS.iter().find_map(|name| annotations.get(*name)).map(String::as_str)
    }

    fn sha256(&self) -> Result<&str, String> {
        let digest = self.digest.strip_prefix("sha256:").filter(|digest| is_sha256(digest));
        digest.ok_or_else(|| format!("'{}' is not a sha256 digest", shorten(&one_line(&self.digest))))
    }
}

/// True for files with a usable path and size. A license that is too long is left out.
pub(super) fn is_wanted(path: &str, bytes: u64) -> bool {
    is_usable(path, Some(bytes)) && !(path.starts_with("LICENSE") && bytes > MAX_LICENSE_BYTES)
}

fn is_archive(media_type: &str) -> bool {
    media_type.ends_with(".tar") || media_type.ends_with("+tar")
}

fn is_compressed(media_type: &str) -> bool {
    ["+gzip", "+zstd", ".gzip", ".zstd"].iter().any(|ending| media_type.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(media_type: &str, size: u64, title: Option<(&str, &str)>) -> Value {
        let annotations = title.map(|(name, path)| json!({ name: path }));
        json!({ "mediaType": media_type, "digest": format!("sha256:{size:064x}"), "size": size, "annotations": annotations })
    }

    fn artifact(layers: &[Value]) -> Result<Artifact, String> {
        Manifest::parse(json!({ "schemaVersion": 2, "layers": layers }).to_string().as_bytes())?.artifact("m-1b")
    }

    fn files(artifact: &Artifact) -> Vec<(&str, u64)> {
        artifact.files.iter().map(|file| (file.path.as_str(), file.bytes)).collect()
    }

    #[test]
    fn layers_of_ollama_are_known_by_their_media_types() {
        let of = |kind: &str, size| layer(&format!("application/vnd.ollama.image.{kind}"), size, None);
        let found = artifact(&[of("model", 1), of("template", 2), of("license", 3), of("license", 4), of("params", 5)]);
        let found = found.unwrap();
        assert_eq!(files(&found), [("m-1b.gguf", 1), ("LICENSE", 3), ("LICENSE-2", 4)]);
        assert_eq!(found.unused, ["the registry's template", "the default parameters"]);
        assert!(artifact(&[of("model", 1), of("adapter", 2)]).unwrap_err().contains("adapter"));
        assert!(artifact(&[of("tensor", 1)]).unwrap_err().contains("safetensors in Ollama's format"));
    }

    #[test]
    fn every_license_gets_a_path_of_its_own() {
        let title = Some(("org.opencontainers.image.title", "LICENSE-2"));
        let mut layers = vec![layer("application/octet-stream", 1, title)];
        layers.resize_with(MAX_LAYERS, || layer("application/vnd.ollama.image.license", 2, None));
        let found = artifact(&layers).unwrap();
        let paths: Vec<&str> = found.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths[..4], ["LICENSE-2", "LICENSE", "LICENSE-3", "LICENSE-4"]);
        assert_eq!((paths.len(), paths[MAX_LAYERS - 1]), (MAX_LAYERS, "LICENSE-1024"));
    }

    #[test]
    fn layers_of_other_artifacts_are_files_with_the_annotated_paths() {
        let title = "org.opencontainers.image.title";
        let found = artifact(&[
            layer("application/vnd.docker.ai.gguf.v3", 1, None),
            layer("application/vnd.docker.ai.gguf.v3", 2, Some(("org.cncf.model.filepath", "a-Q8_0.gguf"))),
            layer("application/vnd.docker.ai.gguf.v3", 3, Some((title, "a.txt"))),
            layer(
                "application/vnd.cncf.model.weight.v1.raw",
                4,
                Some(("org.cncf.model.filepath", "model.safetensors")),
            ),
            layer("application/vnd.cncf.model.weight.v1.tar", 5, Some((title, "x.gguf"))),
            layer("application/vnd.cncf.model.weight.v1.tar+gzip", 6, None),
            layer("application/vnd.cncf.model.weight.v1.tar+gzip", 6, None),
            layer("application/vnd.oci.image.layer.v1.tar+zstd", 6, None),
            layer("application/octet-stream", 7, Some((title, "../evil.gguf"))),
            layer("application/octet-stream", u64::MAX, Some((title, "huge.gguf"))),
            layer("application/octet-stream", 8, None),
        ]);
        let found = found.unwrap();
        let expected = [("m-1b.gguf", 1), ("a-Q8_0.gguf", 2), ("m-1b-2.gguf", 3), ("model.safetensors", 4)];
        assert_eq!(files(&found), expected);
        let archives: Vec<_> = found.archives.iter().map(|it| (it.media_type.as_str(), it.bytes)).collect();
        assert_eq!(archives, [("application/vnd.cncf.model.weight.v1.tar", 5)]);
        let unread = ["application/vnd.cncf.model.weight.v1.tar+gzip", "application/vnd.oci.image.layer.v1.tar+zstd"];
        assert_eq!(found.unread, unread);
    }

    #[test]
    fn an_index_leads_to_one_artifact() {
        let entry = |size: u64, architecture: &str| {
            let platform = json!({ "os": "linux", "architecture": architecture });
            json!({ "digest": format!("sha256:{size:064x}"), "platform": platform })
        };
        let choose =
            |entries: &[Value]| Manifest::parse(json!({ "manifests": entries }).to_string().as_bytes())?.entry();
        let attested = json!({ "digest": "x", "annotations": { "vnd.docker.reference.type": "attestation-manifest" } });
        assert_eq!(choose(&[entry(1, "unknown"), attested]), Ok(Some(format!("sha256:{:064x}", 1))));
        let own = choose(&[entry(1, "s390x"), entry(2, "amd64"), entry(3, "arm64")]).unwrap().unwrap();
        assert!(own.ends_with(['2', '3']), "{own}");
        assert!(choose(&[entry(1, "a"), entry(2, "b")]).unwrap_err().contains("name one by its digest"));
        assert!(choose(&[json!({ "digest": "md5:1" })]).unwrap_err().contains("not a sha256"));
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let bad_digest = json!({ "mediaType": GGUF[0], "digest": "sha256:../../etc", "size": 1 });
        assert!(artifact(&[bad_digest]).unwrap_err().contains("not a sha256 digest"));
        assert!(artifact(&vec![json!({}); MAX_LAYERS + 1]).unwrap_err().contains("more than 1024 layers"));
        for bad in ["", "[]", "{}", "{\"layers\":[]}", "{\"layers\":{}}", "{\"layers\":[{\"size\":-1}]}"] {
            assert!(Manifest::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
