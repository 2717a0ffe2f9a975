//! Handles: the number of addresses of each block that one holder has.

use anyhow::{Result, bail};
use ipnet::Ipv4Net;

use super::{Ipam, TRIES};
use crate::datastore::Written;
use crate::datastore::types::{IPAMHandle, IPAMHandleSpec};

/// Name of the object of a handle.
pub fn object_name(handle: &str) -> String {
    handle.to_lowercase()
}

impl Ipam {
    /// Adds to a handle's count for a block, or subtracts from it. A handle without addresses is deleted; subtracting
    /// more than the count leaves zero.
    pub(super) async fn count(&self, handle: &str, range: Ipv4Net, change: i64) -> Result<()> {
        let name = object_name(handle);
        for _ in 0..TRIES {
            let found = self.handles.get(&name).await?;
            let stored = found.is_some();
            let mut object = found.unwrap_or_else(|| {
                let spec = IPAMHandleSpec {
                    handle_id: handle.to_owned(),
                    ..IPAMHandleSpec::default()
                };
                IPAMHandle::new(&name, spec)
            });
            adjust(&mut object.spec, range, change);
            let written = match (stored, object.spec.block.is_empty()) {
                (false, true) => return Ok(()),
                (false, false) => matches!(self.handles.create(&object).await?, Written::Done(_)),
                (true, true) => matches!(self.handles.delete(&object).await?, Written::Done(())),
                (true, false) => matches!(self.handles.replace(&object).await?, Written::Done(_)),
            };
            if written {
                return Ok(());
            }
        }
        bail!("count the addresses of handle {handle} in {range}: another writer was faster {TRIES} times")
    }
}

fn adjust(handle: &mut IPAMHandleSpec, range: Ipv4Net, change: i64) {
    let key = range.to_string();
    let count = handle
        .block
        .get(&key)
        .copied()
        .unwrap_or_default()
        .saturating_add(change);
    if count > 0 {
        handle.block.insert(key, count);
    } else {
        handle.block.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_never_falls_below_zero() {
        let mut handle = IPAMHandleSpec::default();
        let range = "10.244.1.0/26".parse().unwrap();
        adjust(&mut handle, range, 1);
        adjust(&mut handle, range, 1);
        assert_eq!(handle.block["10.244.1.0/26"], 2);
        adjust(&mut handle, range, -1);
        assert_eq!(handle.block["10.244.1.0/26"], 1);
        adjust(&mut handle, range, i64::MIN);
        assert!(handle.block.is_empty());
        assert_eq!(object_name("k8s-pod-network.ABC"), "k8s-pod-network.abc");
    }
}
