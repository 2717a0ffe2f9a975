//! The flag that pauses all of Calico while its data are converted: the key `Ready` in v2, `datastoreReady` of
//! `ClusterInformation` in v3.

use anyhow::{Result, bail};
use serde_json::Value;

use super::resource::CLUSTER_INFORMATION;
use super::store::Store;
use super::{keys, resource};
use crate::version::Generation;

/// State of the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Components work.
    Ready,
    /// Components wait.
    NotReady,
    /// There is no flag: the datastore is not initialized.
    Missing,
}

/// Reads the flag.
pub async fn read(store: &Store) -> Result<Flag> {
    Ok(match store.generation {
        Generation::V2 => match store.get(keys::READY).await? {
            None => Flag::Missing,
            Some(entry) if entry.value == "true" => Flag::Ready,
            Some(_) => Flag::NotReady,
        },
        Generation::V3 => match store.get(&CLUSTER_INFORMATION.key("default")).await? {
            None => Flag::Missing,
            Some(entry) => of_information(&resource::parse(&entry)?),
        },
    })
}

fn of_information(information: &Value) -> Flag {
    if information["spec"]["datastoreReady"] == true {
        Flag::Ready
    } else {
        Flag::NotReady
    }
}

/// Refuses like Calico's plugins, for ADD and for DEL.
pub async fn require(store: &Store) -> Result<()> {
    match (read(store).await?, store.generation) {
        (Flag::Ready, _) => Ok(()),
        (Flag::NotReady, _) => bail!("Calico is currently not ready to process requests"),
        (Flag::Missing, Generation::V2) => {
            bail!("Unable to retreive ReadyFlag from Backend: resource does not exist: ReadyFlagKey()")
        }
        (Flag::Missing, Generation::V3) => {
            bail!("error getting ClusterInformation: resource does not exist: ClusterInformation(default)")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn every_value_other_than_true_means_not_ready() {
        let store = Store::in_memory(Generation::V2);
        assert_eq!(read(&store).await.unwrap(), Flag::Missing);
        for (value, flag) in [
            ("true", Flag::Ready),
            ("false", Flag::NotReady),
            ("True", Flag::NotReady),
        ] {
            store.put(keys::READY, value).await.unwrap();
            assert_eq!(read(&store).await.unwrap(), flag, "{value}");
        }
        let refused = require(&store).await.unwrap_err().to_string();
        assert_eq!(refused, "Calico is currently not ready to process requests");
    }

    #[tokio::test]
    async fn v3_reads_the_flag_from_cluster_information() {
        let store = Store::in_memory(Generation::V3);
        assert_eq!(read(&store).await.unwrap(), Flag::Missing);
        for (value, flag) in [
            (json!(true), Flag::Ready),
            (json!(false), Flag::NotReady),
            (Value::Null, Flag::NotReady),
        ] {
            let set = |spec: &mut Value| spec["datastoreReady"] = value.clone();
            CLUSTER_INFORMATION.ensure(&store, "default", set).await.unwrap();
            assert_eq!(read(&store).await.unwrap(), flag, "{value}");
        }
    }
}
