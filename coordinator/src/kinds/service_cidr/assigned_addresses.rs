//! The book: the old and the new addresses of every Service that changes. The book is in replumb's own records, so that it may
//! grow and no tenant can write to it. An entry is written before the first change of its Service.

use std::collections::{BTreeMap, BTreeSet};

use api::Migration;
use api::migration::ServiceCidrStatus;
use api::record::{self, Content, MAX_BYTES, MigrationRecordSpec, RecordContent, ServiceRecord, bytes};
use crash_point::Edge;
use kube::Client;
use service_cidr::assignment::{self, AssignedAddresses, Assignment, AssignmentInputs};
use service_cidr::side::{Side, Sides};

use super::service_index::{Index, name_of};
use crate::context::Context;
use crate::records::Records;
use crate::write::WriteError;

/// The recorded book. `written_in_status` is the book in the status, by an earlier version: an entry of a record for the same
/// Service is newer.
pub fn read(records: &Records, written_in_status: AssignedAddresses) -> AssignedAddresses {
    record::recorded_addresses(
        records.holding(RecordContent::ServiceAddresses),
        written_in_status,
    )
}

/// The Services that nothing has been done for yet: no client knows their new addresses. Services in the book of an earlier
/// version are never among them.
pub fn untouched_services(records: &Records) -> BTreeSet<String> {
    let services = records
        .holding(RecordContent::ServiceAddresses)
        .flat_map(|record| &record.services);
    services
        .filter(|found| found.untouched)
        .map(|found| found.service.clone())
        .collect()
}

/// Writes the book, where it differs from the records. Nothing has been done yet for its `untouched` Services.
///
/// # Errors
///
/// A record changed since it was read, or the API server refuses a request or does not answer.
pub async fn write(
    client: &Client,
    records: &mut Records,
    migration: &Migration,
    book: &AssignedAddresses,
    untouched: &BTreeSet<String>,
) -> Result<(), WriteError> {
    let parts = place(records.holding(RecordContent::ServiceAddresses), book, untouched);
    let parts = parts.into_iter().map(Content::Services).collect();
    records
        .write(client, migration, RecordContent::ServiceAddresses, parts)
        .await
}

/// Records the addresses of Services that have no record yet, and returns all recorded ones. Nothing is done for a Service
/// without a record: after a crash both addresses have to be known. The pass continues, because a user who creates a Service each
/// second would stop it otherwise.
///
/// # Errors
///
/// A `MigrationRecord` changed since it was read, or the API server refuses a write or does not answer.
pub async fn record(
    context: &Context,
    records: &mut Records,
    migration: &Migration,
    known: &mut ServiceCidrStatus,
    index: &Index,
    goal: Side,
) -> Result<(Assignment, BTreeSet<String>), WriteError> {
    let written = read(records, known.written_here());
    let mut untouched = untouched_services(records);
    let ground = AssignmentInputs {
        goal,
        settings: &known.settings,
        since: migration.status.as_ref().and_then(|status| status.started_at),
        holder: &|address| index.holder(address),
    };
    let booked = assignment::assign_addresses(&written, index.services(), &ground);
    if booked.book != written || !known.addresses.is_empty() {
        for (key, both) in &booked.book {
            if written.get(key) != Some(both) {
                let entry = name_of(key).and_then(|name| index.service(&name));
                // A Service that was created at its new address has shown it to clients.
                if entry.is_some_and(|entry| entry.is_at(&both.old)) {
                    untouched.insert(key.clone());
                } else {
                    untouched.remove(key);
                }
            }
        }
        write(&context.client, records, migration, &booked.book, &untouched).await?;
        crash_point::reach("WriteAddresses", Edge::Recorded, None).await;
        known.addresses.clear();
    }
    Ok((booked, untouched))
}

