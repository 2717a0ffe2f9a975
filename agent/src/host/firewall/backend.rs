//! Runs the programs of each firewall backend: reads chains and tables, and performs transactions.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use flannel_to_calico::facts::FirewallBackend;

use crate::host::files::{FileError, read_small};
use crate::host::program::{LOCK_SECONDS, ProgramError, lines, run};

/// Runs one transaction: either all of it is applied or nothing. --noflush keeps every chain that is not named.
pub(super) async fn transact(backend: FirewallBackend, script: &str) -> Result<(), ProgramError> {
    let restore = format!("{}-restore", program(backend));
    run(&restore, &["--noflush", "-w", LOCK_SECONDS], Some(script)).await?;
    Ok(())
}

/// Runs one transaction of nft: either all of it is applied or nothing.
///
/// # Errors
///
/// nft fails or does not end in time.
pub async fn load(rules: &str) -> Result<(), ProgramError> {
    run("nft", &["-f", "-"], Some(rules)).await.map(|_| ())
}

/// The lines for nft that delete a table (family and name), whether it exists or not.
pub fn without(table: &str) -> String {
    format!("add table {table}\ndelete table {table}\n")
}

/// The rules of one existing chain. With the nft backend, one chain is much cheaper than its table: with 10 000 Services, one
/// second instead of 15 seconds. With the legacy backend it is not cheaper, and takes the lock.
///
/// # Errors
///
/// The program of the backend fails or does not end in time, or the chain does not exist.
pub async fn chain(backend: FirewallBackend, table: &str, chain: &str) -> Result<Vec<String>, ProgramError> {
    let arguments = ["-w", LOCK_SECONDS, "-t", table, "-S", chain];
    lines(program(backend), &arguments, |_| true).await
}

/// The lines of one saved table that `keep` selects: with the legacy backend a table contains all rules of a node.
///
/// # Errors
///
/// The program of the backend fails or does not end in time.
pub async fn save(
    backend: FirewallBackend,
    table: &str,
    keep: impl FnMut(&str) -> bool,
) -> Result<Vec<String>, ProgramError> {
    let save = format!("{}-save", program(backend));
    lines(&save, &["-t", table], keep).await
}

/// Tables of the legacy backend of a family. Listing them with that backend's own program would create them.
///
/// # Errors
///
/// `/proc` is not mounted, or the list exists and cannot be read.
pub fn legacy_tables(proc: &Path, backend: FirewallBackend) -> Result<BTreeSet<String>, FileError> {
    let name = if backend == FirewallBackend::Ip6tablesLegacy {
        "ip6_tables_names"
    } else {
        "ip_tables_names"
    };
    let folder = proc.join("thread-self/net");
    let path = folder.join(name);
    match read_small(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::metadata(&folder).map_err(FileError::of("access folder", &folder))?;
            Ok(BTreeSet::new())
        }
        Err(error) => Err(FileError::of("read", &path)(error)),
    }
}

pub(super) fn family(backend: FirewallBackend) -> &'static str {
    match backend {
        FirewallBackend::IptablesNft | FirewallBackend::IptablesLegacy | FirewallBackend::Nftables => "ip",
        FirewallBackend::Ip6tablesNft | FirewallBackend::Ip6tablesLegacy => "ip6",
    }
}

pub(super) fn program(backend: FirewallBackend) -> &'static str {
    match backend {
        FirewallBackend::IptablesNft => "iptables-nft",
        FirewallBackend::Ip6tablesNft => "ip6tables-nft",
        FirewallBackend::IptablesLegacy => "iptables-legacy",
        FirewallBackend::Ip6tablesLegacy => "ip6tables-legacy",
        FirewallBackend::Nftables => "nft",
    }
}
