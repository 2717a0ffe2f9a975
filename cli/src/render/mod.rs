//! Texts for people. Nothing here reads or writes anything.

pub mod checks;
pub mod plan;
pub mod status;
pub mod table;
pub mod view;
