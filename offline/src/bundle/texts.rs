//! Removes from texts what looks like a secret: values beside words such as `password`, keys in PEM, users in addresses.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// What stands for a removed value.
pub const REMOVED: &str = "(removed)";

/// A name of a secret, with a value behind it: `password: x`, `"apiToken": "x"`, `--client-secret=x`.
static NAMED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r#"(?i)((?:pass|password|passwd|passphrase|pwd|psk|pre[-_]?shared[-_]?key|jwt|secret|token|credentials?|api[-_]?key|private[-_]?key|access[-_]?key|key[-_]data)["']?\s*[:=]\s*)("[^"\n]*"|'[^'\n]*'|[^\s,"'}]+)"#,
    )
    .ok()
});
/// A block of PEM.
static PEM: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\z)").ok());
/// The user of an address.
static USER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"://[^/\s@]+@").ok());
/// An HTTP header with credentials.
static HEADER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._-]{8,}").ok());

/// A directive of a Corefile with credentials.
static DIRECTIVE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?im)\b(aws_access_key|credentials|secret|password|token|tls)[ \t]+[^\n{}]*").ok()
});

/// A Corefile without credentials, which follow their directive without a sign.
pub fn cleaned_corefile(text: &str) -> String {
    let Some(directive) = &*DIRECTIVE else {
        return REMOVED.to_owned();
    };
    directive.replace_all(text, format!("$1 {REMOVED}")).into_owned()
}

/// The text without what looks like a secret.
pub fn cleaned(text: &str) -> String {
    let (Some(named), Some(pem), Some(user), Some(header)) = (&*NAMED, &*PEM, &*USER, &*HEADER) else {
        return REMOVED.to_owned();
    };
    let text = pem.replace_all(text, REMOVED);
    let text = named.replace_all(&text, |found: &Captures<'_>| {
        let quote = found[2]
            .chars()
            .next()
            .filter(|first| ['"', '\''].contains(first));
        let quote = quote.map(String::from).unwrap_or_default();
        format!("{}{quote}{REMOVED}{quote}", &found[1])
    });
    let text = header.replace_all(&text, format!("$1 {REMOVED}"));
    user.replace_all(&text, format!("://{REMOVED}@")).into_owned()
}

/// Cleans every text of a value.
pub fn clean(value: &mut Value) {
    match value {
        Value::String(text) => {
            let kept = cleaned(text);
            if kept != *text {
                *text = kept;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::yaml(
        "user: me\npassword: hunter2\nmode: x",
        "user: me\npassword: (removed)\nmode: x"
    )]
    #[case::json(
        r#"{"k8s_auth_token": "abc", "a": 1}"#,
        r#"{"k8s_auth_token": "(removed)", "a": 1}"#
    )]
    #[case::option("--client-secret=abc --v=2", "--client-secret=(removed) --v=2")]
    #[case::address("https://me:pass@etcd:2379", "https://(removed)@etcd:2379")]
    #[case::header("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer (removed)")]
    #[case::pem(
        "a\n-----BEGIN RSA PRIVATE KEY-----\nxx\n-----END RSA PRIVATE KEY-----\nb",
        "a\n(removed)\nb"
    )]
    #[case::flannel(
        r#"{"Backend": {"Type": "ipsec", "PSK": "abc"}}"#,
        r#"{"Backend": {"Type": "ipsec", "PSK": "(removed)"}}"#
    )]
    #[case::short(r#"{"db_pass":"hunter2"}"#, r#"{"db_pass":"(removed)"}"#)]
    #[case::cut_pem("-----BEGIN CERTIFICATE-----\nxx", "(removed)")]
    #[case::net_conf(r#"{"Network": "10.244.0.0/16"}"#, r#"{"Network": "10.244.0.0/16"}"#)]
    #[case::a_file_of_a_key("ETCD_KEY_FILE: /certs/key.pem", "ETCD_KEY_FILE: /certs/key.pem")]
    fn secrets_are_removed(#[case] text: &str, #[case] kept: &str) {
        assert_eq!(cleaned(text), kept);
    }

    #[test]
    fn credentials_of_a_corefile_are_removed() {
        let text = ".:53 {\n  health\n  route53 example.org.:Z1 {\n    aws_access_key AKIA hunter2\n  }\n  etcd {\n    credentials root hunter2\n  }\n}";
        let kept = cleaned_corefile(text);
        assert!(
            !kept.contains("hunter2") && kept.contains("health") && kept.contains("route53"),
            "{kept}"
        );
    }
}