/// The parts of this book. Each Service stays in its part, so that an added or deleted Service changes one part. A new Service is
/// added to the first part with room, or to a new part.
fn place<'record>(
    written: impl Iterator<Item = &'record MigrationRecordSpec>,
    book: &AssignedAddresses,
    untouched: &BTreeSet<String>,
) -> Vec<Vec<ServiceRecord>> {
    let entry = |name: &String, both: &Sides<Vec<std::net::IpAddr>>| ServiceRecord {
        service: name.clone(),
        old: both.old.clone(),
        new: both.new.clone(),
        untouched: untouched.contains(name),
    };
    let mut rest: BTreeMap<&String, &Sides<Vec<std::net::IpAddr>>> = book.iter().collect();
    let mut parts: Vec<Vec<ServiceRecord>> = written
        .map(|record| {
            let services = record.services.iter();
            services
                .filter_map(|found| {
                    let (name, both) = rest.remove_entry(&found.service)?;
                    Some(entry(name, both))
                })
                .collect()
        })
        .collect();
    let mut rooms: Vec<usize> = parts
        .iter()
        .map(|part| MAX_BYTES.saturating_sub(part.iter().map(bytes).sum()))
        .collect();
    let mut first = 0;
    for (name, both) in rest {
        let entry = entry(name, both);
        let size = bytes(&entry);
        // Entries have about the same size: a part without room for one has no room for the next.
        while rooms.get(first).is_some_and(|room| *room < size) {
            first += 1;
        }
        if first == parts.len() {
            parts.push(Vec::new());
            rooms.push(MAX_BYTES);
        }
        parts[first].push(entry);
        rooms[first] = rooms[first].saturating_sub(size);
    }
    while parts.last().is_some_and(Vec::is_empty) {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::{FakeApi, MIGRATION};

    const RECORDS: &str = "/apis/replumb.dev/v1alpha1/migrationrecords";

    /// Services with the longest possible names and addresses.
    fn services(count: usize) -> AssignedAddresses {
        (0..count)
            .map(|number| {
                let name = format!("{}/{number:0>63}", "n".repeat(63));
                let address = |start: &str| {
                    vec![
                        format!("255.255.{}.{}", number / 256, number % 256)
                            .parse()
                            .unwrap(),
                        format!("{start}:ffff:ffff:ffff:ffff:ffff:ffff:{number:x}")
                            .parse()
                            .unwrap(),
                    ]
                };
                let both = Sides {
                    old: address("fd00"),
                    new: address("fdff"),
                };
                (name, both)
            })
            .collect()
    }

    fn server() -> (FakeApi, Migration) {
        let api = FakeApi::default();
        api.put_migration(
            &json!({ "serviceCidr": { "to": [] } }),
            &api::MigrationStatus::default(),
        );
        let migration = serde_json::from_value(api.get(MIGRATION).unwrap()).unwrap();
        (api, migration)
    }

    #[tokio::test]
    async fn a_book_of_any_length_is_written_to_small_records() {
        let (api, migration) = server();
        let client = api.client();
        let mut records = Records::default();
        let book = services(30_000);
        write(&client, &mut records, &migration, &book, &none())
            .await
            .unwrap();
        let sizes: Vec<usize> = api
            .below(RECORDS)
            .iter()
            .map(|record| record.to_string().len())
            .collect();
        assert!(
            sizes.len() > 10 && sizes.iter().all(|size| *size < 256 * 1024),
            "{sizes:?}"
        );
        let mut next = Records::default();
        next.load(&client, &migration).await.unwrap();
        assert_eq!(read(&next, AssignedAddresses::new()), book);
    }

    fn none() -> BTreeSet<String> {
        BTreeSet::new()
    }

    #[tokio::test]
    async fn a_service_that_starts_changes_one_record() {
        let (api, migration) = server();
        let client = api.client();
        let mut records = Records::default();
        let book = services(3000);
        let mut untouched: BTreeSet<String> = book.keys().cloned().collect();
        write(&client, &mut records, &migration, &book, &untouched)
            .await
            .unwrap();
        let begins = untouched.pop_last().unwrap();
        api.take_changes();
        write(&client, &mut records, &migration, &book, &untouched)
            .await
            .unwrap();
        assert_eq!(api.take_changes().len(), 1, "only the Service's own record");
        let mut next = Records::default();
        next.load(&client, &migration).await.unwrap();
        assert_eq!(super::untouched_services(&next), untouched);
        assert!(!untouched.contains(&begins));
        assert_eq!(read(&next, AssignedAddresses::new()), book);
    }

    #[tokio::test]
    async fn an_added_and_a_deleted_service_change_one_record() {
        let (api, migration) = server();
        let client = api.client();
        let mut records = Records::default();
        let mut book = services(3000);
        write(&client, &mut records, &migration, &book, &none())
            .await
            .unwrap();
        api.take_changes();
        let gone = book.keys().next().unwrap().clone();
        book.remove(&gone);
        let (_, new) = services(3001).pop_last().unwrap();
        book.insert("a/late".to_owned(), new);
        write(&client, &mut records, &migration, &book, &none())
            .await
            .unwrap();
        let calls: Vec<String> = api.take_changes().into_iter().map(|(call, _)| call).collect();
        assert_eq!(calls, [format!("PATCH {RECORDS}/m-1-service-addresses-0")]);
        assert_eq!(read(&records, AssignedAddresses::new()), book);
        // All Services are deleted.
        write(
            &client,
            &mut records,
            &migration,
            &AssignedAddresses::new(),
            &none(),
        )
        .await
        .unwrap();
        assert!(api.below(RECORDS).is_empty());
    }

    #[tokio::test]
    async fn the_book_in_the_status_is_read_until_a_record_has_the_service() {
        let (api, migration) = server();
        let client = api.client();
        let mut records = Records::default();
        let (mut earlier, here) = (services(2), services(3));
        assert_eq!(read(&records, earlier.clone()), earlier);
        write(&client, &mut records, &migration, &here, &none())
            .await
            .unwrap();
        earlier.first_entry().unwrap().get_mut().new.clear();
        assert_eq!(read(&records, earlier), here);
    }

    /// After the last write of a process, the next one knows every Service that something was done for.
    #[tokio::test]
    async fn after_a_crash_at_any_write_the_next_process_writes_the_rest() {
        let book = services(2000);
        for writes in 0.. {
            let (api, migration) = server();
            let client = api.client();
            api.allow(Some(writes));
            let mut records = Records::default();
            let written = write(&client, &mut records, &migration, &book, &none()).await;
            api.allow(None);
            let mut next = Records::default();
            next.load(&client, &migration).await.unwrap();
            let found = read(&next, AssignedAddresses::new());
            assert!(found.iter().all(|(name, both)| book[name] == *both));
            write(&client, &mut next, &migration, &book, &none())
                .await
                .unwrap();
            assert_eq!(read(&next, AssignedAddresses::new()), book);
            if written.is_ok() {
                assert!(writes > 2, "the book takes more than one write");
                return;
            }
        }
    }
}
