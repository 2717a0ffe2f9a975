//! What the migration works with, for people.

use std::fmt::Display;

use engine::sourced::Sourced;
use pod_cidr::settings::Settings;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    // Every field by name: one that is added is not forgotten here.
    let Settings {
        from,
        to,
        old_pool,
        new_pool,
        block_size,
        calico_daemon_set_namespace,
        calico_daemon_set_name,
        datastore,
    } = settings;
    vec![
        row("range that pods leave", from),
        row("  its IPPool", old_pool),
        row("range that they come to", to),
        row("  its IPPool", new_pool),
        row("  its block size", block_size),
        row("Calico DaemonSet", calico_daemon_set_name),
        row("  its namespace", calico_daemon_set_namespace),
        row("Calico's objects in", datastore),
    ]
}

fn row<T: Display>(name: &str, setting: &Sourced<T>) -> Vec<String> {
    vec![
        name.to_owned(),
        setting.value.to_string(),
        format!("({})", setting.source),
    ]
}
