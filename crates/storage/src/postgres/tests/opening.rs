//! Errors at the start say what to do.

use std::fs;
use std::io::{Read as _, Write as _};

use outpost_testing::needs_postgres;

use super::super::connector::Connector;
use super::super::error::{PostgresError, PostgresOpenError};
use super::super::schema;
use super::super::settings::PostgresSettings;
use super::{Database, PASSWORD, runtime, settings, shared};
use crate::pepper::Pepper;

/// The error of connecting to a URL.
fn refusal(url: &str, password: Option<&str>) -> String {
    let mut settings = PostgresSettings::parse(url, password.map(str::to_owned)).unwrap();
    settings.timeouts = self::settings(url).timeouts;
    let connected = Connector::new(settings).map(|connector| runtime().block_on(connector.connect()).err().unwrap());
    match connected.unwrap_or_else(|error| error) {
        PostgresError::Refused(reason) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_wrong_or_missing_password_is_refused() {
    needs_postgres!();
    let url = shared().tcp_url("127.0.0.1", "postgres");
    for password in [Some("wrong"), None] {
        let reason = refusal(&url, password);
        assert!(reason.contains("password file") && reason.contains("PGPASSWORD"), "{reason}");
        assert!(!reason.contains("wrong"), "{reason}");
    }
    let connector = Connector::new(settings(&url)).unwrap();
    assert!(runtime().block_on(connector.connect()).unwrap().is_usable());
}

#[test]
fn a_missing_database_is_refused() {
    needs_postgres!();
    let reason = refusal(&shared().socket_url("nowhere"), None);
    assert!(reason.contains("CREATE DATABASE \"nowhere\" OWNER \"outpost\""), "{reason}");
}

#[test]
fn an_unknown_user_is_refused() {
    needs_postgres!();
    let reason = refusal(&shared().socket_url("postgres").replace("outpost@", "stranger@"), None);
    assert!(reason.contains("'stranger'"), "{reason}");
}

#[test]
fn a_server_that_is_not_there_is_lost_and_the_next_host_is_tried() {
    needs_postgres!();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://outpost@127.0.0.1:{closed}/postgres");
    let connector = Connector::new(settings(&url)).unwrap();
    let error = runtime().block_on(connector.connect()).err().unwrap();
    assert!(error.is_lost() && error.to_string().contains(&closed.to_string()), "{error}");
    let both = format!("postgres://outpost@127.0.0.1:{closed},127.0.0.1:{}/postgres", shared().port());
    let connector = Connector::new(settings(&both)).unwrap();
    assert!(runtime().block_on(connector.connect()).unwrap().is_usable());
}

#[test]
fn tls_needs_a_known_authority_and_the_right_name() {
    needs_postgres!();
    let authority = shared().authority();
    let trusting = |host: &str| {
        let url = shared().tcp_url(host, "postgres");
        format!("{url}?sslmode=verify-full&sslrootcert={}", authority.display())
    };
    let runtime = runtime();
    let mut connection = runtime.block_on(Connector::new(settings(&trusting("localhost"))).unwrap().connect()).unwrap();
    let sql = "SELECT count(*) FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl";
    assert_eq!(runtime.block_on(super::scalar(&mut connection, sql)), 1);
    let wrong_name = refusal(&trusting("127.0.0.1"), Some(PASSWORD));
    assert!(wrong_name.contains("sslrootcert"), "{wrong_name}");

    // Any other authority. The system may have none at all, so its own are not asked here.
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.pem");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    fs::write(&other, parameters.self_signed(&key).unwrap().pem()).unwrap();
    let url = shared().tcp_url("localhost", "postgres");
    let unknown = refusal(&format!("{url}?sslrootcert={}", other.display()), Some(PASSWORD));
    assert!(unknown.contains("own authority"), "{unknown}");
    // Without the option, the authority is unknown, too, or the system has none.
    let without = refusal(&format!("{url}?sslmode=verify-full"), Some(PASSWORD));
    assert!(without.contains("sslrootcert"), "{without}");
}

#[test]
fn a_server_without_tls_is_refused() {
    needs_postgres!();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.read_exact(&mut [0; 8]).unwrap();
        client.write_all(b"N").unwrap();
    });
    let authority = shared().authority();
    let url = format!("postgres://outpost@127.0.0.1:{port}/d?sslrootcert={}", authority.display());
    let reason = refusal(&url, Some(PASSWORD));
    assert!(reason.contains("does not support TLS") && !reason.contains(PASSWORD), "{reason}");
    server.join().unwrap();
}

#[test]
fn a_file_without_certificates_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.pem");
    fs::write(&file, "nothing").unwrap();
    for path in [file, folder.path().join("absent.pem")] {
        let reason = refusal(&format!("postgres://localhost/x?sslrootcert={}", path.display()), None);
        assert!(reason.contains(path.to_str().unwrap()), "{reason}");
    }
}

#[test]
fn tables_are_created_once_also_by_nodes_that_start_together() {
    needs_postgres!();
    let name = shared().new_database();
    let connector = Connector::new(settings(&shared().socket_url(&name))).unwrap();
    let runtime = runtime();
    let starts: Vec<_> = (0..4)
        .map(|_| {
            let connector = connector.clone();
            runtime.spawn(async move { schema::create_tables(&mut connector.connect().await.unwrap()).await })
        })
        .collect();
    for start in starts {
        runtime.block_on(start).unwrap().unwrap();
    }
    runtime.block_on(async { schema::create_tables(&mut connector.connect().await.unwrap()).await.unwrap() });
}

#[test]
fn a_user_that_may_not_create_tables_is_told_so() {
    needs_postgres!();
    let name = shared().new_database();
    shared().execute(&name, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE reader LOGIN");
    let url = shared().socket_url(&name).replace("outpost@", "reader@");
    let connector = Connector::new(settings(&url)).unwrap();
    let runtime = runtime();
    let mut connection = runtime.block_on(connector.connect()).unwrap();
    let error = runtime.block_on(schema::create_tables(&mut connection)).unwrap_err();
    assert!(matches!(&error, PostgresError::Refused(reason) if reason.contains("create tables")), "{error:?}");
}

#[test]
fn the_first_node_fills_the_table_meta_and_others_must_fit() {
    needs_postgres!();
    let database = Database::new();
    let check = |pepper: u8| {
        let pepper = Pepper::from_bytes([pepper; 32]);
        database.run(async |connection| schema::check_or_fill(connection, &pepper).await)
    };
    check(1).unwrap();
    check(1).unwrap();
    assert_eq!(check(2), Err(PostgresOpenError::WrongPepper));
    assert!(check(2).unwrap_err().to_string().contains("copy the file `pepper`"));
    let set = |value: &str| {
        let sql = format!("UPDATE outpost_meta SET v = '{value}' WHERE k = 'layout_version'");
        shared().execute(&database.name, &sql);
    };
    set("\\x0100000002");
    assert_eq!(check(2), Err(PostgresOpenError::NewerLayout { found: 2, known: 1 }));
    set("\\x0100000000");
    assert_eq!(check(1), Err(PostgresOpenError::OlderLayout { found: 0, known: 1 }));
    set("\\x01");
    assert!(matches!(check(1), Err(PostgresOpenError::Damaged(_))));
}
