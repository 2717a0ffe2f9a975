//! The settings of serviceCidr as rows of text.

use service_cidr::ranges::joined;
use service_cidr::settings::Settings;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    // Destructured, so that a new field cannot be forgotten here.
    let Settings {
        from,
        to,
        domain,
        bridge_policy,
    } = settings;
    let row = |name: &str, value: String, source: String| vec![name.to_owned(), value, format!("({source})")];
    vec![
        row("old ranges", joined(&from.value), from.source.to_string()),
        row("new ranges", joined(&to.value), to.source.to_string()),
        row("cluster domain", domain.value.clone(), domain.source.to_string()),
        row(
            "externalTrafficPolicy of bridges",
            bridge_policy.value.as_str().to_owned(),
            bridge_policy.source.to_string(),
        ),
    ]
}
