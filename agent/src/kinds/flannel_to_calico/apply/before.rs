//! Reads the state that a step changes before the step. Writes copies of files into the journal's folder.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use flannel_to_calico::host::{BRIDGE, HostStep, PodAction, PodChange};

use super::error::ApplyError;
use crate::host::files::FileError;
use crate::host::paths::Paths;
use crate::host::snapshot::{Link, Snapshot};
use crate::host::{files, firewall, sysctl};
use crate::kinds::flannel_to_calico::journal::{Before, Journal};
use crate::kinds::flannel_to_calico::observe::Observation;

/// The state before the step.
pub(super) async fn before(
    step: &HostStep,
    seen: &Observation,
    paths: &Paths,
    journal: &Journal,
) -> Result<Before, ApplyError> {
    let name = step.name();
    let of_link = |link: &str| Before {
        network: seen
            .snapshot
            .link(link)
            .map(|link| seen.snapshot.of_link(link.index)),
        ..Before::default()
    };
    Ok(match step {
        HostStep::WithdrawSubnetEnvironment => copy(&paths.subnet_environment(), name, journal)?,
        HostStep::DeleteVxlanDevice(link) => of_link(link),
        HostStep::DeleteBridge => Before {
            texts: of_bridge(paths, name)?,
            ..of_link(BRIDGE)
        },
        // The link is missing after a crash during its recreation: only the journal has its attributes.
        HostStep::RenameVxlanDevice { from, .. } | HostStep::ReturnVxlanDevice { from, .. } => {
            match seen.snapshot.link(from) {
                Some(_) => of_link(from),
                None => journal.before_interrupted(step).cloned().unwrap_or_default(),
            }
        }
        HostStep::AnswerForPods => {
            // Those of both families: the bridge may have an IPv6 address when it is created again.
            let own = sysctl::answering(BRIDGE, true).into_iter();
            let parameters: Vec<PathBuf> = own.map(|(parameter, _)| paths.sysctl.join(parameter)).collect();
            texts(parameters.iter(), name)?
        }
        HostStep::OpenBridge => {
            // The second one is changed when the bridge is created again.
            let parameters = [
                sysctl::reverse_path_filter_of(BRIDGE),
                sysctl::duplicate_address_detection_of(BRIDGE),
            ];
            let all = parameters.map(|parameter| paths.sysctl.join(parameter));
            texts(all.iter(), name)?
        }
        HostStep::ChangePods(change) => of_pods(change, seen, paths, name)?,
        HostStep::ForgetLegacyPod(sandbox) => texts(records(seen, sandbox), name)?,
        HostStep::DeleteFirewallObject(object) => Before {
            rules: firewall::rules(object)
                .await
                .map_err(ApplyError::firewall(name))?,
            ..Before::default()
        },
        HostStep::RemoveLeases => {
            let files = seen
                .state
                .leases
                .iter()
                .chain(&seen.state.bookkeeping)
                .chain(&seen.state.delegates);
            texts(files, name)?
        }
        HostStep::RemoveConflist(file) | HostStep::RemoveCalicoConflist(file) => {
            copy(&paths.cni_configuration.join(file), name, journal)?
        }
        HostStep::RemoveCalicoRecords => texts(seen.state.of_calico.iter(), name)?,
        // There was nothing before, or Calico creates it again, or the journal has it already.
        HostStep::RouteLegacyPods(_)
        | HostStep::KeepBridgeAddresses(_)
        | HostStep::RemoveFrameRules(_)
        | HostStep::DropBridgeAddresses(_)
        | HostStep::RestoreBridge
        | HostStep::RevertPods(_)
        | HostStep::CloseBridge
        | HostStep::AnswerForAddresses(_)
        | HostStep::RouteSubnets { .. }
        | HostStep::StopAnsweringForAddresses
        | HostStep::UnrouteSubnets
        | HostStep::RestoreNodeRoutes { .. }
        | HostStep::RestoreConflist(_)
        | HostStep::DeleteCalicoFirewall(_)
        | HostStep::DeleteCalicoSets
        | HostStep::RestoreFirewallObject(_)
        | HostStep::DeleteBlackholes
        | HostStep::RestoreVxlanDevice(_)
        | HostStep::UnrouteLegacyPods
        | HostStep::StopAnsweringForPods
        | HostStep::RestoreSubnetEnvironment => Before::default(),
    })
}

