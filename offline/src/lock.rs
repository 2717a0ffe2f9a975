//! Access to what several tasks share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it. Every change below a lock of this crate is complete before a panic is possible.
pub fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
