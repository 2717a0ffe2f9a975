//! The wire: custom resources, every name that crosses a process boundary, and the door from wire to domain.

pub mod convert;
pub mod migration;
pub mod names;
pub mod node_migration;

pub use migration::{Migration, MigrationSpec, MigrationStatus};
pub use node_migration::{NodeMigration, NodeMigrationSpec, NodeMigrationStatus};
