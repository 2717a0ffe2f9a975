//! What outlives a pass of this kind, and is lost at a restart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datastore::stores::Stores;
use plan::calico_datastore::cluster::etcd::Etcd;
use plan::calico_datastore::cluster::facts::{StoreFacts, StoreProblem};

use super::stores;
use super::worker::Worker;
use crate::context::Context;
use crate::etcd_access::problem;
use crate::looks::{Pace, is_old};

/// Connections are made anew after so long: certificates change.
const CONNECTION: Duration = Duration::from_mins(5);

/// What was read last, and when; and who works on the stores.
#[derive(Default)]
pub struct Looks {
    connected: Option<Connected>,
    facts: Option<(Instant, StoreFacts)>,
    /// Who works on the stores.
    pub worker: Worker,
}

struct Connected {
    at: Instant,
    to: [Etcd; 2],
    stores: Arc<Stores>,
}

impl Looks {
    /// Both stores; connected already, or now.
    pub async fn stores(
        &mut self,
        context: &Context,
        v2: &Etcd,
        v3: &Etcd,
    ) -> Result<Arc<Stores>, StoreProblem> {
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
        let stores = stores::connect(context, v2, v3).await?;
        self.connected = Some(Connected {
            at: Instant::now(),
            to,
            stores: Arc::clone(&stores),
        });
        Ok(stores)
    }

    /// Connects anew at the next look: this connection led to nothing.
    pub fn forget(&mut self) {
        self.connected = None;
        self.facts = None;
    }

    /// What the checks need of both stores, not older than they need it.
    pub async fn facts(
        &mut self,
        context: &Context,
        v2: &Etcd,
        v3: &Etcd,
    ) -> Result<StoreFacts, StoreProblem> {
        let stores = self.stores(context, v2, v3).await?;
        if !is_old(self.facts.as_ref(), Pace::Seldom)
            && let Some((_, facts)) = &self.facts
        {
            return Ok(facts.clone());
        }
        match stores::facts(&stores).await {
            Ok(facts) => {
                self.facts = Some((Instant::now(), facts.clone()));
                Ok(facts)
            }
            Err(error) => {
                self.forget();
                Err(problem(&error))
            }
        }
    }
}
