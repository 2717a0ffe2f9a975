//! What the migration works with, for people.

use calico_datastore::cluster::settings::Settings;
use engine::sourced::Sourced;

/// Every setting with its value and its source.
pub fn rows(settings: &Settings) -> Vec<Vec<String>> {
    // Every field by name: one that is added is not forgotten here.
    let Settings {
        daemon_set,
        controllers,
        configuration,
        from_image,
        to_image,
        etcd_v2,
        etcd_v3,
        pause_limit_seconds,
        settle_seconds,
        ignore_v3_data,
    } = settings;
    let text = |name: &str, of: &Sourced<String>| {
        let value = if of.value.is_empty() {
            "none"
        } else {
            of.value.as_str()
        };
        row(name, value.to_owned(), of)
    };
    vec![
        text("DaemonSet of calico-node", daemon_set),
        text("Deployment of the controllers", controllers),
        text("ConfigMap that is written", configuration),
        text("image of calico-node", from_image),
        text("image that it gets", to_image),
        row("etcd of Calico v2", etcd_v2.value.endpoints.join(","), etcd_v2),
        row("etcd of Calico v3", etcd_v3.value.endpoints.join(","), etcd_v3),
        row(
            "longest pause",
            format!("{} s", pause_limit_seconds.value),
            pause_limit_seconds,
        ),
        row(
            "v2 left alone for",
            format!("{} s", settle_seconds.value),
            settle_seconds,
        ),
        row(
            "data in v3 written over",
            ignore_v3_data.value.to_string(),
            ignore_v3_data,
        ),
    ]
}

fn row<T>(name: &str, value: String, of: &Sourced<T>) -> Vec<String> {
    vec![name.to_owned(), value, format!("({})", of.source)]
}
