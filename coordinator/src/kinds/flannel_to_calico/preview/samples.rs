//! `ConnectionSample`s: one for each node with pods that policies may restrict. The coordinator writes what an agent samples, reads
//! what it has seen page by page, and judges at once: no more than a page is in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use api::ConnectionSample;
use api::connection_sample::{ConnectionSampleSpec, ConnectionSampleStatus, MAX_CAPACITY, SeenConnection};
use flannel_to_calico::preview::{NodeObservation, Observation};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client, ResourceExt};
use policy::conntrack::{Entry, Host, Tuple};
use policy::dormant::Restricted;
use policy::tally::Seen;
use policy::{Cluster, Protocol, Tally};
use tracing::warn;

use crate::clock;
use crate::failure::Failure as _;
use crate::lenient::Lenient;
use crate::lenient_requests;
use crate::read_error::ReadError;
use crate::write::{self, WriteError};

/// The most sums of refused connections, and of unknown ones.
const SUMS: usize = 4096;
/// Connections that all samples together have, and the fewest of one node.
const CONNECTIONS: usize = 200_000;
const FEWEST: u32 = 64;
/// A connection in a sample has at most so many bytes of JSON.
const CONNECTION_BYTES: u32 = 250;
/// The bytes of the first page of samples.
const PAGE_BYTES: u32 = 4 << 20;
/// Samples written at the same time.
const AT_ONCE: usize = 4;
/// Ports of clients on a host that has not reported them: the default of the kernel.
const CLIENT_PORTS: RangeInclusive<u16> = 32768..=60999;

/// The Migration that samples belong to.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its name.
    pub name: String,
    /// The reference that a sample has to it.
    pub reference: OwnerReference,
}

impl Owner {
    /// By name and UID: a Migration that was deleted and created again under its name is another one.
    fn has(&self, sample: &ConnectionSample) -> bool {
        let mut owners = sample.owner_references().iter();
        sample.spec.migration == self.name && owners.any(|owner| owner.uid == self.reference.uid)
    }
}

/// The number of connections that a sample keeps: the more nodes, the fewer. A power of two below the most, so that one node more
/// does not change every sample.
fn capacity(nodes: usize) -> u32 {
    let share = u32::try_from(CONNECTIONS / nodes.max(1)).unwrap_or(u32::MAX);
    match share.checked_ilog2() {
        _ if share >= MAX_CAPACITY => MAX_CAPACITY,
        Some(power) => (1 << power).max(FEWEST),
        None => FEWEST,
    }
}

/// Reads the samples, judges their connections, and writes the samples that differ from what is wanted. `nodes` is the number of
/// nodes of the cluster.
///
/// # Errors
///
/// The samples cannot be listed.
pub async fn judge(
    client: &Client,
    owner: &Owner,
    cluster: &Cluster,
    wanted: &BTreeMap<Arc<str>, Restricted>,
    nodes: usize,
    tunnel_ports: &[u16],
) -> Result<Observation, ReadError> {
    let capacity = capacity(nodes);
    let mut round = Round {
        owner,
        cluster,
        tunnel_ports,
        tally: Tally::new(SUMS),
        missing: 0,
        seen: BTreeMap::new(),
        foreign: Vec::new(),
    };
    let api: Api<ConnectionSample> = Api::all(client.clone());
    let page = ListParams::default().limit((PAGE_BYTES / (capacity * CONNECTION_BYTES)).max(1));
    let choose = |sample| {
        round.add(sample);
        None::<()>
    };
    lenient_requests::lenient_pages(&api, page, choose)
        .await
        .map_err(|source| ReadError::of("listing", "ConnectionSamples", source))?;
    let Round {
        tally,
        missing,
        seen,
        foreign,
        ..
    } = round;
    let mut problems = write_all(&api, owner, capacity, wanted, &seen, &foreign).await;
    let now = clock::now();
    let created = |name: &str| seen.get(name).and_then(|known| known.created);
    let since = wanted.keys().filter_map(|name| created(name)).min();
    let nodes = wanted.keys().map(|name| {
        let later = since.map(|since| created(name).unwrap_or(now).duration_since(since).as_secs());
        let known = seen.get(&**name).map(|known| known.observation.clone());
        let known = known.unwrap_or_default();
        let observation = NodeObservation {
            later_by: later
                .and_then(|later| u64::try_from(later).ok())
                .unwrap_or_default(),
            problem: problems.remove(&**name).or(known.problem),
            ..known
        };
        (name.to_string(), observation)
    });
    Ok(Observation {
        since,
        nodes: nodes.collect(),
        tally,
        missing,
    })
}

