//! Reads of the pods that other components need, before pods are evicted for any reason.

use engine::pods::Pods;
use engine::residents::Needed;

use crate::context::Context;
use crate::facts::workloads::backends;
use crate::read;
use crate::read_cache::{CachedRead, Pace, refresh};
use crate::read_error::ReadError;

/// The last read of pods that other components need. Lost at a restart: then they are read again.
#[derive(Debug, Default)]
pub struct Needs(Option<CachedRead<Needed>>);

impl Needs {
    /// Pods that other components need. `pods` are all pods of the cluster.
    pub async fn read(&mut self, context: &Context, pods: &Pods, pace: Pace) -> Result<Needed, ReadError> {
        refresh(&mut self.0, pace, needed(context, pods)).await.cloned()
    }
}

async fn needed(context: &Context, pods: &Pods) -> Result<Needed, ReadError> {
    let (of_name_servers, webhooks) =
        tokio::try_join!(read::name_services(context), read::webhooks(context))?;
    let webhooks = webhooks.behind(pods);
    Ok(Needed {
        coordinator: (context.namespace.clone(), "coordinator".to_owned()),
        name_servers: backends(&of_name_servers, pods),
        admission: Needed::admission_of(&webhooks),
    })
}
