//! Backup of all Calico data in both stores before the first write: Secrets in replumb's namespace, compressed, in parts, with a
//! checksum. The Secrets have no owner, and stay until a user deletes them.

use std::collections::BTreeMap;
use std::io::Write as _;

use api::migration::DatastoreBackup;
use calico_datastore::v2::Tree;
use datastore::backup::{Content, content};
use datastore::error::StoreError;
use datastore::etcd3::Entry;
use datastore::stores::{ROOT, Stores};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ObjectMeta;

use crate::clock;
use crate::context::Context;
use crate::write::{self, WriteError};

/// Bytes of a part: a Secret holds one MiB.
const PART: usize = 768 * 1024;
/// Label of every part: the ID of its backup.
const LABEL: &str = "replumb.dev/calico-datastore-backup";
/// Annotation of every part: SHA-256 of the whole backup, uncompressed.
const CHECKSUM: &str = "replumb.dev/sha256";
/// Key of the part in the Secret's data.
const KEY: &str = "part";

/// Characters of the checksum in the Secrets' names.
const SHORT: usize = 10;

/// All Calico data in both stores.
pub async fn read(stores: &Stores) -> Result<(Tree, Vec<Entry>), StoreError> {
    tokio::try_join!(stores.v2.tree(), stores.v3.list(ROOT))
}

/// Writes the data into Secrets. The same data and the same `begun`, which is part of the content, give the same Secrets at each
/// attempt.
pub async fn keep(
    context: &Context,
    (tree, entries): &(Tree, Vec<Entry>),
    begun: Timestamp,
) -> Result<DatastoreBackup, WriteError> {
    let Content { text, sha256 } = content(tree, entries, begun);
    let parts = parts(&text).map_err(|source| {
        WriteError::of(
            "compressing",
            "the backup of both stores",
            kube::Error::Service(Box::new(source)),
        )
    })?;
    let short: String = sha256.chars().take(SHORT).collect();
    let id = format!("{}-{short}", begun.strftime("%Y%m%d"));
    let name = |number: usize| format!("replumb-calico-datastore-{id}-{number:03}");
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    for (number, part) in parts.iter().enumerate() {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name(number)),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), id.clone())])),
                annotations: Some(BTreeMap::from([(CHECKSUM.to_owned(), sha256.clone())])),
                ..ObjectMeta::default()
            },
            immutable: Some(true),
            type_: Some("Opaque".to_owned()),
            data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(part.clone()))])),
            ..Secret::default()
        };
        let what = format!("Secret {}/{}", context.namespace, name(number));
        write::create(&secrets, &what, &secret).await?;
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(DatastoreBackup {
        name: name(0),
        parts: count(parts.len()),
        sha256,
        v2_keys: count(tree.values.len()),
        v3_keys: count(entries.len()),
        taken_at: clock::now(),
    })
}

/// Compresses a text and cuts it into parts.
fn parts(text: &str) -> std::io::Result<Vec<Vec<u8>>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(text.as_bytes())?;
    let packed = packer.finish()?;
    Ok(packed.chunks(PART).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn joined_parts_give_the_text() {
        // A text that compresses badly, longer than a part.
        let mut seed = 1_u64;
        let text: String = (0..3 * PART)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                char::from(u8::try_from(32 + (seed >> 33) % 90).unwrap())
            })
            .collect();
        let parts = parts(&text).unwrap();
        assert!(
            parts.len() > 1 && parts.iter().all(|part| part.len() <= PART),
            "{}",
            parts.len()
        );
        let mut again = String::new();
        GzDecoder::new(parts.concat().as_slice())
            .read_to_string(&mut again)
            .unwrap();
        assert_eq!(again, text);
    }
}
