//! The priority of a thread.

/// The niceness of threads whose work can wait: a tenth of the processor time of the agent's other threads, if both want it.
const NICENESS: i32 = 10;

/// Gives the calling thread a lower priority than the agent's other threads. Niceness is of one thread in Linux.
///
/// # Errors
///
/// The kernel refuses.
pub fn lower() -> std::io::Result<()> {
    rustix::process::nice(NICENESS)?;
    Ok(())
}
