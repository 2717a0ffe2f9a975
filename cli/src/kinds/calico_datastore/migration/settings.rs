//! The settings of calicoDatastore as rows of text.

use api::MigrationStatus;
use calico_datastore::cluster::settings::Settings;

use crate::kinds::kind::KindSettings;
use engine::sourced::Sourced;

impl KindSettings for Settings {
    fn of(status: &MigrationStatus) -> Option<&Self> {
        status.calico_datastore.as_ref().map(|known| &known.settings)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
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
        } = self;
        let text = |name: &str, of: &Sourced<String>| {
            let value = if of.value.is_empty() {
                "none"
            } else {
                of.value.as_str()
            };
            row(name, value.to_owned(), of)
        };
        vec![
            text("calico-node DaemonSet", daemon_set),
            text("controllers Deployment", controllers),
            text("Calico ConfigMap", configuration),
            text("old calico-node image", from_image),
            text("new calico-node image", to_image),
            row("etcd v2 (Calico v2)", etcd_v2.value.endpoints.join(","), etcd_v2),
            row("etcd v3 (Calico v3)", etcd_v3.value.endpoints.join(","), etcd_v3),
            row(
                "pause limit",
                format!("{} s", pause_limit_seconds.value),
                pause_limit_seconds,
            ),
            row(
                "settle time",
                format!("{} s", settle_seconds.value),
                settle_seconds,
            ),
            row(
                "ignore data in etcd v3",
                ignore_v3_data.value.to_string(),
                ignore_v3_data,
            ),
        ]
    }
}

fn row<T>(name: &str, value: String, of: &Sourced<T>) -> Vec<String> {
    vec![name.to_owned(), value, format!("({})", of.source)]
}
