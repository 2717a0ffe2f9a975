//! Numbers that nothing outside of this process can guess. Asks the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// One of them.
pub fn number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // The kernel gives up to 256 bytes whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
