//! Records: data of a Migration that exceeds its own object. Records are read once and kept in memory, and each
//! write carries the version that was read.

use std::collections::BTreeMap;

use api::record::{self, Content, MAX_BYTES, RecordContent};
use api::{Migration, MigrationRecord, MigrationRecordSpec, names};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::own_pods;
use crate::read_error::ReadError;
use crate::write::{WriteError, describe, patch_as_read, post_parameters};

/// Stored records of one Migration.
#[derive(Debug, Default)]
pub struct Records {
    /// UID of the Migration whose records were read; `None` before.
    read_of: Option<String>,
    found: BTreeMap<(RecordContent, u32), MigrationRecord>,
}

impl Records {
    /// Reads the records of this Migration, unless they are loaded.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn load(&mut self, client: &Client, migration: &Migration) -> Result<(), ReadError> {
        let uid = migration.uid().unwrap_or_default();
        if self.read_of.as_ref() == Some(&uid) {
            return Ok(());
        }
        let api: Api<MigrationRecord> = Api::all(client.clone());
        let ours = ListParams::default().labels(&format!("{}={uid}", names::RECORD_OF_LABEL));
        let list = api.list(&ours).await.map_err(|source| {
            let what = format!("MigrationRecords of Migration {}", migration.name_any());
            ReadError::of("listing", what, source)
        })?;
        self.found = list
            .items
            .into_iter()
            .filter(|record| record.labels().get(names::RECORD_OF_LABEL) == Some(&uid))
            .map(|record| ((record.spec.content, record.spec.part), record))
            .collect();
        self.read_of = Some(uid);
        Ok(())
    }

    /// Forgets all records: another coordinator may write them from now on.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The records of this content, in order.
    pub fn holding(&self, holds: RecordContent) -> impl Iterator<Item = &MigrationRecordSpec> {
        let all = self.found.range((holds, 0)..=(holds, u32::MAX));
        all.map(|(_, record)| &record.spec)
    }

    /// Stores exactly these parts for this content. Unchanged parts are not written.
    ///
    /// # Errors
    ///
    /// A record changed since it was read, or the API server refuses a request or does not answer.
    pub async fn write(
        &mut self,
        client: &Client,
        migration: &Migration,
        holds: RecordContent,
        parts: Vec<Content>,
    ) -> Result<(), WriteError> {
        self.load(client, migration).await?;
        let written = self.write_all(client, migration, holds, parts).await;
        if written.is_err() {
            // Another writer may have changed them: the next pass reads them again.
            self.forget();
        }
        written
    }

    async fn write_all(
        &mut self,
        client: &Client,
        migration: &Migration,
        holds: RecordContent,
        parts: Vec<Content>,
    ) -> Result<(), WriteError> {
        let mut count = 0;
        for content in parts {
            let spec = MigrationRecordSpec::new(migration.name_any(), holds, count, content);
            self.write_one(client, migration, spec).await?;
            count += 1;
        }
        let api: Api<MigrationRecord> = Api::all(client.clone());
        let surplus = self.found.range((holds, count)..=(holds, u32::MAX));
        let surplus: Vec<(RecordContent, u32)> = surplus.map(|(key, _)| *key).collect();
        for key in surplus {
            if let Some(record) = self.found.get(&key) {
                delete(&api, record).await?;
            }
            self.found.remove(&key);
        }
        Ok(())
    }

    async fn write_one(
        &mut self,
        client: &Client,
        migration: &Migration,
        spec: MigrationRecordSpec,
    ) -> Result<(), WriteError> {
        let api: Api<MigrationRecord> = Api::all(client.clone());
        let key = (spec.content, spec.part);
        let written = match self.found.get(&key) {
            Some(found) if found.spec == spec => return Ok(()),
            Some(found) => {
                let change = api::merge::difference(&json!(found.spec), &json!(spec));
                let change = json!({ "spec": change });
                patch_as_read(&api, found, "writing", change).await?
            }
            None => create(&api, migration, spec).await?,
        };
        self.found.insert(key, written);
        Ok(())
    }
}

