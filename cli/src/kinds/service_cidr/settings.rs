//! The settings of serviceCidr as rows of text.

use api::MigrationStatus;
use service_cidr::ranges::joined;
use service_cidr::settings::Settings;

use crate::kinds::kind::KindSettings;

impl KindSettings for Settings {
    fn of(status: &MigrationStatus) -> Option<&Self> {
        status.service_cidr.as_ref().map(|known| &known.settings)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            from,
            to,
            domain,
            bridge_policy,
        } = self;
        let row =
            |name: &str, value: String, source: String| vec![name.to_owned(), value, format!("({source})")];
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
}
