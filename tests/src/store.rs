//! Writes objects into the etcd of an API server, for sizes at which the API server would take too long for each
//! object: it counts all `IPAddress`es for each address that it allocates, and kwok starts about 45 pods a second.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::http;

/// Maximum of objects in one transaction: etcd limits operations (128) and bytes of one request.
const AT_ONCE: usize = 100;
/// Maximum of bytes of the objects in one transaction. The limit of etcd is 1.5 MiB.
const BYTES_AT_ONCE: usize = 1 << 20;

/// The etcd of an API server.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    address: Ipv4Addr,
    port: u16,
}

/// An object with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    key: String,
    value: String,
}

impl Stored {
    /// An object as the API server keeps it. `folder` is the path of its kind below `/registry`, such as
    /// `services/specs`; `uid` is its UID. API servers write Protobuf for their own kinds, and also read JSON.
    pub fn new(folder: &str, uid: &str, mut object: Value) -> Result<Self> {
        let metadata = object["metadata"]
            .as_object_mut()
            .with_context(|| format!("an object in {folder} has no metadata"))?;
        metadata.insert("uid".to_owned(), json!(uid));
        metadata.insert("creationTimestamp".to_owned(), json!(now()));
        let name = metadata
            .get("name")
            .and_then(Value::as_str)
            .with_context(|| format!("an object in {folder} has no name"))?;
        let key = match metadata.get("namespace").and_then(Value::as_str) {
            Some(namespace) => format!("/registry/{folder}/{namespace}/{name}"),
            None => format!("/registry/{folder}/{name}"),
        };
        Ok(Self {
            key,
            value: object.to_string(),
        })
    }
}

#[cfg(test)]
impl Stored {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The JSON.
    pub fn value(&self) -> &str {
        &self.value
    }
}

/// The present time in seconds, in the form of objects.
pub fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// The UID for the object with this number in this series.
pub fn uid(series: u16, number: u64) -> String {
    format!("5ca1ab1e-{series:04x}-4000-8000-{number:012x}")
}

impl Store {
    /// The store at this address.
    pub fn new(address: Ipv4Addr, port: u16) -> Self {
        Self { address, port }
    }

    /// Creates the objects, in as few transactions as etcd allows.
    ///
    /// # Errors
    /// One of the objects exists. Those of earlier transactions stay.
    pub async fn create(&self, objects: &[Stored]) -> Result<()> {
        for part in parts(objects) {
            ensure!(
                self.create_together(part).await?,
                "{}: one of these objects exists",
                what(part)
            );
        }
        Ok(())
    }

    /// Creates all of the objects in one transaction. `false`: one of the objects exists, and none was created.
    pub async fn create_together(&self, objects: &[Stored]) -> Result<bool> {
        let absent: Vec<Value> = objects
            .iter()
            .map(|object| json!({"key": STANDARD.encode(&object.key), "target": "CREATE", "createRevision": "0"}))
            .collect();
        let puts: Vec<Value> = objects
            .iter()
            .map(|object| {
                json!({"requestPut": {
                    "key": STANDARD.encode(&object.key), "value": STANDARD.encode(&object.value),
                }})
            })
            .collect();
        let body = json!({"compare": absent, "success": puts}).to_string();
        let answer = http::ask(self.address, self.port, "POST", "/v3/kv/txn", &body)
            .await
            .with_context(|| what(objects))?;
        ensure!(
            answer.status == 200,
            "{}: etcd answers {} {}",
            what(objects),
            answer.status,
            answer.body
        );
        let answer: Value = serde_json::from_str(&answer.body).with_context(|| what(objects))?;
        Ok(answer["succeeded"] == true)
    }
}

/// Describes the write of these objects for an error message.
fn what(objects: &[Stored]) -> String {
    let first = objects.first().map_or("no object", |first| first.key.as_str());
    format!("write {} objects into etcd, the first {first}", objects.len())
}

/// Splits the objects into parts that etcd accepts in one transaction each.
fn parts(mut objects: &[Stored]) -> Vec<&[Stored]> {
    let mut parts = Vec::new();
    while !objects.is_empty() {
        let mut bytes = 0;
        let fit = objects
            .iter()
            .take(AT_ONCE)
            .take_while(|object| {
                bytes += object.value.len() + object.key.len();
                bytes <= BYTES_AT_ONCE
            })
            .count();
        // An object that is too large on its own is for etcd to refuse.
        let (part, rest) = objects.split_at(fit.max(1));
        parts.push(part);
        objects = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: usize) -> Stored {
        Stored {
            key: String::new(),
            value: "x".repeat(bytes),
        }
    }

    #[test]
    fn a_transaction_has_at_most_the_objects_that_etcd_accepts() {
        let sizes = |objects: &[Stored]| parts(objects).iter().map(|part| part.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&vec![of_bytes(10); 250]), [100, 100, 50]);
        assert_eq!(sizes(&vec![of_bytes(400_000); 5]), [2, 2, 1]);
        assert_eq!(
            sizes(&[of_bytes(10), of_bytes(2_000_000), of_bytes(10)]),
            [1, 1, 1]
        );
        assert!(parts(&[]).is_empty());
    }

    #[test]
    fn an_object_key_has_its_kind_and_its_namespace() {
        let pod = json!({"metadata": {"name": "a", "namespace": "shop"}});
        let pod = Stored::new("pods", &uid(1, 255), pod).unwrap();
        assert_eq!(pod.key, "/registry/pods/shop/a");
        let value: Value = serde_json::from_str(&pod.value).unwrap();
        assert_eq!(value["metadata"]["uid"], "5ca1ab1e-0001-4000-8000-0000000000ff");
        let address = Stored::new("ipaddresses", "u", json!({"metadata": {"name": "10.0.0.1"}})).unwrap();
        assert_eq!(address.key, "/registry/ipaddresses/10.0.0.1");
        assert!(Stored::new("pods", "u", json!({"metadata": {}})).is_err());
    }
}