async fn create(
    api: &Api<MigrationRecord>,
    migration: &Migration,
    spec: MigrationRecordSpec,
) -> Result<MigrationRecord, WriteError> {
    let uid = migration.uid().unwrap_or_default();
    let name = record::name(&uid, spec.content, spec.part);
    let what = format!("MigrationRecord {name}");
    let owner = serde_json::from_value(own_pods::owner(migration))
        .map_err(|source| WriteError::of("building", &what, kube::Error::SerdeError(source)))?;
    let object = MigrationRecord {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(BTreeMap::from([(names::RECORD_OF_LABEL.to_owned(), uid)])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec,
    };
    match api.create(&post_parameters(), &object).await {
        Ok(made) => Ok(made),
        // Another writer created it since the records were read.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Err(WriteError::Conflict {
            attempt: "creating".to_owned(),
            object: what,
        }),
        Err(source) => Err(WriteError::of("creating", what, source)),
    }
}

/// Deletes a record as read; a missing record is not an error.
async fn delete(api: &Api<MigrationRecord>, record: &MigrationRecord) -> Result<(), WriteError> {
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: record.uid(),
            resource_version: record.resource_version(),
        }),
        ..DeleteParams::default()
    };
    match api.delete(&record.name_any(), &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of("deleting", describe(record), source)),
    }
}

/// Most bytes in a status of one value of the previous state.
const BEFORE_BYTES: usize = 16 * 1024;
/// Bytes of one part of a text: JSON may double the length.
const TEXT_BYTES: usize = MAX_BYTES / 2;

/// State before the first change: the values in the status, and the parts of longer ones.
pub struct Before {
    /// Values in the status.
    pub inline: BTreeMap<String, String>,
    /// Values in records: key → length of the text.
    pub in_records: BTreeMap<String, u64>,
    /// Content of those records.
    pub parts: Vec<Content>,
}

/// Divides the state before the first change.
pub fn divide(before: BTreeMap<String, String>) -> Before {
    let mut divided = Before {
        inline: BTreeMap::new(),
        in_records: BTreeMap::new(),
        parts: Vec::new(),
    };
    for (key, text) in before {
        if text.len() <= BEFORE_BYTES {
            divided.inline.insert(key, text);
            continue;
        }
        divided
            .in_records
            .insert(key.clone(), u64::try_from(text.len()).unwrap_or(u64::MAX));
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.floor_char_boundary(TEXT_BYTES));
            divided.parts.push(Content::Text(key.clone(), part.to_owned()));
            rest = behind;
        }
    }
    divided
}

