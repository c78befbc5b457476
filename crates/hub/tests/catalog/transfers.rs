use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outpost_hub::catalog::progress::Silent;
use outpost_hub::catalog::{ImportOptions, TransferError, export, import, models_on_disk};
use outpost_testing::fixtures::fixture;
use outpost_testing::split_gguf;

use crate::support::{TestBench, tree, write_folder};
use crate::tiny_model::{self, TinyModel};

/// Creates something that is not a regular file at a path.
type Make<'m> = &'m dyn Fn(&Path);

/// Names and contents of files.
type Files<'f> = &'f [(&'f str, &'f [u8])];

fn plain() -> ImportOptions {
    ImportOptions::default()
}

fn import_with_name(name: &str) -> ImportOptions {
    ImportOptions { name: Some(name.into()), force: false }
}

#[test]
fn an_exported_model_can_be_imported() {
    let bench = TestBench::new();
    let large = vec![42; 300_000];
    let source =
        bench.model("m-1.0", &[("model.safetensors", &large), ("1_Pooling/config.json", b"{}"), (".git/x", b"no")]);
    let tar = bench.path("m.tar");
    let exported = export(&bench.models(), "m-1.0", &tar, &mut Silent).unwrap();
    assert_eq!(exported.bytes, 300_002);
    let other = bench.path("other");
    let imported = import(&other, &tar, &plain(), &mut Silent).unwrap();
    assert_eq!((imported.name.as_str(), imported.bytes), ("m-1.0", 300_002));
    fs::remove_dir_all(source.join(".git")).unwrap();
    assert_eq!(tree(&imported.path), tree(&source));
    let again = import(&bench.models(), &tar, &import_with_name("copy"), &mut Silent).unwrap();
    assert_eq!(tree(&again.path), tree(&source));
}

#[test]
fn an_export_is_readable_by_tar_and_overwrites_nothing() {
    let bench = TestBench::new();
    bench.model("m", &[("w.gguf", b"GGUF"), ("empty.json", b"")]);
    let exported = export(&bench.models(), "m", &bench.path(""), &mut Silent).unwrap();
    assert_eq!(exported.path, bench.path("m.tar"));
    let mut names = Vec::new();
    for entry in tar::Archive::new(fs::File::open(&exported.path).unwrap()).entries().unwrap() {
        names.push(entry.unwrap().path().unwrap().display().to_string());
    }
    assert_eq!(names, ["manifest.json", "files/empty.json", "files/w.gguf"]);
    let error = export(&bench.models(), "m", &exported.path, &mut Silent).unwrap_err();
    assert!(matches!(error, TransferError::FileExists(_)), "{error}");
    for absent in ["n", "../m", ".pull"] {
        let error = export(&bench.models(), absent, &bench.path("n.tar"), &mut Silent).unwrap_err();
        assert!(matches!(error, TransferError::NoModel(_)), "{error}");
    }
}

#[test]
fn settings_of_a_server_do_not_travel_with_a_model() {
    let bench = TestBench::new();
    let source = bench.model("m", &[("w.gguf", b"GGUF"), ("model.toml", b"aliases = ['gpt-4o']")]);
    let tar = export(&bench.models(), "m", &bench.path("m.tar"), &mut Silent).unwrap();
    let imported = import(&bench.path("other"), &tar.path, &plain(), &mut Silent).unwrap();
    assert_eq!(tree(&imported.path), [("w.gguf".to_owned(), b"GGUF".to_vec())]);
    let error = import(&bench.path("third"), &source, &plain(), &mut Silent).unwrap_err().to_string();
    assert!(error.contains("model.toml") && error.contains("settings of a server"), "{error}");
}

#[test]
fn a_bare_gguf_becomes_a_model_named_after_it() {
    let bench = TestBench::new();
    let file = tiny_model::write(&bench.path("usb"), "Qwen2.5-Q4_K_M", &TinyModel::default());
    let imported = import(&bench.models(), &file, &plain(), &mut Silent).unwrap();
    assert_eq!(imported.name, "Qwen2.5-Q4_K_M");
    assert_eq!(tree(&imported.path), [("Qwen2.5-Q4_K_M.gguf".to_owned(), fs::read(&file).unwrap())]);
}

