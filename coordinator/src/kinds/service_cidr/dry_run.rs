//! Dry runs of the writes of an exchange, so that an admission policy that forbids one is known before the first change.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use api::Migration;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use service_cidr::assignment::key;
use service_cidr::exchange::{Part, Write};
use service_cidr::objects::{BridgeFacts, Objects, Request, Spare};
use service_cidr::side::{Side, Sides};

use super::addresses_of;
use super::objects::{get_service, try_create_service, try_patch_service};
use crate::context::Context;
use crate::failure::Failure as _;
use crate::pass_error::PassError;

/// Number of concurrent dry runs.
const AT_ONCE: usize = 8;

/// Time after which a refused or changed Service is tried again: the user who corrects it waits for the result.
const REFUSED: Duration = Duration::from_secs(10);
/// Time after which an accepted Service is tried again: a policy that is created meanwhile may forbid it.
const TAKEN: Duration = Duration::from_mins(5);

/// The results for one Migration, by the UID of the Service.
#[derive(Debug, Default)]
pub struct Trials {
    migration: String,
    answers: BTreeMap<String, Answer>,
}

/// The result for a Service.
#[derive(Debug)]
struct Answer {
    /// The version that was tried.
    version: String,
    at: Instant,
    /// Why a write would be refused.
    refusal: Option<String>,
}

impl Answer {
    fn holds(&self, version: &str) -> bool {
        // A Service that its owner edits all the time costs no more requests than that.
        let is_new = self.at.elapsed() < REFUSED;
        is_new || (self.refusal.is_none() && self.version == version && self.at.elapsed() < TAKEN)
    }
}

/// The results so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Services whose writes would be refused, and why.
    pub refused: Vec<(String, String)>,
    /// Number of Services that were not tried yet.
    pub untried: usize,
    /// Number of those that are older than the Migration: a tenant who creates Services all the time adds none to them.
    pub untried_before: usize,
}

impl Trials {
    /// Tries each of these Services (given as outlines) that has changed since its last try, or was tried too long ago. Starts no
    /// try after `limit`; returns the results so far. For another Migration all of them are tried.
    ///
    /// # Errors
    /// When the API server is unreachable. Earlier results are kept.
    pub async fn ask(
        &mut self,
        context: &Context,
        migration: &Migration,
        domain: &str,
        services: &[&Value],
        limit: Duration,
    ) -> Result<Tried, PassError> {
        let begun = Instant::now();
        let uid = migration.metadata.uid.as_deref().unwrap_or_default();
        if self.migration != uid {
            uid.clone_into(&mut self.migration);
            self.answers.clear();
        }
        let alive: BTreeSet<&str> = services.iter().map(|service| text(service, "uid")).collect();
        self.answers.retain(|uid, _| alive.contains(uid.as_str()));
        let mut due: Vec<&Value> = services
            .iter()
            .copied()
            .filter(|service| self.is_due(service))
            .collect();
        // First those that the plan waits for, then those without a result.
        due.sort_by_cached_key(|service| {
            (
                self.is_tried(service),
                text(service, "creationTimestamp").to_owned(),
            )
        });
        let answers = stream::iter(due)
            .map(|service| async move {
                if begun.elapsed() >= limit {
                    return None;
                }
                Some((service, refusal(context, domain, service).await))
            })
            .buffer_unordered(AT_ONCE);
        let mut answers = pin!(answers);
        while let Some(answer) = answers.next().await {
            let Some((service, refusal)) = answer else {
                continue;
            };
            let answer = Answer {
                version: text(service, "resourceVersion").to_owned(),
                at: Instant::now(),
                refusal: refusal?,
            };
            self.answers.insert(text(service, "uid").to_owned(), answer);
        }
        Ok(self.tried(migration, services))
    }

    fn is_tried(&self, service: &Value) -> bool {
        self.answers.contains_key(text(service, "uid"))
    }

    fn is_due(&self, service: &Value) -> bool {
        let known = self.answers.get(text(service, "uid"));
        known.is_none_or(|answer| !answer.holds(text(service, "resourceVersion")))
    }

    fn tried(&self, migration: &Migration, services: &[&Value]) -> Tried {
        let made = migration.creation_timestamp().map(|time| time.0);
        let is_before = |service: &Value| {
            let time: Option<Timestamp> = text(service, "creationTimestamp").parse().ok();
            time.is_none_or(|time| made.is_none_or(|made| time <= made))
        };
        let untried = || services.iter().filter(|service| !self.is_tried(service));
        let refused = services.iter().filter_map(|service| {
            let answer = self.answers.get(text(service, "uid"))?;
            Some((format!("Service {}", key(service)), answer.refusal.clone()?))
        });
        Tried {
            refused: refused.collect(),
            untried: untried().count(),
            untried_before: untried().filter(|service| is_before(service)).count(),
        }
    }
}

/// A field of the metadata of a Service.
fn text<'service>(service: &'service Value, field: &str) -> &'service str {
    service["metadata"][field].as_str().unwrap_or_default()
}

