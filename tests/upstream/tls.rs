//! Targets with TLS: their certificates are verified.

use outpost::config::Tls;
use serde_json::json;

use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::{REMOTE, chat_body, write_upstream};

#[test]
fn a_target_needs_a_certificate_that_is_trusted() {
    let target = Server::start_configured(&TinyModel::default(), |config| config.tls = Tls::SelfSigned);
    assert!(target.url.starts_with("https://"));
    let near = Server::start();
    let models = near.folder.path().join("models");
    let certificate = target.folder.path().join("data/tls-cert.pem");
    let text = format!(
        "kind = \"chat\"\n[[target]]\nurl = \"{}/openai/v1\"\nmodel = \"{MODEL}\"\nkey_file = \"key\"\n",
        target.url
    );
    let trusting = format!("{text}ca_file = {:?}\n", certificate.to_str().unwrap());
    let wrong_scheme = text.replace("https://", "http://");
    for (text, expected) in [(&trusting, 200), (&text, 503), (&wrong_scheme, 503)] {
        write_upstream(&models, REMOTE, text);
        std::fs::write(models.join(REMOTE).join("key"), &target.admin).unwrap();
        let response = near.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 3 })));
        assert_eq!(response.status, expected, "{text}{}", response.text);
    }
}
