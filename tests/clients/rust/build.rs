//! Takes the Rust block out of docs/clients.md, with the address of the test server.

use std::error::Error;
use std::{env, fs, path::Path};

const PAGE: &str = "../../../docs/clients.md";
const BASE_URL: &str = "\"http://127.0.0.1:8080/openai/v1\"";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={PAGE}");
    let page = fs::read_to_string(PAGE)?;
    let (_, rest) = page.split_once("```rust\n").ok_or("the page has no Rust block")?;
    let (block, _) = rest.split_once("```").ok_or("the Rust block has no end")?;
    if !block.contains(BASE_URL) {
        return Err("the Rust block has no base URL".into());
    }
    let block = block.replace(BASE_URL, "std::env::var(\"OUTPOST_BASE_URL\")?");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("page.rs"), block)?;
    Ok(())
}
