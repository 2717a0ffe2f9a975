//! The environment variables of Calico's migration controller, read by `--from-env`.

use flannel_to_calico::settings::Options;
use thiserror::Error;

use crate::error::KindError;
use crate::value;

/// Why the environment cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EnvironmentError {
    /// A malformed value.
    #[error("environment variable {variable}: found {found:?}, {needed}")]
    Malformed {
        /// Name of the variable.
        variable: String,
        /// Its value.
        found: String,
        /// The form that is needed.
        needed: String,
    },
    /// A variable that is not supported.
    #[error("environment variable {variable}: found {found:?}, needed none: {reason}")]
    NotHonoured {
        /// Name of the variable.
        variable: String,
        /// Its value.
        found: String,
        /// Why.
        reason: &'static str,
    },
    /// None of the variables is set.
    #[error("--from-env: none of {} is set", SUPPORTED.join(", "))]
    Nothing,
}

/// Every reason why the environment cannot be used.
#[derive(Debug, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n       "))]
pub struct EnvironmentErrors(pub Vec<EnvironmentError>);

impl KindError for EnvironmentErrors {}

/// The options from the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FromEnvironment {
    /// The options that are set.
    pub options: Options,
    /// Variables that are set and have no effect, one line each.
    pub warnings: Vec<String>,
}

/// The supported variables.
pub const SUPPORTED: [&str; 13] = [
    "FLANNEL_NETWORK",
    "FLANNEL_DAEMONSET_NAME",
    "FLANNEL_DAEMONSET_NAMESPACE",
    "FLANNEL_MTU",
    "FLANNEL_IP_MASQ",
    "FLANNEL_SUBNET_LEN",
    "FLANNEL_ANNOTATION_PREFIX",
    "FLANNEL_VNI",
    "FLANNEL_PORT",
    "CALICO_DAEMONSET_NAME",
    "CALICO_DAEMONSET_NAMESPACE",
    "DEFAULT_IPPOOL_SIZE",
    "CNI_CONFIG_DIR",
];

/// Variables that would change the effect of the migration and are not supported: to ignore them would do something else than
/// requested.
const REFUSED: [(&str, &str); 1] = [(
    "FLANNEL_IPV6_NETWORK",
    "the IPv6 network of flannel is always detected; unset the variable",
)];

/// Variables without an effect.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    (
        "FLANNEL_IPV6_SUBNET_LEN",
        "the IPv6 subnet length is always detected",
    ),
    (
        "DEFAULT_IPPOOL_SIZE_V6",
        "the IPv6 pool has the default block size",
    ),
    (
        "FLANNEL_SUBNET_ENV",
        "the agent reads /run/flannel/subnet.env on every node",
    ),
    ("POD_NODE_NAME", "the coordinator detects its node"),
    (
        "DEBUG_WAIT_BEFORE_START",
        "use rollout.intervalSeconds or `pause`",
    ),
    ("DEBUG_WAIT_BEFORE_EXIT", "use rollout.intervalSeconds or `pause`"),
];

