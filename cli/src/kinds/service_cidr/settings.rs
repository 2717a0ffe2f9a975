//! What the migration works with, for people.

use service_cidr::ranges::listed;
use service_cidr::settings::Settings;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    // Every field by name: one that is added is not forgotten here.
    let Settings {
        from,
        to,
        domain,
        bridge_policy,
    } = settings;
    let row = |name: &str, value: String, source: String| vec![name.to_owned(), value, format!("({source})")];
    vec![
        row("ranges of Services", listed(&from.value), from.source.to_string()),
        row(
            "ranges that they come to",
            listed(&to.value),
            to.source.to_string(),
        ),
        row("domain of names", domain.value.clone(), domain.source.to_string()),
        row(
            "bridges' externalTrafficPolicy",
            bridge_policy.value.as_str().to_owned(),
            bridge_policy.source.to_string(),
        ),
    ]
}
