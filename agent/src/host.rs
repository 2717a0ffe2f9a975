//! The host: kernel and files. All code that touches the machine is in this module.

pub mod cnidir;
pub mod cniplugin;
pub mod connections;
pub mod files;
pub mod firewall;
#[cfg(test)]
pub(crate) mod fixture;
pub mod folders;
pub mod kube_proxy;
pub mod netlink;
pub mod nft;
pub mod paths;
pub mod priority;
pub mod process_end;
pub mod processes;
pub mod program;
pub mod random;
pub mod runtime;
pub mod slow_read;
pub mod snapshot;
pub mod socket;
pub mod sysctl;
