//! URLs of stores.

use super::super::settings::{PostgresSettings, RootCertificates};
use super::super::url_options::StoreUrlError;

fn parse(url: &str) -> Result<PostgresSettings, StoreUrlError> {
    PostgresSettings::parse(url, Some("secret".to_owned()))
}

/// Each host, and whether it uses TLS.
fn hosts(url: &str) -> Vec<(String, bool)> {
    parse(url).unwrap().hosts.iter().map(|host| (host.to_string(), host.tls)).collect()
}

#[test]
fn hosts_ports_and_sockets_are_read() {
    let one = |host: &str, tls| vec![(host.to_owned(), tls)];
    assert_eq!(hosts("postgres://u@db.example/d"), one("db.example:5432", true));
    assert_eq!(hosts("postgresql://u@db.example:6432/d?sslmode=verify-full"), one("db.example:6432", true));
    assert_eq!(hosts("postgres://u@%2Frun%2Fpg/d"), one("/run/pg", false));
    assert_eq!(hosts("postgres:///d?host=/run/pg"), one("/run/pg", false));
    assert_eq!(
        hosts("postgres://u@a:1,[::1]:2,127.0.0.9,localhost/d"),
        [("a:1", true), ("[::1]:2", false), ("127.0.0.9:5432", false), ("localhost:5432", false)]
            .map(|(host, tls)| (host.to_owned(), tls))
    );
}

#[test]
fn a_connection_that_leaves_the_machine_is_always_verified() {
    let refused = parse("postgres://u@10.0.0.5/d?sslmode=disable").unwrap_err();
    assert_eq!(refused, StoreUrlError::NotEncrypted { host: "10.0.0.5".to_owned() });
    let mixed = parse("postgres://u@localhost,db.example/d?sslmode=disable").unwrap_err();
    assert_eq!(mixed, StoreUrlError::NotEncrypted { host: "db.example".to_owned() });
    for mode in ["allow", "prefer", "require", "verify-ca", "x"] {
        let weak = parse(&format!("postgres://u@localhost/d?sslmode={mode}")).unwrap_err();
        assert_eq!(weak, StoreUrlError::SslMode(mode.to_owned()));
    }
}

#[test]
fn a_root_certificate_asks_for_tls() {
    let with = parse("postgres://u@localhost/d?sslrootcert=%2Fca%20s%2Fca.pem&application_name=x").unwrap();
    assert_eq!(with.root_certificates, RootCertificates::File("/ca s/ca.pem".into()));
    assert!(with.hosts[0].tls);
    let system = parse("postgres://u@db/d?sslrootcert=system").unwrap();
    assert_eq!(system.root_certificates, RootCertificates::System);
    let unused = parse("postgres://u@localhost/d?sslmode=disable&sslrootcert=/a").unwrap_err();
    assert_eq!(unused, StoreUrlError::UnusedRootCertificate);
}

#[test]
fn a_password_in_the_url_is_refused_and_never_repeated() {
    for url in ["postgres://u:hunter2@localhost/d", "postgres://u@localhost/d?password=hunter2"] {
        let error = parse(url).unwrap_err();
        assert_eq!(error, StoreUrlError::Password);
        assert!(error.to_string().contains("PGPASSWORD"));
    }
    for url in ["postgres://u:hunter2@localhost:x/d", "postgres://u:hunter2@a/d?hunter=2", "mysql://u:hunter2@a/d"] {
        assert!(!parse(url).unwrap_err().to_string().contains("hunter2"));
    }
    let settings = parse("postgres://u@localhost:1/d?application_name=x").unwrap();
    assert_eq!(settings.to_string(), "postgres://u@localhost:1/d");
    assert_eq!(format!("{settings:?}"), "PostgresSettings(postgres://u@localhost:1/d)");
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    assert_eq!(parse("outpost.redb").unwrap_err(), StoreUrlError::Scheme);
    assert_eq!(parse("postgres://u@localhost").unwrap_err(), StoreUrlError::NoDatabase);
    assert_eq!(parse("postgres:///d").unwrap_err(), StoreUrlError::NoHost);
    assert_eq!(parse("postgres://a,b,c/d?port=1").unwrap_err(), StoreUrlError::Ports);
    let unknown = parse("postgres://a/d?sslcert=x").unwrap_err();
    assert_eq!(unknown, StoreUrlError::Option { name: "sslcert".to_owned() });
    let bad = parse("postgres://a:port/d").unwrap_err();
    assert!(matches!(&bad, StoreUrlError::Unreadable(reason) if reason.contains("port")), "{bad}");
}
