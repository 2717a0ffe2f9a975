//! Reads flannel's chains, rules and tables in every firewall backend of the kernel, and deletes them object by object, each in
//! one transaction; rules of other programs are never touched.

mod backend;
pub mod calico;
pub mod detour;
mod flannel;
pub mod foreign;
pub mod frames;
mod nftables;

use std::path::Path;

use api::FailureCategory;
use flannel_to_calico::facts::FirewallObject;
use thiserror::Error;

pub use self::backend::{chain, legacy_tables, load, save, without};
use self::detour::Detour;
pub use self::flannel::{delete, restore, rules};
pub use self::nftables::Nftables;
use super::files::FileError;
use super::netlink::{NfTables, nf_tables};
use super::program::ProgramError;

/// The firewall could not be read or changed.
#[derive(Debug, Error)]
pub enum FirewallError {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The kernel's list of legacy tables could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A table with a chain of flannel cannot be read by iptables.
    #[error(
        "chain {chain} is in table {table}, which iptables cannot read because of rules added with nft: \
         delete the chain and the jumps to it with nft"
    )]
    Incompatible {
        /// Family and name of the table.
        table: String,
        /// flannel's chain.
        chain: String,
    },
    /// The object is not one of flannel's chains or tables.
    #[error("{0} is not a chain or table of flannel")]
    NotFlannel(String),
}

impl FirewallError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Program(error) => error.category(),
            Self::File(error) => error.category(),
            Self::Incompatible { .. } => FailureCategory::FirewallIncompatible,
            Self::NotFlannel(_) => FailureCategory::FirewallObject,
        }
    }
}

/// Objects of both networks in the firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firewall {
    /// flannel's chains, rules and tables.
    pub flannel: Vec<FirewallObject>,
    /// Tables with a chain of flannel whose rules iptables cannot read, with the reason.
    pub unread: Vec<String>,
    /// Links for which replumb accepts frames to other MAC addresses.
    pub frame_rules: Vec<String>,
    /// A detour around a bridge: of an agent that was killed, or that could not end it.
    pub detour: Option<Detour>,
    /// Calico's own tables, and iptables tables that contain chains of Calico.
    pub calico: Vec<FirewallObject>,
    /// Number of Calico's IP sets.
    pub calico_sets: usize,
    /// Whether the kernel has no `nf_tables`.
    pub lacks_nf_tables: bool,
}

/// Reads every backend of the kernel.
///
/// # Errors
///
/// A program (iptables, ipset, nft) fails or prints lines that cannot be read, or the list of legacy tables cannot be read.
pub async fn read(proc: &Path) -> Result<Firewall, FirewallError> {
    read_of(proc, nf_tables()).await
}

/// The same, of a kernel with or without `nf_tables`. nft fails on a kernel without it, in which nothing of nftables can exist.
async fn read_of(proc: &Path, kernel: NfTables) -> Result<Firewall, FirewallError> {
    let select = |chain: &str| flannel::of_flannel(chain).or_else(|| calico::common_name(chain));
    let nft = async {
        match kernel {
            NfTables::Present => Nftables::read(select).await,
            NfTables::Missing => Ok(Nftables::default()),
        }
    };
    let (nft, calico_sets) = tokio::try_join!(nft, calico::sets())?;
    let (flannel, unread) = flannel::list(proc, &nft).await?;
    Ok(Firewall {
        flannel,
        unread,
        frame_rules: nft.frame_rules(),
        detour: nft.detour(),
        calico: calico::list(proc, &nft).await?,
        calico_sets,
        lacks_nf_tables: kernel == NfTables::Missing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of legacy tables of a network namespace without any.
    fn proc() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("thread-self/net")).unwrap();
        proc
    }

    #[tokio::test]
    async fn a_kernel_without_nf_tables_has_no_rules_of_nftables() {
        let proc = proc();
        let found = read_of(proc.path(), NfTables::Missing).await.unwrap();
        assert!(found.lacks_nf_tables);
        assert_eq!(
            (found.flannel, found.calico, found.unread),
            (Vec::new(), Vec::new(), Vec::new())
        );
        assert_eq!((found.frame_rules, found.detour), (Vec::new(), None));
    }

    #[tokio::test]
    async fn its_legacy_tables_are_read() {
        let proc = proc();
        std::fs::create_dir(proc.path().join("thread-self/net/ip_tables_names")).unwrap();
        let error = read_of(proc.path(), NfTables::Missing).await.unwrap_err();
        assert!(matches!(&error, FirewallError::File(_)), "{error}");
    }
}
