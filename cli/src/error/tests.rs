//! Tests of the errors.

use kube::core::Status;

use super::*;

#[test]
fn an_error_has_the_message_of_the_api_server_only() {
    let status = Status::failure("migrations.replumb.dev \"a\" is forbidden", "Forbidden").with_code(403);
    let error = CliError::api("patching", "Migration a", kube::Error::Api(status.boxed()));
    assert_eq!(
        error.to_string(),
        "patching Migration a: migrations.replumb.dev \"a\" is forbidden (Forbidden)"
    );
    assert!(error.hint().unwrap().contains("replumb-operator"));
}

#[test]
fn an_unknown_name_is_an_error_with_the_existing_names() {
    let existing = vec![("flannel-to-calico".to_owned(), "Rolling".to_owned())];
    let error = CliError::NoSuchMigration {
        name: "flanel".to_owned(),
        existing,
    };
    assert_eq!(
        error.to_string(),
        "Migration flanel not found; existing: flannel-to-calico (Rolling)"
    );
    let none = CliError::NoSuchMigration {
        name: "flanel".to_owned(),
        existing: Vec::new(),
    };
    assert!(none.to_string().contains("there are no Migrations"), "{none}");
}
