//! The amount of one resource that the scheduler reserves for a pod.

use std::collections::BTreeMap;

use engine::cluster::{Needed, NotUnderstood};
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::super::not_understood;

/// The scheduler counts in signed 64-bit numbers: a request of this many thousandths of a CPU, or bytes, or more counts as zero,
/// and the pod gets a node (seen with v1.36.3 and `cpu: 20P`). The API server writes the same number for each larger one.
const COUNTABLE: u64 = i64::MAX as u64;

/// Amount of one resource that the scheduler reserves. An unreadable amount counts as zero, and is named.
pub(super) struct Request<'pod> {
    resource: &'static str,
    read: fn(&Quantity) -> Option<u64>,
    not_understood: &'pod mut Vec<NotUnderstood>,
}

impl<'pod> Request<'pod> {
    pub(super) fn new(
        resource: &'static str,
        read: fn(&Quantity) -> Option<u64>,
        not_understood: &'pod mut Vec<NotUnderstood>,
    ) -> Self {
        Self {
            resource,
            read,
            not_understood,
        }
    }

    /// The pod's own request, or the larger of its containers' sum and its init containers' peak; side-cars count in both. The
    /// runtime's overhead is added.
    pub(super) fn of(mut self, spec: &PodSpec) -> u64 {
        let mut together: u64 = 0;
        for container in &spec.containers {
            together = together.saturating_add(self.of_container(container));
        }
        let mut side_cars: u64 = 0;
        let mut peak: u64 = 0;
        for container in spec.init_containers.iter().flatten() {
            let own = self.of_container(container);
            peak = peak.max(side_cars.saturating_add(own));
            if container.restart_policy.as_deref() == Some("Always") {
                side_cars = side_cars.saturating_add(own);
            }
        }
        let of_pod = self.amount(
            || "resources.requests".to_owned(),
            requests(spec.resources.as_ref()),
        );
        let overhead = self.amount(|| "overhead".to_owned(), spec.overhead.as_ref());
        of_pod
            .unwrap_or(together.saturating_add(side_cars).max(peak))
            .saturating_add(overhead.unwrap_or_default())
    }

    fn of_container(&mut self, container: &Container) -> u64 {
        let field = || format!("container {}: resources.requests", container.name);
        self.amount(field, requests(container.resources.as_ref()))
            .unwrap_or_default()
    }

    fn amount(
        &mut self,
        field: impl Fn() -> String,
        amounts: Option<&BTreeMap<String, Quantity>>,
    ) -> Option<u64> {
        let quantity = amounts?.get(self.resource)?;
        let (needed, counted) = match (self.read)(quantity) {
            None => (Needed::Quantity, None),
            Some(COUNTABLE..) => (Needed::SmallerQuantity, Some(0)),
            Some(amount) => return Some(amount),
        };
        let field = format!("{}.{}", field(), self.resource);
        self.not_understood
            .push(not_understood(field, &quantity.0, needed));
        counted
    }
}

fn requests(resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Quantity>> {
    resources?.requests.as_ref()
}
