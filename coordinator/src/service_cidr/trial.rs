//! Whether the API server would take the writes of an exchange: each is asked without effect (`dryRun`), so that an admission policy
//! that forbids one is known before anything has changed.

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use plan::service_cidr::objects::{Ground, Objects, Request, Spare};
use plan::service_cidr::side::{Side, Sides};
use plan::service_cidr::subjects::key;
use plan::service_cidr::swap::{Part, Write};
use serde_json::Value;

use super::addresses_of;
use super::objects::{try_create_service, try_patch_service};
use crate::context::Context;
use crate::write::WriteError;

/// So many Services are asked about at the same time.
const AT_ONCE: usize = 8;

/// What was answered of each Service as it was then, by its UID: the version, and the refusal.
#[derive(Debug, Default)]
pub struct Trials(BTreeMap<String, (String, Option<String>)>);

impl Trials {
    /// Asks for each of these Services that has changed since; returns who is refused, and why.
    pub async fn ask(
        &mut self,
        context: &Context,
        domain: &str,
        services: &[&Value],
    ) -> Result<Vec<(String, String)>, WriteError> {
        let text =
            |service: &Value, field: &str| service["metadata"][field].as_str().unwrap_or_default().to_owned();
        let asked = |service: &&&Value| {
            let known = self.0.get(&text(service, "uid"));
            known.is_none_or(|(version, _)| *version != text(service, "resourceVersion"))
        };
        let new: Vec<&&Value> = services.iter().filter(asked).collect();
        let answers: Vec<_> = stream::iter(new)
            .map(|service| async move { (*service, refusal(context, domain, service).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (service, answer) in answers {
            let version = text(service, "resourceVersion");
            self.0.insert(text(service, "uid"), (version, answer?));
        }
        let refused = services.iter().filter_map(|service| {
            let (_, refusal) = self.0.get(&text(service, "uid"))?;
            Some((format!("Service {}", key(service)), refusal.clone()?))
        });
        Ok(refused.collect())
    }
}

/// Why the API server would not take what is written of this Service; `None` when it would.
async fn refusal(context: &Context, domain: &str, service: &Value) -> Result<Option<String>, WriteError> {
    let of_itself = addresses_of(service);
    let addresses = Sides::each(|_| of_itself.clone());
    let objects = Objects {
        domain,
        service,
        addresses: &addresses,
        // Of which address is no question here: any of those that the cluster has.
        spare: &Spare::default(),
        ground: &Ground::default(),
    };
    // A helper of each kind is made, and the Service becomes a name. What gives it back an address is the same write as the owner's, of
    // a type that it has now.
    let bridges = Part::ALL.into_iter().filter(|part| objects.needs(*part));
    let helpers = bridges
        .map(Write::CreateBridge)
        .chain([Write::CreateWarm(Side::New)]);
    for write in helpers.chain([Write::ServiceAway(Side::New)]) {
        let answer = match objects.request(write) {
            Some(Request::Create(_, helper)) => try_create_service(&context.client, &helper).await,
            Some(Request::PatchService(change)) => try_patch_service(&context.client, service, &change).await,
            Some(_) | None => continue,
        };
        match answer {
            // One that changed meanwhile is asked about again.
            Ok(()) | Err(WriteError::Conflict { .. }) => {}
            Err(error) if error.is_there_already() => {}
            Err(error) => match error.refusal() {
                Some(why) => return Ok(Some(why.to_owned())),
                None => return Err(error),
            },
        }
    }
    Ok(None)
}
