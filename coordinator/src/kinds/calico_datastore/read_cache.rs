//! State of this kind that is kept between passes, and lost at a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use calico::etcd_access::Etcd;
use calico::etcd_access::StoreProblem;
use calico_datastore::awaited::Awaited;
use calico_datastore::cluster::facts::StoreFacts;
use datastore::error::StoreError;
use datastore::stores::Stores;

use super::stores::{self, Patience};
use super::worker::Worker;
use crate::context::Context;
use crate::kind_memory::KindMemory;

/// Connections are opened again after this time, because certificates change.
const CONNECTION: Duration = Duration::from_mins(5);

/// Shortest time between two reads of both stores.
const SOONEST: Duration = Duration::from_secs(2);
/// Pause after a read, as a multiple of its duration: large stores of a working cluster are not read all the time.
const TIMES: u32 = 10;

/// The last read of the stores with its time, and the worker on the stores.
#[derive(Default)]
pub struct ReadCache {
    connected: Option<Connected>,
    facts: Option<CachedFacts>,
    /// Sources whose objects v3 must have before v3 opens.
    pub awaited: Awaited,
    /// The work on the stores.
    pub worker: Worker,
}

impl KindMemory for ReadCache {
    fn stop(&mut self) {
        self.worker.stop();
    }
}

/// The asking Migration, in its last written version: a user who writes one wants current facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// UID of the Migration.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
}

struct CachedFacts {
    by: ReadRequest,
    again_at: Instant,
    facts: StoreFacts,
}

struct Connected {
    at: Instant,
    to: [Etcd; 2],
    stores: Arc<Stores>,
}

impl ReadCache {
    /// Both stores, by an open connection or a new one.
    async fn stores(&mut self, context: &Context, v2: &Etcd, v3: &Etcd) -> Result<Arc<Stores>, StoreProblem> {
        let to = [v2.clone(), v3.clone()];
        let known = self
            .connected
            .as_ref()
            .filter(|known| known.to == to && known.at.elapsed() < CONNECTION);
        if let Some(known) = known {
            return Ok(Arc::clone(&known.stores));
        }
        self.connected = None;
        self.facts = None;
        let stores = stores::connect(context, v2, v3, Patience::FailFast).await?;
        self.connected = Some(Connected {
            at: Instant::now(),
            to,
            stores: Arc::clone(&stores),
        });
        Ok(stores)
    }

    /// Reads both stores. After an error the next read opens a new connection.
    pub async fn read<T>(
        &mut self,
        context: &Context,
        v2: &Etcd,
        v3: &Etcd,
        question: impl AsyncFnOnce(&Stores) -> Result<T, StoreError>,
    ) -> Result<T, StoreProblem> {
        let stores = self.stores(context, v2, v3).await?;
        match question(&stores).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.connected = None;
                self.facts = None;
                Err(stores::problem(&error))
            }
        }
    }

    /// The facts of both stores that the checks need, as recent as the checks need them.
    pub async fn facts(
        &mut self,
        context: &Context,
        v2: &Etcd,
        v3: &Etcd,
        by: ReadRequest,
    ) -> Result<StoreFacts, StoreProblem> {
        // A new pair of stores drops the facts of the former pair.
        self.stores(context, v2, v3).await?;
        let begun = Instant::now();
        let known = self.facts.as_ref();
        if let Some(look) = known.filter(|look| look.by == by && begun < look.again_at) {
            return Ok(look.facts.clone());
        }
        let facts = self.read(context, v2, v3, stores::facts).await?;
        let pause = SOONEST.max(begun.elapsed() * TIMES);
        self.facts = Some(CachedFacts {
            by,
            again_at: Instant::now() + pause,
            facts: facts.clone(),
        });
        Ok(facts)
    }
}
