//! Random numbers of the kernel, which no other process can guess.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A random number.
///
/// # Errors
///
/// The kernel refuses.
pub fn number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // The kernel always returns up to 256 bytes completely.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
