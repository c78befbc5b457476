//! A test folder with a fake pip, a fake npm and their packages, and functions that build catalogs.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use outpost_hub::catalog::progress::Silent;
use outpost_hub::catalog::{Catalog, PullError, PullOptions, Pulled, pull_with};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use crate::script::write_script;

/// A fake pip. It serves the wheels in its folder. If `NAME.fail` exists, it fails with the text of that file. It logs
/// every download to `calls`.
const FAKE_PIP: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ "$1" = --version ] && exit 0
while [ $# -gt 1 ]; do [ "$1" = -d ] && to=$2; shift; done
name=${1%%==*}
echo "$1" >> "$here/calls"
[ -f "$here/$name.fail" ] && { cat "$here/$name.fail" >&2; exit 1; }
cp "$here/$name.whl" "$TMPDIR/half" && cp "$here/$name.whl" "$to/$name-1.0-py3-none-any.whl"
"#;

/// A fake npm, which serves the tarballs in the same way.
const FAKE_NPM: &str = r#"#!/bin/sh
here=$(dirname "$0")
[ "$1" = --version ] && exit 0
for argument; do
  case $argument in
    --pack-destination=*) to=${argument#*=} ;;
    --cache=*) cache=${argument#*=} ;;
    --ignore-scripts) safe=yes ;;
  esac
done
[ "$safe" = yes ] || exit 7
echo "$argument" >> "$here/calls"
name=$(echo "${argument%@*}" | tr -d @/)
[ -f "$here/$name.fail" ] && { cat "$here/$name.fail" >&2; exit 1; }
cp "$here/$name.tgz" "$cache/half" && cp "$here/$name.tgz" "$to/$name-1.0.tgz"
"#;

pub struct TestBench {
    dir: TempDir,
}

impl TestBench {
    pub fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(bench.pip_dir()).unwrap();
        fs::create_dir(bench.models()).unwrap();
        for (name, script) in [("pip", FAKE_PIP), ("npm", FAKE_NPM)] {
            write_script(&bench.pip_dir().join(name), script);
        }
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn models(&self) -> PathBuf {
        self.path("models")
    }

    pub fn pip_dir(&self) -> PathBuf {
        self.path("pip")
    }

    /// Adds a wheel to the fake index.
    pub fn wheel(&self, package: &str, entries: &[(&str, &[u8])]) {
        fs::write(self.pip_dir().join(format!("{package}.whl")), zip_of(entries)).unwrap();
    }

    /// Adds an npm package to the fake registry. The name is that of the package without `@` and `/`.
    pub fn tarball(&self, package: &str, tar: &[u8]) {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(tar).unwrap();
        fs::write(self.pip_dir().join(format!("{package}.tgz")), packed.finish().unwrap()).unwrap();
    }

    pub fn fail(&self, package: &str, text: &str) {
        fs::write(self.pip_dir().join(format!("{package}.fail")), text).unwrap();
    }

    pub fn repair(&self, package: &str) {
        fs::remove_file(self.pip_dir().join(format!("{package}.fail"))).unwrap();
    }

    /// The downloads since the last call, in order.
    pub fn calls(&self) -> Vec<String> {
        let path = self.pip_dir().join("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, "").unwrap();
        text.lines().map(str::to_owned).collect()
    }

    pub fn options(&self) -> PullOptions {
        let program = |name: &str| Some(self.pip_dir().join(name).display().to_string());
        PullOptions { pip: program("pip"), npm: program("npm"), verify: false }
    }

    pub fn pull(&self, catalog: &Catalog) -> Result<Pulled, PullError> {
        self.pull_with(catalog, &self.options())
    }

    pub fn pull_with(&self, catalog: &Catalog, options: &PullOptions) -> Result<Pulled, PullError> {
        pull_with(&catalog.models()[0], &self.models(), options, &mut Silent)
    }

    /// Writes a model folder with these files.
    pub fn model(&self, name: &str, files: &[(&str, &[u8])]) -> PathBuf {
        write_folder(&self.models().join(name), files)
    }
}

pub fn write_folder(dir: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    dir.to_owned()
}

pub fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// A file entry of a catalog, as TOML.
pub fn file(name: &str, bytes: &[u8]) -> String {
    format!("{{ name = \"{name}\", bytes = {}, sha256 = \"{}\" }}", bytes.len(), sha256(bytes))
}

/// A part entry of a catalog, as TOML.
pub fn part(package: &str, entry: &str, bytes: usize) -> String {
    format!("{{ package = \"{package}\", version = \"1.0\", entry = \"{entry}\", bytes = {bytes} }}")
}

/// A catalog with one model `m`. A source is its parts and further TOML lines.
pub fn catalog(files: &[String], sources: &[(Vec<String>, &str)]) -> Catalog {
    let head = "[[model]]\nname = \"m\"\ndescription = \"d\"\nlicense = \"l\"\n";
    let mut text = format!("{head}files = [{}]\n", files.join(", "));
    for (parts, more) in sources {
        text += &format!("[[model.source]]\nkind = \"pypi\"\nparts = [{}]\n{more}\n", parts.join(", "));
    }
    Catalog::parse(&text).unwrap()
}

/// All files below a folder with their content, sorted.
pub fn tree(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name().into_string().unwrap());
        match path.is_dir() {
            true => found.extend(tree(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes))),
            false => found.push((name, fs::read(path).unwrap())),
        }
    }
    found.sort();
    found
}