/// The complete state before the first change; an error is the key of a text that is not as written.
///
/// # Errors
///
/// The records of a text are missing or incomplete.
pub fn assemble(
    inline: &BTreeMap<String, String>,
    in_records: &BTreeMap<String, u64>,
    records: &Records,
) -> Result<BTreeMap<String, String>, String> {
    let mut before = inline.clone();
    for (key, length) in in_records {
        let parts = records
            .holding(RecordContent::SavedState)
            .filter(|record| record.key == *key);
        let text: String = parts.map(|record| record.text.as_str()).collect();
        if u64::try_from(text.len()) != Ok(*length) {
            return Err(key.clone());
        }
        before.insert(key.clone(), text);
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::{FakeApi, MIGRATION};

    const RECORDS: &str = "/apis/replumb.dev/v1alpha1/migrationrecords";

    fn server() -> (FakeApi, Migration) {
        let api = FakeApi::default();
        api.put_migration(
            &json!({ "flannelToCalico": {} }),
            &api::MigrationStatus::default(),
        );
        let migration = serde_json::from_value(api.get(MIGRATION).unwrap()).unwrap();
        (api, migration)
    }

    fn texts(texts: &[&str]) -> Vec<Content> {
        let texts = texts.iter();
        texts
            .map(|text| Content::Text("key".to_owned(), (*text).to_owned()))
            .collect()
    }

    fn read(records: &Records) -> Vec<&str> {
        let before = records.holding(RecordContent::SavedState);
        before.map(|record| record.text.as_str()).collect()
    }

    #[tokio::test]
    async fn changed_records_are_written_and_a_successor_reads_them() {
        let (api, migration) = server();
        let client = api.client();
        let mut records = Records::default();
        let before = RecordContent::SavedState;
        records
            .write(&client, &migration, before, texts(&["a", "b", "c"]))
            .await
            .unwrap();
        api.take_changes();
        records
            .write(&client, &migration, before, texts(&["a", "x"]))
            .await
            .unwrap();
        let calls: Vec<String> = api.take_changes().into_iter().map(|(call, _)| call).collect();
        assert_eq!(
            calls,
            [
                format!("PATCH {RECORDS}/m-1-saved-state-1"),
                format!("DELETE {RECORDS}/m-1-saved-state-2")
            ]
        );
        assert_eq!(read(&records), ["a", "x"]);
        let mut next = Records::default();
        next.load(&client, &migration).await.unwrap();
        assert_eq!(read(&next), ["a", "x"]);
        let owner = api.get(&format!("{RECORDS}/m-1-saved-state-0")).unwrap()["metadata"]["ownerReferences"]
            [0]
        .clone();
        assert_eq!(owner["uid"], "m-1");
        // Records of another Migration are not loaded.
        let mut other = migration.clone();
        other.metadata.uid = Some("m-2".to_owned());
        next.load(&client, &other).await.unwrap();
        assert_eq!(read(&next), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn a_concurrent_write_is_not_overwritten() {
        let (api, migration) = server();
        let client = api.client();
        let (mut ours, mut others) = (Records::default(), Records::default());
        ours.load(&client, &migration).await.unwrap();
        others
            .write(&client, &migration, RecordContent::SavedState, texts(&["theirs"]))
            .await
            .unwrap();
        for wanted in [&["mine"], &["mine"]] {
            let refused = ours
                .write(&client, &migration, RecordContent::SavedState, texts(wanted))
                .await;
            if let Ok(()) = refused {
                // The second attempt has read the existing records.
                assert_eq!(read(&ours), ["mine"]);
                return;
            }
            assert!(matches!(refused, Err(WriteError::Conflict { .. })), "{refused:?}");
            assert_eq!(
                api.get(&format!("{RECORDS}/m-1-saved-state-0")).unwrap()["spec"]["text"],
                "theirs"
            );
        }
        panic!("the existing records are never read");
    }

    #[tokio::test]
    async fn previous_state_of_any_length_is_restored() {
        let (api, migration) = server();
        let client = api.client();
        let before = BTreeMap::from([
            ("short".to_owned(), "{}".to_owned()),
            ("long".to_owned(), "ä\"".repeat(200_000)),
        ]);
        let divided = divide(before.clone());
        assert_eq!(divided.inline.keys().collect::<Vec<_>>(), ["short"]);
        let mut records = Records::default();
        records
            .write(&client, &migration, RecordContent::SavedState, divided.parts)
            .await
            .unwrap();
        let whole = assemble(&divided.inline, &divided.in_records, &records);
        assert_eq!(whole.unwrap(), before);
        assert!(
            api.below(RECORDS)
                .iter()
                .all(|record| record.to_string().len() < 256 * 1024)
        );
        api.remove(&format!("{RECORDS}/m-1-saved-state-1"));
        let mut next = Records::default();
        next.load(&client, &migration).await.unwrap();
        let incomplete = assemble(&divided.inline, &divided.in_records, &next);
        assert_eq!(incomplete.unwrap_err(), "long");
    }
}