/// What an action changes on the links of pods, under flannel's names.
fn of_pods(
    change: &PodChange,
    seen: &Observation,
    paths: &Paths,
    step: &'static str,
) -> Result<Before, ApplyError> {
    let parameters = |of_link: fn(&str) -> Vec<String>| {
        let names = change.pods.iter().flat_map(move |end| of_link(&end.link));
        let all: Vec<PathBuf> = names.map(|name| paths.sysctl.join(name)).collect();
        texts(all.iter(), step)
    };
    match change.action {
        PodAction::Loosen => parameters(|link| {
            vec![
                sysctl::reverse_path_filter_of(link),
                sysctl::ipv6_is_disabled_on(link),
            ]
        }),
        PodAction::Answer => parameters(|link| {
            let own = sysctl::answering_for_all(link, true).into_iter();
            let own = own.map(|(parameter, _)| parameter);
            own.chain(sysctl::of_felix(link)).collect()
        }),
        PodAction::Detach => {
            let is_port = |link: &&Link| change.pods.iter().any(|end| end.link == link.name);
            Ok(Before {
                network: Some(Snapshot {
                    links: seen.snapshot.links.iter().filter(is_port).cloned().collect(),
                    ..Snapshot::default()
                }),
                ..Before::default()
            })
        }
        PodAction::Route | PodAction::Accept | PodAction::Rename => Ok(Before::default()),
    }
}

/// The IPv4 parameters of the bridge: portmap sets `route_localnet` for host ports, and an administrator may have set others.
fn of_bridge(paths: &Paths, step: &'static str) -> Result<BTreeMap<PathBuf, String>, ApplyError> {
    let all = files_in(&paths.sysctl.join(sysctl::ipv4_of(BRIDGE)), step)?;
    Ok(texts(all.iter(), step)?.texts)
}

/// The writable files of a folder; none if it does not exist.
fn files_in(folder: &Path, step: &'static str) -> Result<Vec<PathBuf>, ApplyError> {
    let error = |source| ApplyError::file(step)(FileError::of("list folder", folder)(source));
    match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| {
                let entry = entry?;
                let is_writable = !entry.metadata()?.permissions().readonly();
                Ok(is_writable.then(|| entry.path()))
            })
            .filter_map(io::Result::transpose)
            .collect::<io::Result<_>>()
            .map_err(error),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(error(source)),
    }
}

/// A copy of a file in the journal's folder.
fn copy(path: &Path, step: &'static str, journal: &Journal) -> Result<Before, ApplyError> {
    let saved = journal
        .save(path)
        .map_err(|source| ApplyError::Journal { step, source })?;
    Ok(Before {
        files: saved.into_iter().collect(),
        ..Before::default()
    })
}

/// Contents of small files.
fn texts<'path>(
    paths: impl Iterator<Item = &'path PathBuf>,
    step: &'static str,
) -> Result<Before, ApplyError> {
    let mut texts = BTreeMap::new();
    for path in paths {
        let bytes = files::read_if_exists(path).map_err(ApplyError::file(step))?;
        if let Some(bytes) = bytes {
            texts.insert(path.clone(), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(Before {
        texts,
        ..Before::default()
    })
}

/// libcni's records of this sandbox.
pub(super) fn records<'seen>(
    seen: &'seen Observation,
    sandbox: &'seen str,
) -> impl Iterator<Item = &'seen PathBuf> {
    seen.state
        .attachments
        .iter()
        .filter(move |(_, attachment)| attachment.as_ref().is_ok_and(|known| known.sandbox == sandbox))
        .map(|(path, _)| path)
}
