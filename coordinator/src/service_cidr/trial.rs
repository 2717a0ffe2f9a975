//! Whether the API server would take the writes of an exchange: each is asked without effect (`dryRun`), so that an admission policy
//! that forbids one is known before anything has changed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

/// What was refused, and a Service that has changed, is asked about again after this time: the person who corrects it watches.
const REFUSED: Duration = Duration::from_secs(10);
/// What was not refused is asked about again after this time: a policy that is made meanwhile may forbid it.
const TAKEN: Duration = Duration::from_mins(5);

/// What was answered for one Migration, by the UID of the Service.
#[derive(Debug, Default)]
pub struct Trials {
    migration: String,
    answers: BTreeMap<String, Answer>,
}

/// What was answered of a Service.
#[derive(Debug)]
struct Answer {
    /// The version that was asked about.
    version: String,
    at: Instant,
    /// Why it would not be taken.
    refusal: Option<String>,
}

impl Answer {
    fn holds(&self, version: &str) -> bool {
        // An owner who edits a Service all the time costs no more requests than that.
        let is_new = self.at.elapsed() < REFUSED;
        is_new || (self.refusal.is_none() && self.version == version && self.at.elapsed() < TAKEN)
    }
}

impl Trials {
    /// Asks for each of these Services that has changed since, or was asked about too long ago; returns those that are refused, and why. The
    /// first look of another Migration (`migration` is its UID) asks for all of them.
    pub async fn ask(
        &mut self,
        context: &Context,
        migration: &str,
        domain: &str,
        services: &[&Value],
    ) -> Result<Vec<(String, String)>, WriteError> {
        if self.migration != migration {
            migration.clone_into(&mut self.migration);
            self.answers.clear();
        }
        let text =
            |service: &Value, field: &str| service["metadata"][field].as_str().unwrap_or_default().to_owned();
        let is_due = |service: &&&Value| {
            let known = self.answers.get(&text(service, "uid"));
            known.is_none_or(|answer| !answer.holds(&text(service, "resourceVersion")))
        };
        let new: Vec<&&Value> = services.iter().filter(is_due).collect();
        let answers: Vec<_> = stream::iter(new)
            .map(|service| async move { (*service, refusal(context, domain, service).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (service, answer) in answers {
            let answer = Answer {
                version: text(service, "resourceVersion"),
                at: Instant::now(),
                refusal: answer?,
            };
            self.answers.insert(text(service, "uid"), answer);
        }
        let refused = services.iter().filter_map(|service| {
            let answer = self.answers.get(&text(service, "uid"))?;
            Some((format!("Service {}", key(service)), answer.refusal.clone()?))
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
