//! Writes and removes twins of rules by the programs of the firewalls, in transactions.

use std::collections::BTreeMap;

use flannel_to_calico::facts::FirewallBackend;
use flannel_to_calico::foreign_rules::TwinOf;
use runtime::error::chain;

use super::super::backend::{load, program, transact};
use crate::host::program::{LOCK_SECONDS, ProgramError, run};

/// A twin that is missing, or that the agent has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Twin {
    pub(super) of: TwinOf,
    pub(super) place: Place,
    /// The twin as its program reads it, with the mark of the agent.
    pub(super) text: String,
    /// The same without the mark, as in the report.
    pub(super) plain: String,
}

/// Where a rule is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a chain of nftables (family, table and name), with this handle.
    Nft { chain: String, handle: String },
    /// In a chain of iptables, as the n-th rule, from 1. The text begins with `-A` and the chain.
    Iptables {
        backend: FirewallBackend,
        table: String,
        number: usize,
    },
}

/// Applies the script of all twins, or, if that is refused, of one after the other: from the last rule of a chain to the first, so
/// that the numbers of the others stay. Returns the refused twins, each with the reason.
pub(super) async fn each<'twins>(
    twins: &[&'twins Twin],
    script: fn(&[&Twin]) -> Scripts,
    mode: Mode,
) -> Vec<(&'twins Twin, String)> {
    if apply(&script(twins), mode).await.is_ok() {
        return Vec::new();
    }
    let mut refused = Vec::new();
    for twin in twins.iter().rev() {
        if let Err(error) = apply(&script(&[twin]), mode).await {
            refused.push((*twin, chain(&error)));
        }
    }
    refused
}

/// Whether scripts are only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Try,
    Change,
}

/// One transaction for each program.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    pub(super) nft: String,
    pub(super) iptables: BTreeMap<(FirewallBackend, String), String>,
}

impl Scripts {
    pub(super) fn to_write(twins: &[&Twin]) -> Self {
        let mut scripts = Self::default();
        // From the last rule of a chain to the first: the numbers of the others stay.
        for twin in twins.iter().rev() {
            match &twin.place {
                Place::Nft { chain, handle } => {
                    let line = format!("add rule {chain} handle {handle} {}\n", twin.text);
                    scripts.nft.push_str(&line);
                }
                Place::Iptables {
                    backend,
                    table,
                    number,
                } => {
                    let Some((chain, rest)) = of_chain(&twin.text) else {
                        continue;
                    };
                    let line = format!("-I {chain} {} {rest}\n", number + 1);
                    *scripts.of(*backend, table) += &line;
                }
            }
        }
        scripts
    }

    pub(super) fn to_remove(twins: &[&Twin]) -> Self {
        let mut scripts = Self::default();
        for twin in twins {
            match &twin.place {
                Place::Nft { chain, handle } => {
                    let line = format!("delete rule {chain} handle {handle}\n");
                    scripts.nft.push_str(&line);
                }
                Place::Iptables { backend, table, .. } => {
                    let Some((chain, rest)) = of_chain(&twin.text) else {
                        continue;
                    };
                    let line = format!("-D {chain} {rest}\n");
                    *scripts.of(*backend, table) += &line;
                }
            }
        }
        scripts
    }

    fn of(&mut self, backend: FirewallBackend, table: &str) -> &mut String {
        self.iptables.entry((backend, table.to_owned())).or_default()
    }
}

/// Chain and rest of a rule of iptables.
fn of_chain(rule: &str) -> Option<(&str, &str)> {
    rule.strip_prefix("-A ")?.split_once(' ')
}

async fn apply(scripts: &Scripts, mode: Mode) -> Result<(), ProgramError> {
    if !scripts.nft.is_empty() {
        match mode {
            Mode::Try => run("nft", &["-c", "-f", "-"], Some(&scripts.nft))
                .await
                .map(drop)?,
            Mode::Change => load(&scripts.nft).await?,
        }
    }
    for ((backend, table), lines) in &scripts.iptables {
        let script = format!("*{table}\n{lines}COMMIT\n");
        match mode {
            Mode::Try => {
                let restore = format!("{}-restore", program(*backend));
                let arguments = ["--test", "--noflush", "-w", LOCK_SECONDS];
                run(&restore, &arguments, Some(&script)).await.map(drop)?;
            }
            Mode::Change => transact(*backend, &script).await?,
        }
    }
    Ok(())
}
