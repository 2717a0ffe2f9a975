//! Flags: which range Services come to, and how.

use api::migration::ServiceCidr;
use clap::Args;
use ipnet::IpNet;

use crate::error::CliError;
use crate::value;

/// What this kind lets one choose. Another kind has fields of the same names: each says its `id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Service CIDR (another range for the Services)")]
#[group(skip)]
pub struct Flags {
    /// Range that Services come to; one of each family that changes, with a comma between. Any option of this group asks for this kind
    /// and not for flannel to Calico.
    #[arg(id = "service-cidr-to", long = "service-cidr-to", value_name = "RANGE", value_parser = value::range, value_delimiter = ',')]
    to: Vec<IpNet>,
    /// How long old addresses answer once nobody is seen to use one. Default 24h.
    #[arg(id = "service-cidr-soak", long = "service-cidr-soak", value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Services that go before others, with commas between.
    #[arg(id = "service-cidr-order", long = "service-cidr-order", value_name = "NAMESPACE/NAME", value_parser = value::namespaced_name, value_delimiter = ',')]
    order: Vec<String>,
    /// Services that exchange their addresses at the same time: 1 to 50. Default 10.
    #[arg(id = "service-cidr-services-at-once", long = "service-cidr-services-at-once", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    services_at_once: Option<u32>,
    /// Pods that may start again at the same time. Default 5.
    #[arg(id = "service-cidr-pods-at-once", long = "service-cidr-pods-at-once", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pods_at_once: Option<u32>,
    /// Whether load balancers keep their addresses; without it the end waits until none has an old one. Default true.
    #[arg(id = "service-cidr-keep-load-balancers", long = "service-cidr-keep-load-balancers", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    keep_load_balancers: Option<bool>,
    /// Evict pods that no controller creates again, after all others.
    #[arg(id = "service-cidr-delete-bare-pods", long = "service-cidr-delete-bare-pods", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    delete_bare_pods: Option<bool>,
}

impl Flags {
    /// The flags that were given, as they are typed.
    pub fn said(&self) -> Vec<&'static str> {
        // Every field by name: one that is added is not forgotten here.
        let Self {
            to,
            soak,
            order,
            services_at_once,
            pods_at_once,
            keep_load_balancers,
            delete_bare_pods,
        } = self;
        [
            ("--service-cidr-to", !to.is_empty()),
            ("--service-cidr-soak", soak.is_some()),
            ("--service-cidr-order", !order.is_empty()),
            ("--service-cidr-services-at-once", services_at_once.is_some()),
            ("--service-cidr-pods-at-once", pods_at_once.is_some()),
            (
                "--service-cidr-keep-load-balancers",
                keep_load_balancers.is_some(),
            ),
            ("--service-cidr-delete-bare-pods", delete_bare_pods.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, said)| said.then_some(flag))
        .collect()
    }

    /// The flags over the kind that is there; without one the range has to be said.
    pub fn over(&self, there: Option<ServiceCidr>) -> Result<ServiceCidr, CliError> {
        let mut kind = match there {
            Some(there) => there,
            None if self.to.is_empty() => return Err(CliError::NoServiceRange),
            None => to(self.to.clone()),
        };
        if !self.to.is_empty() {
            kind.to.clone_from(&self.to);
        }
        if !self.order.is_empty() {
            kind.order.clone_from(&self.order);
        }
        kind.soak_seconds = self.soak.or(kind.soak_seconds);
        kind.services_at_once = self.services_at_once.or(kind.services_at_once);
        kind.pods_at_once = self.pods_at_once.or(kind.pods_at_once);
        kind.keep_load_balancers = self.keep_load_balancers.unwrap_or(kind.keep_load_balancers);
        kind.delete_bare_pods = self.delete_bare_pods.unwrap_or(kind.delete_bare_pods);
        Ok(kind)
    }
}

/// A change to these ranges, with every default.
fn to(to: Vec<IpNet>) -> ServiceCidr {
    ServiceCidr {
        to,
        keep_load_balancers: true,
        order: Vec::new(),
        services_at_once: None,
        pods_at_once: None,
        delete_bare_pods: false,
        soak_seconds: None,
    }
}
