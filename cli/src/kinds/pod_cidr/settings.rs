//! The settings of podCidr as rows of text.

use std::fmt::Display;

use api::MigrationStatus;
use engine::sourced::Sourced;
use pod_cidr::settings::Settings;

use crate::kinds::kind::KindSettings;

impl KindSettings for Settings {
    fn of(status: &MigrationStatus) -> Option<&Self> {
        status.pod_cidr.as_ref().map(|known| &known.settings)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            from,
            to,
            old_pool,
            new_pool,
            block_size,
            calico_daemon_set_namespace,
            calico_daemon_set_name,
            datastore,
        } = self;
        vec![
            row("old range", from),
            row("  IPPool", old_pool),
            row("new range", to),
            row("  IPPool", new_pool),
            row("  block size", block_size),
            row("Calico DaemonSet", calico_daemon_set_name),
            row("  namespace", calico_daemon_set_namespace),
            row("Calico datastore", datastore),
        ]
    }
}

fn row<T: Display>(name: &str, setting: &Sourced<T>) -> Vec<String> {
    vec![
        name.to_owned(),
        setting.value.to_string(),
        format!("({})", setting.source),
    ]
}