/// Reads the variables. Every malformed variable is an error, and all errors are returned.
pub fn read(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<FromEnvironment, Vec<EnvironmentError>> {
    let mut variables: Vec<(String, String)> = variables.into_iter().collect();
    variables.sort();
    let mut read = FromEnvironment::default();
    let mut errors = Vec::new();
    let mut supported = 0;
    for (variable, found) in variables {
        if SUPPORTED.contains(&variable.as_str()) {
            supported += 1;
            if let Err(needed) = set(&mut read.options, &variable, &found) {
                errors.push(EnvironmentError::Malformed {
                    variable,
                    found,
                    needed,
                });
            }
        } else if let Some((_, reason)) = REFUSED.iter().find(|(name, _)| *name == variable) {
            errors.push(EnvironmentError::NotHonoured {
                variable,
                found,
                reason,
            });
        } else if let Some((_, reason)) = WITHOUT_EFFECT.iter().find(|(name, _)| *name == variable) {
            read.warnings
                .push(format!("environment variable {variable} has no effect: {reason}"));
        } else if variable.starts_with("FLANNEL_") {
            read.warnings.push(format!(
                "environment variable {variable} is unknown and has no effect"
            ));
        }
    }
    if supported == 0 && errors.is_empty() {
        errors.push(EnvironmentError::Nothing);
    }
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

fn set(options: &mut Options, variable: &str, text: &str) -> Result<(), String> {
    match variable {
        "FLANNEL_NETWORK" => options.flannel_network = Some(value::network(text)?),
        "FLANNEL_DAEMONSET_NAME" => options.flannel_daemon_set_name = Some(value::object_name(text)?),
        "FLANNEL_DAEMONSET_NAMESPACE" => options.flannel_daemon_set_namespace = Some(value::namespace(text)?),
        "FLANNEL_MTU" => options.flannel_mtu = Some(value::mtu(text)?),
        "FLANNEL_IP_MASQ" => options.flannel_ip_masquerade = Some(value::truth(text)?),
        "FLANNEL_SUBNET_LEN" => options.flannel_subnet_length = Some(value::subnet_length(text)?),
        "FLANNEL_ANNOTATION_PREFIX" => {
            options.flannel_annotation_prefix = Some(value::annotation_prefix(text)?);
        }
        "FLANNEL_VNI" => options.flannel_vni = Some(value::vni(text)?),
        "FLANNEL_PORT" => options.flannel_port = Some(value::port(text)?),
        "CALICO_DAEMONSET_NAME" => options.calico_daemon_set_name = Some(value::object_name(text)?),
        "CALICO_DAEMONSET_NAMESPACE" => options.calico_daemon_set_namespace = Some(value::namespace(text)?),
        "DEFAULT_IPPOOL_SIZE" => options.ip_pool_block_size = Some(value::block_size(text)?),
        "CNI_CONFIG_DIR" => options.cni_configuration_directory = Some(value::folder(text)?),
        other => return Err(format!("variable {other} is listed but not read")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<FromEnvironment, Vec<EnvironmentError>> {
        read(
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    /// Variable, valid value, that value in the spec, malformed value, part of the error.
    const TABLE: [(&str, &str, &str, &str, &str); 13] = [
        (
            "FLANNEL_NETWORK",
            "10.244.0.0/16",
            r#"{"flannelNetwork":"10.244.0.0/16"}"#,
            "10.244.0.0",
            "such as 10.244.0.0/16",
        ),
        (
            "FLANNEL_DAEMONSET_NAME",
            "kube-flannel-ds",
            r#"{"flannelDaemonSetName":"kube-flannel-ds"}"#,
            "Kube",
            "name of an object",
        ),
        (
            "FLANNEL_DAEMONSET_NAMESPACE",
            "kube-flannel",
            r#"{"flannelDaemonSetNamespace":"kube-flannel"}"#,
            "a.b",
            "name of a namespace",
        ),
        (
            "FLANNEL_MTU",
            "1450",
            r#"{"flannelMtu":1450}"#,
            "14500000",
            "from 576 to 65535",
        ),
        (
            "FLANNEL_IP_MASQ",
            "True",
            r#"{"flannelIpMasquerade":true}"#,
            "yes",
            "true or false",
        ),
        (
            "FLANNEL_SUBNET_LEN",
            "24",
            r#"{"flannelSubnetLength":24}"#,
            "/24",
            "from 8 to 30",
        ),
        (
            "FLANNEL_ANNOTATION_PREFIX",
            "flannel.alpha.coreos.com",
            r#"{"flannelAnnotationPrefix":"flannel.alpha.coreos.com"}"#,
            "a b",
            "domain",
        ),
        (
            "FLANNEL_VNI",
            "4096",
            r#"{"flannelVni":4096}"#,
            "0",
            "from 1 to 16777215",
        ),
        (
            "FLANNEL_PORT",
            "8472",
            r#"{"flannelPort":8472}"#,
            "65536",
            "from 1 to 65535",
        ),
        (
            "CALICO_DAEMONSET_NAME",
            "calico-node",
            r#"{"calicoDaemonSetName":"calico-node"}"#,
            "",
            "name of an object",
        ),
        (
            "CALICO_DAEMONSET_NAMESPACE",
            "calico-system",
            r#"{"calicoDaemonSetNamespace":"calico-system"}"#,
            "-",
            "name of a namespace",
        ),
        (
            "DEFAULT_IPPOOL_SIZE",
            "26",
            r#"{"ipPoolBlockSize":26}"#,
            "33",
            "from 20 to 32",
        ),
        (
            "CNI_CONFIG_DIR",
            "/etc/cni/net.d",
            r#"{"cniConfigurationDirectory":"/etc/cni/net.d"}"#,
            "net.d",
            "full path",
        ),
    ];

    #[test]
    fn every_variable_reaches_its_option() {
        let named: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
        assert_eq!(named, SUPPORTED);
        for (variable, good, wire, ..) in TABLE {
            let read = of(&[(variable, good)]).unwrap();
            assert_eq!(serde_json::to_string(&read.options).unwrap(), wire, "{variable}");
            assert!(read.warnings.is_empty());
        }
    }

    #[test]
    fn a_malformed_value_is_named_with_the_form_needed() {
        for (variable, _, _, bad, needed) in TABLE {
            let errors = of(&[(variable, bad)]).unwrap_err();
            let message = errors[0].to_string();
            assert_eq!(errors.len(), 1, "{variable}");
            assert!(
                message.contains(variable) && message.contains(&format!("{bad:?}")),
                "{message}"
            );
            assert!(message.contains(needed), "{message}");
        }
    }

    #[test]
    fn all_errors_are_returned_at_once() {
        let errors = of(&[
            ("FLANNEL_VNI", "x"),
            ("FLANNEL_PORT", "y"),
            ("FLANNEL_MTU", "1450"),
        ])
        .unwrap_err();
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn unsupported_and_unknown_variables_are_named() {
        let errors = of(&[("FLANNEL_IPV6_NETWORK", "fd00::/48"), ("FLANNEL_VNI", "1")]).unwrap_err();
        assert!(
            errors[0].to_string().contains("FLANNEL_IPV6_NETWORK"),
            "{errors:?}"
        );
        let read = of(&[
            ("FLANNEL_VNI", "1"),
            ("POD_NODE_NAME", "a"),
            ("FLANNEL_VNJ", "2"),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!(read.warnings.len(), 2, "{:?}", read.warnings);
        assert!(
            read.warnings
                .iter()
                .any(|warning| warning.contains("FLANNEL_VNJ"))
        );
    }

    #[test]
    fn an_environment_without_a_supported_variable_is_an_error() {
        assert_eq!(of(&[("PATH", "/bin")]), Err(vec![EnvironmentError::Nothing]));
    }
}