#[test]
fn a_truncated_gguf_is_refused_at_once() {
    let bench = TestBench::new();
    let file = tiny_model::write(&bench.path("usb"), "cut", &TinyModel::default());
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    for from in [file.as_path(), file.parent().unwrap()] {
        let error = import(&bench.models(), from, &plain(), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("cut.gguf") && error.contains("truncated"), "{error}");
        assert!(!bench.models().join("cut").exists());
    }
}

#[test]
fn a_split_gguf_is_imported_with_its_folder() {
    let bench = TestBench::new();
    let folder = bench.path("usb/tiny");
    let parts = split_gguf::write(&folder, "tiny", &tiny_model::bytes(&TinyModel::default()), &[0, 5]);
    let imported = import(&bench.models(), &folder, &plain(), &mut Silent).unwrap();
    assert_eq!((imported.name.as_str(), tree(&imported.path)), ("tiny", tree(&folder)));
    for part in &parts {
        let error = import(&bench.models(), part, &plain(), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("of 3 of a split model: put all parts into a folder tiny, and import"), "{error}");
    }
    for part in &parts {
        let content = fs::read(part).unwrap();
        fs::remove_file(part).unwrap();
        let error = import(&bench.models(), &folder, &import_with_name("other"), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("cannot be used: the split model lacks 1 of its 3 parts"), "{error}");
        fs::write(part, content).unwrap();
    }
}

#[test]
fn the_parts_of_a_split_file_are_listed_as_one_model() {
    let bench = TestBench::new();
    let whole = tiny_model::bytes(&TinyModel::default());
    let parts = split_gguf::write(&bench.models(), "tiny", &whole, &[0, 5]);
    let only = || {
        let [model]: [_; 1] = models_on_disk(&bench.models()).try_into().unwrap();
        (model.name, model.bytes)
    };
    assert_eq!(only(), ("tiny".to_owned(), parts.iter().map(|part| fs::metadata(part).unwrap().len()).sum()));
    fs::write(bench.models().join("tiny.gguf"), &whole).unwrap();
    assert_eq!(only(), ("tiny".to_owned(), whole.len() as u64), "a whole file hides the parts");
}

#[test]
fn a_file_of_whisper_cpp_is_imported_and_exported_as_a_model() {
    let bench = TestBench::new();
    let whole = fs::read(fixture("whisper/ggml-q5_0.bin")).unwrap();
    let folder = write_folder(&bench.path("usb"), &[("ggml-base-q5_0.bin", &whole), ("voice.dat", &whole)]);
    let imported = import(&bench.models(), &folder.join("ggml-base-q5_0.bin"), &plain(), &mut Silent).unwrap();
    assert_eq!(imported.name, "ggml-base-q5_0");
    assert_eq!(tree(&imported.path), [("ggml-base-q5_0.bin".to_owned(), whole.clone())]);
    let exported = export(&bench.models(), "ggml-base-q5_0", &bench.path(""), &mut Silent).unwrap();
    assert!(import(&bench.models(), &exported.path, &import_with_name("again"), &mut Silent).is_ok());
    // The server recognizes a file by its name, so another name is replaced.
    let renamed = import(&bench.models(), &folder.join("voice.dat"), &plain(), &mut Silent).unwrap();
    assert_eq!(tree(&renamed.path), [("ggml-model.bin".to_owned(), whole.clone())]);
    fs::write(folder.join("ggml-cut.bin"), &whole[..whole.len() / 2]).unwrap();
    let error = import(&bench.models(), &folder.join("ggml-cut.bin"), &plain(), &mut Silent).unwrap_err().to_string();
    assert!(error.contains("ggml-cut.bin") && error.contains("cannot be used"), "{error}");
}