/// Why the API server would refuse the writes for the Service with this outline; `None` when it would not, or the Service is
/// deleted.
async fn refusal(context: &Context, domain: &str, outline: &Value) -> Result<Option<String>, PassError> {
    let (namespace, name) = (text(outline, "namespace"), text(outline, "name"));
    let Some(service) = get_service(&context.client, namespace, name).await? else {
        return Ok(None);
    };
    let service = &service;
    let of_itself = addresses_of(service);
    let addresses = Sides::each(|_| of_itself.clone());
    let objects = Objects {
        domain,
        service,
        addresses: &addresses,
        // The address does not matter here: any of the cluster's will do.
        spare: &Spare::default(),
        ground: &BridgeFacts::default(),
    };
    // A helper of each kind is created, and the Service becomes an ExternalName. The write that restores an address is the same
    // as the owner's, of a type that the Service has now.
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
            Ok(()) => {}
            // A Service that changed meanwhile is tried again.
            Err(error) if error.is_conflict() || error.already_exists() => {}
            Err(error) => match error.refusal() {
                Some(why) => return Ok(Some(why.to_owned())),
                None => return Err(error.into()),
            },
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    const LONG: Duration = Duration::from_mins(1);

    fn service(namespace: &str, name: &str, year: u32) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "resourceVersion": "1",
                "creationTimestamp": format!("{year}-06-01T00:00:00Z"),
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ipFamilies": ["IPv4"],
                "ports": [{ "port": 80, "protocol": "TCP" }], "selector": { "app": name },
            },
        })
    }

    struct World {
        api: FakeApi,
        context: Context,
        migration: Migration,
        services: Vec<Value>,
        trials: Trials,
    }

    impl World {
        fn new() -> Self {
            let migration = serde_json::from_value(json!({
                "metadata": { "name": "m", "uid": "m-1", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": {},
            }));
            let api = FakeApi::default();
            let services: Vec<Value> = (0..20)
                .map(|number| service("shop", &format!("web-{number}"), 2025))
                .chain((0..20).map(|number| service("crowd", &format!("many-{number}"), 2027)))
                .collect();
            for service in &services {
                let text = |field| text(service, field);
                let path = format!(
                    "/api/v1/namespaces/{}/services/{}",
                    text("namespace"),
                    text("name")
                );
                api.put(&path, service.clone());
            }
            Self {
                context: api.context(),
                api,
                migration: migration.unwrap(),
                services,
                trials: Trials::default(),
            }
        }

        async fn ask(&mut self, limit: Duration) -> Result<Tried, PassError> {
            let services: Vec<&Value> = self.services.iter().collect();
            let trials = &mut self.trials;
            trials
                .ask(&self.context, &self.migration, "cluster.local", &services, limit)
                .await
        }

        /// Namespaces of the Services that were tried since the last call, in order.
        fn asked(&self) -> Vec<&'static str> {
            let reads = self.api.take_reads();
            let patches = reads.iter().filter(|read| read.starts_with("TRY PATCH"));
            patches
                .map(|read| if read.contains("/shop/") { "shop" } else { "crowd" })
                .collect()
        }
    }

    #[tokio::test]
    async fn services_older_than_the_migration_are_tried_first() {
        let mut world = World::new();
        let tried = world.ask(Duration::ZERO).await.unwrap();
        assert_eq!((tried.untried, tried.untried_before), (40, 20));
        assert!(world.asked().is_empty());
        world
            .api
            .deny("/api/v1/namespaces/shop/services/web-3", "no names here");
        let tried = world.ask(LONG).await.unwrap();
        let asked = world.asked();
        assert_eq!((tried.untried, asked.len()), (0, 40));
        // Some dry runs are concurrent.
        assert!(
            asked[..20 - AT_ONCE].iter().all(|namespace| *namespace == "shop"),
            "{asked:?}"
        );
        let [(object, why)] = tried.refused.as_slice() else {
            panic!("{:?}", tried.refused);
        };
        assert_eq!(object, "Service shop/web-3");
        assert!(why.contains("no names here"), "{why}");
        assert!(world.api.take_changes().is_empty());
        assert_eq!(world.ask(LONG).await.unwrap(), tried);
        assert!(world.asked().is_empty());
        // A tenant who creates Services all the time delays none.
        world.services.push(service("crowd", "one-more", 2027));
        let tried = world.ask(Duration::ZERO).await.unwrap();
        assert_eq!((tried.untried, tried.untried_before), (1, 0));
    }

    #[tokio::test]
    async fn results_are_kept_when_a_pass_is_cancelled() {
        let mut world = World::new();
        world.api.hang("/api/v1/namespaces/shop/services/web-12");
        let given_up = tokio::time::timeout(Duration::from_millis(200), world.ask(LONG)).await;
        assert!(given_up.is_err());
        let tried = world.ask(Duration::ZERO).await.unwrap();
        assert!(tried.untried < 40, "{tried:?}");
        world.asked();
        world.api.hang("/none");
        assert_eq!(world.ask(LONG).await.unwrap().untried, 0);
        assert_eq!(world.asked().len(), tried.untried);
    }
}
