use outpost_hub::catalog::Catalog;

#[test]
fn the_catalog_in_the_binary_is_valid() {
    let catalog = Catalog::parse(include_str!("../../../../models/catalog.toml")).unwrap();
    let sizes: Vec<_> =
        catalog.models().iter().filter(|m| !m.is_embedded()).map(|m| (m.name.as_str(), m.bytes())).collect();
    let expected = [
        ("smollm2-135m-instruct", 98_362_432),
        ("all-minilm-l6-v2", 91_578_367),
        ("qwen2.5-coder-0.5b-instruct", 491_400_064),
        ("qwen2.5-coder-1.5b-instruct", 1_117_320_768),
        ("nomic-embed-text-v1.5", 274_290_560),
        ("whisper-tiny.en", 77_947_603),
        ("whisper-base", 149_150_964),
        ("kokoro-82m", 365_419_547),
        ("kokoro-82m-f16", 203_137_859),
    ];
    assert_eq!(sizes, expected);
    assert_eq!(catalog.starter(), ["smollm2-135m-instruct", "all-minilm-l6-v2", "pictogram"]);
    assert_eq!(Catalog::builtin().models().len(), catalog.models().len());
    assert!(catalog.models().iter().all(|model| model.task.is_some()), "errors name models by their task");
}

#[test]
fn invalid_catalogs_are_refused() {
    let good = r#"
        [[model]]
        name = "m"
        description = "d"
        license = "l"
        files = [{ name = "a.gguf", bytes = 3, sha256 = "HASH" }]
        [[model.source]]
        kind = "pypi"
        parts = [{ package = "p", version = "1.0", entry = "p/a", bytes = 3 }]
    "#
    .replace("HASH", &"0".repeat(64));
    Catalog::parse(&good).unwrap();
    let table = [
        ("name = \"m\"", "name = \"../m\"", "name that cannot be"),
        ("name = \"m\"", "name = \"starter\"", "name that cannot be"),
        ("\"a.gguf\"", "\"../a.gguf\"", "'..'"),
        ("\"a.gguf\"", "\"/a.gguf\"", "absolute"),
        ("bytes = 3, sha256", "bytes = 0, sha256", "size"),
        ("bytes = 3, sha256", "bytes = 4, sha256", "do not add up"),
        ("sha256 = \"00", "sha256 = \"0G", "sha256"),
        ("package = \"p\"", "package = \"--index-url\"", "unusable package"),
        ("version = \"1.0\"", "version = \"1.0 evil\"", "unusable package"),
        ("entry = \"p/a\"", "entry = \"p/../../a\"", "'..'"),
        ("kind = \"pypi\"", "kind = \"ftp\"", "ftp"),
        ("license = \"l\"", "licence = \"l\"", "licence"),
        ("[[model]]", "starter = [\"n\"]\n[[model]]", "'n'"),
        ("license = \"l\"", "license = \"l\"\nneeds = [\"n\"]", "'n'"),
    ];
    for (from, to, expected_text) in table {
        let error = Catalog::parse(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expected_text), "{to}: {error}");
    }
}
