//! Renderers of text output. No I/O.

pub mod checks;
pub mod plan;
pub mod rehearsal;
pub mod status;
pub mod view;
