//! Flags of serviceCidr: the new ranges, and how Services move.

use api::MigrationSpec;
use api::migration::ServiceCidr;
use clap::Args;
use ipnet::IpNet;

use super::error::NoServiceRange;
use crate::error::CliError;
use crate::kinds::kind::KindFlags;
use crate::value;

/// Flags of this kind. Each has an `id`, since another kind has fields with the same names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Service CIDR (new range for Services)")]
#[group(skip)]
pub struct Flags {
    /// New ranges for Services, separated by a comma: one for each address family that changes. Any option of this group selects
    /// serviceCidr instead of flannelToCalico.
    #[arg(id = "service-cidr-to", long = "service-cidr-to", value_name = "RANGE", value_parser = value::range, value_delimiter = ',')]
    to: Vec<IpNet>,
    /// How long old addresses answer after the last observed use. Default 24h.
    #[arg(id = "service-cidr-soak", long = "service-cidr-soak", value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Services that move before others, separated by commas.
    #[arg(id = "service-cidr-order", long = "service-cidr-order", value_name = "NAMESPACE/NAME", value_parser = value::namespaced_name, value_delimiter = ',')]
    order: Vec<String>,
    /// Services that change their addresses at the same time: 1 to 250. Default 10.
    #[arg(id = "service-cidr-services-at-once", long = "service-cidr-services-at-once", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=250))]
    services_at_once: Option<u32>,
    /// Pods that may restart at the same time. Default 5.
    #[arg(id = "service-cidr-pods-at-once", long = "service-cidr-pods-at-once", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pods_at_once: Option<u32>,
    /// Whether load balancers keep their addresses. If false, the end waits until no load balancer has an old address. Default
    /// true.
    #[arg(id = "service-cidr-keep-load-balancers", long = "service-cidr-keep-load-balancers", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    keep_load_balancers: Option<bool>,
    /// Evict pods without a controller, after all others. They are not recreated.
    #[arg(id = "service-cidr-delete-bare-pods", long = "service-cidr-delete-bare-pods", value_name = "BOOL", value_parser = value::truth, num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    delete_bare_pods: Option<bool>,
}

impl KindFlags for Flags {
    fn set_flags(&self) -> Vec<&'static str> {
        // Destructured, so that a new field cannot be forgotten here.
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
        .filter_map(|(flag, is_set)| is_set.then_some(flag))
        .collect()
    }

    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError> {
        spec.service_cidr = Some(self.over(spec.service_cidr.take())?);
        Ok(())
    }
}

impl Flags {
    /// The existing spec, overridden by the flags; a new spec needs the range.
    fn over(&self, there: Option<ServiceCidr>) -> Result<ServiceCidr, CliError> {
        let mut kind = match there {
            Some(there) => there,
            None if self.to.is_empty() => return Err(NoServiceRange.into()),
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

/// A spec with these ranges and all defaults.
fn to(to: Vec<IpNet>) -> ServiceCidr {
    ServiceCidr {
        to,
        keep_load_balancers: true,
        order: Vec::new(),
        services_at_once: None,
        pods_at_once: None,
        delete_bare_pods: false,
        soak_seconds: None,
        rollback_services: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    #[test]
    fn the_flag_services_at_once_has_the_limits_of_the_field() {
        let schema = schemars::schema_for!(ServiceCidr).to_value();
        let field = &schema["properties"]["servicesAtOnce"];
        let (least, most) = (
            field["minimum"].as_u64().unwrap(),
            field["maximum"].as_u64().unwrap(),
        );
        for (number, is_valid) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            let line = Line::try_parse_from([
                "x".to_owned(),
                format!("--service-cidr-services-at-once={number}"),
            ]);
            assert_eq!(
                line.is_ok_and(|line| line.flags.services_at_once.is_some()),
                is_valid,
                "{number}"
            );
        }
        let help = Line::command();
        let flag = help
            .get_arguments()
            .find(|flag| flag.get_id() == "service-cidr-services-at-once");
        let help = flag.and_then(|flag| flag.get_help()).unwrap().to_string();
        assert!(help.contains(&format!("{least} to {most}")), "{help}");
    }
}
