//! Status of both stores: the store that Calico works with, and the progress of a conversion.

use calico_datastore::run::decide::{ReadyV2, ReadyV3};
use calico_datastore::run::record::Record;
use calico_datastore::v2::CALICO_VERSION;
use calico_datastore::version::{Need, needed};
use jiff::Timestamp;
use serde::Serialize;

use crate::error::StoreError;
use crate::lock::Lock;
use crate::stores::{ROOT, Stores, ready_v3};

/// The store that Calico works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Flags {
    /// v2 alone.
    V2,
    /// v3 alone.
    V3,
    /// None: no new pod gets a network.
    Paused,
    /// Both: changes in one store are unknown in the other.
    Both,
    /// Neither store has data of Calico.
    Nothing,
}

impl Flags {
    /// Derived from both flags.
    pub fn of(v2: &ReadyV2, v3: ReadyV3) -> Self {
        match (v2, v3) {
            (ReadyV2::Open, ReadyV3::Open) => Self::Both,
            (ReadyV2::Open, ReadyV3::Missing | ReadyV3::Paused) => Self::V2,
            (ReadyV2::Missing | ReadyV2::Paused(_), ReadyV3::Open) => Self::V3,
            (ReadyV2::Missing, ReadyV3::Missing) => Self::Nothing,
            (ReadyV2::Missing, ReadyV3::Paused)
            | (ReadyV2::Paused(_), ReadyV3::Missing | ReadyV3::Paused) => Self::Paused,
        }
    }
}

/// Status of both stores.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The store that Calico works with.
    pub works_with: Flags,
    /// Value of `/calico/v1/Ready`. Unset when the key does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_v2: Option<String>,
    /// `datastoreReady` of `ClusterInformation`. Unset when the object does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_v3: Option<bool>,
    /// The version of Calico in v2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_v2: Option<String>,
    /// The version of Calico in v3. After the conversion it is that of v2, until a calico-node of v3 writes its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_v3: Option<String>,
    /// Whether v2 has data to convert and no calico-node of v3 works with v3 yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed: Option<bool>,
    /// Reason why `needed` is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_unknown: Option<String>,
    /// Number of keys below `/calico/` in v3.
    pub keys_v3: usize,
    /// The record of a conversion.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// Whether the pause has lasted too long. The process that holds it aborts the conversion, or the next `start` or `abort`
    /// does.
    pub is_overdue: bool,
    /// The process that holds the lock now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_work: Option<String>,
    /// Versions of both etcds.
    pub etcd: [String; 2],
}

/// Reads the status. Changes nothing and needs no lock.
///
/// # Errors
///
/// A store does not answer, or the record or `ClusterInformation` cannot be read.
pub async fn status(stores: &Stores, now: Timestamp) -> Result<Status, StoreError> {
    let (recorded, v2, information, keys, version_v2, at_work) = tokio::try_join!(
        stores.record(),
        stores.ready_v2(),
        stores.cluster_information(),
        stores.v3.count(ROOT),
        stores.v2.get(CALICO_VERSION),
        Lock::holder(&stores.v3),
    )?;
    let information = information.map(|(_, value)| value);
    let version_v2 = version_v2.map(|found| found.value);
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let version_v3 = information
        .as_ref()
        .and_then(|value| text(&value["spec"]["calicoVersion"]));
    let need = needed(version_v3.as_deref(), version_v2.as_deref());
    let v3 = ready_v3(information.as_ref())?;
    let record = recorded.map(|recorded| recorded.record);
    Ok(Status {
        works_with: Flags::of(&v2, v3),
        ready_v2: match &v2 {
            ReadyV2::Missing => None,
            ReadyV2::Open => Some("true".to_owned()),
            ReadyV2::Paused(value) => Some(value.clone()),
        },
        ready_v3: match v3 {
            ReadyV3::Missing => None,
            ReadyV3::Paused => Some(false),
            ReadyV3::Open => Some(true),
        },
        version_v2,
        version_v3,
        needed: need.as_ref().ok().map(|need| *need == Need::Needed),
        needed_unknown: need.err().map(|error| error.to_string()),
        keys_v3: keys,
        is_overdue: record
            .as_ref()
            .is_some_and(|record| record.is_overdue(v3 == ReadyV3::Open, now)),
        record,
        at_work,
        etcd: [stores.v2.version.clone(), stores.v3.version.clone()],
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("true"), ReadyV3::Missing, Flags::V2)]
    #[case(Some("true"), ReadyV3::Paused, Flags::V2)]
    #[case(Some("true"), ReadyV3::Open, Flags::Both)]
    #[case(Some("false"), ReadyV3::Paused, Flags::Paused)]
    #[case(Some(" true"), ReadyV3::Open, Flags::V3)]
    #[case(None, ReadyV3::Open, Flags::V3)]
    #[case(None, ReadyV3::Missing, Flags::Nothing)]
    fn the_store_in_use_follows_from_both_flags(
        #[case] v2: Option<&str>,
        #[case] v3: ReadyV3,
        #[case] expected: Flags,
    ) {
        assert_eq!(Flags::of(&ReadyV2::of(v2), v3), expected);
    }
}