/// The samples of one round.
struct Round<'round> {
    owner: &'round Owner,
    cluster: &'round Cluster,
    tunnel_ports: &'round [u16],
    tally: Tally,
    missing: u64,
    /// The samples of this Migration, by node.
    seen: BTreeMap<String, Known>,
    /// Samples that belong to another Migration, or to no node.
    foreign: Vec<ConnectionSample>,
}

/// A sample without its connections.
struct Known {
    /// Without status.
    object: ConnectionSample,
    created: Option<Timestamp>,
    observation: NodeObservation,
}

impl Round<'_> {
    fn add(&mut self, read: Lenient<ConnectionSample>) {
        let problem = read.words();
        let mut sample = read.object;
        let name = sample.name_any();
        let status = sample.status.take();
        sample.metadata.managed_fields = None;
        if sample.metadata.deletion_timestamp.is_some() || self.seen.contains_key(&name) {
            // A list that was restarted has an object twice.
            return;
        }
        if !self.owner.has(&sample) || self.cluster.node(&name).is_none() {
            self.foreign.push(sample);
            return;
        }
        let status = status.unwrap_or_default();
        self.missing = self.missing.saturating_add(status.replaced);
        let host = Host {
            node: Arc::from(name.as_str()),
            client_ports: status
                .client_ports
                .map_or(CLIENT_PORTS, |range| range.first..=range.last),
            tunnel_ports: self.tunnel_ports.to_vec(),
        };
        for connection in &status.connections {
            self.tally.add(self.cluster, &host, &seen(connection, &host));
        }
        let known = Known {
            created: sample.metadata.creation_timestamp.as_ref().map(|time| time.0),
            observation: observed(&status, problem),
            object: sample,
        };
        self.seen.insert(name, known);
    }
}

/// `problem` is why the sample cannot be read.
fn observed(status: &ConnectionSampleStatus, problem: Option<String>) -> NodeObservation {
    // Both times are of the clock of the node.
    let seconds = status.since.zip(status.last).map(|(since, last)| {
        let seconds = last.duration_since(since).as_secs();
        u64::try_from(seconds).unwrap_or_default()
    });
    NodeObservation {
        seconds,
        later_by: 0,
        problem: problem.or_else(|| status.problem.clone()),
    }
}

/// The connection as connection tracking has it. A port that the agent leaves out is one of those that the host gives to clients.
fn seen(connection: &SeenConnection, host: &Host) -> Seen {
    let protocol = Protocol::of_number(connection.protocol);
    let has_ports = matches!(protocol, Protocol::Tcp | Protocol::Udp | Protocol::Sctp);
    let or_of_client = |port: Option<u16>| match port {
        Some(port) => port,
        None if has_ports => *host.client_ports.start(),
        None => 0,
    };
    let source_port = or_of_client(connection.source_port);
    let port = or_of_client(connection.port);
    let reply = Tuple {
        source: connection.destination,
        destination: connection.source,
        source_port: port,
        destination_port: source_port,
    };
    let original = Tuple {
        source: connection.source,
        // With NAT, the address that was sent to is not that of the answer.
        destination: if connection.is_translated {
            unspecified(connection.destination)
        } else {
            connection.destination
        },
        source_port,
        destination_port: port,
    };
    Seen {
        entry: Entry {
            protocol,
            original,
            reply,
            is_replied: connection.replied > 0,
        },
        has_port: connection.port.is_some() || !has_ports,
        count: connection.count,
        replied: connection.replied,
        first: connection.first,
        last: connection.last,
    }
}

fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Creates, changes and deletes samples. An object that cannot be written does not keep the others from being written; the errors
/// are returned by node.
async fn write_all(
    api: &Api<ConnectionSample>,
    owner: &Owner,
    capacity: u32,
    wanted: &BTreeMap<Arc<str>, Restricted>,
    seen: &BTreeMap<String, Known>,
    foreign: &[ConnectionSample],
) -> BTreeMap<String, String> {
    let taken: BTreeSet<String> = foreign.iter().map(ResourceExt::name_any).collect();
    let spec = |node: &str, restricted: Option<&Restricted>| ConnectionSampleSpec {
        node_name: node.to_owned(),
        migration: owner.name.clone(),
        capacity,
        ingress: restricted.map_or_else(Vec::new, |restricted| restricted.ingress.clone()),
        egress: restricted.map_or_else(Vec::new, |restricted| restricted.egress.clone()),
    };
    // The next round creates the sample of a node whose name another Migration's has.
    let missing = wanted
        .iter()
        .filter(|(node, _)| !seen.contains_key(&***node) && !taken.contains(&***node));
    let creations = missing.map(|(node, restricted)| Write::Create(spec(node, Some(restricted))));
    let changes = seen.iter().filter_map(|(node, known)| {
        let wanted = spec(node, wanted.get(node.as_str()));
        (known.object.spec != wanted).then(|| Write::Change(known.object.clone(), wanted))
    });
    let deletions = foreign.iter().cloned().map(Write::Delete);
    let writes: Vec<Write> = deletions.chain(changes).chain(creations).collect();
    let done = stream::iter(writes).map(|write| async move {
        let node = write.node();
        let error = write.make(api, owner).await.err()?;
        Some((node, error.message()))
    });
    let errors: Vec<Option<(String, String)>> = done.buffer_unordered(AT_ONCE).collect().await;
    errors.into_iter().flatten().collect()
}

/// One write of a sample.
enum Write {
    Create(ConnectionSampleSpec),
    Change(ConnectionSample, ConnectionSampleSpec),
    Delete(ConnectionSample),
}

impl Write {
    fn node(&self) -> String {
        match self {
            Self::Create(spec) => spec.node_name.clone(),
            Self::Change(object, _) | Self::Delete(object) => object.name_any(),
        }
    }

    async fn make(self, api: &Api<ConnectionSample>, owner: &Owner) -> Result<(), WriteError> {
        match self {
            Self::Create(spec) => {
                let what = format!("ConnectionSample {}", spec.node_name);
                let object = ConnectionSample {
                    metadata: ObjectMeta {
                        name: Some(spec.node_name.clone()),
                        owner_references: Some(vec![owner.reference.clone()]),
                        ..ObjectMeta::default()
                    },
                    spec,
                    status: None,
                };
                write::create(api, &what, &object).await
            }
            Self::Change(object, spec) => match write::patch_spec(api, &object, &object.spec, &spec).await {
                // The next round reads it again.
                Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Self::Delete(object) => write::delete(api, &object, None).await,
        }
    }
}

/// Deletes every sample, because no Migration needs any. Returns whether none is left; otherwise this is to be repeated.
pub async fn are_deleted(client: &Client) -> bool {
    match delete_all(client).await {
        Ok(()) => true,
        Err(error) => {
            warn!(
                error = error.message(),
                "ConnectionSamples not deleted; will be repeated"
            );
            false
        }
    }
}

async fn delete_all(client: &Client) -> Result<(), WriteError> {
    let api: Api<ConnectionSample> = Api::all(client.clone());
    let page = ListParams::default().limit(PAGE_BYTES / (MAX_CAPACITY * CONNECTION_BYTES));
    let without_status = |mut sample: ConnectionSample| {
        sample.status = None;
        Some(sample)
    };
    let samples = lenient_requests::pages(&api, page, without_status)
        .await
        .map_err(|source| ReadError::of("listing", "ConnectionSamples", source))?;
    for sample in &samples {
        write::delete(&api, sample, None).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
