//! What outlives a pass of this kind, and is lost at a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use calico::etcd_access::Etcd;
use calico::etcd_access::StoreProblem;
use calico_datastore::cluster::facts::StoreFacts;
use calico_datastore::sources::Awaited;
use datastore::error::StoreError;
use datastore::stores::Stores;

use super::stores::{self, Patience};
use super::worker::Worker;
use crate::context::Context;

/// Connections are made anew after so long: certificates change.
const CONNECTION: Duration = Duration::from_mins(5);

/// Both stores are read again after so long at the soonest.
const SOONEST: Duration = Duration::from_secs(2);
/// And after so many times as long as it took: large stores of a cluster that works are not read all the time.
const TIMES: u32 = 10;

/// What was read last, and when; and who works on the stores.
#[derive(Default)]
pub struct Looks {
    connected: Option<Connected>,
    facts: Option<Look>,
    /// What v3 is not opened without.
    pub awaited: Awaited,
    /// Who works on the stores.
    pub worker: Worker,
}

/// Who asks: a Migration, as it was written last. Whoever writes one wants to know what is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Of the Migration.
    pub uid: String,
    /// Of its spec.
    pub generation: i64,
}

struct Look {
    by: Asked,
    again_at: Instant,
    facts: StoreFacts,
}

struct Connected {
    at: Instant,
    to: [Etcd; 2],
    stores: Arc<Stores>,
}

impl Looks {
    /// Both stores; connected already, or now.
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
        let stores = stores::connect(context, v2, v3, Patience::Looks).await?;
        self.connected = Some(Connected {
            at: Instant::now(),
            to,
            stores: Arc::clone(&stores),
        });
        Ok(stores)
    }

    /// Asks both stores. After an error it connects anew at the next look: this connection led to nothing.
    pub async fn ask<T>(
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

    /// What the checks need of both stores, not older than they need it.
    pub async fn facts(
        &mut self,
        context: &Context,
        v2: &Etcd,
        v3: &Etcd,
        by: Asked,
    ) -> Result<StoreFacts, StoreProblem> {
        // What another pair of stores said is forgotten by this.
        self.stores(context, v2, v3).await?;
        let begun = Instant::now();
        let known = self.facts.as_ref();
        if let Some(look) = known.filter(|look| look.by == by && begun < look.again_at) {
            return Ok(look.facts.clone());
        }
        let facts = self.ask(context, v2, v3, stores::facts).await?;
        let pause = SOONEST.max(begun.elapsed() * TIMES);
        self.facts = Some(Look {
            by,
            again_at: Instant::now() + pause,
            facts: facts.clone(),
        });
        Ok(facts)
    }
}
