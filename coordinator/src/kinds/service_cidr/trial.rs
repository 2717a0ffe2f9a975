//! Whether the API server would take the writes of an exchange: each is asked without effect (`dryRun`), so that an admission policy
//! that forbids one is known before anything has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use api::Migration;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use service_cidr::objects::{Ground, Objects, Request, Spare};
use service_cidr::side::{Side, Sides};
use service_cidr::subjects::key;
use service_cidr::swap::{Part, Write};

use super::addresses_of;
use super::objects::{get_service, try_create_service, try_patch_service};
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

/// What the API server has answered so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// The Services whose writes it would refuse, and why.
    pub refused: Vec<(String, String)>,
    /// How many Services it was not asked about yet.
    pub untried: usize,
    /// How many of those are older than the Migration: a tenant who makes Services all the time adds none to them.
    pub untried_before: usize,
}

impl Trials {
    /// Asks for each of these Services, known by their outlines, that has changed since, or was asked about too long ago, and begins no more of them after `limit`;
    /// returns what is known then. The first look of another Migration asks for all of them.
    ///
    /// # Errors
    /// When the API server is out of reach. What it answered before is kept.
    pub async fn ask(
        &mut self,
        context: &Context,
        migration: &Migration,
        domain: &str,
        services: &[&Value],
        limit: Duration,
    ) -> Result<Tried, WriteError> {
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
        // Those that are waited for first, then those that nothing is known of.
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

/// Why the API server would not take what is written of the Service with this outline; `None` when it would, or the Service is gone.
async fn refusal(context: &Context, domain: &str, outline: &Value) -> Result<Option<String>, WriteError> {
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

        async fn ask(&mut self, limit: Duration) -> Result<Tried, WriteError> {
            let services: Vec<&Value> = self.services.iter().collect();
            let trials = &mut self.trials;
            trials
                .ask(&self.context, &self.migration, "cluster.local", &services, limit)
                .await
        }

        /// Namespaces of the Services that were asked about since the last call, in order.
        fn asked(&self) -> Vec<&'static str> {
            let reads = self.api.take_reads();
            let patches = reads.iter().filter(|read| read.starts_with("TRY PATCH"));
            patches
                .map(|read| if read.contains("/shop/") { "shop" } else { "crowd" })
                .collect()
        }
    }

    #[tokio::test]
    async fn services_that_are_older_than_the_migration_are_asked_about_first_and_waited_for() {
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
        // Some are under way at a time.
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
        // A tenant who makes them all the time keeps none waiting.
        world.services.push(service("crowd", "one-more", 2027));
        let tried = world.ask(Duration::ZERO).await.unwrap();
        assert_eq!((tried.untried, tried.untried_before), (1, 0));
    }

    #[tokio::test]
    async fn what_was_answered_is_kept_when_the_look_is_given_up() {
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
