//! What the migration works with, for people.

use plan::service_cidr::ranges::listed;
use plan::service_cidr::settings::Settings;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    // Every field by name: one that is added is not forgotten here.
    let Settings {
        from,
        to,
        domain,
        min_sync_period_milliseconds,
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
            "kube-proxy's minSyncPeriod",
            format!("{} ms", min_sync_period_milliseconds.value),
            min_sync_period_milliseconds.source.to_string(),
        ),
    ]
}