#[test]
fn an_existing_model_is_replaced_only_with_force() {
    let bench = TestBench::new();
    bench.model("m", &[("old.gguf", b"GGUF old"), ("old.json", b"{}")]);
    let file = tiny_model::write(&bench.path("usb"), "new", &TinyModel::default());
    let error = import(&bench.models(), &file, &import_with_name("m"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("--force"), "{error}");
    let force = ImportOptions { name: Some("m".into()), force: true };
    let imported = import(&bench.models(), &file, &force, &mut Silent).unwrap();
    assert_eq!(tree(&imported.path), [("new.gguf".to_owned(), fs::read(&file).unwrap())]);
    assert_eq!(tree(&bench.models().join(".pull")), [("m.lock".to_owned(), Vec::new())]);
}

#[test]
fn a_failed_import_keeps_the_parts_of_an_interrupted_pull() {
    let bench = TestBench::new();
    write_folder(&bench.models().join(".pull/m"), &[("joined", b"GGUF")]);
    let folder = write_folder(&bench.path("m"), &[("notes.txt", b"no weights here")]);
    let error = import(&bench.models(), &folder, &plain(), &mut Silent).unwrap_err();
    assert!(matches!(error, TransferError::NoWeights(_)), "{error}");
    assert_eq!(tree(&bench.models().join(".pull/m")), [("joined".to_owned(), b"GGUF".to_vec())]);
}

#[test]
fn a_folder_is_imported_without_its_hidden_files() {
    let bench = TestBench::new();
    let folder = write_folder(
        &bench.path("sd"),
        &[
            ("unet/w.safetensors", b"w"),
            ("unet/._w.safetensors", b"\x00\x05\x16\x07"),
            ("unet/w.safetensors:Zone.Identifier", b"[ZoneTransfer]"),
            ("model_index.json", b"{}"),
            (".cache/x", b"x"),
            ("@eaDir/model_index.json", b"x"),
            ("__MACOSX/._w.gguf", b"x"),
            ("Thumbs.db", b"x"),
        ],
    );
    let imported = import(&bench.models(), &folder, &plain(), &mut Silent).unwrap();
    let names: Vec<_> = tree(&imported.path).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["model_index.json", "unet/w.safetensors"]);
    // Nothing else of a model is exported, and a folder with nothing else is none.
    litter(&imported.path);
    let exported = export(&bench.models(), "sd", &bench.path(""), &mut Silent).unwrap();
    let again = import(&bench.models(), &exported.path, &import_with_name("again"), &mut Silent).unwrap();
    assert_eq!(tree(&again.path).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    let empty = bench.path("empty");
    fs::create_dir(&empty).unwrap();
    litter(&empty);
    fs::write(empty.join("mmproj-f16.gguf"), "GGUF").unwrap();
    let error = import(&bench.models(), &empty, &plain(), &mut Silent).unwrap_err();
    assert!(matches!(error, TransferError::NoWeights(_)), "{error}");
}

/// Adds what operating systems write beside a model's files.
fn litter(folder: &Path) {
    write_folder(&folder.join("@eaDir"), &[("model.gguf", b"x")]);
    for name in ["._model.gguf", "._model.safetensors", ".DS_Store", "Thumbs.db", "w.gguf:Zone.Identifier"] {
        fs::write(folder.join(name), "x").unwrap();
    }
}

#[test]
fn the_list_of_models_on_disk_has_no_files_of_operating_systems() {
    let bench = TestBench::new();
    bench.model("m", &[("w.gguf", b"GGUF")]);
    litter(&bench.models());
    litter(&bench.models().join("m"));
    fs::write(bench.models().join("mmproj-m.gguf"), "GGUF").unwrap();
    litter(&bench.model("other", &[("config.json", b"{}")]));
    let found: Vec<_> = models_on_disk(&bench.models()).into_iter().map(|model| (model.name, model.bytes)).collect();
    assert_eq!(found, [("m".to_owned(), 4)]);
}

#[test]
fn a_folder_with_special_files_is_refused_by_entry_name() {
    let bench = TestBench::new();
    let secret = bench.path("secret");
    fs::write(&secret, "secret").unwrap();
    let cases: [(&str, Make<'_>); 4] = [
        ("symbolic link", &|at| symlink(&secret, at).unwrap()),
        ("symbolic link", &|at| symlink(bench.path(""), at).unwrap()),
        ("FIFO", &|at| assert!(std::process::Command::new("mkfifo").arg(at).status().unwrap().success())),
        ("socket", &|at| drop(std::os::unix::net::UnixListener::bind(at).unwrap())),
    ];
    for (i, (expected_text, make)) in cases.into_iter().enumerate() {
        let folder = write_folder(&bench.path(&format!("f{i}")), &[("w.gguf", b"GGUF"), ("sub/c.json", b"{}")]);
        make(&folder.join("sub/evil"));
        let error = import(&bench.models(), &folder, &import_with_name("m"), &mut Silent).unwrap_err().to_string();
        assert!(error.contains("'sub/evil'") && error.contains(expected_text), "{error}");
        assert!(!bench.models().join("m").exists());
        fs::create_dir_all(bench.models().join("x")).unwrap();
        symlink(&folder, bench.models().join(format!("x{i}"))).unwrap();
        let error = export(&bench.models(), &format!("x{i}"), &bench.path("out.tar"), &mut Silent).unwrap_err();
        assert!(error.to_string().contains("'sub/evil'"), "{error}");
    }
}

#[test]
fn folders_that_are_not_models_are_not_imported() {
    let files: [(Files<'_>, bool); 12] = [
        (&[("config.json", b"{}")], false),
        (&[("readme.md", b"hello"), ("model_index.json", b"{}")], false),
        (&[("sub/w.gguf", b"GGUF")], false),
        (&[("sub/w.safetensors", b"w"), ("config.json", b"{}")], false),
        (&[("a.safetensors", b"w"), ("b.safetensors", b"w")], false),
        (&[("w.GGUF.txt", b"GGUF")], false),
        (&[("gguf", b"GGUF")], false),
        (&[("a.safetensors", b"w"), ("b.safetensors", b"w"), ("config.json", b"{}")], true),
        (&[("a.safetensors", b"w")], true),
        (&[("model_index.json", b"{}"), ("unet/w.safetensors", b"w")], true),
        (&[("w.gguf", b"GGUF")], true),
        (&[("w.gguf", b"GGUF"), ("sub/w.safetensors", b"w")], true),
    ];
    for (index, (files, taken)) in files.into_iter().enumerate() {
        let bench = TestBench::new();
        bench.model("m", files);
        let tar = bench.path("m.tar");
        export(&bench.models(), "m", &tar, &mut Silent).unwrap();
        fs::remove_dir_all(bench.models().join("m")).unwrap();
        let imported = import(&bench.models(), &tar, &plain(), &mut Silent);
        match taken {
            true => assert_eq!(imported.unwrap().name, "m", "{index}"),
            false => {
                let error = imported.unwrap_err();
                assert!(matches!(error, TransferError::NoWeights(_)), "{index}: {error}");
                assert!(error.to_string().contains("m.tar holds no model"), "{error}");
                let folder = write_folder(&bench.path("m"), files);
                let error = import(&bench.models(), &folder, &plain(), &mut Silent).unwrap_err();
                assert!(matches!(error, TransferError::NoWeights(_)), "{index}: {error}");
                assert!(!bench.models().join("m").exists());
            }
        }
    }
}

#[test]
fn names_of_other_entries_in_the_models_folder_are_refused() {
    let bench = TestBench::new();
    fs::write(bench.models().join("catalog.toml"), "kept").unwrap();
    write_folder(&bench.models().join("loras"), &[("style.safetensors", b"w")]);
    assert!(outpost_hub::catalog::models_on_disk(&bench.models()).is_empty(), "adapters are no model");
    let error = export(&bench.models(), "loras", &bench.path("out.tar"), &mut Silent).unwrap_err();
    assert!(matches!(error, TransferError::NoModel(_)), "{error}");
    for name in ["loras", "catalog.toml", "LoRAs", "Catalog.TOML"] {
        let file = tiny_model::write(&bench.path("usb"), name, &TinyModel::default());
        let folder = write_folder(&bench.path(name), &[("w.safetensors", b"w")]);
        for (from, force) in [(&file, false), (&file, true), (&folder, true)] {
            for options in [plain(), import_with_name(name)] {
                let error = import(&bench.models(), from, &ImportOptions { force, ..options }, &mut Silent);
                let error = error.unwrap_err();
                assert!(matches!(error, TransferError::ReservedName(_)), "{error}");
                assert!(error.to_string().contains(name) && error.to_string().contains("--name"), "{error}");
            }
        }
    }
    let saved = [("catalog.toml".to_owned(), b"kept".to_vec()), ("loras/style.safetensors".to_owned(), b"w".to_vec())];
    assert_eq!(tree(&bench.models()), saved);
}

#[test]
fn errors_name_invalid_models_and_names() {
    let bench = TestBench::new();
    let text = bench.path("some text");
    fs::write(&text, "hello").unwrap();
    let fifo = bench.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [text, fifo, "/dev/null".into()] {
        let error = import(&bench.models(), &path, &import_with_name("m"), &mut Silent).unwrap_err();
        assert!(matches!(error, TransferError::NotAModel(_)), "{}: {error}", path.display());
    }
    let file = bench.path("w.gguf");
    fs::write(&file, "GGUF").unwrap();
    for name in ["../m", "", ".m", "a/b"] {
        let error = import(&bench.models(), &file, &import_with_name(name), &mut Silent).unwrap_err();
        assert!(matches!(error, TransferError::BadName(_)), "{error}");
    }
}
